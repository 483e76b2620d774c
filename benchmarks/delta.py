"""How many bytes does a version of the weights take if only what has changed travels, and can one
say so before?

    python benchmarks/delta.py        about five minutes on a quiet core; appends to LOG.md

For each learning rate the embedded policy is trained on its own samples, with float32 weights that
travel as bfloat16, at a constant rate. After each step the change is encoded. Its size is predicted
before the step, from the weights and the step before (``expected_share`` of ``weights/delta.py``).
The weights of the last two versions then go to another process, whole and as a change in turns,
through each transport.
The seconds of a change are predicted: its bytes at the rate at which the whole version came, and
the time that it takes to apply. Between hosts: ``benchmarks/hosts.py --links``.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from itertools import product
from statistics import median

import torch
import tyro
from log import Report, append_report, print_report
from torch import Tensor
from zorplex_rl.services.worker import HOST_ADDRESS

from zorplex_rl.config import LearnerConfig
from zorplex_rl.learning.advantages import group_relative
from zorplex_rl.learning.learner import Learner
from zorplex_rl.learning.train_simple import play
from zorplex_rl.policy.load import load_policy
from zorplex_rl.services.replica import Replica, spawn
from zorplex_rl.services.runtime import Actor, concurrent_endpoint
from zorplex_rl.task.environment import Zorplex, kinds_of
from zorplex_rl.training.transports import Publisher, WeightSource, subscribe
from zorplex_rl.weights.delta import HEAD, apply, encode, expected_bytes, expected_share, word_of
from zorplex_rl.weights.layout import Layout, named_weights
from zorplex_rl.weights.ring import NOTHING_PUBLISHED

ASKED = (
    "How many bytes does a version take as a change, how well is that predicted a step before, and how long does a read take, "
    "against a version that is read whole?"
)
EXPECTED = (
    "At most a fifth of the bytes at 2e-5 and a twentieth at 2e-6; predicted within 10 %. No expectation for the time."
)


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure."""

    learning_rates: tuple[float, ...] = (2e-4, 2e-5, 2e-6)
    """Constant rates of AdamW."""
    steps: int = 20
    """Training steps at each; the first five are not counted, because Adam's moments are young."""
    prompts: int = 6
    """Prompts in a batch, of six samples each."""
    repeats: int = 15
    """Reads through each transport."""
    tiles: tuple[int, ...] = (1, 40)
    """How often the weights stand one after the other in what is read: 1.7 MB, and 69 MB."""
    seed: int = 0
    """Of tasks and draws."""
    log: bool = True
    """Append the result to LOG.md."""


@dataclass(slots=True)
class Measured:
    """One learning rate: bytes as a share of a whole version, the share of weights that changed,
    and the last two versions."""

    rate: float
    predicted: list[float]
    found: list[float]
    changed: list[float]
    versions: list[dict[str, Tensor]]


class WriterActor(Actor):
    """Publishes two sets of weights in turn."""

    def __init__(self, versions: list[dict[str, Tensor]]) -> None:
        self.versions, self.version = versions, 0
        os.environ.setdefault(HOST_ADDRESS, "127.0.0.1")
        self.publisher = Publisher(Weights(versions[0]), full_every=10**9)

    @concurrent_endpoint
    async def source(self) -> WeightSource:
        return self.publisher.source()

    @concurrent_endpoint
    async def ring_headers(self) -> Tensor:
        return self.publisher.read_headers()

    @concurrent_endpoint
    async def ring_slot(self, slot: int, size: int) -> Tensor:
        return self.publisher.read_slot(slot, size)

    @concurrent_endpoint
    async def publish(self) -> None:
        """Publish the next version."""
        self.version += 1
        self.publisher.publish(Weights(self.versions[self.version % 2]), self.version)


class ReaderActor(Actor):
    """Reads each version twice: whole, and as a change."""

    def __init__(self, versions: list[dict[str, Tensor]]) -> None:
        torch.set_num_threads(1)
        self.versions = versions

    @concurrent_endpoint
    async def subscribe(self, source: WeightSource, transport: str) -> None:
        self.readers = {w: await subscribe(source, transport, Weights(self.versions[0])) for w in (True, False)}
        for reader in self.readers.values():
            await reader.pull()

    @concurrent_endpoint
    async def fetch(self, whole: bool) -> float:
        """Return the seconds of a read into the staging buffer."""
        if whole:
            # What a reader knows that has missed the last changes.
            self.readers[True]._fetched = NOTHING_PUBLISHED
        begin = time.perf_counter()
        await self.readers[whole].fetch()
        seconds = time.perf_counter() - begin
        self.readers[whole].swap()
        return seconds

    @concurrent_endpoint
    async def change(self) -> tuple[int, int, float]:
        """Return the bytes of a whole version and of the change to it, and the seconds in which
        the change is applied and checked, without any network."""
        model, other = Weights(self.versions[0]), Weights(self.versions[1])
        layout = Layout.of(model)
        before, after = packed(model, layout), packed(other, layout)
        out = torch.zeros(4 * layout.size, dtype=torch.uint8)
        size = encode(before, after, 1, word_of(layout), out)
        assert size is not None
        seconds = []
        for _ in range(9):
            buffer = before.clone()
            begin = time.perf_counter()
            apply(out[:size], buffer)
            seconds.append(time.perf_counter() - begin)
        return layout.size, size, median(seconds)


class Weights(torch.nn.Module):
    """A mapping of tensors as a module."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name.replace(".", "_"), tensor.clone())


def packed(model: torch.nn.Module, layout: Layout) -> Tensor:
    buffer = torch.zeros(layout.size, dtype=torch.uint8)
    layout.pack(model, buffer)
    return buffer


def flat(model: torch.nn.Module) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in named_weights(model).values()])


def measure(rate: float, options: Options) -> Measured:
    """Train at ``rate``, and compare each change with what was predicted of it."""
    policy = load_policy("embedded")
    config = LearnerConfig(learning_rate=rate, warmup_steps=0)
    # So long that the rate does not fall meanwhile.
    learner, environment = Learner(policy, config, 10**9), Zorplex(options.seed)
    layout = Layout.of(policy.model, torch.bfloat16)
    measured, last, step = Measured(rate, [], [], [], []), packed(policy.model, layout), None
    before = flat(policy.model).clone()
    for number in range(options.steps):
        share = None if step is None else expected_share(before, step)
        tasks = environment.tasks(kinds_of("compositional"), options.prompts, start=number * options.prompts)
        episodes = play(
            policy, environment, [task for task in tasks for _ in range(6)], 1000 * options.seed + 36 * number
        )
        rewards = [episode.scored.reward for episode in episodes]
        advantages = group_relative([rewards[at : at + 6] for at in range(0, len(rewards), 6)])
        learner.step(episodes, [a for group in advantages for a in group])
        now, after = packed(policy.model, layout), flat(policy.model).clone()
        if number >= 5 and share is not None:
            out = torch.zeros(4 * layout.size, dtype=torch.uint8)
            size = encode(last, now, number, 2, out)
            assert size is not None
            measured.found.append(size / layout.size)
            measured.predicted.append(expected_bytes(share, len(after), 2) / layout.size)
            measured.changed.append((last.view(torch.int16) != now.view(torch.int16)).double().mean().item())
        step, before, previous, last = after - before, after, last, now
    measured.versions = [{"w": words.view(torch.bfloat16)} for words in (last, previous)]
    return measured


Spawn = Callable[..., Awaitable[Replica]]
"""``spawn(name, actor_class, *args)``: writers and readers stand on hosts of their own, or here."""


@dataclass(frozen=True, slots=True)
class Reads:
    """Median seconds of a read of a whole version and of the same as a change; what a change of
    that size is predicted to take."""

    whole: float
    change: float
    predicted: float
    share: float
    """Bytes of the change as a share of those of a whole version."""


async def read_in_turns(
    versions: list[dict[str, Tensor]], transport: str, repeats: int, at_writer: Spawn = spawn, at_reader: Spawn = spawn
) -> Reads:
    """Read ``repeats`` versions, each whole and as a change in turns."""
    async with AsyncExitStack() as running:
        writer = await at_writer("writer", WriterActor, versions)
        running.push_async_callback(writer.stop)
        reader = await at_reader("reader", ReaderActor, versions)
        running.push_async_callback(reader.stop)
        source = replace(await writer.actor.source.call_one(), owner=writer.actor)
        await writer.actor.publish.call_one()
        await reader.actor.subscribe.call_one(source, transport)
        pairs = []
        for _ in range(repeats):
            await writer.actor.publish.call_one()
            pairs.append([await reader.actor.fetch.call_one(whole) for whole in (True, False)])
        size, change, apply_seconds = await reader.actor.change.call_one()
    whole, found = (median(side) for side in zip(*pairs, strict=True))
    predicted = whole * change / size + apply_seconds
    # What is larger than the ring's slot for a change is read whole.
    return Reads(whole, found, predicted if change <= HEAD + size // 4 else whole, change / size)


def repeated(versions: list[dict[str, Tensor]], tile: int) -> list[dict[str, Tensor]]:
    """Return ``versions`` with all weights ``tile`` times, one after the other."""
    return [{"w": version["w"].repeat(tile)} for version in versions]


COLUMNS = ["learning rate", "MB", "way", "share of bytes", "whole, ms", "change, ms", "predicted, ms", "ratio"]


def row_of(rate: float, versions: list[dict[str, Tensor]], way: str, reads: Reads) -> list[str]:
    """Return a line of the table that has ``COLUMNS``."""
    times = (f"{1e3 * seconds:.2f}" for seconds in (reads.whole, reads.change, reads.predicted))
    size = f"{versions[0]['w'].nbytes / 1e6:.1f}"
    return [f"{rate:g}", size, way, f"{reads.share:.3f}", *times, f"{reads.change / reads.whole:.2f}"]


def on_this_machine(measured: list[Measured], options: Options) -> list[list[str]]:
    """Return the table's lines for each transport between two processes of this machine."""
    rows = []
    for found, tile, transport in product(measured, options.tiles, ("shm", "tcp", "rdma", "message")):
        versions = repeated(found.versions, tile)
        reads = asyncio.run(read_in_turns(versions, transport, options.repeats))
        rows.append(row_of(found.rate, versions, transport, reads))
    return rows


def main(options: Options) -> None:
    torch.set_num_threads(1)
    all_measured = [measure(rate, options) for rate in options.learning_rates]
    rows = []
    for measured in all_measured:
        found, predicted = median(measured.found), median(measured.predicted)
        errors = [p / f - 1 for p, f in zip(measured.predicted, measured.found, strict=True)]
        rows.append(
            [
                f"{measured.rate:g}",
                f"{1 - median(measured.changed):.1%}",
                f"{found:.3f}",
                f"{predicted:.3f}",
                f"{predicted / found - 1:+.1%}",
                f"{median(map(abs, errors)):.1%}",
            ]
        )
    times = on_this_machine(all_measured, options)
    reports = [
        Report(
            "Bytes of a change as a share of a whole version: medians over the steps",
            [
                "learning rate",
                "weights unchanged",
                "measured",
                "predicted",
                "error of the median",
                "median error of a step",
            ],
            rows,
        ),
        Report(
            "One read into the staging buffer",
            COLUMNS,
            times,
        ),
    ]
    for report in reports:
        print_report(report)
    if options.log:
        settings = {name: value for name, value in asdict(options).items() if name != "log"}
        append_report("python benchmarks/delta.py", ASKED, EXPECTED, settings, reports)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
