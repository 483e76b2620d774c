"""Assemble pages: put head, style and navigation around the content, and list all lessons on the contents page."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from importlib.resources import files

from zorplex_rl.site.page import Lesson, Page
from zorplex_rl.viz.lesson import inline

Link = tuple[str, str]
"""(file, title)"""

TITLE = "RL for language models: the systems side"
LEAD = (
    "How generators, a replay buffer and a trainer become processes, how weights travel between them, how the whole survives a crash, "
    "and what asynchrony buys and costs. Every number on these pages was computed by the cell above it."
)
# A page without an icon makes the browser request one from the server.
_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 8 8'%3E"
    "%3Ccircle cx='4' cy='4' r='3' fill='%232484ce'/%3E%3C/svg%3E"
)


def lesson_page(page: Page, lesson: Lesson, notebook: str, previous: Link | None, following: Link | None) -> str:
    """Build the page of one notebook: its cells between links to its neighbours. ``notebook`` is its file name."""
    cells = "\n".join(rendered for cell in page.cells if (rendered := cell.render()))
    name = html.escape(notebook)
    source = f'<p class="source">The notebook behind this page: <a href="{name}">{name}</a></p>'
    body = (
        f"{_navigation(previous, following, 'Course')}\n<main>\n{cells}\n{source}\n</main>\n"
        f"{_navigation(previous, following, 'Course, end of page')}\n{_widgets(page)}"
    )
    return _document(lesson.title, body)


def contents_page(lessons: Sequence[tuple[str, Lesson]]) -> str:
    """Build the contents page: title, minutes, goals and machine of every lesson. ``lessons`` holds (file, lesson)."""
    minutes = sum(lesson.minutes for _, lesson in lessons)
    count = "1 notebook" if len(lessons) == 1 else f"{len(lessons)} notebooks"
    entries = "".join(_entry(file, lesson) for file, lesson in lessons)
    how = "To work in a notebook instead of reading it, take the repository and run <code>marimo edit notebooks/NAME.py</code>."
    body = (
        f"<main>\n<h1>{TITLE}</h1>\n<p>{LEAD}</p>\n<p>{count}, {minutes} minutes. {how}</p>\n"
        f'<ol class="lessons">\n{entries}</ol>\n</main>'
    )
    return _document(TITLE, body)


def _entry(file: str, lesson: Lesson) -> str:
    goals = "".join(f"<li>{inline(goal)}</li>" for goal in lesson.goals)
    ran_on = f'<p class="ran-on">Computed on: {html.escape(lesson.ran_on)}</p>' if lesson.ran_on else ""
    return (
        f'<li><h2><span class="ordinal">{html.escape(file.partition("_")[0])}</span>'
        f'<a href="{html.escape(file)}">{html.escape(lesson.title)}</a></h2>'
        f"<p>{lesson.minutes} minutes · {html.escape(lesson.hardware)}</p><p>Afterwards you can</p><ul>{goals}</ul>{ran_on}</li>\n"
    )


def _navigation(previous: Link | None, following: Link | None, label: str) -> str:
    back = (
        f'<a rel="prev" href="{html.escape(previous[0])}">← {html.escape(previous[1])}</a>'
        if previous
        else "<span></span>"
    )
    on = (
        f'<a rel="next" href="{html.escape(following[0])}">{html.escape(following[1])} →</a>'
        if following
        else "<span></span>"
    )
    return f'<nav class="course" aria-label="{label}">{back}<a href="index.html">Contents</a>{on}</nav>'


def _widgets(page: Page) -> str:
    """Return the state of the widgets and the script that draws them; empty for a page without widgets."""
    if not page.models:
        return ""
    # "</script>" inside the JSON would close the element.
    models = json.dumps(page.models).replace("<", "\\u003c")
    return (
        f'<script type="application/json" id="models">{models}</script>\n<script>\n{_file("site/widgets.js")}</script>'
    )


def _document(title: str, body: str) -> str:
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{html.escape(title)}</title>
<link rel="icon" href="{_ICON}">
<style>
{_file("site/site.css")}
{_file("viz/lesson.css")}
</style>
</head>
<body>
{body}
</body>
</html>
"""


def _file(name: str) -> str:
    return files("zorplex_rl").joinpath(name).read_text(encoding="utf-8")
