"""Small real runs for the tests of the system: in this process, or through the command line in a
process tree of its own."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from zorplex_rl.config import Config, ServicesConfig, flag
from zorplex_rl.learning.replay_buffer import Counters
from zorplex_rl.run.folder import RunFolder

SMALL = Config(
    task="simple", max_lag=0, steps=4, prompts_per_step=2, group_size=4, eval_tasks=2, eval_every=100, checkpoint_every=2,
    max_tokens=64, device="cpu", dtype="float32", threads=1, services=ServicesConfig(spares=0),
)  # fmt: skip
LAGGING = SMALL.changed(
    max_lag=3, steps=8, generators=2, on_update="continue", tool_latency=0.2, transport="message", seed=1,
    checkpoint_every=8,
)  # fmt: skip
MARK = "ZORPLEX_TEST_RUN"


def train_here(config: Config, path: Path, **options) -> RunFolder:
    """A whole run, controlled by this process."""
    return train_on(config, RunFolder.create(path, config), **options)


def train_on(config: Config, folder: RunFolder, draws: bool = False, **options) -> RunFolder:
    """The run of ``folder`` to its end; ``draws`` its curve, which takes half a second."""
    from zorplex_rl.run.plots import learning_curve
    from zorplex_rl.training.loop import run_training

    draw = {"draw": lambda: folder.save_curve(learning_curve(folder.metrics()))} if draws else {}
    asyncio.run(run_training(config, folder, **draw, **options))
    return folder


def undisturbed_weights(config: Config) -> dict[str, torch.Tensor]:
    """The parameters in which a synchronous run of ``config`` ends that nothing disturbs, computed in
    this process alone."""
    from zorplex_rl.policy.load import load_policy
    from zorplex_rl.simulation.execute import Execution, Schedule, Segment
    from zorplex_rl.task.own_task import EnvironmentSource

    name, size, events, batches = "generator_0", config.prompts_per_step, [], {}
    for step in range(config.steps):
        groups = [*range(step * size, (step + 1) * size)]
        batches[step + 1] = [(group, name) for group in groups]
        events += [(None, "version", step), (None, "submit", groups)]
    schedule = Schedule([Segment(config.steps, {name: events}, batches)], evaluations=[])
    execution = Execution(
        config, EnvironmentSource.of(config), schedule, load_policy(config.policy)
    )
    assert len(list(execution)) == config.steps
    return {
        key: weight.detach() for key, weight in execution.learner.policy.model.named_parameters()
    }


def final_weights(path: Path) -> dict[str, torch.Tensor]:
    """The parameters that a finished run has left behind."""
    return load_file(path / "policy" / "model.safetensors")


def same_weights(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Whether both hold the same tensors, bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def state_at(step: int, config: Config = SMALL, **changed) -> dict:
    """What the controller writes into a checkpoint: the state of a run of ``config`` that has done
    ``step`` steps."""
    groups = step * config.prompts_per_step
    buffer = {
        "version": step,
        "next_group": groups,
        "again": [],
        "counters": asdict(Counters(trained=groups)),
    }
    written = {"metrics.jsonl": 0, "episodes.jsonl": 0}
    return {
        "step": step, "episodes": 64 * step, "next_evaluation": 20, "replay_buffer": buffer, "seconds": 1.5, "timeline_seconds": 1.5,
        "written": written,
    } | changed  # fmt: skip


def counters(folder: RunFolder) -> dict[str, int]:
    """What has happened to groups, as the last checkpoint counted it."""
    return folder.controller_state(folder.newest_checkpoint())["replay_buffer"]["counters"]


def as_flags(config: Config) -> list[str]:
    """The command line that asks for ``config``."""
    flags = []
    for name, value in config.settings().items():
        if isinstance(value, bool):
            flags += [flag(name) if value else flag(f"no_{name}")]
        else:
            flags += [flag(name), str(value)]
    return flags


@dataclass(slots=True)
class Command:
    """A running ``zorplex-rl`` in a session of its own; ``mark`` is in the environment of every
    process that it has started."""

    process: subprocess.Popen
    mark: str

    def members(self) -> list[int]:
        """The ids of all its processes that are alive."""
        found = []
        for environ in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if self.mark.encode() in environ.read_bytes():
                    found.append(int(environ.parent.name))
        return [pid for pid in found if is_alive(pid)]

    def finish(self, timeout: float = 300) -> tuple[int, str]:
        """Wait for its end; (exit code, everything that it printed)."""
        output, _ = self.process.communicate(timeout=timeout)
        return self.process.returncode, output

    def all_gone(self, timeout: float = 60) -> bool:
        """Whether every process ends within ``timeout`` seconds."""
        return eventually(lambda: not self.members(), timeout, every=0.1)


PROGRAM = (sys.executable, "-m", "zorplex_rl")


@contextmanager
def command(*arguments: str, program: Sequence[str] = PROGRAM, **streams) -> Iterator[Command]:
    """Run ``zorplex-rl`` with ``arguments``; whatever is left of it afterwards is killed.
    ``streams`` go to Popen."""
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [*program, *arguments],
        env=os.environ | {MARK: mark},
        **{"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True} | streams,
        start_new_session=True,
    )
    running = Command(process, mark)
    try:
        yield running
    finally:
        for pid in running.members():
            os.kill(pid, 9)
        process.wait()


def eventually(condition: Callable[[], bool], timeout: float = 180, every: float = 0.02) -> bool:
    """Whether ``condition`` comes true within ``timeout`` seconds; it is looked at ``every`` so many."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(every)
    return condition()


async def until(condition: Callable[[], bool], timeout: float = 120) -> None:
    """Wait until ``condition`` comes true; fails after ``timeout`` seconds."""
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def rows(path: Path, event: str) -> list[dict]:
    """The rows of ``metrics.jsonl`` about ``event``, as far as they are written."""
    file = path / "metrics.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return [row for row in map(json.loads, lines) if row["event"] == event]
