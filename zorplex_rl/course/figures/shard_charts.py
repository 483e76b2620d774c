"""Draw sharded tensors: the placements and the collectives between them, a layer cut in two, and
bytes by formula and as sent.

    four placements, and what turns one into another     ──► placements_drawing
    two linear layers on two ranks                       ──► parallel_layers_drawing
    bytes of each operation, by formula and as sent      ──► bytes_chart
    a matrix by rows and by columns, and the overlaps    ──► overlaps_drawing
    bytes through the busiest rank, in two ways          ──► loads_chart

Each returns SVG text (``svg.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from zorplex_rl.drawing import style
from zorplex_rl.drawing.svg import drawing, render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RANKS = (style.SKY, style.ORANGE)
"""The colour of what rank 0 holds, and of what rank 1 holds."""
CELL, SIDE = 15, 4


def placements_drawing() -> str:
    """Draw how two ranks hold a 4 × 4 tensor under four placements, and the collectives that lead
    from one placement to another."""

    def ranks(x: int, y: int, name: str, holds: Callable[[int, int, int], bool], opacity: float = 0.9) -> str:
        cells = []
        for rank, colour in enumerate(RANKS):
            left = x + rank * (SIDE * CELL + 14)
            for row in range(SIDE):
                for column in range(SIDE):
                    filled = f'fill="{colour}" fill-opacity="{opacity}"' if holds(rank, row, column) else 'fill="none"'
                    at = f'x="{left + column * CELL}" y="{y + row * CELL}"'
                    cells.append(
                        f'<rect {at} width="{CELL}" height="{CELL}" {filled} stroke="currentColor" stroke-width="0.6" stroke-opacity="0.5"/>'
                    )
        return "".join(cells) + f'<text x="{x}" y="{y - 10}" font-weight="600">{name}</text>'

    def arrow(path: str, name: str, x: int, y: int, anchor: str = "middle") -> str:
        return (
            f'<path d="{path}" fill="none" stroke="currentColor" stroke-width="1.8" marker-end="url(#shard-arrow)"/>'
            f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-family="ui-monospace, monospace" font-size="13">{name}</text>'
        )

    plus = f'<text x="{506 + SIDE * CELL + 7}" y="246" text-anchor="middle" font-weight="600">+</text>'
    shapes = (
        '<defs><marker id="shard-arrow" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 10 5 0 10Z" fill="currentColor"/></marker></defs>'
        + ranks(80, 44, "Shard(0): rows", lambda rank, row, _: row // 2 == rank)
        + ranks(80, 210, "Shard(1): columns", lambda rank, _, column: column // 2 == rank)
        + ranks(506, 44, "Replicate: all of it", lambda *_: True)
        + ranks(506, 210, "Partial: summands", lambda *_: True, 0.35)
        + plus
        + arrow("M228 74H494", "all_gather", 361, 64)
        + arrow("M147 112V180", "all_to_all", 138, 152, "end")
        + arrow("M573 180V112", "all_reduce", 584, 152, "start")
        + arrow("M494 226 234 112", "reduce_scatter", 372, 152, "start")
        + f'<rect x="270" y="252" width="13" height="13" fill="{RANKS[0]}"/><text x="290" y="263" font-size="13">on rank 0</text>'
        f'<rect x="370" y="252" width="13" height="13" fill="{RANKS[1]}"/><text x="390" y="263" font-size="13">on rank 1</text>'
    )
    said = (
        "all_gather turns Shard(0) into Replicate, all_to_all turns Shard(0) into Shard(1), all_reduce turns Partial into Replicate, "
        "reduce_scatter turns Partial into Shard(0)"
    )
    return drawing(shapes, 290, "Four placements and the collectives between them", said)


def parallel_layers_drawing() -> str:
    """Draw the two linear layers of a block on two ranks: the first cut by outputs, the second by
    inputs, one sum at the end."""
    shapes = []
    for rank, (y, colour) in enumerate(zip((60, 160), RANKS, strict=True)):
        boxes = (
            (120, "x", 60, "none"),
            (230, f"up, half {rank}", 120, colour),
            (400, "ReLU", 60, "none"),
            (500, f"down, half {rank}", 120, colour),
        )
        for x, name, width, fill in boxes:
            filled = f'fill="{fill}" fill-opacity="0.55"' if fill != "none" else 'fill="none"'
            shapes.append(
                f'<rect x="{x}" y="{y - 22}" width="{width}" height="44" rx="5" {filled} stroke="currentColor" stroke-width="1.4"/>'
                f'<text x="{x + width // 2}" y="{y + 5}" text-anchor="middle">{name}</text>'
            )
        for start, end in ((180, 226), (350, 396), (460, 496)):
            shapes.append(
                f'<path d="M{start} {y}H{end}m-7-4 7 4-7 4" fill="none" stroke="currentColor" stroke-width="1.5"/>'
            )
        joint = 88 if rank == 0 else 132
        shapes.append(f'<path d="M620 {y}H652V{joint}" fill="none" stroke="currentColor" stroke-width="1.5"/>')
        shapes.append(f'<text x="16" y="{y + 5}" font-weight="600">rank {rank}</text>')
    shapes.append(
        f'<circle cx="652" cy="110" r="20" fill="none" stroke="{style.VERMILION}" stroke-width="2.5"/>'
        '<text x="652" y="117" text-anchor="middle" font-size="20" font-weight="600">+</text>'
        '<text x="622" y="115" text-anchor="end" font-size="13" font-family="ui-monospace, monospace">all_reduce</text>'
    )
    said = "each rank has all of x, one half of up and one half of down, and no message until the two results are added by one all_reduce"
    return drawing("".join(shapes), 200, "Two layers on two ranks", said)


def bytes_chart(operations: Mapping[str, tuple[float, float]]) -> str:
    """Draw the bytes that one rank sends in each operation, as two bars from zero: (by formula, as
    the operating system counted)."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for row, (formula, sent) in enumerate(operations.values()):
            for shift, size, colour in ((-0.19, formula, style.GREY), (0.19, sent, style.BLUE)):
                axes.barh(row + shift, size / 1e6, height=0.36, color=colour)
                style.write_after_bar(axes, size / 1e6, row + shift, f"{size / 1e6:.2f}")
        most = max(max(pair) for pair in operations.values()) / 1e6
        axes.set(xlim=(0, 1.15 * most), xlabel="MB that each rank sends")
        style.name_rows(axes, list(operations))
        style.bare_axes(axes, grid="x")
        style.draw_legend(figure, {"by formula": style.GREY, "sent": style.BLUE}, columns=2)

    said = "; ".join(
        f"{name}: {f / 1e6:.2f} MB by formula, {s / 1e6:.2f} MB sent" for name, (f, s) in operations.items()
    )
    return render(draw, 84 + 52 * len(operations), "Bytes by formula and as sent", said)


def overlaps_drawing() -> str:
    """Draw one matrix as two trainer ranks hold it (rows), as two generator ranks want it
    (columns), and the four overlaps that travel."""
    side, top, shapes = 150, 52, []
    lefts = {"trainers hold rows": 20, "the overlaps": 275, "generators want columns": 530}
    half = side // 2

    def part(x: int, y: int, width: int, height: int, colour: str, opacity: float, text: str) -> str:
        return (
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{colour}" fill-opacity="{opacity}" stroke="currentColor"/>'
            f'<text x="{x + width // 2}" y="{y + height // 2 + 5}" text-anchor="middle" font-size="14">{text}</text>'
        )

    for title, left in lefts.items():
        shapes.append(f'<text x="{left + half}" y="36" text-anchor="middle" font-weight="600">{title}</text>')
    for rank, colour in enumerate(RANKS):
        shapes.append(part(lefts["trainers hold rows"], top + rank * half, side, half, colour, 0.45, f"rank {rank}"))
        x = lefts["generators want columns"] + rank * half
        shapes.append(part(x, top, half, side, "none", 1, f"rank {rank}"))
    for name, row, column in (("A", 0, 0), ("B", 0, 1), ("C", 1, 0), ("D", 1, 1)):
        x, y = lefts["the overlaps"] + column * half, top + row * half
        shapes.append(part(x, y, half, half, RANKS[row], 0.45, f"{name}: {row} → {column}"))
    for start in (180, 435):
        shapes.append(
            f'<path d="M{start} {top + half}h82m-8-5 8 5-8 5" fill="none" stroke="currentColor" stroke-width="1.6"/>'
        )
    said = "A goes from trainer rank 0 to generator rank 0, B from 0 to 1, C from 1 to 0, D from 1 to 1; each element travels once"
    return drawing("".join(shapes), top + side + 14, "Rows, columns, and their overlaps", said)


def loads_chart(loads: Mapping[str, tuple[float, float]]) -> str:
    """Draw the bytes through the busiest source rank as two bars from zero: (with the plan, with
    gather, then scatter)."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for row, pair in enumerate(loads.values()):
            for shift, size, colour in zip((-0.19, 0.19), pair, (style.ORANGE, style.GREY), strict=True):
                axes.barh(row + shift, size / 1e6, height=0.36, color=colour)
                style.write_after_bar(axes, size / 1e6, row + shift, f"{size / 1e6:.2f}")
        most = max(max(pair) for pair in loads.values()) / 1e6
        axes.set(xlim=(0, 1.12 * most), xlabel="MB through the busiest trainer rank")
        style.name_rows(axes, list(loads))
        style.bare_axes(axes, grid="x")
        style.draw_legend(figure, {"with the plan": style.ORANGE, "gather, then scatter": style.GREY}, columns=2)

    said = "; ".join(
        f"{name}: {plan / 1e6:.2f} MB with the plan, {gathered / 1e6:.2f} MB with gather, then scatter"
        for name, (plan, gathered) in loads.items()
    )
    return render(draw, 84 + 52 * len(loads), "Bytes through the busiest rank", said)
