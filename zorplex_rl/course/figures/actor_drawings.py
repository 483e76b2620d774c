"""Draw how messages reach actors and what a mesh is made of, for notebooks 01 and 02. Dots move by
CSS alone, unless the reader prefers less motion.

    mailbox_drawing()     callers ──► mailbox ──► one message at a time
    delivery_drawing()    which actors of a 2 × 2 mesh get a message, and which answer; the reader picks the kind of call
    processes_drawing()   the processes of a job, from the ids that were found
    layers_drawing()      what survives a change of code; the reader picks the change

Each returns SVG or HTML text for ``lesson.figure``.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from zorplex_rl.drawing import style

REQUEST, REPLY, STUCK = style.BLUE, style.GREEN, style.VERMILION

WAYS = {
    "call": ("all four", "All four actors work. You get four answers, each with its place in the mesh."),
    "slice(rows=1).call": (
        "row 1",
        "A slice is a smaller mesh, made of the same actors. Two work, two answers come back.",
    ),
    "call_one": ("the slice of one", "For a mesh or a slice of exactly one actor. You get its answer itself."),
    "choose": ("one, by lot", "One actor, drawn at random for each call, works and answers."),
    "broadcast": ("all four", "All four actors work. Nothing comes back, so you do not wait."),
}
"""Kind of call: (who gets the message, what happens)."""

_GETS = {"call": "0123", "slice(rows=1).call": "23", "call_one": "1", "choose": "2", "broadcast": "0123"}
_OUT = ("M150,118 L423,78", "M150,108 C260,8 480,-8 638,36", "M150,148 L423,188", "M150,158 C260,258 480,274 638,230")
_BACK = ("M423,92 L152,130", "M610,36 C480,14 280,30 152,122", "M423,174 L152,136", "M610,230 C480,252 280,236 152,144")

_MOVES = (
    ".actor-dot{animation:actor-move 3.2s linear infinite}.actor-dot.back{animation-name:actor-back}"
    "@keyframes actor-move{0%{offset-distance:0%}45%{offset-distance:100%;opacity:1}50%,100%{offset-distance:100%;opacity:0}}"
    "@keyframes actor-back{0%,50%{offset-distance:0%;opacity:0}55%{opacity:1}95%,100%{offset-distance:100%;opacity:1}}"
    "@media (prefers-reduced-motion:reduce){.actor-dot{display:none}}@media print{.actor-dot{display:none}}"
)

_CHOICE = (
    ".drawing-choice fieldset{border:0;padding:0;margin:0 0 .6rem;display:flex;flex-wrap:wrap;gap:.3rem 1.2rem}"
    ".drawing-choice label{cursor:pointer}.drawing-choice .way{opacity:0}.drawing-choice .place{opacity:.35}"
    ".drawing-choice .said{display:none;margin:.4rem 0 0}@media (max-width:40rem){.drawing-choice svg{min-width:34rem}}"
    "@supports not selector(:has(*)){.drawing-choice :is(.way,.place){opacity:1}.drawing-choice .said{display:block}}"
)


def mailbox_drawing() -> str:
    """Draw three callers, the mailbox of an actor, and the actor that works through it."""
    callers = "".join(
        _box(10, 20 + 70 * row, 130, 46, name) + _arrow(f"M140,{43 + 70 * row} L{256},{113 + 12 * (row - 1)}", REQUEST)
        for row, name in enumerate(("your notebook", "another actor", "one more actor"))
    )
    letters = "".join(
        f'<rect x="{274 + 34 * place}" y="100" width="26" height="26" rx="3" fill="{REQUEST}" fill-opacity="0.25" stroke="{REQUEST}"/>'
        for place in range(3)
    )
    dots = "".join(
        _dot(f"M140,{43 + 70 * row} L256,{113 + 12 * (row - 1)}", REQUEST, delay=0.9 * row) for row in range(3)
    )
    return _svg(
        230,
        "An actor: a mailbox, and an object that only its own thread touches",
        "Callers put messages into a mailbox. The actor takes out one after the other, changes its own state, and replies.",
        callers
        + '<rect x="260" y="88" width="126" height="50" rx="6" fill="none" stroke="currentColor"/>'
        + letters
        + _text(323, 80, "mailbox: copies, in order", 12)
        + '<rect x="440" y="30" width="270" height="166" rx="10" fill="none" stroke="currentColor" stroke-dasharray="6 5"/>'
        + _text(575, 22, "a thread or a process of its own", 12)
        + _box(480, 72, 190, 82, "the object")
        + _text(575, 142, "one message at a time", 12)
        + _arrow("M386,113 L476,113", REQUEST)
        + _arrow("M575,154 C575,232 150,238 78,212", REPLY, dashed=True)
        + _text(330, 207, "replies, each to its caller", 12)
        + dots
        + _dot("M386,113 L476,113", REQUEST, 0.4)
        + _dot("M575,154 C575,232 150,238 78,212", REPLY, 0, back=True),
    )


def delivery_drawing() -> str:
    """Draw a mesh of 2 × 2 actors, and let the reader choose the kind of call by radio buttons,
    without a kernel or a script."""
    names = {way: f"delivery-{index}" for index, way in enumerate(WAYS)}
    arrows = "".join(
        f'<g class="way {_classes(names, place)}">{_arrow(_OUT[place], REQUEST)}{_dot(_OUT[place], REQUEST)}</g>'
        f'<g class="way {_classes(names, place, answers=True)}">{_arrow(_BACK[place], REPLY, dashed=True)}{_dot(_BACK[place], REPLY, back=True)}</g>'
        for place in range(4)
    )
    boxes = "".join(
        f'<g class="place {_classes(names, row * 2 + column)}">{_box(425 + 150 * column, 38 + 110 * row, 130, 80, f"actor {row * 2 + column}")}'
        f"{_text(490 + 150 * column, 100 + 110 * row, f'rows={row}, columns={column}', 11)}</g>"
        for row in range(2)
        for column in range(2)
    )
    sentences = {
        way: f"<strong><code>{escape(way)}</code> → {who}.</strong> {escape(what)}" for way, (who, what) in WAYS.items()
    }
    drawing = _svg(
        268,
        "Five ways to send a message to a mesh of four actors",
        "; ".join(f"{way}: {gets}" for way, (gets, _) in WAYS.items()),
        _box(14, 98, 136, 70, "your notebook") + boxes + arrows,
    )
    return _choice("delivery", "Kind of call", names, drawing, sentences)


def processes_drawing(controller: int, hosts: Mapping[int, Mapping[int, str]]) -> str:
    """Draw the process ``controller``, the ``hosts`` that it started, and their processes, each
    {process id: what is in it}."""
    width, body, centres = 720 // max(len(hosts), 1), "", []
    for number, (host, processes) in enumerate(hosts.items()):
        left = number * width
        centres.append(left + width // 2)
        body += (
            f'<rect x="{left + 8}" y="104" width="{width - 16}" height="{54 + 58 * len(processes)}" rx="10" fill="none" '
            f'stroke="currentColor" stroke-dasharray="6 5"/>'
            + _text(left + width // 2, 128, f"host {number}: process {host}", 14)
        )
        for row, (process, inside) in enumerate(processes.items()):
            body += _box(left + 24, 142 + 58 * row, width - 48, 46, f"process {process}: {inside}")
    top = _box(210, 10, 300, 46, f"your notebook: process {controller}")
    lines = "".join(_arrow(f"M360,56 L{centre},100", REQUEST) for centre in centres)
    most = max((len(processes) for processes in hosts.values()), default=0)
    said = "; ".join(f"host process {host} started {', '.join(map(str, inside))}" for host, inside in hosts.items())
    return _svg(
        174 + 58 * most, "The processes of this job", f"process {controller} started all; {said}", top + lines + body
    )


LAYERS = (
    "hosts",
    "processes",
    "imported modules",
    "process group",
    "the actor and its state",
    "the code that runs",
)
SURVIVES = {
    "send a function": 5,
    "spawn a new actor": 4,
    "spawn new processes": 1,
    "restart the program": 0,
}
"""How you change the code: how many of ``LAYERS`` stay as they are."""


def layers_drawing() -> str:
    """Draw what is built on what in a running mesh, and let the reader choose how to change the
    code, without a kernel or a script."""
    names = {way: f"layers-{index}" for index, way in enumerate(SURVIVES)}
    body = ""
    for row, layer in enumerate(reversed(LAYERS)):
        number = len(LAYERS) - 1 - row
        kept = " ".join(f"on-{names[way]}" for way, count in SURVIVES.items() if number < count)
        lost = " ".join(f"on-{names[way]}" for way, count in SURVIVES.items() if number >= count)
        left, y = 20 + 22 * number, 8 + 40 * row
        body += (
            f'<rect x="{left}" y="{y}" width="{680 - 44 * number}" height="34" rx="6" fill="currentColor" fill-opacity="0.06" stroke="currentColor"/>'
            f"{_text(left + 100, y + 22, layer, 14, anchor='start')}"
            # On the left, where a narrow screen shows them.
            f'<g class="way {kept}">{_mark(left + 64, y + 17, "stays", REPLY)}</g>'
            f'<g class="way {lost}">{_mark(left + 64, y + 17, "new", STUCK)}</g>'
        )
    sentences = {
        way: f"<strong>{way}</strong>: {'nothing stays' if not count else 'what stays: ' + ', '.join(LAYERS[:count])}."
        for way, count in SURVIVES.items()
    }
    drawing = _svg(
        8 + 40 * len(LAYERS),
        "What is built on what in a running mesh",
        "; ".join(f"{way}: {count} of {len(LAYERS)} layers stay" for way, count in SURVIVES.items()),
        body,
    )
    return _choice("layers", "How to change the code", names, drawing, sentences)


def _mark(x: int, y: int, text: str, colour: str) -> str:
    return (
        f'<rect x="{x - 52}" y="{y - 12}" width="72" height="24" rx="12" fill="{colour}" fill-opacity="0.25" stroke="{colour}"/>'
        + _text(x - 16, y + 5, text, 13)
    )


def _choice(kind: str, legend: str, names: Mapping[str, str], drawing: str, sentences: Mapping[str, str]) -> str:
    """Show ``drawing`` below a radio button for each of ``names``: {choice: id}; its parts of class
    ``on-ID`` show while ID is chosen."""
    first = next(iter(names))
    choices = "".join(
        f'<label><input type="radio" name="{kind}" id="{name}"{" checked" if way == first else ""}> <code>{escape(way)}</code></label>'
        for way, name in names.items()
    )
    said = "".join(f'<p class="said on-{name}">{sentences[way]}</p>' for way, name in names.items())
    shown = "".join(
        f".{kind}:has(#{name}:checked) .on-{name}{{opacity:1}}.{kind}:has(#{name}:checked) .said.on-{name}{{display:block}}"
        for name in names.values()
    )
    return (
        f'<div class="drawing-choice {kind}"><style>{_CHOICE}{shown}</style><fieldset><legend class="lesson-hidden">{legend}</legend>'
        f"{choices}</fieldset>{drawing}{said}</div>"
    )


def _classes(names: Mapping[str, str], place: int, answers: bool = False) -> str:
    return " ".join(
        f"on-{name}" for way, name in names.items() if str(place) in _GETS[way] and not (answers and way == "broadcast")
    )


def _svg(height: int, title: str, description: str, body: str) -> str:
    heads = "".join(
        f'<marker id="head-{colour[1:]}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0,0 L8,4 L0,8 z" fill="{colour}"/></marker>'
        for colour in (REQUEST, REPLY, STUCK)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {height}" width="720" height="{height}" style="width:100%;height:auto" '
        f'font-family="system-ui, sans-serif" font-size="14" role="img" aria-label="{escape(f"{title}: {description}")}">'
        f"<style>{_MOVES}</style><defs>{heads}</defs>{body}</svg>"
    )


def _box(x: int, y: int, width: int, height: int, text: str) -> str:
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="currentColor" fill-opacity="0.06" stroke="currentColor"/>'
        + _text(x + width // 2, y + height // 2 + 5, text, 14)
    )


def _text(x: int, y: int, text: str, size: int, anchor: str = "middle") -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" fill="currentColor">{escape(text)}</text>'


def _arrow(path: str, colour: str, dashed: bool = False) -> str:
    dashes = ' stroke-dasharray="3 4"' if dashed else ""
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes} marker-end="url(#head-{colour[1:]})"/>'


def _dot(path: str, colour: str, delay: float = 0, back: bool = False) -> str:
    moves = f"offset-path:path('{path}');animation-delay:-{delay:g}s"
    return f'<circle class="actor-dot{" back" if back else ""}" r="5" fill="{colour}" style="{moves}"/>'
