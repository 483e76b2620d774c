"""Read the mean latencies of a recorded run off its timeline, for the simulator.

timeline ── setting_of ──► Setting        simulate.py: what would it have taken with another lag bound?

generation_seconds    a group's part of the seconds in which generators sample
training_seconds      a training step, and publishing its version
sync_seconds          from a version that is published to a generator that holds it: its pull
"""

from collections.abc import Iterable, Sequence
from statistics import fmean, pstdev

from zorplex_rl.config import Config
from zorplex_rl.run.timeline import Timeline
from zorplex_rl.simulation.setting import Setting


def group_variation(batches: Iterable[Sequence[tuple[int, int, float, float]]]) -> float:
    """Return the groups' coefficient of variation, over all ``batches`` of ``group_latencies``.

    >>> group_variation([[(0, 0, 1.0, 0.0), (1, 0, 3.0, 0.0)]])
    0.5
    """
    seconds = [seconds for batch in batches for _, _, seconds, _ in batch]
    return pstdev(seconds) / fmean(seconds)


def setting_of(timeline: Timeline, config: Config, steps: int) -> Setting:
    """Return what a run of ``config`` was like, for a simulation of ``steps`` steps of it."""
    trained = [span for span in timeline.spans if span.kind == "train"]
    pulled = {(span.actor, span.args["version"]) for span in timeline.spans if span.kind == "pull"}

    def seconds(kind: str) -> float:
        return sum(span.end - span.start for span in timeline.spans if span.kind == kind)

    return Setting(
        generators=config.services.generators,
        groups_per_step=config.prompts_per_step,
        steps=steps,
        max_lag=config.max_lag,
        generation_seconds=seconds("generate") / (len(trained) * config.prompts_per_step),
        variation=group_variation(span.args["groups"] for span in trained),
        training_seconds=(seconds("train") + seconds("publish")) / len(trained),
        sync_seconds=seconds("pull") / len(pulled),
        seed=config.seed,
        share=config.share,
    )
