"""The notebooks as code: their exercises do what they say, and they run from their first cell to their last."""

from __future__ import annotations

import ast
import importlib.util
import math
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from zorplex_rl.course.lesson import exercise, lesson

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("[0-9]*.py"))
every_notebook = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)


def functions_of(notebook: Path) -> list[str]:
    return [node.name for node in ast.parse(notebook.read_text()).body if isinstance(node, ast.FunctionDef)]


EXERCISES = [
    (notebook, name.removeprefix("check_"))
    for notebook in NOTEBOOKS
    for name in functions_of(notebook)
    if name.startswith("check_")
]
every_exercise = pytest.mark.parametrize(("notebook", "name"), EXERCISES, ids=[f"{n.stem}:{e}" for n, e in EXERCISES])

NEAR_MISSES = {
    "answer_times": lambda seconds, concurrent: list(seconds),
    "stuck": lambda waits_for: {name for name, other in waits_for.items() if waits_for.get(other) == name},
    "my_part": lambda total, rank, size: (rank * (total // size), (rank + 1) * (total // size)),
    "average_gradient": lambda gradient, examples, everybody, add_up: add_up(gradient) * examples / everybody,
    "hand_over": lambda old, new: {name: old.get(name, new[name]) for name in new},
    "merge_logs": lambda by_rank: [(time, rank, text) for rank, lines in by_rank.items() for time, text in lines],
    "best_interval": lambda save, mtbf: math.sqrt(save * mtbf),
    "merge": lambda weights, changes: weights + sum(change for change, _ in changes) / max(len(changes), 1),
    "bytes_sent": lambda collective, size, ranks: (ranks - 1) * size / ranks,
    "share_of": lambda flat, rank, ranks: flat.chunk(ranks)[rank],
    "retry_delay": lambda failures, base, cap, draw: draw * min(base * 2 ** (failures - 1), cap),
    "charge_once": lambda database, number, amount: _look_then_charge(database, number, amount),
    "slots_needed": lambda read, write, period: max(2, 1 + math.ceil(read / period)),
    "overlap": lambda source, destination, itemsize: _overlap_in_the_whole(source, destination, itemsize),
    "newest_slot": lambda headers: max(range(len(headers)), key=lambda slot: headers[slot][1]),
    "read": lambda read_headers, read_slot: _read_if_even(read_headers, read_slot),
    "pieces": lambda held, wanted, sent: _overlaps_of_everybody(held, wanted),
    "bytes_to_move": lambda size, sources, destinations, whole: (size, 2 * size),
    "pass_at_k": lambda samples, correct, k: 1 - (1 - correct / samples) ** k,
    "may_start": lambda version, step, on_the_way, per_step, max_lag: (
        (version + max_lag - step) * per_step - on_the_way
    ),
    "successor_may_start": lambda now, last_renewed, lease, drift: now >= last_renewed + lease,
    "generators_needed": lambda generate, train, groups: round(groups * generate / train),
    "corrected": lambda logp, behaviour_logp, advantage: (logp - behaviour_logp).exp().clamp(0.8, 1.2) * advantage,
    "decoupled": lambda logp, behaviour_logp, proximal_logp, advantage: (
        (logp - proximal_logp).exp().clamp(0.8, 1.2) * (proximal_logp - behaviour_logp).exp().clamp(max=2.0) * advantage
    ),
    "bytes_of_cache": lambda layers, hidden, heads, kv_heads, slots, length, itemsize: (
        itemsize * layers * 2 * hidden * slots * length
    ),
    "largest_slots": lambda bytes_of, budget, most: next(
        n for n in range(most, -1, -1) if not n or bytes_of(n) <= budget
    ),
    "first_stage": lambda parameters, ranks, rest, room: next(
        (s for s, b in enumerate((0, 8, 12, 18)) if rest + parameters * (18 - b + b / ranks) <= room), None
    ),
    "truncated_weight": lambda logprob, behaviour_logprob, limit: math.exp(min(logprob - behaviour_logprob, limit)),
}
"""What a reader is likely to write first, and wrongly."""


def _overlap_in_the_whole(source, destination, itemsize):
    first, end = max(source[0], destination[0]), min(sum(source), sum(destination))
    return (first * itemsize, first * itemsize, (end - first) * itemsize) if first < end else None


def _overlaps_of_everybody(held, wanted):
    """Fetches from every copy."""
    parts = {
        rank: tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, wanted, strict=True))
        for rank, box in held.items()
    }
    return [(rank, part) for rank, part in parts.items() if all(first < end for first, end in part)]


def _read_if_even(read_headers, read_slot):
    while True:
        headers = read_headers()
        slot = max(range(len(headers)), key=lambda slot: headers[slot][1])
        weights = read_slot(slot)
        if headers[slot][0] % 2 == 0 and read_headers()[slot][0] % 2 == 0:
            return headers[slot][1], weights


def _look_then_charge(database, number, amount):
    if database.execute("SELECT 1 FROM seen WHERE number = ?", [number]).fetchone() is None:
        for statement, values in (("charges VALUES (?, ?)", [number, amount]), ("seen VALUES (?)", [number])):
            with database:
                database.execute(f"INSERT INTO {statement}", values)


@cache
def load(notebook: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"notebook_{notebook.stem}", notebook)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def parts_of(notebook: Path, name: str) -> tuple:
    return next(parts for found, *parts in exercise.exercises(load(notebook)) if found == name)


@every_notebook
def test_a_notebook_has_three_exercises_or_more(notebook):
    assert sum(found == notebook for found, _ in EXERCISES) >= 3


@every_exercise
def test_a_stub_fails_its_check(notebook, name):
    stub, check, _ = parts_of(notebook, name)
    assert exercise.complaint(check, stub)


@every_exercise
def test_a_solution_passes_its_check(notebook, name):
    _, check, solution = parts_of(notebook, name)
    assert exercise.complaint(check, solution) is None


@every_exercise
def test_the_code_that_the_page_shows_passes_when_it_is_pasted_over_the_stub(notebook, name):
    _, check, solution = parts_of(notebook, name)
    namespace = dict(vars(load(notebook)))
    exec(exercise.solution_source(name, solution), namespace)
    assert exercise.complaint(check, namespace[name]) is None


@pytest.mark.parametrize(
    ("notebook", "name"),
    [(n, e) for n, e in EXERCISES if e in NEAR_MISSES],
    ids=lambda value: getattr(value, "stem", value),
)
def test_a_check_refuses_what_a_reader_is_likely_to_write_first(notebook, name):
    _, check, _ = parts_of(notebook, name)
    assert exercise.complaint(check, NEAR_MISSES[name])


def test_a_complaint_says_what_was_called_what_came_and_what_should_have():
    def double(x):
        return x + 1

    said = exercise.complaint(lambda f: exercise.expect(f, 3, result=6), double)
    assert said == "`double(3)` gives `4`, and should give `6`"


def test_a_stub_that_raises_is_a_complaint_and_no_crash():
    assert exercise.complaint(lambda f: f([]), max).startswith("`max` raises `ValueError")


def test_expect_tells_numbers_from_truth_values_and_is_patient_with_floats():
    exercise.expect(lambda: 0.1 + 0.2, result=0.3)
    exercise.expect(lambda: (1, [2.0]), result=[1, (2.0,)])
    with pytest.raises(AssertionError):
        exercise.expect(lambda: True, result=1)


@every_notebook
def test_a_notebook_has_a_title_of_its_own(notebook):
    assert lesson.title_of(notebook) != notebook.stem


def test_links_name_the_neighbours_that_are_there(tmp_path):
    for name in ("01_a.py", "02_b.py", "03_c.py"):
        (tmp_path / name).write_text(f'import marimo\napp = marimo.App(app_title="Title of {name[3]}")\n')
    said = lesson.links(str(tmp_path / "02_b.py")).text
    assert "Title of a" in said
    assert "marimo edit notebooks/03_c.py" in said
    assert "02_b.py" not in said
    assert "Before" not in lesson.links(str(tmp_path / "01_a.py")).text


def test_the_course_starts_at_05_and_names_the_first_notebook_for_those_who_need_it(tmp_path):
    for name, title in (("01_a.py", "Actors"), ("04_b.py", "Shards"), ("05_c.py", "RL"), ("06_d.py", "Services")):
        (tmp_path / name).write_text(f'app = marimo.App(app_title="{title}")\n')
    start = lesson.links(str(tmp_path / "05_c.py")).text
    assert "The course starts here. If actors are new to you, first: <strong>Actors</strong>" in start
    assert "Shards" not in start and "Next: <strong>Services</strong>" in start
    assert "Before this: <strong>RL</strong>" in lesson.links(str(tmp_path / "06_d.py")).text


def test_a_table_has_a_caption_and_puts_numbers_on_the_right():
    said = lesson.table("Times", [{"kind": "simple", "seconds": "0.12"}, {"kind": "recursive", "seconds": "1.30"}]).text
    assert "<caption>Times</caption>" in said
    assert '<td class="number">0.12</td>' in said
    assert "<td>simple</td>" in said


@every_notebook
def test_what_is_computed_becomes_markup_in_one_place_only(notebook):
    """``mo.md`` and ``mo.Html`` let HTML through: a notebook gives them nothing that it has not written itself."""
    calls = [node for node in ast.walk(ast.parse(notebook.read_text())) if isinstance(node, ast.Call)]
    passed = [call for call in calls if ast.unparse(call.func) in ("mo.md", "mo.Html", "mo.as_html", "mo.iframe")]
    assert [ast.unparse(call) for call in passed if not isinstance(call.args[0], ast.Constant)] == []
