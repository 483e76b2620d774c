"""Draw budgets: the memory of processes, part by part.

    parts of each process in bytes, and what was measured   ──► parts_chart

It returns SVG text (``svg.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from zorplex_rl.drawing import style
from zorplex_rl.drawing.svg import render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTS = {
    "weights": style.ORANGE,
    "masters": style.OLIVE,
    "moments": style.VERMILION,
    "gradients": style.PURPLE,
    "weight ring": style.SKY,
    "activations": style.GREEN,
    "logits": style.DEEP_BLUE,
    "key-value cache": style.BLUE,
    "rest": style.GREY,
}
"""The colour of each part of a budget; a part that is not here belongs to the rest."""


def by_colour(parts: Mapping[str, float]) -> dict[str, float]:
    """Return the parts that have a colour, in the order of ``PARTS``, and the sum of all others as
    ``rest``.

    >>> by_colour({"logits": 1.0, "weights": 2.0, "libraries": 3.0, "staging": 4.0})
    {'weights': 2.0, 'logits': 1.0, 'rest': 7.0}
    """
    rest = sum(size for part, size in parts.items() if part not in PARTS or part == "rest")
    return {part: parts[part] for part in PARTS if parts.get(part) and part != "rest"} | (
        {"rest": rest} if rest else {}
    )


def parts_chart(
    rows: Mapping[str, Mapping[str, float]],
    title: str,
    measured: Mapping[str, float] | None = None,
    room: float | None = None,
    unit: float = 1e6,
    name: str = "MB",
) -> str:
    """Draw one stacked bar from zero for each of ``rows``, its parts in bytes. ``measured`` draws a
    mark in a row, ``room`` a line through all."""
    measured = measured or {}
    stacked = {row: by_colour(parts) for row, parts in rows.items()}
    most = max([*(sum(parts.values()) for parts in stacked.values()), *measured.values(), room or 0]) / unit

    limit = (1.5 if measured and room else 1.3 if measured else 1.12) * most

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for index, (row, parts) in enumerate(stacked.items()):
            left = 0.0
            for part, size in parts.items():
                axes.barh(index, size / unit, left=left, height=0.56, color=PARTS[part])
                left += size / unit
            at, text = left, f"{left:,.0f}"
            if row in measured:
                at, text = max(at, measured[row] / unit), f"{text}, measured {measured[row] / unit:,.0f}"
            # Not across the dashed line: a figure has about 60 digits from the axis to the end.
            if room is not None and at <= room / unit < at + len(text) / 60 * limit:
                at = room / unit
            axes.text(at + 0.012 * most, index, text, va="center")
            if row in measured:
                x = measured[row] / unit
                axes.plot([x, x], [index - 0.42, index + 0.42], color=style.TEXT, linewidth=3)
        if room is not None:
            axes.axvline(room / unit, color=style.TEXT, linestyle="--", linewidth=1.2)
        axes.set(xlim=(0, limit), xlabel=name)
        style.name_rows(axes, list(rows))
        style.bare_axes(axes, grid="x")
        used = [part for part in PARTS if any(part in parts for parts in stacked.values())]
        style.draw_legend(figure, {part: PARTS[part] for part in used}, columns=5)

    said = "; ".join(
        f"{row}: {sum(parts.values()) / unit:,.0f} {name}, "
        + ", ".join(f"{part} {size / unit:,.0f}" for part, size in parts.items())
        + (f", measured {measured[row] / unit:,.0f}" if row in measured else "")
        for row, parts in stacked.items()
    ) + (f"; the line is at {room / unit:,.0f} {name}" if room is not None else "")
    return render(draw, 110 + 50 * len(rows), title, said)
