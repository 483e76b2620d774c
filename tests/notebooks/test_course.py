"""What every notebook of the course keeps."""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
from pathlib import Path

import pytest
from prose import texts_of, too_long

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NOTEBOOKS = {path.stem: path for path in sorted((ROOT / "notebooks").glob("[0-9]*.py"))}


def load_minutes():
    spec = importlib.util.spec_from_file_location("minutes", ROOT / "workshop" / "minutes.py")
    module = sys.modules["minutes"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


minutes = load_minutes()


def calls_of(notebook: Path, name: str) -> list[ast.Call]:
    tree = ast.parse(notebook.read_text())
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == name
    ]


every_notebook = pytest.mark.parametrize("name", sorted(NOTEBOOKS))


@every_notebook
def test_every_result_waits_for_a_prediction_and_the_end_counts_them(name):
    asked, revealed = (
        calls_of(NOTEBOOKS[name], f"lesson.{form}") for form in ("predict", "reveal")
    )
    assert len(asked) == len(revealed) >= 2
    assert [
        ast.unparse(call) for call in revealed if "right" not in {key.arg for key in call.keywords}
    ] == []
    (counted,) = calls_of(NOTEBOOKS[name], "lesson.recap")
    assert ast.literal_eval(counted.args[0]) == len(asked)


@pytest.mark.parametrize("name", ["05c_judging_a_run", "11_laboratory"])
def test_a_page_on_runs_follows_one_in_a_terminal(name):
    followed, shown = (
        calls_of(NOTEBOOKS[name], f"lesson.{form}") for form in ("follow", "show_run")
    )
    assert len(followed) == len(shown) == 1


@every_notebook
def test_a_headline_is_computed(name):
    stated = calls_of(NOTEBOOKS[name], "lesson.headline")
    assert len(stated) <= 1
    for call in stated:
        (result,) = call.args
        assert isinstance(result, ast.JoinedStr)
        assert any(isinstance(part, ast.FormattedValue) for part in result.values)


@every_notebook
def test_no_comment_ends_a_function_because_marimo_would_cut_it_off(name):
    source = NOTEBOOKS[name].read_text()
    ends = [
        source.splitlines()[node.end_lineno - 1].encode()[node.end_col_offset :].decode()
        for node in ast.parse(source).body
        if hasattr(node, "name")
    ]
    assert [end for end in ends if end.strip()] == []


@every_notebook
def test_a_docstring_that_the_page_shows_is_no_wider_than_the_code_box(name):
    shown = [
        part
        for node in ast.parse(NOTEBOOKS[name].read_text()).body
        if any(
            ast.unparse(by).startswith("app.") and "hide_code" not in ast.unparse(by)
            for by in getattr(node, "decorator_list", [])
        )
        for part in ast.walk(node)
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    ]
    lines = [line for part in shown for line in (ast.get_docstring(part) or "").splitlines()]
    assert [line for line in lines if len(line) > 82] == []


@every_notebook
def test_a_page_names_its_ideas_which_are_at_most_five(name):
    (header,) = calls_of(NOTEBOOKS[name], "lesson.header")
    assert 1 <= len({key.arg: key.value for key in header.keywords}["goals"].elts) <= 5


@every_notebook
def test_exercises_are_graded_and_have_two_hints(name):
    given = [
        {key.arg: key.value for key in call.keywords}
        for call in calls_of(NOTEBOOKS[name], "exercise.feedback")
    ]
    levels = {ast.literal_eval(options["level"]) for options in given}
    assert levels <= {"warm-up", "core", "stretch"}
    assert all(ast.literal_eval(options["minutes"]) > 0 for options in given)
    assert all(len(options["hints"].elts) == 2 for options in given)


@every_notebook
def test_an_exercise_survives_a_syntax_error_in_its_stub(name):
    given = calls_of(NOTEBOOKS[name], "exercise.feedback")
    assert given and all(isinstance(call.args[0], ast.Lambda) for call in given)


@every_notebook
def test_no_sentence_of_a_notebook_is_too_long(name):
    assert [sentence for text in texts_of(NOTEBOOKS[name]) for sentence in too_long(text)] == []


NOTEBOOK = '''
import marimo

app = marimo.App()

with app.setup(hide_code=True):
    from zorplex_rl.course.lesson import exercise, lesson


@app.cell(hide_code=True)
def _():
    lesson.header(__file__, minutes=9, hardware="two cores", goals=["see it"])
    return


@app.cell(hide_code=True)
def _():
    lesson.md(f"""Three words: {1 + 1}. A {lesson.term("mesh")}.""")
    return


@app.cell
def _():
    x = 1  # why

    if x:
        x = 2
    return (x,)


@app.function
def double(x):
    """Double it."""
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(lambda: double, Solutions, level="core", minutes=7, hints=("Think.", "Multiply."))
    return


@app.class_definition(hide_code=True)
class Solutions:
    def check_double(double):
        exercise.expect(double, 2, result=4)

    def double(x):
        twice = 2 * x
        return twice
'''


@pytest.fixture
def notebook(tmp_path) -> Path:
    (tmp_path / "01_one.py").write_text(NOTEBOOK)
    return tmp_path / "01_one.py"


def test_the_rule_adds_up_what_a_reader_does(notebook, tmp_path):
    recorded = tmp_path / "seconds.json"
    recorded.write_text(json.dumps({"measured": "2026-11-22", "seconds": {"01_one": 90.0}}))
    found = minutes.estimate(notebook, recorded)
    assert (found.words, found.lines, found.figures, found.predictions) == (9, 5, 0, 0)
    assert (found.exercises, found.written, found.seconds, found.stated) == (1, 7, 90.0, 9)
    assert found.minutes == pytest.approx(9 / 120 + 5 / 20 + 3.5 + 7 / 23 + 1.5)
    assert minutes.estimate(notebook, tmp_path / "none").seconds is None


def test_figures_tables_and_predictions_take_a_minute_each(notebook):
    before = minutes.estimate(notebook).minutes
    notebook.write_text(
        NOTEBOOK
        + "\n\n@app.cell\ndef _():\n    lesson.figure(x), lesson.table('', [])\n    return\n"
    )
    assert minutes.estimate(notebook).minutes == pytest.approx(before + 2 + 1 / 20)


def test_air_in_a_solution_costs_no_minutes(notebook):
    dense = minutes.estimate(notebook).minutes
    airy = (
        '        """Twice."""\n        twice = (\n            # why\n            2 * x\n        )\n'
    )
    assert "        twice = 2 * x\n" in NOTEBOOK
    notebook.write_text(NOTEBOOK.replace("        twice = 2 * x\n", airy))
    assert minutes.estimate(notebook).minutes == dense


def test_what_is_folded_inside_another_part_is_not_counted(notebook):
    folded = """, lesson.folded("A title", "And much that nobody has to read."))"""
    notebook.write_text(
        NOTEBOOK.replace(
            """{lesson.term("mesh")}.\"\"\")""", """{lesson.term("mesh")}.\"\"\"""" + folded
        )
    )
    assert minutes.estimate(notebook).words == 9


def test_the_words_of_a_notebook_are_those_that_it_shows(notebook):
    assert "Three words: …. A …." in texts_of(notebook)
    assert "Think." in texts_of(notebook)
    assert not any("Double it" in text for text in texts_of(notebook))


def test_a_long_sentence_is_found_wherever_it_stands():
    long = "word " * 31
    assert too_long("word " * 30 + ".") == []
    assert len(too_long(f"Short. A {long}. Short.")) == 1
    assert len(too_long(f"- short\n- {long}\n- short")) == 1
    assert too_long("- " + "\n- ".join(["word " * 20] * 3)) == []
    assert too_long("| a | b |\n|---|---|\n" + "| word word | word word |\n" * 20) == []
    assert too_long(f"```\n{long}\n```\n\n## {long}\n\nThis is `{long}`.") == []


@every_notebook
def test_a_page_is_no_long_file(name):
    assert len(NOTEBOOKS[name].read_text().splitlines()) <= 1200


@every_notebook
def test_the_minutes_of_a_header_are_honest_and_at_most_50(name):
    found = minutes.estimate(NOTEBOOKS[name])
    assert found.seconds is not None, f"{name}: ./build_site.sh site --record {minutes.RECORDED}"
    assert found.stated == pytest.approx(found.minutes, rel=0.2)
    assert max(found.stated, found.minutes) <= 50


def test_no_module_of_a_page_is_long():
    """The budget of the course and its notebooks is in ``test_house.py``, in tokens."""
    modules = (ROOT / "zorplex_rl" / "course").glob("nb*.py")
    assert [file.name for file in modules if len(file.read_text().splitlines()) > 500] == []
