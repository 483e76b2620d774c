"""Which device an actor gets: decided by counting alone, so it is tested without any GPU."""

from __future__ import annotations

import pytest
import torch

from zorplex_rl.config import Config
from zorplex_rl.errors import ConfigError
from zorplex_rl.training import devices
from zorplex_rl.training.controller import devices_of
from zorplex_rl.training.devices import assign_devices, prepare

ACTORS = ["trainer", "generator_0", "generator_1", "generator_2", "reference"]


@pytest.mark.parametrize("requested", ["auto", "cpu"])
def test_without_cuda_everything_is_on_the_cpu(requested):
    assert set(assign_devices(requested, ACTORS, cuda_count=0).values()) == {"cpu"}


def test_one_gpu_is_shared():
    assert set(assign_devices("auto", ACTORS, cuda_count=1).values()) == {"cuda:0"}


def test_of_several_gpus_the_trainer_gets_the_first_and_shares_it_last():
    three = assign_devices("auto", ACTORS, cuda_count=3)
    assert three == {
        "trainer": "cuda:0",
        "generator_0": "cuda:1",
        "generator_1": "cuda:2",
        "generator_2": "cuda:0",
        "reference": "cuda:1",
    }
    eight = assign_devices("cuda", ACTORS, cuda_count=8)
    assert len(set(eight.values())) == len(ACTORS)


def test_the_cpu_is_used_where_it_is_asked_for_although_there_are_gpus():
    assert set(assign_devices("cpu", ACTORS, cuda_count=4).values()) == {"cpu"}


def test_cuda_that_is_not_there_is_refused_in_a_sentence():
    with pytest.raises(ConfigError, match="no CUDA device; use --device auto or cpu"):
        assign_devices("cuda", ACTORS, cuda_count=0)


def test_a_run_on_the_cpu_does_not_ask_cuda_how_many_devices_there_are(monkeypatch):
    def refuse():
        raise AssertionError("CUDA was asked")

    monkeypatch.setattr("torch.cuda.device_count", refuse)
    assert set(devices_of(Config(device="cpu")).values()) == {"cpu"}


@pytest.mark.parametrize("has_driver", [False, True])
def test_torch_is_asked_for_gpus_only_where_there_is_a_driver(monkeypatch, has_driver):
    monkeypatch.setattr("zorplex_rl.training.devices.has_driver", lambda: has_driver)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert assign_devices("auto", ACTORS[:2]) == (
        {"trainer": "cuda:0", "generator_0": "cuda:1"} if has_driver else dict.fromkeys(ACTORS[:2], "cpu")
    )


def test_where_torch_sees_a_gpu_there_is_a_driver():
    assert devices.has_driver() or not torch.cuda.device_count()


def test_a_process_on_a_gpu_computes_in_tf32_and_one_on_the_cpu_does_not(monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda precision: asked.append(precision))
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    prepare("cpu", 2)
    assert asked == [2]
    prepare("cuda:1", 2)
    assert asked == [2, "high"]
