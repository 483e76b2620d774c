"""An entry in its own process: what it is given, what is refused to it there, and what it cannot
change from there."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import random
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import psutil
import pytest
import torch

from zorplex_rl.learning.entry import TASKS, Refused, Run, entry_of, given_tasks, processes_of, tell_of
from zorplex_rl.learning.referee import LARGEST_LOG, MARK, attempt, read_log, verdict
from zorplex_rl.policy.rollout import RolloutRequest, rollout
from zorplex_rl.task.episode import Task
from zorplex_rl.task.rewards import Score
from zorplex_rl.task.specs import get_spec, run_tool

ENTRIES = sorted((Path(__file__).parents[2] / "speedrun" / "entries").glob("*.py"))

HEAD = "from zorplex_rl.learning.entry import Entry, Episode\n\n\nclass Mine(Entry):\n    prompts, group_size = 2, 2\n"


@pytest.fixture(autouse=True)
def _a_unit_of_one_second(monkeypatch):
    """The reference workload takes twelve seconds of a processor for each attempt, and has tests of its own."""
    monkeypatch.setattr("zorplex_rl.learning.referee.reference_seconds", lambda: 1.0)


def judge(folder: Path, body: str, before: str = ""):
    return attempt(before + HEAD + body, folder, tasks=24, draw=random.Random(7))


def test_two_processes_train_the_same_policy_and_its_curve_is_kept(tmp_path):
    found = judge(tmp_path, "    processes, most_steps = 2, 2\n")
    assert found.refused is None
    assert [line["step"] for line in found.curve] == [1, 2]
    assert found.calibrated == found.seconds > found.curve[-1]["seconds"]
    assert 0 <= found.right < 18
    assert "held-out answers" in str(verdict([found]).refused)


@pytest.mark.parametrize("file", ENTRIES, ids=lambda file: file.stem)
def test_a_batch_that_teaches_nothing_is_a_step_of_zero_gradients(file, embedded):
    policy, source = copy.deepcopy(embedded), file.read_text()
    entry = entry_of(source, processes_of(source))
    group = rollout(policy, [RolloutRequest(get_spec("simple").task(0), seed) for seed in range(2)], run_tool)
    for episode in group:
        episode.score = Score("success", 0, 1.0, 0, 0)
    tokens = entry.accumulate(policy, [group])
    assert tokens > 0
    assert not any(parameter.grad.any() for parameter in policy.model.parameters())
    entry.update(entry.optimizer(policy.model), policy.model, tokens, 0)
    before = embedded.model.state_dict()
    assert all(torch.equal(before[name], found) for name, found in policy.model.state_dict().items())


TRAINS_ON_OTHERS = """
    def train(self, run):
        (task,) = run.draw(1)
        for word in task.words:
            task.table[word] += 1
        try:
            run.sample([task], 2)
        except Exception:
            pass
        run.log(accuracy=1.0)
"""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("    processes = 3\n", "its processes are 3; give 1 or 2, as a number in its class"),
        ("    processes, most_steps = most_steps, 2\n", "its processes are most_steps; give 1 or 2"),
        ("    def __getattribute__(self, name):\n        return 2\n", "its processes are 2; give 1 or 2"),
        ("\n\ndel Mine\n", "it has no class that extends Entry"),
        ("    most_steps = unknown\n", "it raised NameError: name 'unknown' is not defined"),
        ("\n\nraise ValueError('no\\nway')\n", "it raised ValueError: no way"),
    ],
)
def test_an_entry_that_cannot_run_is_refused_in_one_sentence(body, said, capfd):
    try:
        entry_of(HEAD + body, processes_of(HEAD + body))
    except Exception as error:
        tell_of(error)
    (line,) = filter(None, capfd.readouterr().out.splitlines())
    assert line.startswith(f"refused {said}")


RAISES = """
    processes = 2
    def train(self, run):
        if run.rank:
            raise ValueError('no \\udc80')
        run.add_up(1.0)
"""


def test_what_one_process_of_an_entry_raises_is_told_in_any_letters_and_the_other_does_not_wait_for_it(tmp_path):
    found = judge(tmp_path, RAISES)
    assert found.refused == "it raised ValueError: no ?"
    assert found.seconds < 30, "a barrier waits for a minute"


LEAVES = """
    processes = 2
    def train(self, run):
        if run.rank:
            torch.os.setsid()
            run.log()
            while True:
                pass
"""


def test_a_process_that_leaves_its_group_ends_with_the_entry(tmp_path, monkeypatch):
    monkeypatch.setattr("zorplex_rl.learning.referee.complaints", lambda source: iter(()))
    assert judge(tmp_path, LEAVES, "import torch\n").refused is None
    marked = [p for p in psutil.process_iter() if p.uids().real == os.getuid() and mark_of(p) == str(tmp_path)]
    assert not [p for p in marked if p.status() != psutil.STATUS_ZOMBIE]


def mark_of(process: psutil.Process) -> str | None:
    with contextlib.suppress(psutil.Error, OSError):
        return process.environ().get(MARK)
    return None


def test_a_log_that_is_no_log_is_refused_and_does_not_end_the_referee(tmp_path):
    log = tmp_path / "log.jsonl"
    assert read_log(log) == ([], None)
    nested = b'{"a": ' + 600 * b"[" + 600 * b"]" + b"}"
    for written in (
        b"\xff\xfe",
        500_000 * b"[",
        b"7",
        nested,
        b'{"a": "b"}',
        b'{"a": NaN}',
        b'{"a": 1' + 400 * b"0" + b"}",
    ):
        log.write_bytes(written)
        assert read_log(log) == ([], "its log.jsonl cannot be read")
    log.write_bytes(2 * LARGEST_LOG * b" ")
    assert "more than" in str(read_log(log)[1])
    log.unlink()
    os.mkfifo(log)
    assert read_log(log) == ([], "its log.jsonl cannot be read")


FLOODS = """
    def train(self, run):
        for step in range(3):
            print("a" * 2**19, end="")
"""


def test_an_entry_that_prints_without_end_does_not_fill_the_referees_memory(tmp_path):
    assert judge(tmp_path, FLOODS).refused == f"it printed more than {LARGEST_LOG} bytes"


HIDES = """
from zorplex_rl.learning.entry import refuse
try:
    refuse("it opened 'x'")
except BaseException:
    pass
"""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file that is always full")
def test_a_refusal_that_a_full_disk_hides_ends_the_entry():
    with Path("/dev/full").open("w") as full:
        assert subprocess.run([sys.executable, "-c", HIDES], stdout=full, timeout=120).returncode == 1


ENDS_ALONE = """
    processes = 2
    def train(self, run):
        if run.rank:
            torch.os._exit(1)
        torch.os.waitid(torch.os.P_ALL, 0, torch.os.WEXITED | torch.os.WNOWAIT)
"""


def test_an_entry_of_which_one_process_ends_with_an_error_is_refused_even_if_that_could_not_be_told(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("zorplex_rl.learning.referee.complaints", lambda source: iter(()))
    found = judge(tmp_path, ENDS_ALONE, "import torch\n")
    assert found.refused == "one of its processes has ended before the other"


LEAVES_NO_CARD = """
    def train(self, run):
        for values in run.policy.model.parameters():
            values.data.fill_(3e38)
        written = bytearray(500_000 * b"[")
        torch.frombuffer(written, dtype=torch.uint8).numpy().tofile("log.jsonl")
"""


def test_an_entry_whose_run_goes_badly_cannot_end_the_referee_and_so_keep_the_run_off_its_card(tmp_path):
    found = judge(tmp_path, LEAVES_NO_CARD, "import torch\n")
    assert found.refused == "its trained weights give logits that are not finite numbers" and found.curve == []


TRAINS_ON_OTHERS = """
    def train(self, run):
        (task,) = run.draw(1)
        for word in task.words:
            task.table[word] += 1
        print("x", end="", flush=True)
        try:
            run.sample([task], 2)
        except Exception:
            pass

        class Out:
            def fileno(self):
                return 1

            def tell(self):
                return 0

            flush = seek = lambda *where: None

        torch.full((4_000,), 32, dtype=torch.uint8).numpy().tofile(Out())
        run.log(accuracy=1.0)
"""


def test_an_entry_that_samples_tasks_it_was_not_given_is_refused_even_if_it_hides_the_error_or_writes_over_it(tmp_path):
    refused = str(judge(tmp_path, TRAINS_ON_OTHERS, "import torch\n").refused)
    assert "none of the training tasks that it was given" in refused


SHADOWS = """
    def train(self, run):
        code = bytearray(b"raise ValueError('this is no text of the entry')")
        torch.frombuffer(code, dtype=torch.uint8).numpy().tofile("tensorboard.py")
        try:
            from torch.utils import tensorboard
        except ImportError:
            pass
"""


@pytest.mark.parametrize("paths", ["", os.pathsep, f".{os.pathsep}"])
def test_a_file_that_an_entry_writes_is_no_module(paths, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", paths + os.environ.get("PYTHONPATH", ""))
    monkeypatch.setattr("zorplex_rl.learning.referee.complaints", lambda source: iter(()))
    assert judge(tmp_path, SHADOWS, "import torch\n").refused is None


def test_an_entry_that_ends_before_the_word_go_has_not_taken_no_time(tmp_path, monkeypatch):
    monkeypatch.setattr("zorplex_rl.learning.referee.sys.executable", "true")
    assert judge(tmp_path, "").refused == "it ended before the word go"


PINS = """
    def train(self, run):
        torch.os.sched_setaffinity(torch.os.getppid(), [min(torch.os.sched_getaffinity(0))])
"""


@pytest.mark.skipif(sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="needs two processors of Linux")
def test_an_entry_that_makes_the_reference_workload_slower_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("zorplex_rl.learning.referee.complaints", lambda source: iter(()))
    before = os.sched_getaffinity(0)
    try:
        assert "it changed the referee's processors" in str(judge(tmp_path, PINS, "import torch\n").refused)
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize("is_own_run", [False, True])
def test_a_task_that_pretends_to_be_a_given_one_is_refused(is_own_run, tmp_path, embedded, monkeypatch, capfd):
    monkeypatch.setattr("zorplex_rl.learning.entry.GIVEN", {})
    (tmp_path / TASKS).write_text(json.dumps([asdict(get_spec("simple").task(0))]))
    tasks = given_tasks(tmp_path)
    other = replace(tasks[0], question="What is 3 + 4?")
    monkeypatch.setattr(Task, "__eq__", lambda *_: True)
    run = Run(embedded, tmp_path, [other] if is_own_run else tasks, 0, torch.zeros(1, 1), None)
    assert len(run.sample(tasks, 1)) == 1
    with pytest.raises(Refused):
        run.sample([other], 2)
    assert "refused it sampled 'What is 3 + 4?', which is none of the training tasks" in capfd.readouterr().out


COMPUTES_EARLY = """
from collections import Counter


class Early(Mine, Counter):
    most_steps = 1

    def update(self, *given):
        if given[0] is None:
            for number in range(5_000_000):
                pass
        else:
            super().update(*given)
"""


def test_what_an_entry_computes_as_it_is_made_is_on_the_clock(tmp_path):
    found = judge(tmp_path, COMPUTES_EARLY)
    assert found.refused is None
    assert found.seconds - found.curve[-1]["seconds"] > 0.1, "its own clock begins with Entry.train"


CLAIMS = """
    def train(self, run):
        Episode.scored = property(lambda episode: Episode.best)
        run.sample(run.draw(8), 8)
        run.log(accuracy=1.0, seconds=0.0)
"""


def test_an_entry_that_patches_its_scorer_and_its_clock_changes_neither(tmp_path):
    found = judge(tmp_path, CLAIMS)
    assert found.refused is None
    assert found.curve == [{"step": 0, "seconds": 0.0, "accuracy": 1.0}]
    assert found.seconds > 0.05
    assert found.right < 18
    assert verdict([found]).refused


GUARDED = """
import io, os, pathlib, socket, subprocess, sys
from zorplex_rl.learning.entry import guard
from zorplex_rl.policy.load import EMBEDDED_PATH
folder = pathlib.Path(sys.argv[1])
guard(folder)
(folder / "own").write_text("allowed")
for attempt in (
    lambda: open(EMBEDDED_PATH / "model.safetensors", "rb"),
    lambda: open("/etc/hostname"),
    lambda: io.FileIO(pathlib.Path("/etc/hostname")),
    lambda: os.open(EMBEDDED_PATH.parents[1] / "nothing", os.O_TRUNC),
    lambda: open(folder.parent / "elsewhere", "w"),
    lambda: open(EMBEDDED_PATH.parents[1] / "learning" / "reference_workload.py", "a"),
    lambda: os.link("/etc/hostname", folder / "own2"),
    lambda: os.rename(folder / "own", folder.parent / "elsewhere"),
    lambda: socket.create_connection(("127.0.0.1", 9)),
    lambda: subprocess.run(["true"]),
    lambda: os.fork(),
):
    try:
        attempt()
    except Exception as error:
        print(type(error).__name__, flush=True)
"""


def test_files_elsewhere_the_shipped_weights_the_network_and_other_programs_are_refused(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    done = subprocess.run([sys.executable, "-c", GUARDED, str(folder)], capture_output=True, text=True, timeout=120)
    said = done.stdout.splitlines()
    assert said.count("Refused") == 11, done
    assert len([line for line in said if line.startswith("refused it opened")]) == 6
    assert (folder / "own").read_text() == "allowed"
    assert not (tmp_path / "elsewhere").exists()
