"""Notebook 08: the controller on the page does what the package's does, and the reader's two
functions drive it."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from test_answers import answers, refusals
from test_notebooks import Later

from zorplex_rl.course import nb08
from zorplex_rl.learning.replay_buffer import ReplayBuffer
from zorplex_rl.policy.load import load_policy
from zorplex_rl.run.folder import RunFolder
from zorplex_rl.training.loop import run_training, train_async

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
notebook = Later(ROOT / "notebooks" / "08_rl_e2e.py")


def settings(**changes) -> SimpleNamespace:
    """Return the page's settings with ``changes``."""
    with patch.object(notebook.mo, "cli_args", dict):  # outside of a run there are none
        _, values = notebook.settings.run()
    return SimpleNamespace(**vars(values["config"]) | changes)


class Stage:
    """A generator and a trainer that only keep books: which group was sampled with which version,
    and trained on at which step."""

    def __init__(self, group_size: int = 2, patience: int = 40) -> None:
        self.version = self.published = 0
        self.size, self.patience = group_size, patience
        self.steps: list[list[tuple[int, int]]] = []
        self.generator = SimpleNamespace(pull=self.pull, sample=self.sample)
        self.trainer = SimpleNamespace(step=self.step, publish=self.publish)

    async def pull(self):
        await asyncio.sleep(0)
        self.version = self.published
        return self.version

    async def sample(self, numbers):
        await asyncio.sleep(0)
        return [([1.0] * self.size, [(number, self.version)] * self.size) for number in numbers]

    async def step(self, episodes, advantages):
        assert len(advantages) == len(episodes)
        # As long as the generator has something that it may do, it does it: the rule alone decides
        # how far it gets.
        for _ in range(self.patience):
            await asyncio.sleep(0)
        self.steps.append(episodes[:: self.size])
        return {}

    async def publish(self):
        await asyncio.sleep(0)
        self.published += 1
        return self.published

    @property
    def lags(self) -> list[int]:
        return [step - version for step, groups in enumerate(self.steps) for _, version in groups]


def driven_by(rule, loop=None, steps: int = 6, per_step: int = 3, max_lag: int = 1) -> Stage:
    """Run the page's two halves on a stage, with this rule and this trainer's loop."""
    stage = Stage()
    ready, news = asyncio.Queue(), asyncio.Event()
    newest, loop = SimpleNamespace(version=0), loop or notebook.Solutions.train

    async def run():
        async with asyncio.timeout(20), asyncio.TaskGroup() as both:
            both.create_task(
                notebook.generate(
                    stage.generator, rule, ready, newest, news, steps, per_step, max_lag
                )
            )
            both.create_task(
                loop(
                    stage.trainer, ready, newest, news, steps, per_step, lambda step, metrics: None
                )
            )

    asyncio.run(run())
    return stage


@pytest.mark.parametrize("max_lag", [0, 1, 3])
def test_the_two_halves_train_on_every_group_once_and_on_none_that_is_too_old(max_lag):
    stage = driven_by(notebook.Solutions.may_start, max_lag=max_lag)
    assert [number for groups in stage.steps for number, _ in groups] == list(range(18))
    assert max(stage.lags) == max_lag, "the generator gets as far ahead as it may"


def test_a_wrong_rule_makes_data_too_old_and_a_timid_one_makes_the_loop_take_turns():
    assert max(driven_by(lambda *given: 1000, max_lag=1).lags) > 1

    def timid(version, started, per_step, max_lag):
        return notebook.Solutions.may_start(version, started, per_step, 0)

    assert max(driven_by(timid, max_lag=3).lags) == 0


@pytest.mark.parametrize("max_lag", [0, 1, 2])
def test_the_rule_admits_what_the_packages_replay_buffer_admits(max_lag):
    buffer, per_step = ReplayBuffer(4, max_lag, 400), 4
    started, on_the_way = 0, list[tuple[int, int]]()
    for step in range(8):
        for version in (max(0, step - max_lag), step):
            admitted = buffer.admit(version, 400)
            assert len(admitted) == max(
                0, notebook.Solutions.may_start(version, started, per_step, max_lag)
            )
            on_the_way += [(started + place, version) for place in range(len(admitted))]
            started += len(admitted)
        for number, begun in on_the_way:
            buffer.add(number, begun)
        assert len(buffer.take()) == per_step
        on_the_way = on_the_way[per_step:]


def test_what_the_reader_must_not_see_first_is_shown_nowhere_before_the_exercise():
    source = (ROOT / "notebooks" / "08_rl_e2e.py").read_text()
    for name, inner in (
        ("may_start", "(version + max_lag + 1) * per_step -"),
        ("train", "trainer.step(episodes, advantages)\n"),
    ):
        stub, solution = source.index(f"def {name}("), source.rindex(f"def {name}(")
        assert source.index(inner) > stub and source.index(inner, solution) > solution


def test_a_loop_that_forgets_to_wake_to_flatten_or_to_await_is_told_so():
    said = refusals("08", "train", [answers("08").wakes_nobody, answers("08").gives_lists_of_lists])
    (forgot,) = refusals("08", "train", [answers("08").forgets_to_await_the_step]).values()
    assert forgot == "you called `trainer.step` without `await`, so it never ran"
    (actor,) = refusals("08", "train", [answers("08").calls_as_an_actor]).values()
    assert actor == "`trainer` hides `call_one` here: write `await trainer.step(…)`"
    (sample,) = refusals("08", "train", [answers("08").takes_the_sample_deviation]).values()
    assert sample.startswith("that is the sample deviation")
    early, no_coroutine, own_count = refusals(
        "08",
        "train",
        [
            answers("08").wakes_before_the_version_is_known,
            answers("08").is_no_coroutine,
            answers("08").counts_the_versions_itself,
        ],
    ).values()
    assert early.startswith("`news.set()` comes before the new version is in `newest.version`")
    assert no_coroutine == "`train` must be an `async def`"
    assert own_count.startswith("`newest.version` must be what `publish` returned")
    assert said["wakes_nobody"].endswith("never wakes the generator")
    assert "gives it the episodes `[['episode_0.0'" in said["gives_lists_of_lists"]
    assert "should give the flat list `['episode_0.0'" in said["gives_lists_of_lists"]


def test_a_rule_that_starts_whole_batches_only_or_cuts_the_lag_is_told_so():
    wrong = [answers("08").starts_whole_batches_only, answers("08").cuts_the_lag_at_one]
    whole, cut = refusals("08", "may_start", wrong).values()
    assert whole.startswith("it starts whole batches only")
    assert cut.startswith("it cuts the lag at 1")


def test_a_bound_that_forgets_the_trainer_or_the_last_batch_is_told_so():
    wrong = [
        answers("08").forgets_the_trainer,
        answers("08").spreads_the_batch_alone,
        answers("08").is_a_lag_short,
    ]
    trainer, alone, short = refusals("08", "least_seconds", wrong).values()
    assert trainer.startswith("it forgets the trainer")
    assert "not `sampling` alone" in alone
    assert "L + 1 batches share the time, not L" in short


@pytest.mark.long
def test_at_max_lag_0_two_steps_give_the_weights_of_the_packages_controller_bit_for_bit(tmp_path):
    config = settings(prompts=4, samples=4, device="cpu")
    run = nb08.run_config(config, steps=2, max_lag=0, eval_tasks=2)
    ours, folder = tmp_path / "ours", RunFolder.create(tmp_path / "theirs", run)

    async def both():
        actors = await notebook.bring_up(run, config.device)
        try:
            await notebook.run_loop(
                actors,
                notebook.Solutions.may_start,
                notebook.Solutions.train,
                2,
                config.prompts,
                0,
                lambda *shown: None,
            )
            await actors.trainer.export.call_one(str(ours))
        finally:
            await nb08.stop_all()
        await run_training(run, folder, loop=train_async)

    asyncio.run(both())
    first, second, start = (
        torch.nn.utils.parameters_to_vector(load_policy(str(path), "cpu").model.parameters())
        for path in (ours, folder.policy, config.policy)
    )
    assert torch.equal(first, second)
    assert not torch.equal(first, start)


@pytest.mark.long
def test_runs_from_its_first_cell_to_its_last(monkeypatch, tmp_path):
    monkeypatch.setenv("ZORPLEX_CACHE", str(tmp_path))
    config = settings(
        prompts=3,
        samples=4,
        steps=5,
        lags=(0, 2),
        tool_seconds=0.02,
        eval_tasks=8,
        real_steps=3,
        killed_steps=8,
        held_out=8,
    )
    _, values = notebook.app.run(defs={"config": config})
    assert "the course's" in values["whose_rule"] and "the course's" in values["whose_loop"]
    for lag, run in values["runs"].items():
        for span in run.spans:
            for _, version, *_ in span.args.get("groups", ()):
                assert span.args["step"] - version <= lag
    assert list(values["wrote"]) == ["before training", "after 3 steps side by side"]
    assert [run.at_end for run in values["learned"].values()] and values["paid"]
    books = values["books"]
    assert books.each_once and books.started == books.trained + books.abandoned + books.stale
    assert len(values["native_errors"]) <= 20
    assert values["lap"]["max_logp_difference"] < 1e-4
    assert values["my_async_rl"] == (ROOT / "examples" / "my_async_rl.py").read_text()
    assert not (ROOT / "my_async_rl.py").exists(), "an export writes nothing"
    assert not nb08.PROCESSES
    assert sys.modules["notebook_08_rl_e2e"].app is notebook.app


def test_native_errors_are_kept_off_the_page(capfd):
    with nb08.quietly() as lines:
        os.write(2, b"[actor] a process is gone\n\nmore\n")
    assert lines == ["[actor] a process is gone", "more"]
    os.write(2, b"afterwards\n")
    assert capfd.readouterr().err == "afterwards\n"
