"""Compare what ``sizing/memory.py`` and ``sizing/step_time.py`` compute with what real processes
take.

    tuned       models and settings whose numbers were known when the formulas and their constants were last changed
    held out    models and settings that were invented after that: other vocabularies, depths, shares of heads, widths, lengths, updates, slots

Every model is made on the spot with random weights. Memory is the highest resident set above that
of a warm process; time is processor time, with the machine's speeds measured in the same process
right after. ``measured_size.py`` says what runs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import tyro
from log import Report, append_report, print_report

from zorplex_rl.sizing.measured_size import Case, Measured, make_model, measure_all, workload_of
from zorplex_rl.sizing.memory import Memory, generator_memory, trainer_memory
from zorplex_rl.sizing.model_shape import ModelShape
from zorplex_rl.sizing.step_time import Machine, sample_seconds, train_seconds

ASKED = "Does the computed memory of a trainer and a generator agree with the measured one, and the computed time of a step?"
EXPECTED = "Memory within 15 %, time within 30 %, also where nothing was tuned."

ONE = ModelShape(layers=4, hidden=128, heads=4, kv_heads=2, intermediate=384, vocabulary=600)
TEN = ModelShape(layers=8, hidden=256, heads=4, kv_heads=2, intermediate=1024, vocabulary=4000)
FIFTY = ModelShape(layers=12, hidden=512, heads=8, kv_heads=2, intermediate=1536, vocabulary=16000)
DEEP = ModelShape(layers=24, hidden=64, heads=4, kv_heads=2, intermediate=128, vocabulary=600)
WIDE_MLP = ModelShape(layers=2, hidden=96, heads=3, kv_heads=1, intermediate=1200, vocabulary=800)
WORDY = ModelShape(layers=3, hidden=128, heads=2, kv_heads=2, intermediate=512, vocabulary=60_000)
WIDE_HEADS = ModelShape(layers=6, hidden=256, heads=4, kv_heads=1, intermediate=1024, vocabulary=6000, head_size=128)
UNTIED_DEEP = ModelShape(layers=12, hidden=72, heads=6, kv_heads=3, intermediate=300, vocabulary=900, tied=False)
NINE = ModelShape(layers=5, hidden=288, heads=9, kv_heads=3, intermediate=1500, vocabulary=5000)
SQUARE = ModelShape(layers=6, hidden=112, heads=7, kv_heads=1, intermediate=420, vocabulary=1500)
NARROW = ModelShape(layers=14, hidden=208, heads=4, kv_heads=2, intermediate=900, vocabulary=7000, tied=False)
SHALLOW = ModelShape(layers=3, hidden=320, heads=10, kv_heads=5, intermediate=2200, vocabulary=9000)
HALF = ModelShape(layers=10, hidden=576, heads=6, kv_heads=2, intermediate=1536, vocabulary=20_000, head_size=64)
COLUMN = ModelShape(layers=32, hidden=352, heads=11, kv_heads=1, intermediate=1100, vocabulary=6000, tied=False)
LARGE = ModelShape(layers=12, hidden=896, heads=14, kv_heads=2, intermediate=2560, vocabulary=30_000)
ALL_KEYS = ModelShape(layers=16, hidden=448, heads=7, kv_heads=7, intermediate=1300, vocabulary=11_000)
SLIM = ModelShape(layers=9, hidden=160, heads=5, kv_heads=1, intermediate=640, vocabulary=2500, tied=False)
BROAD = ModelShape(layers=7, hidden=768, heads=12, kv_heads=4, intermediate=2048, vocabulary=25_000)

F, B = "float32", "bfloat16"
TUNED = [
    (ONE, Case("trainer", "", F)),
    (ONE, Case("trainer", "", B)),
    (ONE, Case("generator", "", F)),
    (ONE, Case("generator", "", B)),
    (TEN, Case("trainer", "", F)),
    (TEN, Case("trainer", "", B, prompts=4, token_budget=4096)),
    (TEN, Case("generator", "", F)),
    (FIFTY, Case("trainer", "", F, prompts=2, group_size=5, token_budget=1024)),
    (DEEP, Case("trainer", "", F)),
    (DEEP, Case("generator", "", B)),
    (WIDE_MLP, Case("trainer", "", B, 4, 16, 80, 40, token_budget=4096)),
    (WORDY, Case("generator", "", F, 4, 8, 60, 30, slots=32)),
    (WIDE_HEADS, Case("trainer", "", F, 2, 8, 300, 48, token_budget=4096)),
    (UNTIED_DEEP, Case("generator", "", F, 3, 8, 90, 120, slots=12)),
    (NINE, Case("generator", "", B, 20, 3, 160, 50, slots=48)),
    (SQUARE, Case("trainer", "", F, 5, 6, 70, 130, token_budget=3000, updates_per_batch=2)),
    (SQUARE, Case("trainer", "", B, 3, 12, 120, 24, token_budget=512)),
    (SQUARE, Case("generator", "", F, 9, 4, 140, 70, slots=20)),
    (SQUARE, Case("generator", "", B, 2, 20, 60, 100, slots=40)),
    (NARROW, Case("trainer", "", F, 3, 4, 60, 80, token_budget=2048)),
    (SHALLOW, Case("trainer", "", B, 2, 4, 200, 30, token_budget=1024)),
    (NARROW, Case("generator", "", B, 4, 4, 90, 40, slots=10)),
    (SHALLOW, Case("generator", "", F, 24, 2, 60, 40, slots=64)),
    (HALF, Case("trainer", "", F, 2, 4, 60, 30, token_budget=2048)),
    (HALF, Case("generator", "", B, 4, 2, 80, 30, slots=8)),
    (COLUMN, Case("trainer", "", F, 1, 4, 50, 40, token_budget=512)),
    (COLUMN, Case("generator", "", F, 4, 3, 60, 24, slots=12)),
    (LARGE, Case("trainer", "", F, 1, 4, 60, 30, token_budget=1024, checkpoint=False)),
    (LARGE, Case("generator", "", B, 2, 4, 60, 16, slots=6)),
]
HELD_OUT = [
    (ALL_KEYS, Case("trainer", "", F, 3, 3, 80, 50, token_budget=1500)),
    (ALL_KEYS, Case("generator", "", F, 5, 3, 100, 40, slots=15)),
    (SLIM, Case("trainer", "", B, 2, 6, 90, 40, token_budget=1024)),
    (SLIM, Case("generator", "", B, 6, 5, 120, 60, slots=24)),
    (BROAD, Case("trainer", "", F, 2, 3, 70, 40, token_budget=900)),
    (BROAD, Case("generator", "", B, 3, 3, 90, 20, slots=9)),
    (SLIM, Case("trainer", "", F, 6, 6, 110, 70, token_budget=6000)),
    (SLIM, Case("generator", "", F, 10, 4, 70, 90, slots=32)),
]


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure."""

    cases: Literal["all", "tuned", "held-out"] = "all"
    """Which models and settings."""
    largest: float = 1000.0
    """Leave out models of more than this many million parameters."""
    log: bool = True
    """Append the result to LOG.md."""


def compare(title: str, cases: Sequence[tuple[ModelShape, Case]], folder: Path) -> Report:
    """Measure ``cases``. Returns the table of computed against measured."""
    made = []
    for shape, case in cases:
        place = folder / str(hash(shape))
        if not place.exists():
            make_model(shape, place)
        made.append(replace(case, folder=str(place)))
    rows, memory, seconds = [], [], []
    for (shape, case), placed, found in zip(cases, made, measure_all(made), strict=True):
        computed, expected, taken = predict(placed, found)
        memory.append(computed / found.peak)
        seconds.append(expected / taken)
        model = f"{shape.parameters / 1e6:.1f} M, {shape.layers} × {shape.hidden}, V {shape.vocabulary}, {shape.heads}:{shape.kv_heads}"
        batch = f"{case.prompts} × {case.group_size} of {found.prompt_tokens} + {case.max_tokens}"
        bound = f"budget {case.token_budget}" if case.role == "trainer" else f"{case.slots} slots"
        more = f", {case.updates_per_batch} updates" if case.updates_per_batch > 1 else ""
        rows.append([
            f"{case.role}, {model}{'' if shape.tied else ', untied'}", case.dtype, f"{batch}, {bound}{more}",
            f"{computed / 1e6:.0f}", f"{found.peak / 1e6:.0f}", f"{memory[-1]:.2f}",
            f"{expected:.2f}", f"{taken:.2f}", f"{seconds[-1]:.2f}",
        ])  # fmt: skip
        print(" | ".join(rows[-1]), flush=True)
    columns = ("model", "dtype", "batch", "MB computed", "MB measured", "ratio", "s computed", "s measured", "ratio")
    worst = [max(abs(ratio - 1) for ratio in ratios) for ratios in (memory, seconds)]
    note = f"Largest difference: memory {worst[0]:.0%}, time {worst[1]:.0%}."
    return Report(title, columns, rows, [note])


def predict(case: Case, found: Measured) -> tuple[int, float, float]:
    """Return the bytes computed for ``case``, the seconds computed, and the seconds measured: of a
    step or of the whole sampling."""
    shape, work = workload_of(case, found)
    machine = Machine(**found.machine)

    def bytes_of(memory: Memory) -> int:
        return memory.total if case.device == "cpu" else memory.on_gpu()

    if case.role == "trainer":
        parts = train_seconds(shape, work, machine, case.updates_per_batch)
        return bytes_of(trainer_memory(shape, work)), sum(parts.values()), found.seconds[f"step {case.steps}"]
    parts = sample_seconds(shape, work, machine, found.decode_steps)
    taken = found.seconds["first step"] + found.seconds["sample"]
    return bytes_of(generator_memory(shape, work)), sum(parts.values()), taken


def main(options: Options) -> None:
    chosen = {"tuned": TUNED, "held-out": HELD_OUT}
    reports = []
    with tempfile.TemporaryDirectory() as folder:
        for name, cases in chosen.items():
            if options.cases in ("all", name):
                small = [(shape, case) for shape, case in cases if shape.parameters <= 1e6 * options.largest]
                reports.append(compare(name, small, Path(folder)))
                print_report(reports[-1])
    if options.log:
        settings = {"cases": options.cases, "largest": options.largest}
        append_report("benchmarks/sizing.py", ASKED, EXPECTED, settings, reports)


if __name__ == "__main__":
    main(tyro.cli(Options))
