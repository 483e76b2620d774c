"""A learner on disk: it goes on as if it had not been away, and what is read there runs nothing."""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from runs import same_weights
from safetensors.torch import save_file

from zorplex_rl.errors import CheckpointError
from zorplex_rl.learning.checkpoint import FILE, load_learner, save_learner
from zorplex_rl.learning.learner import Learner
from zorplex_rl.policy.load import load_policy


def moved(seed: int = 0) -> Learner:
    """A learner whose weights and moments are not those that it began with."""
    torch.manual_seed(seed)
    learner = Learner(load_policy())
    for name, tensor in learner.state_dict().items():
        if name != "version":
            tensor.add_(torch.rand_like(tensor))
    learner.version = 7
    return learner


@pytest.fixture(scope="module")
def learner() -> Learner:
    return moved()


@pytest.fixture
def saved(learner, tmp_path) -> Path:
    save_learner(learner, tmp_path)
    return tmp_path


def test_what_is_loaded_is_what_was_saved_bit_for_bit(learner, tmp_path):
    torch.manual_seed(5)
    save_learner(learner, tmp_path)
    drawn, other = torch.rand(3), moved(seed=1)
    load_learner(other, tmp_path)
    assert same_weights(other.state_dict(), learner.state_dict()) and other.version == 7
    assert torch.equal(torch.rand(3), drawn)


@dataclass
class Runs:
    """Makes ``file`` when it is unpickled."""

    file: str

    def __reduce__(self):
        return os.mknod, (self.file,)


def test_nothing_in_a_file_is_unpickled(saved, tmp_path):
    ran = tmp_path / "ran"
    (saved / FILE).write_bytes(pickle.dumps(Runs(str(ran))))
    with pytest.raises(CheckpointError):
        load_learner(moved(seed=1), saved)
    assert not ran.exists()
    pickle.loads((saved / FILE).read_bytes())
    assert ran.exists(), "it is no test"


def test_a_file_that_was_cut_off_or_is_of_another_model_is_refused(saved, learner):
    state = {name: tensor.clone() for name, tensor in learner.state_dict().items()} | {
        "torch_rng": torch.zeros(3)
    }
    whole = (saved / FILE).read_bytes()
    for write in (
        lambda: (saved / FILE).write_bytes(whole[: len(whole) // 2]),
        lambda: save_file(state | {"masters.0": torch.zeros(2, 3)}, saved / FILE),
        lambda: save_file({n: t for n, t in state.items() if n != "masters.1"}, saved / FILE),
    ):
        write()
        with pytest.raises(CheckpointError, match=FILE):
            load_learner(moved(seed=1), saved)
