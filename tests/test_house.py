"""The house: each folder imports only from folders below it, and what is under ``services`` and ``training`` knows nothing of Monarch."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import zorplex_rl

ROOT = Path(zorplex_rl.__file__).parent
FLOORS = ("cli", "site", "viz", "training", "services", "analysis", "learning", "weights", "policy", "task", "base")
"""From the top of the house to its ground."""
TOP_LEVEL = {
    "cli": "cli",
    "__main__": "cli",
    "flags": "cli",
    "train_command": "cli",
    "eval_command": "cli",
    "check_command": "cli",
    "size_command": "cli",
    "env_command": "cli",
    "env_process": "cli",
    "export_command": "cli",
    "status_command": "cli",
    "output": "cli",
    "failures": "cli",
    "log_file": "cli",
    "run_folder": "analysis",
    "folder_checks": "analysis",
    "config": "base",
    "errors": "base",
    "manifest": "base",
}
"""On which floor a file stands that is in no folder."""
MONARCH_FLOORS = ("services", "training")


def modules() -> dict[str, Path]:
    """Every module of the package, by its dotted name."""
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(name: str, path: Path) -> set[str]:
    """The modules that ``name`` imports anywhere, functions included; names for type checkers only are not."""
    found = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for child in node.orelse:
                visit(child)
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
            found.add(node.module)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text()))
    return found


def floor_of(module: str) -> str:
    parts = module.split(".")
    return "base" if len(parts) == 1 else TOP_LEVEL.get(parts[1], parts[1])


MODULES = modules()
IMPORTS = {name: {i for i in imports_of(name, path) if i in MODULES and i != name} for name, path in MODULES.items()}


def test_every_file_stands_on_a_floor():
    assert {floor_of(name) for name in MODULES} == set(FLOORS)


def test_each_folder_imports_only_from_those_below_it():
    up = [
        f"{name} imports {target}"
        for name, targets in IMPORTS.items()
        # The package itself hands out names of lower floors, when they are asked for.
        for target in targets - {"zorplex_rl"}
        if name != "zorplex_rl" and FLOORS.index(floor_of(target)) < FLOORS.index(floor_of(name))
    ]
    assert up == []


def test_no_module_imports_itself_by_a_detour():
    packages = {name for name, path in MODULES.items() if path.name == "__init__.py"}
    graph = {name: targets - packages for name, targets in IMPORTS.items() if name not in packages}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" → ".join(error.args[1])) from None


def test_only_services_and_training_import_monarch():
    guilty = [
        name
        for name, path in MODULES.items()
        if floor_of(name) not in MONARCH_FLOORS and any(i.split(".")[0] == "monarch" for i in imports_of(name, path))
    ]
    assert guilty == []
