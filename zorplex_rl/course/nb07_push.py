"""Run a trainer beside two working generators in notebook 07: it pushes, or they pull.

Trainer, Decoder ──► compare ──► run_protocol ──► summary: timeline, seconds, ages of weights
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from zorplex_rl import TASK_SPECS
from zorplex_rl.course.nb07 import Writer, processes
from zorplex_rl.policy.load import load_policy
from zorplex_rl.policy.rollout import RolloutRequest, Sampling, rollout
from zorplex_rl.run.timeline import Span, SpanRecorder, Timeline
from zorplex_rl.services.runtime import Actor, concurrent_endpoint
from zorplex_rl.task.environment import Zorplex
from zorplex_rl.training.transports import subscribe


def supervised_step(model: Any, optimizer: Any) -> None:
    """Take a real step on one batch of tokens."""
    tokens = torch.arange(16 * 96, device=model.device).view(16, 96) % 200
    logits = model(tokens[:, :-1]).logits
    torch.nn.functional.cross_entropy(logits.mT, tokens[:, 1:]).backward()
    optimizer.step()
    optimizer.zero_grad()


class Trainer(Writer):
    """Takes real steps on one batch of tokens, and publishes."""

    def __init__(self, policy: str, device: str) -> None:
        super().__init__(lambda: load_policy(policy, device).model)
        self.recorder = SpanRecorder("trainer")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)

    @concurrent_endpoint
    async def step(self, version: int) -> None:
        with self.recorder.span("train", version=version):
            await asyncio.to_thread(supervised_step, self.model, self.optimizer)
        with self.recorder.span("publish"):
            self.publisher.publish(self.model, version)

    @concurrent_endpoint
    async def drain(self) -> list[Span]:
        return self.recorder.drain()


class Decoder(Actor):
    """A generator: it decodes batch after batch, and takes new weights only between two of them."""

    def __init__(self, name: str, policy: str, device: str, batch: int) -> None:
        torch.set_num_threads(1)
        self.policy, self.environment = (
            load_policy(policy, device),
            Zorplex(shots=0 if policy == "embedded" else 2),
        )
        tasks = self.environment.tasks(tuple(TASK_SPECS), batch)
        self.requests = [RolloutRequest(task, seed) for seed, task in enumerate(tasks)]
        self.recorder = SpanRecorder(name)
        self.offers: list[asyncio.Future[None]] = []

    @concurrent_endpoint
    async def subscribe(self, source: Any) -> None:
        self.subscriber = await subscribe(source, "auto", self.policy.model)
        await self.subscriber.pull()
        self.decode()  # the first batch is slower: it is not measured

    def decode(self) -> None:
        rollout(self.policy, self.requests, self.environment.execute, Sampling())

    @concurrent_endpoint
    async def start(self, pulls: bool) -> None:
        self.go_on, self.running = True, asyncio.create_task(self.work(pulls))

    async def work(self, pulls: bool) -> None:
        while self.go_on:
            offers, self.offers = self.offers, []
            if pulls or offers:
                with self.recorder.span("pull"):
                    await self.subscriber.pull()
            for offer in offers:
                offer.set_result(None)
            with self.recorder.span("generate", version=self.subscriber.version):
                await asyncio.to_thread(self.decode)

    @concurrent_endpoint
    async def take(self) -> None:
        """Return when this generator has pulled what there is now."""
        self.offers.append(offer := asyncio.get_running_loop().create_future())
        await offer

    @concurrent_endpoint
    async def finish(self) -> list[Span]:
        self.go_on = False
        await self.running
        return self.recorder.drain()


async def compare(
    protocols: Sequence[Any], config: Any, one_more: Callable[[], None]
) -> dict[str, Any]:
    """Run each protocol of the page with the same trainer and generators. Of one that is given twice the later run counts."""
    model = config.policy, config.device
    decoders = {name: (Decoder, name, *model, batch) for name, batch in config.batches.items()}
    summaries = {}
    async with processes(trainer=(Trainer, *model), **decoders) as (trainer, *generators):
        source = await trainer.open_ring.call_one()
        await trainer.step.call_one(0)  # the first step is slower: it is not measured
        for each in generators:
            await each.subscribe.call_one(source)
        for number, protocol in enumerate(protocols):
            first = 1 + number * config.steps
            summaries[protocol.__name__] = await run_protocol(
                protocol, trainer, generators, range(first, first + config.steps), one_more
            )
    return summaries


async def run_protocol(
    protocol: Any,
    trainer: Any,
    generators: Sequence[Any],
    versions: range,
    one_more: Callable[[], None],
) -> Any:
    """Run the trainer by ``protocol`` beside working generators. Returns its summary; ``one_more`` hears of steps."""

    def counted() -> Iterator[int]:
        for version in versions:
            yield version
            one_more()

    pulls = protocol.__name__ == "pulling"
    await asyncio.gather(*(each.start.call_one(pulls).as_asyncio() for each in generators))
    await trainer.drain.call_one()
    await protocol(trainer, generators, counted())
    own = await trainer.drain.call_one()
    others = await asyncio.gather(*(each.finish.call_one().as_asyncio() for each in generators))
    return summary(own, others, pulls, versions)


def summary(
    own: Sequence[Span], others: Sequence[Sequence[Span]], pulls: bool, versions: range
) -> Any:
    """Return the ``timeline`` of a run, its ``seconds``, those of a ``step``, and ages."""
    began, ended = min(span.start for span in own), max(span.end for span in own)
    if not pulls:  # the last hand-over is part of the last step
        ended = max(
            [ended] + [span.end for spans in others for span in spans if span.kind == "pull"]
        )
    trained = [(span.end, span.args["version"]) for span in own if span.kind == "train"]
    ages = [
        [
            max([version for end, version in trained if end <= span.end], default=versions[0] - 1)
            - span.args["version"]
            for span in spans
            if span.kind == "generate" and began < span.end
        ]
        for spans in others
    ]
    timeline = Timeline([*own])
    for spans in others:
        timeline.add(span for span in spans if span.end > began)
    return SimpleNamespace(
        timeline=timeline.between(began, ended),
        seconds=ended - began,
        step=(ended - began) / len(versions),
        ages=ages,
    )
