"""An actor to build services of. Not a test: Monarch's processes import it."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from zorplex_rl.errors import ConfigError, WeightPullError
from zorplex_rl.services.options import ServiceError, ServiceOptions
from zorplex_rl.services.registry import get_service
from zorplex_rl.services.runtime import Actor, concurrent_endpoint
from zorplex_rl.services.service import Service
from zorplex_rl.services.spawn import replicas_of

DEADLY = "a step that ends the process"


class Echo(Actor):
    """Answers, takes its time, raises, counts what it has done, and writes down what it did where a
    test can read it."""

    def __init__(self, journal: str = "", setup_seconds: float = 0.0) -> None:
        self._journal, self._setup_seconds = journal, setup_seconds
        self._seen: list[int] = []

    @concurrent_endpoint
    async def setup(self) -> None:
        await asyncio.sleep(self._setup_seconds)

    @concurrent_endpoint
    async def who(self) -> int:
        return os.getpid()

    @concurrent_endpoint
    async def nap(self, seconds: float) -> int:
        await asyncio.sleep(seconds)
        return os.getpid()

    @concurrent_endpoint
    async def do(self, number: int, seconds: float = 0.0) -> int:
        """Note that request ``number`` was carried out, if there is a journal; then answer with
        it."""
        if self._journal:
            with open(f"{self._journal}.{os.getpid()}", "a") as journal:
                journal.write(f"{number}\n")
        await asyncio.sleep(seconds)
        return number

    @concurrent_endpoint
    async def ask(self, number: int, seconds: float = 0.0) -> int:
        """The same, marked idempotent by the tests."""
        await asyncio.sleep(seconds)
        return number

    @concurrent_endpoint
    async def remember(self, number: int) -> list[int]:
        self._seen.append(number)
        return self._seen

    @concurrent_endpoint
    async def complain(self, about: str) -> None:
        raise ValueError(about)


class Fragile(Echo):
    """Cannot be set up while the file ``broken`` exists, and takes ``setup_seconds`` for it
    otherwise."""

    def __init__(self, broken: str, setup_seconds: float = 0.0) -> None:
        super().__init__("", setup_seconds)
        self._broken = Path(broken)

    @concurrent_endpoint
    async def setup(self) -> None:
        if self._broken.exists():
            raise OSError("the disk is full")
        await asyncio.sleep(self._setup_seconds)


class Mortal(Echo):
    """Ends its process when it is told to."""

    @concurrent_endpoint
    async def die(self) -> None:
        os._exit(3)


class Misled(Echo):
    """Is given a setting that cannot work."""

    @concurrent_endpoint
    async def setup(self) -> None:
        with open(self._journal, "a") as journal:
            journal.write("x")
        raise ConfigError("--policy is 'nowhere'")


class Parrot(Actor):
    """Stands in for a generator: it cannot speak before it has pulled weights."""

    def __init__(self) -> None:
        self._version: int | None = None

    @concurrent_endpoint
    async def subscribe(self, trainer: str) -> None: ...

    @concurrent_endpoint
    async def pull(self) -> int:
        self._version = 3
        return 3

    @concurrent_endpoint
    async def generate(self, tasks: list[str]) -> list[str]:
        if self._version is None:
            raise RuntimeError("no weights yet")
        return tasks


class Deaf(Actor):
    """Stands in for a generator that no weights reach."""

    @concurrent_endpoint
    async def subscribe(self, trainer: str) -> None:
        raise WeightPullError("the trainer is far away")


class Finder(Actor):
    """Finds a service by its name and uses it."""

    @concurrent_endpoint
    async def find_and_ask(self, name: str, requests: int) -> list[int]:
        service = await get_service(name)
        return [await service.who.route() for _ in range(requests)]

    @concurrent_endpoint
    async def send(
        self, name: str, method: str, numbers: list[int], seconds: float, at_once: int = 1000
    ) -> list[Any]:
        return await send(await get_service(name), method, numbers, seconds, at_once)


class Pupil(Actor):
    """Stands in for the trainer's actor: its weights are the list of all that it was taught."""

    def __init__(self) -> None:
        self._taught: list[str] = []

    @concurrent_endpoint
    async def ping(self) -> None:
        pass

    @concurrent_endpoint
    async def step(self, lesson: str, seconds: float = 0.0) -> list[str]:
        if lesson == DEADLY:
            os._exit(1)
        await asyncio.sleep(seconds)
        self._taught.append(lesson)
        return list(self._taught)

    @concurrent_endpoint
    async def publish(self) -> int:
        return len(self._taught)

    @concurrent_endpoint
    async def drain_spans(self) -> list[str]:
        return list(self._taught)

    @concurrent_endpoint
    async def save(self, folder: str) -> None:
        os.makedirs(folder, exist_ok=True)
        Path(folder, "taught").write_text("\n".join(self._taught))

    @concurrent_endpoint
    async def load(self, folder: str) -> None:
        self._taught = Path(folder, "taught").read_text().splitlines()


async def send(
    service: Any, method: str, numbers: list[int], seconds: float, at_once: int = 1000
) -> list[Any]:
    """Send a request for each of ``numbers``; what became of each: its number, or the error in
    words."""
    gate = asyncio.Semaphore(at_once)

    async def request(number: int) -> Any:
        async with gate:
            try:
                return await getattr(service, method).route(number, seconds)
            except ServiceError as error:
                return f"{type(error).__name__}: {error}"

    return await asyncio.gather(*map(request, numbers))


def count_overtaking(router: Any) -> Counter[int]:
    """For each request, by number, the later ones that are sent while it waits in the queue;
    counted from now on."""
    overtaken, send_now = Counter(), router._send

    def send_and_count(request: Any, replica: Any) -> None:
        overtaken.update(
            waiting.number for waiting in router.queue if waiting.number < request.number
        )
        send_now(request, replica)

    router._send = send_and_count
    return overtaken


def service_of(actor_class: type[Actor], *args: Any, name: str = "echo", **options: Any) -> Service:
    """A service that is not open yet, of which ``who`` and ``ask`` are idempotent."""
    options = {"idempotent": ("who", "ask"), "start_timeout": 60} | options
    return Service(name, replicas_of(actor_class, *args), ServiceOptions(**options))


echoes = partial(service_of, Echo)


def in_flight(service: Any) -> int:
    """How many requests this process has sent that are not answered."""
    return sum(len(replica.in_flight) for replica in service.router.replicas)


def children() -> set[int]:
    """The process ids of everything that runs on behalf of this test process."""
    return {process.pid for process in psutil.Process().children(recursive=True)}


async def until(condition: Any, seconds: float = 20.0) -> None:
    """Return as soon as ``condition()`` holds."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)
