"""Say where the seconds of a speedrun's entry go, and how close each part is to what this machine
can do.

    python benchmarks/speedrun_budget.py                              the best entry, ``speedrun/entries/fewer_steps.py``
    python benchmarks/speedrun_budget.py speedrun/entries/rate.py     another one

One process of the entry is measured, with its share of the prompts, on one thread: the other does
the same on the other core. A step has three parts, sampling, gradient and update. Every second step
is timed as it is. In the others every operation of PyTorch is noted, with the shapes of its tensors.

    bound of one operation   the largest of three times, each measured here:
        product     its matrix product alone, at its shape, into a result that is there
        memory      the bytes that it must touch, each once, at the speed of a sum over an array of that size
        call        what PyTorch needs to call anything at all: an addition of one number, in place

The bound of a part is the sum over its operations. It counts no Python between them, no text, no
tool and no draw of a token, so a part that makes the same calls cannot be faster. Fewer or
larger calls can: that is what the column "calls" is for.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
import tyro
from log import Report, append_report, print_report
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from zorplex_rl.learning.entry import TASKS, Entry, Run
from zorplex_rl.learning.referee import DIFFICULTY, KIND
from zorplex_rl.policy.load import load_policy
from zorplex_rl.task.specs import get_spec

ASKED = "Where do the seconds of the best entry go, and how close are sampling and training to the bound of their operations?"
EXPECTED = "Sampling and training within 1.3 of the bound at these shapes."
PARTS = ("sampling", "gradient", "update")
VIEWS = (
    "view reshape transpose t expand slice select unsqueeze squeeze permute detach detach_ alias as_strided split unbind chunk "
    "split_with_sizes lift_fresh resolve_conj resolve_neg"
).split()
PICKING = "index index_put index_put_ embedding gather copy_".split()
"""Of the first tensor that these are given, only a part is read or written."""
Shape = tuple[int, ...]
Calls = Counter[tuple[str, tuple[Shape, ...], int]]
"""How often an operation was called: its name, the shapes of its tensors, and bytes in and out."""


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure."""

    entry: tyro.conf.Positional[Path] = Path(__file__).parents[1] / "speedrun/entries/fewer_steps.py"
    """The entry's file."""
    steps: int = 12
    """Steps; the first two do not count."""
    log: bool = True
    """Append the result to LOG.md."""


class Noted(TorchDispatchMode):
    """While it is entered, count every operation by its name and the shapes of its tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Calls = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        name = func.overloadpacket.__name__
        if name not in VIEWS:
            touched = {id(tensor): tensor for tensor in (*given[name in PICKING :], *made)}
            if name in PICKING:
                touched.pop(id(given[0]), None)
            moved = sum(tensor.nelement() * tensor.element_size() for tensor in touched.values())
            self.calls[name, tuple(tuple(t.shape) for t in given), moved] += 1
        return result


def seconds_of(call: Callable[[], object], least: float = 0.02) -> float:
    """Return the seconds of ``call``: the least of three medians, after a warm-up."""
    call()
    began, number = time.perf_counter(), 0
    while number < 3 or time.perf_counter() - began < least / 4:
        call()
        number += 1
    medians = []
    for _ in range(3):
        times = []
        for _ in range(number):
            began = time.perf_counter()
            call()
            times.append(time.perf_counter() - began)
        medians.append(median(times))
    return min(medians)


@cache
def product_seconds(name: str, shapes: tuple[Shape, ...]) -> float:
    """Return the seconds of the matrix products of an operation, 0 for one that has none."""
    if name in ("mm", "addmm", "bmm", "baddbmm", "matmul", "linear"):
        first = name in ("addmm", "baddbmm")
        left, right = (torch.rand(shape) for shape in shapes[first : 2 + first])
        right = right.t() if name == "linear" else right
        left = left.flatten(0, -2) if right.dim() == 2 else left.flatten(0, -3)
        right = right.flatten(0, -3) if right.dim() > 2 else right
        result = left @ right
        multiply = torch.bmm if left.dim() == 3 else torch.mm
        return seconds_of(lambda: multiply(left, right, out=result))
    if name.removesuffix("_backward") in (
        "scaled_dot_product_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
    ):
        # Queries, keys and values follow the gradient, where there is one. Two products, and five on the way back.
        backward = name.endswith("backward")
        query, _, value = (torch.rand(shape).flatten(0, 1) for shape in shapes[backward : 3 + backward])
        value = value.repeat_interleave(len(query) // len(value), 0)
        scores = torch.rand(len(query), query.shape[1], value.shape[1])
        one = seconds_of(lambda: torch.bmm(scores, value))
        return one * (5 if backward else 2)
    return 0.0


@cache
def memory_seconds(moved: int) -> float:
    """Return the seconds in which ``moved`` bytes are read once."""
    size = 1 << max(10, (moved - 1).bit_length())
    array = torch.rand(size // 4)
    return seconds_of(array.sum) * moved / size if moved > 4096 else 0.0


@cache
def call_seconds() -> float:
    """Return the seconds of the least call: an addition to one number in place."""
    number = torch.zeros(1)
    with torch.inference_mode():
        return seconds_of(lambda: number.add_(1.0))


def bound(calls: Calls) -> dict[str, float]:
    """Return the bound of ``calls`` in seconds, by what it is that binds: product, memory, call."""
    found = dict.fromkeys(("product", "memory", "call"), 0.0)
    for (name, shapes, moved), count in calls.items():
        bounds = {"product": product_seconds(name, shapes), "memory": memory_seconds(moved), "call": call_seconds()}
        binding = max(bounds, key=lambda kind: bounds[kind])
        found[binding] += count * bounds[binding]
    return found


def load_entry(path: Path) -> Entry:
    """Return the entry in the file ``path``. It is one of ours: nothing is checked."""
    offered: dict[str, Any] = {"__name__": "entry"}
    exec(path.read_text(), offered)
    kinds = [kind for kind in offered.values() if isinstance(kind, type) and issubclass(kind, Entry)]
    return max(kinds, key=lambda kind: len(kind.__mro__))()


def measure(options: Options) -> tuple[dict[str, list[float]], dict[str, Calls]]:
    """Return the seconds of each part in the timed steps, and the calls of each in the noted ones."""
    entry, policy, spec = load_entry(options.entry), load_policy(), get_spec(KIND, 0, DIFFICULTY)
    seconds = {part: list[float]() for part in PARTS}
    calls: dict[str, Calls] = {part: Counter() for part in PARTS}

    def part(name: str, work: Callable[[], Any]) -> Any:
        if run.step % 2:
            with Noted() as noted:
                result = work()
            calls[name] += noted.calls
        else:
            began = time.perf_counter()
            result = work()
            seconds[name].append(time.perf_counter() - began)
        return result

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / TASKS).write_text(json.dumps([asdict(spec.task(index, "train")) for index in range(1000)]))
        run, optimizer = Run(policy, folder, 0, torch.zeros(1, 8), None), entry.optimizer(policy.model)
        for step in range(2 * options.steps):
            run.step, tasks = step, run.draw(entry.prompts // entry.processes)
            groups = part("sampling", lambda: run.sample(tasks, entry.group_size))  # noqa: B023, called at once
            tokens = part("gradient", lambda: entry.accumulate(policy, groups))  # noqa: B023
            part("update", lambda: entry.update(optimizer, policy.model, tokens, step))  # noqa: B023
    return seconds, calls


def tabulate(seconds: dict[str, list[float]], calls: dict[str, Calls], steps: int) -> Report:
    """Return the table of parts: milliseconds a step, the bound, and what binds."""
    cells = list[list[str]]()
    for part in PARTS:
        taken, found = 1e3 * mean(seconds[part]), {k: 1e3 * s / steps for k, s in bound(calls[part]).items()}
        least, count = sum(found.values()), calls[part].total() / steps
        shares = ", ".join(f"{kind} {share / least:.0%}" for kind, share in found.items())
        cells.append([part, f"{taken:.0f}", f"{least:.0f}", f"{taken / least:.2f}", f"{count:,.0f}", shares])
    return Report(
        "One step of one process",
        ["part", "ms", "bound, ms", "time ÷ bound", "calls", "of the bound"],
        cells,
        [f"A call at the least: {1e6 * call_seconds():.2f} µs."],
    )


def main(options: Options) -> None:
    torch.set_num_threads(1)
    seconds, calls = measure(options)
    report = tabulate(seconds, calls, options.steps)
    print_report(report)
    if options.log:
        settings = {"entry": options.entry.stem, "steps": options.steps}
        append_report("benchmarks/speedrun_budget.py", ASKED, EXPECTED, settings, [report])


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
