"""``zorplex-rl size`` prints memory by part; ``train`` warns, and presets are defaults that flags
override."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import get_args

import pytest

from zorplex_rl.cli import size
from zorplex_rl.cli.commands import main, parse
from zorplex_rl.cli.presets import PresetName, preset_config
from zorplex_rl.config import Config
from zorplex_rl.learning.advantages import ADVANTAGES, group_centred
from zorplex_rl.policy.auto import resolved
from zorplex_rl.policy.load import EMBEDDED_PATH
from zorplex_rl.policy.tokenizer import FastTokenizer, encode_prompt
from zorplex_rl.sizing.memory import Workload, generator_memory, trainer_memory
from zorplex_rl.sizing.model_shape import ModelShape
from zorplex_rl.task.environment import Zorplex, kinds_of
from zorplex_rl.task.own_task import EnvironmentSource
from zorplex_rl.task.specs import TaskSpec, get_spec

MODEL = ModelShape(layers=12, hidden=768, heads=12, kv_heads=4, intermediate=2048, vocabulary=32000)


DEFAULT = resolved(Config())
EMBEDDED = size.shape_of(EMBEDDED_PATH)


def needed(config: Config) -> int:
    """Bytes of a run of ``config`` with the embedded policy."""
    work = size.workload_of(config, EMBEDDED_PATH, EMBEDDED, EnvironmentSource.of(config).make())
    return size.run_bytes(size.processes(EMBEDDED, work, config), config)


def test_every_process_is_printed_with_its_parts(capsys):
    assert main(["size", "--kl-coefficient", "0.1", "--generators", "2"]) == 0
    said = capsys.readouterr().out
    for process in ("trainer", "generator × 2", "spare", "reference"):
        assert process in said
    assert size.gigabytes(needed(DEFAULT.changed(kl_coefficient=0.1, generators=2))) in said


@pytest.mark.parametrize("shots", [0, 2])
def test_prompts_are_counted_in_the_chat_template_without_torch(shots):
    """With the system prompt, the worked examples and what the template adds, as the sampler has them."""
    program = (
        "import sys; from zorplex_rl.cli.size import *; from zorplex_rl.task.environment import *; "
        f"config, world = Config(shots={shots}), Zorplex(0, kinds_of('compositional'), {shots}); "
        "from zorplex_rl.policy.load import EMBEDDED_PATH; "
        "work = workload_of(config, EMBEDDED_PATH, shape_of(EMBEDDED_PATH), world); "
        "print(work.prompt, work.shared_prompt, {'torch', 'transformers'} & sys.modules.keys())"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    tasks = Zorplex(0, kinds_of("compositional"), shots)
    prompts = [
        encode_prompt(FastTokenizer(EMBEDDED_PATH), tasks.task(index))
        for index in range(size.PROMPTS_TRIED)
    ]
    shared = next(i for i, tokens in enumerate(zip(*prompts, strict=False)) if len(set(tokens)) > 1)
    assert said == f"{max(map(len, prompts))} {shared} set()\n"


@pytest.mark.long
def test_a_real_trainer_and_a_real_generator_are_measured(capfd):
    assert main(["size", "--measure", "--prompts-per-step", "2", "--slots", "8"]) == 0
    measured = re.findall(r"measured: (\w+) (\d+) MB", capfd.readouterr().out)
    assert [role for role, _ in measured] == ["trainer", "generator"]
    assert all(int(megabytes) > 0 for _, megabytes in measured)


def test_the_processes_of_a_run_are_counted():
    config = Config().changed(generators=3, spares=0, kl_coefficient=0.1, dtype="bfloat16")
    work = Workload.of(config, 100)
    found = {role: (count, memory) for role, count, memory in size.processes(MODEL, work, config)}
    assert {role: count for role, (count, _) in found.items()} == {
        "trainer": 1,
        "generator": 3,
        "reference": 1,
    }
    assert found["trainer"][1] == trainer_memory(MODEL, work)
    assert found["generator"][1] == generator_memory(MODEL, work)


@pytest.mark.parametrize("share", [0.9, 1.1])
def test_train_warns_of_a_run_that_may_outgrow_the_memory_and_refuses_none(
    share, capsys, monkeypatch
):
    monkeypatch.setattr(size, "available_memory", lambda: int(share * needed(DEFAULT)))
    work = size.workload_of(DEFAULT, EMBEDDED_PATH, EMBEDDED, EnvironmentSource.of(DEFAULT).make())
    size.warn_of_memory(DEFAULT, EMBEDDED, work)
    said = capsys.readouterr().err
    assert ("warning" in said) == (size.gigabytes(needed(DEFAULT)) in said) == (share < 1)


def test_the_default_run_fits_into_four_gigabytes():
    for settings in ({}, {"generators": 2, "max_tokens": 256}, {"token_budget": 65536}):
        assert needed(DEFAULT.changed(**settings)) < 4e9


def test_the_preset_of_smollm2_shows_an_example_of_each_wording_and_divides_by_no_deviation():
    """What made one run in eight not learn (benchmarks/LOG.md)."""
    config = preset_config("smollm2")
    examples = get_spec(config.task).examples(config.shots)
    assert len({question.split()[0] for question, _ in examples}) == len(TaskSpec.phrasings)
    assert ADVANTAGES[config.learner.loss] is group_centred


def test_flags_win_over_a_preset_which_a_resumed_run_does_not_take(tmp_path, capsys):
    given = ["train", "--preset", "embedded", "--slots", "7", "--steps", "9"]
    assert parse(given, parse(given).defaults()).config == preset_config("embedded").changed(
        slots=7, steps=9
    )
    for name in get_args(PresetName):
        preset_config(name).check()
    assert main(["train", "--preset", "embedded", "--resume", str(tmp_path)]) == 2
    assert "--resume" in capsys.readouterr().err
