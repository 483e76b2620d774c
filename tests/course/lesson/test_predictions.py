"""A result stays folded until a prediction is made: on a published page, without scripts, in print,
and in `marimo edit`."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pages import served

from zorplex_rl.course.lesson import lesson
from zorplex_rl.course.site.build import build_site

pytestmark = pytest.mark.slow

NOTEBOOK = """
import marimo

__generated_with = "0.25.2"
app = marimo.App(app_title="Predictions", css_file="{css}")

with app.setup(hide_code=True):
    import marimo as mo

    from zorplex_rl.course.lesson import lesson
    from zorplex_rl.course.widgets import LiveCurve


@app.cell(hide_code=True)
def _():
    lesson.header(__file__, minutes=1, hardware="a core", goals=["predict"])
    return


@app.cell(hide_code=True)
def _():
    faster = lesson.predict("Which is **faster**?", "a `call`", "a function", "neither")
    faster
    return (faster,)


@app.cell(hide_code=True)
def _(faster):
    lesson.reveal(
        faster,
        right=1,
        why="The call takes *longer*.",
        shows=[lesson.table("Times", [{{"kind": "call", "ms": 2.0}}]), "And **this** too."],
    )
    return


@app.cell(hide_code=True)
def _():
    larger = lesson.predict("Which is larger?", "the first", "the second")
    larger
    return (larger,)


@app.cell(hide_code=True)
def _(larger):
    curve = LiveCurve(10)
    lesson.reveal(larger, right=[0, 1], shows=[curve, "A curve."])
    return


@app.cell(hide_code=True)
def _():
    lesson.recap(2, "It ends.")
    return
"""
CSS = Path(lesson.__file__).with_name("lesson.css")


@pytest.fixture(scope="module")
def published(once):
    """The address of the notebook's page on a site."""

    def make(folder: Path) -> None:
        (folder / "notebooks").mkdir(parents=True)
        (folder / "notebooks" / "01_predictions.py").write_text(NOTEBOOK.format(css=CSS))
        build_site(folder / "notebooks", folder / "site")

    with served(once("predictions", make) / "site") as address:
        yield address + "01_predictions.html"


@pytest.fixture
def visit(chromium):
    """Opens an address in a fresh browser and waits for the question."""

    def open_page(address: str, **options):
        page = chromium.new_context(**options).new_page()
        page.goto(address)
        page.get_by_text("Which is larger?", exact=True).wait_for(timeout=60_000)
        return page

    yield open_page
    for context in chromium.contexts:
        context.close()


def results(page) -> list[bool]:
    """Which results are seen."""
    return [found.is_visible() for found in page.locator(".lesson-reveal .lesson-result").all()]


def seen(page, number: int = 0) -> str:
    return " ".join(page.locator(".lesson-reveal").nth(number).inner_text().split())


def counts(page) -> list[str]:
    """Return the numbers that the style sheet has counted. They are in no element's text: read what
    a screen reader gets."""
    nodes = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    texts = [node["name"]["value"] for node in nodes if node["role"]["value"] == "StaticText"]
    return re.findall(r"\d+", " ".join(texts[texts.index("Your predictions: ") :]))[:3]


def check_by_mouse(page):
    assert results(page) == [False, False]
    assert seen(page) == "The result unfolds when you predict."
    assert counts(page) == ["0", "2", "0"]
    page.locator("label", has_text="neither").click()
    assert results(page) == [True, False]
    assert seen(page).startswith(
        "You said neither. Not so. The answer is a function. The call takes longer. Times"
    )
    assert "And this too." in seen(page)
    assert counts(page) == ["1", "2", "0"]
    page.locator("label", has_text="a function").click()
    assert seen(page).startswith("You said a function. That is right. The call takes longer.")
    assert counts(page) == ["1", "2", "1"]
    page.locator("label", has_text="the first").click()
    assert results(page) == [True, True]
    assert (
        "That is right. It is the first or the second: this run does not tell them apart."
        in seen(page, 1)
    )
    assert counts(page) == ["2", "2", "2"]


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no scripts"])
def test_a_result_unfolds_when_an_answer_is_chosen_and_says_whether_it_is_right(
    published, visit, scripts
):
    check_by_mouse(visit(published, java_script_enabled=scripts))


def test_the_keyboard_reaches_an_answer_and_nothing_inside_a_folded_result(published, visit):
    page = visit(published)
    page.locator(".lesson-unfold").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent").startswith("Setup")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id").endswith("-0")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.type") == "radio", "a folded table takes no focus"
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Space")
    assert seen(page).startswith("You said a call. Not so.")
    page.keyboard.press("ArrowDown")
    assert seen(page).startswith("You said a function. That is right.")


def test_the_switch_unfolds_all_without_a_choice_and_folds_again(published, visit):
    page = visit(published)
    switch = page.get_by_role("checkbox", name="Unfold all results")
    switch.check()
    assert results(page) == [True, True]
    assert seen(page).startswith("The answer is a function. The call takes longer.")
    assert counts(page) == ["0", "2", "0"]
    page.locator("label", has_text="neither").click()
    assert seen(page).count("The answer is") == 1
    switch.uncheck()
    assert results(page) == [True, False]


def test_print_shows_all_results(published, visit):
    page = visit(published)
    page.emulate_media(media="print")
    assert results(page) == [True, True]
    assert "when you predict" not in seen(page)
    assert not page.locator(".lesson-switch").is_visible()


def test_a_widget_in_a_folded_result_has_its_width_when_it_unfolds(published, visit):
    page = visit(published)
    page.locator("label", has_text="the first").click()
    assert page.locator(".lesson-result .widget svg:visible").first.bounding_box()["width"] > 300


def wait_for_port(port: int) -> None:
    for _ in range(600):
        try:
            return socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            time.sleep(0.1)
    raise TimeoutError(f"nothing listens on port {port}")


def test_it_works_in_marimo_edit(tmp_path, visit):
    (tmp_path / "predictions.py").write_text(NOTEBOOK.format(css=CSS))
    (tmp_path / "pyproject.toml").write_text("[tool.marimo.runtime]\nauto_instantiate = true\n")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    flags = ["--headless", "--no-token", "--no-sandbox", "--skip-update-check", "--port", str(port)]
    command = [sys.executable, "-m", "marimo", "-q", "edit", "predictions.py", *flags]
    nowhere = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    server = subprocess.Popen(command, cwd=tmp_path, start_new_session=True, **nowhere)
    try:
        wait_for_port(port)
        page = visit(f"http://127.0.0.1:{port}/?file=predictions.py")
        page.locator(".lesson-predicted").wait_for(timeout=60_000)
        check_by_mouse(page)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(timeout=20)


def test_a_measurement_that_decides_nothing_calls_no_answer_right():
    said = lesson.reveal(lesson.predict("Which?", "a", "b"), right=[]).text
    assert said.count("This run does not decide it.") == 3
    assert "right." not in said
