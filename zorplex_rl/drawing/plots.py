"""Draw the two figures of a run: its learning curve and its timeline.

metrics rows ──► learning_curve ──┐
                                  ├─► svg.render ──► SVG text
Timeline     ──► timeline_chart ──┘
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from zorplex_rl.drawing import style
from zorplex_rl.drawing.svg import WIDTH, render
from zorplex_rl.timeline import KINDS, Timeline, Window

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KIND_COLOURS = {
    "generate": style.BLUE,
    "train": style.VERMILION,
    "publish": style.ORANGE,
    "pull": style.SKY,
    "tool": style.PURPLE,
    "evaluate": style.GREEN,
    "reward": style.OLIVE,
    "restart": style.TEXT,
    "idle": style.GREY + "40",
}


def learning_curve(rows: list[dict[str, Any]]) -> str:
    """Draw accuracy over steps: held-out greedy and sampled; in grey, of training episodes.

    ``rows`` are the lines of a run's ``metrics.jsonl``. ``step`` rows give ``accuracy``; ``eval``
    rows give ``greedy_accuracy`` and ``sampled_accuracy``; ``seconds`` of both give the upper axis.
    If a step occurs twice (a resumed run), the later row counts.
    """
    training = _curve(rows, "step", "accuracy")
    held_out = {name: _curve(rows, "eval", f"{name}_accuracy") for name in ("greedy", "sampled")}

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        dot: dict[str, Any] = {"marker": "o", "markersize": 3} if len(training) == 1 else {}
        if training:
            axes.plot(
                *zip(*training, strict=True), label="training episodes", color=style.GREY, alpha=0.8, linewidth=1, **dot
            )
        styles = {"greedy": (style.BLUE, "o"), "sampled": (style.VERMILION, "s")}
        for name, points in held_out.items():
            if points:
                label = f"held-out, {name} (last: {points[-1][1]:.0%})"
                colour, marker = styles[name]
                axes.plot(
                    *zip(*points, strict=True), color=colour, marker=marker, linewidth=2, markersize=5, label=label
                )
        axes.set(ylim=(-0.02, 1.02), ylabel="accuracy")
        style.show_percent(axes.yaxis)
        style.bare_axes(axes, grid="both", keep=("left", "bottom"))
        _set_step_axes(axes, sorted({step for p in (training, *held_out.values()) for step, _ in p}), rows)
        if axes.lines:
            axes.legend(loc="best", frameon=False)
        else:
            axes.text(0.5, 0.5, "no step was trained yet", ha="center", va="center", transform=axes.transAxes)

    said = [f"held-out {name} accuracy {_from_to(points)}" for name, points in held_out.items() if points]
    if not said:
        said = [f"training accuracy {_from_to(training)}"] if training else ["no step was trained yet"]
    return render(draw, 360, "Learning curve", "; ".join(said))


def timeline_chart(timeline: Timeline, window: Window | None = None) -> str:
    """Draw what actors did when: a row per actor, a colour per kind, at the right the busy share.

    ``window`` is on the clock of the spans; the axis counts seconds from the timeline's start.
    Spans are at least a pixel wide, gaps below half a pixel are closed; the shares are exact.
    """
    timeline_start = timeline.start
    start, end = window or (timeline_start, timeline.end)
    length = max(end - start, 1e-6)
    pixel = length / (WIDTH * 0.75)
    actors = timeline.actors
    busy = {actor: 1.0 - shares["idle"] for actor, shares in timeline.shares((start, end)).items()}
    spans: dict[str, dict[str, list[Window]]] = {}
    for span in timeline.between(start, end).spans:
        interval = (span.start - timeline_start, span.end - timeline_start)
        spans.setdefault(span.kind, {}).setdefault(span.actor, []).append(interval)
    colours = kind_colours(spans)
    # Draw the kind with most time first, so that short spans stay visible above long ones.
    seconds = {kind: sum(b - a for bars in spans[kind].values() for a, b in bars) for kind in colours}
    drawing_order = sorted(colours, key=lambda kind: (kind != "idle", -seconds[kind]))

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for kind in drawing_order:
            for actor, intervals in spans[kind].items():
                place = (actors.index(actor) - 0.36, 0.72)
                axes.broken_barh(_visible_bars(intervals, pixel), place, facecolor=colours[kind], linewidth=0)
        said = {-0.8: "busy"} | {row: f"{busy[actor]:.0%}" for row, actor in enumerate(actors)}
        for row, text in said.items() if actors else ():
            axes.text(1.07, row, text, ha="right", va="center", transform=axes.get_yaxis_transform())
        if not actors:
            axes.text(0.5, 0.5, "no span was recorded yet", ha="center", va="center", transform=axes.transAxes)
            axes.set_xticks([])
        style.name_rows(axes, actors, margin=0.6)
        axes.set(xlabel="seconds", xlim=(start - timeline_start, start - timeline_start + length))
        style.bare_axes(axes, grid="x")
        if colours:
            style.draw_legend(figure, colours, columns=5)

    height = 76 + 30 * max(len(actors), 1) + 22 * math.ceil(len(colours) / 5)
    said = ", ".join(f"{actor} {share:.0%}" for actor, share in busy.items()) or "no span was recorded yet"
    return render(draw, height, "Timeline", f"share of {end - start:.3g} seconds that each actor was busy: {said}")


def kind_colours(kinds: Iterable[str]) -> dict[str, str]:
    """Return kind → colour, in the order of a legend. Kinds that are not in ``KINDS`` are grey and last.

    >>> kind_colours({"train", "nap", "generate"})
    {'generate': '#2484CE', 'train': '#D55E00', 'nap': '#808080'}
    """
    ordered = sorted(kinds, key=lambda kind: (*KINDS, kind).index(kind))
    return {kind: KIND_COLOURS.get(kind, style.GREY) for kind in ordered}


def _curve(rows: list[dict[str, Any]], event: str, key: str) -> list[tuple[int, float]]:
    """Return (step, value) of ``event`` rows with ``key``, by step; a step's last row counts."""
    values = {r["step"]: r.get(key) for r in rows if r.get("event") == event and "step" in r}
    return sorted((step, value) for step, value in values.items() if value is not None and math.isfinite(value))


def _from_to(points: list[tuple[int, float]]) -> str:
    (first, before), (last, after) = points[0], points[-1]
    return f"{before:.0%} at step {first}" + (f", {after:.0%} at step {last}" if last > first else "")


def _set_step_axes(axes: Axes, steps: list[int], rows: list[dict[str, Any]]) -> None:
    """Label the lower axis with training steps, the upper with the seconds of reaching them."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("training step")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=10, steps=[1, 2, 5, 10], integer=True))
    if len(steps) < 2:
        axes.set_xticks(steps)
    else:
        margin = 0.02 * (steps[-1] - steps[0])
        axes.set_xlim(steps[0] - margin, steps[-1] + margin)
    # Evaluation takes time but no steps, so the earliest row of a step gives its time.
    reached = dict(sorted(((r["step"], r["seconds"]) for r in rows if {"step", "seconds"} <= r.keys()), reverse=True))
    known = [(step, reached[step]) for step in steps if step in reached]
    if len(known) < 2 or known[-1][1] <= known[0][1]:
        return
    low, high = known[0][1], known[-1][1]
    unit, name = (60, "minutes") if high > 300 else (1, "seconds")
    ticks = [
        t
        for t in MaxNLocator(nbins=8, steps=[1, 2, 5, 10]).tick_values(low / unit, high / unit)
        if low <= t * unit <= high
    ]
    top = axes.secondary_xaxis("top")
    top.set_ticks([_step_at(t * unit, known) for t in ticks], [f"{t:g}" for t in ticks])
    top.set_xlabel(f"{name} since training began")
    top.spines["top"].set_visible(False)


def _step_at(seconds: float, known: list[tuple[int, float]]) -> float:
    """Return the fractional step at ``seconds``, linear between ``known`` (step, seconds)."""
    for (step, before), (next_step, after) in pairwise(known):
        if before <= seconds <= after and after > before:
            return step + (next_step - step) * (seconds - before) / (after - before)
    return known[-1][0]


def _visible_bars(spans: Iterable[Window], pixel: float) -> list[tuple[float, float]]:
    """Return bars (left, width) of one ``pixel`` or more; joins those nearer than half of it."""
    bars: list[list[float]] = []
    for start, end in sorted(spans):
        end = max(end, start + pixel)
        if bars and start - bars[-1][1] < pixel / 2:
            bars[-1][1] = max(bars[-1][1], end)
        else:
            bars.append([start, end])
    return [(start, end - start) for start, end in bars]
