"""Start second controllers for hosts on which a run is going on: that run must not notice.

    python benchmarks/second_controller.py             all runs that are not in second_controller.jsonl yet, then the table
    python benchmarks/second_controller.py --only 3    one of them

    kinds     same hosts            of that run, with which it is refused
              and a bad address     one of its three hosts does not exist
              another version       its package has another number
              another secret        (over TLS: certificates of another authority)

Run *i* has one second controller of each kind, in an order and at moments that are drawn from
``random.Random(i)``: shares of the processor time of an undisturbed run, start-up included. The
last two runs are others: there the second begins in the same moment, and one of them may go on; or
right after the end of the first, and is admitted.

The first run must end with exit code 0, in the undisturbed weights, with every row once, no row
``restart`` and no remark. A second controller must end with one sentence, or, admitted after the
first, train. It has another seed and another folder. Needs Linux and root: hosts are namespaces
(``small_runs.py``).
"""

from __future__ import annotations

import math
import random
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from random_faults import PROGRESS
from small_runs import (
    PORT,
    SMALL,
    Place,
    Run,
    append_row,
    eventually,
    open_place,
    places,
    read_rows,
)  # fmt: skip

import zorplex_rl

ASKED = "Does a run notice that a second controller asks for its hosts, at any phase, admitted or refused?"
EXPECTED = "Never: the undisturbed weights, each row once. The second controller is refused in one sentence, or comes after it."
KEPT = Path(__file__).with_suffix(".jsonl")
KINDS = ("same hosts", "and a bad address", "another version", "another secret")
FIRST = (*SMALL, "--steps", "60")
SECOND = (*SMALL, "--steps", "2", "--seed", "7")
LIMIT = 300.0
TOGETHER, AFTER = "at the same moment", "after its end"


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure."""

    runs: int = 8
    """Number of first runs, the last two included."""
    only: int | None = None
    """Do this one alone, and keep its folder."""
    log: bool = True
    """Append the table to LOG.md once all are there."""


def second(place: Place, kind: str, name: str) -> Run:
    """Start a second controller, called ``name``."""
    flags, environment, folder = place.flags, place.environment, place.folder
    match kind:
        case "and a bad address":
            index = flags.index("--hosts") + 1
            scheme = flags[index].removeprefix("attach:").partition("://")[0]
            place.flags = (*flags[:index], f"{flags[index]},{scheme}://10.77.0.9:{PORT}", *flags[index + 1 :])
        case "another version":
            shutil.copytree(Path(zorplex_rl.__file__).parent, folder / "other" / "zorplex_rl")
            module = folder / "other" / "zorplex_rl" / "__init__.py"
            module.write_text(module.read_text().replace(zorplex_rl.__version__, "0.0.1"))
            place.environment = environment | {"PYTHONPATH": str(folder / "other")}
        case "another secret" if "--tls" in flags:
            place.make_certificates(folder / "others")
            index = flags.index("--tls") + 1
            place.flags = (*flags[:index], str(folder / "others" / "controller"), *flags[index + 1 :])
        case "another secret":
            place.environment = environment | {"ZORPLEX_SECRET": "guessed"}
    try:
        return place.train(*SECOND, "--out", str(folder / name), log=f"{name}.txt")
    finally:
        place.flags, place.environment = flags, environment


def reasons_of(run: Run) -> list[str]:
    """Return the lines of ``run`` that are no progress."""
    return [line for line in run.said().splitlines() if not PROGRESS.match(line)]


def fault_in(run: Run, weights: str | None) -> str:
    """Return what is wrong with the first run, or nothing."""
    steps = [row["step"] for row in run.rows("step")]
    if code := run.process.returncode:
        return f"exit code {code}: {reasons_of(run)[-1:]}"
    if restarts := run.rows("restart"):
        return f"replaced: {[row['reason'] for row in restarts]}"
    if steps != list(range(1, len(steps) + 1)) or (weights and run.weights() != weights):
        return f"other weights, or rows {steps}"
    return f"it says: {said}" if (said := reasons_of(run)) else ""


def perform(number: int, runs: int, reference: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Do one first run with its second controllers. Returns its row."""
    rng, hosts = random.Random(number), [place for place in places() if place.startswith("two")]
    when = {runs - 2: TOGETHER, runs - 1: AFTER}.get(number)
    moments = sorted(round(rng.random(), 2) for _ in KINDS) if when is None else [math.inf if when == AFTER else 0.0]
    kinds = rng.sample(KINDS, len(KINDS)) if when is None else ["same hosts"]
    seconds, wrong = [], ""
    with open_place(hosts[number % len(hosts)], folder) as place:
        first = place.train(*FIRST, "--out", str(folder / "first"))
        others = []
        for kind, moment in zip(kinds, moments, strict=True):
            first.wait_until(moment * reference["processor seconds"])
            steps = "over" if first.is_over else len(first.rows("step"))
            others.append(second(place, kind, f"second-{len(others)}"))
            seconds.append({"kind": kind, "moment": when or moment, "first's steps": steps})
        wrong = "hangs" if first.finish(LIMIT) is None else fault_in(first, reference["weights"])
        for row, other in zip(seconds, others, strict=True):
            row |= {"code": other.finish(LIMIT), "said": "\n".join(reasons_of(other))[:800]}
        if when == TOGETHER and first.process.returncode == 1 and others[0].process.returncode == 0:
            # The second was faster.
            wrong = fault_in(others[0], None)
            seconds[0] |= {"code": 1, "said": "\n".join(reasons_of(first))[:800]}
        for row in seconds:
            if row["code"] is None:
                wrong = wrong or f"the second ({row['kind']}) hangs"
            elif row["code"] and ("Traceback" in row["said"] or not 1 <= len(row["said"].splitlines()) <= 3):
                wrong = wrong or f"the second ({row['kind']}) says {len(row['said'].splitlines())} lines"
        if not eventually(lambda: set(first.members().values()) <= {"worker"}, 30):
            wrong = wrong or f"left: {first.members()}"
        return {"number": number, "place": place.kind, "seconds": seconds, "wrong": wrong}


def main(options: Options) -> None:
    rows = read_rows(KEPT)
    reference = next((row for row in rows if "weights" in row), None)
    if reference is None:
        with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch, open_place(places()[-1], Path(scratch)) as place:
            run = place.train(*FIRST, "--out", f"{scratch}/first")
            run.wait_until(math.inf)
            reference = {"weights": run.weights(), "processor seconds": run.processor_seconds()}
            append_row(KEPT, reference)
    done = {row["number"] for row in rows if "number" in row}
    for number in [n for n in range(options.runs) if n not in done] if options.only is None else [options.only]:
        folder = Path(tempfile.mkdtemp(prefix=f"second-controller-{number}-", dir="/var/tmp"))
        row = perform(number, options.runs, reference, folder)
        print(row, flush=True)
        if options.only is None:
            append_row(KEPT, row)
            if not row["wrong"]:
                shutil.rmtree(folder)
    rows = sorted((row for row in read_rows(KEPT) if "number" in row), key=lambda row: row["number"])
    if options.only is None and len(rows) >= options.runs:
        from log import Report, append_report, print_report

        cells, said = [], Counter()
        for row in rows:
            for other in row["seconds"]:
                end = "admitted" if other["code"] == 0 else f"exit code {other['code']}"
                shown = (row["place"], other["kind"], other["moment"], other["first's steps"], end)
                cells.append([*map(str, shown), row["wrong"] or "unnoticed"])
                said.update(f"{other['kind']}: {line}" for line in other["said"].splitlines())
        columns = ["place", "second controller", "begins at", "first's steps then", "its end", "first run"]
        notes = [f"{count} × {line[:300]}" for line, count in said.most_common()]
        report = Report("Second controllers for the hosts of a run", columns, cells, notes)
        print_report(report)
        if options.log:
            append_report("benchmarks/second_controller.py", ASKED, EXPECTED, {"runs": options.runs}, [report])


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
