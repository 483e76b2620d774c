"""A reader in `marimo edit`: whatever is written into an exercise, no cell turns red, and nothing stays behind;
prose looks like prose."""

from __future__ import annotations

import re

import pytest
from editor import copied, opened
from test_notebooks import NOTEBOOKS, load

from zorplex_rl.course.lesson import exercise

pytestmark = pytest.mark.slow


def work_through(editor, wrong: dict[str, str], solutions: dict[str, str]) -> None:
    """Run everything, write a wrong answer and the solution into each exercise, and run again what waits."""
    editor.unfold()
    editor.press_all()
    assert editor.errors() == []
    by_the_course = [name for name in solutions if f"the course's {name}" in editor.text()]
    for name, source in wrong.items():
        editor.write(name, source)
        assert editor.errors() == [], name
    assert editor.text().count("Not yet: ") == len(wrong)
    for name, source in solutions.items():
        editor.write(name, source)
        assert editor.errors() == [], name
        assert f"Solved: {name} passes its check." in editor.text()
    editor.press_all()
    assert editor.errors() == []
    shown = editor.text()
    assert [
        name
        for name in by_the_course
        if f"your {name}" not in shown or f"the course's {name}" in shown
    ] == []
    assert "Waits for the button" not in shown


@pytest.mark.long
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_solving_the_exercises_of_a_notebook_turns_no_cell_red(notebook, chromium, tmp_path):
    number = notebook.stem.split("_")[0]
    found = exercise.exercises(load(notebook))
    solutions = {name: exercise.solution_source(name, solution) for name, _, _, solution in found}
    planted = "from answers_{} import WRONG as _wrong\n{} = _wrong['{}'][0]"
    wrong = {name: planted.format(number, name, name) for name in solutions}
    with opened(copied(tmp_path), notebook.stem, chromium) as editor:
        assert editor.errors() == []
        work_through(editor, wrong, solutions)
    assert editor.left() == set()


SMALL = '''
import marimo

app = marimo.App(app_title="A page", css_file="../zorplex_rl/course/lesson/lesson.css")

with app.setup(hide_code=True):
    from zorplex_rl.course.lesson import exercise, keep_open, lesson
    from zorplex_rl.services.runtime import Actor, endpoint, start_monarch, this_host


@app.cell(hide_code=True)
def _():
    mo.md("""## A heading""")
    return


@app.cell(hide_code=True)
def _():
    import marimo as mo

    hidden = "hidden"
    return hidden, mo


@app.cell(hide_code=True)
def _(hidden):
    lesson.md(f"""## A {hidden} heading""")
    return


@app.class_definition
class Adder(Actor):
    def __init__(self, add):
        self.add = add

    @endpoint
    def total(self, *numbers):
        return self.add(*numbers)


@app.cell
async def _():
    start_monarch()
    procs = await keep_open.enter("small", keep_open.stopping(this_host().spawn_procs()))
    return (procs,)


@app.function
def add(one, other):
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(lambda: add, Solutions)
    return


@app.cell
async def _(procs):
    added, whose = exercise.running(lambda: add, Solutions)
    sums = await procs.spawn("adders", Adder, added).total.call_one(19, 23)
    return sums, whose


@app.cell(hide_code=True)
def _(sums, whose):
    lesson.md(f"""{sums} by {whose}""")
    return


@app.cell(hide_code=True)
def _():
    start = lesson.start_button("Once more", seconds=1)
    start
    return (start,)


@app.cell
async def _(procs, start, sums):
    lesson.wait_for(start)
    again = await procs.spawn("more", Adder, max).total.call_one(sums, 1)
    return (again,)


@app.cell(hide_code=True)
def _(again):
    lesson.md(f"""once more {again}""")
    return


@app.cell
async def _(again):
    lesson.needs(lambda: again)
    await keep_open.done("small")
    return


@app.class_definition(hide_code=True)
class Solutions:
    def check_add(add):
        exercise.expect(add, 1, 2, result=3)

    def add(one, other):
        return one + other


if __name__ == "__main__":
    app.run()
'''


def test_the_processes_of_a_page_are_there_when_an_exercise_is_solved(chromium, tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "01_small.py").write_text(SMALL)
    with opened(copied(tmp_path, tmp_path / "one"), "01_small", chromium) as editor:
        page = editor.page
        assert "42 by the course's add" in editor.text()
        work_through(
            editor,
            {"add": "def add(one, other):\n    return one - other"},
            {"add": "def add(one, other):\n    return one + other"},
        )
        assert "42 by your add" in editor.text() and "once more 42" in editor.text()
        prose, plumbing = (page.locator(".marimo-cell").nth(place) for place in (3, 2))
        assert not prose.locator(".cm").is_visible()
        assert prose.evaluate("cell => getComputedStyle(cell).borderColor") == "rgba(0, 0, 0, 0)"
        fonts = page.locator(".marimo-cell h2").evaluate_all(
            "all => all.map((h) => getComputedStyle(h).fontFamily)"
        )
        assert len(fonts) == 2 and len(set(fonts)) == 1
        assert not plumbing.locator(".cm-content").is_visible()
        plumbing.locator(".cm").dblclick()
        plumbing.locator(".cm-content").wait_for()
    assert editor.left() == set()


LONG = '''
import marimo

app = marimo.App(app_title="Long work", css_file="../zorplex_rl/course/lesson/lesson.css")

with app.setup(hide_code=True):
    import time

    from zorplex_rl.course.lesson import lesson
    from zorplex_rl.course.widgets import LiveCurve


@app.cell
def _():
    start = lesson.start_button("Count", seconds=2)
    start
    return (start,)


@app.cell
def _(start):
    numbers = lesson.Kept(__file__, "numbers", count=200)
    lesson.wait_for(start, unless=numbers)

    def compute():
        with lesson.counting(200, "numbers") as one_more:
            for _ in range(200):
                time.sleep(0.02)
                one_more()
        return "two hundred " + "numbers"

    found = numbers.get(compute)
    return (found,)


@app.cell(hide_code=True)
def _(found):
    lesson.md(f"""Found {found}.""")
    return


@app.cell
def _():
    metrics = lesson.follow("run")
    curve = LiveCurve(total_steps=9)
    lesson.folded("A run", "Below, live.", curve)
    return curve, metrics


@app.cell
def _(curve, metrics):
    lesson.show_run(metrics, curve)
    return


if __name__ == "__main__":
    app.run()
'''


def test_long_work_shows_a_bar_can_be_interrupted_and_is_there_the_next_day(chromium, tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "01_long.py").write_text(LONG)
    notebooks = copied(tmp_path, tmp_path / "one")
    with opened(notebooks, "01_long", chromium) as editor:
        page = editor.page
        assert "Waits for the button" in editor.text()

        def begin():
            page.locator("marimo-button button").click()
            page.get_by_text(re.compile(r"^[1-9]\d* / 200$")).wait_for()
            page.get_by_text("numbers, since").wait_for()

        begin()
        page.get_by_test_id("interrupt-button").first.click()
        editor.wait()
        assert editor.errors() == []
        assert "Interrupted. The button above starts it again." in editor.text()
        begin()
        editor.wait()
        assert (
            "Found two hundred numbers." in editor.text()
            and page.locator("marimo-progress").count() == 0
        )
        # Somebody trains in a terminal.
        assert "No step yet in the run in run" in editor.text()
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "metrics.jsonl").write_text(
            '{"event": "step", "step": 3, "accuracy": 0.5}\n'
        )
        page.get_by_text("Step 3 of the run in").wait_for()
        page.get_by_text("A run", exact=True).click()
        page.get_by_text("step 3 of 9").wait_for()
    with opened(notebooks, "01_long", chromium) as editor:
        assert "Found two hundred numbers." in editor.text()
        assert editor.errors() == []
