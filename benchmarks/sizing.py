"""Compare what ``sizing/memory.py`` computes with what real processes take.

    tuned       models and settings whose numbers were known when the formulas and their constants were last changed
    held out    models and settings that were invented after that: other vocabularies, depths, shares of heads, widths, lengths, slots

Every model is made on the spot with random weights. ``sizing/measured.py`` says what runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import tyro
from log import Report, append_report, print_report

from zorplex_rl.course.nb10 import measured_cases
from zorplex_rl.sizing.memory import Workload, generator_memory, trainer_memory
from zorplex_rl.sizing.model_shape import ModelShape

ASKED = "Does the computed memory of a trainer and a generator agree with the measured one?"
EXPECTED = "Within 15 %, also where nothing was tuned."

ONE = ModelShape(layers=4, hidden=128, heads=4, kv_heads=2, intermediate=384, vocabulary=600)
TEN = ModelShape(layers=8, hidden=256, heads=4, kv_heads=2, intermediate=1024, vocabulary=4000)
FIFTY = ModelShape(layers=12, hidden=512, heads=8, kv_heads=2, intermediate=1536, vocabulary=16000)
WIDE_MLP = ModelShape(layers=2, hidden=96, heads=3, kv_heads=1, intermediate=1200, vocabulary=800)
WORDY = ModelShape(layers=3, hidden=128, heads=2, kv_heads=2, intermediate=512, vocabulary=60_000)
WIDE_HEADS = ModelShape(layers=6, hidden=256, heads=4, kv_heads=1, intermediate=1024, vocabulary=6000, head_size=128)
UNTIED_DEEP = ModelShape(layers=12, hidden=72, heads=6, kv_heads=3, intermediate=300, vocabulary=900, tied=False)
SHALLOW = ModelShape(layers=3, hidden=320, heads=10, kv_heads=5, intermediate=2200, vocabulary=9000)
COLUMN = ModelShape(layers=32, hidden=352, heads=11, kv_heads=1, intermediate=1100, vocabulary=6000, tied=False)
LARGE = ModelShape(layers=12, hidden=896, heads=14, kv_heads=2, intermediate=2560, vocabulary=30_000)
ALL_KEYS = ModelShape(layers=16, hidden=448, heads=7, kv_heads=7, intermediate=1300, vocabulary=11_000)
SLIM = ModelShape(layers=9, hidden=160, heads=5, kv_heads=1, intermediate=640, vocabulary=2500, tied=False)
BROAD = ModelShape(layers=7, hidden=768, heads=12, kv_heads=4, intermediate=2048, vocabulary=25_000)

Case = tuple[ModelShape, str, Workload]


def trainer(dtype: str, prompts: int, group: int, prompt: int, answer: int, budget: int) -> tuple[str, Workload]:
    """Return a trainer's case: ``prompts`` groups of ``group`` answers."""
    return "trainer", Workload(prompt, answer, prompts, group, budget, evaluated=0, dtype=dtype, transfer=dtype)


def generator(dtype: str, tasks: int, group: int, prompt: int, answer: int, slots: int) -> tuple[str, Workload]:
    """Return a generator's case: ``tasks`` groups of ``group`` answers."""
    low = {"dtype": dtype, "transfer": dtype}
    return "generator", Workload(prompt, answer, group_size=group, slots=slots, tasks=tasks, evaluated=0, **low)


F, B = "float32", "bfloat16"
TUNED: list[Case] = [
    (ONE, *trainer(F, 8, 8, 100, 96, 8192)),
    (ONE, *generator(B, 8, 8, 100, 96, 64)),
    (TEN, *trainer(B, 4, 8, 100, 96, 4096)),
    (TEN, *generator(F, 8, 8, 100, 96, 64)),
    (FIFTY, *trainer(F, 2, 5, 100, 96, 1024)),
    (WIDE_MLP, *trainer(B, 4, 16, 80, 40, 4096)),
    (WORDY, *generator(F, 4, 8, 60, 30, 32)),
    (WIDE_HEADS, *trainer(F, 2, 8, 300, 48, 4096)),
    (UNTIED_DEEP, *generator(F, 3, 8, 90, 120, 12)),
    (SHALLOW, *trainer(B, 2, 4, 200, 30, 1024)),
    (SHALLOW, *generator(F, 24, 2, 60, 40, 64)),
    (COLUMN, *trainer(F, 1, 4, 50, 40, 512)),
    (LARGE, *trainer(F, 1, 4, 60, 30, 1024)),
    (LARGE, *generator(B, 2, 4, 60, 16, 6)),
]
HELD_OUT: list[Case] = [
    (ALL_KEYS, *trainer(F, 3, 3, 80, 50, 1500)),
    (ALL_KEYS, *generator(F, 5, 3, 100, 40, 15)),
    (SLIM, *trainer(B, 2, 6, 90, 40, 1024)),
    (SLIM, *generator(B, 6, 5, 120, 60, 24)),
    (BROAD, *trainer(F, 2, 3, 70, 40, 900)),
    (BROAD, *generator(B, 3, 3, 90, 20, 9)),
    (SLIM, *trainer(F, 6, 6, 110, 70, 6000)),
    (SLIM, *generator(F, 10, 4, 70, 90, 32)),
]


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure."""

    cases: Literal["all", "tuned", "held-out"] = "all"
    """Which models and settings."""
    log: bool = True
    """Append the result to LOG.md."""


def compare(title: str, cases: Sequence[Case]) -> Report:
    """Measure ``cases``. Returns the table of computed against measured."""
    rows, ratios = [], []
    for shape, role, work in cases:
        (taken,) = measured_cases(shape, [(role, work)])
        computed = (trainer_memory if role == "trainer" else generator_memory)(shape, taken.work).total
        ratios.append(computed / taken.peak)
        model = f"{shape.parameters / 1e6:.1f} M, {shape.layers} × {shape.hidden}, V {shape.vocabulary}, {shape.heads}:{shape.kv_heads}"
        groups = work.prompts if role == "trainer" else work.tasks
        batch = f"{groups} × {work.group_size} of {taken.work.prompt} + {work.response}"
        bound = f"budget {work.token_budget}" if role == "trainer" else f"{work.slots} slots"
        rows.append([
            f"{role}, {model}{'' if shape.tied else ', untied'}", work.dtype, f"{batch}, {bound}",
            f"{computed / 1e6:.0f}", f"{taken.peak / 1e6:.0f}", f"{ratios[-1]:.2f}",
        ])  # fmt: skip
        print(" | ".join(rows[-1]), flush=True)
    columns = ("model", "dtype", "batch", "MB computed", "MB measured", "ratio")
    worst = max(abs(ratio - 1) for ratio in ratios)
    return Report(title, columns, rows, [f"Largest difference: {worst:.0%}."])


def main(options: Options) -> None:
    chosen = {"tuned": TUNED, "held-out": HELD_OUT}
    reports = [compare(name, cases) for name, cases in chosen.items() if options.cases in ("all", name)]
    for report in reports:
        print_report(report)
    if options.log:
        append_report("benchmarks/sizing.py", ASKED, EXPECTED, {"cases": options.cases}, reports)


if __name__ == "__main__":
    main(tyro.cli(Options))
