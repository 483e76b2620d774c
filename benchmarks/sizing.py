"""Does the memory that ``sizing/memory.py`` computes agree with what real processes take?

Each model is made on the spot with random weights: shapes that differ in vocabulary, depth, width and
shares of heads. The last four had not been thought of when the formulas were last changed. Memory is
the highest resident set above that of a warm process; ``sizing/measured_size.py`` says what runs.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from table import describe_machine, print_table

from zorplex_rl.sizing.measured_size import Case, Measured, make_model, measure_all, workload_of
from zorplex_rl.sizing.memory import generator_memory, trainer_memory
from zorplex_rl.sizing.model_shape import ModelShape

ONE = ModelShape(layers=4, hidden=128, heads=4, kv_heads=2, intermediate=384, vocabulary=600)
FIFTY = ModelShape(layers=12, hidden=512, heads=8, kv_heads=2, intermediate=1536, vocabulary=16_000)
WORDY = ModelShape(layers=3, hidden=128, heads=2, kv_heads=2, intermediate=512, vocabulary=60_000)
SHALLOW = ModelShape(layers=3, hidden=320, heads=10, kv_heads=5, intermediate=2200, vocabulary=9000)
LARGE = ModelShape(layers=12, hidden=896, heads=14, kv_heads=2, intermediate=2560, vocabulary=30_000)
ALL_KEYS = ModelShape(layers=16, hidden=448, heads=7, kv_heads=7, intermediate=1300, vocabulary=11_000)
SLIM = ModelShape(layers=9, hidden=160, heads=5, kv_heads=1, intermediate=640, vocabulary=2500, tied=False)
BROAD = ModelShape(layers=7, hidden=768, heads=12, kv_heads=4, intermediate=2048, vocabulary=25_000)
CASES = (
    (ONE, Case("trainer", "", "float32")),
    (ONE, Case("trainer", "", "bfloat16")),
    (ONE, Case("generator", "", "float32")),
    (FIFTY, Case("trainer", "", "float32", prompts=2, group_size=5, token_budget=1024)),
    (WORDY, Case("generator", "", "float32", 4, 8, 60, 30, slots=32)),
    (SHALLOW, Case("trainer", "", "bfloat16", 2, 4, 200, 30, token_budget=1024)),
    (SHALLOW, Case("generator", "", "float32", 24, 2, 60, 40, slots=64)),
    (LARGE, Case("trainer", "", "float32", 1, 4, 60, 30, token_budget=1024, checkpoint=False)),
    (ALL_KEYS, Case("trainer", "", "float32", 3, 3, 80, 50, token_budget=1500)),
    (SLIM, Case("trainer", "", "bfloat16", 2, 6, 90, 40, token_budget=1024)),
    (SLIM, Case("generator", "", "bfloat16", 6, 5, 120, 60, slots=24)),
    (BROAD, Case("generator", "", "bfloat16", 3, 3, 90, 20, slots=9)),
)


def computed_bytes(case: Case, found: Measured) -> int:
    """Return the bytes that are computed for ``case``, whose prompts were as ``found`` says."""
    shape, work = workload_of(case, found)
    memory = trainer_memory(shape, work) if case.role == "trainer" else generator_memory(shape, work)
    return memory.total if case.device == "cpu" else memory.on_gpu()


def main() -> None:
    print(describe_machine())
    rows, ratios = [], []
    with tempfile.TemporaryDirectory() as scratch:
        placed = []
        for shape, case in CASES:
            folder = Path(scratch) / str(hash(shape))
            if not folder.exists():
                make_model(shape, folder)
            placed.append(replace(case, folder=str(folder)))
        for case, found in zip(placed, measure_all(placed), strict=True):
            shape, _ = workload_of(case, found)
            computed = computed_bytes(case, found)
            ratios.append(computed / found.peak)
            model = f"{shape.parameters / 1e6:.1f} M, {shape.layers} × {shape.hidden}, V {shape.vocabulary}"
            batch = f"{case.prompts} × {case.group_size} of {found.prompt_tokens} + {case.max_tokens}"
            megabytes = [f"{size / 1e6:.0f}" for size in (computed, found.peak)]
            rows.append([f"{case.role}, {model}", case.dtype, batch, *megabytes, f"{ratios[-1]:.2f}"])
    columns = ["model", "dtype", "batch", "MB computed", "MB measured", "ratio"]
    worst = max(abs(ratio - 1) for ratio in ratios)
    print_table("Memory, computed and measured", columns, rows, f"Largest difference: {worst:.0%}.")


if __name__ == "__main__":
    main()
