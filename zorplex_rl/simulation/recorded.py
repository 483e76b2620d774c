"""Read the mean latencies of a recorded run off its timeline, for the simulator.

timeline ── setting_of ──► Setting        simulate.py: how long with another lag bound?

generation_seconds    seconds in which generators sample, divided by the number of groups
training_seconds      a training step, and publishing its version
sync_seconds          from a published version to a generator that holds it: the time of its pull
"""

from collections.abc import Iterable, Sequence
from statistics import fmean, pstdev

from zorplex_rl.config import Config
from zorplex_rl.run.timeline import GroupLatency, Timeline
from zorplex_rl.simulation.setting import Setting


def group_variation(batches: Iterable[Sequence[GroupLatency]]) -> float:
    """Return the groups' coefficient of variation, over all ``batches``.

    >>> group_variation([[(0, 0, 1.0), (1, 0, 3.0)]])
    0.5
    """
    latencies = []
    for batch in batches:
        for _, _, seconds, *_ in batch:
            latencies.append(seconds)
    return pstdev(latencies) / fmean(latencies)


def setting_of(timeline: Timeline, config: Config, steps: int) -> Setting:
    """Return the setting of the recorded run of ``config``, to simulate ``steps`` steps."""
    spans = timeline.spans
    batches = [span.args["groups"] for span in spans if span.kind == "train"]
    pulls = {(span.actor, span.args["version"]) for span in spans if span.kind == "pull"}

    def seconds(kind: str) -> float:
        return sum(span.end - span.start for span in spans if span.kind == kind)

    groups = len(batches) * config.prompts_per_step
    training = seconds("train") + seconds("publish")
    return Setting(
        generators=config.services.generators,
        groups_per_step=config.prompts_per_step,
        steps=steps,
        max_lag=config.max_lag,
        generation_seconds=seconds("generate") / groups,
        variation=group_variation(batches),
        training_seconds=training / len(batches),
        sync_seconds=seconds("pull") / len(pulls),
        seed=config.seed,
        share=config.share,
    )
