"""Serve notebook 10: processes that are measured, its slider, and the checks.

measured_cases(shape, cases)               real trainers and generators, each in its own process
roofline()                                 operations and bytes of one core, as a folded text
allocation(best_split, …)                  seconds of every split of some GPUs, for the slider
check_…(attempt, solution)                 the checks of the page's exercises
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from zorplex_rl.course.lesson import exercise
from zorplex_rl.course.nb10_gpus import H100, MODELS, Side, Split, splits
from zorplex_rl.course.widgets.what_if import Answer, Bar, Panel
from zorplex_rl.policy.load import EMBEDDED_PATH
from zorplex_rl.sizing.measured import Measured, measure
from zorplex_rl.sizing.memory import CACHE_STEP, BatchShape, Workload
from zorplex_rl.sizing.model_shape import ModelShape

MOST_BYTES = 2**30
"""Of the matrix whose reading is measured, however large the last cache is."""


def measured_cases(shape: ModelShape, cases: Sequence[tuple[str, Workload]]) -> list[Measured]:
    """Measure a model of ``shape`` in each of ``cases``, in its own process."""
    with tempfile.TemporaryDirectory() as folder:
        make_model(shape, Path(folder))
        return measure(cases, folder)


def make_model(shape: ModelShape, folder: Path, seed: int = 0) -> None:
    """Write a Qwen2 of ``shape``, random float32, and the embedded tokenizer to ``folder``."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(seed)
    sizes = Qwen2Config(
        num_hidden_layers=shape.layers,
        hidden_size=shape.hidden,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        intermediate_size=shape.intermediate,
        vocab_size=shape.vocabulary,
        tie_word_embeddings=shape.tied,
        max_position_embeddings=32768,
        **({"head_dim": shape.head_size} if shape.head_size else {}),
    )
    Qwen2ForCausalLM(sizes).save_pretrained(folder)
    for file in EMBEDDED_PATH.iterdir():
        if file.name.startswith(("tokenizer", "chat", "generation")):
            shutil.copy(file, folder)


def last_cache() -> int:
    """Return the bytes of the largest cache of a core, 0 where the system does not say."""
    sizes = [path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    units = {"K": 2**10, "M": 2**20}
    return max((int(size[:-1]) * units[size[-1]] for size in sizes if size[-1:] in units), default=0)


def roofline(rows: Sequence[int] = (1, 4, 16, 64)) -> str:
    """Measure reading and computing on one core, beyond the last cache. Returns Markdown."""
    import torch

    def median_seconds(run: Callable[[], object], times: int = 3) -> float:
        found = []
        for _ in range(times):
            began = time.process_time()
            run()
            found.append(time.process_time() - began)
        return sorted(found)[times // 2]

    side = matrix_side(cache := last_cache())
    matrix, states = torch.ones(side, side), torch.ones(max(rows), side)
    square = torch.ones(1024, 1024)
    peak = 2 * 1024**3 / median_seconds(lambda: square @ square, 9)
    bandwidth = matrix.nbytes / median_seconds(matrix.sum)
    taken = {count: median_seconds(partial(torch.matmul, states[:count], matrix)) for count in rows}
    reading, computing = matrix.nbytes / bandwidth, 2 * side**2 / peak
    balance = reading / computing
    few = rows[0]
    many = rows[2]
    expected = max(reading, many * computing) / max(reading, few * computing)
    table = "\n".join(
        f"| {count} | {1e3 * seconds:.0f} | {1e3 * reading:.0f} | {1e3 * count * computing:.0f} |"
        for count, seconds in taken.items()
    )
    return f"""
Measured on one core: {peak / 1e9:.0f} billion operations a second in a product that fits a cache, and {bandwidth / 1e9:.1f} GB/s in
reading a matrix of {matrix.nbytes / 1e6:,.0f} MB (the last cache has {cache / 1e6:,.0f} MB). In float32 the two take equally long at
{balance:.0f} rows. If nothing else counted, {many} rows would take {expected:.1f} times as long as {few}. They took
{taken[many] / taken[few]:.1f} times as long: between the ends of the table a real product is slower than either limit alone allows.
The limits say how fast it can be at best.

| rows | measured, ms | reading alone | computing alone |
|---|---|---|---|
{table}

An [H100]({H100.source}) has {H100.operations / 1e12:.0f} trillion operations and {H100.bandwidth / 1e12:.2f} TB a second, by its data sheet.
In 16 bits that is a balance at {H100.operations / H100.bandwidth:.0f} rows. So a generator wants slots, and slots want memory.
"""


def matrix_side(cache: int) -> int:
    """Return the side of a float32 matrix of four caches: 128 MB to ``MOST_BYTES``."""
    return int((min(MOST_BYTES, max(4 * cache, 2**27)) / 4) ** 0.5)


def job(answer: int, prompt: int = 512, group: int = 16) -> Workload:
    """Return a step of 1,024 episodes in 16 bits."""
    low = "bfloat16"
    return Workload(prompt, answer, 1024 // group, group, evaluated=0, dtype=low, transfer=low)


def best_of(best_split: Callable[..., int | None], found: Sequence[Split]) -> Split | None:
    """Return the one of ``found``, all splits, that the page's ``best_split`` chooses."""

    def seconds(side: Side) -> float:
        return side.seconds if side.fits else float("inf")

    chosen = best_split(
        len(found) + 1,
        lambda parts: seconds(found[parts - 1].sampling),
        lambda parts: seconds(found[len(found) - parts].training),
    )
    return None if chosen is None else found[chosen - 1]


def share(best_split: Callable[..., int | None], model: str, answer: int, gpus: int = 64) -> float | None:
    """Return the best share of the GPUs for generators, or None where nothing fits."""
    best = best_of(best_split, splits(MODELS[model], job(answer), gpus, parts=16))
    return None if best is None else best.sampling.gpus / gpus


def allocation(best_split: Callable[..., int | None], model: str, answer: int, gpus: int, eighths: int) -> Answer:
    """Return what the slider shows: seconds of every split, and the numbers of the chosen one."""
    found = splits(MODELS[model], job(answer), gpus)
    best, mine = best_of(best_split, found), found[eighths - 1]
    bars = []
    for split in found:
        text = seconds_text(split.seconds) + " ★" * (split is best) if split.fits else "no room"
        colour = "grey" if not split.fits else "blue" if split.waits == "trainer" else "vermilion"
        name = f"{split.sampling.gpus} + {split.training.gpus}" + " ◂" * (split is mine)
        bars.append(Bar(name, split.seconds if split.fits else 0.0, text, colour))
    numbers = [
        (
            name,
            seconds_text(side.seconds) if side.fits else "no room",
            f"{side.processes} × {side.tensor} GPUs, {f'{side.slots} slots, ' * bool(side.slots)}{side.bytes / 1e9:.0f} GB each",
        )
        for name, side in (("Sampling", mine.sampling), ("Training", mine.training))
    ]
    if best is None:
        said = f"No split of {gpus} GPUs has room for {model} with answers of {answer:,} tokens."
    elif not mine.fits:
        said = f"This split has no room; the best one generates on {best.sampling.gpus} GPUs: {seconds_text(best.seconds)} a step."
    else:
        who = "trainer waits" if mine.waits == "trainer" else "generators wait"
        other = f"the best split has {best.sampling.gpus}: {seconds_text(best.seconds)}"
        better = "no split is faster" if mine is best else other
        said = f"With {mine.sampling.gpus} of {gpus} GPUs for generators a step takes {seconds_text(mine.seconds)} and the {who}; {better}."
    longest = max([split.seconds for split in found if split.fits], default=1.0)
    return Answer([Panel("Seconds (GPUs: generators + trainer)", bars, most=longest)], said, numbers=numbers)


def seconds_text(seconds: float) -> str:
    """Write seconds with a digit where they are few."""
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def cache_length(work: Workload) -> int:
    """Return the tokens for which a row of the cache has room: the engine rounds up."""
    return -(-(work.prompt + work.response) // CACHE_STEP) * CACHE_STEP


def check_trainer_budget(attempt: Callable[..., Any], solution: Callable[..., Any]) -> None:
    """Compare drawn budgets with ``solution``, part by part."""

    def some(draw: Random) -> tuple[ModelShape, BatchShape, int, int, int]:
        heads = draw.choice([2, 4, 6])
        shape = ModelShape(
            draw.randint(1, 5), 8 * heads, heads, draw.choice([1, 2]), draw.randint(20, 90), draw.randint(50, 300)
        )
        batch = BatchShape(draw.randint(1, 3), draw.randint(2, 20), draw.randint(4, 9), draw.randint(3, 30))
        return shape, batch, draw.choice([2, 4]), draw.choice([2, 3, 8]), draw.randint(0, 3)

    for seed in range(40):
        shape, batch, e, ranks, stage = some(Random(seed))
        found, right = attempt(shape, batch, e, ranks, stage), solution(shape, batch, e, ranks, stage)
        called = f"`trainer_budget(shape, batch, {e}, {ranks}, {stage})` with `{shape.parameters:,}` parameters"
        assert isinstance(found, dict), f"{called} gives `{type(found).__name__}`, and should give a dictionary"
        found = {name: size for name, size in found.items() if name != "masters" or size}
        for part in (*right, *found):
            assert part in found or not right[part], f"{called} has no `{part}`"
            assert part in right, f"{called} has `{part}`, which is no part of this budget"
            assert exercise.same(found.get(part, 0), right[part], 1e-5) or abs(found[part] - right[part]) < 1, (
                f"{called} has `{found[part]:,}` bytes of {part}, and should have `{right[part]:,}`; "
                f"the batch is `{batch}`"
            )


@dataclass(frozen=True, slots=True)
class Seconds:
    """Hold a side's seconds by its GPUs, for a check; infinitely many below ``room``."""

    work: float
    least: float
    room: int

    def __call__(self, gpus: int) -> float:
        assert gpus >= 1, f"a side is asked for its seconds on `{gpus}` GPUs; each side needs one at least"
        return max(self.work / gpus, self.least) if gpus >= self.room else float("inf")


def check_best_split(attempt: Callable[..., Any], solution: Callable[..., Any]) -> None:
    """Compare best splits with ``solution``: sides that never fit, and ties."""

    def some(draw: Random) -> tuple[int, Seconds, Seconds]:
        gpus = draw.choice([2, 3, 8, 24])
        sides = [
            Seconds(draw.randint(10, 400), draw.choice([0.0, 0.0, 60.0]), draw.choice([1, 1, gpus // 2, gpus - 1]))
            for _ in range(2)
        ]
        return gpus, sides[0], sides[1]

    exercise.agree(attempt, solution, some, times=60)
    exercise.expect(attempt, 8, Seconds(100, 0, 5), Seconds(100, 0, 5), result=None)


def check_lease_is_over(attempt: Callable[..., Any], solution: Callable[..., Any]) -> None:
    """Compare answers around the end of a lease with ``solution``."""

    def some(draw: Random) -> tuple[float, float, float, float, float]:
        heard, lease, margin = draw.randint(0, 400) / 4, draw.randint(1, 40) / 4, draw.choice([0.0, 0.25, 1.5])
        drift = draw.choice([0.0, 0.25, 1.0, 3.0])
        over = heard + lease * (1 + drift) + margin
        return over + draw.choice([-lease * drift, -margin, -0.125, 0.0, 0.125, 4.0]), heard, lease, drift, margin

    exercise.agree(attempt, solution, some, times=80)
