"""Is anything slower than at another commit?

    git worktree add ../base COMMIT                    with its own .venv, into which it is installed
    python benchmarks/against.py ../base

    rollouts      tokens per second of the rollout engine
    train         episodes per second of 40 asynchronous steps (``--max-lag 1``), the first five left out
    service       calls per second of one caller (latency) and of 64 (throughput) through a service of four replicas
    pulls         verified pulls per second of 4 and 64 MB through each transport on one machine

A measurement is a program that both trees run at the same time, each with its own interpreter,
package and benchmarks. They take turns burst by burst, of about a second, while the other waits, and
which is first alternates: a slow moment of the machine slows down neighbours in the same pair. The
ratio is taken within a pair, and medians are printed. At least 0.97 is expected. Training is a run
of its own for each burst.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

import tyro
from table import describe_machine, print_table

HERE = Path(__file__).resolve().parent.parent
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
from zorplex_rl.task.specs import get_spec, run_tool
async def bursts():
    policy, spec = load_policy("embedded"), get_spec("compositional", 0)
    for repeat in count():
        # Both trees sample the same tasks in the same burst, and the same again in later ones.
        requests = [RolloutRequest(spec.task(repeat % 4 * 8 + index // 8), index) for index in range(64)]
        began = time.perf_counter()
        episodes = rollout(policy, requests, run_tool, Sampling(slots=64))
        yield {"rollouts, tokens/s": sum(len(e.token_ids) for e in episodes) / (time.perf_counter() - began)}
""",
    "train": """
import asyncio, contextlib, json, subprocess, sys, tempfile
from pathlib import Path
async def bursts():
    yield {}
    while True:
        with tempfile.TemporaryDirectory() as scratch:
            words = "train --steps 40 --max-lag 1 --seed 0 --eval-tasks 8 --eval-every 1000 --checkpoint-every 1000"
            command = [sys.executable, "-m", "zorplex_rl", *words.split(), "--out", scratch + "/run"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            rows = [json.loads(line) for line in Path(scratch, "run/metrics.jsonl").read_text().splitlines()]
        steps = [row for row in rows if row["event"] == "step"]
        first, last = steps[4], steps[-1]
        rate = (last["episodes"] - first["episodes"]) / (last["seconds"] - first["seconds"])
        yield {"40 asynchronous steps, episodes/s": rate}
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
import asyncio, contextlib, json, sys, time
import weight_sync as bench
from statistics import median
async def bursts():
    writers = {size: await bench.spawn(f"writer_{size}", bench.Writer, size, "cpu") for size in (4, 64)}
    try:
        readers = {
            (transport, size): await bench.connect(writer.actor, transport, bench.make_model(size, "cpu"))
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

    base: tyro.conf.Positional[Path]
    """The other tree, with .venv/bin/python in it."""
    pairs: int = 21
    """Pairs of bursts of every measurement; of training a third of that."""
    only: tuple[str, ...] = tuple(PROGRAMS)
    """Which measurements."""


class Tree:
    """A program that runs in a tree, with its interpreter and benchmarks, and waits for its turn."""

    def __init__(self, tree: Path, file: Path) -> None:
        environment = os.environ | {"PYTHONPATH": f"{tree / 'benchmarks'}{os.pathsep}{tree}"}
        command = [str(tree / ".venv" / "bin" / "python"), str(file)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, cwd=tree, env=environment, text=True, **pipes)

    def wait_for(self, beginning: str) -> str:
        """Return the next line that begins so. What imports print is passed over."""
        while line := self.process.stdout.readline():
            if line.startswith(beginning):
                return line
        raise RuntimeError("a tree cannot be measured: see above")

    def burst(self) -> dict[str, float]:
        """Have it measure once. Returns its rates, larger numbers being better."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(self.wait_for("{"))


def compare(base: Path, program: str, count: int) -> dict[str, list[tuple[float, float]]]:
    """Return ``count`` pairs of rates for each of the program's measurements, those of ``base`` first."""
    pairs: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        # A file, not -c: an actor's process imports what it is made of.
        file = Path(scratch, "measured.py")
        file.write_text(f"{program}\nif __name__ == '__main__':\n{textwrap.indent(TURNS, '    ')}")
        there, here = Tree(base, file), Tree(HERE, file)
        try:
            for tree in (there, here):
                tree.wait_for("ready")
            for pair in range(count):
                rates = {
                    tree: tree.burst() for tree in ((there, here) if pair % 2 else (here, there))
                }
                for name, rate in rates[here].items():
                    pairs.setdefault(name, []).append((rates[there][name], rate))
                ratios = (
                    f"{name} {rate / rates[there][name]:.3f}" for name, rate in rates[here].items()
                )
                print(f"{pair}: {', '.join(ratios)}", file=sys.stderr, flush=True)
        finally:
            there.process.communicate(timeout=60)
            here.process.communicate(timeout=60)
    return pairs


def commit_of(tree: Path) -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True).stdout.strip()


def main(options: Options) -> None:
    base = options.base.resolve()
    rows = []
    for kind in options.only:
        count = max(1, options.pairs // 3) if kind == "train" else options.pairs
        for name, pairs in compare(base, PROGRAMS[kind], count).items():
            ratios = [here / there for there, here in pairs]
            there, here = (f"{median(side):.1f}" for side in zip(*pairs, strict=True))
            low, _, high = quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
            rows.append(
                [
                    name,
                    there,
                    here,
                    f"{median(ratios):.3f}",
                    f"{low:.2f} – {high:.2f}",
                    str(len(pairs)),
                ]
            )
    print(describe_machine())
    columns = [
        "larger is better",
        commit_of(base),
        commit_of(HERE),
        "ratio, median",
        "middle half",
        "pairs",
    ]
    print_table(f"{commit_of(HERE)} against {commit_of(base)}, in turns", columns, rows)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
