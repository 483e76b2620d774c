"""Draw budgets: the memory of processes part by part, what ZeRO leaves on a GPU, and the time of a decode step by its rows.

    parts of each process in bytes, and what was measured   ──► parts_chart
    seconds of a matrix product, by its rows                ──► rows_chart
    GPUs for generators and for the trainer                 ──► split_drawing

All return SVG text (``svg.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from zorplex_rl.drawing import look
from zorplex_rl.drawing.svg import drawing, render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTS = {
    "weights": look.ORANGE,
    "masters": look.OLIVE,
    "moments": look.VERMILION,
    "gradients": look.PURPLE,
    "weight ring": look.SKY,
    "activations": look.GREEN,
    "logits": look.DEEP_BLUE,
    "key-value cache": look.BLUE,
    "rest": look.GREY,
}
"""The colour of each part of a budget; a part that is not here belongs to the rest."""


def by_colour(parts: Mapping[str, float]) -> dict[str, float]:
    """Return the parts that have a colour, in the order of ``PARTS``, and the sum of all others as ``rest``.

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
    """Draw one stacked bar from zero for each of ``rows``, its parts in bytes. ``measured`` draws a mark in a row, ``room`` a line through all."""
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
                axes.plot([x, x], [index - 0.42, index + 0.42], color=look.TEXT, linewidth=3)
        if room is not None:
            axes.axvline(room / unit, color=look.TEXT, linestyle="--", linewidth=1.2)
        axes.set(xlim=(0, limit), xlabel=name)
        look.name_rows(axes, list(rows))
        look.bare_axes(axes, grid="x")
        used = [part for part in PARTS if any(part in parts for parts in stacked.values())]
        look.draw_legend(figure, {part: PARTS[part] for part in used}, columns=5)

    said = "; ".join(
        f"{row}: {sum(parts.values()) / unit:,.0f} {name}, "
        + ", ".join(f"{part} {size / unit:,.0f}" for part, size in parts.items())
        + (f", measured {measured[row] / unit:,.0f}" if row in measured else "")
        for row, parts in stacked.items()
    ) + (f"; the line is at {room / unit:,.0f} {name}" if room is not None else "")
    return render(draw, 110 + 50 * len(rows), title, said)


def rows_chart(seconds: Mapping[int, float], reading: float, computing: float) -> str:
    """Draw the seconds of a matrix product over its rows, with the time of reading the matrix once (flat) and that of computing a row (rising)."""
    rows = list(seconds)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.plot(rows, [1e3 * reading] * len(rows), "--", color=look.BLUE, linewidth=1.6)
        axes.plot(rows, [1e3 * computing * count for count in rows], ":", color=look.VERMILION, linewidth=2)
        axes.plot(rows, [1e3 * seconds[count] for count in rows], "o", color=look.TEXT, markersize=7)
        axes.set(xscale="log", yscale="log", xlabel="rows", ylabel="ms")
        axes.set_xticks(rows)
        look.plain_numbers(axes.xaxis)
        look.plain_numbers(axes.yaxis)
        look.bare_axes(axes, grid="both", keep=("bottom", "left"))
        colours = {"measured": look.TEXT, "reading the matrix": look.BLUE, "computing": look.VERMILION}
        look.draw_legend(figure, colours, columns=3)

    said = "; ".join(f"{count} rows {1e3 * found:.2g} ms" for count, found in seconds.items())
    return render(
        draw,
        300,
        "A matrix product by its rows",
        f"{said}; reading {1e3 * reading:.2g} ms, computing {1e3 * computing:.2g} ms for each row",
    )


def split_drawing(generators: int = 5, trainers: int = 3) -> str:
    """Draw GPUs divided between generators and a trainer, with episodes going one way and weights the other."""
    size, gap, top = 52, 10, 46
    total = generators + trainers
    left = (720 - total * (size + gap) - 60) / 2
    shapes = []
    for index in range(total):
        role = "generator" if index < generators else "trainer"
        colour, x = look.ROLES[role], left + index * (size + gap) + (60 if role == "trainer" else 0)
        shapes.append(
            f'<rect x="{x:g}" y="{top}" width="{size}" height="{size}" rx="6" fill="{colour}" fill-opacity="0.3" stroke="{colour}" stroke-width="2"/>'
            f'<text x="{x + size / 2:g}" y="{top + 31}" text-anchor="middle" font-size="13">GPU</text>'
        )
    first = left + generators * (size + gap) / 2 - gap / 2
    second = left + 60 + (generators + trainers / 2) * (size + gap) - gap / 2
    y = top + size
    shapes.append(
        f'<text x="{first:g}" y="30" text-anchor="middle" font-weight="600">generators: sample a batch</text>'
        f'<text x="{second:g}" y="30" text-anchor="middle" font-weight="600">trainer: a step</text>'
        f'<path d="M{first:g} {y + 8}V{y + 30}H{second - 14:g}V{y + 8}m-5 7 5-7 5 7" fill="none" stroke="currentColor" stroke-width="1.6"/>'
        f'<path d="M{second + 14:g} {y + 8}V{y + 56}H{first - 14:g}V{y + 8}m-5 7 5-7 5 7" fill="none" '
        f'stroke="{look.ROLES["weights"]}" stroke-width="2.2"/>'
        f'<text x="{(first + second) / 2:g}" y="{y + 24}" text-anchor="middle" font-size="13">episodes</text>'
        f'<text x="{(first + second) / 2:g}" y="{y + 74}" text-anchor="middle" font-size="13">weights</text>'
    )
    said = f"{generators} GPUs generate, {trainers} train; the slower side decides how long a step takes"
    return drawing("".join(shapes), y + 84, "GPUs for two jobs", said)
