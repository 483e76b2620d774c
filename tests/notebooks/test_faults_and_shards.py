"""Notebooks 03 and 04 as code: what they write out works alone, agrees with the package, and leaves
no process behind."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest
import torch
from runs import command
from test_answers import answers, refusals
from test_notebooks import NOTEBOOKS, load
from torch.distributed.tensor import Shard

from zorplex_rl.course.lesson import exercise
from zorplex_rl.services.runtime import ReplicaDied
from zorplex_rl.weights.reshard.plan import Sharding, local_box

pytestmark = pytest.mark.slow

RUN = """
import json, runpy, sys
from types import SimpleNamespace

notebook = runpy.run_path(sys.argv[1], run_name="notebook")
_, values = notebook["app"].run(defs={"config": SimpleNamespace(**json.loads(sys.argv[2]))})
print(json.dumps(eval(sys.argv[3], dict(values))))
"""


def run(stem: str, config: dict, wanted: str):
    """Run a notebook as a script does, in its own process; the value of ``wanted``. It may print
    nothing, and leave no process."""
    notebook = next(path for path in NOTEBOOKS if path.stem == stem)
    with command(
        str(notebook), json.dumps(config), wanted, program=(sys.executable, "-c", RUN)
    ) as running:
        code, printed = running.finish(timeout=500)
        assert code == 0, printed
        assert running.all_gone(), f"{len(running.members())} processes are left"
    assert printed.count("\n") == 1, printed
    return json.loads(printed)


@pytest.mark.long
def test_03_breaks_its_workers_and_says_what_it_measured():
    config = {
        "watched": 14.0, "learners": 2, "rounds": 30, "killed_in": 10,
        "local_steps": 5, "rate": 0.002, "deadline": 20.0,
    }  # fmt: skip
    found = run(
        "03_fault_tolerance",
        config,
        "dict(saw=[one.saw for one in suffered], next=[one.next for one in suffered], woken=woken.next, late=[woken.before, woken.after],"
        "beside=[one.beside for one in suffered], told=[handled, passed_on],"
        "did={fate: [made[1:] for made in one.decisions if made[2] != 'wait'] for fate, one in lived.items()},"
        "found={fate: sorted({made[1] for made in one.decisions}) for fate, one in lived.items()},"
        "state=[lived['kill -9'].before, lived['kill -9'].after], known=known, resumed=resumed,"
        "present={name: [round[0] for round in history] for name, (_, history) in trained.items()},"
        "error={name: history[-1][1][-1] for name, (_, history) in trained.items()})",
    )
    assert found["saw"] == ["ActorError", *["SupervisionError"] * 3]
    assert found["next"] == [7, *["SupervisionError"] * 3]
    assert found["beside"] == ["here"] * 2 + ["SupervisionError"] * 2, (
        "sys.exit ends the actor only"
    )
    assert found["told"] == [1, "SupervisionError"]
    assert found["late"] == [False, True], "a stopped process goes on where it was"
    assert found["woken"] == "SupervisionError"
    did = found["did"]
    assert did["sys.exit"] == did["kill -9"] == did["SIGSTOP"] == [["dead", "replace"]]
    assert did["SIGSTOP for 1 s"] == did["a call of 3 s"] == []
    assert did["a call of 60 s"] == [["stuck", "replace"]]
    assert did["a text that crashes it"] == [["dead", "replace"]] * 2 + [["dead", "give up"]]
    assert "busy" in found["found"]["a call of 3 s"] and "slow" in found["found"]["SIGSTOP for 1 s"]
    assert found["state"] == [5, 1]
    assert found["resumed"] == found["known"] - found["known"] % 50
    assert found["present"]["undisturbed"] == [2] * 30
    assert found["error"]["undisturbed"] < found["error"]["one fewer"]
    assert found["present"]["one fewer"] == [2] * 9 + [1] * 21


@pytest.mark.long
def test_04_counts_what_its_own_formulas_say_and_less_in_its_ring_than_gloo():
    config = {"ranks": 2, "megabytes": 4}
    found = run("04_distributed_tensors", config, "collectives")
    if sys.platform == "linux":
        for name, (formula, sent) in found.items():
            if name != "reduce_scatter":
                assert formula <= sent < 1.05 * formula + 10_000, (
                    "the rest are headers, and what was sent again"
                )
        assert found["reduce_scatter"][1] > 1.5 * found["reduce_scatter, ring"][1], (
            "the page says that gloo adds up everything everywhere"
        )


@pytest.mark.long
def test_04b_agrees_with_torch_and_sends_one_sum_forward_and_one_backward():
    config = {"ranks": 2, "seed": 0, "batch": 256, "width": 64, "steps": 2, "rate": 0.1}
    found = run(
        "04b_sharding_by_hand",
        config,
        "dict(apart=[parallel_apart, fsdp_apart], sent=parallel_sent, one=one_sum, fsdp=fsdp, kept=kept / (4 * weights))",
    )
    assert max(found["apart"]) < 1e-4
    assert found["kept"] == pytest.approx(0.5, rel=0.01)
    if sys.platform == "linux":
        assert found["sent"] == pytest.approx(2 * found["one"], rel=0.1)
        (ddp, ddp_sent), (hand, hand_sent), (library, library_sent) = found["fsdp"].values()
        assert (ddp, ddp_sent) == (hand, pytest.approx(hand, rel=0.1))
        one_gather = library - hand
        assert library_sent - hand_sent == pytest.approx(one_gather, rel=0.1), (
            "the page says that torch gathers twice"
        )


def load_03() -> ModuleType:
    return load(next(path for path in NOTEBOOKS if path.stem == "03_fault_tolerance"))


def load_04() -> ModuleType:
    return load(next(path for path in NOTEBOOKS if path.stem == "04_distributed_tensors"))


SAID = {
    "stuck_before_dead": "dead comes before stuck",
    "busy_before_slow": "slow comes before busy",
    "kills_the_slow": "a worker that has missed a probe is slow, and waits",
    "the_limit_of_silence_is_death": "exactly `limits.silent` is still allowed",
    "the_limit_of_a_call_is_stuck": "exactly `limits.busy` is still allowed",
    "gives_up_the_idle": "only dead and stuck workers are given up",
    "counts_the_present_failure": "the present one does not count",
    "gives_up_one_later": "earlier failures are enough",
    "counts_all_failures": "only failures of the last `limits.window` seconds count",
    "a_failure_at_the_border_is_old": "exactly `limits.window` seconds old counts",
    "the_limit_of_silence_is_2_5": "limits=namespace(silent=4",
    "in_whole_seconds": "derive `t`",
    "by_search": "derive `t`",
}
"""What the checks of 03 say of an answer of ``answers_03.py``."""


@pytest.mark.parametrize("name", ["decide", "best_interval"])
def test_the_checks_of_03_say_what_was_misunderstood_and_name_the_arguments(name):
    said = refusals("03", name, answers("03").WRONG[name])
    for attempt, sentence in said.items():
        assert SAID.get(attempt, "") in sentence, attempt
        assert name != "decide" or "`decide(gone=" in sentence


def worker(ping: Callable[[], object]):
    """A worker whose probe answers with what ``ping`` returns or raises."""

    async def answer():
        return ping()

    call = SimpleNamespace(call_one=lambda: SimpleNamespace(as_asyncio=answer))
    return SimpleNamespace(probe=SimpleNamespace(ping=call))


def dead():
    raise ReplicaDied("gone")


LIMITS = SimpleNamespace(every=0.01, probe=0.05, silent=1.0, busy=5.0, restarts=2, window=10.0)


def supervise(monkeypatch, workers, seconds=0.3, limits=LIMITS):
    """Give a supervisor of 03 these workers, one after the other; (supervisor, what it did, in
    order)."""
    notebook, did = load_03(), []

    async def end(one):
        did.append(("end", workers.index(one)))

    async def begin():
        did.append(("begin", sum(what == "begin" for what, _ in did)))
        return workers[did[-1][1]]

    async def watch():
        async with notebook.Supervisor(begin, limits, notebook.Solutions.decide) as guard:
            await asyncio.sleep(seconds)
        return guard

    monkeypatch.setattr(notebook, "end", end)
    return asyncio.run(watch()), did


def test_the_supervisor_of_03_ends_the_dead_before_it_begins_the_next_and_leaves_the_living_alone(
    monkeypatch,
):
    guard, did = supervise(monkeypatch, [worker(dead), worker(lambda: "here")])
    assert did == [("begin", 0), ("end", 0), ("begin", 1), ("end", 1)]
    assert [action for *_, action in guard.decisions].count("replace") == len(guard.failed_at) == 1


def test_the_supervisor_of_03_gives_up_on_a_fault_that_comes_back(monkeypatch):
    guard, did = supervise(monkeypatch, [worker(dead)] * 5)
    assert [what for what, _ in did] == ["begin", "end"] * 3
    assert guard.worker is None
    once, _ = supervise(
        monkeypatch, [worker(dead)] * 5, limits=SimpleNamespace(**vars(LIMITS) | {"restarts": 0})
    )
    assert len(once.failed_at) == 1


def train(merge, present=(0, 1, 2), rounds=20):
    """Train as 03 does, with learners in this process; the mean error at the end."""
    notebook = load_03()

    def learner(share):
        async def steps(*args):
            return (
                notebook.local_steps(*notebook.curve(share, 3), *args)
                if share in present
                else dead()
            )

        def call_one(*args):
            return SimpleNamespace(as_asyncio=lambda: steps(*args))

        return SimpleNamespace(actor=SimpleNamespace(train=SimpleNamespace(call_one=call_one)))

    config = SimpleNamespace(rounds=rounds, local_steps=20, rate=0.003, deadline=60.0, learners=3)
    _, history = asyncio.run(
        notebook.semi_sync([learner(share) for share in range(3)], config, merge)
    )
    assert {learners for learners, *_ in history} == {len(present)}
    return sum(history[-1][1]) / 3


def test_the_merge_that_is_plugged_into_03_is_the_one_that_trains():
    notebook = load_03()

    def stands_still(weights, changes):
        return weights

    assert train(notebook.Solutions.merge) < 0.9 * train(stands_still)
    assert exercise.complaint(notebook.Solutions.check_merge, stands_still)


@pytest.mark.long
def test_03_trains_on_with_whoever_is_there():
    merge = load_03().Solutions.merge
    assert train(merge, present=(0, 1)) != train(merge)
    assert train(merge, present=()) == train(lambda weights, changes: weights)


@pytest.mark.parametrize("length", [0, 1, 4, 5, 7])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("dim", [0, 1])
def test_cut_of_04_holds_what_the_package_says(length, ranks, dim):
    whole = torch.arange(6.0 * length).reshape((length, 6) if dim == 0 else (6, length))
    parts = [load_04().cut(whole, dim, rank, ranks) for rank in range(ranks)]
    sharding = Sharding((ranks,), (Shard(dim),))
    assert [tuple(part.shape) for part in parts] == [
        local_box(whole.shape, sharding, rank).sizes for rank in range(ranks)
    ]
    assert torch.equal(torch.cat(parts, dim), whole)
