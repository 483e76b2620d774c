"""Which task stands at which index: a kind, or several in turn; its tools, its score."""

from collections import Counter

import pytest

from zorplex_rl.task.environment import ZORPLEX, Zorplex, kinds_of
from zorplex_rl.task.parser import find_call
from zorplex_rl.task.specs import TASK_SPECS

MIX = kinds_of("mix")


def test_only_compositional_has_difficulties():
    assert kinds_of("compositional", "hard") == ("compositional:hard",)
    assert kinds_of("simple", "hard") == ("simple:easy",)
    mixed = dict.fromkeys(TASK_SPECS, "easy") | {"compositional": "medium"}
    assert kinds_of("mix", "medium") == tuple(map(":".join, mixed.items()))


def test_kinds_take_turns_and_none_repeats_its_own_index():
    env = Zorplex(seed=0)
    tasks = env.tasks(MIX, 10 * len(MIX))
    assert Counter(task.kind for task in tasks) == dict.fromkeys(TASK_SPECS, 10)
    assert tasks[len(MIX) + 1] == env.spec("compositional").task(1)
    assert (
        env.tasks(MIX, 10, start=30) == tasks[30:40] == [env.task(index) for index in range(30, 40)]
    )


def test_calls_are_run_with_the_tools_of_the_tasks_kind_and_scored_whatever_the_environments_seed():
    ((simple,), (steps,)) = (Zorplex(seed=2).tasks((kind,), 1) for kind in ("simple", "multi_step"))
    call = find_call(f"LOOKUP[{simple.words[0]}]")
    assert ZORPLEX.execute(simple, call) == str(simple.answer)
    assert ZORPLEX.execute(steps, call) == "ERROR: no tool LOOKUP"
    assert ZORPLEX.score(simple, ["", f"[ANSWER] {simple.answer}"], 1, "eos").outcome == "success"


@pytest.mark.parametrize("name", ["nope", "nope:easy", "simple:nope", "compositional:easy:x"])
def test_an_unknown_kind_or_difficulty_is_one_clear_sentence(name):
    with pytest.raises(
        ValueError, match=r"^(task|difficulty) is '[^']+'; expected one of [a-z_, ]+$"
    ):
        Zorplex().spec(name)
