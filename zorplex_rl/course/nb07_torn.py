"""Race the readers of notebook 07 against a writer that comes at drawn moments, or never rests.

check_read         PlayedRing: every step of the writer where the draw says so
race_from_afar     RestlessWriter, a real ring in another process
"""

import asyncio
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from zorplex_rl.course.lesson import exercise
from zorplex_rl.course.nb07 import Writer, layers, processes
from zorplex_rl.errors import WeightPullError
from zorplex_rl.services.runtime import concurrent_endpoint
from zorplex_rl.training.transports import connect

Read = Callable[[Callable[[], Any], Callable[[int], Any]], tuple[int, Any]]
"""``read(read_headers, read_slot)`` returns (version, weights)."""
Headers = list[tuple[int, int]]


def verdict(numbers: Tensor, version: int | None) -> str:
    """Say what a copy is that its header called ``version``: every number of version 7 is 7.0."""
    if version is None:
        return "given up"
    if bool((numbers != numbers[0]).any()):
        return "torn"
    return "whole" if numbers[0] == version else "another version"


class PlayedRing:
    """A ring whose writer takes a number of steps before each look of the reader."""

    def __init__(self, draw: random.Random, slots: int, version_first: bool) -> None:
        self.headers = [[0, 0] for _ in range(slots)]
        self.slots = [[0] * 4 for _ in range(slots)]
        self.version_first = version_first
        self.looks = 0
        self.log: list[str] = []
        self.begin = self.seen_at = self.copied_at = 0
        self.seen: Headers = []
        self.before: Headers = []
        self.after: Headers = []
        self.copied = 0
        self.writing = self._write()
        self.draw = draw
        self.busy_looks = draw.randint(0, 12)
        for _ in range(draw.choice((0, 1, 4, 8, 9, 12, 17))):
            next(self.writing)
        self.newest = max((v for s, v in self.headers if s % 2 == 0), default=0)

    def _write(self) -> Iterator[None]:
        version = 0
        for sequence in itertools.count(1, 2):
            slot = min(range(len(self.headers)), key=lambda slot: self.headers[slot][0])
            version += self.draw.randint(1, 3)
            self.log.append(f"the writer begins version {version} in slot {slot}")
            self.headers[slot][0] = sequence
            if self.version_first:
                self.headers[slot][1] = version
            yield
            halves = [slice(0, 2), slice(2, 4)]
            self.draw.shuffle(halves)
            self.slots[slot][halves[0]] = [version] * 2
            yield
            self.slots[slot][halves[1]] = [version] * 2
            self.headers[slot][1] = version
            yield
            self.headers[slot][0] = sequence + 1
            self.log.append(f"version {version} is complete")
            yield

    def _look(self) -> None:
        self.looks += 1
        assert self.looks < 300, (
            f"{self.why_endless()}. `read` never returns, although the writer rests with the headers `{self.headers}`"
        )
        steps = (
            self.draw.choice((0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8))
            if self.looks <= self.busy_looks
            else 0
        )
        if not steps and (
            (self.looks > self.busy_looks and any(s % 2 for s, _ in self.headers))
            or not self._any()
        ):
            steps = 1  # it finishes what it has begun
        for _ in range(steps):
            next(self.writing)

    def _any(self) -> bool:
        return any(sequence and sequence % 2 == 0 for sequence, _ in self.headers)

    def read_headers(self) -> Headers:
        self._look()
        self.seen = [(sequence, version) for sequence, version in self.headers]
        self.after = self.after or self.seen
        self.seen_at = len(self.log)
        self.log.append(f"`read_headers()` gives `{self.seen}`")
        return self.seen

    def read_slot(self, slot: int) -> list[int]:
        self._look()
        self.copied, self.before, self.after = slot, self.seen, []
        self.copied_at, self.begin = self.looks, self.seen_at
        self.log.append(f"`read_slot({slot})` copies the first half")
        first = self.slots[slot][:2]
        self._look()
        self.log.append("it copies the second half")
        return first + self.slots[slot][2:]

    def story(self) -> str:
        """Tell in numbered steps what happened since the look before the last copy."""
        told = enumerate(self.log[self.begin :][:7], start=1)
        return "; ".join(f"({number}) {line}" for number, line in told)

    def why_endless(self) -> str:
        """Say why a reader goes on for ever beside a writer that rests."""
        if self.looks - self.copied_at < 20:
            return "a copy is whole, and you do not accept it"
        if self.headers[0][1] == max(version for _, version in self.headers):
            return "slot 0 is a slot, too: `if not slot` skips it, so ask `if slot is None`"
        return "a slot is complete, and you do not copy it"

    def why_torn(self, weights: Any) -> str:
        """Say what a reader overlooked that returned ``weights`` after its last copy."""
        if weights is None:
            return "a torn copy is no reason to give up: try again, as long as it takes"
        if not self.before:
            return "look at the headers first, then copy a slot"
        before = self.before[self.copied]
        if before[0] == 0:
            return "a sequence of 0 is even, too: that slot was never written"
        if before[0] % 2:
            return "an odd sequence says that the slot is being written: do not copy it"
        if not self.after:
            return "you do not look at the headers again after the copy"
        now = self.after[self.copied]
        if now == before:
            return "return the version of the slot that you copied"
        if now[0] % 2:
            return "the version alone is not enough: the sequence changes first"
        return "even is not enough: it may be another even number than before the copy"


def check_read(read: Read) -> None:
    """Play a writer that comes at 2,000 drawn moments, also in the middle of a copy."""

    def check_one(draw: random.Random) -> None:
        ring = PlayedRing(draw, slots=draw.choice((2, 2, 3, 4)), version_first=draw.random() < 0.5)
        exercise.case(
            "`read(read_headers, read_slot)`"
            + ", while no slot is complete yet," * (not ring.newest)
        )
        found = read(ring.read_headers, ring.read_slot)
        assert isinstance(found, tuple) and len(found) == 2, (
            f"`read` should return `(version, weights)`, and returns `{found!r}`"
        )
        version, weights = found
        assert exercise.same(weights, [version] * 4) and version > 0, (
            f"{ring.why_torn(weights)}. `read` returns version `{version}` with the weights `{weights}`: {ring.story()}"
        )
        assert version >= ring.newest, (
            f"take the newest complete slot. `read` returns version `{version}`, and version {ring.newest} was complete before: {ring.story()}"
        )

    exercise.shortest(check_one, times=2000)


class RestlessWriter(Writer):
    """Publishes version after version; every number of version 7 is 7.0."""

    @concurrent_endpoint
    async def begin(self, pause: float) -> None:
        self.stop = threading.Event()
        self.pause = pause
        self.write()
        self.thread = threading.Thread(target=self.keep_writing, daemon=True)
        self.thread.start()

    @concurrent_endpoint
    async def rest(self) -> None:
        self.stop.set()
        await asyncio.to_thread(self.thread.join)

    def keep_writing(self) -> None:
        while not self.stop.wait(self.pause):
            self.write()

    @torch.no_grad()
    def write(self) -> None:
        self.version += 1
        for layer in self.model.parameters():
            layer.fill_(float(self.version))
        self.publisher.publish(self.model, self.version)


async def race_from_afar(read: Read, megabytes: int, reads: int) -> Any:
    """Read a ring whose writer never rests. Returns verdicts, and the seconds of each copy."""
    found = SimpleNamespace(verdicts=[], copies=[])
    async with processes(writer=(RestlessWriter, layers, megabytes)) as (writer,):
        source, loop = await writer.open_ring.call_one(3), asyncio.get_running_loop()
        reader = await connect(source, "rdma")
        staging, left = torch.zeros(source.layout.size, dtype=torch.uint8), 0

        def wait_for(call: Any) -> Any:
            return asyncio.run_coroutine_threadsafe(call, loop).result(timeout=30)

        def read_headers() -> list[tuple[int, int]]:
            return [
                (sequence, version)
                for sequence, version in wait_for(reader.read_headers()).tolist()
            ]

        def read_slot(slot: int) -> Tensor:
            nonlocal left
            left -= 1
            if left < 0:
                raise WeightPullError("no whole copy in 400 attempts")
            began = time.perf_counter()
            wait_for(reader.read_slot(slot, staging))
            found.copies.append(time.perf_counter() - began)
            return staging.view(torch.float32)

        await writer.begin.call_one(0.004)
        try:
            for _ in range(reads):
                left = 400
                try:
                    version, weights = await asyncio.to_thread(read, read_headers, read_slot)
                except WeightPullError:
                    found.verdicts.append("given up")
                    continue
                found.verdicts.append(verdict(torch.as_tensor(weights), int(version)))
        finally:
            await writer.rest.call_one()
    return found
