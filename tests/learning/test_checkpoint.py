"""A learner on disk: it goes on as if it had not been away, and what is read there runs nothing."""

from __future__ import annotations

import io
import os
import pickle
import warnings
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from runs import same_weights
from safetensors import safe_open
from safetensors.torch import save_file

from zorplex_rl.errors import CheckpointError
from zorplex_rl.learning.checkpoint import FILE, load_learner, save_learner
from zorplex_rl.learning.learner import Learner
from zorplex_rl.learning.old_checkpoint import METADATA
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


def save_as_earlier_versions_did(learner: Learner, folder: Path) -> None:
    from torch.distributed import checkpoint  # a second, to import it

    state = {
        "masters": {str(i): master.detach() for i, master in enumerate(learner._masters)},
        "optimizer": {"state": dict(enumerate(learner.optimizer.state.values()))},
        "version": learner.version,
    }
    with warnings.catch_warnings(action="ignore"):
        checkpoint.save(state | {"torch_rng": torch.get_rng_state()}, checkpoint_id=folder, no_dist=True)


@pytest.fixture(scope="module")
def learner() -> Learner:
    return moved()


@pytest.fixture
def new(learner, tmp_path) -> Path:
    save_learner(learner, tmp_path / "new")
    return tmp_path / "new"


@pytest.fixture
def old(learner, tmp_path) -> Path:
    save_as_earlier_versions_did(learner, tmp_path / "old")
    return tmp_path / "old"


@pytest.mark.parametrize("save", [save_learner, save_as_earlier_versions_did])
def test_what_is_loaded_is_what_was_saved_bit_for_bit_also_by_an_earlier_version(save, learner, tmp_path):
    torch.manual_seed(5)
    save(learner, tmp_path)
    drawn, other = torch.rand(3), moved(seed=1)
    load_learner(other, tmp_path)
    assert same_weights(other.state_dict(), learner.state_dict()) and other.version == 7
    assert torch.equal(torch.rand(3), drawn)


def test_a_learner_of_another_step_than_its_checkpoint_is_refused(new):
    load_learner(moved(seed=1), new, step=7)
    with pytest.raises(CheckpointError, match="its learner is of step 7, and the checkpoint of step 8"):
        load_learner(moved(seed=1), new, step=8)


def test_a_checkpoint_is_one_file_of_safetensors_that_everybody_may_read_who_may_read_the_rest(new, learner):
    (new / "beside").write_text("")
    assert (new / FILE).stat().st_mode == (new / "beside").stat().st_mode
    with safe_open(new / FILE, framework="pt") as opened:
        assert set(opened.keys()) == {*learner.state_dict(), "torch_rng"}


def test_a_checkpoint_is_not_larger_than_that_of_an_earlier_version(new, old):
    size = {folder: sum(file.stat().st_size for file in folder.iterdir()) for folder in (new, old)}
    assert size[new] < size[old]


@dataclass
class Runs:
    """Makes ``file`` when it is unpickled."""

    file: str

    def __reduce__(self):
        return os.mknod, (self.file,)


def hostile_pickle(file: Path) -> bytes:
    found = pickle.dumps(Runs(str(file)))
    pickle.loads(found)
    assert file.exists(), "it is hostile"
    file.unlink()
    return found


def refused(folder: Path) -> str:
    """What is said when ``folder`` is loaded."""
    with pytest.raises(CheckpointError) as error:
        load_learner(moved(seed=1), folder)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_numbers_that_are_not_finite_are_refused(tmp_path):
    broken = moved()
    broken.state_dict()["optimizer.state.3.exp_avg"].view(-1)[0] = float("nan")
    save_learner(broken, tmp_path)
    assert refused(tmp_path) == "optimizer.state.3.exp_avg has numbers that are not finite"


def test_a_metadata_that_names_a_function_is_refused_and_the_function_never_called(old, tmp_path):
    ran = tmp_path / "ran"
    for dumped in (
        hostile_pickle(ran),
        b"cbuiltins\nexec\n(S'open(" + repr(str(ran)).replace("'", '"').encode() + b',"w")\'\ntR.',
        # Through a class that is admitted: the name is looked up in it in parts.
        b"\x80\x04ctorch\nSize.__class__\n.",
    ):
        (old / METADATA).write_bytes(dumped)
        assert "which no checkpoint does" in refused(old)
        assert not ran.exists()


@pytest.mark.parametrize(
    "dumped", [b"", b"junk", pickle.dumps([1]), pickle.dumps({"storage_data": 3}), b"(" * 10_000, b"\x80\x04Pshared\n."]
)
def test_a_metadata_that_is_none_is_refused(old, dumped):
    (old / METADATA).write_bytes(dumped)
    assert METADATA in refused(old)


@pytest.mark.parametrize("name", ["../data", "/etc/hostname", "..", ""])
def test_metadata_cannot_name_a_file_elsewhere(old, name):
    file = old / "__0_0.distcp"
    if name == "../data":
        file.rename(old.parent / "data")
    metadata = pickle.loads((old / METADATA).read_bytes())
    for place in metadata.storage_data.values():
        place.relative_path = name
    (old / METADATA).write_bytes(pickle.dumps(metadata))
    assert METADATA in refused(old)


def test_a_value_that_is_a_pickle_of_something_else_is_refused(old, tmp_path, learner):
    ran = tmp_path / "ran"
    metadata = pickle.loads((old / METADATA).read_bytes())
    buffer = io.BytesIO()
    torch.save(Runs(str(ran)), buffer)
    for value in (buffer.getvalue(), hostile_pickle(ran), b"", b"junk"):
        (old / "__0_0.distcp").write_bytes(value)
        for place in metadata.storage_data.values():
            place.offset, place.length = 0, len(value)
        (old / METADATA).write_bytes(pickle.dumps(metadata))
        assert "__0_0.distcp is not as torch saves a tensor" in refused(old)
        assert not ran.exists()


def test_a_value_that_grows_when_it_is_read_is_refused(old):
    metadata = pickle.loads((old / METADATA).read_bytes())
    plain, packed = io.BytesIO(), io.BytesIO()
    torch.save(torch.zeros(10_000_000), plain)
    with zipfile.ZipFile(plain) as archive, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as to:
        for name in archive.namelist():
            to.writestr(name, archive.read(name))
    (old / "__0_0.distcp").write_bytes(packed.getvalue())
    for place in metadata.storage_data.values():
        place.offset, place.length = 0, len(packed.getvalue())
    (old / METADATA).write_bytes(pickle.dumps(metadata))
    assert "__0_0.distcp is not as torch" in refused(old)


@pytest.mark.parametrize("content", [b"", b"\xff" * 8, b"\2\0\0\0\0\0\0\0{}", pickle.dumps([1]), b"\0" * 1000])
def test_a_file_that_holds_no_learner_is_refused(new, content):
    (new / FILE).write_bytes(content)
    assert FILE in refused(new)


def test_tensors_of_another_shape_or_type_and_a_random_state_that_is_none_are_refused(new, learner):
    state = {name: tensor.clone() for name, tensor in learner.state_dict().items()}
    state["torch_rng"] = torch.get_rng_state()
    for name, value, said in (
        ("masters.0", torch.zeros(2, 3), r"masters.0 is [2, 3] of torch.float32, expected"),
        ("masters.1", state["masters.1"].double(), "torch.float64"),
        ("version", torch.zeros(2), "version is [2]"),
        ("torch_rng", torch.zeros(3, dtype=torch.uint8), "torch_rng is no state"),
        ("torch_rng", torch.full_like(state["torch_rng"], 255), "torch_rng is no state"),
    ):
        save_file(state | {name: value}, new / FILE)
        assert said in refused(new)
