"""Does it fit? What cannot is refused with what would; what can is not. Presets are defaults that
flags override."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from typing import get_args

import pytest

from zorplex_rl.cli import size as size_command
from zorplex_rl.cli.commands import main
from zorplex_rl.config import Config
from zorplex_rl.errors import ConfigError
from zorplex_rl.policy.load import EMBEDDED_PATH
from zorplex_rl.sizing import fit
from zorplex_rl.sizing.memory import trainer_memory
from zorplex_rl.sizing.model_shape import ModelShape
from zorplex_rl.sizing.presets import PRESETS, PresetName, preset_config
from zorplex_rl.sizing.workload import Workload
from zorplex_rl.training.devices import roles_with_models

MODEL = ModelShape(layers=12, hidden=768, heads=12, kv_heads=4, intermediate=2048, vocabulary=32000)
GB = 10**9


def meminfo(tmp_path, available: int, group: str = "0::/a/b"):
    """Make a /proc that tells of ``available`` bytes. Returns it."""
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "meminfo").write_text(f"MemTotal: 99999999 kB\nMemAvailable: {available // 1024} kB\n")
    (tmp_path / "proc" / "self" / "cgroup").write_text(f"{group}\n")
    return tmp_path / "proc"


def limit(folder, most: object, used: int, droppable: int, names=("memory.max", "memory.current", "inactive_file")):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{most}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{names[2]} {droppable}\n")


def test_without_a_limit_what_is_available_counts(tmp_path):
    assert fit.available_memory(meminfo(tmp_path, 4096_000), tmp_path / "none") == 4096_000


def test_the_tightest_limit_of_all_groups_above_counts(tmp_path):
    proc, groups = meminfo(tmp_path, 50 * GB), tmp_path / "cgroup"
    limit(groups / "a" / "b", "max", 1, 1)
    limit(groups / "a", 8 * GB, 3 * GB, 1 * GB)
    assert fit.available_memory(proc, groups) == 6 * GB
    limit(groups, 4 * GB, 3 * GB, 0)
    assert fit.available_memory(proc, groups) == 1 * GB


def test_the_limits_of_the_first_kind_of_groups_count_too(tmp_path):
    proc, groups = meminfo(tmp_path, 50 * GB, "4:cpu,memory:/job\n3:pids:/job"), tmp_path / "cgroup"
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    limit(groups / "memory" / "job", 5 * GB, 2 * GB, 0, names)
    assert fit.available_memory(proc, groups) == 3 * GB


def test_of_the_cores_as_many_count_as_the_quotas_of_all_groups_above_leave(tmp_path, monkeypatch):
    monkeypatch.setattr(fit, "allowed_cores", lambda: 64)
    proc, groups = meminfo(tmp_path, GB), tmp_path / "cgroup"
    assert fit.available_cores(proc, groups) == 64
    (groups / "a" / "b").mkdir(parents=True)
    (groups / "a" / "b" / "cpu.max").write_text("max 100000\n")
    (groups / "a" / "cpu.max").write_text("150000 100000\n")
    assert fit.available_cores(proc, groups) == 1.5


def test_the_quotas_of_the_first_kind_of_groups_count_too(tmp_path, monkeypatch):
    monkeypatch.setattr(fit, "allowed_cores", lambda: 64)
    proc, groups = meminfo(tmp_path, GB, "4:cpu,cpuacct:/job\n3:memory:/"), tmp_path / "cgroup"
    (groups / "cpu" / "job").mkdir(parents=True)
    (groups / "cpu" / "job" / "cpu.cfs_quota_us").write_text("-1\n")
    (groups / "cpu" / "job" / "cpu.cfs_period_us").write_text("100000\n")
    assert fit.available_cores(proc, groups) == 64
    (groups / "cpu" / "job" / "cpu.cfs_quota_us").write_text("250000\n")
    assert fit.available_cores(proc, groups) == 2.5


def test_a_system_that_says_nothing_refuses_nothing(tmp_path):
    assert fit.available_memory(tmp_path, tmp_path) is None
    assert fit.check_fit(MODEL, Config(), 100, 8, None) is None


def needed(config: Config, response: int) -> int:
    return fit.run_bytes(MODEL, replace(Workload.of(config, 100), response=response), config)


def test_what_fits_is_neither_refused_nor_warned_of():
    config = Config()
    assert fit.check_fit(MODEL, config, 100, 8, needed(config, config.max_tokens)) is None


def test_what_fits_with_short_answers_only_gets_a_warning_that_says_what_would():
    config = Config()
    between = (needed(config, 8) + needed(config, config.max_tokens)) // 2
    warning = fit.check_fit(MODEL, config, 100, 8, between)
    assert warning is not None and warning.startswith("if answers grow to --max-tokens 96, this run needs about ")
    assert "it would fit with --" in warning and warning.count("\n") == 0


@pytest.mark.parametrize("share", [0.5, 0.65, 0.8])
def test_what_cannot_fit_is_refused_and_what_is_advised_does_fit(share):
    config = Config().changed(token_budget=65536, slots=512, max_tokens=96, prompts_per_step=64)
    available = int(share * needed(config, 8))
    with pytest.raises(
        ConfigError, match="this run needs about .* of main memory, and .* are there; it would fit with --"
    ) as refused:
        fit.check_fit(MODEL, config, 100, 8, available)
    words = str(refused.value).partition("fit with ")[2].split()
    change = {flag[2:].replace("-", "_"): value for flag, value in zip(words[::2], words[1::2], strict=True)}
    advised = config.changed(**{name: value if name == "dtype" else int(value) for name, value in change.items()})
    assert needed(advised, advised.max_tokens) <= available < needed(config, config.max_tokens)


def test_a_machine_that_is_too_small_for_any_setting_is_told_so(wording):
    with pytest.raises(ConfigError) as refused:
        fit.check_fit(MODEL, Config(), 100, 8, GB)
    wording(str(refused.value).partition("; ")[2])


def test_on_a_gpu_the_models_count_there_and_the_ring_does_not():
    config, roles = Config(), roles_with_models(Config())
    on_one = fit.gpu_bytes(MODEL, Workload.of(config, 100), config, dict.fromkeys(roles, "cuda:0"))
    apart = dict(zip(roles, ("cuda:0", "cuda:1", "cuda:2", "cuda:3"), strict=True))
    on_many = fit.gpu_bytes(MODEL, Workload.of(config, 100), config, apart)
    assert sum(on_many.values()) == on_one["cuda:0"] and on_many["cuda:3"] == 0
    memory = trainer_memory(MODEL, Workload.of(config, 100))
    assert on_many["cuda:0"] == memory.on_gpu() < memory.total - memory.parts["weight ring"]
    have = {"cuda:0": 2 * GB, "cuda:1": 80 * GB, "cuda:2": 80 * GB}
    with pytest.raises(ConfigError, match="of cuda:0, and 2.0 GB are there"):
        fit.check_fit(MODEL, config, 100, 8, 500 * GB, have, apart)


def test_train_refuses_before_anything_is_written(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(size_command, "available_memory", lambda: 100_000_000)
    assert main(["train", "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert "this run needs about" in said and said.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_train_on_the_embedded_policy_fits_into_four_gigabytes():
    count = len
    for settings in ({}, {"generators": 2, "max_tokens": 256}, {"token_budget": 65536}):
        config = Config().changed(**settings)
        shape = size_command._read_shape(EMBEDDED_PATH)[0]
        prompt, _ = size_command._prompt_tokens(config, count)
        assert fit.check_fit(shape, config, prompt // 3, 8, 4 * GB) is None


def test_the_check_imports_no_torch():
    program = "import sys; from zorplex_rl.cli import size; assert not {'torch', 'transformers'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_every_preset_can_be_chosen_and_none_has_a_setting_that_is_wrong():
    assert get_args(PresetName) == tuple(PRESETS)
    for name, preset in PRESETS.items():
        preset_config(name).check()
        assert all(reason for _, reason in preset.settings.values())


def test_the_embedded_preset_has_the_shape_of_the_embedded_policy():
    assert PRESETS["embedded"].shape.as_config() == size_command._read_shape(EMBEDDED_PATH)[0].as_config()
    assert preset_config("embedded").policy == Config.policy


@pytest.mark.parametrize(("name", "millions"), [("qwen0.5b", 494), ("qwen1.5b", 1544), ("qwen3b", 3086)])
def test_the_trainer_of_a_preset_fits_on_the_device_that_it_names(name, millions):
    preset, work = PRESETS[name], Workload.of(preset_config(name), prompt=128, stored="bfloat16")
    assert round(preset.shape.parameters / 1e6) == millions
    assert trainer_memory(preset.shape, work).on_gpu() < preset.trainer_gigabytes * GB


def test_flags_win_over_a_preset(monkeypatch):
    from zorplex_rl.cli import commands as cli

    seen = []
    monkeypatch.setattr(cli, "train", lambda command: seen.append(command.config) or 0)
    assert cli.main(["train", "--preset", "qwen0.5b", "--slots", "7", "--dtype", "float32"]) == 0
    (config,) = seen
    assert config == preset_config("qwen0.5b").changed(slots=7, dtype="float32")
    assert json.loads(config.to_json())["learner"]["learning_rate"] == 1e-6


def test_a_preset_and_a_resumed_run_exclude_each_other(tmp_path, capsys):
    assert main(["train", "--preset", "qwen0.5b", "--resume", str(tmp_path)]) == 2
    assert "--preset and --resume exclude each other" in capsys.readouterr().err


def test_size_prints_every_part_of_a_policy_that_is_not_there(capsys):
    assert main(["size", "--preset", "qwen0.5b", "--no-time"]) == 0
    said = capsys.readouterr().out
    for part in (
        "494.0 million parameters",
        "moments",
        "masters",
        "weight ring",
        "logits",
        "key-value cache",
        "staging",
    ):
        assert part in said


def test_size_measures_this_machine_and_tells_the_time_of_a_step(capsys):
    assert main(["size", "--token-budget", "1024", "--slots", "4", "--max-lag", "3"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "a training step" in said and "matrix products" in said and "GFLOP/s in float32" in said
    sampling, training = (float(re.search(rf"{what} ([\d.]+) s", said)[1]) for what in ("its batch", "training step"))
    lag = float(re.search(r"the data's lag will be (\d+) \(--max-lag 3\)", said)[1])
    # Rounding of the seconds may hide which of two equal times is longer.
    assert lag == 3 if sampling < 0.9 * training else lag <= 3
