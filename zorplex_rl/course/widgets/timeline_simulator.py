"""Compare synchronous and asynchronous training on the same latencies, side by side.

A scenario sets every slider. The latencies of "one straggler" are not on the sliders' grid: this
scenario fixes the latencies, shows them as numbers without a thumb, and says why. The reader can
change the number of generators and the lag bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from zorplex_rl.course.bounds import Mode, lower_bounds
from zorplex_rl.course.figures import figure as style
from zorplex_rl.course.figures.figure import render
from zorplex_rl.course.sync_and_async import Comparison, simulate_sync, utilisation
from zorplex_rl.course.widgets.widget import Axes, Params, Simulator, tabulate
from zorplex_rl.simulation.setting import Latencies, Setting
from zorplex_rl.simulation.simulate import SimulatedRun, simulate_async

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LATENCIES: Axes = {
    "generation_seconds": [0.5, 0.75, 1.0, 1.5, 2.0],
    "variation": [0.0, 0.25, 0.5, 1.0],
    "training_seconds": [0.5, 1.0, 2.0, 3.0, 4.0],
    "sync_seconds": [0.0, 0.25, 0.5, 1.0, 2.0],
}
COUNTS: Axes = {"generators": [1, 2, 4, 8], "max_lag": [0, 1, 2, 3, 4]}
GRID: Axes = {**LATENCIES, **COUNTS}
START = Setting(
    generators=4,
    steps=6,
    max_lag=1,
    generation_seconds=1,
    variation=0.5,
    training_seconds=2,
    sync_seconds=0.25,
)
ON_THE_GRID = {
    "balanced": START,
    # Where a lesson asks for the best position of a slider, the scenario begins at another one.
    "no variance": replace(START, variation=0.0, generators=1),
    "trainer-bound": replace(START, generators=8, generation_seconds=0.5, training_seconds=4.0),
    "slow network": replace(START, sync_seconds=2.0, max_lag=2),
}
ONE_STRAGGLER = replace(START, variation=0.0, straggler=8.0, training_seconds=4.0)
FIXED = {"one straggler": ONE_STRAGGLER}
REASONS = {
    "one straggler": "Here the first four numbers are fixed: all groups take equally long, but one takes eight times as long. The others move.",
}
BAR_UNITS = 1000
"""Units per wall time: a bar's start and width are whole thousandths of its run's wall time."""
BOUNDS = ("trainer", "generators", "weights", "round_trips", "all")


class TimelineSimulator(Simulator, script="timeline_simulator.js"):
    """Show sliders, both timelines on one axis, utilisation, staleness, speed-up and lower bounds.

    The table of an export takes some seconds.
    """

    def __init__(self) -> None:
        scenarios = {name: _params(setting, None) for name, setting in ON_THE_GRID.items()}
        scenarios |= {name: _params(setting, name) for name, setting in FIXED.items()}
        controls = {
            "axes": dict(GRID),
            "latencies": list(LATENCIES),
            "scenarios": list(scenarios.items()),
            "scenario": "balanced",
            "reasons": list(REASONS.items()),
        }
        super().__init__(params=scenarios["balanced"], controls=controls)

    def answer(self, params: Params) -> dict[str, Any]:
        setting = self.setting_of(params)
        return {"sync": _sync(setting), "async": _async(setting)}

    def make_table(self) -> dict[str, Any]:
        return {"grid": self._tables(None, GRID)} | {
            name: self._tables(name, COUNTS) for name in FIXED
        }

    def _tables(self, fixed: str | None, axes: Axes) -> dict[str, Any]:
        without_lag = {name: values for name, values in axes.items() if name != "max_lag"}
        return {
            "sync": tabulate(
                without_lag,
                lambda **params: _sync(self.setting_of(params | {"fixed": fixed, "max_lag": 0})),
            ),
            "async": tabulate(
                axes, lambda **params: _async(self.setting_of(params | {"fixed": fixed}))
            ),
        }

    def setting_of(self, params: Params) -> Setting:
        """Return the setting for the slider positions ``params``."""
        if params["fixed"]:
            return replace(FIXED[params["fixed"]], **{name: params[name] for name in COUNTS})
        return replace(START, **{name: params[name] for name in GRID})

    @staticmethod
    def drawn(state: Mapping[str, Any]) -> str:
        loops = {"in turns": state["result"]["sync"], "side by side": state["result"]["async"]}
        longest = max(loop["seconds"] for loop in loops.values())

        def draw(figure: Figure) -> None:
            for axes, (name, loop) in zip(
                figure.subplots(len(loops), sharex=True), loops.items(), strict=True
            ):
                actors = [
                    "trainer",
                    "weights",
                    *(f"generator {number}" for number in range(len(loop["bars"]) - 2)),
                ]
                for row, (bars, colour) in enumerate(
                    zip(
                        loop["bars"],
                        [style.VERMILION, style.GREY, *[style.BLUE] * 64],
                        strict=False,
                    )
                ):
                    reached = 0
                    for gap, width, tone in zip(*[iter(bars)] * 3, strict=True):
                        start, scale = reached + gap, loop["seconds"] / BAR_UNITS
                        axes.barh(
                            row,
                            width * scale,
                            left=start * scale,
                            height=0.8,
                            color=colour,
                            alpha=1 - 0.35 * tone,
                        )
                        reached = start + width
                style.name_rows(axes, actors)
                axes.set(title=f"{name}: {loop['seconds']:g} s", xlim=(0, longest))
                style.bare_axes(axes, grid="x")
            axes.set_xlabel("seconds")

        said = ", ".join(f"{name} {loop['seconds']:g} s" for name, loop in loops.items())
        return render(
            draw,
            140 + 48 * len(loops["in turns"]["bars"]),
            "The same work in turns and side by side",
            said,
        )


def _params(setting: Setting, fixed: str | None) -> Params:
    return {"fixed": fixed} | {name: getattr(setting, name) for name in GRID}


def _sync(setting: Setting) -> dict[str, Any]:
    return _drawing(setting, *_sync_run(replace(setting, max_lag=0)), "sync")


def _async(setting: Setting) -> dict[str, Any]:
    latencies, sync = _sync_run(replace(setting, max_lag=0))
    run = simulate_async(setting, latencies) if setting.max_lag else sync
    return _drawing(setting, latencies, run, "async") | {
        "speed_up": round(Comparison(sync, run).speed_up, 3)
    }


@lru_cache(maxsize=1)
def _sync_run(setting: Setting) -> tuple[Latencies, SimulatedRun]:
    return (latencies := setting.latencies()), simulate_sync(setting, latencies)


def _drawing(
    setting: Setting, latencies: Latencies, run: SimulatedRun, mode: Mode
) -> dict[str, Any]:
    """Return what the front end draws of ``run``, with numbers rounded to the visible digits."""
    actors = [
        "trainer",
        "weights",
        *(f"generator_{number}" for number in range(setting.generators)),
    ]
    busy, bounds = utilisation(run), lower_bounds(setting, latencies, mode)
    return {
        "seconds": round(run.seconds, 3),
        "busy": [round(100 * busy.get(actor, 0.0)) for actor in actors],
        "staleness": [run.staleness.get(lag, 0) for lag in range(max(run.staleness) + 1)],
        "bounds": [round(getattr(bounds, name), 3) for name in BOUNDS],
        "binding": bounds.binding,
        "bars": _bars(run, actors),
    }


def _bars(run: SimulatedRun, actors: list[str]) -> list[list[int]]:
    """Return gap, width, tone, … of each row, in ``BAR_UNITS``; a tone is a version's parity."""
    rows: dict[str, list[int]] = {actor: [] for actor in actors}
    reached = dict.fromkeys(actors, 0)
    for span in run.timeline.spans:
        start, end = (round(BAR_UNITS * time / run.seconds) for time in (span.start, span.end))
        version = span.args["step"] if span.kind == "train" else span.args["version"]
        rows[span.actor] += [start - reached[span.actor], end - start, version % 2]
        reached[span.actor] = end
    return list(rows.values())
