"""Compare what ``analysis/sizing.py`` and ``analysis/step_time.py`` compute with what real processes take.

    tuned       the models and settings on which the allocator's and the time's constants were chosen
    held out    other models and settings, which were looked at when the constants were fixed: other vocabularies, depths, shares of heads,
                untied embeddings, lengths, updates, slots

Every model is made on the spot with random weights. Memory is the highest resident set above that of a warm process; time is processor time, with
the machine's speeds measured in the same process right after. ``measured_size.py`` says what runs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import tyro
from log import Report, append_report, print_report

from zorplex_rl.analysis.measured_size import Case, Measured, make_model, measure_all, workload_of
from zorplex_rl.analysis.sizing import ModelShape, generator_memory, trainer_memory
from zorplex_rl.analysis.step_time import Machine, sample_seconds, train_seconds

ASKED = "Does the computed memory of a trainer and a generator agree with the measured one, and the computed time of a step?"
EXPECTED = "Memory within 15 %, time within 30 %, also where nothing was tuned."

ONE = ModelShape(layers=4, hidden=128, heads=4, kv_heads=2, intermediate=384, vocabulary=600)
TEN = ModelShape(layers=8, hidden=256, heads=4, kv_heads=2, intermediate=1024, vocabulary=4000)
FIFTY = ModelShape(layers=12, hidden=512, heads=8, kv_heads=2, intermediate=1536, vocabulary=16000)
NARROW = ModelShape(layers=10, hidden=80, heads=5, kv_heads=1, intermediate=240, vocabulary=2500, tied=False)
WIDE = ModelShape(layers=4, hidden=448, heads=7, kv_heads=7, intermediate=1400, vocabulary=9000)
UNTIED = ModelShape(layers=10, hidden=576, heads=9, kv_heads=3, intermediate=1536, vocabulary=12000, tied=False)
LARGE = ModelShape(layers=12, hidden=768, heads=12, kv_heads=2, intermediate=2048, vocabulary=100_000)

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
]
HELD_OUT = [
    (NARROW, Case("trainer", "", F, 6, 6, 150, 60, token_budget=3000, updates_per_batch=2)),
    (NARROW, Case("generator", "", B, 6, 6, 150, 50, slots=24)),
    (WIDE, Case("trainer", "", B, 3, 8, 60, 150, token_budget=2048)),
    (WIDE, Case("generator", "", F, 12, 4, 60, 60, slots=40)),
    (UNTIED, Case("trainer", "", F, 2, 5, 40, 100, token_budget=900)),
    (UNTIED, Case("generator", "", B, 8, 1, 120, 40, slots=8)),
    (LARGE, Case("trainer", "", B, 1, 4, 60, 60, token_budget=400)),
    (LARGE, Case("trainer", "", F, 1, 4, 60, 60, token_budget=400, checkpoint=False)),
    (LARGE, Case("generator", "", F, 4, 2, 60, 30, slots=8)),
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
    """Return the bytes computed for ``case``, the seconds computed, and the seconds measured: of a step or of the whole sampling."""
    shape, work = workload_of(case, found)
    machine = Machine(**found.machine)
    if case.role == "trainer":
        parts = train_seconds(shape, work, machine, case.updates_per_batch)
        return trainer_memory(shape, work).total, sum(parts.values()), found.seconds[f"step {case.steps}"]
    parts = sample_seconds(shape, work, machine, found.decode_steps)
    taken = found.seconds["first step"] + found.seconds["sample"]
    return generator_memory(shape, work).total, sum(parts.values()), taken


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
