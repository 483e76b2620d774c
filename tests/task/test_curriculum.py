"""Which task stands at which index: a kind, a mix of all, or a ladder of tiers."""

from collections import Counter

import pytest

from zorplex_rl.task.curriculum import ladder_of, tier_of
from zorplex_rl.task.environment import Zorplex
from zorplex_rl.task.parser import find_call
from zorplex_rl.task.specs import DIFFICULTIES, TASK_SPECS


def test_a_tier_names_its_kind_and_only_compositional_has_difficulties():
    assert tier_of("compositional", "hard") == ("compositional:hard",)
    assert tier_of("simple", "hard") == ("simple:easy",)
    mixed = dict.fromkeys(TASK_SPECS, "easy") | {"compositional": "medium"}
    assert tier_of("mix", "medium") == tuple(map(":".join, mixed.items()))


def test_every_name_a_run_accepts_has_a_tier_and_a_ladder_of_drawable_tasks():
    env = Zorplex(seed=1)
    for name in (*TASK_SPECS, "mix"):
        for tier in (tier_of(name), *ladder_of(name)):
            assert [env.task(tier, index).kind for index in range(len(tier))] == [
                member.split(":")[0] for member in tier
            ]


def test_a_ladder_climbs_through_every_difficulty_and_ends_on_the_hardest_tier():
    assert ladder_of("compositional") == tuple((f"compositional:{d}",) for d in DIFFICULTIES)
    single = tuple(name for name in tier_of("mix") if name != "compositional:easy")
    assert ladder_of("mix")[0] == single
    assert ladder_of("mix")[-1] == (*single, "compositional:hard")
    assert ladder_of("recursive") == (("recursive:easy",),)


def test_the_members_of_a_tier_take_turns_and_none_repeats_its_own_index():
    env, tier = Zorplex(seed=0), tier_of("mix")
    tasks = env.tasks(tier, 10 * len(tier))
    assert Counter(task.kind for task in tasks) == dict.fromkeys(TASK_SPECS, 10)
    assert tasks[len(tier) + 1] == env.spec("compositional").task(1)
    assert env.tasks(tier, 10, start=30) == tasks[30:40]


def test_two_environments_of_one_seed_draw_the_same_tasks_and_of_two_seeds_others():
    tier = tier_of("mix")
    assert Zorplex(3).tasks(tier, 20, "held_out") == Zorplex(3).tasks(tier, 20, "held_out")
    assert Zorplex(3).tasks(tier, 20) != Zorplex(4).tasks(tier, 20)


def test_calls_are_run_with_the_tools_of_the_tasks_kind_and_the_table_of_the_run():
    env = Zorplex(seed=2)
    simple, steps = env.task(("simple",), 0), env.task(("multi_step",), 0)
    call = find_call(f"LOOKUP[{simple.words[0]}]")
    assert env.execute(simple, call) == str(simple.answer)
    assert env.execute(steps, call) == "ERROR: no tool LOOKUP"


@pytest.mark.parametrize("name", ["nope", "nope:easy", "simple:nope", "compositional:easy:x"])
def test_an_unknown_kind_or_difficulty_is_one_clear_sentence(name):
    with pytest.raises(ValueError, match=r"^(task|difficulty) is '[^']+'; expected one of [a-z_, ]+$"):
        Zorplex().spec(name)
