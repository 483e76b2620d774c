"""What all notebooks of the course share: a header, questions to predict, tables and figures, a way on.

    header(__file__, …)          title, minutes, hardware, goals; the site's contents page reads them from here
    ran_on(policy)               what computed the numbers on this page
    predict(…)  reveal(…)        a question before the measurement, and its answer, folded, behind it
    start_button  wait_for       a long cell waits for the reader, and for nobody where there is no reader
    recap(…)  links(__file__)    the end of a notebook
    md(…)  table(…)  folded(…)   Markdown with something computed in it
    quote(text)  fence(text)     Markdown that shows a text of somebody else, as it is

Every text becomes HTML in ``markup.py``, where none of it can become an element of the page.

Everything is plain HTML, styled by ``lesson.css``: it works in `marimo edit`, in the static page, and in that page before its scripts
have run. A notebook names the style sheet once: ``marimo.App(css_file="../zorplex_rl/viz/lesson.css")``.
"""

from __future__ import annotations

import ast
import html
import json
import os
import platform
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import marimo as mo

from zorplex_rl.viz.markup import block, inline
from zorplex_rl.viz.markup import fence as fence
from zorplex_rl.viz.markup import quote as quote

if TYPE_CHECKING:
    from zorplex_rl.policy.load import Policy


def title_of(notebook: str | Path) -> str:
    """The ``app_title`` in a notebook's source, or its file name where it has none."""
    for node in ast.walk(ast.parse(Path(notebook).read_text(encoding="utf-8"))):
        if isinstance(node, ast.keyword) and node.arg == "app_title" and isinstance(node.value, ast.Constant):
            return str(node.value.value)
    return Path(notebook).stem


def header(notebook: str, minutes: int, hardware: str, goals: Sequence[str]) -> mo.Html:
    """The top of a notebook; give it ``__file__``. The contents page of the site reads the facts out of this element."""
    title = title_of(notebook)
    facts = {"title": title, "minutes": minutes, "hardware": hardware, "goals": list(goals)}
    listed = "".join(f"<li>{inline(goal)}</li>" for goal in goals)
    return mo.Html(
        f'<header class="lesson-header" data-lesson="{html.escape(json.dumps(facts))}"><h1>{html.escape(title)}</h1>'
        f"<p>{minutes} minutes · {html.escape(hardware)}</p><p>Afterwards you can</p><ul>{listed}</ul></header>"
    )


def ran_on(policy: Policy | None = None) -> mo.Html:
    """The machine and the policy that computed what the page shows."""
    said = machine()
    if policy is not None:
        name = policy.name if policy.name.count("/") <= 1 else Path(policy.name).name
        said += f" Policy: {name}, {policy.parameter_count / 1e6:,.2f} million parameters, on {policy.device}."
    return mo.Html(f'<p class="lesson-ran-on" data-ran-on="{html.escape(said)}">Computed on: {html.escape(said)}</p>')


def machine() -> str:
    """Processor, cores, accelerator and versions, in one line."""
    import torch

    model = next((line for line in _lines("/proc/cpuinfo") if line.startswith("model name")), ":" + platform.machine())
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    accelerator = ", ".join(gpus) or "no GPU"
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    return f"{cores} cores of {model.partition(':')[2].strip()}, {accelerator}, {versions}."


def md(markdown: str) -> mo.Html:
    """Markdown with something computed in it: like ``mo.md``, but HTML in it is shown as text. Put texts of others in with ``quote``."""
    return mo.Html(block(markdown))


def predict(question: str, *options: str) -> mo.Html:
    """A question to answer before reading on; with ``options`` the reader can commit to one of them by a click."""
    name = f"predict-{zlib.crc32(question.encode())}"
    choices = "".join(f'<label><input type="radio" name="{name}"> {inline(option)}</label>' for option in options)
    group = f'<fieldset><legend class="lesson-hidden">Your prediction</legend>{choices}</fieldset>' if options else ""
    return mo.Html(f'<section class="lesson-predict"><strong>Predict first</strong>{block(question)}{group}</section>')


def reveal(answer: str) -> mo.Html:
    """The answer to a prediction, folded until the reader asks for it."""
    return folded("Compare with your prediction", answer)


def folded(summary: str, text: str) -> mo.Html:
    """Markdown behind a summary, closed at first."""
    return mo.Html(f'<details class="lesson-folded"><summary>{inline(summary)}</summary>{block(text)}</details>')


def table(caption: str, rows: Iterable[Mapping[str, Any]]) -> mo.Html:
    """Rows as an HTML table with a caption: numbers stand on the right, and on a narrow screen the table scrolls by itself."""
    rows = [dict(row) for row in rows]
    names = list(rows[0]) if rows else []
    numeric = {name for name in names if all(_is_number(row[name]) for row in rows)}
    # A column without a name has no header that could be read out.
    head = "".join(
        f'<th scope="col"{_align(name in numeric)}>{inline(name)}</th>' if name else "<td></td>" for name in names
    )
    body = "".join(
        "<tr>" + "".join(f"<td{_align(name in numeric)}>{inline(str(row[name]))}</td>" for name in names) + "</tr>"
        for row in rows
    )
    return mo.Html(
        f'<div class="lesson-table" role="region" tabindex="0" aria-label="{html.escape(caption)}"><table>'
        f"<caption>{inline(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def figure(svg: str, caption: str = "") -> mo.Html:
    """A figure of ``viz``, SVG or HTML, with a caption; on a narrow screen it scrolls by itself."""
    said = f"<figcaption>{inline(caption)}</figcaption>" if caption else ""
    return mo.Html(f'<figure class="lesson-figure" tabindex="0">{svg}{said}</figure>')


def unattended() -> bool:
    """Whether nobody is there to press a button: the notebook is being exported for the site, or runs as a script."""
    return "execute" in mo.cli_args() or mo.app_meta().mode not in ("edit", "run")


def start_button(label: str, seconds: float) -> Any:
    """A button before a cell that takes long, saying how long; where nobody is there, something that counts as pressed.

    Show it in one cell and begin the long one with ``lesson.wait_for(button)``.
    """
    if unattended():
        return _Pressed()
    return mo.ui.run_button(label=f"{label} (about {seconds:.0f} s)", kind="success")


def wait_for(button: Any) -> None:
    """Stop the cell, and what depends on it, until ``button`` is pressed."""
    mo.stop(not button.value, mo.Html("<p data-lesson-waiting><em>Waiting for the button above.</em></p>"))


class _Pressed:
    value = True

    def _mime_(self) -> tuple[str, str]:
        return "text/plain", ""


def recap(*points: str) -> mo.Html:
    """What to take along, one sentence each."""
    listed = "".join(f"<li>{inline(point)}</li>" for point in points)
    return mo.Html(f'<section class="lesson-recap"><h2>Recap</h2><ul>{listed}</ul></section>')


def links(notebook: str) -> mo.Html:
    """The notebooks before and after this one in its folder, each with the command that opens it; give it ``__file__``."""
    here = Path(notebook)
    course = sorted(here.parent.glob("[0-9]*.py"))
    place = [path.name for path in course].index(here.name)
    neighbours = {"Before this": course[place - 1] if place else None, "Next": next(iter(course[place + 1 :]), None)}
    lines = [
        f"<p>{label}: <strong>{html.escape(title_of(path))}</strong> <code>marimo edit notebooks/{html.escape(path.name)}</code></p>"
        for label, path in neighbours.items()
        if path
    ]
    return mo.Html(f'<div class="lesson-links">{"".join(lines) or "<p>This is the only notebook here.</p>"}</div>')


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or bool(re.match(r"^[−+-]?[\d,.]+( ?(%|[kMG]?B|m?s|×))?$", str(value)))


def _align(numeric: bool) -> str:
    return ' class="number"' if numeric else ""
