"""The house: two wings. The course imports the system, never the reverse; in the system each folder
imports only from folders below it."""

import ast
import io
import tokenize
from collections import Counter
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import zorplex_rl

ROOT = Path(zorplex_rl.__file__).parent
TESTS = Path(__file__).parent
REPOSITORY = TESTS.parent
COURSE = "course"
FLOORS = (
    ("__main__", "cli"),
    ("training",),
    ("hosts", "simulation", "sizing"),
    ("services", "learning"),
    ("policy", "run"),
    ("task", "weights"),
    ("devices",),
    ("config",),
    ("errors", "__init__"),
)
"""The system from top to ground: folders, and files of the root. What stands on one floor does not
know of each other; ``__main__`` is the door of ``cli``."""
MONARCH = ("hosts", "services", "training")
ROOT_FILES, ROOMS = 5, 20
TOKENS = {
    "cli": 7_150,
    "training": 13_180,
    "simulation": 6_900,
    "sizing": 4_130,
    "learning": 9_640,
    "hosts": 3_390,
    "run": 5_280,
    "policy": 19_750,
    "services": 9_070,
    "task": 5_880,
    "weights": 4_340,
    ".": 2_170,
}
"""At most so many tokens in each folder; "." is the files of the root. A commit that raises one says why."""
SYSTEM = 86_000
TOKENS_A_LINE = 8.5
CODE_WIDTH, PROSE_WIDTH = 110, 120
SEVERAL_SHARE = 0.02
"""Of the assignments of a folder, at most this share assigns several values at once: ``a, b = x, y``."""
FUNCTION_LINES, COMPLEXITY = 40, 12
LARGE_FUNCTIONS = {
    "policy/rollout_simple.py: rollout_simple": "the whole loop in one place, as one would write it on a board",
}
"""Functions that may be longer or more complex, each with the reason: "folder/file.py: function"."""
COURSE_AND_NOTEBOOKS = 135_000


def modules() -> dict[str, Path]:
    """Every module of the package, by its dotted name within it; the package itself is
    ``__init__``."""
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imported_by(path: Path) -> set[str]:
    """Everything that ``path`` imports anywhere, in functions and for type checkers, too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
            found.add(node.module)
    return found


def own_imports(name: str) -> set[str]:
    """The modules of the package that ``name`` imports."""
    names = {
        "__init__" if i == "zorplex_rl" else i.removeprefix("zorplex_rl.")
        for i in imported_by(MODULES[name])
    }
    return {i for i in names if i in MODULES and i != name}


@cache
def imports() -> dict[str, set[str]]:
    """What each module of the package imports of it."""
    return {name: own_imports(name) for name in MODULES}


def room_of(module: str) -> str:
    return module.split(".")[0]


def floor_of(module: str) -> int:
    (floor,) = (number for number, rooms in enumerate(FLOORS) if room_of(module) in rooms)
    return floor


def system() -> list[str]:
    return [name for name in MODULES if room_of(name) != COURSE]


def test_every_file_of_the_system_stands_on_a_floor():
    assert {room_of(name) for name in system()} == {room for rooms in FLOORS for room in rooms}


def test_the_system_knows_nothing_of_the_course_but_the_commands_that_open_it():
    guilty = {name for name in system() for i in imports()[name] if room_of(i) == COURSE}
    assert guilty <= {"cli.commands"}


def test_the_course_knows_nothing_of_the_commands():
    assert [
        f"{name} imports {i}"
        for name in MODULES
        for i in imports()[name]
        if (room_of(name), room_of(i)) == (COURSE, "cli")
    ] == []


def test_each_folder_imports_only_from_those_below_it():
    up = [
        f"{name} imports {target}"
        for name in system()
        # The package hands out names of the floors above it, when they are asked for.
        if name != "__init__"
        for target in imports()[name]
        if room_of(target) not in (room_of(name), COURSE)
        and floor_of(target) <= floor_of(name)
        and (room_of(name), room_of(target)) != ("__main__", "cli")
    ]
    assert up == []


def test_no_module_imports_itself_by_a_detour():
    packages = {name for name, path in MODULES.items() if path.name == "__init__.py"}
    graph = {
        name: targets - packages for name, targets in imports().items() if name not in packages
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" → ".join(error.args[1])) from None


def test_only_hosts_services_and_training_import_monarch():
    guilty = [
        name
        for name, path in MODULES.items()
        if room_of(name) not in MONARCH
        # What drives the experiments of a notebook speaks to processes as its page does.
        and not name.startswith(f"{COURSE}.nb")
        and any(i.split(".")[0] == "monarch" for i in imported_by(path))
    ]
    assert guilty == []


def test_the_house_is_small():
    assert len(list(ROOT.glob("*.py"))) <= ROOT_FILES
    rooms = {path.parent for path in ROOT.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert len(rooms - {ROOT}) <= ROOMS


def tokens_of(file: Path) -> int:
    return tokens_by_line(file).total()


def tokens_by_line(file: Path) -> Counter[int]:
    """How many names, operators and literals each line of code of ``file`` has: without comments, and strings
    that stand alone."""
    text = file.read_text()
    prose: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            prose.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    kinds = (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING)
    lines = Counter[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in kinds and token.start[0] not in prose:
            lines[token.start[0]] += 1
            # The further lines of a long string are code, too.
            for line in range(token.start[0] + 1, token.end[0] + 1):
                lines.setdefault(line, 0)
    return lines


def test_each_folder_keeps_its_budget_of_tokens():
    tokens = dict.fromkeys((*TOKENS, COURSE), 0)
    for path in MODULES.values():
        parts = path.relative_to(ROOT).parts
        tokens[parts[0] if len(parts) > 1 else "."] += tokens_of(path)
    course = tokens.pop(COURSE) + sum(map(tokens_of, (TESTS.parent / "notebooks").glob("*.py")))
    assert {room: number for room, number in tokens.items() if number > TOKENS[room]} == {}
    assert sum(tokens.values()) <= SYSTEM
    assert course <= COURSE_AND_NOTEBOOKS


BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.IfExp, ast.Assert)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def complexity(function: ast.AST) -> int:
    """One more than the number of branches: conditions, loops, handlers, cases, and/or."""
    count = 1
    for node in ast.walk(function):
        if isinstance(node, (*BRANCHES, ast.match_case)):
            count += 1
        elif isinstance(node, ast.comprehension):
            count += 1 + len(node.ifs)
        elif isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
    return count


def assigns_several(node: ast.Assign) -> bool:
    return isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple)


def hard_to_read(node: ast.AST) -> str:
    """What is wrong with a comprehension; empty if nothing is."""
    if isinstance(node, ast.Expr) and isinstance(node.value, COMPREHENSIONS):
        return "a comprehension as a statement"
    levels = node.generators if isinstance(node, COMPREHENSIONS) else []
    if len(levels) > 1 and any(level.ifs for level in levels):
        return "a comprehension of two levels with a condition"
    return ""


def files_of(room: str) -> list[Path]:
    return sorted(ROOT.glob("*.py") if room == "." else (ROOT / room).rglob("*.py"))


def large_functions(room: str) -> list[str]:
    """The functions of ``room`` that are too long or too complex: "folder/file.py: function"."""
    large = []
    for file in files_of(room):
        code = tokens_by_line(file)
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, FUNCTIONS):
                continue
            lines = sum(line in code for line in range(node.lineno, (node.end_lineno or 0) + 1))
            if lines > FUNCTION_LINES or complexity(node) > COMPLEXITY:
                large.append(f"{file.relative_to(ROOT)}: {node.name}")
    return large


@pytest.mark.parametrize("room", TOKENS)
def test_each_folder_can_be_read_at_the_first_pass(room):
    tokens = lines = 0
    assignments: list[ast.Assign] = []
    wrong = [
        f"{name} is too large" for name in large_functions(room) if name not in LARGE_FUNCTIONS
    ]
    for file in files_of(room):
        code = tokens_by_line(file)
        tokens += code.total()
        lines += len(code)
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if len(line) > (CODE_WIDTH if number in code else PROSE_WIDTH):
                wrong.append(f"{file}:{number} has {len(line)} characters")
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Assign):
                assignments.append(node)
            if problem := hard_to_read(node):
                wrong.append(f"{file}:{node.lineno} is {problem}")
    several = sum(map(assigns_several, assignments))
    assert wrong == []
    assert tokens <= TOKENS_A_LINE * lines
    assert several <= SEVERAL_SHARE * len(assignments)


def test_only_functions_that_are_large_may_be_large():
    large = {name for room in TOKENS for name in large_functions(room)}
    assert LARGE_FUNCTIONS.keys() - large == set()


def test_the_files_that_learners_open_first_have_air():
    """At most 8 tokens a line, as one would write on a board, and no line that is wider than a board."""
    files = {
        "examples": [*(REPOSITORY / "examples").glob("*.py")],
        "speedrun": [*(REPOSITORY / "speedrun").rglob("*.py")],
        "recipes": [*(REPOSITORY / "recipes").glob("*.py")],
        "rollout_simple": [ROOT / "policy" / "rollout_simple.py"],
        "train_simple": [ROOT / "learning" / "train_simple.py"],
    }
    for name, group in files.items():
        lines = [tokens_by_line(file) for file in group]
        assert sum(line.total() for line in lines) <= 8 * sum(map(len, lines)), name
        for file, numbers in zip(group, lines, strict=True):
            text = file.read_text().splitlines()
            assert [text[number - 1] for number in numbers if len(text[number - 1]) > 110] == [], (
                file
            )


def floors_within(folder: str) -> dict[str, int]:
    """The floor of each file of ``folder``, from 1 at the ground: one more than the highest of those
    that it imports."""
    own = [name for name in MODULES if name.startswith(f"{folder}.")]
    graph = {name: [i for i in imports()[name] if i in own] for name in own}
    floors: dict[str, int] = {}
    for name in TopologicalSorter(graph).static_order():
        floors[name] = 1 + max((floors[i] for i in graph[name]), default=0)
    return floors


def test_the_services_stand_on_few_floors():
    floors = floors_within("services")
    assert max(floors.values()) <= 6


def test_a_service_knows_nothing_of_hosts_and_tasks():
    assert {
        room_of(i) for name in MODULES if room_of(name) == "services" for i in imports()[name]
    } - {"__init__"} <= {
        "services",
        "errors",
    }


def test_the_folders_of_the_tests_are_those_of_the_package():
    folders = {path.parent.relative_to(TESTS) for path in TESTS.rglob("test_*.py")}
    assert {str(folder) for folder in folders if not (ROOT / folder).is_dir()} == {
        "notebooks",
        "workshop",
    }
