"""Draw horizontal bars from zero, a named row each.

    {row: (number, …)}                        ──► grouped_bars    several numbers side by side
    {row: {part: bytes}}, what was measured   ──► parts_chart     the memory of processes
    Report (evaluate.py)                      ──► outcome_chart   how episodes end
    versions along the bytes of some copies   ──► copies_chart    what torn copies consist of

Each returns SVG text (``course/figures/figure.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from zorplex_rl.course.figures import figure as style
from zorplex_rl.course.figures.figure import render
from zorplex_rl.task.episode import OUTCOMES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from zorplex_rl.policy.evaluate import Report

SERIES = {
    "by formula": style.GREY,
    "sent": style.BLUE,
    "with the plan": style.ORANGE,
    "gather, then scatter": style.GREY,
    "free": style.GREEN,
    "busy": style.ORANGE,
    "stopped": style.VERMILION,
}
"""The colour of each series of ``grouped_bars``."""
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
OUTCOME_COLOURS = dict(
    zip(OUTCOMES, (style.GREEN, style.VERMILION, style.ORANGE, style.SKY, style.GREY), strict=True)
)
COPY_COLOURS = (*style.SERIES, style.ORANGE, style.SKY, style.GREY)


def grouped_bars(
    rows: Mapping[str, Sequence[float]],
    series: Sequence[str],
    title: str,
    label: str,
    unit: float = 1.0,
    line: float | None = None,
) -> str:
    """Draw a bar for each of ``series`` in every row; a dashed line at ``line``."""
    height = 0.76 / len(series)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for row, numbers in enumerate(rows.values()):
            for place, (name, number) in enumerate(zip(series, numbers, strict=True)):
                at = row + height * (place - (len(series) - 1) / 2)
                axes.barh(at, number / unit, height=0.95 * height, color=SERIES[name])
                write_after_bar(axes, number / unit, at, f"{number / unit:.2f}")
        if line is not None:
            axes.axvline(line / unit, color=style.GREY, linewidth=1.2, linestyle="--")
        most = max(line or 0.0, *(number for numbers in rows.values() for number in numbers)) / unit
        axes.set(xlim=(0, 1.15 * most), xlabel=label)
        style.name_rows(axes, list(rows))
        style.bare_axes(axes, grid="x")
        draw_legend(figure, {name: SERIES[name] for name in series}, columns=len(series))

    said = "; ".join(
        f"{row}: "
        + ", ".join(
            f"{name} {number / unit:.2f}" for name, number in zip(series, numbers, strict=True)
        )
        for row, numbers in rows.items()
    )
    return render(draw, 84 + (12 + 20 * len(series)) * len(rows), title, f"{label}; {said}")


def stack(
    axes: Axes,
    row: int,
    parts: Iterable[tuple[Any, float, str]],
    inside: Callable[[Any, float], str],
) -> float:
    """Draw ``parts``, each (name, size, colour), end to end, with texts. Returns their end."""
    left = 0.0
    for name, size, colour in parts:
        axes.barh(row, size, left=left, height=0.66, color=colour)
        write_in_bar(axes, left + size / 2, row, inside(name, size))
        left += size
    return left


def by_colour(parts: Mapping[str, float]) -> dict[str, float]:
    """Return the parts that have a colour, and the sum of all others as ``rest``.

    >>> by_colour({"logits": 1.0, "weights": 2.0, "libraries": 3.0, "staging": 4.0})
    {'weights': 2.0, 'logits': 1.0, 'rest': 7.0}
    """
    named = {part: parts[part] for part in PARTS if parts.get(part) and part != "rest"}
    rest = sum(size for part, size in parts.items() if part not in named)
    return named | ({"rest": rest} if rest else {})


def parts_chart(
    rows: Mapping[str, Mapping[str, float]],
    title: str,
    measured: Mapping[str, float],
    room: float | None = None,
    unit: str = "MB",
) -> str:
    """Draw each row's parts, a mark at what was ``measured``, and a line at ``room``; ``unit`` is MB or GB."""
    scale = 1e9 if unit == "GB" else 1e6
    stacked = {
        row: {part: size / scale for part, size in by_colour(parts).items()}
        for row, parts in rows.items()
    }
    marks, limit = {row: size / scale for row, size in measured.items()}, (room or 0.0) / scale
    most = max([*(sum(parts.values()) for parts in stacked.values()), *marks.values(), limit])
    end = (1.5 if measured else 1.2) * most

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for index, (row, parts) in enumerate(stacked.items()):
            left = stack(
                axes, index, ((p, size, PARTS[p]) for p, size in parts.items()), lambda *_: ""
            )
            at, text = left, f"{left:,.0f}"
            if row in marks:
                at = max(left, marks[row])
                text += f", measured {marks[row]:,.0f}"
                axes.plot(
                    [marks[row]] * 2, [index - 0.42, index + 0.42], color=style.TEXT, linewidth=3
                )
            # Not across the dashed line: a figure has about 60 digits from the axis to the end.
            if at <= limit < at + len(text) / 60 * end:
                at = limit
            axes.text(at + 0.012 * most, index, text, va="center")
        if room is not None:
            axes.axvline(limit, color=style.TEXT, linestyle="--", linewidth=1.2)
        axes.set(xlim=(0, end), xlabel=f"{unit}; dashed: there are {limit:,.0f}" if room else unit)
        style.name_rows(axes, list(rows))
        style.bare_axes(axes, grid="x")
        used = {
            part: colour
            for part, colour in PARTS.items()
            if any(part in parts for parts in stacked.values())
        }
        draw_legend(figure, used, columns=5)

    said = "; ".join(
        f"{row}: {sum(parts.values()):,.0f} {unit}, "
        + ", ".join(f"{part} {size:,.0f}" for part, size in parts.items())
        + (f", measured {marks[row]:,.0f}" if row in marks else "")
        for row, parts in stacked.items()
    ) + (f"; the line is at {limit:,.0f} {unit}" if room is not None else "")
    return render(draw, 110 + 50 * len(rows), title, said)


def outcome_chart(reports: Sequence[Report]) -> str:
    """Draw the shares of outcomes of each report as a stacked bar; each bar adds up to 1."""
    seen = [outcome for outcome in OUTCOMES if any(report.outcomes[outcome] for report in reports)]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for row, report in enumerate(reports):
            shares = (
                (outcome, report.outcomes[outcome], OUTCOME_COLOURS[outcome]) for outcome in seen
            )
            stack(axes, row, shares, lambda _, share: f"{share:.0%}" if share >= 0.08 else "")
        style.name_rows(axes, [report.name for report in reports])
        axes.set(xlim=(0, 1), xlabel="share of episodes")
        style.show_percent(axes.xaxis)
        style.bare_axes(axes, grid="x")
        draw_legend(figure, {outcome: OUTCOME_COLOURS[outcome] for outcome in seen}, columns=5)

    said = "; ".join(
        f"{r.name}: " + ", ".join(f"{o} {r.outcomes[o]:.0%}" for o in seen) for r in reports
    )
    return render(draw, 78 + 36 * len(reports), "How episodes end", said)


def copies_chart(copies: Sequence[Sequence[int]]) -> str:
    """Draw each copy, versions at equally spaced places, as a strip with its colours."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for row, copy in enumerate(copies):
            runs = [(version, len(list(group)) / len(copy)) for version, group in groupby(copy)]
            coloured = (
                (version, share, COPY_COLOURS[version % len(COPY_COLOURS)])
                for version, share in runs
            )
            stack(axes, row, coloured, lambda version, share: str(version) if share > 0.07 else "")
        axes.set(xlim=(0, 1), xlabel="place in the copy", xticks=[0, 1])
        axes.set_xticklabels(["first byte", "last byte"])
        axes.get_xticklabels()[0].set_horizontalalignment("left")
        axes.get_xticklabels()[1].set_horizontalalignment("right")
        axes.tick_params(axis="x", length=0)
        style.name_rows(
            axes, [f"copy {number}" for number in range(1, len(copies) + 1)], margin=0.6
        )
        style.bare_axes(axes, keep=())

    said = "; ".join(
        f"copy {i}: versions {', '.join(map(str, sorted(set(c))))}" for i, c in enumerate(copies, 1)
    )
    return render(draw, 56 + 34 * len(copies), "What some copies are made of", said)


def write_in_bar(axes: Axes, x: float, row: int, text: str) -> None:
    """Centre ``text`` at ``x`` in the bar of a ``row``."""
    axes.text(x, row, text, ha="center", va="center", color=style.TEXT_ON_COLOUR)


def write_after_bar(axes: Axes, end: float, row: float, text: str) -> None:
    """Write ``text`` a little to the right of a bar that ends at ``end``."""
    # Not by a space in front: SVG drops it.
    axes.annotate(
        text,
        (end, row),
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        annotation_clip=False,
    )


def draw_legend(figure: Figure, colours: Mapping[str, str], columns: int) -> None:
    """Draw a legend above: a patch for each name in ``colours``, up to ``columns`` abreast."""
    from matplotlib.patches import Patch

    patches = [Patch(facecolor=colour, label=name) for name, colour in colours.items()]
    columns = min(columns, len(patches)) or 1
    # Matplotlib fills by column, a legend is read by line: so in columns, the longer ones first.
    by_column = [patch for column in range(columns) for patch in patches[column::columns]]
    figure.legend(handles=by_column, loc="outside upper left", ncols=columns, frameon=False)
