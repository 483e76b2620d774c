"""Turn a knob, and see what Python computes: sliders above; numbers, figure, bars below.

    WhatIf("Reward weights", [Knob("form", "Answer in the form", [0.0, 0.2])], answer, {"form": 0.2})

    answer(form=0.2) ──► Answer([Panel("Mean advantage", [Bar("success", 0.9, "+0.90", "green"), …])], "4 of 8 groups teach.")
    answer(lag=2)    ──► Answer(figure=paired_timelines(…), numbers=[("Wall time", "12.3 s", "simulated")])

``answer`` is any function of the knobs that returns an ``Answer``. A static page gets its answers
at all positions as a table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from zorplex_rl.course.figures import figure as style
from zorplex_rl.course.figures.figure import render
from zorplex_rl.course.widgets.widget import Params, Simulator, tabulate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {
    "blue": style.BLUE,
    "vermilion": style.VERMILION,
    "green": style.GREEN,
    "purple": style.PURPLE,
    "orange": style.ORANGE,
    "sky": style.SKY,
    "grey": style.GREY,
}
"""The colours of bars by the names that the style sheet of the widgets has for them."""


@dataclass(frozen=True, slots=True)
class Knob:
    """One slider: its argument, its label, its positions, and how they are written."""

    name: str
    label: str
    values: Sequence[Any]
    form: str = "{:g}"


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar from zero to ``value``, with the ``text`` beside it."""

    name: str
    value: float
    text: str
    colour: str = "blue"


@dataclass(frozen=True, slots=True)
class Panel:
    """Bars on one axis, which reaches from ``least`` (0 or below) to ``most`` (0 or above)."""

    title: str
    bars: Sequence[Bar]
    most: float
    least: float = 0.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What the widget shows at one position; every part may be missing."""

    panels: Sequence[Panel] = ()
    said: str = ""
    figure: str = ""
    """The text of an SVG, or HTML in which every text is escaped."""
    numbers: Sequence[tuple[str, str, str]] = ()
    """Name, text and note of each."""


class WhatIf(Simulator, script="what_if.js"):
    """Show knobs, at ``start`` first, one position of every knob, and what ``answer`` returns for them."""

    def __init__(
        self,
        title: str,
        knobs: Sequence[Knob],
        answer: Callable[..., Answer],
        start: Params,
    ) -> None:
        self._answer_of, self._knobs = answer, tuple(knobs)
        shown = [
            [
                knob.name,
                knob.label,
                list(knob.values),
                [knob.form.format(value) for value in knob.values],
            ]
            for knob in knobs
        ]
        super().__init__(params=start, controls={"title": title, "knobs": shown})

    def answer(self, params: Params) -> dict[str, Any]:
        return asdict(self._answer_of(**{knob.name: params[knob.name] for knob in self._knobs}))

    def make_table(self) -> dict[str, Any]:
        axes = {knob.name: list(knob.values) for knob in self._knobs}
        return tabulate(axes, lambda **params: asdict(self._answer_of(**params)))

    @staticmethod
    def drawn(state: Mapping[str, Any]) -> str:
        from zorplex_rl.course.lesson.lesson import table

        result, params = state["result"], state["params"]
        panels, title = result["panels"], state["controls"]["title"]
        at = ", ".join(
            f"{label} {texts[values.index(params[name])]}"
            for name, label, values, texts in state["controls"]["knobs"]
        )

        def draw(figure: Figure) -> None:
            ratios = [len(panel["bars"]) + 1 for panel in panels]
            for axes, panel in zip(
                figure.subplots(len(panels), height_ratios=ratios, squeeze=False),
                panels,
                strict=True,
            ):
                for row, bar in enumerate(panel["bars"]):
                    axes[0].barh(row, bar["value"], height=0.7, color=COLOURS[bar["colour"]])
                    axes[0].text(panel["most"], row, f" {bar['text']}", va="center")
                style.name_rows(axes[0], [bar["name"] for bar in panel["bars"]])
                axes[0].set(title=panel["title"], xlim=(panel["least"], panel["most"]), xticks=[])
                axes[0].axvline(0, color=style.GREY, linewidth=0.8)
                style.bare_axes(axes[0], keep=())

        height = sum(56 + 30 * len(panel["bars"]) for panel in panels)
        bars = render(draw, height, title, f"{at}. {result['said']}") if panels else ""
        rows = [{"": name, at: text, "what it is": note} for name, text, note in result["numbers"]]
        return result["figure"] + (table(title, rows).text if rows else "") + bars
