"""Settings: each has a name and a bound, and the lists of choices are those of the registries that
they stand for."""

from __future__ import annotations

import ast
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

import zorplex_rl
from zorplex_rl.config import (
    Config,
    Difficulty,
    LearnerConfig,
    LossName,
    ServicesConfig,
    TaskName,
    TransportName,
)
from zorplex_rl.errors import ConfigError
from zorplex_rl.learning.learner import LOSS_SETTINGS
from zorplex_rl.learning.losses import LOSSES
from zorplex_rl.task.specs import DIFFICULTIES, TASK_SPECS
from zorplex_rl.training.transports import READERS


def test_every_task_difficulty_loss_and_transport_that_there_is_can_be_chosen_and_no_other():
    assert get_args(TaskName) == (*TASK_SPECS, "mix")
    assert get_args(Difficulty) == tuple(DIFFICULTIES)
    assert get_args(LossName) == tuple(LOSSES)
    assert get_args(TransportName) == ("auto", *READERS)


def test_a_setting_is_changed_by_its_name_whatever_group_it_is_in_and_survives_json():
    names = list(Config().settings())
    groups = sum(len(fields(group)) for group in (LearnerConfig, ServicesConfig))
    assert len(names) == len(set(names)) == len(fields(Config)) - 2 + groups <= 44
    config = Config().changed(steps=7, learning_rate=0.5, generators=3)
    assert (config.steps, config.learner.learning_rate, config.services.generators) == (7, 0.5, 3)
    assert Config.from_json(config.to_json()) == config
    assert config.difference(config.changed(generators=4)) == "--generators 3 ≠ 4"


NUMBERS = [name for name, value in Config().settings().items() if type(value) in (int, float)]


@pytest.mark.parametrize("name", NUMBERS)
def test_every_number_has_a_bound_that_is_named_when_it_is_passed(name):
    for value in (-(10**30), float("nan")):
        with pytest.raises(ConfigError, match="--" + name.replace("_", "-")):
            Config().changed(**{name: value}).check()


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"transport": "pigeon"}, "--transport"),
        ({"group_size": 1, "loss": "reinforce", "credit": "prefix"}, "--group-size"),
        ({"task": "my.py", "difficulty": "hard"}, "--difficulty"),
        ({"clip_high": -0.1}, "--clip-high"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_their_flag(changed, named):
    with pytest.raises(ConfigError, match=named):
        Config().changed(**changed).check()


def test_every_setting_is_read_somewhere():
    read = set()
    for path in Path(zorplex_rl.__file__).parent.rglob("*.py"):
        tree = ast.parse(path.read_text())
        if path.name == "config.py":
            # What its checks read does nothing yet.
            tree = ast.Module(
                [node for node in ast.walk(tree) if ast.unparse(node).startswith("@property")], []
            )
        if "course" not in path.parts:
            read |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    # The knobs go to the loss by their names.
    assert Config().settings().keys() - read - set(LOSS_SETTINGS) == set()
