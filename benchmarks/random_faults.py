"""Strike small real runs with one random fault each, at a random moment, and say how every one of
them ended.

    python benchmarks/random_faults.py                 all runs that are not in random_faults.jsonl yet, then the table; give it
                                                       again until there are 100 that were struck
    python benchmarks/random_faults.py --only 17       run 17 again, and print it
    python benchmarks/random_faults.py --share 0/2     every second run, so that two commands can share them

Run *i* draws its place, fault and moment from ``random.Random(i)``. The moment lies anywhere in an
undisturbed run, start-up and end included: it is a share of the processor time that such a run
takes there, because that does not depend on what else the machine does. Training is at ``--max-lag
0``, so an undisturbed run always ends in the same weights, in every place. A struck run ends

    same weights       in these weights, bit for bit
    sentence           with an exit code and at most three lines that say why
    …, resumed         and ``train --resume`` has then ended in these weights
    FAIL               anything else: it hangs, shows a traceback, ends in other weights, or leaves something on a host

Needs Linux and root: hosts are namespaces (``small_runs.py``).
"""

from __future__ import annotations

import math
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tyro
from small_runs import SMALL, Run, append_row, open_place, places, read_rows

ASKED = "How do 100 runs end that are struck by one random fault each, at a random moment, start-up included?"
EXPECTED = "Each in the undisturbed weights, bit for bit, or in one true sentence. No FAIL, nothing left on any host."
KEPT = Path(__file__).with_suffix(".jsonl")
CONTROLLERS = {"SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT, "SIGHUP": signal.SIGHUP}
NOBODY = "nobody"
LIMIT = 480.0
"""Seconds after the fault in which a run must have ended. On a busy machine its start alone may
take minutes."""
PROGRESS = re.compile(
    r"(starting |eval |step |held-out|    |\d+ s of training|stopping|continuing|\s*$|.*│|.* took over )"
)
"""What a run prints while nothing is wrong, and on a replacement."""


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure."""

    runs: int = 100
    """Number of runs that are struck. One that is over before its fault does not count; the next
    number takes its place."""
    only: int | None = None
    """Do this run alone, and keep its folder."""
    share: str = "0/1"
    """K/N: of the runs that are missing, those with number K modulo N."""
    most: int = 1_000_000
    """Stop after so many of them."""
    again: bool = False
    """Count those that failed as missing. The last row of each number is the one that counts."""
    table: bool = False
    """Only print the table of the runs so far."""
    log: bool = True
    """Append the table to LOG.md once all runs are there."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What run ``number`` is: where, which fault (with its seconds, if it ends again), and at which
    share of it."""

    number: int
    place: str
    fault: str
    seconds: float
    share: float
    spares: int


def plan_of(number: int, where: list[str]) -> tuple[Plan, random.Random]:
    """Return the plan of run ``number``, and the generator with which it goes on."""
    rng = random.Random(number)
    # Each drawn from its own list, in which tls stands last: the others' draws do not depend on it.
    place = where[number % len(where)]
    faults = ["kill -9"] * 4 + ["SIGSTOP"] * 3 + [rng.choice(list(CONTROLLERS))]
    if place.startswith("two"):
        faults += ["host killed", "host cut", "host cut for good", "5 % loss"]
    fault = rng.choice(faults)
    seconds = rng.uniform(1, 2) if fault == "host cut" else rng.uniform(2, 6)
    return Plan(number, place, fault, round(seconds, 2), round(rng.random(), 4), int(rng.random() < 0.3)), rng


def strike(run: Run, plan: Plan, rng: random.Random) -> str:
    """Do to ``run`` what is planned. Returns whom it has met."""
    if plan.fault in ("kill -9", "SIGSTOP"):
        members = run.members()
        role = rng.choice(sorted(set(members.values())))
        victim = rng.choice(sorted(pid for pid, its in members.items() if its == role))
        if plan.fault == "kill -9":
            run.signal(victim, signal.SIGKILL)
        else:
            run.signal(victim, signal.SIGSTOP)
            time.sleep(plan.seconds)
            run.signal(victim, signal.SIGCONT)
        return role
    if plan.fault in CONTROLLERS:
        for pid, role in run.members().items():
            if role == "controller":
                run.signal(pid, CONTROLLERS[plan.fault])
        return "controller"
    name = rng.choice(sorted(run.place.hosts))
    host = run.place.hosts[name]
    match plan.fault:
        case "host killed":
            host.kill()
        case "host cut for good":
            host.cut()
        case "host cut":
            host.cut()
            time.sleep(plan.seconds)
            host.restore()
        case "5 % loss":
            run.place.lose_packets(name, 0.05)
    return f"host {name}"


def phase_of(run: Run) -> str:
    """Return how far ``run`` has come."""
    if run.is_over:
        return "over"
    events = [row["event"] for row in run.rows()]
    if "step" not in events:
        return "first evaluation done" if "eval" in events else "start-up"
    return "end" if events.count("step") >= int(SMALL[SMALL.index("--steps") + 1]) else "training"


def judge(run: Run, code: int | None, undisturbed: str) -> tuple[str, str]:
    """Return how ``run`` has ended, and what there is to say of it."""
    said = run.said()
    reasons = [line for line in said.splitlines() if not PROGRESS.match(line)]
    if code is None:
        return "FAIL: hangs", said[-500:]
    if "Traceback" in said or "panicked" in said:
        return "FAIL: traceback", said[-1500:]
    if code == 0:
        if run.weights() != undisturbed:
            return "FAIL: other weights", said[-500:]
        if len(reasons) > 3:
            return f"FAIL: same weights, but {len(reasons)} lines of noise", "\n".join(reasons[:6])
        return "same weights", "\n".join(reasons)
    if code < 0 or (code > 128 and not reasons):
        # 137 is what nsenter makes of it.
        return ("killed" if code in (-9, 137) else f"ended by signal {code}"), "\n".join(reasons)
    if "is a defect in zorplex-rl" in said:
        return "FAIL: it takes the fault for a defect of its own", "\n".join(reasons)
    if not reasons or len(reasons) > 3:
        return f"FAIL: {len(reasons)} lines instead of a sentence", "\n".join(reasons[:12])
    return "sentence", "\n".join(reasons)


def perform(plan: Plan, rng: random.Random, undisturbed: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Do one run, and what follows from its end. Returns its row."""
    with open_place(plan.place, folder) as place:
        run = place.train(*SMALL, "--spares", str(plan.spares), "--out", str(folder / "run"))
        run.wait_until(plan.share * undisturbed["processor seconds"][plan.place])
        phase, moment = phase_of(run), time.monotonic() - run.began
        met = NOBODY if phase == "over" else strike(run, plan, rng)
        struck = time.monotonic()
        outcome, said = judge(run, run.finish(LIMIT), undisturbed["weights"])
        seconds = time.monotonic() - struck
        restarts = [f"{row['died']}: {row['reason']}"[:160] for row in run.rows("restart")]
        left = place.leftovers()
        then = ""
        if not outcome.startswith(("same", "FAIL")) and run.has_checkpoint():
            place.heal()
            place.age_folders()
            resumed = place.train("--resume", str(run.folder), log="resumed.txt")
            then, what = judge(resumed, resumed.finish(LIMIT), undisturbed["weights"])
            said += f"\n[resumed] {what}" if what else ""
            # What a killed process could not remove, the next start does.
            left = place.leftovers() if "kill" in plan.fault else left + place.leftovers()
        elif "kill" in plan.fault and met in ("controller", "worker"):
            left = [what for what in left if "/tmp/" not in what]
    row = asdict(plan) | {"met": met, "phase": phase, "moment": round(moment, 2), "outcome": outcome, "then": then}
    said = said.replace(str(folder), "…")
    row["commit"] = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    return row | {"said": said, "left": left, "restarts": restarts, "seconds_to_end": round(seconds, 1)}


def is_failure(row: dict[str, Any]) -> bool:
    return "FAIL" in row["outcome"] or bool(row["left"]) or row["then"] not in ("", "same weights")


def verdict(row: dict[str, Any]) -> str:
    """Return the outcome of ``row`` in the words of the table."""
    if row["left"]:
        return "FAIL: something is left"
    if row["then"]:
        return f"{row['outcome']}, resumed" if row["then"] == "same weights" else f"FAIL: resumed, {row['then']}"
    return row["outcome"]


def last_rows(kept: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return the last row of every number."""
    return {row["number"]: row for row in kept if "number" in row}


def describe(row: dict[str, Any]) -> str:
    """Return ``row`` in one line."""
    what = f"{row['place']}, {row['fault']} of {row['met']} at {row['moment']} s ({row['phase']})"
    return f"{what}: {verdict(row)} {row['said'][:300]!r} {row['left']} {row['restarts']}"


def reference(where: list[str], kept: list[dict[str, Any]]) -> dict[str, Any]:
    """Return weights and processor seconds of undisturbed runs: one in each of these places. Raises
    RuntimeError if they differ."""
    found = next((row for row in kept if row.get("what") == "undisturbed"), {"processor seconds": {}, "weights": ""})
    missing = [place for place in where if place not in found["processor seconds"]]
    for place_name in missing:
        with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch, open_place(place_name, Path(scratch)) as place:
            run = place.train(*SMALL, "--spares", "0", "--out", f"{scratch}/run")
            run.wait_until(math.inf)
            if run.finish(1):
                raise RuntimeError(f"an undisturbed run in {place_name} fails: {run.said()[-1000:]}")
            found["processor seconds"][place_name] = round(run.processor_seconds(), 1)
            found["weights"] = found["weights"] or run.weights()
            if run.weights() != found["weights"]:
                raise RuntimeError(f"an undisturbed run in {place_name} ends in other weights than elsewhere")
            if left := place.leftovers():
                raise RuntimeError(f"an undisturbed run in {place_name} leaves behind {left}")
    if missing:
        others = [row for row in kept if row.get("what") != "undisturbed"]
        KEPT.unlink(missing_ok=True)
        for row in ({"what": "undisturbed"} | found, *others):
            append_row(KEPT, row)
    return found


def tabulate(rows: list[dict[str, Any]], too_late: int) -> Any:
    """Return the table: place × fault × phase × outcome. ``too_late`` more runs were over before
    their fault."""
    from log import Report

    counted = Counter((row["place"], row["fault"], row["phase"], verdict(row)) for row in rows)
    cells = [[*key, str(count)] for key, count in sorted(counted.items())]
    sentences = Counter(
        f"{row['fault']} of {row['met']}: {line}"
        for row in rows
        for line in row["said"].splitlines()
        if row["outcome"] == "sentence"
    )
    notes = [
        f"{sum(map(is_failure, rows))} of {len(rows)} failed. {too_late} more were over before their fault, and do not count."
    ]
    notes += [f"{count} × {line[:300]}" for line, count in sentences.most_common()]
    return Report(f"{len(rows)} random faults", ["place", "fault", "phase", "outcome", "runs"], cells, notes)


def main(options: Options) -> None:
    where = places()
    kept = read_rows(KEPT)
    if not options.table:
        undisturbed = reference(where, kept)
        rows = last_rows(kept)
        done = {number for number, row in rows.items() if not (options.again and is_failure(row))}
        part, parts = map(int, options.share.split("/"))
        end = options.runs + sum(row["met"] == NOBODY for row in rows.values())
        numbers = [number for number in range(end) if number not in done and number % parts == part]
        for number in numbers[: options.most] if options.only is None else [options.only]:
            plan, rng = plan_of(number, where)
            folder = Path(tempfile.mkdtemp(prefix=f"random-fault-{number}-", dir="/var/tmp"))
            row = perform(plan, rng, undisturbed, folder)
            print(number, describe(row), flush=True)
            if options.only is None:
                append_row(KEPT, row)
            if options.only is None and not is_failure(row):
                shutil.rmtree(folder)
            else:
                print(f"    see {folder}", flush=True)
        if options.only is not None:
            return
    rows = list(last_rows(read_rows(KEPT)).values())
    struck = [row for row in rows if row["met"] != NOBODY]
    if options.table or len(struck) >= options.runs:
        from log import append_report, print_report

        report = tabulate(struck, len(rows) - len(struck))
        print_report(report)
        if options.log and not options.table:
            append_report("benchmarks/random_faults.py", ASKED, EXPECTED, {"runs": options.runs}, [report])


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
