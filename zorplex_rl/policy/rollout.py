"""Sample many episodes at once with one key-value cache.

Each step samples one token for every active row. Rows leave and enter between steps:

    waiting ──prefill (once per prompt)──► active ──finished──► Episode
                                            │  ▲
                              call complete │  │ result's tokens are fed, not sampled
                                            ▼  │
                                          parked (only if the tool is slow)

* Nothing is prefilled twice: all samples of a prompt start from one snapshot, and a tool's result is fed in the same step in which the other
  rows run their newest tokens.
* A slow tool stops only its own row. Another row uses the slot meanwhile. With ``Sampling.in_rounds`` the rows that wait go on together.
* Each row has its own random numbers. The other rows of the batch change an episode only by the rounding of a matrix product.
* Sampling is plain: softmax at the temperature, no top-k, no top-p. The recorded log-probability is that of the distribution sampled from.

``tool_loop.py`` parses the text, calls tools and ends episodes. ``rollout_simple.py`` samples the same episodes one at a time; read it first.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from itertools import count, islice
from typing import TYPE_CHECKING

import torch

from zorplex_rl.errors import TrainingDiverged
from zorplex_rl.policy.decoder import decoder_of, prefill
from zorplex_rl.policy.load import Policy
from zorplex_rl.policy.tool_loop import Execute, PartialEpisode, RolloutRequest, Sampling, ToolLoop, encode_prompt
from zorplex_rl.task.environment import ZORPLEX, Environment
from zorplex_rl.task.episode import Episode, Task

# kv_cache.py needs transformers, which takes seconds to load: it is imported where a model is already there.
if TYPE_CHECKING:
    from zorplex_rl.policy.kv_cache import SlotCache, Snapshot


@dataclass(frozen=True, slots=True)
class Prefilled:
    """A prompt that has run once: its ids, its part of the cache, and the logits [V] of the next token."""

    ids: list[int]
    snapshot: Snapshot
    logits: torch.Tensor


class RolloutEngine:
    """Samples all submitted requests together. Call ``submit``, then ``step`` until it is ``idle``; or ``run``, which does both."""

    def __init__(
        self,
        policy: Policy,
        execute: Execute,
        sampling: Sampling = Sampling(),
        environment: Environment = ZORPLEX,
    ) -> None:
        self.policy, self.sampling, self.version = policy, sampling, 0
        self._tool_loop, self._decode = ToolLoop(policy, execute, sampling, environment), decoder_of(policy.model)
        self._tickets = count()
        self._waiting: deque[tuple[int, RolloutRequest]] = deque()
        self._demand: Counter[Task] = Counter()
        self._prompts: dict[Task, Prefilled] = {}
        self._prompts_version = 0
        self._active: list[PartialEpisode] = []
        self._parked: list[tuple[PartialEpisode, Snapshot, torch.Tensor]] = []
        self._cache: SlotCache
        self._logits: torch.Tensor
        self._reserved = 0  # Tokens that a row of the cache can hold; 0 while there is no cache yet.

    @property
    def idle(self) -> bool:
        """Whether nothing is waiting, active or parked."""
        return not (self._waiting or self._active or self._parked)

    @property
    def stalled_on(self) -> list[Future[str]]:
        """Pending tool calls if no row can go on before one of them has ended, else an empty list."""
        if not self._all_wait:
            return []
        calls = [row.pending for row in (*self._active, *(row for row, _, _ in self._parked)) if row.pending]
        pending = [call for call in calls if not call.done()]
        if self.sampling.in_rounds:
            return pending[:1]
        return pending if len(pending) == len(calls) else []

    @property
    def _all_wait(self) -> bool:
        """Whether every row waits for a tool."""
        return (
            not self._waiting
            and all(row.pending for row in self._active)
            and all(row.pending for row, _, _ in self._parked)
        )

    def submit(self, requests: Iterable[RolloutRequest]) -> list[int]:
        """Queue ``requests``. Returns a ticket for each; ``step`` returns its episode with the same ticket."""
        arrived = [(next(self._tickets), request) for request in requests]
        self._waiting += arrived
        self._demand.update(request.task for _, request in arrived)
        return [ticket for ticket, _ in arrived]

    @torch.inference_mode()
    def step(self) -> list[tuple[int, Episode]]:
        """Sample one token for every active row. Returns (ticket, episode) of those that ended. Blocks only if all rows wait for tools.

        Raises TrainingDiverged if the logits are not finite.
        """
        while stalled := self.stalled_on:
            wait(stalled, return_when=FIRST_COMPLETED)
        self._settle_calls()
        if self._waiting and len(self._active) < self.sampling.slots:
            self._start()
        if not self._active:
            return []
        finished = self._append(*self._choose())
        if self._active:
            self._forward()
        return finished

    def run(
        self, requests: Iterable[RolloutRequest], on_episode: Callable[[Episode], None] = lambda episode: None
    ) -> list[Episode]:
        """Submit ``requests`` and step until all are done. Returns their episodes in the order of the requests."""
        tickets = self.submit(requests)
        episodes: dict[int, Episode] = {}
        while not self.idle:
            for ticket, episode in self.step():
                episodes[ticket] = episode
                on_episode(episode)
        return [episodes[ticket] for ticket in tickets]

    def _choose(self) -> tuple[list[int], list[float]]:
        """Return a token and its log-probability for every active row; both are ignored for a row with a result still to run.

        Raises TrainingDiverged if the logits are not finite.
        """
        temperature = self.sampling.temperature
        logits = self._logits[: len(self._active)].float()
        logprobs = torch.log_softmax(logits / temperature if temperature > 0 else logits, dim=-1)
        if temperature > 0:
            drawn = [0.0 if row.unfed else row.rng.random() for row in self._active]
            # Inverse transform sampling: the first token at which the cumulative probability exceeds the draw.
            cumulated = logprobs.exp().cumsum(-1)
            # A draw that float32 would round up to 1 is kept below the total, or there would be no token for it.
            draws = torch.tensor(drawn, device=logits.device).clamp_(max=1 - 2**-23)
            tokens = torch.searchsorted(cumulated, draws[:, None] * cumulated[:, -1:], right=True)
            # With NaN there is no such token, only an index beyond the vocabulary. Its log-probability is NaN too, which is checked below.
            tokens.clamp_(max=logprobs.shape[1] - 1)
        else:
            tokens = logprobs.argmax(-1, keepdim=True)
        chosen = logprobs.gather(1, tokens)[:, 0].tolist()
        if not math.isfinite(sum(chosen)):
            version = next(row.version for row, c in zip(self._active, chosen, strict=True) if not math.isfinite(c))
            raise TrainingDiverged(f"the weights of version {version} give logits that are not finite")
        return tokens[:, 0].tolist(), chosen

    def _append(self, tokens: list[int], logprobs: list[float]) -> list[tuple[int, Episode]]:
        """Add the chosen token to every row that is ready for one. Removes and returns the episodes that have ended."""
        loop, limit = self._tool_loop, self.sampling.max_tokens
        finished, freed = [], []
        for slot, (row, token, logprob) in enumerate(zip(self._active, tokens, logprobs, strict=True)):
            finish = None if row.unfed else loop.extend(row, token, logprob)
            if finish or len(row.episode.token_ids) >= limit:
                finished.append((row.ticket, loop.finish(row, finish or "tokens")))
                freed.append(slot)
        for slot in reversed(freed):
            self._remove(slot)
        return finished

    def _forward(self) -> None:
        """Run the model on the unfed tokens of every active row. Stores the logits of each row's next token."""
        tokens = [row.episode.token_ids[-row.unfed :] for row in self._active]
        if not self._decode.feeds_results:
            # This decoder takes one token for each row, so a result takes several steps.
            tokens = [row[:1] for row in tokens]
        step = self._cache.begin_step([row.cached for row in self._active], tokens)
        self._logits[: len(self._active)] = self._decode(step, self._cache)
        for row, fed in zip(self._active, tokens, strict=True):
            row.unfed -= len(fed)
            row.version = self.version

    def _start(self) -> None:
        """Move waiting requests into the free slots."""
        free = self.sampling.slots - len(self._active)
        entering = [self._waiting.popleft() for _ in range(min(free, len(self._waiting)))]
        self._prefill([request.task for _, request in entering])
        self._reserve(max(len(self._prompts[r.task].ids) for _, r in entering) + self.sampling.max_tokens)
        now = time.monotonic()
        for ticket, request in entering:
            prompt = self._prompts[request.task]
            # What ends it is known at its end.
            episode = Episode(
                request.task, prompt.ids, [], [], [], [], "tokens", request.seed, request.group, self.version
            )
            row = PartialEpisode(ticket, episode, random.Random(request.seed), now, self.version)
            self._enter(row, prompt.snapshot, prompt.logits)
            self._demand[request.task] -= 1
            if not self._demand[request.task]:
                del self._demand[request.task], self._prompts[request.task]

    def _prefill(self, tasks: list[Task]) -> None:
        """Prefill the prompts of ``tasks``, together with some that are needed next: a batch costs little more than one prompt."""
        if self._prompts_version != self.version:
            self._prompts.clear()
            self._prompts_version = self.version
        new = [task for task in dict.fromkeys(tasks) if task not in self._prompts]
        if not new:
            return
        ahead = (request.task for _, request in islice(self._waiting, self.sampling.slots))
        new = list(dict.fromkeys((*new, *(task for task in ahead if task not in self._prompts))))
        prompts = [encode_prompt(self.policy.tokenizer, task) for task in new]
        for task, ids, (snapshot, logits) in zip(new, prompts, prefill(self.policy.model, prompts), strict=True):
            self._prompts[task] = Prefilled(ids, snapshot, logits)

    def _settle_calls(self) -> None:
        """Feed the tool results that are ready. A row that still waits for its result is parked, and its slot becomes free.

        In rounds no result is ready before all are, and no other row can go on.
        """
        ready = self._all_wait or not self.sampling.in_rounds
        for slot in reversed(range(len(self._active))):
            row = self._active[slot]
            if row.pending is None:
                continue
            if ready and row.pending.done():
                self._tool_loop.answer(row)
            else:
                self._parked.append((row, self._cache.take(slot, row.cached), self._logits[slot].clone()))
                self._remove(slot)
        still_parked = []
        for row, snapshot, logits in self._parked:
            if ready and row.pending and row.pending.done():
                self._tool_loop.answer(row)
            if row.pending is None and len(self._active) < self.sampling.slots:
                self._enter(row, snapshot, logits)
            else:
                still_parked.append((row, snapshot, logits))
        self._parked = still_parked

    def _enter(self, row: PartialEpisode, snapshot: Snapshot, logits: torch.Tensor) -> None:
        slot = len(self._active)
        self._cache.put(slot, snapshot)
        self._logits[slot] = logits
        self._active.append(row)

    def _remove(self, slot: int) -> None:
        """Free ``slot`` by moving the last active row into it."""
        last = self._active.pop()
        if slot < len(self._active):
            self._cache.move(len(self._active), slot, last.cached)
            self._logits[slot] = self._logits[len(self._active)]
            self._active[slot] = last

    def _reserve(self, length: int) -> None:
        """Make sure that the cache has room for ``length`` tokens in each row. Active rows are copied from a shorter cache."""
        from zorplex_rl.policy.kv_cache import SlotCache

        model, old = self.policy.model, self._cache if self._reserved else None
        if length <= self._reserved:
            return
        self._reserved = -(-length // 32) * 32
        self._cache = SlotCache(model, self.sampling.slots, self._reserved)
        if old is None:
            vocabulary = model.get_output_embeddings().weight.shape[0]
            self._logits = torch.zeros(self.sampling.slots, vocabulary, dtype=model.dtype, device=model.device)
        else:
            for slot, row in enumerate(self._active):
                self._cache.put(slot, old.take(slot, row.cached))


def rollout(
    policy: Policy,
    requests: Iterable[RolloutRequest],
    execute: Execute,
    sampling: Sampling = Sampling(),
    version: int = 0,
    on_episode: Callable[[Episode], None] = lambda episode: None,
    environment: Environment = ZORPLEX,
) -> list[Episode]:
    """Sample an episode for each of ``requests``. Returns them in the order of the requests; calls ``on_episode`` as each one ends.

    ``environment`` names the tools and finds the answer.
    """
    engine = RolloutEngine(policy, execute, sampling, environment)
    engine.version = version
    return engine.run(requests, on_episode)
