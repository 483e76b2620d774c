"""The notebooks as code: their exercises do what they say, and they run from their first cell to
their last."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
import tomllib
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from marimo._ast.app import InternalApp

from zorplex_rl.course.lesson import exercise, lesson

pytestmark = pytest.mark.slow

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("[0-9]*.py"))
every_notebook = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)


def checks_of(notebook: Path) -> list[str]:
    found = [
        node
        for node in ast.parse(notebook.read_text()).body
        if getattr(node, "name", "") == "Solutions"
    ]
    return [
        node.name
        for cell in found
        for node in cell.body
        if getattr(node, "name", "").startswith("check_")
    ]


EXERCISES = [
    (notebook, name.removeprefix("check_"))
    for notebook in NOTEBOOKS
    for name in checks_of(notebook)
]
every_exercise = pytest.mark.parametrize(
    ("notebook", "name"), EXERCISES, ids=[f"{n.stem}:{e}" for n, e in EXERCISES]
)


@cache
def load(notebook: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"notebook_{notebook.stem}", notebook)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Later:
    """A notebook that is executed when something of it is asked for, and not to collect its tests."""

    def __init__(self, notebook: Path) -> None:
        self._notebook = notebook

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest looks whether it is a fixture
            raise AttributeError(name)
        return getattr(load(self._notebook), name)


def packages_of(source: str) -> set[str]:
    """What a program imports beyond the standard library."""
    imported = re.findall(r"^(?:import|from) (.+?)(?: import .*)?$", source, re.MULTILINE)
    names = {name.strip().split(".")[0] for line in imported for name in line.split(",")}
    return names - set(sys.stdlib_module_names)


def parts_of(notebook: Path, name: str) -> tuple:
    return next(parts for found, *parts in exercise.exercises(load(notebook)) if found == name)


@every_notebook
def test_a_notebook_says_what_it_needs_so_that_uv_opens_it_from_a_clone(notebook):
    header = tomllib.loads(
        re.match(r"# /// script\n((?:# .*\n)+)# ///\n", notebook.read_text())[1].replace("# ", "")
    )
    source = notebook.parent / header["tool"]["uv"]["sources"]["zorplex-rl"]["path"]
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    assert header["dependencies"] == ["marimo", project["name"]]
    assert header["requires-python"] == project["requires-python"]


@every_notebook
def test_a_notebook_has_two_exercises_or_more(notebook):
    assert sum(found == notebook for found, _ in EXERCISES) >= 2


@every_notebook
def test_writing_an_exercise_or_pressing_a_button_runs_no_cell_without_the_results_that_it_needs(
    notebook,
):
    """marimo runs all that depends on it, and what comes from another cell that waits is not there yet."""
    graph = InternalApp(load(notebook).app).graph
    cells = graph.cells
    waiting = {
        i for i, cell in cells.items() if re.search(r"lesson\.(wait_for|needs)\(", cell.code)
    }
    behind = {i: set(graph.descendants(i)) for i in cells}
    names = [name for found, name in EXERCISES if found == notebook]
    for written in waiting | {i for i, cell in cells.items() if cell.defs & set(names)}:
        ends = behind[written] & waiting
        runs = behind[written] - ends - set().union(*(behind[i] for i in ends))
        others = {i for i in waiting - {written} if written not in behind[i]}
        assert [cells[i].code for i in runs if any(i in behind[other] for other in others)] == []


@every_exercise
def test_a_stub_fails_its_check(notebook, name):
    stub, check, _ = parts_of(notebook, name)
    assert exercise.complaint(check, stub)


@every_exercise
def test_the_code_that_the_page_shows_passes_when_it_is_pasted_over_the_stub(notebook, name):
    _, check, solution = parts_of(notebook, name)
    namespace = dict(vars(load(notebook)))
    exec(exercise.solution_source(name, solution), namespace)
    assert exercise.complaint(check, namespace[name]) is None


@every_notebook
def test_a_notebook_has_a_title_of_its_own(notebook):
    assert lesson.title_of(notebook) != notebook.stem


def test_the_course_starts_at_05_and_names_the_first_notebook_for_those_who_need_it(tmp_path):
    for name, title in (
        ("01_a.py", "Actors"),
        ("04_b.py", "Shards"),
        ("05_c.py", "RL"),
        ("05b_c.py", "Write"),
        ("06_d.py", "Services"),
        ("08_e.py", "Loop"),
    ):
        (tmp_path / name).write_text(f'app = marimo.App(app_title="{title}")\n')
    start = lesson.links(str(tmp_path / "05_c.py")).text
    assert "The course starts here. Optional, on actors: <strong>Actors</strong>" in start
    assert "Shards" not in start and "Next: <strong>Write</strong>" in start
    assert "Before this: <strong>RL</strong>" in lesson.links(str(tmp_path / "05b_c.py")).text
    end = lesson.links(str(tmp_path / "08_e.py")).text
    assert "Before this: <strong>Services</strong>" in end
    assert "Computed on: " not in end
    assert "Computed on: " in lesson.links(str(tmp_path / "08_e.py"), machine=True).text


def test_a_table_has_a_caption_and_puts_numbers_on_the_right():
    said = lesson.table(
        "Times", [{"kind": "simple", "seconds": "0.12"}, {"kind": "recursive", "seconds": "1.30"}]
    ).text
    assert "<caption>Times</caption>" in said
    assert '<td class="number">0.12</td>' in said
    assert "<td>simple</td>" in said


@every_notebook
def test_what_is_computed_becomes_markup_in_one_place_only(notebook):
    """``mo.md`` and ``mo.Html`` let HTML through: a notebook gives them nothing that it has not
    written itself."""
    calls = [
        node for node in ast.walk(ast.parse(notebook.read_text())) if isinstance(node, ast.Call)
    ]
    passed = [
        call
        for call in calls
        if ast.unparse(call.func) in ("mo.md", "mo.Html", "mo.as_html", "mo.iframe")
    ]
    assert [
        ast.unparse(call) for call in passed if not isinstance(call.args[0], ast.Constant)
    ] == []
