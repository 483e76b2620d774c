"""Draw what was measured on actors, for notebook 02, and write durations.

    {what was done: seconds}   ──► seconds_chart

It returns SVG text (``svg.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from zorplex_rl.drawing import look
from zorplex_rl.drawing.svg import render

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def seconds_chart(costs: Mapping[str, float], label: str) -> str:
    """Draw each of ``costs`` as a point on a log axis, and write its value beside it."""
    from matplotlib.ticker import LogLocator

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for row, seconds in enumerate(costs.values()):
            axes.plot(seconds, row, marker="o", markersize=9, color=look.BLUE)
            axes.annotate(in_words(seconds), (seconds, row), xytext=(9, 0), textcoords="offset points", va="center")
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(numticks=20))
        axes.xaxis.set_major_formatter(lambda seconds, _: in_words(seconds))
        axes.minorticks_off()
        axes.set(xlim=(min(costs.values()) / 3, max(costs.values()) * 12), xlabel=label)
        look.name_rows(axes, list(costs))
        look.bare_axes(axes, grid="x")

    said = "; ".join(f"{name} {in_words(seconds)}" for name, seconds in costs.items())
    return render(draw, 70 + 34 * len(costs), "Seconds, on a logarithmic axis", said)


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
