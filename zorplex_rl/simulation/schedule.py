"""The schedule of a run: all of it but the numbers. Who was told what, between which steps of an
engine, and which groups each training step took.

    journal ──► Schedule ◄── simulated ◄── latencies of the run (``recorded.py``)

``execute.py`` executes one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from zorplex_rl.config import Config
from zorplex_rl.errors import ConfigError
from zorplex_rl.simulation.recorded import Recorded, read_timeline
from zorplex_rl.simulation.setting import Details, Setting
from zorplex_rl.simulation.simulate import Run
from zorplex_rl.timeline import Timeline

if TYPE_CHECKING:
    from zorplex_rl.policy.rollout import Event


@dataclass(slots=True)
class Part:
    """A stretch of a run between two starts of its processes: the events of each generator, and the
    (group, generator) of each step.

    ``decay_steps`` is the number of steps that the run was to have.
    """

    decay_steps: int
    histories: dict[str, list[Event]]
    batches: dict[int, list[tuple[int, str]]]


@dataclass(slots=True)
class Schedule:
    """All of a run but its numbers. ``is_exact``: it is executed with the settings that it was
    recorded with."""

    parts: list[Part]
    evaluations: list[int]
    is_exact: bool = False

    @property
    def steps(self) -> int:
        """Number of steps."""
        return sum(len(part.batches) for part in self.parts)


def latencies_of(file: Path, config: Config, steps: int) -> tuple[Recorded, str | None]:
    """Return the latencies of the run of ``steps`` steps whose timeline is ``file``, and what is to
    be said of them: with a fault in it, or without an end, a run shows only means."""
    try:
        timeline = Timeline.load(file)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the run in {str(file.parent)!r} has no timeline to simulate from ({error}); change the loss or "
            f"the learning rate, which need none, or train anew"
        ) from error
    try:
        return read_timeline(timeline, config), None
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError):
        return rough_latencies(timeline, config, steps), (
            "the run was not in one go, so the schedule is simulated from mean latencies"
        )


def rough_latencies(timeline: Timeline, config: Config, steps: int) -> Recorded:
    """Return the mean latencies of a run in which processes were replaced. Raises ConfigError if
    its timeline shows none."""
    spans = {kind: [s for s in timeline.spans if s.kind == kind] for kind in ("generate", "train", "publish", "pull")}
    if not spans["generate"] or not spans["train"]:
        raise ConfigError("the run's timeline shows no sampling or no training to simulate from; train anew")
    mean = {kind: fmean(s.end - s.start for s in found) if found else 0.0 for kind, found in spans.items()}
    busy = sum(shares.get("generate", 0.0) for shares in timeline.shares().values()) * (timeline.end - timeline.start)
    groups = len(spans["train"]) * config.prompts_per_step
    setting = Setting(
        generators=config.services.generators, groups_per_step=config.prompts_per_step, steps=steps, max_lag=config.max_lag,
        generation_seconds=busy / groups, variation=0.0, training_seconds=mean["train"] + mean["publish"],
        sync_seconds=mean["pull"], seed=config.seed,
    )  # fmt: skip
    latencies = replace(setting.latencies(), details=Details(share=config.share))
    return Recorded(timeline.end - timeline.start, setting, latencies)


def simulated(run: Run, recorded: Recorded, decay_steps: int, evaluations: list[int]) -> Schedule:
    """Return the schedule of a simulated run. A generator samples each of its shares to the end
    before it is told anything else."""
    histories: dict[str, list[Event]] = {}
    batches: dict[int, list[int]] = {}
    sampled_by: dict[int, str] = {}
    versions: dict[str, int] = {}
    share = recorded.latencies.details.share
    for span in run.timeline.spans:
        if span.kind == "train":
            batches[span.args["step"] + 1] = sorted(span.args["groups"])
        if span.kind != "generate":
            continue
        events, version, group = histories.setdefault(span.actor, []), span.args["version"], span.args["group"]
        sampled_by[group] = span.actor
        if versions.get(span.actor, 0) != version:
            events.append((None, "version", version))
            versions[span.actor] = version
        if events and events[-1][1] == "submit" and len(events[-1][2]) < share:
            events[-1][2].append(group)
        else:
            events.append((None, "submit", [group]))
    parts = {step: [(n, sampled_by[n]) for n in groups] for step, groups in batches.items()}
    return Schedule([Part(decay_steps, histories, parts)], evaluations)
