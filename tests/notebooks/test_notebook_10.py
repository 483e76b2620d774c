"""Notebook 10: the budgets on the page are the package's, real processes take what they say, and the reader's slots are those that run."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_actor_notebooks import written_out
from test_allocation import WORK
from test_course import minutes
from test_notebooks import load

from zorplex_rl.course.lesson.plug_in import plug_in
from zorplex_rl.course.widgets.widget import pack
from zorplex_rl.sizing.allocation import MODELS, best_split, splits
from zorplex_rl.sizing.measured_size import Case
from zorplex_rl.sizing.sizing import ModelShape, Workload, generator_memory, trainer_memory
from zorplex_rl.sizing.step_time import Machine, train_seconds

PATH = Path(__file__).parents[2] / "notebooks" / "10_scaling_out.py"
notebook = load(PATH)
MECHANISM = ("trainer_budget", "generator_budget", "train_operations")
SHAPES = [
    ModelShape(layers=2, hidden=64, heads=4, kv_heads=2, intermediate=96, vocabulary=500),
    ModelShape(layers=3, hidden=48, heads=6, kv_heads=6, intermediate=100, vocabulary=333, tied=False),
    MODELS["7B"],
]
WORKS = [
    Workload(100, 64, prompts=4, group_size=4, tasks=4, evaluated=0),
    Workload(30, 9, prompts=2, group_size=3, slots=5, tasks=2, evaluated=0, dtype="bfloat16", transfer="bfloat16"),
]


@pytest.fixture(scope="module")
def alone() -> dict:
    """What the page writes out, and nothing else of the notebook."""
    written: dict = {}
    exec(written_out(PATH, *MECHANISM), written)
    return written


def test_the_mechanism_on_the_page_is_short():
    found = [node for node in ast.parse(PATH.read_text()).body if getattr(node, "name", "") in MECHANISM]
    for node in found:
        assert [ast.unparse(decorator) for decorator in node.decorator_list] == ["app.function"]
    assert minutes.visible_lines(ast.parse("\n\n".join(map(ast.unparse, found)))) <= 55


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("work", WORKS)
def test_the_budgets_on_the_page_alone_are_the_packages(alone, shape, work):
    e = {"float32": 4, "bfloat16": 2}[work.dtype]
    (batch, _), *_ = work.micro_batches
    of_package = notebook.largest_parts(trainer_memory(shape, work))
    assert alone["trainer_budget"](shape, batch, e) == {
        part: of_package.get(part, 0) for part in alone["trainer_budget"](shape, batch, e)
    }
    rows = min(work.slots, work.tasks * work.group_size)
    of_package = generator_memory(shape, replace(work, slots=rows)).phases["sample"]
    by_hand = alone["generator_budget"](shape, rows, notebook.cache_length(work), e)
    assert by_hand == {part: of_package[part] for part in by_hand}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("budget", [300, 8192])
def test_the_operations_on_the_page_alone_are_the_packages(alone, shape, budget):
    work = replace(WORKS[0], token_budget=budget)
    one = Machine(1.0, 1.0, 1.0, 1.0, *[float("inf")] * 5, 0.0)
    expected = train_seconds(shape, work, one)
    found = dict.fromkeys(("matrix products", "attention", "logits"), 0)
    for batch, count in work.micro_batches:
        for part, number in alone["train_operations"](shape, batch).items():
            found[part] += count * number
    assert found == {part: expected[part] for part in found}


def settings() -> SimpleNamespace:
    _, values = notebook.settings.run()
    return values["config"]


def asked(config: SimpleNamespace) -> tuple:
    work = Workload(99, config.answer, config.sampled_prompts, 8, 8192, 8, 50, config.sampled_prompts, 0)
    return config.shape, work, config.budget, 64


def as_many_as_there_are(bytes_of, budget, most):
    return most


def used(largest_slots):
    found, _ = plug_in(
        largest_slots,
        notebook.largest_slots_solution,
        lambda yours: notebook.slots_for(yours, *asked(settings())) in range(1, 65),
        seconds=0.5,
    )
    return found


def test_what_chooses_no_number_of_slots_is_not_plugged_in():
    def for_ever(bytes_of, budget, most):
        while True:
            pass

    for wrong in (notebook.largest_slots, lambda *_: 0, lambda *_: "8", for_ever):
        assert used(wrong) is notebook.largest_slots_solution
    assert used(as_many_as_there_are) is as_many_as_there_are


@pytest.mark.long
def test_the_readers_slots_run_within_the_budget_if_they_are_right_and_beyond_it_if_they_are_wrong():
    config = settings()
    chosen = [
        notebook.slots_for(each, *asked(config)) for each in (notebook.largest_slots_solution, as_many_as_there_are)
    ]
    cases = [
        Case("generator", "", prompts=8, group_size=8, max_tokens=config.answer, slots=slots, calibrate=False)
        for slots in chosen
    ]
    (right, _), (wrong, _) = notebook.measured_cases(config.shape, cases, expected=30)
    assert chosen[0] < chosen[1]
    assert right.peak <= config.budget < wrong.peak
    assert right.decode_steps > wrong.decode_steps


def test_a_stage_divides_what_it_names():
    parts = [notebook.on_each_gpu(SHAPES[0], 4, stage, WORKS[1].micro_batches[0][0]) for stage in range(4)]
    n = SHAPES[0].parameters
    assert [part["moments"] for part in parts] == [8 * n, 2 * n, 2 * n, 2 * n]
    assert [part["gradients"] for part in parts] == [4 * n, 4 * n, n, n]
    assert [part["weights"] for part in parts] == [2 * n, 2 * n, 2 * n, n // 2]
    assert len({part["activations"] for part in parts}) == 1


def test_the_slider_shows_the_best_split_and_the_readers():
    shown = notebook.allocation("7B", 1024, 64, 512, 2)
    (panel,) = shown.panels
    best = best_split(splits(MODELS["7B"], WORK, 64))
    assert [bar.name.removesuffix(" ◂") for bar in panel.bars if "★" in bar.text] == [
        f"{best.sampling.gpus} + {best.training.gpus}"
    ]
    assert [bar.name for bar in panel.bars if "◂" in bar.name] == ["16 + 48 ◂"]
    assert f"the best split has {best.sampling.gpus}" in shown.said
    assert "With 16 of 64 GPUs" in shown.said
    nothing = notebook.allocation("72B", 8192, 8, 512, 4)
    assert "No split of 8 GPUs has room" in nothing.said
    assert {bar.colour for bar in nothing.panels[0].bars} == {"grey"}


def test_the_table_of_the_slider_is_small():
    positions = [
        notebook.allocation(model, answer, 64, 512, eighths)
        for model in MODELS
        for answer in (256, 4096)
        for eighths in range(1, 8)
    ]
    assert len(pack([str(position) for position in positions])) * 6 * 6 < 600_000
