"""The notebooks as code: their exercises do what they say, and they run from their first cell to their last."""

from __future__ import annotations

import ast
import importlib.util
import math
import sys
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from closed_form import exact_seconds

from zorplex_rl.course.lesson import exercise, lesson
from zorplex_rl.learning.train_simple import compare, policy_gradient
from zorplex_rl.policy.load import load_policy
from zorplex_rl.policy.rollout import RolloutRequest, Sampling, rollout
from zorplex_rl.simulation.recorded import group_variation
from zorplex_rl.simulation.setting import Setting
from zorplex_rl.task.environment import Zorplex
from zorplex_rl.task.specs import TASK_SPECS
from zorplex_rl.timeline import group_latencies

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
    "may_restart": lambda failed_at, now, most=3, window=10.0: len(failed_at) < most,
    "steps_lost": lambda step, every: every,
    "best_interval": lambda save, mtbf: math.sqrt(save * mtbf),
    "merge": lambda weights, changes: weights + sum(change for change, _ in changes) / max(len(changes), 1),
    "bytes_sent": lambda collective, size, ranks: (ranks - 1) * size / ranks,
    "placement_of_product": lambda x, w: {"R": w, "S0": "S0"}.get(x, "P" if w == "S0" else None),
    "share_of": lambda flat, rank, ranks: flat.chunk(ranks)[rank],
    "bytes_held": lambda parameters, ranks, stage: 16 * parameters / (ranks if stage else 1),
    "math_reward": lambda text, answer: float(str(answer) in text.replace(",", "")),
    "leave_one_out": lambda rewards: [reward - sum(rewards) / len(rewards) for reward in rewards],
    "training_row": lambda policy, episode: (episode.token_ids, [True] * len(episode.token_ids)),
    "speed_up": lambda generate, train, steps: (generate + train) / max(generate, train),
    "rank": lambda under_way, last_turn: under_way,
    "retry_delay": lambda failures, base, cap, draw: draw * min(base * 2 ** (failures - 1), cap),
    "charge_once": lambda database, number, amount: _look_then_charge(database, number, amount),
    "slots_needed": lambda read, write, period: max(2, 1 + math.ceil(read / period)),
    "overlap": lambda source, destination, itemsize: _overlap_in_the_whole(source, destination, itemsize),
    "read_whole": lambda read_header, read_payload: _read_if_even(read_header, read_payload),
    "seconds_to_move": lambda parameters, bytes_each, gigabits: parameters * bytes_each / (1e9 * gigabits),
    "pieces": lambda held, wanted: _overlaps_of_everybody(held, wanted),
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


def _read_if_even(read_header, read_payload):
    while True:
        sequence, version = read_header()
        payload = read_payload()
        if sequence % 2 == 0 and read_header()[0] % 2 == 0:
            return version, payload


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


@cache
def notebook_05() -> ModuleType:
    return load(next(path for path in NOTEBOOKS if path.stem == "05_rl_intro"))


SLOW_TOOLS = {"work": 0.3, "slowest": 3.0, "train": 0.2, "pull": 0.01}


def test_05_a_batch_that_waits_for_its_slowest_episode_does_not_shrink_with_generators():
    step = notebook_05().one_batch_at_a_time
    assert step(**SLOW_TOOLS, generators=8) == step(**SLOW_TOOLS) == pytest.approx(3.01)
    all_work = SLOW_TOOLS | {"work": 3.0, "slowest": 0.1}
    assert step(**all_work, generators=8) == pytest.approx(3.0 / 8 + 0.01)


@pytest.mark.parametrize("work", [0.01, 0.3, 1.0, 5.0])
@pytest.mark.parametrize("slowest", [0.01, 0.3, 3.0])
@pytest.mark.parametrize("train", [0.02, 0.3, 3.0])
def test_05_one_of_each_gains_at_most_twice_with_one_batch_at_a_time_and_more_where_batches_overlap(
    work, slowest, train
):
    notebook, phases = notebook_05(), {"work": work, "slowest": slowest, "train": train, "pull": 0.01}
    in_turns = max(work, slowest) + train + 0.01
    one = notebook.one_batch_at_a_time(**phases)
    assert in_turns / one <= 2
    before = one
    for lag in (1, 4, 8):
        pace = notebook.batches_overlap(**phases, max_lag=lag)
        assert pace <= before
        assert in_turns / pace <= lag + 1 + 1e-9
        before = pace
    generators, lag = notebook.enough_for_the_trainer(**phases)
    assert notebook.batches_overlap(**phases, max_lag=lag, generators=generators) == train


def test_05_overlap_beats_the_bound_of_two_when_tools_are_slow():
    notebook = notebook_05()
    in_turns = 3.0 + 0.2 + 0.01
    assert (
        in_turns / notebook.batches_overlap(**SLOW_TOOLS, max_lag=4)
        > 2
        > in_turns / notebook.one_batch_at_a_time(**SLOW_TOOLS)
    )
    assert notebook.enough_for_the_trainer(**SLOW_TOOLS | {"pull": 0.3}) is None


def test_05_overlap_without_waits_for_tools_is_the_simulators_bound():
    """What a generator only computes cannot overlap: then both say the same about the long run."""
    setting = Setting(
        generators=1, groups_per_step=1, steps=400, max_lag=1, variation=0, generation_seconds=2.0, sync_seconds=0.0
    )
    pace = notebook_05().batches_overlap(work=2.0, slowest=2.0, train=setting.training_seconds, pull=0.0, max_lag=1)
    assert exact_seconds(setting, "async") / setting.steps == pytest.approx(pace, rel=0.01)


def test_05_tells_what_the_policy_wrote_itself_from_what_a_tool_wrote():
    def paid(outcome, *turns):
        return notebook_05().paid_for(
            SimpleNamespace(
                task=SimpleNamespace(answer=50),
                score=SimpleNamespace(outcome=outcome),
                sampled_text=[text for text, _ in turns],
                turns=[SimpleNamespace(text=text, result=result) for text, result in turns],
            )
        )

    assert paid("success", ("[ANSWER] 50", None)) == "answer"
    assert paid("wrong_format", ("LOOKUP[a]", " -> 50\n"), ("so it is 50", None)) == "own words"
    assert paid("wrong_format", ("LOOKUP[a]", " -> 50\n"), ("done", None)) == "tool's words"
    assert paid("wrong_answer", ("LOOKUP[a]", " -> 150\n"), ("[ANSWER] 501", None)) is None


def small_05(**changes) -> SimpleNamespace:
    """Settings of 05 that are small enough for a test."""
    settings = {
        "policy": "embedded",
        "device": "cpu",
        "seed": 0,
        "hints": False,
        "tasks_per_kind": 24,
        "max_tokens": 96,
        "prompts": 4,
        "samples": 4,
        "steps": 2,
        "learning_rate": 3e-4,
        "threads": 1,
        "tool_seconds": 0.005,
    }
    return SimpleNamespace(**settings | changes)


ENV_05, SAMPLING_05 = Zorplex(seed=0), Sampling(max_tokens=96, slots=64)


@pytest.mark.parametrize("kind", TASK_SPECS)
def test_05_the_tool_loop_on_the_page_gives_the_engines_episodes(embedded, kind):
    tasks = ENV_05.tasks((kind,), 3)
    engine = rollout(embedded, [RolloutRequest(t, s) for s, t in enumerate(tasks)], ENV_05.execute, SAMPLING_05)
    for seed, found in enumerate(engine):
        ids, sampled, logprobs = notebook_05().sample_episode(embedded, tasks[seed], ENV_05.execute, SAMPLING_05, seed)
        assert (ids, sampled) == (found.token_ids, found.sampled)
        assert logprobs == pytest.approx(found.logprobs, abs=1e-4)


def test_05_the_loss_on_the_page_has_the_gradient_of_the_package():
    notebook, policy = notebook_05(), load_policy()
    batch = notebook.write_batch(policy, ENV_05, SAMPLING_05, small_05(), step=0)
    rewards = [episode.score.reward for episode in batch]
    advantages = [a for start in range(0, 16, 4) for a in notebook.advantages_of(rewards[start : start + 4])]
    assert advantages == pytest.approx([a for start in range(0, 16, 4) for a in compare(rewards[start : start + 4])])
    assert any(advantages)
    gradients = []
    for loss_of in (notebook.loss_of, policy_gradient):
        policy.model.zero_grad()
        loss_of(policy, batch, advantages).backward()
        gradients.append([parameter.grad.clone() for parameter in policy.model.parameters()])
    for ours, package in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, package, rtol=1e-3, atol=1e-6)


def test_05_the_plugged_in_advantage_is_what_trains():
    """An advantage that finds all episodes alike teaches nothing; the solution moves the weights."""
    notebook = notebook_05()

    def weights_after(advantage):
        generator, trainer = load_policy(), load_policy()
        settings = small_05(steps=1)
        run = notebook.training_loop(
            generator,
            trainer,
            ENV_05,
            SAMPLING_05,
            settings,
            advantage,
            notebook.training_row_solution,
            lambda step, batch: None,
        )
        assert {span.kind for span in run.timeline.spans} == {"generate", "train", "pull"}
        vectors = [torch.nn.utils.parameters_to_vector(p.model.parameters()) for p in (generator, trainer)]
        assert torch.equal(*vectors), "the generator has pulled"
        return vectors[0]

    start = torch.nn.utils.parameters_to_vector(load_policy().model.parameters())
    assert torch.equal(weights_after(lambda rewards: [0.0] * len(rewards)), start)
    assert not torch.equal(weights_after(notebook.leave_one_out_solution), start)


def test_05_its_two_loops_both_learn_and_only_one_is_told_the_answer():
    torch.manual_seed(0)
    right = torch.tensor([1, 2, 0])
    policies = [torch.nn.Embedding(3, 3, _weight=torch.zeros(3, 3)) for _ in range(2)]
    optimizers = [torch.optim.SGD(policy.parameters(), lr=1.0) for policy in policies]
    questions, tried = torch.arange(3).repeat(40), []

    def reward(question, answer):
        tried.append(answer)
        return float(answer == right[question])

    notebook_05().supervised_loop(policies[0], optimizers[0], questions, right)
    notebook_05().rl_loop(policies[1], optimizers[1], questions, reward)
    for policy in policies:
        assert policy.weight.argmax(-1).equal(right)
    assert set(tried) == {0, 1, 2}


@pytest.mark.long
def test_05_runs_from_its_first_cell_to_its_last():
    config = small_05()
    _, values = notebook_05().app.run(defs={"config": config})
    assert [report.episodes for report in values["reports"]] == [24] * 4
    assert all(values["same_tokens"]) and values["largest_gap"] < 1e-4
    assert values["one_step"]["loss"] < 1e-4 and values["one_step"]["weights"] < 0.05
    assert values["advantage_in_use"] is compare, "the reader has not written one yet"
    assert values["row_in_use"].__name__ == "training_row_solution", "the fault is still in the reader's"
    assert values["foreseen"][False] < values["foreseen"][True]
    assert min(values["with_rewards"]) > values["with_labels"]
    assert values["lenient"] > values["strict"]
    assert len(values["run"].batches) == config.steps == len(values["measured"]["train"])
    assert values["was"].episodes == values["now"].episodes == config.tasks_per_kind
    groups = [group_latencies(batch) for batch in values["run"].batches]
    assert values["this_machine"].variation == pytest.approx(group_variation(groups))
    assert [len(batch) for batch in groups] == [config.prompts] * config.steps
    assert sum(values["paid_shares"].values()) == pytest.approx(values["lenient"])


@every_notebook
def test_what_is_computed_becomes_markup_in_one_place_only(notebook):
    """``mo.md`` and ``mo.Html`` let HTML through: a notebook gives them nothing that it has not written itself."""
    calls = [node for node in ast.walk(ast.parse(notebook.read_text())) if isinstance(node, ast.Call)]
    passed = [call for call in calls if ast.unparse(call.func) in ("mo.md", "mo.Html", "mo.as_html", "mo.iframe")]
    assert [ast.unparse(call) for call in passed if not isinstance(call.args[0], ast.Constant)] == []


def _read_without_looking(read_header, read_payload):
    return read_header()[1], read_payload()


def _ignore_the_odd_bit(read_header, read_payload):
    while True:
        before, payload = read_header(), read_payload()
        if read_header() == before:
            return before[1], payload


def _ignore_the_odd_bit_of_the_first_header(read_header, read_payload):
    while True:
        before, payload, after = read_header(), read_payload(), read_header()
        if after[0] % 2 == 0 and after[1] == before[1]:
            return before[1], payload


def _compare_only_versions(read_header, read_payload):
    while True:
        before = read_header()
        if before[0] % 2:
            continue
        payload = read_payload()
        if read_header()[1] == before[1]:
            return before[1], payload


def _compare_only_versions_and_ignore_the_odd_bit(read_header, read_payload):
    while True:
        before, payload = read_header(), read_payload()
        if read_header()[1] == before[1]:
            return before[1], payload


def _take_the_later_version(read_header, read_payload):
    while True:
        before, payload, after = read_header(), read_payload(), read_header()
        if before[0] % 2 == after[0] % 2 == 0:
            return after[1], payload


def _try_again_only_once(read_header, read_payload):
    for _ in range(2):
        before, payload = read_header(), read_payload()
        if before[0] % 2 == 0 and read_header() == before:
            break
    return before[1], payload


@pytest.mark.parametrize(
    "reader",
    [
        _read_without_looking,
        _ignore_the_odd_bit,
        _ignore_the_odd_bit_of_the_first_header,
        _compare_only_versions,
        _compare_only_versions_and_ignore_the_odd_bit,
        _take_the_later_version,
        _try_again_only_once,
    ],
)
def test_no_reader_that_leaves_out_a_part_of_the_seqlock_passes(reader):
    notebook = next(path for path in NOTEBOOKS if path.stem == "07_rdma_weight_sync")
    _, check, _ = parts_of(notebook, "read_whole")
    assert "read_whole returns version" in (exercise.complaint(check, reader) or "")
