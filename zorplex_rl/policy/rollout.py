"""Sample many episodes at once with one key-value cache. Read ``rollout_simple.py`` first.

    waiting ──prefill (once per prompt)──► active ──finished──► Episode
                                            │  ▲
                              call complete │  │ result's tokens are fed, not sampled
                                            ▼  │
                                          parked (only if the tool is slow)

Active rows are in branches, each with a slot of the cache: samples of a prompt are one branch until
they draw different tokens. A ``step`` has four parts. It fills free slots, first with rows whose result
has come. It writes the token that was drawn for each row, and ``tool_loop.py`` reads it. It runs the
model on what is new in each branch: a token, and perhaps a result. It draws each row's next token.

Each row has its own random numbers, so other rows change an episode only by the rounding of a
matrix product. Sampling is plain: softmax at the temperature, no top-k, no top-p.
"""

import asyncio
import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any

import torch

from zorplex_rl.errors import TrainingDiverged
from zorplex_rl.policy.decoder import (
    Decoder,
    SlotCache,
    Snapshot,
    borders,
    prefill,
)
from zorplex_rl.policy.load import Policy
from zorplex_rl.policy.requests import (
    EngineEvent,
    RolloutRequest,
    Sampling,
)
from zorplex_rl.policy.tokenizer import check_length, encode_prompt
from zorplex_rl.policy.tool_loop import (
    Execute,
    PartialEpisode,
    ToolLoop,
)
from zorplex_rl.task.environment import ZORPLEX, Environment
from zorplex_rl.task.episode import Episode, Task

STEPS_AT_ONCE = 16
"""Steps for which the lock is held: tens of milliseconds, a hundred times the cost of taking it."""
LIKELIEST = -1.0
"""Stands for a random number where a row takes the likeliest token."""


@dataclass(slots=True, eq=False)
class Prompt:
    """The prompt of requests that were submitted together. It runs again with newer weights."""

    task: Task
    version: int | None = None
    """The version of the weights that made snapshot and logits; None before it has run."""
    ids: list[int] = field(init=False)
    snapshot: Snapshot = field(init=False)
    logits: torch.Tensor = field(init=False)
    """The next token's [V]."""


class RolloutEngine:
    """Samples requests together. Call ``submit``, then ``step`` until it is ``idle``; or call ``run``.
    The model's weights may change between two steps: then set ``version``."""

    def __init__(
        self,
        policy: Policy,
        execute: Execute,
        sampling: Sampling = Sampling(),
        environment: Environment = ZORPLEX,
    ) -> None:
        self.policy = policy
        self.sampling = sampling
        self._version = 0
        self._history: deque[EngineEvent] = deque()
        self._steps = 0
        """Steps since the last event."""
        self._taken = 0
        """Events that were taken out of the history so far."""
        self._tool_loop = ToolLoop(policy, execute, sampling, environment)
        self._decode = Decoder(policy.model)
        self._cache = SlotCache(policy.model, sampling.slots)
        self._tickets = count()
        self._waiting: deque[tuple[int, RolloutRequest, Prompt]] = deque()
        self._branches: list[list[PartialEpisode]] = []
        """The active rows: those at index i are in slot i of the cache."""
        self._parked: list[PartialEpisode] = []

    @property
    def version(self) -> int:
        """The version of the weights."""
        return self._version

    @version.setter
    def version(self, version: int) -> None:
        if version != self._version:
            self._version = version
            self._note("version", version)

    @property
    def idle(self) -> bool:
        """Whether nothing is waiting, active or parked."""
        return not (self._waiting or self._branches or self._parked)

    @property
    def _active(self) -> list[PartialEpisode]:
        return [row for branch in self._branches for row in branch]

    @property
    def stalled_on(self) -> list[Future[str]]:
        """The pending tool calls if no row can go on before one of them ends, else none."""
        calls = self._calls_if_all_wait()
        pending = [call for call in calls if not call.done()]
        if self.sampling.in_rounds:
            return pending[:1]
        return pending if len(pending) == len(calls) else []

    def _calls_if_all_wait(self) -> list[Future[str]]:
        """Return every row's tool call if all rows wait for one, else none."""
        rows = [*self._active, *self._parked]
        calls = [row.pending for row in rows if row.pending]
        return calls if len(calls) == len(rows) and not self._waiting else []

    def submit(self, requests: Iterable[RolloutRequest]) -> list[int]:
        """Queue ``requests``. Returns a ticket for each; ``step`` returns it with the episode."""
        tickets: list[int] = []
        groups: dict[int, None] = {}
        prompts: dict[Task, Prompt] = {}
        for request in requests:
            ticket = next(self._tickets)
            prompt = prompts.setdefault(request.task, Prompt(request.task))
            self._waiting.append((ticket, request, prompt))
            tickets.append(ticket)
            groups[request.group] = None
        if tickets:
            self._note("submit", [*groups])
        return tickets

    @torch.inference_mode()
    def step(self) -> list[tuple[int, Episode]]:
        """Sample a token for every active row. Returns (ticket, episode) of those that ended. Blocks only
        if all rows wait for tools. Raises TrainingDiverged if logits are not finite."""
        while stalled := self.stalled_on:
            wait(stalled, return_when=FIRST_COMPLETED)
        self._fill_slots()
        finished = self._write()
        if self._branches:
            self._forward()
        self._steps += 1
        return finished

    def run(
        self,
        requests: Iterable[RolloutRequest],
        on_episode: Callable[[Episode], None] = lambda episode: None,
    ) -> list[Episode]:
        """Submit ``requests``, and step until all are done. Calls ``on_episode`` when an episode ends.
        Returns the episodes in the order of the requests."""
        tickets = self.submit(requests)
        episodes: dict[int, Episode] = {}
        while not self.idle:
            for ticket, episode in self.step():
                episodes[ticket] = episode
                on_episode(episode)
        return [episodes[ticket] for ticket in tickets]

    def take_history(self) -> tuple[int, list[EngineEvent]]:
        """Take out the events so far, even while the engine runs in another thread. Returns how many
        were taken out before, and these events."""
        before = self._taken
        events = []
        while self._history:
            events.append(self._history.popleft())
        self._taken += len(events)
        return before, events

    def _note(self, what: str, value: Any) -> None:
        """Add an event to the history."""
        self._history.append((self._steps, what, value))
        self._steps = 0

    def _fill_slots(self) -> None:
        """Give the slots to rows that can go on."""
        self._collect_answers()
        self._park_waiting()
        self._resume_parked()
        self._start_waiting()

    def _collect_answers(self) -> None:
        """Give rows the tool results that have come; in rounds, once every row waits and all results are
        there."""
        in_rounds = self.sampling.in_rounds
        if in_rounds and not self._calls_if_all_wait():
            return
        tickets = []
        for row in (*self._active, *self._parked):
            if row.pending and row.pending.done():
                self._tool_loop.answer(row)
                tickets.append(row.ticket)
        if tickets and not in_rounds:
            self._note("answers", tickets)

    def _park_waiting(self) -> None:
        """Take rows that still wait for their tool out of their slots."""
        for slot in reversed(range(len(self._branches))):
            for row in self._branches[slot]:
                if row.pending:
                    row.snapshot = self._cache.take(slot, row.cached)
                    self._parked.append(row)
        self._keep(lambda row: not row.pending)

    def _resume_parked(self) -> None:
        """Put parked rows that have their result into free slots."""
        ready = [row for row in self._parked if not row.pending]
        for row in ready[: self._free]:
            assert row.snapshot is not None
            self._parked.remove(row)
            self._enter([row], row.snapshot)
            row.snapshot = None

    @property
    def _free(self) -> int:
        """How many more rows may be active."""
        return self.sampling.slots - len(self._active)

    def _start_waiting(self) -> None:
        """Start waiting requests in the slots that are left."""
        count = min(self._free, len(self._waiting))
        if count == 0:
            return
        entering = [self._waiting.popleft() for _ in range(count)]
        self._prefill([prompt for _, _, prompt in entering])
        # Room in the slots for whatever may follow these prompts.
        longest = max(len(prompt.ids) for _, _, prompt in entering)
        length = longest + self.sampling.max_tokens
        self._cache.reserve(math.ceil(length / 32) * 32)
        now = time.monotonic()
        started: dict[Prompt, list[PartialEpisode]] = {}
        for ticket, request, prompt in entering:
            episode = Episode(
                task=request.task,
                prompt_ids=prompt.ids,
                token_ids=[],
                sampled=[],
                logprobs=[],
                turns=[],
                finish="tokens",  # until something else ends it
                seed=request.seed,
                group=request.group,
                first_version=self.version,
            )
            is_greedy = request.greedy or self.sampling.temperature == 0
            rng = None if is_greedy else random.Random(request.seed)
            row = PartialEpisode(
                ticket,
                episode,
                rng,
                now,
                self.version,
            )
            started.setdefault(prompt, []).append(row)
        for prompt, rows in started.items():
            self._enter(rows, prompt.snapshot)
        logits = torch.stack([prompt.logits for prompt in started])
        self._draw([*started.values()], logits)

    def _check_length(self, prompts: Sequence[Prompt]) -> None:
        """Raise ConfigError if the longest of ``prompts``, with its answer, is more than the model reads."""
        model = self.policy.model
        limits = [getattr(model.config, "max_position_embeddings", None), *borders(model)]
        most = min((limit for limit in limits if limit), default=0)
        longest = max(prompts, key=lambda prompt: len(prompt.ids))
        shots = len(longest.task.examples)
        check_length(
            self.policy.name,
            most,
            len(longest.ids),
            self.sampling.max_tokens,
            shots,
        )

    def _prefill(self, prompts: Sequence[Prompt]) -> None:
        """Run ``prompts``, and some that are needed next: a batch costs little more than one prompt."""
        if all(prompt.version == self.version for prompt in prompts):
            return
        ahead = [prompt for _, _, prompt in islice(self._waiting, self.sampling.slots)]
        needed = dict.fromkeys((*prompts, *ahead))
        new = [prompt for prompt in needed if prompt.version != self.version]
        for prompt in new:
            prompt.ids = encode_prompt(self.policy.tokenizer, prompt.task)
        self._check_length(new)
        results = prefill(self.policy.model, [prompt.ids for prompt in new])
        for prompt, result in zip(new, results, strict=True):
            prompt.snapshot, prompt.logits = result
            prompt.version = self.version

    def _write(self) -> list[tuple[int, Episode]]:
        """Write the token drawn for each active row. Removes and returns ended episodes."""
        finished = []
        for row in self._active:
            if row.drawn:
                self._tool_loop.extend(row, *row.drawn)
                row.drawn = None
            if self._tool_loop.has_ended(row):
                finished.append((row.ticket, self._tool_loop.end(row)))
        if finished:
            self._keep(lambda row: not self._tool_loop.has_ended(row))
        return finished

    def _fork(self) -> None:
        """Give a slot of its own to each row that no longer writes the same as its branch."""
        for slot, branch in enumerate([*self._branches]):
            alike: dict[tuple[int, ...], list[PartialEpisode]] = {}
            for row in branch:
                new = tuple(row.episode.token_ids[-row.unfed :])
                alike.setdefault(new, []).append(row)
            self._branches[slot], *others = alike.values()
            for rows in others:
                self._cache.move(slot, len(self._branches), rows[0].cached)
                self._branches.append(rows)

    def _forward(self) -> None:
        """Run the model on the unfed tokens of every branch, and draw its rows' next tokens."""
        self._fork()
        # Rows of a branch have written the same.
        first = [branch[0] for branch in self._branches]
        lengths = [row.cached for row in first]
        tokens = []
        for row in first:
            unfed = row.episode.token_ids[-row.unfed :]
            tokens.append(unfed[: self._decode.at_once])
        step = self._cache.begin_step(lengths, tokens)
        logits = self._decode(step, self._cache)
        for branch, fed in zip(self._branches, tokens, strict=True):
            for row in branch:
                row.unfed -= len(fed)
                row.version = self.version
        drawing = []
        for branch in self._branches:
            # A row draws no token before a whole result was fed, nor while it waits for one.
            drawing.append([row for row in branch if not row.unfed and not row.pending])
        self._draw(drawing, logits)

    def _draw(self, branches: Sequence[Sequence[PartialEpisode]], logits: torch.Tensor) -> None:
        """Draw each row's next token from the ``logits`` [B, V] of its branch."""
        if not any(branches):
            return
        uniform = [
            [row.rng.random() if row.rng else LIKELIEST for row in rows] for rows in branches
        ]
        drawn = draw(logits.float(), self.sampling.temperature or 1.0, uniform)
        for rows, tokens in zip(branches, drawn, strict=True):
            for row, (token, logprob) in zip(rows, tokens, strict=True):
                if not math.isfinite(logprob):
                    raise TrainingDiverged(
                        f"the weights of version {row.version} give logits that are not finite"
                    )
                row.drawn = (token, logprob)

    def _enter(self, rows: list[PartialEpisode], snapshot: Snapshot) -> None:
        """Begin a branch in the first free slot."""
        self._cache.put(len(self._branches), snapshot)
        self._branches.append(rows)

    def _keep(self, stays: Callable[[PartialEpisode], bool]) -> None:
        """Keep the active rows that ``stays`` says. The last branch moves to a slot that becomes free."""
        for slot in reversed(range(len(self._branches))):
            self._branches[slot] = [row for row in self._branches[slot] if stays(row)]
            if self._branches[slot]:
                continue
            last = self._branches.pop()
            if slot < len(self._branches):
                self._cache.move(len(self._branches), slot, last[0].cached)
                self._branches[slot] = last


def draw(
    logits: torch.Tensor,
    temperature: float,
    uniform: Sequence[Sequence[float]],
) -> list[list[tuple[int, float]]]:
    """Draw tokens from each row of ``logits`` [B, V], one for each of its numbers ``uniform``: in [0, 1), or
    ``LIKELIEST``. Returns each row's tokens with their log-probs, which are not finite if the logits are
    not."""
    most = max(map(len, uniform))
    logprobs = torch.log_softmax(logits / temperature, -1)
    # Inverse transform sampling: the first token whose cumulative probability exceeds the draw.
    cumulated = logprobs.exp().cumsum(-1)
    padded = []
    for numbers in uniform:
        missing = most - len(numbers)
        padded.append([*numbers, *[0.0] * missing])
    # A number that float32 would round up to 1 is kept below it: no token would be left.
    below_one = torch.tensor(padded, device=logits.device).clamp_(max=1 - 2**-23)
    tokens = torch.searchsorted(cumulated, below_one * cumulated[:, -1:], right=True)
    # With NaN there is no such token, only an index beyond the vocabulary.
    tokens.clamp_(max=logprobs.shape[1] - 1)
    likeliest = logprobs.argmax(-1, keepdim=True)
    tokens = likeliest.where(below_one == LIKELIEST, tokens)
    chosen = logprobs.gather(1, tokens)
    drawn = []
    for numbers, ids, values in zip(uniform, tokens.tolist(), chosen.tolist(), strict=True):
        pairs = list(zip(ids, values, strict=True))
        drawn.append(pairs[: len(numbers)])
    return drawn


def rollout(
    policy: Policy,
    requests: Iterable[RolloutRequest],
    execute: Execute,
    sampling: Sampling = Sampling(),
    version: int = 0,
    environment: Environment = ZORPLEX,
) -> list[Episode]:
    """Sample an episode for each of ``requests``. Returns them in this order. ``environment`` names the
    tools and finds the answer."""
    engine = RolloutEngine(policy, execute, sampling, environment)
    engine.version = version
    return engine.run(requests)


class RolloutStream:
    """Samples continuously: runs ``make_engine()`` in a thread for many callers at once.

        sample(requests) ──► inbox ──► engine ──► one future for each episode
                                         ▲
        model_lock ──────────────────────┘   held for a few steps; in between the model may change

    A slow tool or a long answer does not delay the next batch: both use the same slots. Episodes
    under way continue with new weights; each log-prob is that of the weights that sampled the token.
    ``busy()`` returns a context that is open while the model computes."""

    def __init__(
        self,
        make_engine: Callable[[], RolloutEngine],
        model_lock: asyncio.Lock,
        busy: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self._make_engine = make_engine
        self._model_lock = model_lock
        self._busy = busy
        self._engine = make_engine()
        self._inbox: list[tuple[RolloutRequest, asyncio.Future[Episode]]] = []
        self._promised: dict[int, asyncio.Future[Episode]] = {}
        self._wake = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    def use_version(self, version: int) -> None:
        """Set the version of the weights. Call this after changing them, while you hold the lock."""
        self._engine.version = version

    def take_history(self) -> tuple[int, list[EngineEvent]]:
        """Take out the engine's events so far; see ``RolloutEngine.take_history``."""
        return self._engine.take_history()

    async def sample(self, requests: Sequence[RolloutRequest]) -> list[Episode]:
        """Sample ``requests``. Returns their episodes in this order. Raises the error of a tool, which
        fails the episodes of all other callers, too."""
        promises = [asyncio.get_running_loop().create_future() for _ in requests]
        self._inbox += zip(requests, promises, strict=True)
        self._wake.set()
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        return list(await asyncio.gather(*promises))

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._inbox or not self._engine.idle:
                async with self._model_lock:
                    self._submit_arrived()
                    finished = await asyncio.to_thread(self._advance)
                for ticket, episode in finished:
                    promise = self._promised.pop(ticket)
                    if not promise.done():
                        promise.set_result(episode)
                while (stalled := self._engine.stalled_on) and not self._inbox:
                    # Wait for a tool's result or for a request.
                    self._wake.clear()
                    for call in stalled:
                        call.add_done_callback(lambda _: loop.call_soon_threadsafe(self._wake.set))
                    await self._wake.wait()
        except Exception as error:
            self._fail_all(error)
        except BaseException as error:
            # All callers must learn of it, but a cancellation is only this task's.
            self._fail_all(RuntimeError(f"sampling was ended by {error!r}"))

    def _submit_arrived(self) -> None:
        tickets = self._engine.submit(request for request, _ in self._inbox)
        for ticket, (_, promise) in zip(tickets, self._inbox, strict=True):
            self._promised[ticket] = promise
        self._inbox = []

    def _fail_all(self, cause: Exception) -> None:
        """Raise ``cause`` in all callers, and go on with a new engine."""
        version = self._engine.version
        self._engine = self._make_engine()
        self._engine.version = version
        promises = list(self._promised.values())
        for _, promise in self._inbox:
            promises.append(promise)
        self._promised = {}
        self._inbox = []
        for promise in promises:
            if not promise.done():
                promise.set_exception(cause)

    def _advance(self) -> list[tuple[int, Episode]]:
        finished: list[tuple[int, Episode]] = []
        with self._busy():
            for _ in range(STEPS_AT_ONCE):
                if self._engine.idle or self._engine.stalled_on:
                    break
                finished += self._engine.step()
        return finished
