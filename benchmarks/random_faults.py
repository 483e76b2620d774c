"""How do small real runs end that are struck by one random fault each, at a random moment?

    python benchmarks/random_faults.py                       100 runs on one machine
    python benchmarks/random_faults.py --hosts processes:2   the same with two hosts of this machine
    python benchmarks/random_faults.py --first 17 --runs 1   run 17 alone
    python benchmarks/random_faults.py --soak 10             one run of ten minutes in which any process stands still now and then

Run *i* draws its fault, its victim and its moment from ``random.Random(i)``. The moment lies anywhere
in an undisturbed run, start-up included: it is a share of the processor time that such a run takes,
because that does not depend on what else the machine does. At ``--max-lag 0`` an undisturbed run
always ends in the same weights. A struck run ends

    same weights       in these weights, bit for bit
    sentence           with an exit code and at most three lines that say why
    killed             as its controller was
    …, resumed         and ``train --resume`` has then ended in these weights
    FAIL               anything else: it hangs, shows a traceback, ends in other weights, or leaves a process behind

Linux only: who belongs to a run is read from the environment of its processes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import tyro
from table import describe_machine, print_table

SMALL = (
    "--task simple --max-lag 0 --steps 24 --prompts-per-step 2 --group-size 4 --eval-tasks 4 --eval-every 100 "
    "--checkpoint-every 4 --max-tokens 64 --device cpu"
).split()
"""A run of about 20 s on two idle cores, most of which is its start."""
MARK = "ZORPLEX_STRUCK_RUN"
"""Environment variable of a run's processes: the folder of the run."""
SIGNALS = {"SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT, "SIGHUP": signal.SIGHUP}
BUSY = 30
"""Processes that only compute beside the soak."""
LIMIT = 480.0
"""Seconds after the fault in which a run must have ended. On a busy machine its start may take minutes."""
PROGRESS = re.compile(
    r"(starting |eval |step |held-out|    |\d+ s of training|stopping|continuing|\s*$|.*│|.* took over )"
)
"""What a run prints while nothing is wrong, and on a replacement."""


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure."""

    runs: int = 100
    """Number of runs."""
    first: int = 0
    """Number of the first one."""
    hosts: str = "this"
    """Where they run: ``this`` or ``processes:N``."""
    soak: float = 0.0
    """Minutes of the soak; above 0 nothing else is done."""


class Run:
    """One ``zorplex-rl train`` with its own folder, below which ``out.txt`` has what it printed."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.folder, self.log = folder, folder.parent / "out.txt"
        self._used: dict[int, float] = {}
        with self.log.open("wb") as file:
            command = [sys.executable, "-m", "zorplex_rl", "train", *words]
            environment = os.environ | {MARK: str(folder)}
            self.process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
            )

    @property
    def is_over(self) -> bool:
        return self.process.poll() is not None

    def members(self) -> dict[int, str]:
        """Return the role of each living process of this run, by its number."""
        found = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                environment = process.environ()
                if environment.get(MARK) == str(self.folder) and process.status() != psutil.STATUS_ZOMBIE:
                    # generator_0-0 @ host
                    name = environment.get("HYPERACTOR_PROCESS_NAME", "controller").partition(" @")[0]
                    found[process.pid] = re.sub(r"[-_\d]+$", "", name)
        return found

    def wait_until(self, used: float) -> float:
        """Return when it has used so many processor seconds, or is over: how many it has used."""
        while not self.is_over and sum(self._used.values()) < used:
            for pid in self.members():
                with contextlib.suppress(psutil.Error):
                    self._used[pid] = sum(psutil.Process(pid).cpu_times()[:2])
            time.sleep(0.1)
        return sum(self._used.values())

    def finish(self, limit: float) -> int | None:
        """Wait for its end. Returns the exit code, or None if it hangs: then it is killed."""
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            for pid in self.members():
                send(pid, signal.SIGKILL)
            return None

    def rows(self, event: str) -> list[dict[str, Any]]:
        """Return the rows of its metrics so far."""
        file = self.folder / "metrics.jsonl"
        lines = file.read_bytes().splitlines() if file.exists() else []
        return [row for line in lines if line.endswith(b"}") and (row := json.loads(line))["event"] == event]

    def weights(self) -> str:
        """Return a fingerprint of the weights that it has left behind."""
        return hashlib.sha256((self.folder / "policy" / "model.safetensors").read_bytes()).hexdigest()


def send(pid: int, number: int) -> None:
    """Send a signal to a process, which may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def strike(run: Run, fault: str, rng: random.Random) -> str:
    """Do ``fault`` to a process of ``run``; each role is as likely as another. Returns the role."""
    if fault in SIGNALS:
        send(run.process.pid, SIGNALS[fault])
        return "controller"
    members = run.members()
    role = rng.choice(sorted(set(members.values())))
    pid = rng.choice(sorted(pid for pid, its in members.items() if its == role))
    if fault == "kill -9":
        send(pid, signal.SIGKILL)
    else:
        send(pid, signal.SIGSTOP)
        time.sleep(rng.uniform(2, 6))
        send(pid, signal.SIGCONT)
    return role


def judge(run: Run, code: int | None, undisturbed: str) -> str:
    """Return how ``run`` has ended."""
    said = run.log.read_text(errors="replace")
    reasons = [line for line in said.splitlines() if not PROGRESS.match(line)]
    if code is None:
        return "FAIL: hangs"
    if "Traceback" in said or "panicked" in said:
        return "FAIL: traceback"
    if len(reasons) > 3:
        return f"FAIL: {len(reasons)} lines"
    if code == 0:
        return "same weights" if run.weights() == undisturbed else "FAIL: other weights"
    if code == -signal.SIGKILL:
        return "killed"
    return "sentence" if reasons else "FAIL: no reason given"


def perform(number: int, options: Options, processor_seconds: float, undisturbed: str) -> tuple[str, str, str, str]:
    """Do run ``number``. Returns its fault, whom it met, the phase and the outcome."""
    rng = random.Random(number)
    fault = rng.choice(["kill -9"] * 4 + ["SIGSTOP"] * 3 + [rng.choice(list(SIGNALS))])
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        run = Run(folder, *SMALL, "--hosts", options.hosts, "--out", str(folder))
        run.wait_until(rng.random() * processor_seconds)
        phase = "training" if run.rows("step") else "start-up"
        met = "nobody" if run.is_over else strike(run, fault, rng)
        outcome = judge(run, run.finish(LIMIT), undisturbed)
        if outcome in ("sentence", "killed") and any((folder / "checkpoints").glob("step_*")):
            resumed = Run(folder, "--resume", str(folder), "--hosts", options.hosts)
            then = judge(resumed, resumed.finish(LIMIT), undisturbed)
            outcome = f"{outcome}, resumed" if then == "same weights" else f"FAIL: resumed, {then}"
        until = time.monotonic() + 40
        while run.members() and time.monotonic() < until:
            time.sleep(0.2)
        if left := run.members():
            outcome = f"FAIL: left {sorted(left.values())}"
        if outcome.startswith("FAIL"):
            print(f"run {number}: {run.log.read_text()[-2000:]}", file=sys.stderr)
    print(f"run {number}: {fault} of {met} in {phase}: {outcome}", file=sys.stderr, flush=True)
    return fault, met, phase, outcome


def soak(options: Options) -> None:
    """Train beside other processes that only compute, and stop a random process for some seconds
    about every 20 s: nothing may be replaced, and the run must learn."""
    rng, stopped = random.Random(0), Counter[str]()
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        folder = Path(scratch) / "run"
        words = "--steps 240 --checkpoint-every 20 --eval-every 1000"
        run = Run(folder, *words.split(), "--hosts", options.hosts, "--out", str(folder))
        while not run.rows("eval") and not run.is_over:
            time.sleep(0.2)
        for _ in range(BUSY):
            loop = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.callback(loop.kill)
        until = time.monotonic() + 60 * options.soak
        while time.monotonic() < until and not run.is_over:
            time.sleep(rng.uniform(10, 30))
            if not run.is_over:
                stopped[strike(run, "SIGSTOP", rng)] += 1
        steps = len(run.rows("step"))
        stack.close()
        code = run.finish(1200)
        rows = {
            "stops": ", ".join(f"{count} × {role}" for role, count in stopped.items()),
            "steps in it": steps,
            "replaced": [row["died"] for row in run.rows("restart")],
            "exit code": code,
            "accuracy": [row["sampled_accuracy"] for row in run.rows("eval")],
        }
    title = f"{options.soak:g} minutes beside {BUSY} busy processes"
    print_table(title, ["", "found"], [[name, str(value)] for name, value in rows.items()])


def main(options: Options) -> None:
    print(describe_machine())
    if options.soak:
        soak(options)
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        run = Run(folder, *SMALL, "--hosts", options.hosts, "--out", str(folder))
        processor_seconds = run.wait_until(math.inf)
        undisturbed = run.weights()
    numbers = range(options.first, options.first + options.runs)
    found = Counter(perform(number, options, processor_seconds, undisturbed) for number in numbers)
    failed = sum(count for (*_, outcome), count in found.items() if outcome.startswith("FAIL"))
    rows = [[*key, str(count)] for key, count in sorted(found.items())]
    columns = ["fault", "of", "phase", "outcome", "runs"]
    print_table(f"Random faults, {options.hosts}", columns, rows, f"{failed} of {options.runs} failed.")


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
