"""Weights from one process to another: a real publisher in a Monarch process, real RDMABuffers, and
a writer that never stops."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from publishing_actor import PublishingActor
from torch import nn

from zorplex_rl.errors import WeightPullError
from zorplex_rl.services.replica import spawn
from zorplex_rl.services.runtime import concurrent_endpoint
from zorplex_rl.training import transports
from zorplex_rl.training.transports import Publisher, RdmaReader, SharedReader, Subscriber, subscribe
from zorplex_rl.weights.layout import Layout, LayoutMismatch, named_weights

WIDTH = 1024
HERE = [name for name in transports.READERS if name != "tcp"]
"""tcp is served on a worker's host only: ``test_delta_pulls.py``, and ``hosts/``."""
OUTLIVE_THE_WRITER = ["shm"]


def make_model(width: int = WIDTH) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, width), nn.Linear(width, 8))


class WriterActor(PublishingActor):
    """Publishes a model whose every number is the version's."""

    def __init__(self, slots: int, dtype: torch.dtype | None = None) -> None:
        self.model = make_model()
        self.publisher = Publisher(self.model, slots, dtype)
        self.version = 0
        self.stop = threading.Event()

    @concurrent_endpoint
    async def publish(self) -> int:
        self._write()
        return self.version

    @concurrent_endpoint
    async def publish_random(self) -> list[torch.Tensor]:
        self.version += 1
        with torch.no_grad():
            for tensor in named_weights(self.model).values():
                tensor.normal_()
        self.publisher.publish(self.model, self.version)
        return [tensor.detach().clone() for tensor in named_weights(self.model).values()]

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

    def _write(self) -> None:
        self.version += 1
        with torch.no_grad():
            for tensor in named_weights(self.model).values():
                tensor.fill_(float(self.version))
        self.publisher.publish(self.model, self.version)


async def subscribe_to(writer, transport: str, model: nn.Module):
    return await subscribe(replace(await writer.source.call_one(), owner=writer), transport, model)


def weights_of(model: nn.Module) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in named_weights(model).values()]


async def subscribe_all(writer) -> list[tuple[str, nn.Module, Subscriber]]:
    """A subscriber for each transport, with its model."""
    models = {transport: make_model() for transport in HERE}
    return [(name, model, await subscribe_to(writer, name, model)) for name, model in models.items()]


def test_pulled_parameters_are_bit_equal_to_the_published_ones_and_reach_the_model_only_with_the_swap():
    async def run():
        replica = await spawn("writer", WriterActor, 2)
        try:
            subscribed = await subscribe_all(replica.actor)
            for version in (1, 2, 3):
                published = await replica.actor.publish_random.call_one()
                for transport, model, source in subscribed:
                    if version == 1:
                        before = weights_of(model)
                        assert await source.fetch() == 1
                        assert all(map(torch.equal, before, weights_of(model)))
                        assert source.swap() == source.version == 1
                    else:
                        assert await source.pull() == version
                    for mine, theirs in zip(weights_of(model), published, strict=True):
                        assert torch.equal(mine, theirs), (transport, version)
            for _, model, source in subscribed:
                before = weights_of(model)
                assert await source.pull() == 3
                assert all(map(torch.equal, before, weights_of(model)))
        finally:
            await replica.stop()

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
            assert (values == float(version)).all(), f"{transport}: {version} holds {values.unique()[:4].tolist()}"
            assert version >= last
            pulls, last = pulls + 1, version
        assert pulls > 3, transport
        return last

    async def run():
        replica = await spawn("writer", WriterActor, 4)
        try:
            subscribed = await subscribe_all(replica.actor)
            await replica.actor.publish.call_one()
            await replica.actor.write_without_pause.call_one()
            lasts = [await pull_often(*each) for each in subscribed]
            await replica.actor.stop_writing.call_one()
            for last, (_, _, source) in zip(lasts, subscribed, strict=True):
                assert await source.pull() >= last
        finally:
            await replica.stop()

    asyncio.run(run())


def test_a_publisher_that_was_stopped_before_it_was_killed_is_waited_for_no_longer_than_a_read_may_take(monkeypatch):
    """Monarch never says that such a process is gone."""

    async def run():
        replica = await spawn("writer", WriterActor, 2)
        try:
            pid = await replica.actor.process_id.call_one()
            os.kill(pid, signal.SIGSTOP)
            # A signal takes effect a little later, and on a busy machine an answer may come first.
            while any(
                task.read_text().rpartition(") ")[2][0] != "T" for task in Path(f"/proc/{pid}/task").glob("*/stat")
            ):
                await asyncio.sleep(0.01)
            asked = replica.actor.source.call_one()
            await asyncio.sleep(1.5)
            os.kill(pid, signal.SIGKILL)
            monkeypatch.setattr("zorplex_rl.training.transports.READ_TIMEOUT_SECONDS", 1)
            with pytest.raises(WeightPullError, match="no answer within 1 s"):
                await transports.answer_of(asked)
        finally:
            await replica.stop()

    asyncio.run(run())


def test_a_writer_that_is_gone_leaves_the_old_weights_in_place_and_shared_ones_outlive_it_and_leave_nothing_behind(
    monkeypatch,
):
    async def run():
        replica = await spawn("writer", WriterActor, 2)
        subscribed = await subscribe_all(replica.actor)
        alone = [each for each in subscribed if each[0] not in OUTLIVE_THE_WRITER]
        handle = await replica.actor.source.call_one()
        await replica.actor.publish.call_one()
        for _, _, source in alone:
            await source.pull()
        before = [weights_of(model) for _, model, _ in alone]
        monkeypatch.setattr("zorplex_rl.training.transports.READ_TIMEOUT_SECONDS", 2)
        try:
            os.kill(await replica.actor.process_id.call_one(), signal.SIGKILL)
            for _, _, source in alone:
                with pytest.raises(WeightPullError, match="could not be read"):
                    await source.pull()
        finally:
            await replica.stop()
        for old, (transport, model, _) in zip(before, alone, strict=True):
            assert all(map(torch.equal, old, weights_of(model))), transport
        for transport, model, source in subscribed:
            if transport in OUTLIVE_THE_WRITER:
                assert await source.pull() == 1
                assert (torch.cat([t.flatten() for t in weights_of(model)]) == 1).all()
                with pytest.raises(WeightPullError, match="cannot be shared"):
                    await subscribe(handle, transport, model)

    asyncio.run(run())


def test_a_read_of_many_bytes_may_take_longer():
    assert transports.read_seconds(0) == transports.READ_TIMEOUT_SECONDS
    assert transports.read_seconds(15_000_000_000) == transports.READ_TIMEOUT_SECONDS + 300


def test_auto_takes_the_first_transport_that_works_and_weights_for_another_model_are_refused():
    async def run():
        replica = await spawn("writer", WriterActor, 2)
        try:
            handle = await replica.actor.source.call_one()
            assert isinstance((await subscribe(handle, "auto", make_model())).reader, SharedReader)
            elsewhere = replace(handle, shared=replace(handle.shared, boot_id="another host"))
            assert isinstance((await subscribe(elsewhere, "auto", make_model())).reader, RdmaReader)
            with pytest.raises(WeightPullError, match="another host"):
                await subscribe(elsewhere, "shm", make_model())
            with pytest.raises(ValueError, match="auto, shm, tcp, rdma, message"):
                await subscribe(handle, "pigeon", make_model())
            # Before anything is copied.
            with pytest.raises(LayoutMismatch):
                await subscribe_to(replica.actor, "rdma", make_model(8))
        finally:
            await replica.stop()

    asyncio.run(run())


def test_weights_may_travel_as_bfloat16_and_arrive_rounded():
    async def run():
        replica = await spawn("writer", WriterActor, 2, torch.bfloat16)
        try:
            model = make_model()
            source = await subscribe_to(replica.actor, "auto", model)
            published = await replica.actor.publish_random.call_one()
            await source.pull()
            for mine, theirs in zip(named_weights(model).values(), published, strict=True):
                assert mine.dtype == torch.float32
                assert torch.equal(mine, theirs.bfloat16().float())
            assert (await replica.actor.source.call_one()).layout.size <= Layout.of(model).size / 2 + 64 * len(
                published
            )
        finally:
            await replica.stop()

    asyncio.run(run())


def test_the_layout_says_how_many_bytes_travel():
    assert Layout.of(make_model()).size >= 4 * sum(p.numel() for p in make_model().parameters())
