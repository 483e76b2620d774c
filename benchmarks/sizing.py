"""Does the memory that ``sizing/memory.py`` computes agree with what real processes take?

Each model is made on the spot with random weights: shapes that differ in vocabulary, depth, width and
shares of heads. The last eight had not been thought of when the formulas were last changed.
``sizing/measured.py`` says what runs.
"""

from __future__ import annotations

from table import describe_machine, print_table

from zorplex_rl.course.nb10 import measured_cases
from zorplex_rl.sizing.memory import Workload, generator_memory, trainer_memory
from zorplex_rl.sizing.model_shape import ModelShape

ONE = ModelShape(layers=4, hidden=128, heads=4, kv_heads=2, intermediate=384, vocabulary=600)
FIFTY = ModelShape(layers=12, hidden=512, heads=8, kv_heads=2, intermediate=1536, vocabulary=16_000)
WORDY = ModelShape(layers=3, hidden=128, heads=2, kv_heads=2, intermediate=512, vocabulary=60_000)
SHALLOW = ModelShape(layers=3, hidden=320, heads=10, kv_heads=5, intermediate=2200, vocabulary=9000)
LARGE = ModelShape(layers=12, hidden=896, heads=14, kv_heads=2, intermediate=2560, vocabulary=30_000)
ALL_KEYS = ModelShape(layers=16, hidden=448, heads=7, kv_heads=7, intermediate=1300, vocabulary=11_000)
SLIM = ModelShape(layers=9, hidden=160, heads=5, kv_heads=1, intermediate=640, vocabulary=2500, tied=False)
BROAD = ModelShape(layers=7, hidden=768, heads=12, kv_heads=4, intermediate=2048, vocabulary=25_000)
# Role, number type, groups × answers, tokens of a prompt and of an answer, token budget or slots.
CASES = (
    (ONE, "trainer", "float32", 8, 8, 100, 96, 8192),
    (ONE, "trainer", "bfloat16", 8, 8, 100, 96, 8192),
    (ONE, "generator", "float32", 8, 8, 100, 96, 64),
    (FIFTY, "trainer", "float32", 2, 5, 100, 96, 1024),
    (WORDY, "generator", "float32", 4, 8, 60, 30, 32),
    (SHALLOW, "trainer", "bfloat16", 2, 4, 200, 30, 1024),
    (SHALLOW, "generator", "float32", 24, 2, 60, 40, 64),
    (LARGE, "trainer", "float32", 1, 4, 60, 30, 1024),
    (ALL_KEYS, "trainer", "float32", 3, 3, 80, 50, 1500),
    (ALL_KEYS, "generator", "float32", 5, 3, 100, 40, 15),
    (SLIM, "trainer", "bfloat16", 2, 6, 90, 40, 1024),
    (SLIM, "generator", "bfloat16", 6, 5, 120, 60, 24),
    (SLIM, "trainer", "float32", 6, 6, 110, 70, 6000),
    (SLIM, "generator", "float32", 10, 4, 70, 90, 32),
    (BROAD, "trainer", "float32", 2, 3, 70, 40, 900),
    (BROAD, "generator", "bfloat16", 3, 3, 90, 20, 9),
)


def main() -> None:
    print(describe_machine())
    rows, ratios = [], []
    for shape, role, dtype, groups, size, prompt, response, limit in CASES:
        work = Workload(
            prompt, response, groups, size, token_budget=limit, slots=limit, tasks=groups, evaluated=0,
            dtype=dtype, transfer=dtype,
        )  # fmt: skip
        (taken,) = measured_cases(shape, [(role, work)])
        computed = (trainer_memory if role == "trainer" else generator_memory)(shape, taken.work).total
        ratios.append(computed / taken.peak)
        model = f"{role}, {shape.parameters / 1e6:.1f} M, {shape.layers} × {shape.hidden}, V {shape.vocabulary}"
        batch = f"{groups} × {size} of {taken.work.prompt} + {response}"
        megabytes = [f"{found / 1e6:.0f}" for found in (computed, taken.peak)]
        rows.append([model, dtype, batch, *megabytes, f"{ratios[-1]:.2f}"])
    columns = ["model", "dtype", "batch", "MB computed", "MB measured", "ratio"]
    worst = max(abs(ratio - 1) for ratio in ratios)
    print_table("Memory, computed and measured", columns, rows, f"Largest difference: {worst:.0%}.")


if __name__ == "__main__":
    main()
