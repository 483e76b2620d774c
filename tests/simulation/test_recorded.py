"""Latencies read off a run's timeline, and what the simulation predicts from them: for made-up runs
exactly, for real ones within 15 %."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest
from runs import SMALL, train_here

from zorplex_rl.config import Config
from zorplex_rl.run.timeline import Span, Timeline
from zorplex_rl.simulation.recorded import predict, read_run, read_timeline
from zorplex_rl.simulation.setting import Setting
from zorplex_rl.simulation.simulate import simulate_async, simulate_sync
from zorplex_rl.training.controller import Controller

SYNC = Config(max_lag=0, steps=3, prompts_per_step=2, eval_tasks=8)


def sync_timeline() -> Timeline:
    """Three synchronous steps on the beat: every kind of span has a length of its own, and so has
    every hop between two of them."""
    spans = [
        Span("trainer", "publish", 0.0, 0.5, {"version": 0}),
        Span("generator_0", "pull", 1.0, 2.0, {"version": 0}),
        Span("generator_0", "evaluate", 2.0, 4.0, {"version": 0}),
        Span("reward", "reward", 4.0, 4.5, {"episodes": 16}),
    ]
    now = 10.0
    for step in range(3):
        # A pull that brings nothing new is over at once.
        pulled = now + (1.0 if step else 0.0)
        spans.append(Span("generator_0", "pull", now, pulled, {"version": step}))
        began = pulled + 0.25
        spans += [Span("generator_0", "generate", began + i, began + i + 1, {"version": step}) for i in range(4)]
        scored = began + 4 + 0.5
        spans.append(Span("reward", "reward", scored, scored + 0.25, {"episodes": 16}))  # As many as an evaluation has.
        train = scored + 0.25 + 0.75
        groups = [[2 * step, step, 3.0, 0.0], [2 * step + 1, step, 4.0, 0.0]]
        by = dict.fromkeys((2 * step, 2 * step + 1), "generator_0")
        spans.append(Span("trainer", "train", train, train + 5, {"step": step, "groups": groups, "sampled_by": by}))
        spans.append(Span("trainer", "publish", train + 5.5, train + 6, {"version": step + 1}))
        now = train + 6 + 2
    return Timeline(spans)


def test_every_latency_is_read_off_its_spans():
    recorded = read_timeline(sync_timeline(), SYNC)
    latencies = recorded.latencies
    # Both groups of a step took the 4 s of their generator, one 3 s and the other 4 s.
    assert latencies.generate == pytest.approx((4 * 3 / 7, 4 * 4 / 7) * 3)
    assert latencies.train == pytest.approx((6.0,) * 3)
    assert latencies.transfer == pytest.approx((0.0, 2.0, 2.0))
    assert dict(latencies.load) == pytest.approx({1: 1.0, 2: 1.0})
    assert (latencies.start, latencies.deliver, latencies.share) == pytest.approx((0.25, 1.5, 2))
    assert not latencies.evaluate
    assert recorded.setting.variation == pytest.approx(0.5 / 3.5)


def test_a_run_on_the_beat_is_predicted_exactly():
    recorded = read_timeline(sync_timeline(), SYNC)
    assert recorded.seconds == pytest.approx(3 * (0.25 + 4 + 1.5 + 6) + 2 * (2 + 1))
    assert predict(recorded).seconds == pytest.approx(recorded.seconds)


def test_the_busy_time_of_a_generator_is_that_of_the_groups_that_it_sampled():
    """Two generators share each step, and one of them takes four times as long: the step is as long
    as its share."""
    spans, begun = [], set()
    for span in sync_timeline().spans:
        if span.kind == "generate" and span.args["version"] not in begun:
            begun.add(span.args["version"])
            spans.append(replace(span, actor="generator_1"))
        if span.kind == "train":
            first = 2 * span.args["step"]
            span.args["sampled_by"] = {first: "generator_0", first + 1: "generator_1"}
        spans.append(span)
    recorded = read_timeline(Timeline(spans), SYNC.changed(generators=2))
    assert recorded.latencies.generate == pytest.approx((4.0, 1.0) * 3)
    assert predict(recorded).seconds == pytest.approx(recorded.seconds)


def test_an_evaluation_holds_its_generator_up_until_the_next_pull():
    spans = []
    for span in sync_timeline().spans:
        later = 3.0 if span.start > 39 else 0.0
        spans.append(replace(span, start=span.start + later, end=span.end + later))
    last_pull = max(span.start for span in spans if span.kind == "pull")
    spans.append(Span("generator_0", "pull", last_pull - 4.0, last_pull - 3.0, {"version": 2}))
    spans.append(Span("generator_0", "evaluate", last_pull - 3.0, last_pull - 1.0, {"version": 2}))
    recorded = read_timeline(Timeline(spans), SYNC)
    assert dict(recorded.latencies.evaluate) == pytest.approx({2: 3.0})


def test_the_same_latencies_may_be_asked_about_another_lag():
    recorded = read_timeline(sync_timeline(), SYNC)
    asynchronous = predict(recorded, max_lag=1)
    assert asynchronous.seconds < predict(recorded).seconds
    assert asynchronous.staleness == {0: 2, 1: 4}
    with_a_share_at_a_time = simulate_async(recorded.setting, recorded.latencies)
    assert with_a_share_at_a_time.seconds == pytest.approx(predict(recorded).seconds)


def test_a_run_that_was_resumed_or_had_a_generator_replaced_is_refused():
    missing = [span for span in sync_timeline().spans if span.args.get("step") != 1]
    # Stopped after a checkpoint and continued: the weights were published once more.
    again = [*sync_timeline().spans, Span("trainer", "publish", 31.0, 32.0, {"version": 1})]
    took_over = [*sync_timeline().spans, Span("generator_1", "generate", 30.0, 31.0, {"version": 1})]
    for spans in (missing, again, took_over):
        with pytest.raises(ValueError, match="not in one go"):
            read_timeline(Timeline(spans), SYNC)


@pytest.mark.parametrize(("prompts", "generators"), [(8, 1), (7, 2), (4, 3)])
def test_a_synchronous_step_is_shared_out_to_generators_as_the_simulation_does_it(prompts, generators):
    config = Config().changed(max_lag=0, prompts_per_step=prompts, generators=generators)

    async def admit_now(version, most):
        return range(most)

    buffer = SimpleNamespace(admit_now=SimpleNamespace(route=admit_now))
    shares = asyncio.run(Controller.admit_step(SimpleNamespace(config=config, published=0, replay_buffer=buffer)))
    setting = Setting(generators, prompts, steps=1, max_lag=0, variation=0)
    run = simulate_sync(setting, replace(setting.latencies(), share=config.share))
    simulated = {actor: [] for actor in run.timeline.actors if actor.startswith("generator")}
    for span in run.timeline.spans:
        if span.kind == "generate":
            simulated[span.actor].append(span.args["group"])
    assert [list(share) for share in shares] == list(simulated.values())


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        {"max_lag": 0},
        {"max_lag": 1, "generators": 2},
    ],
    ids=["sync", "async"],
)
def test_the_wall_time_of_a_real_run_is_predicted_within_15_percent(options, tmp_path):
    """Other tests run beside this one and may take the processor away in the middle of a run, so a
    run may be repeated twice."""
    config = SMALL.changed(steps=8, prompts_per_step=4, group_size=8, eval_every=4, checkpoint_every=100, **options)
    errors = []
    for attempt in range(3):
        recorded = read_run(train_here(config, tmp_path / f"run {attempt}").path)
        errors.append(predict(recorded).seconds / recorded.seconds - 1)
        if abs(errors[-1]) <= 0.15:
            return
    pytest.fail(f"predicted seconds differ from measured ones by {errors}")
