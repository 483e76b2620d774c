"""What a reader asks of a process that publishes weights."""

from __future__ import annotations

import os

import torch

from zorplex_rl.services.runtime import Actor, concurrent_endpoint
from zorplex_rl.training.transports import Publisher


class PublishingActor(Actor):
    """Has a ``publisher``."""

    publisher: Publisher

    @concurrent_endpoint
    async def process_id(self) -> int:
        return os.getpid()

    @concurrent_endpoint
    async def source(self):
        return self.publisher.source()

    @concurrent_endpoint
    async def ring_headers(self) -> torch.Tensor:
        return self.publisher.read_headers()

    @concurrent_endpoint
    async def ring_slot(self, slot: int, size: int) -> torch.Tensor:
        return self.publisher.read_slot(slot, size)
