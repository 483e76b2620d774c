"""Does the memory that ``sizing/memory.py`` computes agree with what real processes take?

The embedded policy, SmolLM2 if ``zorplex-rl policy get smollm2`` has fetched it, and models with random
weights that differ in vocabulary, depth, width and shares of heads. ``sizing/measured.py`` says what
runs. A busy machine changes nothing but the minutes.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from table import describe_machine, print_table

from zorplex_rl.course.nb10 import make_model
from zorplex_rl.policy.load import EMBEDDED_PATH
from zorplex_rl.policy.smollm2 import cached
from zorplex_rl.sizing.measured import measure
from zorplex_rl.sizing.memory import Workload, generator_memory, trainer_memory
from zorplex_rl.sizing.model_shape import ModelShape, shape_of

MADE = {
    "6 × 256": ModelShape(6, 256, heads=8, kv_heads=2, intermediate=1100, vocabulary=9000),
    "12 × 512": ModelShape(12, 512, heads=8, kv_heads=2, intermediate=1536, vocabulary=16_000),
    "3 × 320": ModelShape(3, 320, heads=10, kv_heads=5, intermediate=2200, vocabulary=9000),
    "16 × 448": ModelShape(16, 448, heads=7, kv_heads=7, intermediate=1300, vocabulary=11_000),
    "9 × 160, untied": ModelShape(
        9, 160, heads=5, kv_heads=1, intermediate=640, vocabulary=2500, tied=False
    ),
    "7 × 768": ModelShape(7, 768, heads=12, kv_heads=4, intermediate=2048, vocabulary=25_000),
}
"""Models that are made on the spot, with the embedded policy's tokenizer."""
CASES = (
    # Model, role, number type, groups × answers, tokens of a prompt and of an answer, token budget or slots.
    ("embedded", "trainer", "float32", 8, 8, 100, 96, 512),
    ("embedded", "trainer", "float32", 8, 8, 100, 96, 2048),
    ("embedded", "trainer", "float32", 8, 8, 100, 96, 8192),
    ("embedded", "trainer", "float32", 8, 8, 100, 256, 8192),
    ("embedded", "trainer", "bfloat16", 8, 8, 100, 96, 2048),
    ("embedded", "trainer", "bfloat16", 8, 8, 100, 96, 8192),
    ("embedded", "generator", "float32", 8, 8, 100, 96, 4),
    ("embedded", "generator", "float32", 8, 8, 100, 96, 16),
    ("embedded", "generator", "float32", 8, 8, 100, 96, 64),
    ("embedded", "generator", "bfloat16", 8, 8, 100, 96, 16),
    ("embedded", "generator", "bfloat16", 8, 8, 100, 96, 64),
    ("smollm2", "trainer", "float32", 1, 4, 260, 40, 8192),
    ("smollm2", "trainer", "float32", 2, 8, 260, 40, 8192),
    ("smollm2", "trainer", "float32", 2, 8, 260, 40, 600),
    ("smollm2", "trainer", "float32", 4, 8, 260, 40, 1024),
    ("smollm2", "trainer", "bfloat16", 2, 8, 260, 40, 8192),
    ("smollm2", "trainer", "bfloat16", 2, 8, 260, 40, 600),
    ("smollm2", "generator", "float32", 4, 16, 260, 24, 4),
    ("smollm2", "generator", "float32", 4, 16, 260, 24, 16),
    ("smollm2", "generator", "float32", 4, 16, 260, 24, 64),
    ("smollm2", "generator", "bfloat16", 4, 16, 260, 24, 16),
    ("smollm2", "generator", "bfloat16", 4, 16, 260, 24, 64),
    ("6 × 256", "trainer", "float32", 2, 4, 100, 40, 600),
    ("6 × 256", "generator", "float32", 3, 4, 100, 40, 6),
    ("12 × 512", "trainer", "float32", 2, 5, 100, 96, 1024),
    ("3 × 320", "trainer", "bfloat16", 2, 4, 200, 30, 1024),
    ("3 × 320", "generator", "float32", 24, 2, 60, 40, 64),
    ("16 × 448", "trainer", "float32", 3, 3, 80, 50, 1500),
    ("16 × 448", "generator", "float32", 5, 3, 100, 40, 15),
    ("9 × 160, untied", "trainer", "float32", 6, 6, 110, 70, 6000),
    ("9 × 160, untied", "generator", "bfloat16", 6, 5, 120, 60, 24),
    ("7 × 768", "trainer", "float32", 2, 3, 70, 40, 900),
    ("7 × 768", "generator", "bfloat16", 3, 3, 90, 20, 9),
)


def main() -> None:
    print(describe_machine())
    rows = []
    ratios = []
    with tempfile.TemporaryDirectory() as made:
        folders = {"embedded": EMBEDDED_PATH, "smollm2": cached()}
        for number, (name, shape) in enumerate(MADE.items()):
            folders[name] = Path(made) / str(number)
            make_model(shape, folders[name])
        for name, role, dtype, groups, size, prompt, response, limit in CASES:
            folder = folders[name]
            if not folder.is_dir():
                continue
            work = Workload(
                prompt,
                response,
                groups,
                size,
                token_budget=limit,
                slots=limit,
                tasks=groups,
                evaluated=0,
                dtype=dtype,
                transfer=dtype,
            )
            (taken,) = measure([(role, work)], folder)
            memory_of = trainer_memory if role == "trainer" else generator_memory
            computed = memory_of(shape_of(folder), taken.work).total
            ratios.append(computed / taken.peak)
            batch = f"{groups} × {size} of {taken.work.prompt} + {response}"
            megabytes = [f"{size / 1e6:.0f}" for size in (computed, taken.peak)]
            rows.append([name, role, dtype, batch, f"{limit}", *megabytes, f"{ratios[-1]:.2f}"])
    columns = [
        "model",
        "role",
        "dtype",
        "groups × answers of tokens",
        "budget or slots",
        "MB computed",
        "MB measured",
        "ratio",
    ]
    within = sum(abs(ratio - 1) <= 0.1 for ratio in ratios)
    note = f"{within} of {len(ratios)} within 10%; from {min(ratios):.2f} to {max(ratios):.2f}."
    print_table("Memory, computed and measured", columns, rows, note)


if __name__ == "__main__":
    main()
