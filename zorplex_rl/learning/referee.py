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

import ast
import contextlib
import fcntl
import importlib.util
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import fmean, median

import psutil
import torch
from safetensors.torch import load, save_file
from torch import Tensor

from zorplex_rl.errors import TrainingDiverged
from zorplex_rl.learning.entry import ENTRY, LOG, OFFERED, READY, START, TASKS, TRAINED
from zorplex_rl.learning.reference_workload import reference_seconds
from zorplex_rl.policy.evaluate import evaluate
from zorplex_rl.policy.family import BytePairs
from zorplex_rl.policy.intervals import exact_interval
from zorplex_rl.policy.load import Policy, largest_magnitude, load_policy
from zorplex_rl.task.episode import Task
from zorplex_rl.task.specs import ZORPLEX_WORDS, Split, get_spec, run_tool

KIND, DIFFICULTY, TARGET, CONFIDENCE = "compositional", "hard", 0.90, 0.95
SEEDS, TRAINING_TASKS, HELD_OUT_TASKS, MOST_SECONDS = 8, 1_000, 400, 1_200.0
READY_SECONDS = 120.0
LARGEST_FILE, LONGEST_TEXT, MOST_TEXT, MOST_NUMBERS = 16_384, 200, 4_000, 200
"""Bytes of an entry, characters of a text in it, of all texts, and numbers: too few for weights."""
LARGEST_LOG, LARGEST_TRAINED = 2**20, 2**24
"""Bytes of what an entry leaves; the policy's weights have 3.4 million."""
MARK = "ZORPLEX_SPEEDRUN"
"""Environment variable of the entry's processes: the folder of their run."""
MODULES = "__future__ collections dataclasses functools itertools math random re statistics torch".split()
PARTS = "autograd distributions fft func linalg nn optim special".split()
"""Of torch, what an entry may import."""
FORBIDDEN = (
    "open exec eval compile getattr setattr delattr globals locals vars input breakpoint from_file load hub jit ops "
    "serialization cpp_extension multiprocessing library package sys os modules distributed save load_file save_file "
    "load_library format format_map type make_dataclass update_wrapper wraps gi_frame gi_code cr_frame cr_code "
    "ag_frame ag_code tb_frame tb_next f_back f_globals f_locals f_builtins f_code save_pretrained benchmark "
    "tokenizer get_vocab collect_env profiler testing export onnx fx DataLoader np set_num_threads set_num_interop_threads"
).split()
"""Names that an entry must not use: they read files, run texts, read or make attributes by the text
of their names, use more than one thread, know all words of the tasks, or reach around what this program checks in another way."""
ELSEWHERE = sys.stdlib_module_names - {*MODULES, "copy", "select"}
"""Modules that hang on others, as ``dataclasses.inspect`` does. These two are a tensor's methods, or a list's."""
KEPT = {field.name for kind in (Task, Policy) for field in fields(kind)} - {"model"} | {*vars(BytePairs)}
"""Attributes that decide what the policy is asked: set in their class, a task that was given asks another question."""
LONGEST_NAME, MOST_BITS = 50, 64
"""Characters of a name, bits of a whole number: data can be in these, too."""


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
    if unread or not all(isinstance(line, dict) for line in curve):
        return [], unread or f"its {log.name} cannot be read"
    return curve, None


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


def complaints(source: str) -> Iterator[str]:
    """Yield what the rules forbid in an entry's ``source``, as far as a program sees it."""
    if len(source.encode()) > LARGEST_FILE:
        yield f"it has {len(source.encode())} bytes; at most {LARGEST_FILE} are allowed"
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # The last: too deep, and it has no words.
        yield f"it is no Python: {str(error) or 'it is nested too deeply'}"
        return
    notes = [node.value for node in nodes if isinstance(node, ast.Expr)]
    constants = [node.value for node in nodes if isinstance(node, ast.Constant) and node not in notes]
    if (numbers := sum(isinstance(value, int | float | complex) for value in constants)) > MOST_NUMBERS:
        yield f"it has {numbers} numbers; at most {MOST_NUMBERS} are allowed"
    for bits in (value.bit_length() for value in constants if isinstance(value, int)):
        if bits > MOST_BITS:
            yield f"it has a number of {bits} bits; at most {MOST_BITS} are allowed"
    letters = re.findall("[a-z]+", source.lower())
    yield from (f"it names {word!r}, a word of the tasks" for word in ZORPLEX_WORDS if word in letters)
    parts = [found for node in nodes if not isinstance(node, ast.Constant) for _, found in ast.iter_fields(node)]
    for name in (name for found in parts for name in (found if isinstance(found, list) else [found])):
        if isinstance(name, str) and len(name) > LONGEST_NAME:
            yield f"it has a name of {len(name)} characters; at most {LONGEST_NAME} are allowed"
        if isinstance(name, str) and name.startswith("__") and name != "__future__":
            yield f"it uses {name}"
    values = [node.value for node in nodes if isinstance(node, ast.Constant)]
    if (written := sum(len(value) for value in values if isinstance(value, str | bytes))) > MOST_TEXT:
        yield f"its texts have {written} characters; at most {MOST_TEXT} are allowed"
    for text in (value for value in constants if isinstance(value, str | bytes)):
        if len(text) > LONGEST_TEXT:
            yield f"it has a text of {len(text)} characters; at most {LONGEST_TEXT} are allowed"
        yield from (
            f"it names {word!r}, a word of the tasks" for word in ZORPLEX_WORDS if word in re.split(r"\W", str(text))
        )
    # The values of defaults are computed when a function is made.
    bodies: list[ast.AST] = [line for node in nodes if isinstance(node, ast.FunctionDef) for line in node.body]
    bodies += [node.body for node in nodes if isinstance(node, ast.Lambda)]
    inside = {id(part) for body in bodies for part in ast.walk(body)}
    for node in nodes:
        names = [node.id] if isinstance(node, ast.Name) else [node.attr] if isinstance(node, ast.Attribute) else []
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            names = [node.name]
            if node.decorator_list or getattr(node, "keywords", []):
                yield f"it has a decorator or a keyword at {node.name}, which run before the clock"
        elif isinstance(node, ast.Match):
            yield f"it uses match in line {node.lineno}, whose patterns read attributes"
        if isinstance(node, ast.ImportFrom) and node.module == "zorplex_rl.learning.entry":
            yield from (
                f"it imports {a.name}; {', '.join(OFFERED)} are offered" for a in node.names if a.name not in OFFERED
            )
        elif isinstance(node, ast.Import | ast.ImportFrom):
            modules = [node.module or "."] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
            yield from (f"it imports {module}" for module in modules if module.split(".")[0] not in MODULES)
            full = [f"{modules[0]}.{a.name}" for a in node.names] if isinstance(node, ast.ImportFrom) else modules
            inner = [module.split(".")[:2] for module in full if module.startswith("torch.")]
            yield from (f"it imports torch.{part}" for _, part in inner if part not in PARTS and is_module(part))
            names = [part for a in node.names for part in a.name.split(".")] if modules != ["__future__"] else []
        elif isinstance(node, ast.Call | ast.For | ast.While | ast.comprehension) and id(node) not in inside:
            yield f"it computes in line {getattr(node, 'lineno', '?')}, outside of its functions, before the clock runs"
        if isinstance(node, ast.Attribute | ast.Import | ast.ImportFrom):
            yield from (f"it uses {name}, a module" for name in names if name in ELSEWHERE)
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load) and node.attr in KEPT:
            yield f"it sets {node.attr}, which decides what the policy is asked"
        yield from (f"it uses {name}" for name in names if name in FORBIDDEN or name.startswith("_"))


def is_module(part: str) -> bool:
    """Return whether ``part`` of torch is a module."""
    return importlib.util.find_spec(f"torch.{part}") is not None


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
    # -P: a file that the entry writes into its folder is no module.
    command = [sys.executable, "-B", "-P", "-c", program, str(folder)]
    alone = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", MARK: str(folder)}
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
