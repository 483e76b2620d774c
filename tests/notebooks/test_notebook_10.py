"""Notebook 10: the budgets on the page are the package's, real processes take what they say, and
the page runs on what the reader writes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_notebooks import Later

from zorplex_rl.course import nb10
from zorplex_rl.course.nb10_gpus import MODELS, Split, splits
from zorplex_rl.sizing.memory import BatchShape, Workload, generator_memory, trainer_memory
from zorplex_rl.sizing.model_shape import ModelShape

pytestmark = pytest.mark.slow

PATH = Path(__file__).parents[2] / "notebooks" / "10_scaling_out.py"
notebook = Later(PATH)
SHAPES = [
    ModelShape(layers=2, hidden=64, heads=4, kv_heads=2, intermediate=96, vocabulary=500),
    ModelShape(
        layers=3, hidden=48, heads=6, kv_heads=6, intermediate=100, vocabulary=333, tied=False
    ),
    MODELS["7B"],
]
WORKS = [
    Workload(100, 64, prompts=4, group_size=4, tasks=4, evaluated=0),
    Workload(
        30,
        9,
        prompts=2,
        group_size=3,
        slots=5,
        tasks=2,
        evaluated=0,
        dtype="bfloat16",
        transfer="bfloat16",
    ),
]


def bytes_of(work: Workload) -> int:
    return {"float32": 4, "bfloat16": 2}[work.dtype]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("work", WORKS)
@pytest.mark.parametrize("stage", range(4))
def test_a_trainers_budget_is_the_packages(shape, work, stage):
    batch = work.micro_batches()[0]
    phases = trainer_memory(shape, work, 4, stage).phases.values()
    by_hand = notebook.Solutions.trainer_budget(shape, batch, bytes_of(work), 4, stage)
    largest = {part: max(parts.get(part, 0) for parts in phases) for part in by_hand}
    assert {part: int(size) for part, size in by_hand.items()} == largest


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("work", WORKS)
def test_a_generators_budget_is_the_packages(shape, work):
    rows = min(work.slots, work.tasks * work.group_size)
    of_package = generator_memory(shape, replace(work, slots=rows)).phases["sample"]
    by_hand = notebook.generator_budget(shape, rows, nb10.cache_length(work), bytes_of(work))
    assert by_hand == {part: of_package[part] for part in by_hand}


def test_what_is_recomputed_is_not_kept():
    batch, shape = BatchShape.of([(0, 512 + 2047)], 2048), MODELS["72B"]
    whole, inputs = (notebook.activation_bytes(shape, batch, 2, again) for again in (False, True))
    one_layer = replace(shape, layers=1)
    tokens = 512 + 2047
    assert (
        inputs
        == notebook.activation_bytes(one_layer, batch, 2) + shape.layers * 2 * shape.hidden * tokens
    )
    assert whole > 10 * inputs


def test_72b_fits_512_gpus_only_if_activations_are_recomputed():
    _, defined = cell_with("def first_stage").run(my_budget=notebook.Solutions.trainer_budget)
    first_stage = defined["first_stage"]
    assert first_stage(MODELS["72B"], 512) == "none"
    assert first_stage(MODELS["72B"], 512, True) == 3
    assert first_stage(MODELS["7B"], 8) in (1, 2, 3)


def best_split(found: list[Split]) -> Split | None:
    return min(
        (split for split in found if split.fits), key=lambda split: split.seconds, default=None
    )


@pytest.mark.parametrize("model", ["0.5B", "7B", "72B"])
@pytest.mark.parametrize("gpus", [8, 64])
def test_the_best_split_is_the_fastest_that_fits(model, gpus):
    found = splits(MODELS[model], nb10.job(1024), gpus)
    assert nb10.best_of(notebook.Solutions.best_split, found) is best_split(found)


def test_the_slider_shows_the_split_that_the_readers_function_chooses():
    shown = nb10.allocation(notebook.Solutions.best_split, "7B", 1024, 64, 2)
    (panel,) = shown.panels
    best = best_split(splits(MODELS["7B"], nb10.job(1024), 64))
    name = f"{best.sampling.gpus} + {best.training.gpus}"
    assert [bar.name.removesuffix(" ◂") for bar in panel.bars if "★" in bar.text] == [name]
    assert [bar.name for bar in panel.bars if "◂" in bar.name] == ["16 + 48 ◂"]
    assert f"the best split has {best.sampling.gpus}" in shown.said
    other = nb10.allocation(lambda gpus, sampling, training: 3, "7B", 1024, 64, 2)
    assert [bar.name for bar in other.panels[0].bars if "★" in bar.text] == ["24 + 40"]
    nothing = nb10.allocation(notebook.Solutions.best_split, "72B", 8192, 8, 4)
    assert "No split of 8 GPUs has room" in nothing.said
    assert {bar.colour for bar in nothing.panels[0].bars} == {"grey"}


@pytest.mark.long
def test_a_real_generator_stays_within_the_budget_with_the_slots_that_the_page_chooses():
    config = settings()
    _, defined = cell_with("def fits").run(config=config)
    cases = defined["sampling_cases"]
    few, many = nb10.measured_cases(config, cases)
    assert few.work.slots < many.work.slots < 64
    assert few.peak < many.peak <= config.budget
    assert few.decode_steps > many.decode_steps


def settings() -> SimpleNamespace:
    _, values = notebook.settings.run()
    return values["config"]


def cell_with(text: str):
    (found,) = [
        cell for cell in notebook.app._cell_manager.cells() if cell and text in cell._cell.code
    ]
    return found
