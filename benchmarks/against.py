"""Compare this tree's speed with that of another commit, in turns on the same machine.

    git worktree add ../base COMMIT                    with an interpreter of its own, into which it is installed
    python benchmarks/against.py --base ../base

    rollouts      episodes per second of the rollout engine
    train         episodes per second of 40 asynchronous steps (``--max-lag 1``), the first five left out
    service       calls per second of one caller (latency) and of 64 (throughput) through a service of four replicas
    pulls         verified pulls per second of 4 and 64 MB through each transport on one machine

A measurement is a program that both trees run at the same time, each with its own interpreter and
its own package. They take turns burst by burst, of about a second, while the other waits, and which
is first alternates. So a moment in which the machine is slow slows down neighbours in the same
pair. The ratio is taken within a pair, and the medians are reported. Training is a run of its own
per burst.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import textwrap
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles

import tyro
from log import Report, append_report, print_report

HERE = Path(__file__).resolve().parent.parent
KEPT = Path(__file__).with_suffix(".jsonl")
ASKED = "Is anything slower than at an earlier commit: rollouts, asynchronous training, a service, weight pulls?"
EXPECTED = "Medians of the ratios at least 0.97."
TURNS = """
async def take_turns():
    async with contextlib.aclosing(bursts()) as rates:
        await anext(rates)  # the first is not measured
        print("ready", flush=True)
        # In a thread, because the supervisors of this process must go on.
        while await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(await anext(rates)), flush=True)
asyncio.run(take_turns())
"""
PROGRAMS = {
    "rollouts": """
import asyncio, contextlib, json, sys, time
from itertools import count
import torch
torch.set_num_threads(1)
from zorplex_rl.policy.load import load_policy
from zorplex_rl.policy.rollout import RolloutRequest, Sampling, rollout
from zorplex_rl.task.specs import get_spec
async def bursts():
    policy, spec = load_policy("embedded"), get_spec("compositional", 0)
    for repeat in count():
        # Both trees sample the same tasks in the same burst, and the same again in later ones.
        requests = [RolloutRequest(spec.task(repeat % 4 * 8 + index // 8), index) for index in range(64)]
        began = time.perf_counter()
        episodes = rollout(policy, requests, spec.execute, Sampling(slots=64))
        yield {"rollouts, tokens/s": sum(len(e.token_ids) for e in episodes) / (time.perf_counter() - began)}
""",
    "train": """
import asyncio, contextlib, json, subprocess, sys, tempfile
from pathlib import Path
async def bursts():
    yield {}
    while True:
        with tempfile.TemporaryDirectory() as scratch:
            words = "train --steps 40 --max-lag 1 --seed 0 --eval-tasks 8 --eval-every 1000 --checkpoint-every 1000".split()
            subprocess.run([sys.executable, "-m", "zorplex_rl", *words, "--out", scratch + "/run"], check=True, stdout=subprocess.DEVNULL)
            rows = [json.loads(line) for line in Path(scratch, "run/metrics.jsonl").read_text().splitlines()]
        steps = [row for row in rows if row["event"] == "step"]
        first, last = steps[4], steps[-1]
        yield {"40 asynchronous steps, episodes/s": (last["episodes"] - first["episodes"]) / (last["seconds"] - first["seconds"])}
""",
    "service": """
import asyncio, contextlib, json, sys, tempfile, time
import service as bench
from statistics import median
async def bursts():
    options = bench.ServiceOptions(replicas=4, idempotent=("look_up", "who"), start_timeout=60)
    with tempfile.TemporaryDirectory() as folder:
        async with bench.Service("calls", bench.replicas_of(bench.Worker, folder), options) as service:
            async def calls(count):
                for _ in range(count):
                    await service.who.route()
            while True:
                seconds = []
                for _ in range(200):
                    began = time.perf_counter()
                    await service.who.route()
                    seconds.append(time.perf_counter() - began)
                began = time.perf_counter()
                await asyncio.gather(*(calls(30) for _ in range(64)))
                rate = 64 * 30 / (time.perf_counter() - began)
                yield {"service, calls/s of one caller": 1 / median(seconds), "service, calls/s of 64": rate}
""",
    "pulls": """
import asyncio, contextlib, json, os, sys, time
import weight_sync as bench
from statistics import median
async def bursts():
    writers = {size: await bench.spawn(f"writer_{size}", bench.Writer, size) for size in (4, 64)}
    try:
        readers = {
            (transport, size): await bench.connect(writer.actor, transport, bench.make_model(size))
            for size, writer in writers.items() for transport in ("shm", "rdma", "message")
        }
        while True:
            found = {}
            for (transport, size), reader in readers.items():
                seconds = []
                for _ in range(9 if size == 4 else 3):
                    await writers[size].actor.publish.call_one()
                    began = time.perf_counter()
                    await reader.fetch()
                    seconds.append(time.perf_counter() - began)
                found[f"pulls, {transport}, {size} MB, 1/s"] = 1 / median(seconds)
            yield found
    finally:
        for writer in writers.values():
            await writer.stop()
""",
}


@dataclass(frozen=True, slots=True)
class Options:
    """What to compare."""

    base: Path
    """The other tree, with .venv/bin/python in it."""
    pairs: int = 21
    """Pairs of bursts of every measurement; of training a third of that."""
    only: str = ""
    """One measurement alone: rollouts, train, service or pulls."""
    log: bool = True
    """Append the result to LOG.md."""


class Tree:
    """A program that runs in a tree, with its interpreter and its benchmarks, and waits for its
    turn."""

    def __init__(self, tree: Path, file: Path) -> None:
        environment = os.environ | {"PYTHONPATH": f"{tree / 'benchmarks'}{os.pathsep}{tree}"}
        python = str(tree / ".venv" / "bin" / "python")
        self.name = tree.name
        self.process = subprocess.Popen(
            [python, str(file)], cwd=tree, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ready(self) -> None:
        """Wait until it has measured once, which does not count. What its imports print is passed
        over."""
        while self._line() != "ready\n":
            pass

    def burst(self) -> dict[str, float]:
        """Have it measure once. Returns its rates, larger numbers being better."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        while not (line := self._line()).startswith("{"):
            pass
        return json.loads(line)

    def end(self) -> None:
        self.process.communicate(timeout=60)

    def _line(self) -> str:
        assert self.process.stdout is not None
        if not (line := self.process.stdout.readline()):
            raise RuntimeError(f"{self.name} cannot be measured: see above")
        return line


def compare(base: Path, program: str, count: int) -> dict[str, list[tuple[float, float]]]:
    """Return ``count`` pairs of rates for each of the program's measurements, those of ``base``
    first."""
    pairs: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        # A file, not -c: an actor's process imports what it is made of.
        file = Path(scratch, "measured.py")
        file.write_text(f"{program}\nif __name__ == '__main__':\n{textwrap.indent(TURNS, '    ')}")
        there, here = Tree(base, file), Tree(HERE, file)
        try:
            there.ready()
            here.ready()
            for pair in range(count):
                found = {tree: tree.burst() for tree in ((there, here) if pair % 2 else (here, there))}
                for name, rate in found[here].items():
                    pairs.setdefault(name, []).append((found[there][name], rate))
                ratios = (f"{name} {rate / found[there][name]:.3f}" for name, rate in found[here].items())
                print(f"{pair}: {', '.join(ratios)}", flush=True)
        finally:
            there.end()
            here.end()
    return pairs


def main(options: Options) -> None:
    base = options.base.resolve()
    programs = {options.only: PROGRAMS[options.only]} if options.only else PROGRAMS
    pairs: dict[str, list[tuple[float, float]]] = {}
    for kind, program in programs.items():
        pairs |= compare(base, program, max(1, options.pairs // 3) if kind == "train" else options.pairs)
    rows = []
    for name, both in pairs.items():
        ratios = [here / there for there, here in both]
        there, here = (median(side) for side in zip(*both, strict=True))
        low, _, high = quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        rows.append([name, f"{there:.1f}", f"{here:.1f}", f"{median(ratios):.3f}", f"{low:.2f} – {high:.2f}", str(len(both))])  # fmt: skip
        with KEPT.open("a") as kept:
            kept.write(json.dumps({"name": name, "pairs": both}) + "\n")
    commits = [
        subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=tree, capture_output=True, text=True).stdout.strip()
        for tree in (base, HERE)
    ]
    report = Report(
        f"{commits[1]} against {commits[0]}, in turns",
        ["larger is better", commits[0], commits[1], "ratio, median", "middle half", "pairs"],
        rows,
    )
    print_report(report)
    if options.log:
        settings = {name: value for name, value in asdict(options).items() if name not in ("log", "base")}
        append_report("benchmarks/against.py", ASKED, EXPECTED, settings, [report])


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
