"""Build an episode token by token: find tool calls in the text, append results, notice the end.

    row = PartialEpisode(ticket, episode, rng, started)
    loop.extend(row, token, logprob)     adds a sampled token, and a result if it completes a call
    loop.answer(row)                     adds the result of a slow tool
    loop.has_ended(row)                  says whether the episode is over
    loop.end(row)                        returns it

The text is read only when a token closes a bracket or a line, and then only from that line's start.
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
from zorplex_rl.task.episode import Episode, Finish, Task, Turn
from zorplex_rl.task.parser import ToolCall, answer_is_complete, find_call, format_result

if TYPE_CHECKING:
    from zorplex_rl.policy.decoder import Snapshot
    from zorplex_rl.policy.load import Policy

Tool = Callable[[Task, ToolCall], str]
"""Runs a tool. Returns the result."""
Execute = Callable[[Task, ToolCall], "str | Future[str]"]
"""Runs a tool. Returns the result, or a future of it if the tool is slow."""


@dataclass(slots=True, eq=False)
class PartialEpisode:
    """An ``episode`` that is still being sampled, and the state of its sampling.

    The model has not yet run the last ``unfed`` of its tokens: the one that was just sampled, and a
    tool's result behind it. ``drawn`` is its next token with its log-prob, by the weights of
    ``version``; None before it is drawn. ``snapshot`` is its part of the cache while it has no slot.
    ``pending`` is the result of a slow tool, called at time ``called``.
    """

    ticket: int
    episode: Episode
    rng: random.Random
    started: float
    version: int = 0
    unfed: int = 0
    drawn: tuple[int, float] | None = None
    snapshot: "Snapshot | None" = None
    finish: Finish | None = None
    pending: Future[str] | None = None
    called: float = 0.0
    turn_start: int = 0
    line_start: int = 0

    @property
    def cached(self) -> int:
        """Number of its tokens, prompt included, that are in the cache."""
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
        self._tools, self._find_answer = environment.tools, environment.find_answer
        # The tokens after which the text is read: with "]", a line break or its end.
        vocabulary = policy.tokenizer.get_vocab().items()
        marks = [
            i
            for entry, i in vocabulary
            if any(mark in entry for mark in ("]", "\n", "Ċ", "<0x0A>"))
        ]
        self._marks = {*marks, *policy.eos_ids}

    def extend(self, row: PartialEpisode, token: int, logprob: float) -> Finish | None:
        """Add a sampled token, run the call that it completes. Returns what ends the episode."""
        row.episode.token_ids.append(token)
        row.episode.sampled.append(True)
        row.episode.logprobs.append(logprob)
        row.unfed = 1
        row.finish = self._read(row, token) if token in self._marks else None
        return row.finish

    def answer(self, row: PartialEpisode) -> None:
        """Add the result that ``row`` is waiting for."""
        assert row.pending is not None, "the row waits for no tool"
        row.episode.tool_seconds += time.monotonic() - row.called
        self._feed(row, row.pending.result())
        row.pending = None

    def has_ended(self, row: PartialEpisode) -> bool:
        """Return whether something in the text or the limit on tokens has ended the episode."""
        return row.finish is not None or len(row.episode.token_ids) >= self._sampling.max_tokens

    def end(self, row: PartialEpisode) -> Episode:
        """Return the episode, which has ended."""
        episode = row.episode
        if row.turn_start < len(episode.token_ids):
            self._end_turn(row, None)
        episode.finish, episode.last_version = row.finish or "tokens", episode.turns[-1].version
        episode.seconds = time.monotonic() - row.started
        return episode

    def _read(self, row: PartialEpisode, token: int) -> Finish | None:
        """Read the line or the call that ``token`` closes. Returns what ends the episode."""
        if token in self._policy.eos_ids:
            return "eos"
        line = self._text(row.episode.token_ids[row.line_start :])
        if call := find_call(line, self._tools):
            self._end_turn(row, call)
            if len(row.episode.turns) >= self._sampling.max_turns:
                return "turns"
            result = self._execute(row.episode.task, call)
            if isinstance(result, Future):
                row.pending, row.called = result, time.monotonic()
            else:
                self._feed(row, result)
        elif answer_is_complete(line, self._find_answer):
            return "answer"
        elif "\n" in line:
            row.line_start = len(row.episode.token_ids)
        return None

    def _text(self, ids: Sequence[int]) -> str:
        return decode_text(self._policy.tokenizer, ids, self._policy.eos_ids)

    def _end_turn(self, row: PartialEpisode, call: ToolCall | None) -> None:
        ids, end = row.episode.token_ids, len(row.episode.token_ids)
        text = self._text(ids[row.turn_start : end])
        row.episode.turns.append(
            Turn(text, row.turn_start, end, str(call) if call else None, None, row.version)
        )
        row.turn_start = end

    def _feed(self, row: PartialEpisode, result: str) -> None:
        """Append a tool's result, cut at the token limit, and start the next turn behind it."""
        episode, text = row.episode, format_result(result)
        ids = encode_text(self._policy.tokenizer, text)
        if (room := self._sampling.max_tokens - len(episode.token_ids)) < len(ids):
            ids = ids[:room]
            text = self._text(ids)
        episode.turns[-1] = replace(episode.turns[-1], result=text or None)
        episode.token_ids += ids
        episode.sampled += [False] * len(ids)
        episode.logprobs += [0.0] * len(ids)
        row.unfed += len(ids)
        row.turn_start = row.line_start = len(episode.token_ids)
