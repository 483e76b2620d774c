"""Rollouts: many episodes at once through one key-value cache.

Every step samples one token for every active row, and rows leave and enter between steps:

    waiting ──prefill (once per prompt)──► active ──finished──► Episode
                                            │  ▲
                              call complete │  │ result's tokens are fed, not sampled
                                            ▼  │
                                          parked (only if the tool is slow)

* Nothing is prefilled twice: all samples of a prompt start from one snapshot, and a tool's result is fed in the very step in which
  the other rows run their newest tokens.
* A slow tool stops only its own row, whose slot goes to another one meanwhile.
* Each row draws from its own random numbers, and the draw for a token depends on the row alone. What else is in the batch changes an
  episode by no more than the rounding of a matrix product.
* Sampling is plain: softmax at the temperature, no top-k, no top-p. The log-probability recorded is the one sampled from.

A text is looked at only when a token ends a bracket or a line, and then only from the start of that line.
"""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from itertools import islice

import torch

from zorplex_rl.policy.decoder import decoder_of
from zorplex_rl.policy.load import Policy
from zorplex_rl.policy.slots import SlotCache, Snapshot, prefill
from zorplex_rl.task.episode import Episode, Finish, Task, Turn
from zorplex_rl.task.parser import ToolCall, answer_is_complete, find_call, format_result

Execute = Callable[[Task, ToolCall], "str | Future[str]"]
"""Runs a tool: the result at once, or a future of it where the tool is slow."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How episodes are sampled. ``temperature`` 0 is greedy; ``max_tokens`` counts injected tokens too."""

    temperature: float = 1.0
    max_tokens: int = 96
    max_turns: int = 6
    slots: int = 64


@dataclass(frozen=True, slots=True)
class Request:
    """One episode to sample: the task, the seed of its random draws, and the group that it belongs to."""

    task: Task
    seed: int = 0
    group: int = 0


@dataclass(frozen=True, slots=True)
class Prefilled:
    """A prompt that has been run once: its ids, its part of the cache, and the logits [V] of the token that comes next."""

    ids: list[int]
    snapshot: Snapshot
    logits: torch.Tensor


@dataclass(slots=True)
class _Row:
    """An episode in the making. The model has not yet run the last ``unfed`` of its tokens: one that was just sampled, and a tool's result."""

    ticket: int
    request: Request
    prompt_ids: list[int]
    rng: random.Random
    version: int
    started: float
    token_ids: list[int] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    unfed: int = 0
    pending: Future[str] | None = None
    called: float = 0.0
    turn_start: int = 0
    line_start: int = 0
    tool_seconds: float = 0.0

    @property
    def cached(self) -> int:
        """How many of its tokens, prompt included, are in the cache."""
        return len(self.prompt_ids) + len(self.token_ids) - self.unfed


class RolloutEngine:
    """Samples submitted requests together; ``step`` samples a token in every active row and returns what has finished."""

    def __init__(self, policy: Policy, execute: Execute, sampling: Sampling = Sampling()) -> None:
        self.policy, self.sampling, self.version = policy, sampling, 0
        self._execute, self._decode = execute, decoder_of(policy.model)
        self._tickets = 0
        self._waiting: deque[tuple[int, Request]] = deque()
        self._demand: Counter[Task] = Counter()
        self._prompts: dict[Task, Prefilled] = {}
        self._prompts_version = 0
        self._active: list[_Row] = []
        self._parked: list[tuple[_Row, Snapshot, torch.Tensor]] = []
        self._cache: SlotCache | None = None
        self._logits: torch.Tensor | None = None
        self._marks = _token_marks(policy)
        self._eos = frozenset(policy.eos_ids)

    @property
    def idle(self) -> bool:
        """Whether nothing is waiting, active or parked."""
        return not (self._waiting or self._active or self._parked)

    @property
    def stalled_on(self) -> list[Future[str]]:
        """The tools' futures if nothing can go on before one of them is done, else nothing."""
        if self._waiting or self._active or any(row.pending.done() for row, _, _ in self._parked):
            return []
        return [row.pending for row, _, _ in self._parked]

    def submit(self, requests: Iterable[Request]) -> list[int]:
        """Queue ``requests``; ``step`` returns each one's episode under the ticket returned here."""
        tickets = []
        for request in requests:
            self._waiting.append((self._tickets, request))
            self._demand[request.task] += 1
            tickets.append(self._tickets)
            self._tickets += 1
        return tickets

    @torch.inference_mode()
    def step(self) -> list[tuple[int, Episode]]:
        """Sample a token in every active row; (ticket, episode) of those that ended. Blocks only if all rows wait for tools."""
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
        self, requests: Iterable[Request], on_episode: Callable[[Episode], None] = lambda episode: None
    ) -> list[Episode]:
        """Submit ``requests`` and step until nothing is left to do; their episodes, in their order."""
        tickets = self.submit(requests)
        episodes: dict[int, Episode] = {}
        while not self.idle:
            for ticket, episode in self.step():
                episodes[ticket] = episode
                on_episode(episode)
        return [episodes[ticket] for ticket in tickets]

    def _choose(self) -> tuple[list[int], list[float]]:
        """A token and its log-probability for every active row; they mean nothing where the model has yet to run a result."""
        temperature = self.sampling.temperature
        logits = self._logits[: len(self._active)].float()
        logprobs = torch.log_softmax(logits / temperature if temperature > 0 else logits, dim=-1)
        if temperature > 0:
            draws = [0.0 if row.unfed else row.rng.random() for row in self._active]
            # Inverse transform sampling: the first token at which the cumulated probability exceeds the draw.
            cumulated = logprobs.exp().cumsum(-1)
            # A draw that float32 would round up to 1 is kept below the total, or it would fall behind the last token.
            draws = torch.tensor(draws, device=logits.device).clamp_(max=1 - 2**-23)
            tokens = torch.searchsorted(cumulated, draws[:, None] * cumulated[:, -1:], right=True)
        else:
            tokens = logprobs.argmax(-1, keepdim=True)
        return tokens[:, 0].tolist(), logprobs.gather(1, tokens)[:, 0].tolist()

    def _append(self, tokens: list[int], logprobs: list[float]) -> list[tuple[int, Episode]]:
        """Add the chosen token to every row that is ready for one, act on completed calls and answers, and take out what has ended."""
        limit, marks = self.sampling.max_tokens, self._marks
        ended: list[tuple[int, Finish]] = []
        for slot, (row, token, logprob) in enumerate(zip(self._active, tokens, logprobs, strict=True)):
            finish = None
            if not row.unfed:
                row.token_ids.append(token)
                row.sampled.append(True)
                row.logprobs.append(logprob)
                row.unfed = 1
                if token in marks:
                    finish = self._read(row, token)
            if finish or len(row.token_ids) >= limit:
                ended.append((slot, finish or "tokens"))
        finished = [(self._active[slot].ticket, self._finish(self._active[slot], finish)) for slot, finish in ended]
        for slot, _ in reversed(ended):
            self._remove(slot)
        return finished

    def _read(self, row: _Row, token: int) -> Finish | None:
        """Act on the text now that ``token`` has ended it, a bracket or a line; returns what ends the episode, if anything."""
        if token in self._eos:
            return "eos"
        line = self.policy.tokenizer.decode(row.token_ids[row.line_start :], skip_special_tokens=True)
        if call := find_call(line):
            self._end_turn(row, call)
            if len(row.turns) >= self.sampling.max_turns:
                return "turns"
            result = self._execute(row.request.task, call)
            if isinstance(result, Future):
                row.pending, row.called = result, time.monotonic()
            else:
                self._feed(row, result)
        elif answer_is_complete(line):
            return "answer"
        elif "\n" in line:
            row.line_start = len(row.token_ids)
        return None

    def _end_turn(self, row: _Row, call: ToolCall | None) -> None:
        end = len(row.token_ids)
        text = self.policy.tokenizer.decode(row.token_ids[row.turn_start : end], skip_special_tokens=True)
        row.turns.append(Turn(text, row.turn_start, end, str(call) if call else None, None, self.version))
        row.turn_start = end

    def _feed(self, row: _Row, result: str) -> None:
        """Append a tool's result, as far as the token limit allows; the turn says what was injected, and the next one begins behind it."""
        injected = format_result(result)
        ids = self.policy.encode_text(injected)
        if (room := self.sampling.max_tokens - len(row.token_ids)) < len(ids):
            ids = ids[:room]
            injected = self.policy.tokenizer.decode(ids, skip_special_tokens=True) or None
        row.turns[-1] = replace(row.turns[-1], result=injected)
        row.token_ids += ids
        row.sampled += [False] * len(ids)
        row.logprobs += [0.0] * len(ids)
        row.unfed += len(ids)
        row.turn_start = row.line_start = len(row.token_ids)

    def _finish(self, row: _Row, finish: Finish) -> Episode:
        if row.turn_start < len(row.token_ids):
            self._end_turn(row, None)
        return Episode(
            task=row.request.task,
            prompt_ids=row.prompt_ids,
            token_ids=row.token_ids,
            sampled=row.sampled,
            logprobs=row.logprobs,
            turns=row.turns,
            finish=finish,
            seed=row.request.seed,
            group=row.request.group,
            first_version=row.version,
            last_version=self.version,
            seconds=time.monotonic() - row.started,
            tool_seconds=row.tool_seconds,
        )

    def _forward(self) -> None:
        """Run the model on what every active row has not yet fed it; the logits are those of each row's next token."""
        tokens = [row.token_ids[-row.unfed :] for row in self._active]
        if not self._decode.feeds_results:
            tokens = [row[:1] for row in tokens]
        step = self._cache.begin_step([row.cached for row in self._active], tokens)
        self._logits[: len(self._active)] = self._decode(step, self._cache)
        for row, fed in zip(self._active, tokens, strict=True):
            row.unfed -= len(fed)

    def _start(self) -> None:
        """Move waiting requests into the free slots."""
        free = self.sampling.slots - len(self._active)
        entering = [self._waiting.popleft() for _ in range(min(free, len(self._waiting)))]
        self._prefill([request.task for _, request in entering])
        self._reserve(max(len(self._prompts[r.task].ids) for _, r in entering) + self.sampling.max_tokens)
        now = time.monotonic()
        for ticket, request in entering:
            prompt = self._prompts[request.task]
            row = _Row(ticket, request, prompt.ids, random.Random(request.seed), self.version, now)
            self._enter(row, prompt.snapshot, prompt.logits)
            self._demand[request.task] -= 1
            if not self._demand[request.task]:
                del self._demand[request.task], self._prompts[request.task]

    def _prefill(self, tasks: list[Task]) -> None:
        """Have the prompts of ``tasks`` prefilled, and while at it some that will be needed next: a batch costs little more than one."""
        if self._prompts_version != self.version:
            self._prompts.clear()
            self._prompts_version = self.version
        new = [task for task in dict.fromkeys(tasks) if task not in self._prompts]
        if not new:
            return
        ahead = (request.task for _, request in islice(self._waiting, self.sampling.slots))
        new = list(dict.fromkeys((*new, *(task for task in ahead if task not in self._prompts))))
        prompts = [self.policy.encode_prompt(task) for task in new]
        for task, ids, (snapshot, logits) in zip(new, prompts, prefill(self.policy.model, prompts), strict=True):
            self._prompts[task] = Prefilled(ids, snapshot, logits)

    def _settle_calls(self) -> None:
        """Feed the results that have come; a row whose result has not gives up its slot until it has."""
        for slot in reversed(range(len(self._active))):
            row = self._active[slot]
            if row.pending is None:
                continue
            if row.pending.done():
                self._answer(row)
            else:
                self._parked.append((row, self._cache.take(slot, row.cached), self._logits[slot].clone()))
                self._remove(slot)
        if self._parked and not self._active and not self._waiting:
            wait([row.pending for row, _, _ in self._parked], return_when=FIRST_COMPLETED)
        still_parked = []
        for row, snapshot, logits in self._parked:
            if row.pending.done() and len(self._active) < self.sampling.slots:
                self._answer(row)
                self._enter(row, snapshot, logits)
            else:
                still_parked.append((row, snapshot, logits))
        self._parked = still_parked

    def _answer(self, row: _Row) -> None:
        row.tool_seconds += time.monotonic() - row.called
        self._feed(row, row.pending.result())
        row.pending = None

    def _enter(self, row: _Row, snapshot: Snapshot, logits: torch.Tensor) -> None:
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
        """Have a cache with room for ``length`` tokens a row; active rows move over from a shorter one."""
        old, model = self._cache, self.policy.model
        if old is not None and old.length >= length:
            return
        self._cache = SlotCache(model, self.sampling.slots, -(-length // 32) * 32)
        if old is None:
            vocabulary = model.get_output_embeddings().weight.shape[0]
            self._logits = torch.zeros(self.sampling.slots, vocabulary, dtype=model.dtype, device=model.device)
        else:
            for slot, row in enumerate(self._active):
                self._cache.put(slot, old.take(slot, row.cached))


def rollout(
    policy: Policy,
    requests: Iterable[Request],
    execute: Execute,
    sampling: Sampling = Sampling(),
    version: int = 0,
    on_episode: Callable[[Episode], None] = lambda episode: None,
) -> list[Episode]:
    """Sample all ``requests`` to their end; episodes in the order of the requests. ``on_episode`` is called as each one ends."""
    engine = RolloutEngine(policy, execute, sampling)
    engine.version = version
    return engine.run(requests, on_episode)


def _token_marks(policy: Policy) -> frozenset[int]:
    """The tokens after which a text must be looked at: those that hold ``]`` or a line break, and those that end it."""
    newline = ("\n", "Ċ", "<0x0A>")
    vocab = policy.tokenizer.get_vocab()
    marks = {index for entry, index in vocab.items() if "]" in entry or any(n in entry for n in newline)}
    return frozenset(marks | set(policy.eos_ids))
