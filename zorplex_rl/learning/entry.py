"""A speedrun's entry, and the process that runs it: ``zorplex-rl speedrun ENTRY.py``.

    referee                                         this process
       │ ◄────────────────────────────── ready ──   the package is imported, nothing of the entry has run
       │  start.safetensors, tasks.json, go ─────►  Entry.train: sample, compare, step, until it is good enough
       │ ◄──────── trained.safetensors, and ends    (log.jsonl: what it says of its steps)
       ▼
    the clock, which is the referee's, runs from *go* to the end of this process

An entry is one file with one class, a subclass of ``Entry``: it changes some of the settings, and
replaces any of the methods. The loop is that of ``train_simple.py``. With two processes each
samples half of the prompts, and their gradients are added up in shared memory.
"""

from __future__ import annotations

import ast
import json
import os
import sys
import sysconfig
import time
import traceback
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from pathlib import Path
from statistics import fmean
from typing import Any, NoReturn

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from zorplex_rl.learning.advantages import group_relative
from zorplex_rl.learning.batches import collate
from zorplex_rl.learning.landlock import confine
from zorplex_rl.learning.learner import token_logprobs
from zorplex_rl.learning.schedule import schedule
from zorplex_rl.policy.load import EMBEDDED_PATH, Policy, load_policy
from zorplex_rl.policy.rollout import RolloutRequest, Sampling, rollout
from zorplex_rl.task.episode import Episode, Score, Task
from zorplex_rl.task.rewards import score
from zorplex_rl.task.specs import get_spec, run_tool

ENTRY, READY, START, TASKS = "entry.py", "ready", "start.safetensors", "tasks.json"
TRAINED, LOG = "trained.safetensors", "log.jsonl"
OFFERED = "Entry Run Policy Episode Task Sampling group_relative collate schedule token_logprobs".split()
"""What an entry may import from this file."""
FOREIGN = (
    "socket. subprocess. os.exec os.fork os.kill os.posix_spawn os.spawn os.system pty. ctypes. "
    "os.link os.symlink os.rename os.remove os.rmdir os.truncate os.chmod os.chown"
).split()
PROCESSES = (1, 2)

GIVEN: dict[int, str] = {}
"""The identity of each task that the referee gave, and what its tools know. Not in a ``Run``, of
which an entry can make others; nor by equality, which a task of the entry's own can pretend."""


class Refused(Exception):
    """What an entry does that the rules forbid; the message says what."""


class Run:
    """What an entry is given: a policy to train in place, tasks, tools, and its other processes.
    ``step`` counts the steps. Each of ``processes`` has its own ``rank`` and does the same."""

    def __init__(
        self, policy: Policy, folder: Path, tasks: list[Task], rank: int, table: Tensor, barrier: Barrier | None
    ) -> None:
        self.policy, self.rank, self.processes, self.step = policy, rank, len(table), 0
        self._folder, self._table, self._barrier, self._began = folder, table, barrier, time.monotonic()
        self._tasks, self._drawn = tasks, 0

    def draw(self, prompts: int) -> list[Task]:
        """Return this process's share of the next ``prompts`` training tasks, from the first again
        after the last."""
        numbers = range(self._drawn + self.rank, self._drawn + prompts, self.processes)
        self._drawn += prompts
        return [self._tasks[number % len(self._tasks)] for number in numbers]

    def sample(self, tasks: Sequence[Task], group_size: int, sampling: Sampling = Sampling()) -> list[list[Episode]]:
        """Return ``group_size`` scored episodes for each of ``tasks``, which must be given ones, not copies."""
        tasks = list(tasks)
        for task in tasks:
            if GIVEN.get(id(task)) != secrets_of(task):
                refuse(f"it sampled {str(task.question)!r}, which is none of the training tasks that it was given")
        first = (self.step * self.processes + self.rank) << 12
        copies = [task for task in tasks for _ in range(group_size)]
        episodes = rollout(
            self.policy, [RolloutRequest(t, first + i) for i, t in enumerate(copies)], run_tool, sampling
        )
        for episode in episodes:
            episode.score = score(episode)
        return [episodes[i : i + group_size] for i in range(0, len(episodes), group_size)]

    def add_up(self, *numbers: float) -> list[float]:
        """Return the sums of ``numbers`` over all processes, and add up their gradients in place."""
        if self._barrier is None:
            return list(numbers)
        parameters = [p for p in self.policy.model.parameters() if p.requires_grad]
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        own = torch.cat([torch.tensor(numbers), *(grad.flatten() for grad in grads)])
        self._table[self.rank, : len(own)] = own
        self._barrier.wait(60)
        total = self._table[:, : len(own)].sum(0)
        self._barrier.wait(60)
        sums, *summed = total.split([len(numbers), *(p.numel() for p in parameters)])
        for parameter, grad in zip(parameters, summed, strict=True):
            parameter.grad = grad.view_as(parameter)
        return sums.tolist()

    def log(self, **figures: float) -> None:
        """Note figures of a step. The card shows them as the entry's own; they decide nothing."""
        if self.rank == 0:
            with (self._folder / LOG).open("a") as lines:
                line = {"step": self.step, "seconds": time.monotonic() - self._began} | figures
                lines.write(json.dumps(line) + "\n")


class Entry:
    """What ``zorplex-rl train`` does with default settings, at lag 0 and in one process."""

    processes = 1
    prompts, group_size = 8, 8
    learning_rate, warmup_steps, decay_steps, most_steps, max_grad_norm = 2e-4, 5, 120, 120, 1.0
    enough, window = 2.0, 8
    """It stops before ``most_steps`` when this share of the training episodes of ``window`` steps was right."""

    def optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer. Its groups may have a ``scale``, their share of the rate."""
        return torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.0)

    def rate(self, step: int) -> float:
        """Return the learning rate's share at ``step``, counted from 0."""
        return schedule(step, self.warmup_steps, self.decay_steps)

    def advantages(self, group: Sequence[Episode]) -> Sequence[Any]:
        """Return a number for each episode of ``group``, or a list with one for each of its tokens."""
        return group_relative([[episode.scored.reward for episode in group]])[0]

    def loss(self, logp: Tensor, behaviour: Tensor, advantage: Tensor, mask: Tensor) -> Tensor:
        """Return the sum of the loss over tokens [B, T]. ``update`` divides by their number."""
        return -(advantage * logp * mask).sum()

    def is_done(self, right: Sequence[float]) -> bool:
        """Whether to stop; ``right`` has the share of right training episodes of each step."""
        return len(right) >= self.window and fmean(right[-self.window :]) >= self.enough

    def train(self, run: Run) -> None:
        """Train ``run.policy`` in place."""
        model, right, optimizer = run.policy.model, list[float](), self.optimizer(run.policy.model)
        while run.step < self.most_steps and not self.is_done(right):
            groups = run.sample(run.draw(self.prompts), self.group_size)
            found = sum(episode.scored.outcome == "success" for group in groups for episode in group)
            tokens, correct = run.add_up(self.accumulate(run.policy, groups), found)
            self.update(optimizer, model, tokens, run.step)
            right.append(correct / (self.prompts * self.group_size))
            run.step += 1
            run.log(accuracy=right[-1])

    def accumulate(self, policy: Policy, groups: Sequence[Sequence[Episode]]) -> float:
        """Compute the gradient of the loss of ``groups``, 0 where they teach nothing. Returns how many
        of its tokens were sampled."""
        policy.model.zero_grad()
        rows = [row for group in groups for row in zip(group, self.advantages(group), strict=True)]
        spread = [(e, a if isinstance(a, list) else [a] * len(e.token_ids)) for e, a in rows]
        teaching = [(episode, values) for episode, values in spread if any(values)]
        for batch in collate([episode for episode, _ in teaching], [1.0] * len(teaching), 8192):
            logp, _ = token_logprobs(policy, batch)
            values = [torch.tensor(teaching[i][1]) for i in batch.episodes]
            advantage = torch.nn.utils.rnn.pad_sequence(values, batch_first=True)
            self.loss(logp, batch.behaviour_logp, advantage, batch.mask).backward()
        for parameter in policy.model.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return float(sum(sum(episode.sampled) for episode, _ in rows))

    def update(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module, tokens: float, step: int) -> None:
        """Divide the gradients by ``tokens``, clip them, and take the optimizer's step."""
        for grad in (p.grad for p in model.parameters() if p.grad is not None):
            grad /= tokens
        torch.nn.utils.clip_grad_norm_(model.parameters(), self.max_grad_norm)
        for group in optimizer.param_groups:
            group["lr"] = self.learning_rate * group.get("scale", 1.0) * self.rate(step)
        optimizer.step()


def tell(why: str) -> None:
    """Write to the referee why the entry is refused. Ends the process if that cannot be written: an
    entry could fill the disk first."""
    try:
        os.write(1, f"\nrefused {why}\n".encode(errors="replace"))
    except OSError:
        os._exit(1)


def refuse(why: str) -> NoReturn:
    """Tell the referee that a rule was broken, which nobody can take back, and raise Refused."""
    tell(why)
    raise Refused(why)


def tell_of(error: BaseException) -> None:
    """Tell the referee, in one sentence, what ended the entry, if it does not know."""
    if not isinstance(error, Refused):
        tell(f"it raised {type(error).__name__}: {' '.join(str(error).split())[:200]}")


def given_tasks(folder: Path) -> list[Task]:
    """Return the tasks that the referee has written, and note that they may be sampled."""
    rows = json.loads((folder / TASKS).read_text())
    tasks = [Task(**row | {"words": tuple(row["words"])}) for row in rows]
    GIVEN.update({id(task): secrets_of(task) for task in tasks})
    return tasks


def secrets_of(task: Task) -> str:
    """Return what can be changed in ``task``, though it is frozen."""
    return json.dumps([task.table, task.keys, task.redirects], default=repr)


def guard(folder: Path) -> None:
    """From now on refuse to this process, for good: files outside ``folder``, except to read Python's
    libraries; the embedded weights, the network, other programs. What torch opens by itself, in C++,
    Python does not see, but Linux does (``landlock.py``)."""
    libraries = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")]
    libraries += [EMBEDDED_PATH.parents[1].resolve()]
    own, hidden = folder.resolve(), EMBEDDED_PATH.resolve()
    confine(own, libraries, hidden)

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event.startswith(tuple(FOREIGN)):
            refuse(f"it called {event}")
        if event == "open" and not isinstance(arguments[0], int):
            # An object may say another path here than where the file is opened.
            if type(arguments[0]) not in (str, bytes):
                refuse("it opened a file by an object that is no text")
            path = Path(os.fsdecode(arguments[0])).resolve()
            writes = arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            readable = not path.is_relative_to(hidden) and any(map(path.is_relative_to, libraries))
            if not path.is_relative_to(own) and (writes or not readable):
                refuse(f"it opened {path.name!r}, which is not in its folder")

    sys.addaudithook(watch)


def main(folder: Path) -> None:
    """Run the entry in ``folder`` when the referee says so. Ends the process."""
    torch.set_num_threads(1)
    policy = load_policy()
    warm_up(policy)
    rank, barrier = 0, None
    try:
        source = (folder / ENTRY).read_text()
        processes = processes_of(source)
        table = torch.zeros(processes, 8 + sum(p.numel() for p in policy.model.parameters())).share_memory_()
        if processes > 1:
            barrier = get_context("fork").Barrier(processes)
            rank = next((other for other in range(1, processes) if os.fork() == 0), 0)
        guard(folder)
        if rank == 0:
            (folder / READY).touch()
            if sys.stdin.readline() != "go\n":
                os._exit(1)
        if barrier:
            barrier.wait()
        # Nothing of the file has run yet: there are ways to compute while a class is made or called.
        entry = entry_of(source, processes)
        policy.model.load_state_dict(load_file(folder / START), strict=False)
        entry.train(Run(policy, folder, given_tasks(folder), rank, table, barrier))
        if rank == 0:
            if barrier and os.waitpid(-1, os.WNOHANG)[1]:
                tell("one of its processes has ended before the other")
                os._exit(1)
            save_file({n: p.detach() for n, p in policy.model.named_parameters()}, folder / TRAINED)
    except BaseException as error:
        if not isinstance(error, Refused):
            traceback.print_exc()
        tell_of(error)
        if barrier:
            barrier.abort()
        os._exit(1)
    os._exit(0)


def entry_of(source: str, processes: int) -> Entry:
    """Run ``source`` and return its entry, of the class that extends ``Entry`` furthest."""
    offered: dict[str, Any] = {"__name__": "entry"}
    exec(source, offered)
    kinds = [kind for kind in offered.values() if isinstance(kind, type) and issubclass(kind, Entry)]
    entry: Entry = max(kinds, key=lambda kind: len(kind.__mro__), default=Entry)()
    if type(entry) is Entry:
        refuse("it has no class that extends Entry")
    if entry.processes != processes:
        refuse(f"its processes are {entry.processes}; give 1 or 2, as a number in its class")
    return entry


def processes_of(source: str) -> int:
    """Return how many processes the entry ``source`` wants, without running it."""
    found: object = Entry.processes
    for node in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assign)):
        for target in node.targets:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=False))
            for name, value in pairs:
                if isinstance(name, ast.Name) and name.id == "processes":
                    found = value.value if isinstance(value, ast.Constant) else ast.unparse(value)
    if not isinstance(found, int) or found not in PROCESSES:
        refuse(f"its processes are {found}; give 1 or 2, as a number in its class")
    return found


def warm_up(policy: Policy) -> None:
    """Take a step, which the start will overwrite: what libraries load late, they load now."""
    entry, task = Entry(), get_spec("simple").task(0)
    episodes = rollout(policy, [RolloutRequest(task, seed) for seed in range(2)], run_tool)
    for reward, episode in enumerate(episodes):
        episode.score = Score("success", 0, reward, 0, 0)
    entry.update(entry.optimizer(policy.model), policy.model, entry.accumulate(policy, [episodes]), 0)
