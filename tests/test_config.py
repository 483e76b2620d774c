"""The lists of choices in ``config.py`` are those of the registries that they stand for, and
earlier runs can still be read."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import get_args

import pytest

from zorplex_rl.config import (
    LOSS_KNOBS,
    LOSSES_WITHOUT_GROUPS,
    TASKS_WITH_DIFFICULTY,
    Config,
    Difficulty,
    HostsConfig,
    LearnerConfig,
    LossName,
    ServicesConfig,
    TaskName,
    TransportName,
)
from zorplex_rl.errors import ConfigError
from zorplex_rl.learning.advantages import ADVANTAGES, batch_baseline
from zorplex_rl.learning.losses import LOSSES
from zorplex_rl.task.environment import kinds_of
from zorplex_rl.task.specs import DIFFICULTIES, TASK_SPECS
from zorplex_rl.training.transports import READERS


def test_every_task_difficulty_loss_and_transport_that_there_is_can_be_chosen_and_no_other():
    assert get_args(TaskName) == (*TASK_SPECS, "mix")
    assert get_args(Difficulty) == tuple(DIFFICULTIES)
    assert get_args(LossName) == tuple(LOSSES)
    assert get_args(TransportName) == ("auto", *READERS)
    assert {loss for losses in LOSS_KNOBS.values() for loss in losses} <= set(LOSSES)


def test_the_tasks_with_difficulties_and_the_losses_without_groups_are_named():
    assert [task for task in get_args(TaskName) if kinds_of(task, "hard") != kinds_of(task)] == list(
        TASKS_WITH_DIFFICULTY
    )
    assert [loss for loss in LOSSES if ADVANTAGES[loss] is batch_baseline] == list(LOSSES_WITHOUT_GROUPS)


@pytest.mark.parametrize(("mode", "max_lag"), [("sync", 0), ("async", 3)])
def test_the_mode_of_an_earlier_version_becomes_a_lag(mode, max_lag):
    earlier = Config(max_lag=3).settings() | {"mode": mode}
    assert Config.from_dict(earlier) == Config(max_lag=max_lag)


@pytest.mark.parametrize(
    ("update", "max_lag", "on_update"), [("groups", 2, "wait"), ("in-flight", 2, "continue"), ("in-flight", 0, "wait")]
)
def test_the_update_of_an_earlier_version_has_another_name(update, max_lag, on_update):
    earlier = Config(max_lag=max_lag).settings() | {"update": update}
    del earlier["on_update"]
    assert Config.from_dict(earlier) == Config(max_lag=max_lag, on_update=on_update)


@pytest.mark.parametrize("mode", ["both", None, []])
def test_a_mode_that_never_was_is_refused(mode, wording):
    with pytest.raises(ConfigError) as refused:
        Config.from_dict({"mode": mode})
    wording(refused.value, f"mode {mode}")


def test_a_choice_that_is_none_is_refused_wherever_it_comes_from(wording):
    with pytest.raises(ConfigError) as refused:
        Config(transport="pigeon").check()
    wording(refused.value)


def test_a_setting_has_its_own_name_whatever_group_it_is_in():
    names = list(Config().settings())
    assert (
        len(names)
        == len(set(names))
        == len(fields(Config)) - 3 + sum(len(fields(group)) for group in (LearnerConfig, ServicesConfig, HostsConfig))
    )
    config = Config().changed(steps=7, learning_rate=0.5, generators=3)
    assert (config.steps, config.learner.learning_rate, config.services.generators) == (7, 0.5, 3)
    assert Config.from_dict(config.settings()) == Config.from_dict(json.loads(config.to_json())) == config
    assert config.difference(config.changed(generators=4)) == "--generators 3 ≠ 4"


def test_a_group_that_is_no_object_is_refused(wording):
    with pytest.raises(ConfigError) as refused:
        Config.from_dict({"learner": []})
    wording(refused.value)


HOSTILE = [[], {}, None, True, -1, 0, 1.5, 10**30, -(10**30), 10**5000, float("nan"), "many", "", "\x00", "a" * 10**6]


@pytest.mark.parametrize("name", [*Config().settings(), "learner", "services"])
def test_whatever_stands_in_a_configuration_it_works_or_is_refused_in_one_short_sentence(name):
    for value in HOSTILE:
        said = ""
        try:
            Config.from_dict({name: value}).check()
        except ConfigError as error:
            said = str(error)
        assert len(said) < 300 and "\n" not in said


@pytest.mark.parametrize(
    "name", [name for name, default in Config().settings().items() if type(default) is int and name != "seed"]
)
def test_every_whole_number_has_a_bound_above_which_a_run_would_only_stop_answering(name):
    with pytest.raises(ConfigError, match=r"; it must be 1\d+ or less"):
        Config.from_dict({name: 10**12}).check()
