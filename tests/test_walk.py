"""docs/ARCHITECTURE.md names the files that an episode passes. Here one is followed through them,
without processes."""

import asyncio
import re
import sys
import threading
from pathlib import Path

import zorplex_rl
from zorplex_rl.learning.advantages import ADVANTAGES
from zorplex_rl.learning.learner import Learner
from zorplex_rl.learning.replay_buffer import ReplayBuffer
from zorplex_rl.policy.load import load_policy
from zorplex_rl.policy.rollout import RolloutEngine, RolloutRequest
from zorplex_rl.policy.stream import RolloutStream
from zorplex_rl.task.environment import Zorplex
from zorplex_rl.task.rewards import score_turns
from zorplex_rl.task.specs import run_tool

ROOT = Path(zorplex_rl.__file__).parent
BETWEEN_PROCESSES = {"controller.py", "generator.py", "actors.py", "trainer.py"}
"""Files of ``training/`` that hand the episode on; they need processes, which a trace does not
reach."""
FOR_TRANSFORMERS = {"model.py", "load.py"}
"""Model and tokenizer of the embedded policy, where any other has transformers' files."""


def files_of_the_walk() -> set[str]:
    """The names of the files in the walk's lines 2 to 8, from sampling to loss."""
    lines = re.findall(r"^([2-8])\. (`.*)$", (ROOT.parent / "docs" / "ARCHITECTURE.md").read_text(), re.MULTILINE)
    assert [number for number, _ in lines] == list("2345678")
    return {Path(name).name for _, line in lines for name in re.findall(r"`([\w/]+\.py)`", line)}


async def episodes_of(policy, tasks):
    stream = RolloutStream(lambda: RolloutEngine(policy, run_tool), asyncio.Lock())
    return await stream.sample([RolloutRequest(task, seed, 0) for task in tasks for seed in range(4)])


def test_an_episode_passes_the_files_that_the_architecture_names_at_most_18_and_no_other():
    policy, tasks = load_policy(), Zorplex(0).tasks(("compositional:easy",), 1)
    learner, buffer = Learner(policy), ReplayBuffer(groups_per_step=1, max_lag=0, total_groups=1)
    (number,) = buffer.admit(version=0, count=1)
    entered: set[str] = set()

    def note(frame, event, argument):
        file = frame.f_code.co_filename
        # What the learner checks after the loss is no part of the way to it.
        if event == "call" and file.startswith(f"{ROOT}/") and "losses.py" not in entered:
            entered.add(Path(file).name)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        episodes = asyncio.run(episodes_of(policy, tasks))
        for episode in episodes:
            episode.score = score_turns(episode.task, episode.sampled_text, episode.tool_calls, episode.finish)
        buffer.add(number, 0, episodes)
        ((_, group),) = buffer.take()
        (advantages,) = ADVANTAGES["grpo"]([[episode.scored.reward for episode in group]])
        learner.step(group, advantages)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert entered >= FOR_TRANSFORMERS
    assert entered - FOR_TRANSFORMERS | BETWEEN_PROCESSES == files_of_the_walk()
    assert len(files_of_the_walk()) <= 18
