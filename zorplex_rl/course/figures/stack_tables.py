"""Show the map of stacks: the whole as one table of short words, one axis at a time with its details, and where all of it was read.

``choose_axis`` is plain HTML and CSS, as predictions are: it works in `marimo edit`, on the static page, without a kernel and without scripts.
Print shows all axes, and so does a browser without ``:has``.
"""

from __future__ import annotations

from collections.abc import Iterable

import marimo as mo

from zorplex_rl.course.lesson import lesson
from zorplex_rl.course.lesson.markup import inline
from zorplex_rl.course.stack_commands import KNOBS, LAUNCHES
from zorplex_rl.course.stacks import AXES, KINDS, QUESTIONS, STACKS, Source, Stack, groups

_CHOICE = "stacks-axis"


def commands() -> str:
    """Return Markdown: each stack of ``LAUNCHES``, its command, and where that was read."""
    parts = (
        f"### {launch.stack}\n\n{lesson.fence(launch.command)}\n\n{launch.note} Read in {_link(launch.sources[0])}."
        for launch in LAUNCHES
    )
    return "\n\n".join(parts)


def knob_table() -> mo.Html:
    """Show what each stack of ``LAUNCHES`` calls the same setting."""
    rows = [
        {"": knob.what} | {launch.stack: name for launch, name in zip(LAUNCHES, knob.names, strict=True)}
        for knob in KNOBS
    ]
    return lesson.table("The same knob, five names", rows)


def axes_table() -> mo.Html:
    """Show what each axis of the map asks."""
    return lesson.table(
        "The seven axes", [{"axis": axis, "asks": question} for axis, question in zip(AXES, QUESTIONS, strict=True)]
    )


def map_table(caption: str) -> mo.Html:
    """Show all stacks on all axes, each cell the name of its group."""
    return lesson.table(
        caption,
        (
            {"stack": stack.name} | {axis: cell.kind for axis, cell in zip(AXES, stack.cells, strict=True)}
            for stack in STACKS
        ),
    )


def choose_axis() -> mo.Html:
    """Show one axis at a time: the stacks in groups, what each does, and the sources of that line."""
    choices = "".join(
        f'<label><input type="radio" name="{_CHOICE}" id="{_CHOICE}-{index}"> {inline(axis)}</label>'
        for index, axis in enumerate(AXES)
    )
    tables = "".join(f'<div class="stacks-on axis-{index}">{_axis(index)}</div>' for index in range(len(AXES)))
    return mo.Html(
        f'<section class="stacks-chooser"><style>{_rules()}</style><fieldset><legend>Group the stacks by</legend>{choices}'
        f"</fieldset>{tables}</section>"
    )


def sources(summary: str) -> mo.Html:
    """List every source of the map with the version that was read, closed at first."""
    lines = (
        f"- {stack.name}: " + "; ".join(f"[{n}] {_link(source)}" for n, source in enumerate(stack.sources, 1))
        for stack in STACKS
    )
    return lesson.folded(summary, "\n".join(lines))


def _axis(axis: int) -> str:
    return "".join(
        f"<p>{inline(_heading(kind, len(stacks)))}</p>"
        f"<ul>{''.join(f'<li>{inline(_line(stack, axis))}</li>' for stack in stacks)}</ul>"
        for kind, stacks in groups(axis).items()
    )


def _heading(kind: str, count: int) -> str:
    meaning = f": {KINDS[kind]}" if kind in KINDS else ""
    return f"{kind}{meaning} ({count} of {len(STACKS)})"


def _line(stack: Stack, axis: int) -> str:
    cell = stack.cells[axis]
    cited = " ".join(_cited(stack.sources[number - 1], number) for number in cell.read_in)
    return f"{stack.name}: {cell.said} {cited}"


def _cited(source: Source, number: int) -> str:
    return (
        f"[{number}]({source.address})"
        if _is_page(source)
        else f"({source.address.removesuffix(' of this repository')})"
    )


def _link(source: Source) -> str:
    """Return Markdown that names a source and its version, and links it where it is a page."""
    name = f"[{_short(source.address)}]({source.address})" if _is_page(source) else source.address
    return f"{name}, {source.version}"


def _short(address: str) -> str:
    """Return a name for a page that fits a table.

    >>> _short("https://github.com/THUDM/slime/blob/4da70cf/docs/usage.md"), _short("https://github.com/THUDM/slime/pull/2278")
    ('THUDM/slime: docs/usage.md', 'THUDM/slime: pull/2278')
    """
    parts = address.removeprefix("https://").split("/")
    if parts[0] != "github.com":
        return f"{parts[0]}: {parts[-1]}"
    rest = parts[5:] if parts[3] == "blob" else parts[3:]
    return f"{'/'.join(parts[1:3])}: {'/'.join(rest)}"


def _is_page(source: Source) -> bool:
    return source.address.startswith("https://")


def _rules() -> str:
    """Return the style of the chooser. The first axis shows until another one is chosen."""
    none = f":root:not(:has(input[name={_CHOICE}]:checked)) .stacks-on.axis-0"
    chosen = ",".join(
        [none, *(f":root:has(#{_CHOICE}-{index}:checked) .stacks-on.axis-{index}" for index in range(len(AXES)))]
    )
    return (
        ".stacks-chooser fieldset{border:0;padding:0;margin:.5rem 0;display:flex;flex-wrap:wrap;gap:.3rem 1.4rem}"
        ".stacks-chooser legend{font-weight:600;padding:0}.stacks-chooser label{cursor:pointer;padding:.2rem 0}"
        ".stacks-on p{font-weight:600;margin:.8rem 0 .2rem}.stacks-on ul{margin:0;padding-left:1.3rem;list-style:disc}"
        ".stacks-on li{overflow-wrap:anywhere}"
        f"@supports selector(:has(a)){{@media screen{{.stacks-on{{display:none}}{chosen}{{display:block}}}}}}"
    )


def named(names: Iterable[str]) -> str:
    """Return names as a list in a sentence.

    >>> named(["AReaL", "Miles", "NeMo RL"])
    'AReaL, Miles and NeMo RL'
    """
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
