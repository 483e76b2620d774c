"""Draw what was measured on actors, for notebook 02, and write durations.

    {run: its losses}   ──► loss_chart

It returns SVG text (``svg.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from zorplex_rl.drawing import style
from zorplex_rl.drawing.svg import render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = (style.GREY, style.BLUE, style.ORANGE, style.VERMILION)


def loss_chart(curves: Mapping[str, Sequence[float]], label: str) -> str:
    """Draw losses over their steps on a log axis: the first wide and grey, since others may lie on
    it. Backquotes in a name are dropped."""
    names = [name.replace("`", "") for name in curves]

    def draw(figure: Figure) -> None:
        from matplotlib.ticker import LogLocator

        axes = figure.subplots()
        for number, (name, losses) in enumerate(zip(names, curves.values(), strict=True)):
            colour, width = COLOURS[number % len(COLOURS)], 2 if number else 7
            dashes = "-" if number < 2 else ("--", ":")[number % 2]
            axes.plot(range(1, len(losses) + 1), losses, dashes, color=colour, linewidth=width, label=name)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(lambda loss, _: f"{loss:g}")
        axes.minorticks_off()
        axes.set(xlabel="step", ylabel=label)
        style.bare_axes(axes, grid="y")
        figure.legend(loc="outside upper left", ncols=2, frameon=False)

    ends = "; ".join(f"{name} ends at {losses[-1]:.2g}" for name, losses in zip(names, curves.values(), strict=True))
    return render(draw, 320, "Losses over the steps", ends)


def in_words(seconds: float) -> str:
    """Write a duration in the unit that fits it.

    >>> in_words(4.2e-8), in_words(0.00071), in_words(0.42), in_words(3.21), in_words(25.4)
    ('42 ns', '710 µs', '420 ms', '3.2 s', '25 s')
    """
    # Round first: 0.99996 s is 1 s.
    seconds = float(f"{seconds:.2g}")
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.0f} ns"
