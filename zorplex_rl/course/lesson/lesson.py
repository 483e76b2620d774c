"""Build the parts that all notebooks share: header, questions, tables, figures, recap, links.

    header(__file__, …)          title, minutes, hardware, goals; the site's contents page reads them from this element
    ran_on(policy)               the machine and the policy that computed the page
    predict(…)  reveal(…)        a question before the measurement; its result, folded until the reader has chosen an answer
    start_button  wait_for  needs  counting  Kept      long cells: a button, a bar, a result that is there tomorrow (waiting.py, kept.py)
    follow(folder)  show_run     the curve of a run that somebody trains in a terminal (live.py)
    recap(n, …)                  of the notebook's n predictions, how many are made and right; then what it has shown
    headline(…)  links(__file__) the one result, and the neighbours: the end of a notebook
    md(…)  table(…)  folded(…)   Markdown with computed values in it
    math(latex)                  a displayed formula, as MathML
    term(name)                   a term of the glossary, linked to its explanation
    quote(text)  fence(text)     Markdown that shows any text literally
    tiny(number)  in_words(seconds)    2 × 10⁻⁷, and 42 ms

``markup.py`` turns every text into HTML, so that no text can add elements to the page. All is plain
HTML, styled by ``lesson.css``, which a notebook names once; on the static page it needs no script.
"""

from __future__ import annotations

import ast
import html
import json
import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import marimo as mo

from zorplex_rl.course.lesson.glossary import GLOSSARY, anchor, entry_of
from zorplex_rl.course.lesson.kept import Kept as Kept
from zorplex_rl.course.lesson.live import follow as follow
from zorplex_rl.course.lesson.live import show_run as show_run
from zorplex_rl.course.lesson.markup import block, fold, inline
from zorplex_rl.course.lesson.markup import fence as fence
from zorplex_rl.course.lesson.markup import quote as quote
from zorplex_rl.course.lesson.predictions import UNFOLD, predicted
from zorplex_rl.course.lesson.predictions import predict as predict
from zorplex_rl.course.lesson.predictions import reveal as reveal
from zorplex_rl.course.lesson.waiting import brief as brief
from zorplex_rl.course.lesson.waiting import counting as counting
from zorplex_rl.course.lesson.waiting import needs as needs
from zorplex_rl.course.lesson.waiting import start_button as start_button
from zorplex_rl.course.lesson.waiting import unattended as unattended
from zorplex_rl.course.lesson.waiting import wait_for as wait_for
from zorplex_rl.devices import cores

if TYPE_CHECKING:
    from zorplex_rl.policy.load import Policy


START = "05"
"""The notebook that a reader begins with."""


def title_of(notebook: str | Path) -> str:
    """Return the ``app_title`` in a notebook's source, or its file name if it has none."""
    for node in ast.walk(ast.parse(Path(notebook).read_text(encoding="utf-8"))):
        if (
            isinstance(node, ast.keyword)
            and node.arg == "app_title"
            and isinstance(node.value, ast.Constant)
        ):
            return str(node.value.value)
    return Path(notebook).stem


def header(notebook: str, minutes: int, hardware: str, goals: Sequence[str]) -> mo.Html:
    """Build the top of a notebook (``__file__``). The contents page reads its facts."""
    title = title_of(notebook)
    facts = {"title": title, "minutes": minutes, "hardware": hardware, "goals": list(goals)}
    listed = "".join(f"<li>{inline(goal)}</li>" for goal in goals)
    return mo.Html(
        f'<header class="lesson-header" data-lesson="{html.escape(json.dumps(facts))}"><h1>{html.escape(title)}</h1>'
        f"<p>{minutes} minutes · {html.escape(hardware)}</p><p>Afterwards you can</p><ul>{listed}</ul>{UNFOLD}</header>"
    )


def ran_on(policy: Policy | None = None) -> mo.Html:
    """State the machine and the policy that computed the page."""
    said = machine() + " Another notebook ran beside it." * (
        os.environ.get("ZORPLEX_JOBS", "1") != "1"
    )
    if policy is not None:
        name = policy.name if policy.name.count("/") <= 1 else Path(policy.name).name
        said += f" Policy: {name}, {policy.model.num_parameters() / 1e6:,.2f} million parameters, on {policy.model.device}."
    return mo.Html(
        f'<p class="lesson-ran-on" data-ran-on="{html.escape(said)}">Computed on: {html.escape(said)}</p>'
    )


def machine() -> str:
    """Return processor, cores, accelerator and versions in one line."""
    import torch

    model = next(
        (line for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        ":" + platform.machine(),
    )
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    accelerator = ", ".join(gpus) or "no GPU"
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    return f"{cores()} cores of {model.partition(':')[2].strip()}, {accelerator}, {versions}."


def md(markdown: str) -> mo.Html:
    """Render Markdown: like ``mo.md``, but HTML in it is shown as text."""
    return mo.Html(block(markdown))


def term(name: str, shown: str | None = None) -> str:
    """Return Markdown that shows a term of ``glossary.toml`` with its explanation, on the site as a link."""
    entry = entry_of(name) or name
    explanation = GLOSSARY[entry]
    # Only the site has a glossary page; markup.py makes plain text with a tooltip of a link without
    # a page.
    address = f"glossary.html#{anchor(entry)}" if unattended() else "term:"
    return f'[{shown or name}]({address} "{explanation}")'


def tiny(value: float) -> str:
    """Write a small number as people do.

    >>> tiny(2.1e-07), tiny(0.0)
    ('2 × 10⁻⁷', '0')
    """
    if value == 0:
        return "0"
    digit, power = f"{value:.0e}".split("e")
    return f"{digit} × 10{str(int(power)).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"


def in_words(seconds: float) -> str:
    """Write a duration in the unit that fits it.

    >>> [in_words(seconds) for seconds in (4.2e-8, 0.00071, 0.42, 0.99996, 3.21, 90, 5400, 200_000)]
    ['42 ns', '710 µs', '420 ms', '1 s', '3.2 s', '90 s', '90 min', '56 hours']
    """
    units = {
        "ns": (1e-9, 1e-6),
        "µs": (1e-6, 1e-3),
        "ms": (1e-3, 1),
        "s": (1, 100),
        "min": (60, 6000),
        "hours": (3600, 360_000),
    }
    for unit, (scale, limit) in units.items():
        value = float(f"{seconds / scale:.2g}")
        if value * scale < limit:
            return f"{value:g} {unit}"
    return f"{seconds / 86400:.0f} days"


def math(latex: str) -> mo.Html:
    """Show a displayed formula as MathML. Write ``\\lt`` for <; raises ValueError otherwise.

    >>> "<msup><mi>x</mi><mn>2</mn></msup>" in math("x^2").text
    True
    """
    from latex2mathml.converter import convert

    # It keeps what is in \text as it is, so a < could begin an element.
    if "<" in latex:
        raise ValueError(f"the formula {latex!r} has a <; write \\lt")
    return mo.Html(
        f'<figure class="lesson-math" tabindex="0">{convert(latex, display="block")}</figure>'
    )


def folded(summary: str, text: str, *shows: Any) -> mo.Html:
    """Show Markdown, and ``shows`` below it, under a summary line; closed at first."""
    return mo.Html(fold(summary, text, *(mo.as_html(part).text for part in shows)))


def table(caption: str, rows: Iterable[Mapping[str, Any]]) -> mo.Html:
    """Render rows as an HTML table with a caption. On a narrow screen it scrolls.

    Columns of numbers are right-aligned; where one is missing, ``NO_NUMBER`` may stand.
    """
    rows = [dict(row) for row in rows]
    names = list(rows[0]) if rows else []
    numeric = {
        name
        for name in names
        if any(_is_number(row[name]) for row in rows)
        and all(_is_number(row[name]) or str(row[name]) in NO_NUMBER for row in rows)
    }
    # A screen reader needs a header cell to have text, so a column without a name gets none.
    head = "".join(
        f'<th scope="col"{_align(name in numeric)}>{inline(name)}</th>' if name else "<td></td>"
        for name in names
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{_align(name in numeric)}>{inline(_written(row[name], name in numeric))}</td>"
            for name in names
        )
        + "</tr>"
        for row in rows
    )
    return mo.Html(
        f'<div class="lesson-table" role="region" tabindex="0" aria-label="{html.escape(caption)}"><table>'
        f"<caption>{inline(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


NO_NUMBER = ("", "-", "–", "—", "none")
"""What a column of numbers may hold instead of a number."""


def figure(svg: str, caption: str = "") -> mo.Html:
    """Show a figure, SVG or HTML, with a caption. On a narrow screen a drawing shrinks."""
    said = f"<figcaption>{inline(caption)}</figcaption>" if caption else ""
    return mo.Html(f'<figure class="lesson-figure" tabindex="0">{svg}{said}</figure>')


def recap(predictions: int, *points: str) -> mo.Html:
    """Count the reader's ``predictions``, and list what the notebook has shown, one sentence each."""
    counted = predicted(predictions)
    listed = "".join(f"<li>{inline(point)}</li>" for point in points)
    return mo.Html(
        f'{counted}<section class="lesson-recap"><h2>Recap</h2><ul>{listed}</ul></section>'
    )


def headline(result: str) -> mo.Html:
    """State the one result to remember, below the recap; the contents page shows it too.

    Pass a sentence with computed values, never a typed number.
    """
    return mo.Html(f'<p class="lesson-headline">{inline(result[:1].upper() + result[1:])}</p>')


def links(notebook: str, machine: bool = False) -> mo.Html:
    """Link the notebooks before and after this one (``__file__``), with their commands.

    At ``START`` the first of all notebooks is named for readers to whom actors are new. With
    ``machine`` the line of ``ran_on`` stands above them, where a page has no policy.
    """
    here = Path(notebook)
    course = sorted(here.parent.glob("[0-9]*.py"))
    place = [path.name for path in course].index(here.name)
    earlier = {"Before this": course[place - 1] if place else None}
    if place and here.name.startswith(f"{START}_"):
        earlier = {"The course starts here. Optional, on actors": course[0]}
    neighbours = earlier | {"Next": next(iter(course[place + 1 :]), None)}
    lines = [
        f"<p>{label}: <strong>{html.escape(title_of(path))}</strong> <code>marimo edit --no-sandbox notebooks/{html.escape(path.name)}</code></p>"
        for label, path in neighbours.items()
        if path
    ]
    computed = ran_on().text if machine else ""
    return mo.Html(
        f'{computed}<div class="lesson-links">{"".join(lines) or "<p>This is the only notebook here.</p>"}</div>'
    )


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or bool(
        re.match(r"^[−+-]?[\d,.]+( ?(%|[kMG]?B(/s)?|[mµn]?s|×))?$", str(value))
    )


def _written(value: Any, numeric: bool) -> str:
    """Return the text of a cell; a negative number gets a minus sign for its hyphen."""
    return re.sub(r"^-(?=[\d.])", "−", str(value)) if numeric else str(value)


def _align(numeric: bool) -> str:
    return ' class="number"' if numeric else ""
