"""Build an episode token by token: find tool calls in its text, append results, notice its end.

    row = PartialEpisode(ticket, episode, rng, started)
    loop.extend(row, token, logprob)     adds a sampled token, and a result if it completes a call
    loop.answer(row)                     adds the result of a slow tool
    loop.has_ended(row)                  says whether the episode is over
    loop.end(row)                        returns the episode

The text is read only when a token closes a bracket or a line, and only from the start of that line.
"""

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from zorplex_rl.policy.requests import Sampling
from zorplex_rl.policy.tokenizer import decode_text, encode_text
from zorplex_rl.task.environment import ZORPLEX, Environment
from zorplex_rl.task.episode import (
    Episode,
    Finish,
    Task,
    Turn,
)
from zorplex_rl.task.parser import (
    ToolCall,
    answer_is_complete,
    find_call,
    format_result,
)

if TYPE_CHECKING:
    from zorplex_rl.policy.decoder import Snapshot
    from zorplex_rl.policy.load import Policy

MARKS = ("]", "\n", "Ċ", "<0x0A>")
"""What closes a call or a line, as vocabularies spell it."""
Tool = Callable[[Task, ToolCall], str]
"""Runs a tool. Returns the result."""
Execute = Callable[[Task, ToolCall], "str | Future[str]"]
"""Runs a tool. Returns the result, or a future of it for a slow tool."""


@dataclass(slots=True, eq=False)
class PartialEpisode:
    """An ``episode`` that is being sampled, and the state of its sampling."""

    ticket: int
    episode: Episode
    rng: random.Random | None
    """Its random numbers; None: it takes the likeliest token."""
    started: float
    """When it began, by the monotonic clock."""
    version: int = 0
    """The version of the weights that made the present logits."""
    unfed: int = 0
    """How many of its last tokens the model has not run yet: a sampled one, and perhaps a result."""
    drawn: tuple[int, float] | None = None
    """Its next token with its log-prob; None before it is drawn."""
    snapshot: "Snapshot | None" = None
    """Its part of the cache while it has no slot."""
    finish: Finish | None = None
    """What has ended it, except for the limit on tokens."""
    pending: Future[str] | None = None
    """The result of a slow tool that it waits for."""
    turn_start: int = 0
    """The index of this turn's first token."""
    line_start: int = 0
    """The index of this line's first token."""

    @property
    def cached(self) -> int:
        """The number of its tokens, prompt included, that are in the cache."""
        return len(self.episode.prompt_ids) + len(self.episode.token_ids) - self.unfed


class ToolLoop:
    """The rules of an episode: which text calls a tool, what is fed back, when the episode ends.
    ``environment`` names the tools and finds the answer; ``execute`` runs a tool."""

    def __init__(
        self,
        policy: "Policy",
        execute: Execute,
        sampling: Sampling,
        environment: Environment = ZORPLEX,
    ) -> None:
        self._policy = policy
        self._execute = execute
        self._sampling = sampling
        self._environment = environment
        self._closing = set(policy.eos_ids)
        """The tokens after which the text is read."""
        for token, i in policy.tokenizer.get_vocab().items():
            if any(mark in token for mark in MARKS):
                self._closing.add(i)

    def extend(
        self,
        row: PartialEpisode,
        token: int,
        logprob: float,
    ) -> Finish | None:
        """Add a sampled token, and run a call that it completes. Returns what ends the episode."""
        row.episode.token_ids.append(token)
        row.episode.sampled.append(True)
        row.episode.logprobs.append(logprob)
        row.unfed = 1
        row.finish = self._read(row, token) if token in self._closing else None
        return row.finish

    def answer(self, row: PartialEpisode) -> None:
        """Add the result that ``row`` is waiting for."""
        assert row.pending is not None, "the row waits for no tool"
        self._feed(row, row.pending.result())
        row.pending = None

    def has_ended(self, row: PartialEpisode) -> bool:
        """Return whether the text, or the limit on tokens, has ended the episode."""
        return row.finish is not None or len(row.episode.token_ids) >= self._sampling.max_tokens

    def end(self, row: PartialEpisode) -> Episode:
        """Return the finished episode."""
        episode = row.episode
        if row.turn_start < len(episode.token_ids):
            self._end_turn(row, None)
        episode.finish = row.finish or "tokens"
        episode.last_version = episode.turns[-1].version
        episode.seconds = time.monotonic() - row.started
        return episode

    def _read(self, row: PartialEpisode, token: int) -> Finish | None:
        """Read the line or the call that ``token`` closes. Returns what ends the episode."""
        if token in self._policy.eos_ids:
            return "eos"
        episode = row.episode
        line = self._text(episode.token_ids[row.line_start :])
        if call := find_call(line, self._environment.tools):
            self._end_turn(row, call)
            if len(episode.turns) >= self._sampling.max_turns:
                return "turns"
            result = self._execute(episode.task, call)
            if isinstance(result, Future):
                row.pending = result
            else:
                self._feed(row, result)
        elif answer_is_complete(line, self._environment.find_answer):
            return "answer"
        elif "\n" in line:
            row.line_start = len(episode.token_ids)
        return None

    def _text(self, ids: Sequence[int]) -> str:
        return decode_text(self._policy.tokenizer, ids, self._policy.eos_ids)

    def _end_turn(self, row: PartialEpisode, call: ToolCall | None) -> None:
        ids = row.episode.token_ids
        turn = Turn(
            text=self._text(ids[row.turn_start :]),
            start=row.turn_start,
            end=len(ids),
            call=str(call) if call else None,
            version=row.version,
        )
        row.episode.turns.append(turn)
        row.turn_start = len(ids)

    def _feed(self, row: PartialEpisode, result: str) -> None:
        """Append a tool's result, cut at the limit on tokens. The next turn starts behind it."""
        episode = row.episode
        text = format_result(result)
        ids = encode_text(self._policy.tokenizer, text)
        room = self._sampling.max_tokens - len(episode.token_ids)
        if room < len(ids):
            ids = ids[:room]
            text = self._text(ids)
        episode.turns[-1] = replace(episode.turns[-1], result=text or None)
        episode.token_ids += ids
        episode.sampled += [False] * len(ids)
        episode.logprobs += [0.0] * len(ids)
        row.unfed += len(ids)
        row.turn_start = row.line_start = len(episode.token_ids)
