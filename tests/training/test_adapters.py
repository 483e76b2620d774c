"""Runs that train an adapter, on real processes: the same guarantees as for all weights."""

from __future__ import annotations

import json
import os
import signal

import pytest
import torch
from runs import SMALL, final_weights, same_weights, train_here
from safetensors.torch import load_file

from zorplex_rl.cli.commands import main
from zorplex_rl.policy.load import EMBEDDED_PATH, load_policy
from zorplex_rl.training.loop import train_async

pytestmark = pytest.mark.slow

ADAPTED = SMALL.changed(lora_rank=4, learning_rate=3e-3, warmup_steps=0)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return train_here(ADAPTED, tmp_path_factory.mktemp("adapters") / "run")


def test_side_by_side_at_lag_0_it_ends_in_the_same_adapter_as_in_turns(undisturbed, tmp_path):
    other = train_here(ADAPTED, tmp_path / "run", loop=train_async)
    assert same_weights(final_weights(undisturbed.path), final_weights(other.path))
    assert not same_weights(
        final_weights(undisturbed.path), load_file(EMBEDDED_PATH / "model.safetensors")
    )


@pytest.mark.long
def test_a_killed_trainer_comes_back_with_the_same_adapter(undisturbed, tmp_path):
    started = []

    def show(row):
        if row["event"] == "step" and row["step"] == 3:
            os.kill(started[0].roles.trainer.service.replicas[0].pid, signal.SIGKILL)

    run = train_here(ADAPTED, tmp_path / "run", show=show, on_start=started.append)
    assert same_weights(final_weights(undisturbed.path), final_weights(run.path))


@pytest.mark.long
def test_a_run_of_two_processes_trains_the_same_adapter_up_to_the_order_of_sums(
    undisturbed, tmp_path
):
    run = train_here(ADAPTED.changed(trainer_processes=2), tmp_path / "run")
    one, two = final_weights(undisturbed.path), final_weights(run.path)
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(one[name], two[name], atol=1e-4, rtol=1e-3)


def test_a_run_is_continued_and_exported_merged_or_as_an_adapter(undisturbed, tmp_path, capsys):
    assert main(["export", str(undisturbed.path), "--to", str(tmp_path / "merged")]) == 0
    assert (
        main(["export", str(undisturbed.path), "--to", str(tmp_path / "adapter"), "--adapter"]) == 0
    )
    merged, adapter = load_policy(str(tmp_path / "merged")), load_policy(str(tmp_path / "adapter"))
    ids = torch.arange(3, 43)[None]
    torch.testing.assert_close(
        merged.model(ids).logits, adapter.model(ids).logits, atol=1e-4, rtol=1e-4
    )
    assert json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["r"] == 4


@pytest.mark.long
def test_training_goes_on_from_an_exported_adapter_and_says_what_it_publishes(
    undisturbed, tmp_path, capsys
):
    first, run, second = (str(tmp_path / name) for name in ("first", "run", "second"))
    assert main(["export", str(undisturbed.path), "--to", first, "--adapter"]) == 0
    small = "--lora-rank 4 --steps 1 --prompts-per-step 2 --group-size 2 --eval-tasks 2"
    assert main(["train", "--policy", first, *small.split(), "--out", run]) == 0
    assert "adapters of rank 4: 0.2 MB a version" in capsys.readouterr().out
    assert main(["export", run, "--to", second, "--adapter"]) == 0
    settings = json.loads((tmp_path / "second" / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == "embedded"


def test_a_checkpoint_holds_adapters_only(undisturbed):
    checkpoint = undisturbed.newest_checkpoint() / "trainer" / "learner.safetensors"
    numbers = sum(p.numel() for p in load_policy(lora_rank=4).model.parameters() if p.requires_grad)
    assert checkpoint.stat().st_size < 4 * 3 * numbers + 100_000


@pytest.mark.long
def test_replayed_it_is_the_same_bit_for_bit(undisturbed, capsys):
    assert main(["replay", str(undisturbed.path)]) == 0


@pytest.mark.long
def test_a_penalty_for_leaving_the_start_needs_no_process(tmp_path):
    run = train_here(ADAPTED.changed(kl_coefficient=0.1, steps=2), tmp_path / "run")
    rows = [row for row in run.metrics() if row["event"] == "step"]
    assert [row["reference_kl"] > 1e-9 for row in rows] == [False, True]
    (started,) = [row for row in run.metrics() if row["event"] == "started"]
    assert not any(name.startswith("reference") for name in started["processes"])
