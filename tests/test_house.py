"""The house: two wings. The course imports the system, never the reverse; in the system each folder
imports only from folders below it."""

import ast
from collections.abc import Iterable
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from wording import FILE, parse

import zorplex_rl

ROOT = Path(zorplex_rl.__file__).parent
TESTS = Path(__file__).parent
COURSE = "course"
FLOORS = (
    ("__main__",),
    ("cli",),
    ("training",),
    ("services",),
    ("drawing", "simulation", "sizing"),
    ("run_folder",),
    ("learning",),
    ("weights",),
    ("policy",),
    ("timeline",),
    ("task",),
    ("config", "manifest"),
    ("errors", "__init__"),
)
"""The system from top to ground: folders, and files of the root. What stands on one floor does not
know of each other."""
MONARCH = ("services", "training")
ROOT_FILES, ROOMS = 7, 20
LINES = {
    "course": 8_890,
    "cli": 2_980,
    "training": 3_096,
    "simulation": 1_694,
    "sizing": 1_757,
    "drawing": 438,
    "learning": 3_527,
    "policy": 1_748,
    "services": 3_960,
    "task": 857,
    "weights": 850,
    ".": 1_563,
}
"""At most so many lines in each folder; "." is the files of the root. A capability that comes in
takes machinery out: a budget is lowered when there is less, and never raised."""
BESIDE = {
    "tests": ("tests/**/*.py", 29_542),
    "benchmarks": ("benchmarks/*.py", 6_142),
    "the lab log": ("benchmarks/LOG.md", 3_548),
    "README": ("README.md", 414),
}
"""What stands beside the package, and at most so many lines of it."""


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
    names = {"__init__" if i == "zorplex_rl" else i.removeprefix("zorplex_rl.") for i in imported_by(MODULES[name])}
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


def test_the_system_knows_nothing_of_the_course():
    assert [f"{name} imports {i}" for name in system() for i in imports()[name] if room_of(i) == COURSE] == []


def test_each_folder_imports_only_from_those_below_it():
    up = [
        f"{name} imports {target}"
        for name in system()
        # The package hands out names of the floors above it, when they are asked for.
        if name != "__init__"
        for target in imports()[name]
        if room_of(target) != room_of(name) and floor_of(target) <= floor_of(name)
    ]
    assert up == []


def test_no_module_imports_itself_by_a_detour():
    packages = {name for name, path in MODULES.items() if path.name == "__init__.py"}
    graph = {name: targets - packages for name, targets in imports().items() if name not in packages}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" → ".join(error.args[1])) from None


def test_only_services_and_training_import_monarch():
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


def lines_of(files: Iterable[Path]) -> int:
    return sum(len(file.read_text().splitlines()) for file in files)


def test_each_folder_keeps_its_budget_of_lines():
    rooms: dict[str, list[Path]] = {}
    for path in MODULES.values():
        parts = path.relative_to(ROOT).parts
        rooms.setdefault(parts[0] if len(parts) > 1 else ".", []).append(path)
    lines = {room: lines_of(files) for room, files in rooms.items()}
    assert lines.keys() == LINES.keys()
    assert {room: number for room, number in lines.items() if number > LINES[room]} == {}


@pytest.mark.parametrize("what", BESIDE)
def test_what_stands_beside_the_package_keeps_its_budget_of_lines(what):
    pattern, most = BESIDE[what]
    assert lines_of(ROOT.parent.glob(pattern)) <= most


def test_the_folders_of_the_tests_are_those_of_the_package():
    folders = {path.parent.relative_to(TESTS) for path in TESTS.rglob("test_*.py")}
    assert {str(folder) for folder in folders if not (ROOT / folder).is_dir()} == {"notebooks", "workshop"}


def test_every_message_in_the_file_of_wording_is_asked_for_by_a_test():
    tests = {test.partition("::") for test, _ in parse(FILE.read_text())}
    assert [name for file, _, name in tests if f"def {name}(" not in (TESTS / file).read_text()] == []
