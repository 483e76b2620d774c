"""Draw the first picture of README.md: the same training, in turns and side by side, as it goes on.

    python docs/side_by_side.py            writes side_by_side.svg beside this file

    Setting ──course/sync_and_async.py──► two timelines ──► bars in one group, uncovered from left to right

The clock is CSS within the file, so the picture moves where a page only shows it as an image. Who
asked the system for less motion sees its end. It is light or dark as the reader's system is.
"""

from __future__ import annotations

from pathlib import Path

from zorplex_rl.course.figures.figure import GREY, drawing
from zorplex_rl.course.figures.loop_drawing import ROLES
from zorplex_rl.course.sync_and_async import compare
from zorplex_rl.simulation.setting import Setting
from zorplex_rl.simulation.simulate import SimulatedRun

FILE = Path(__file__).with_suffix(".svg")
LEFT, RIGHT, LANE, BAR = 104, 712, 22, 17
"""Pixels: where time begins and ends, from lane to lane, and the height of a bar."""
SWEEP_S, HOLD_S = 9, 4
"""The picture's own seconds: of the whole simulated time, and of its end before it begins again."""
COLOURS = {"generate": ROLES["generator"], "train": ROLES["trainer"]}


def picture(setting: Setting) -> str:
    """Return the SVG text of ``setting``, simulated in both ways on the same latencies."""
    both = compare(setting)
    end, whole = both.sync.seconds, SWEEP_S + HOLD_S
    scale, share = (RIGHT - LEFT) / end, 100 * SWEEP_S / whole
    runs = {"In turns": both.sync, "Side by side": both.asynchronous}
    bars, rest, rules, top = "", "", "", 8
    for number, (title, run) in enumerate(runs.items()):
        rest += f'<text x="0" y="{top + 14}" font-weight="600">{title}</text>\n'
        top += 24
        bars += _bars(run, top, scale)
        rest += _lanes(run, top)
        done = LEFT + run.seconds * scale
        at, bottom = share * run.seconds / end, top + LANE * len(_actors(run)) - 4
        said = f"{setting.steps} steps in {run.seconds:.1f} s"
        rest += f'<g class="done{number}"><path d="M{done:.1f} {top - 2}V{bottom}" stroke="currentColor" stroke-width="2"/>'
        rest += f'<text x="{done - 6:.1f}" y="{top - 10}" text-anchor="end" font-weight="600">{said}</text></g>\n'
        rules += (
            f"@keyframes done{number}{{0%,{at:.2f}%{{opacity:0}}{at + 0.5:.2f}%,100%{{opacity:1}}}}"
        )
        rules += f".done{number}{{animation:done{number} {whole}s linear -{SWEEP_S}s infinite}}"
        top = bottom + 16
    # A line from the first second to the last makes the group as wide as time is long.
    width = f'<path d="M{LEFT} 0H{RIGHT}" fill="none"/>'
    rules += (
        f"@keyframes go{{0%{{clip-path:inset(0 100% 0 0)}}{share:.2f}%,100%{{clip-path:inset(0)}}}}"
        f".go{{animation:go {whole}s linear -{SWEEP_S}s infinite}}@media(prefers-reduced-motion:reduce){{*{{animation:none!important}}}}"
    )
    said = (
        f"{setting.steps} training steps with {setting.generators} generators, simulated on the same latencies: {end:.1f} s "
        f"where generating and training take turns, {both.asynchronous.seconds:.1f} s where they go on side by side, with "
        f"weights that are at most {setting.max_lag} version old."
    )
    shapes = f'<style>{rules}</style><g class="go">{width}{bars}</g>\n{rest}'
    return drawing(shapes, top - 8, "Reinforcement learning in turns and side by side", said) + "\n"


def _actors(run: SimulatedRun) -> list[str]:
    """Return who has a lane, from top to bottom."""
    return [actor for actor in run.timeline.actors if actor != "weights"]


def _bars(run: SimulatedRun, top: float, scale: float) -> str:
    """Return a bar for each span of work."""
    lanes = {actor: top + LANE * number for number, actor in enumerate(_actors(run))}
    return "".join(
        f'<rect x="{LEFT + span.start * scale:.1f}" y="{lanes[span.actor]}" width="{max((span.end - span.start) * scale - 1, 1):.1f}" '
        f'height="{BAR}" rx="2" fill="{COLOURS[span.kind]}"/>\n'
        for span in run.timeline.spans
        if span.actor in lanes and span.kind in COLOURS
    )


def _lanes(run: SimulatedRun, top: float) -> str:
    """Return the names of the lanes, and a line below each."""
    return "".join(
        f'<text x="0" y="{top + LANE * number + 13}">{actor.replace("_", " ")}</text>'
        f'<path d="M{LEFT} {top + LANE * number + BAR + 2}H{RIGHT}" stroke="{GREY}" stroke-opacity=".35"/>\n'
        for number, actor in enumerate(_actors(run))
    )


if __name__ == "__main__":
    FILE.write_text(picture(Setting()), encoding="utf-8")
