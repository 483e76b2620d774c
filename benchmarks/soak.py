"""Run a healthy training on a busy machine whose processes stand still now and then: nothing may be
replaced.

    python benchmarks/soak.py                          10 minutes, 30 busy loops, a stop of 5 s every 20 s; then the notice times
    python benchmarks/soak.py --minutes 2 --load 8     shorter
    python benchmarks/soak.py --minutes 0              only the notice times

    soak      one run, from its first evaluation on beside ``load`` processes that only compute. About every ``every`` seconds one random
              process of the run, the controller included, is stopped for ``stop`` seconds. After ``minutes`` the load ends, the run
              goes on to its last step, and must have replaced nothing, and learned.
    notice    how long a run without load takes to see that a process was killed or has stopped, and that a host was killed or cut
              off: from the strike to the row ``restart``, less its ``recovery_seconds``.

Needs Linux and root: hosts are namespaces (``small_runs.py``).
"""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import tyro
from small_runs import SMALL, Run, append_row, eventually, open_place, places, processor_seconds

ASKED = (
    "Is anything replaced in a healthy run of ten minutes at load 30, while any one process stands still for 5 s now and then? How "
    "soon is a real loss noticed?"
)
EXPECTED = "Nothing replaced, and the run learns. ``kill -9`` noticed within 2 s, a lost host within 5 s."
KEPT = Path(__file__).with_suffix(".jsonl")
BUSY = "while True: pass"


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure."""

    minutes: float = 10.0
    """How long the soak lasts; 0 leaves it out."""
    load: int = 30
    """Processes that only compute."""
    stop: float = 5.0
    """Seconds for which a process of the run is stopped."""
    every: float = 20.0
    """Mean seconds between two stops."""
    steps: int = 120
    """Training steps of the soak."""
    place: str = "one machine"
    """Where the soak runs: one machine, processes:2, or two hosts, tcp."""
    repeats: int = 3
    """Strikes of each kind for the notice times; 0 leaves them out."""
    seed: int = 0
    """Seed of who is stopped when."""
    log: bool = True
    """Append the result to LOG.md."""


@contextlib.contextmanager
def busy(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Keep ``count`` processes computing."""
    loops = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield loops
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def soak(options: Options, folder: Path) -> dict[str, Any]:
    """Do the soak. Returns its row."""
    rng, stopped = random.Random(options.seed), Counter[str]()
    words = f"--steps {options.steps} --checkpoint-every 20 --eval-every 1000 --seed {options.seed}".split()
    with open_place(options.place, folder) as place:
        run = place.train(*words, "--out", str(folder / "run"))
        eventually(lambda: bool(run.rows("eval")) or run.is_over, 600)
        began = time.monotonic()
        until = began + 60 * options.minutes
        with busy(options.load):
            while time.monotonic() < until and not run.is_over:
                time.sleep(options.every * rng.uniform(0.5, 1.5))
                members = run.members()
                if run.is_over or not members:
                    break
                role = rng.choice(sorted(set(members.values())))
                victim = rng.choice(sorted(pid for pid, its in members.items() if its == role))
                run.signal(victim, signal.SIGSTOP)
                time.sleep(options.stop)
                run.signal(victim, signal.SIGCONT)
                stopped[role] += 1
                print(f"{time.monotonic() - began:.0f} s: {role} stood still; {_progress(run)}", flush=True)
            soaked, reached = time.monotonic() - began, len(run.rows("step"))
        code = run.finish(1200)
        evaluations = run.rows("eval")
        return {
            "what": "soak",
            "minutes": round(soaked / 60, 1),
            "stops": dict(stopped),
            "steps in it": reached,
            "restarts": [f"{row['died']}: {row['reason']}" for row in run.rows("restart")],
            "exit code": code,
            "accuracy": [row["sampled_accuracy"] for row in evaluations],
            "said": run.said()[-800:] if code else "",
            "left": place.leftovers(),
        }


def _progress(run: Run) -> str:
    return f"{len(run.rows('step'))} steps, {len(run.rows('restart'))} replaced"


STRIKES = (
    ("one machine", "kill -9", "generator"),
    ("one machine", "kill -9", "trainer"),
    ("one machine", "kill -9", "reward"),
    ("one machine", "kill -9", "replay"),
    ("one machine", "SIGSTOP", "generator"),
    ("one machine", "SIGSTOP", "trainer"),
    ("two hosts", "kill -9", "generator"),
    ("two hosts", "kill -9", "keeper"),
    ("two hosts", "kill -9", "worker"),
    ("two hosts", "host killed", "generator"),
    ("two hosts", "host cut", "generator"),
)
"""Where, what, and which role's process or host."""


def notice(where: str, fault: str, role: str, folder: Path) -> dict[str, Any]:
    """Strike once, in mid-run. Returns a row with the seconds until it was noticed."""
    place_name = next(name for name in reversed(places()) if name.startswith(where))
    words = ["--max-lag", "1", "--steps", "4000", "--spares", "1", "--generators-on", "others"]
    with open_place(place_name, folder) as place:
        run = place.train(*SMALL, *words, "--out", str(folder / "run"))
        if not eventually(lambda: len(run.rows("step")) >= 5 or run.is_over, 240):
            raise RuntimeError(f"no five steps in {place_name}: {run.said()[-500:]}")
        host = place.hosts.get("b", place.ctl)
        pids = sorted(pid for pid, its in run.members().items() if its == role)
        # The generator that works has used more processor time than the spare.
        pid = max(pids, key=processor_seconds)
        if role in ("keeper", "worker"):
            pid = next(pid for pid in pids if _is_on(pid, host))
        struck = time.monotonic()
        match fault:
            case "host killed":
                host.kill()
            case "host cut":
                host.cut()
            case "kill -9":
                run.signal(pid, signal.SIGKILL)
            case "SIGSTOP":
                run.signal(pid, signal.SIGSTOP)
        seen = eventually(lambda: bool(run.rows("restart")) or run.is_over, 60)
        seconds = time.monotonic() - struck
        restarts = run.rows("restart")
        noticed = seconds - restarts[0]["recovery_seconds"] if restarts else seconds
        how = restarts[0]["reason"] if restarts else (run.said().splitlines() or [""])[-1] if seen else "not noticed"
    return {"what": "notice", "place": place_name, "fault": fault, "role": role, "noticed": round(noticed, 2), "how": how[:200]}  # fmt: skip


def _is_on(pid: int, host: Any) -> bool:
    return Path(f"/proc/{pid}/ns/pid").readlink() == Path(f"/proc/{host.inside.first}/ns/pid").readlink()


def main(options: Options) -> None:
    from log import Report, append_report, print_report

    reports = []
    if options.minutes:
        folder = Path(tempfile.mkdtemp(prefix="soak-", dir="/var/tmp"))
        row = soak(options, folder)
        append_row(KEPT, row | asdict(options))
        cells = [[name, str(value)] for name, value in row.items() if name not in ("what", "said")]
        notes = [row["said"]] if row["said"] else []
        reports.append(Report(f"{row['minutes']} minutes at load {options.load}", ["", "found"], cells, notes))
    noticed: dict[tuple[str, str, str], list[float]] = {}
    for _ in range(options.repeats):
        for strike in STRIKES:
            with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch:
                row = notice(*strike, Path(scratch))
            append_row(KEPT, row)
            print(row, flush=True)
            noticed.setdefault(strike, []).append(row["noticed"])
    if noticed:
        cells = [[*strike, f"{median(times):.1f}", f"{max(times):.1f}"] for strike, times in noticed.items()]
        columns = ["where", "fault", "whose", "noticed after, median s", "at most"]
        reports.append(Report("Seconds until a loss is noticed", columns, cells))
    for report in reports:
        print_report(report)
    if options.log:
        settings = {name: value for name, value in asdict(options).items() if name != "log"}
        append_report("benchmarks/soak.py", ASKED, EXPECTED, settings, reports)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
