"""docs/ARCHITECTURE.md names the files that an episode, a request and a version of the weights pass.
Here they are followed, in one process each."""

import asyncio
import re
import subprocess
import sys
import threading
from contextlib import contextmanager
from inspect import CO_OPTIMIZED
from pathlib import Path

import pytest
from echo import Echo

import zorplex_rl
from zorplex_rl.learning.advantages import ADVANTAGES
from zorplex_rl.learning.learner import Learner
from zorplex_rl.learning.replay_buffer import ReplayBuffer
from zorplex_rl.policy.load import load_policy
from zorplex_rl.policy.rollout import RolloutEngine, RolloutRequest, RolloutStream
from zorplex_rl.services.options import ServiceOptions
from zorplex_rl.services.service import Service
from zorplex_rl.services.spawn import replicas_of
from zorplex_rl.task.environment import Zorplex
from zorplex_rl.task.rewards import score_turns
from zorplex_rl.task.specs import run_tool

ROOT = Path(zorplex_rl.__file__).parent
WALKS = (
    (ROOT.parent / "docs" / "ARCHITECTURE.md")
    .read_text()
    .split("## Three walks")[1]
    .split("\n## ")[0]
)
BETWEEN_PROCESSES = {"controller.py", "groups.py", "generator.py", "actors.py", "trainer.py"}
"""Files of ``training/`` that hand the episode on; they need processes, which a trace does not
reach."""
OF_THE_MODEL = {"model.py", "product.py", "decoder.py", "tokenizer.py"}
"""Model and tokenizer of the embedded policy, where any other has transformers' files."""
TRAIN = """
from test_walk import traced
from zorplex_rl.cli.commands import main

with traced() as entered:
    assert main("train --task simple --steps 1 --eval-tasks 2 --max-tokens 48 --out".split() + ["{}"]) == 0
print(len(entered))
"""


@contextmanager
def traced():
    """Note in the given set the files of the package whose functions are called."""
    entered: set[str] = set()

    def note(frame, event, argument):
        code = frame.f_code
        # What the learner checks after the loss is no part of the way to it.
        if (
            code.co_flags & CO_OPTIMIZED
            and code.co_filename.startswith(f"{ROOT}/")
            and "losses.py" not in entered
        ):
            entered.add(Path(code.co_filename).name)

    # It returns nothing, so it is called for calls alone.
    threading.settrace(note)
    sys.settrace(note)
    try:
        yield entered
    finally:
        sys.settrace(None)
        threading.settrace(None)


def files_of(walk: str) -> set[str]:
    """The names of the files in one paragraph of the walks."""
    part = WALKS.split(f"**{walk}")[1].split("\n**")[0]
    return {Path(name).name for name in re.findall(r"[\w/]+\.py", part.split("\n\n")[1])}


async def episodes_of(policy, tasks):
    stream = RolloutStream(lambda: RolloutEngine(policy, run_tool), asyncio.Lock())
    return await stream.sample(
        [RolloutRequest(task, seed, 0) for task in tasks for seed in range(4)]
    )


def test_an_episode_passes_the_files_that_the_architecture_names_and_no_other():
    lines = re.findall(r"^([2-8])\. (`.*)$", WALKS, re.MULTILINE)
    assert [number for number, _ in lines] == list("2345678")
    named = {Path(name).name for _, line in lines for name in re.findall(r"`([\w/]+\.py)`", line)}
    policy, tasks = load_policy(), Zorplex(0).tasks(("compositional:easy",), 1)
    learner, buffer = Learner(policy), ReplayBuffer(groups_per_step=1, max_lag=0, total_groups=1)
    (number,) = buffer.admit(version=0, count=1)
    with traced() as entered:
        episodes = asyncio.run(episodes_of(policy, tasks))
        for episode in episodes:
            episode.score = score_turns(
                episode.task, episode.sampled_text, episode.tool_calls, episode.finish
            )
        rewards = [episode.scored.reward for episode in episodes]
    buffer.add(number, 0)
    assert buffer.take() == [number]
    (advantages,) = ADVANTAGES["grpo"]([rewards])
    with traced() as entered_by_learner:
        learner.step(episodes, advantages)
    entered |= entered_by_learner
    assert entered >= OF_THE_MODEL
    assert entered - OF_THE_MODEL | BETWEEN_PROCESSES == named
    assert len(named) <= 14


@pytest.mark.slow
def test_a_request_passes_the_files_that_the_architecture_names_and_no_other():
    async def scenario():
        async with Service("echo", replicas_of(Echo), ServiceOptions(replicas=1)) as service:
            with traced() as entered:
                await service.who.route()
            # A poll of the replica may come between.
            return entered - {"replica_set.py"}

    assert asyncio.run(scenario()) == files_of("A request to a service")
    assert len(files_of("A request to a service")) <= 4


def test_a_version_of_the_weights_passes_five_files():
    assert len(files_of("A version of the weights")) == 5


@pytest.mark.long
def test_the_command_train_passes_41_files_in_the_process_that_steers_the_run(tmp_path):
    program = TRAIN.format(tmp_path / "run")
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True
    )
    assert int(done.stdout.split()[-1]) <= 41
