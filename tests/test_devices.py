"""Which device an actor gets: decided by counting alone, so it is tested without any GPU."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import torch

from zorplex_rl import devices
from zorplex_rl.config import Config
from zorplex_rl.devices import assign_devices, cores, count_gpus, devices_of, prepare
from zorplex_rl.errors import ConfigError
from zorplex_rl.policy import auto
from zorplex_rl.policy.auto import resolved

ACTORS = ["trainer", "generator_0", "generator_1", "generator_2"]


@pytest.mark.parametrize(
    ("requested", "gpus", "expected"),
    [
        ("auto", 0, ["cpu"] * 4),
        ("cpu", 8, ["cpu"] * 4),
        ("auto", 1, ["cuda:0"] * 4),
        ("auto", 3, ["cuda:0", "cuda:1", "cuda:2", "cuda:0"]),
        ("cuda", 8, ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]),
    ],
)
def test_gpus_are_given_in_turn_the_trainer_first_and_without_any_all_compute_on_the_cpu(
    monkeypatch, requested, gpus, expected
):
    monkeypatch.setattr("zorplex_rl.devices.count_gpus", lambda: gpus)
    assert [*assign_devices(requested, ACTORS).values()] == expected


def test_gpus_that_are_not_there_are_refused(monkeypatch):
    monkeypatch.setattr("zorplex_rl.devices.count_gpus", lambda: 0)
    with pytest.raises(ConfigError, match="--device is cuda"):
        assign_devices("cuda", ACTORS)
    monkeypatch.setattr("zorplex_rl.devices.count_gpus", lambda: 1)
    with pytest.raises(ConfigError, match="--trainer-processes is 2, .* has 1"):
        devices_of(resolved(Config().changed(trainer_processes=2)))
    monkeypatch.undo()
    assert count_gpus() == torch.cuda.device_count()


def test_a_run_on_the_cpu_does_not_ask_cuda_how_many_devices_there_are(monkeypatch):
    monkeypatch.delattr("zorplex_rl.devices.count_gpus")
    assert set(devices_of(resolved(Config(device="cpu"))).values()) == {"cpu"}


@pytest.fixture
def large(tmp_path, monkeypatch) -> Config:
    """A run of a model with 135 MB of weights, on four cores."""
    (tmp_path / "config.json").write_text("{}")
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(135_000_000)
    monkeypatch.setattr(auto, "cores", lambda: 4)
    return Config(policy=str(tmp_path), device="cpu")


def test_a_small_model_computes_in_float32_on_one_thread_whatever_the_machine_and_has_a_spare(
    monkeypatch,
):
    monkeypatch.setattr(auto, "cores", lambda: 64)
    monkeypatch.delattr(auto, "is_faster_in_bfloat16")
    for lag in (0, 1):
        assert resolved(Config(max_lag=lag)) == Config(max_lag=lag).changed(
            dtype="float32", threads=1, spares=1
        )


@pytest.mark.parametrize("faster", [True, False])
def test_a_larger_model_takes_the_faster_number_type_all_cores_in_turns_or_a_share_and_no_spare(
    large, monkeypatch, faster
):
    monkeypatch.setattr(auto, "is_faster_in_bfloat16", lambda: faster)
    for settings, threads in (
        ({"max_lag": 0}, 4),
        ({}, 2),
        ({"generators": 3}, 1),
        ({"max_lag": 0, "generators": 2}, 2),
    ):
        found = resolved(large.changed(**settings))
        assert (found.dtype, found.threads) == ("bfloat16" if faster else "float32", threads)
        assert found.services.spares == 0 and resolved(found) == found
    wished = large.changed(dtype="bfloat16", threads=3, spares=2)
    assert resolved(wished) == wished


def test_the_faster_number_type_is_measured_and_leaves_the_threads_as_they_are():
    threads = torch.get_num_threads()
    with_instructions = any(
        f in Path("/proc/cpuinfo").read_text() for f in ("avx512_bf16", "amx_bf16", " bf16")
    )
    assert devices.is_faster_in_bfloat16() == with_instructions
    assert torch.get_num_threads() == threads


def test_a_process_on_a_gpu_computes_in_tf32_and_one_on_the_cpu_does_not(monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", asked.append)
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    prepare("cpu", 2)
    assert asked == [2]
    prepare("cuda:1", 2)
    assert asked == [2, "high"]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8),
        ({"cpu.max": "200000 100000"}, 2),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu.max": "6400000 100000"}, 8),
    ],
)
@pytest.mark.parametrize("of_macos", [False, True])
def test_a_container_has_the_cores_of_its_quota_and_of_the_machine_no_more(
    tmp_path, monkeypatch, files, expected, of_macos
):
    """With ``docker --cpus 2`` a process sees all cores of its machine."""
    monkeypatch.setattr(devices, "CONTROL_GROUP", tmp_path)
    if of_macos:
        monkeypatch.delattr(os, "sched_getaffinity", raising=False)
        monkeypatch.setattr(os, "cpu_count", lambda: 8)
    else:
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: {*range(8)}, raising=False)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    assert cores() == expected


def test_cores_are_counted_in_one_place():
    """A second one would forget the quota, or that macOS cannot be asked in Linux's way."""
    root = Path(__file__).parents[1]
    files = [
        path for path in root.rglob("*.py") if not path.relative_to(root).parts[0].startswith(".")
    ]
    counting = {
        path
        for path in files
        if {"sched_getaffinity", "cpu_count"} & set(re.findall(r"\w+", path.read_text()))
    }
    assert counting == {Path(devices.__file__), Path(__file__)}
