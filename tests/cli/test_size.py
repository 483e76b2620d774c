"""``zorplex-rl size`` prints memory by part; ``train`` warns, and presets are defaults that flags
override."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from zorplex_rl.cli import commands, size
from zorplex_rl.cli.presets import PRESETS, PresetName, preset_config
from zorplex_rl.config import Config
from zorplex_rl.policy.load import EMBEDDED_PATH
from zorplex_rl.sizing.memory import BYTES, Workload, generator_memory, trainer_memory
from zorplex_rl.sizing.model_shape import ModelShape
from zorplex_rl.task.environment import Environment
from zorplex_rl.task.own_task import EnvironmentSource

pytestmark = pytest.mark.slow

MODEL = ModelShape(layers=12, hidden=768, heads=12, kv_heads=4, intermediate=2048, vocabulary=32000)


def environment_of(config: Config) -> Environment:
    return EnvironmentSource.of(config).make()


def test_every_part_of_every_process_is_printed_and_added_up(capsys):
    assert commands.main(["size", "--kl-coefficient", "0.1", "--generators", "2"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for part in ("0.9 million parameters", "moments", "weight ring", "activations", "cache of the stream", "staging"):
        assert part in said
    for process in ("trainer", "generator × 2", "spare", "reference"):
        assert process in said
    assert "not known" not in said


@pytest.mark.long
def test_what_was_measured_is_about_what_was_computed(capfd):
    assert commands.main(["size", "--measure", "--prompts-per-step", "2", "--slots", "8"]) == 0
    said = " ".join(capfd.readouterr().out.split())
    for role in ("trainer", "generator"):
        measured = int(re.search(rf"measured: {role} (\d+) MB", said)[1])
        assert measured > 0


def test_the_processes_of_a_run_are_counted():
    config = Config().changed(generators=3, spares=0, kl_coefficient=0.1, dtype="bfloat16", generator_dtype="float32")
    work = Workload.of(config, 100)
    found = {role: (count, memory) for role, count, memory in size.processes(MODEL, work, config)}
    assert {role: count for role, (count, _) in found.items()} == {"trainer": 1, "generator": 3, "reference": 1}
    assert found["trainer"][1] == trainer_memory(MODEL, work)
    # Generators that compute in another type than the trainer.
    assert found["generator"][1].phases["sample"]["weights"] == BYTES["float32"] * MODEL.parameters
    assert generator_memory(MODEL, work).phases["sample"]["weights"] == BYTES["bfloat16"] * MODEL.parameters


@pytest.mark.parametrize("share", [0.9, 1.1])
def test_train_warns_of_a_run_that_may_outgrow_the_memory_and_refuses_none(share, capsys, monkeypatch):
    config, environment = Config(), environment_of(Config())
    work = size.workload_of(config, str(EMBEDDED_PATH), environment)
    needed = size.run_bytes(size.processes(size.shape_of(EMBEDDED_PATH), work, config), config)
    monkeypatch.setattr(size, "available_memory", lambda: int(share * needed))
    size.warn_of_memory(config, str(EMBEDDED_PATH), environment)
    said = capsys.readouterr().err
    assert ("warning" in said) == (share < 1)
    assert (size.gigabytes(needed) in said) == (share < 1)


def test_the_default_run_fits_into_four_gigabytes():
    for settings in ({}, {"generators": 2, "max_tokens": 256}, {"token_budget": 65536}):
        config = Config().changed(**settings)
        work = size.workload_of(config, str(EMBEDDED_PATH), environment_of(config))
        assert size.run_bytes(size.processes(size.shape_of(EMBEDDED_PATH), work, config), config) < 4e9


def test_every_preset_can_be_chosen_and_none_has_a_setting_that_is_wrong():
    assert get_args(PresetName) == tuple(PRESETS)
    for name, settings in PRESETS.items():
        preset_config(name).check()
        assert all(reason for _, reason in settings.values())


def test_flags_win_over_a_preset(monkeypatch):
    seen = []
    monkeypatch.setattr(commands, "train", lambda command: seen.append(command.config) or 0)
    assert commands.main(["train", "--preset", "embedded", "--slots", "7", "--steps", "9"]) == 0
    assert seen == [preset_config("embedded").changed(slots=7, steps=9)]


def test_a_preset_and_a_resumed_run_exclude_each_other(tmp_path, capsys):
    assert commands.main(["train", "--preset", "embedded", "--resume", str(tmp_path)]) == 2
    assert "--resume" in capsys.readouterr().err
