"""Draw weight transfers: the bandwidth of every transport, and the versions that torn copies consist of.

    GB/s of every transport, measured and published  ──► ladder_chart
    versions along the bytes of some copies          ──► copies_chart

Both return SVG text (``svg.py``), narrow enough for a phone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from zorplex_rl.viz import look
from zorplex_rl.viz.svg import render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COPY_COLOURS = (*look.SERIES, look.ORANGE, look.SKY, look.GREY)


def ladder_chart(measured: Mapping[str, float], published: Mapping[str, float]) -> str:
    """Draw bandwidths in GB/s, one bar each, on a logarithmic axis: first the ``measured`` ones, below them in grey the ``published`` ones."""
    rows = {**measured, **published}

    def draw(figure: Figure) -> None:
        from matplotlib.ticker import FuncFormatter

        axes = figure.subplots()
        low = 10.0 ** math.floor(math.log10(min(rows.values()) / 2))
        for row, (name, rate) in enumerate(rows.items()):
            colour = look.BLUE if name in measured else look.GREY
            axes.barh(row, rate - low, left=low, height=0.6, color=colour)
            axes.text(rate * 1.1, row, f"{rate:.3g}", va="center")
        axes.set_xscale("log")
        axes.set(xlim=(low, max(rows.values()) * 3), xlabel="GB/s (each mark is ten times the one before)")
        look.name_rows(axes, list(rows))
        look.bare_axes(axes)
        axes.minorticks_off()
        axes.xaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:g}"))

    said = "; ".join(f"{name} {rate:.3g} GB/s" for name, rate in rows.items())
    return render(draw, 70 + 34 * len(rows), "The bandwidth ladder", said, look.NARROW)


def copies_chart(copies: Sequence[Sequence[int]]) -> str:
    """Draw each copy of the weights as a strip from its first byte to its last, coloured by the version of the bytes.

    A copy is a list of versions at equally spaced places. Each strip assigns its own colours, starting with its oldest version.
    """

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for row, copy in enumerate(copies):
            colours = dict(zip(sorted(set(copy)), COPY_COLOURS, strict=False))
            for version, start, width in version_runs(copy):
                left, share = start / len(copy), width / len(copy)
                axes.barh(row, share, left=left, height=0.7, color=colours.get(version, look.GREY), align="center")
                if share > 0.07:
                    look.write_in_bar(axes, left + share / 2, row, str(version))
        axes.set(xlim=(0, 1), xlabel="place in the copy", xticks=[0, 1])
        axes.set_xticklabels(["first byte", "last byte"])
        axes.get_xticklabels()[0].set_horizontalalignment("left")
        axes.get_xticklabels()[1].set_horizontalalignment("right")
        axes.tick_params(axis="x", length=0)
        look.name_rows(axes, [f"copy {number}" for number in range(1, len(copies) + 1)], margin=0.6)
        look.bare_axes(axes, keep=())

    said = "; ".join(f"copy {i}: versions {', '.join(map(str, sorted(set(c))))}" for i, c in enumerate(copies, 1))
    return render(draw, 56 + 34 * len(copies), "What some copies are made of", said, look.NARROW)


def version_runs(copy: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return (version, start, length) of every run of equal versions.

    >>> version_runs([3, 3, 5, 3])
    [(3, 0, 2), (5, 2, 1), (3, 3, 1)]
    """
    runs, start = [], 0
    for version, group in groupby(copy):
        length = len(list(group))
        runs.append((version, start, length))
        start += length
    return runs
