"""Ten failures are one sentence each; whatever else fails is a line on the terminal, and all of it in
the log of the run. Those of what was asked for are in ``test_cli.py``."""

from __future__ import annotations

import pytest
from runs import SMALL, as_flags, command, state_at

from zorplex_rl.cli import train
from zorplex_rl.errors import HostError, StorageError, TrainingDiverged
from zorplex_rl.run.folder import RunFolder
from zorplex_rl.services.options import GivenUp
from zorplex_rl.services.runtime import EndpointError

pytestmark = pytest.mark.slow


def out_of_memory(kind: str, message: str) -> EndpointError:
    return EndpointError("TrainerActor.step", kind, message, "Traceback …")


GO_ON, LOWER = "step 3 with: zorplex-rl train --resume", "--token-budget, --slots or --max-tokens"
FAILURES = {
    "disk": (
        StorageError("the run folder cannot be written any more (No space left on device)"),
        GO_ON,
    ),
    "memory of a GPU": (
        out_of_memory("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2 GiB"),
        LOWER,
    ),
    "memory": (out_of_memory("RuntimeError", "DefaultCPUAllocator: can't allocate memory"), LOWER),
    "diverged": (
        TrainingDiverged("the loss of step 3 is nan"),
        "start again with a lower --learning-rate",
    ),
    "role lost": (
        GivenUp("dataset failed, and its state is lost: killed by signal 9"),
        GO_ON,
    ),
    "host lost": (HostError("no host is left on which the trainer could run"), GO_ON),
    "a defect": (
        KeyError("no such group"),
        f"KeyError: 'no such group'; continue from the checkpoint of {GO_ON}",
    ),
    "of a side task": (
        ExceptionGroup("unhandled errors", [GivenUp("reward has failed 5 times")]),
        "reward has failed 5",
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_what_ends_a_run_is_one_line_with_what_to_do_and_its_traceback_in_the_log(
    tmp_path, capsys, monkeypatch, name
):
    error, advice = FAILURES[name]

    async def run_training(*_):
        raise error

    monkeypatch.setattr("zorplex_rl.training.loop.run_training", run_training)
    folder = RunFolder.create(tmp_path / "run", SMALL)
    folder.finish_checkpoint(folder.begin_checkpoint(3), state_at(3))
    assert train.train(SMALL, folder) == 1
    said = capsys.readouterr().out
    assert said.startswith("zorplex-rl: ") and said.count("\n") == 1
    assert advice in said and said.endswith(f"the traceback is in {folder.log}\n")
    log = folder.log.read_text()
    assert "Traceback" in log and str(error).splitlines()[0] in log


TASK = """
import os, signal, sys
from zorplex_rl.task.environment import Zorplex

class Harmed(Zorplex):
    def __init__(self, seed, data):
        super().__init__(seed, kinds=("simple",))

    def task(self, index, split):
        in_actor = getattr(sys.modules["__main__"].__spec__, "name", "").startswith("monarch.")
        if in_actor and split == "train":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().task(index, split)
"""


def test_a_real_role_that_is_lost_for_good_is_one_line_and_leaves_no_process(tmp_path):
    task, path = tmp_path / "harmed.py", tmp_path / "run"
    task.write_text(TASK)
    flags = as_flags(SMALL.changed(steps=2, prompts_per_step=1, task=str(task)))
    with command("train", *flags, "--out", str(path)) as running:
        code, output = running.finish()
        assert running.all_gone()
    assert code == 1
    lines = [line for line in output.splitlines() if line.startswith("zorplex-rl: ")]
    assert len(lines) == 1 and "dataset" in lines[0], output
    assert "Traceback" not in output and str(path / "log.txt") in lines[0]
    assert "Traceback" in (path / "log.txt").read_text()
