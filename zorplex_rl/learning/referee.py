"""The referee of a speedrun: it starts an entry on secret seeds, and holds the clock and the scorer.

    secret seed ──► words split at random, tables, order of the neurons
         ├──► training tasks, disguised starting policy ──► the entry's process ──► trained weights
         └──► 400 held-out tasks, drawn when that process has ended ──────────────► right or wrong

The entry's process cannot misuse what is not in it. The held-out tables do not exist before it has
ended, and which half of the words is held out is drawn for each run. The starting policy computes
what the embedded one does, but its neurons have another order and other signs: a change of weights
that was found elsewhere does not fit as it is. Only numbers come back, in ``trained.safetensors``.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, median

import psutil
import torch
from safetensors.torch import load, save_file
from torch import Tensor

from zorplex_rl.errors import TrainingDiverged
from zorplex_rl.learning.entry import ENTRY, LOG, READY, START, TASKS, TRAINED
from zorplex_rl.learning.entry_rules import complaints
from zorplex_rl.learning.learner import largest_magnitude
from zorplex_rl.learning.reference_workload import reference_seconds
from zorplex_rl.policy.evaluate import evaluate, exact_interval
from zorplex_rl.policy.load import Policy, load_policy
from zorplex_rl.task.episode import Task
from zorplex_rl.task.specs import ZORPLEX_WORDS, Split, get_spec, run_tool

RULES = 2
"""Goes up with each change of what an entry may do or of how it is judged: cards begin anew."""
KIND, DIFFICULTY, TARGET, CONFIDENCE = "compositional", "hard", 0.90, 0.95
SEEDS, TRAINING_TASKS, HELD_OUT_TASKS, MOST_SECONDS = 8, 1_000, 400, 1_200.0
READY_SECONDS = 120.0
LARGEST_LOG, LARGEST_TRAINED = 2**20, 2**24
"""Bytes of what an entry leaves, or says; the policy's weights have 3.4 million."""
MARK = "ZORPLEX_SPEEDRUN"
"""Environment variable of the entry's processes: the folder of their run."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of an entry: seconds by the wall clock, and as multiples of the reference workload,
    right answers among ``tasks``, the entry's own curve, and which rule it broke."""

    seconds: float
    calibrated: float
    right: int
    tasks: int
    curve: list[dict[str, float]]
    refused: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What attempts come to: medians of their times, accuracy with its one-sided lower bound.
    ``is_final``: refused, or reached. Fewer than ``SEEDS`` attempts can only be refused."""

    refused: str | None
    seconds: float
    calibrated: float
    accuracy: float
    bound: float
    is_final: bool


def attempt(source: str, folder: Path, tasks: int = HELD_OUT_TASKS, draw: random.Random | None = None) -> Attempt:
    """Run the entry ``source`` once in the empty ``folder``, and judge what it has trained. Secrets
    come from the system, or from ``draw``."""
    draw, policy = draw or random.SystemRandom(), load_policy()
    seed, renamed = draw.getrandbits(62), dict(zip(ZORPLEX_WORDS, draw.sample(ZORPLEX_WORDS, 32), strict=True))
    start = disguised(policy.model.state_dict(), torch.Generator().manual_seed(draw.getrandbits(62)))
    if broken := next(complaints(source), None):
        return Attempt(0.0, 0.0, 0, tasks, [], broken)
    (folder / ENTRY).write_text(source)

    def hand_over() -> None:
        save_file(start, folder / START)
        training = draw_tasks(seed, "train", TRAINING_TASKS, renamed)
        (folder / TASKS).write_text(json.dumps([asdict(task) for task in training]))

    before = reference_seconds()
    place = own_place()
    seconds, broken = run_apart(folder, hand_over)
    if own_place() != place:
        broken = broken or "it changed the referee's processors or priority, which the reference workload inherits"
    # At once: what it may have left running gets no more time.
    trained, unread = left_in(folder / TRAINED, LARGEST_TRAINED)
    calibrated, right = seconds / fmean((before, reference_seconds())), 0
    if not (broken := broken or unread or take_over(policy, start, trained)):
        held_out = draw_tasks(draw.getrandbits(62), "held_out", tasks, renamed)
        try:
            report, _ = evaluate(policy, KIND, held_out, run_tool, seed=draw.getrandbits(20))
            right = round(report.accuracy * tasks)
        except TrainingDiverged:
            broken = "its trained weights give logits that are not finite numbers"
    curve, unread = read_log(folder / LOG)
    return Attempt(seconds, calibrated, right, tasks, curve, broken or unread)


def left_in(file: Path, most: int) -> tuple[bytes, str | None]:
    """Return what the entry has left in ``file``, nothing if that is not there, or why it cannot be
    read. An entry that could end the referee would have no card of its bad runs."""
    try:
        if not file.exists():
            return b"", None
        if not file.is_file():
            return b"", f"its {file.name} cannot be read"
        if file.stat().st_size > most:
            return b"", f"its {file.name} has more than {most} bytes"
        return file.read_bytes(), None
    except OSError:
        return b"", f"its {file.name} cannot be read"


def read_log(log: Path) -> tuple[list[dict[str, float]], str | None]:
    """Return what the entry says of its steps, or why that cannot be read."""
    written, unread = left_in(log, LARGEST_LOG)
    try:
        curve = [json.loads(line) for line in written.decode().splitlines()]
    except (ValueError, RecursionError):
        curve = [None]
    if unread or not all(isinstance(line, dict) and all(map(is_figure, line.values())) for line in curve):
        return [], unread or f"its {log.name} cannot be read"
    return curve, None


def is_figure(value: object) -> bool:
    """Return whether ``value`` is a number that a card can have. A card could not be written, or not
    be read again, with lists in lists in lists."""
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max


def verdict(attempts: Sequence[Attempt]) -> Verdict:
    """Return whether the target is reached: over all attempts by a one-sided bound, and so that no
    single attempt refutes it."""
    # One end of a two-sided interval of 2c − 1 is a one-sided bound of c.
    right, tasks = sum(a.right for a in attempts), sum(a.tasks for a in attempts)
    bound = exact_interval(right, tasks, 2 * CONFIDENCE - 1)[0]
    refused = next((a.refused for a in attempts if a.refused), None)
    for a in attempts:
        if not refused and exact_interval(a.right, a.tasks, 2 * CONFIDENCE - 1)[1] < TARGET:
            refused = f"on one seed {a.right} of {a.tasks} held-out answers are right, and {TARGET:.0%} are expected"
    if not refused and bound < TARGET and len(attempts) >= SEEDS:
        refused = (
            f"{right} of {tasks} held-out answers are right; that is not {TARGET:.0%} with {CONFIDENCE:.0%} confidence"
        )
    times = median(a.seconds for a in attempts), median(a.calibrated for a in attempts)
    return Verdict(refused, *times, right / tasks, bound, bool(refused) or len(attempts) >= SEEDS)


def draw_tasks(seed: int, split: Split, count: int, renamed: dict[str, str]) -> list[Task]:
    """Return ``count`` tasks of ``split`` with other words. ``renamed`` maps all words to each
    other, so it also says which of them are held out."""
    spec, word = get_spec(KIND, seed, DIFFICULTY), re.compile(rf"\b({'|'.join(ZORPLEX_WORDS)})\b")
    return [
        replace(
            task,
            question=word.sub(lambda found: renamed[found[0]], task.question),
            words=tuple(renamed[word] for word in task.words),
            table={renamed[word]: value for word, value in task.table.items()},
        )
        for task in (spec.task(index, split) for index in range(count))
    ]


def disguised(state: dict[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
    """Return the parameters of ``state``, a Qwen2 with tied embeddings, with the hidden dimensions
    in another order and with other signs, and the neurons of each MLP in another order. The logits
    stay the same but for rounding."""
    hidden = state["model.norm.weight"].numel()
    order, found = torch.randperm(hidden, generator=generator), dict[str, Tensor]()
    sign = torch.randint(2, (hidden,), generator=generator) * 2.0 - 1
    neurons = defaultdict[str, Tensor](
        lambda: torch.randperm(len(state["model.layers.0.mlp.up_proj.weight"]), generator=generator)
    )
    for name, values in ((name, values) for name, values in state.items() if name != "lm_head.weight"):
        block, part, _ = name.rsplit(".", 2)
        if part.endswith("norm"):
            values = values[order]
        elif part in ("o_proj", "down_proj"):
            values = values[order] * sign[:, None]
        elif name.endswith(".weight"):
            values = values[:, order] * sign
        if part == "down_proj":
            values = values[:, neurons[block]]
        elif part in ("gate_proj", "up_proj"):
            values = values[neurons[block]]
        found[name] = values.contiguous()
    return found


def run_apart(folder: Path, hand_over: Callable[[], None]) -> tuple[float, str | None]:
    """Run the entry in ``folder`` in a process of its own. Returns the seconds from the word *go*,
    given after ``hand_over``, to its end, and which rule it broke."""
    program = "import sys, pathlib; from zorplex_rl.learning.entry import main; main(pathlib.Path(sys.argv[1]))"
    # -P, and no path that begins in its folder: a file that the entry writes there is no module.
    paths = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    command = [sys.executable, "-B", "-P", "-c", program, str(folder)]
    alone = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", MARK: str(folder)}
    alone["PYTHONPATH"] = os.pathsep.join(paths)
    seconds, give_up_at = 0.0, time.monotonic() + READY_SECONDS
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        # Who has this file may only append to it, and so take nothing back.
        fcntl.fcntl(said, fcntl.F_SETFL, os.O_APPEND)
        child = subprocess.Popen(
            command, cwd=folder, env=alone, stdin=subprocess.PIPE, stdout=said, text=True, start_new_session=True
        )
        try:
            while child.poll() is None and not (folder / READY).exists():
                if time.monotonic() > give_up_at:
                    return 0.0, f"it was not ready after {READY_SECONDS:.0f} s"
                time.sleep(0.01)
            if child.poll() is None:
                hand_over()
                began = time.monotonic()
                child.communicate("go\n", MOST_SECONDS)
                seconds = time.monotonic() - began
        except subprocess.TimeoutExpired:
            return MOST_SECONDS, f"it was not done after {MOST_SECONDS:.0f} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            end_what_is_left(folder)
        if os.fstat(said.fileno()).st_size > LARGEST_LOG:
            return seconds, f"it printed more than {LARGEST_LOG} bytes"
        said.seek(0)
        broken = next((line[8:].strip() for line in said if line.startswith("refused ")), None)
    if child.returncode:
        broken = broken or f"it ended with exit code {child.returncode}"
    return seconds, broken or (None if seconds else "it ended before the word go")


def own_place() -> tuple[object, ...]:
    """Return how this process is scheduled, as far as the system says it. Linux lets any process of
    the same user change that, and the kernel's confinement of an entry does not cover it."""
    linux = [os.sched_getaffinity(0), os.sched_getscheduler(0)] if sys.platform == "linux" else []
    return os.getpriority(os.PRIO_PROCESS, 0), *linux


def end_what_is_left(folder: Path) -> None:
    """Kill the entry's processes that have left its group. Their environment tells."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == str(folder):
                process.kill()


def take_over(policy: Policy, start: dict[str, Tensor], written: bytes) -> str | None:
    """Load the trained weights, ``written`` as safetensors, into ``policy``. Returns which rule
    they break."""
    try:
        trained = load(written)
    except Exception:  # The library promises no narrower ones for a file that is no such.
        return f"it left no {TRAINED} that can be read"
    if {n: (t.shape, t.dtype) for n, t in trained.items()} != {n: (t.shape, t.dtype) for n, t in start.items()}:
        return "its trained weights have other names, shapes or types than those that it was given"
    if not math.isfinite(largest_magnitude(trained.values())):
        return "its trained weights are not finite numbers"
    policy.model.load_state_dict(trained, strict=False)
    return None
