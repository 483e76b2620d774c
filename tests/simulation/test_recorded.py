"""Mean latencies read off a run's timeline, and what the simulation predicts from them: for a made-up
run exactly, for real ones roughly."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest
from runs import SMALL, train_here

from zorplex_rl.config import Config
from zorplex_rl.course.sync_and_async import simulate_sync
from zorplex_rl.run.timeline import Span, Timeline
from zorplex_rl.simulation.recorded import setting_of
from zorplex_rl.simulation.setting import Setting
from zorplex_rl.simulation.simulate import simulate_async
from zorplex_rl.training.groups import Groups

SYNC = Config(max_lag=0, steps=3, prompts_per_step=2)


def sync_timeline() -> Timeline:
    """Three synchronous steps on the beat, of 1 + 4 + 5 + 0.5 seconds; a kind has a length of its own."""
    spans, now = [], 0.0
    for step in range(3):
        spans.append(Span("generator_0", "pull", now, now + 1, {"version": step}))
        # A pull that brings nothing new is over at once.
        spans.append(Span("generator_0", "pull", now + 1, now + 1, {"version": step}))
        spans += [
            Span("generator_0", "generate", now + i, now + i + 1, {"version": step})
            for i in range(1, 5)
        ]
        groups = [[2 * step, step, 3.0, 0.0], [2 * step + 1, step, 5.0, 0.0]]
        spans.append(Span("trainer", "train", now + 5, now + 10, {"step": step, "groups": groups}))
        spans.append(Span("trainer", "publish", now + 10, now + 10.5, {"version": step + 1}))
        now += 10.5
    return Timeline(spans)


def test_every_mean_is_read_off_its_spans_and_a_run_on_the_beat_is_predicted_exactly():
    setting = setting_of(sync_timeline(), SYNC, steps=3)
    assert (setting.generation_seconds, setting.training_seconds, setting.sync_seconds) == (
        2.0,
        5.5,
        1.0,
    )
    assert (setting.variation, setting.share, setting.max_lag) == (0.25, 2, 0)
    on_the_beat = replace(setting, variation=0.0)
    assert simulate_async(on_the_beat, on_the_beat.latencies()).seconds == pytest.approx(
        sync_timeline().end
    )


@pytest.mark.parametrize(("prompts", "generators"), [(8, 1), (7, 2), (4, 3)])
def test_a_synchronous_step_is_shared_out_to_generators_as_the_simulation_does_it(
    prompts, generators
):
    config = Config().changed(max_lag=0, prompts_per_step=prompts, generators=generators)

    async def admit_now(version, most):
        return range(most)

    buffer = SimpleNamespace(admit_now=SimpleNamespace(route=admit_now))
    shares = asyncio.run(
        Groups.admit_step(SimpleNamespace(config=config, published=0, _replay_buffer=buffer))
    )
    setting = Setting(generators, prompts, steps=1, max_lag=0, variation=0, share=config.share)
    run = simulate_sync(setting, setting.latencies())
    simulated = {actor: [] for actor in run.timeline.actors if actor.startswith("generator")}
    for span in run.timeline.spans:
        if span.kind == "generate":
            simulated[span.actor].append(span.args["group"])
    assert [list(share) for share in shares] == list(simulated.values())


@pytest.mark.long
@pytest.mark.parametrize(
    "options", [{"max_lag": 0}, {"max_lag": 1, "generators": 2}], ids=["sync", "async"]
)
def test_the_wall_time_of_a_real_run_is_predicted_roughly(options, tmp_path):
    """Steps take some hundredths of a second here, and what is between the spans, calls and a generator
    that ends its groups before it pulls, is a third of the asynchronous run; the simulation leaves it
    out. Other tests may take the processor away, so a run may be repeated twice."""
    config = SMALL.changed(
        steps=8, prompts_per_step=4, group_size=8, eval_every=100, checkpoint_every=100, **options
    )
    errors = []
    for attempt in range(3):
        timeline = Timeline.load(train_here(config, tmp_path / f"run {attempt}").timeline)
        setting = setting_of(timeline, config, config.steps)
        trained = [span for span in timeline.spans if span.kind in ("train", "publish")]
        measured = max(span.end for span in trained) - min(
            s.start for s in timeline.spans if s.kind == "generate"
        )
        errors.append(simulate_async(setting, setting.latencies()).seconds / measured - 1)
        if abs(errors[-1]) <= 0.4:
            return
    pytest.fail(f"predicted seconds differ from measured ones by {errors}")
