"""Notebook 10: the budgets on the page are the package's, real processes take what they say, and
the page runs on what the reader writes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace

import pytest
from test_answers import answers, refusals
from test_notebooks import Later

from zorplex_rl.course import nb10
from zorplex_rl.course.nb10_gpus import MODELS, Split, splits
from zorplex_rl.policy.load import EMBEDDED_PATH
from zorplex_rl.sizing.memory import (
    BatchShape,
    Workload,
    activation_bytes,
    trainer_memory,
)
from zorplex_rl.sizing.model_shape import ModelShape, shape_of

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
    e = bytes_of(work)
    by_hand = notebook.Solutions.static_parts(shape.parameters, e, 4, stage)
    by_hand["logits"] = notebook.Solutions.logit_bytes(
        batch.responses * batch.response, shape.vocabulary
    )
    largest = {part: max(parts.get(part, 0) for parts in phases) for part in by_hand}
    assert {part: int(size) for part, size in by_hand.items()} == largest


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_activations_are_the_packages_but_for_masks_and_copies_of_the_tree(shape, dtype):
    batch = BatchShape(tokens=700, seen=0, copied=0, responses=1, response=1)
    e = {"float32": 4, "bfloat16": 2}[dtype]
    assert notebook.activation_bytes(shape, 700, e) == activation_bytes(shape, batch, dtype)


def test_what_is_recomputed_is_not_kept():
    shape, tokens = MODELS["72B"], 2559
    inputs = notebook.checkpointed_bytes(shape, tokens, 2)
    one_layer = notebook.activation_bytes(replace(shape, layers=1), tokens, 2)
    assert inputs == one_layer + shape.layers * 2 * shape.hidden * tokens
    assert notebook.activation_bytes(shape, tokens, 2) > 10 * inputs


def first_stage():
    static = notebook.Solutions.static_parts
    _, budget = cell_with("def trainer_budget").run(static=static)
    cell = cell_with("def first_stage")
    _, defined = cell.run(static=static, trainer_budget=budget["trainer_budget"])
    return defined["first_stage"]


def test_72b_fits_512_gpus_only_if_activations_are_recomputed():
    first = first_stage()
    assert first(MODELS["72B"], 512) == "none"
    assert first(MODELS["72B"], 512, True) == 3
    assert first(MODELS["7B"], 8) in (1, 2, 3)


def test_with_adapters_32b_fits_8_gpus_and_without_it_does_not():
    first = first_stage()
    assert first(MODELS["32B"], 8, True) == "none"
    assert first(MODELS["32B"], 8, rank=16) == 3


@pytest.mark.parametrize(("dtype", "bytes_each"), [("float32", 4), ("bfloat16", 2)])
def test_a_frozen_parameter_takes_its_weight_and_a_trained_one_16_bytes(dtype, bytes_each):
    shape = MODELS["1.5B"]
    work = Workload(evaluated=0, dtype=dtype, transfer=dtype)
    taken = notebook.run_bytes(shape, work, 0) - notebook.run_bytes(shape, work, 16)
    assert taken > 10 * shape.parameters
    (parts, *_) = trainer_memory(shape, replace(work, lora_rank=16)).phases.values()
    assert parts["weights"] == bytes_each * shape.parameters
    trained = [parts["adapters"], parts["masters"], 4 * shape.trained(16), parts["moments"]]
    assert sum(trained) == 16 * shape.trained(16)


def best_split(found: list[Split]) -> Split | None:
    return min(
        (split for split in found if split.fits), key=lambda split: split.seconds, default=None
    )


@pytest.mark.parametrize("model", ["0.5B", "7B", "72B"])
@pytest.mark.parametrize("gpus", [8, 64])
def test_the_best_split_is_the_fastest_that_fits(model, gpus):
    found = splits(MODELS[model], nb10.job(1024), gpus)
    assert nb10.best_of(notebook.Solutions.best_split, found) is best_split(found)


def test_the_slider_marks_the_best_split_of_all_beside_the_eighths():
    """The text above it tells the same one."""
    best = nb10.best_split_of(notebook.Solutions.best_split, "7B", 1024, 64)
    assert best == best_split(splits(MODELS["7B"], nb10.job(1024), 64, nb10.PARTS))
    shown = nb10.allocation(notebook.Solutions.best_split, "7B", 1024, 64, 2)
    (panel,) = shown.panels
    name = f"{best.sampling.gpus} + {best.training.gpus}"
    assert [bar.name.removesuffix(" ◂") for bar in panel.bars if "★" in bar.text] == [name]
    assert [bar.name for bar in panel.bars if "◂" in bar.name] == ["16 + 48 ◂"]
    assert f"the best split has {best.sampling.gpus}" in shown.said
    for eighths in range(1, 8):
        said = nb10.allocation(notebook.Solutions.best_split, "7B", 1024, 64, eighths).said
        assert ("no split is faster" in said) == (8 * eighths == best.sampling.gpus)


def test_the_slider_shows_what_the_readers_function_chooses_and_says_where_nothing_fits():
    other = nb10.allocation(lambda gpus, sampling, training: 3, "7B", 1024, 64, 2)
    assert [bar.name for bar in other.panels[0].bars if "★" in bar.text] == ["6 + 58"]
    nothing = nb10.allocation(notebook.Solutions.best_split, "72B", 8192, 8, 4)
    assert "No split of 8 GPUs has room" in nothing.said
    assert {bar.colour for bar in nothing.panels[0].bars} == {"grey"}


def test_the_table_of_the_gpu_is_the_record():
    text = PATH.read_text()
    record = (PATH.parents[1] / "benchmarks" / "real_model.json").read_text()
    rows = re.findall(r"\| (\w+), (\w+) \| ([\d.]+) \| ([\d.]+) \|", text)
    assert len(rows) == 4
    for role, dtype, computed, measured in rows:
        (line,) = (line for line in record.splitlines() if f'"{role}, peak GB' in line)
        assert f"{dtype} {computed}, {measured}" in line


def sum_of(shape: ModelShape, work: Workload) -> float:
    """The sum by hand of the largest micro-batch, with the ring, in float32 on one rank."""
    batch = max(work.micro_batches(), key=lambda batch: batch.tokens)
    parts = notebook.Solutions.static_parts(shape.parameters, 4, 1, 0)
    logits = notebook.Solutions.logit_bytes(batch.responses * batch.response, shape.vocabulary)
    kept = notebook.activation_bytes(shape, batch.tokens, 4)
    return sum(parts.values()) + 8 * shape.parameters + logits + kept


def test_the_sum_and_memory_py_differ_in_gradients_activations_and_reserve():
    config = settings()
    assert len(config.work.micro_batches()) == 1
    computed = trainer_memory(config.shape, config.work)
    assert computed.highest == "forward" and "gradients" not in computed.parts
    (batch,) = config.work.micro_batches()
    more = activation_bytes(config.shape, batch, "float32")
    more -= notebook.activation_bytes(config.shape, batch.tokens, 4)
    assert more > 0
    differences = more - 4 * config.shape.parameters + computed.parts["reserve"]
    assert computed.total - sum_of(config.shape, config.work) == differences


def test_the_ratios_of_the_benchmarks_trainers_are_those_of_its_table(monkeypatch):
    root = PATH.parents[1]
    monkeypatch.syspath_prepend(root / "benchmarks")
    made = run_path(f"{root}/benchmarks/sizing.py")["MADE"]
    shapes = {"embedded": shape_of(EMBEDDED_PATH), **made}
    sums, computed = [], []
    for line in (root / "benchmarks" / "LOG.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) != 8 or cells[1:3] != ["trainer", "float32"] or cells[0] not in shapes:
            continue
        groups, size, prompt, response = map(int, re.findall(r"\d+", cells[3]))
        work = Workload(prompt, response, groups, size, token_budget=int(cells[4]), evaluated=0)
        sums.append(sum_of(shapes[cells[0]], work) / 1e6 / int(cells[6]))
        computed.append(float(cells[7]))
    assert len(sums) == 9
    text = PATH.read_text()
    assert f"such a sum was {min(sums):.2f} to {max(sums):.2f} times what was measured" in text
    assert f"`memory.py` {min(computed):.2f} to {max(computed):.2f} times" in text


def test_near_the_best_split_a_few_gpus_hardly_matter_and_far_from_it_they_do():
    found = splits(MODELS["7B"], nb10.job(1024), 64, nb10.PARTS)
    best = best_split(found)
    near = [split for split in found if abs(split.sampling.gpus - best.sampling.gpus) <= 4]
    assert len(near) == 5 and max(split.seconds for split in near) < 1.1 * best.seconds
    assert max(split.seconds for split in found if split.fits) > 2 * best.seconds


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


@pytest.mark.parametrize(
    ("page", "name", "attempt", "words"),
    [
        ("10", "static_parts", "each_stage_by_itself", "you divide at each stage only what it"),
        ("10", "best_split", "the_shortest_sum_with_room", "you add the two times"),
        ("10", "best_split", "the_most_equal", "you take the two most equal times"),
        ("10", "best_split", "nothing_is_infinite", "if no split has room, return `None`"),
        ("10b", "two_trainers", "a_fast_host", "multiply by `1 + drift`, do not divide"),
        ("10b", "lease_is_over", "a_fast_clock", "multiply by `1 + drift`, do not divide"),
        ("10b", "lease_is_over", "the_margin_in_the_lease", "the margin is no part of the lease"),
        ("10b", "lease_is_over", "the_margin_on_the_wrong_side", "the margin makes the wait"),
        ("10b", "shortest_lease", "both_divided", "multiply by `1 + drift`, do not divide"),
        (
            "10b",
            "shortest_lease",
            "the_margin_in_the_shortest_lease",
            "the margin is no part of the lease",
        ),
    ],
)
def test_a_likely_mistake_is_told_in_words(page, name, attempt, words):
    wrong = getattr(answers(page), attempt)
    assert words in refusals(page, name, [wrong])[attempt]
