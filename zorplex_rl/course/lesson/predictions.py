"""Ask for a prediction, and fold the result until the reader has made it.

    question = lesson.predict("Which is faster?", "shared memory", "a message")     one cell: radio buttons
    lesson.reveal(question, right=1, why="…", shows=[chart])                        the cell of the result
    lesson.recap(1, …)                                                              "1 of 1 predicted, 0 right so far"

Plain HTML and CSS do all of it, with ``:has`` and counters. So it works in `marimo edit`, on a static
page and without scripts; print, and browsers without ``:has``, show all results.
"""

import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import marimo as mo

from zorplex_rl.course.lesson.markup import block, inline

UNFOLD = (
    '<p class="lesson-switch"><label><input type="checkbox" class="lesson-unfold"> Unfold all results '
    "<small>(for readers in a hurry: they show without a prediction)</small></label></p>"
)
"""The switch in a notebook's header. The style sheet hides it where there is nothing to unfold."""


class Prediction(mo.Html):
    """Show a question and its answers as radio buttons; ``reveal`` reads them."""

    def __init__(self, question: str, *options: str) -> None:
        self.name = f"predict-{zlib.crc32(question.encode())}"
        self.options = options
        choices = "".join(
            f'<label><input type="radio" name="{self.name}" id="{self.name}-{index}"> {inline(option)}</label>'
            for index, option in enumerate(options)
        )
        legend = '<legend class="lesson-hidden">Your prediction</legend>'
        group = f"<fieldset>{legend}{choices}</fieldset>" if options else ""
        super().__init__(
            f'<section class="lesson-predict"><strong>Predict first</strong>{block(question)}{group}</section>'
        )


predict = Prediction


def reveal(
    question: Prediction,
    right: int | Iterable[int],
    why: str = "",
    shows: Sequence[Any] = (),
) -> mo.Html:
    """Show a measurement's result, folded until the reader has answered ``question``.

    ``right`` is the index of the answer that the measurement found; give several if it does not
    tell them apart, and none (an empty list) if it decides nothing. ``why`` is Markdown and begins
    with the number that decides. ``shows`` holds figures, tables, widgets; a string in it is Markdown.
    """
    correct = [right] if isinstance(right, int) else sorted(right)
    count = len(question.options)
    name, found = question.name, _answer(question, correct)
    verdicts = "".join(
        _verdict(name, index, option, correct, found)
        for index, option in enumerate(question.options)
    )
    shown = "".join(
        f"<div>{block(part) if isinstance(part, str) else mo.as_html(part).text}</div>"
        for part in shows
    )
    return mo.Html(
        f'<section class="lesson-reveal {name}"><style>{_rules(name, count)}</style><div role="status">'
        f'<p class="lesson-hint">The result unfolds when you predict.</p>{verdicts}'
        f'<p class="lesson-measured">{found}</p></div>'
        f'<div class="lesson-result">{block(why) if why else ""}{shown}</div></section>'
    )


def predicted(count: int) -> str:
    """Return HTML that says how many of ``count`` predictions are made, and how many are right."""
    return (
        f'<p class="lesson-predicted">Your predictions: <b class="lesson-count-made"></b> of {count} predicted, '
        '<b class="lesson-count-right"></b> right so far.</p>'
    )


def _answer(question: Prediction, correct: Sequence[int]) -> str:
    quoted = [f"<q>{inline(question.options[index])}</q>" for index in correct]
    if not quoted:
        return "This run does not decide it."
    told = " or ".join(quoted)
    return (
        f"The answer is {told}."
        if len(quoted) == 1
        else f"It is {told}: this run does not tell them apart."
    )


def _verdict(name: str, index: int, option: str, correct: Sequence[int], found: str) -> str:
    said = f"You said <q>{inline(option)}</q>."
    if index in correct:
        judged = "That is right." if len(correct) == 1 else f"That is right. {found}"
        return f'<p class="lesson-verdict right of-{index}">{said} {judged}</p>'
    return f'<p class="lesson-verdict of-{index}">{said} {f"Not so. {found}" if correct else found}</p>'


def _rules(name: str, count: int) -> str:
    """Return the rules of one question: CSS cannot say "of the same name"."""
    chosen = f":root:has(input[name={name}]:checked) .{name}"
    verdicts = ",".join(
        f":root:has(#{name}-{index}:checked) .{name} .of-{index}" for index in range(count)
    )
    return f"{chosen} .lesson-result,{verdicts}{{display:block}}{chosen} :is(.lesson-hint,.lesson-measured){{display:none!important}}"
