"""Weights from one process to another: a real publisher in a Monarch process, real RDMABuffers, and
a writer that never stops."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import torch
from torch import nn

from zorplex_rl.config import Config
from zorplex_rl.course.nb07 import Writer
from zorplex_rl.errors import WeightPullError
from zorplex_rl.services.runtime import concurrent_endpoint
from zorplex_rl.services.spawn import spawn
from zorplex_rl.training import transports
from zorplex_rl.training.transports import Publisher, Subscriber, subscribe
from zorplex_rl.weights.layout import LayoutMismatch, named_weights
from zorplex_rl.weights.ring import WeightRing

pytestmark = pytest.mark.slow


def make_model(width: int = 1024, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, width), nn.Linear(width, 8)).to(dtype)


class WriterActor(Writer):
    """Publishes a model whose every number is the version's."""

    def __init__(self, slots: int) -> None:
        super().__init__(make_model)
        self.publisher = Publisher(self.model, slots)
        self.stop = threading.Event()

    @concurrent_endpoint
    async def source(self):
        return self.publisher.source()

    @concurrent_endpoint
    async def publish(self) -> None:
        self._write()

    @concurrent_endpoint
    async def publish_random(self) -> list[torch.Tensor]:
        self._write(lambda tensor: tensor.normal_())
        return weights_of(self.model)

    @concurrent_endpoint
    async def write_without_pause(self) -> None:
        def write() -> None:
            # Little enough rest that readers are often lapped, and enough that some are not.
            while not self.stop.wait(0.002):
                self._write()

        threading.Thread(target=write, daemon=True).start()

    @concurrent_endpoint
    async def stop_writing(self) -> None:
        self.stop.set()

    @torch.no_grad()
    def _write(self, fill=None) -> None:
        self.version += 1
        for tensor in named_weights(self.model).values():
            fill(tensor) if fill else tensor.fill_(float(self.version))
        self.publisher.publish(self.model, self.version)


@asynccontextmanager
async def writer_of(slots: int):
    replica = await spawn("writer", WriterActor, slots)
    try:
        yield replica.actor
    finally:
        await replica.stop()


async def subscribe_to(writer, transport: str, model: nn.Module) -> Subscriber:
    return await subscribe(replace(await writer.source.call_one(), owner=writer), transport, model)


def weights_of(model: nn.Module) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in named_weights(model).values()]


async def subscribe_all(writer) -> list[tuple[str, nn.Module, Subscriber]]:
    """A subscriber for each transport, with its model."""
    models = {transport: make_model() for transport in transports.READERS}
    return [
        (name, model, await subscribe_to(writer, name, model)) for name, model in models.items()
    ]


def test_pulled_parameters_are_bit_equal_to_the_published_ones_and_reach_the_model_only_with_the_swap():
    async def run():
        async with writer_of(2) as writer:
            subscribed = await subscribe_all(writer)
            rounded = make_model(dtype=torch.bfloat16)
            to_rounded = await subscribe_to(writer, "auto", rounded)
            for version in (1, 2, 3):
                published = await writer.publish_random.call_one()
                for transport, model, source in subscribed:
                    before = weights_of(model)
                    assert await source.fetch() == version
                    assert all(map(torch.equal, before, weights_of(model)))
                    assert source.swap() == source.version == version
                    for mine, theirs in zip(weights_of(model), published, strict=True):
                        assert torch.equal(mine, theirs), (transport, version)
            assert await to_rounded.pull() == 3
            assert all(
                map(torch.equal, weights_of(rounded), (tensor.bfloat16() for tensor in published))
            )
            for _, model, source in subscribed:
                assert await source.pull() == 3
                assert all(map(torch.equal, published, weights_of(model)))

    asyncio.run(run())


def test_no_pull_is_ever_torn_while_the_writer_laps_the_reader():
    async def pull_often(transport, model, source):
        pulls = last = 0
        for _ in range(20):
            try:
                version = await source.pull()
            except WeightPullError:
                continue
            values = torch.cat([t.flatten() for t in named_weights(model).values()])
            assert (values == float(version)).all(), (
                f"{transport}: {version} holds {values.unique()[:4].tolist()}"
            )
            assert version >= last
            pulls, last = pulls + 1, version
        assert pulls > 3, transport
        return last

    async def run():
        async with writer_of(4) as writer:
            subscribed = await subscribe_all(writer)
            await writer.publish.call_one()
            await writer.write_without_pause.call_one()
            lasts = [await pull_often(*each) for each in subscribed]
            await writer.stop_writing.call_one()
            for last, (_, _, source) in zip(lasts, subscribed, strict=True):
                assert await source.pull() >= last

    asyncio.run(run())


def test_a_writer_that_is_gone_leaves_the_old_weights_in_place_and_shared_ones_outlive_it_and_leave_nothing_behind(
    monkeypatch,
):
    async def run():
        async with writer_of(2) as writer:
            subscribed = await subscribe_all(writer)
            handle = await writer.source.call_one()
            await writer.publish.call_one()
            for _, _, source in subscribed:
                await source.pull()
            monkeypatch.setattr(transports, "READ_TIMEOUT_SECONDS", 2)
            os.kill(await writer.process.call_one(), signal.SIGKILL)
            for transport, _, source in subscribed:
                if transport != "shm":
                    with pytest.raises(WeightPullError, match="could not be read"):
                        await source.pull()
        for transport, model, source in subscribed:
            assert (await source.pull() if transport == "shm" else source.swap()) == 1
            assert all((tensor == 1).all() for tensor in weights_of(model)), transport
        with pytest.raises(WeightPullError, match="cannot be shared"):
            await subscribe(handle, "shm", make_model())

    asyncio.run(run())


def test_auto_takes_the_first_transport_that_works_and_weights_for_another_model_are_refused():
    async def run():
        async with writer_of(2) as writer:
            source = replace(await writer.source.call_one(), owner=writer)
            elsewhere = replace(source, shared=replace(source.shared, proof=bytes(32)))
            for offered, expected in (
                (source, "shm"),
                (elsewhere, "rdma"),
                (replace(source, shared=None), "rdma"),
                (replace(elsewhere, rdma=None), "message"),
            ):
                assert (await subscribe(offered, "auto", make_model())).transport == expected
            with pytest.raises(WeightPullError, match="shm: .*cannot be shared"):
                await subscribe(elsewhere, "shm", make_model())
            with pytest.raises(WeightPullError, match="shm: .*; rdma: .*; message: "):
                await subscribe(replace(elsewhere, rdma=None, owner=None), "auto", make_model())
            # Before anything is copied.
            with pytest.raises(LayoutMismatch):
                await subscribe(source, "rdma", make_model(8))

    asyncio.run(run())


@pytest.mark.parametrize(
    ("settings", "is_shared", "starts"),
    [
        ({}, True, False),
        ({}, False, True),
        ({"hosts": "attach:tls://10.0.0.2:4444"}, True, True),
        ({"transport": "rdma"}, True, True),
        ({"transport": "message"}, False, False),
    ],
)
def test_rdma_which_opens_a_socket_starts_only_where_a_reader_may_need_it(
    settings, is_shared, starts
):
    ring = WeightRing({"w": torch.zeros(1)})
    if not is_shared:
        ring.shared = None
    assert transports._needs_rdma(Config().changed(**settings), ring) is starts
