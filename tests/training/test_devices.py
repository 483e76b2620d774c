"""Which device an actor gets: decided by counting alone, so it is tested without any GPU."""

from __future__ import annotations

import pytest
import torch

from zorplex_rl.config import Config
from zorplex_rl.errors import ConfigError
from zorplex_rl.hosts.lease import count_gpus
from zorplex_rl.training.devices import assign_devices, devices_of, prepare

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
def test_gpus_are_given_in_turn_the_trainer_first_and_without_any_all_compute_on_the_cpu(requested, gpus, expected):
    assert [*assign_devices(requested, ACTORS, gpus).values()] == expected


def test_gpus_that_are_not_there_are_refused(monkeypatch):
    with pytest.raises(ConfigError, match="--device is cuda"):
        assign_devices("cuda", ACTORS, gpus=0)
    monkeypatch.setattr("zorplex_rl.training.devices.count_gpus", lambda: 1)
    with pytest.raises(ConfigError, match="--trainer-processes is 2, .* has 1"):
        devices_of(Config().changed(trainer_processes=2))
    assert count_gpus() == torch.cuda.device_count()


def test_a_run_on_the_cpu_does_not_ask_cuda_how_many_devices_there_are(monkeypatch):
    monkeypatch.delattr("zorplex_rl.training.devices.count_gpus")
    assert set(devices_of(Config(device="cpu")).values()) == {"cpu"}


def test_a_process_on_a_gpu_computes_in_tf32_and_one_on_the_cpu_does_not(monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", asked.append)
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    prepare("cpu", 2)
    assert asked == [2]
    prepare("cuda:1", 2)
    assert asked == [2, "high"]
