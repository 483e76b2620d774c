"""Build an episode token by token: find tool calls in the sampled text, feed their results, notice the end.

    row = PartialEpisode(ticket, episode, rng, started)
    loop.extend(row, token, logprob)     adds a sampled token; returns what ends the episode, if anything
    loop.answer(row)                     adds the result of a slow tool
    loop.finish(row, "answer")           returns the Episode

The text is parsed only when a token closes a bracket or a line, and then only from the start of that line.
"""

import random
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from zorplex_rl.config import Config
from zorplex_rl.task.environment import ZORPLEX, Environment
from zorplex_rl.task.episode import Episode, Finish, Task, Turn
from zorplex_rl.task.parser import ToolCall, answer_is_complete, find_call, format_result

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from zorplex_rl.policy.load import Policy

Tool = Callable[[Task, ToolCall], str]
"""Runs a tool. Returns the result."""
Execute = Callable[[Task, ToolCall], "str | Future[str]"]
"""Runs a tool. Returns the result, or a future of it if the tool is slow."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How episodes are sampled. ``temperature`` 0 is greedy; ``max_tokens`` counts injected tokens too.

    ``in_rounds``: rows that wait for slow tools go on together, as soon as no other row can and all their results are there.
    What is decoded together is then a function of the tokens, not of how fast tools answer.
    """

    temperature: float = Config.temperature
    max_tokens: int = Config.max_tokens
    max_turns: int = Config.max_turns
    slots: int = Config.slots
    in_rounds: bool = False


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """One episode to sample: the task, the seed of its random draws, and the group that it belongs to."""

    task: Task
    seed: int = 0
    group: int = 0


@dataclass(slots=True)
class PartialEpisode:
    """An ``episode`` that is still being sampled, and the state of its sampling.

    ``version`` is that of the weights that made the logits of its next token. The model has not yet run the last ``unfed`` of its tokens: the one
    that was just sampled, and a tool's result. ``pending`` is the result of a slow tool, called at time ``called``.
    """

    ticket: int
    episode: Episode
    rng: random.Random
    started: float
    version: int = 0
    unfed: int = 0
    pending: Future[str] | None = None
    called: float = 0.0
    turn_start: int = 0
    line_start: int = 0

    @property
    def cached(self) -> int:
        """Number of its tokens, prompt included, that are in the cache."""
        return len(self.episode.prompt_ids) + len(self.episode.token_ids) - self.unfed


def encode_prompt(tokenizer: "PreTrainedTokenizerBase", task: Task) -> list[int]:
    """Return the token ids of ``task``'s system prompt and question in the model's chat template, up to the start of the answer."""
    messages = [{"role": "system", "content": task.system}, {"role": "user", "content": task.question}]
    return encode_text(tokenizer, tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def encode_text(tokenizer: "PreTrainedTokenizerBase", text: str) -> list[int]:
    """Return the token ids of ``text``, without special tokens around it."""
    return tokenizer(text, add_special_tokens=False)["input_ids"]


class ToolLoop:
    """The rules of an episode: which text calls a tool, what is fed back, when the episode ends.

    ``environment`` names the tools and finds the answer; ``execute`` runs a tool.
    """

    def __init__(
        self, policy: "Policy", execute: Execute, sampling: Sampling, environment: Environment = ZORPLEX
    ) -> None:
        self._policy, self._execute, self._sampling = policy, execute, sampling
        self._tools, self._find_answer = environment.tools, environment.find_answer
        self._marks = _token_marks(policy)
        self._eos = frozenset(policy.eos_ids)

    def extend(self, row: PartialEpisode, token: int, logprob: float) -> Finish | None:
        """Add a sampled token, and run the tool call that it completes. Returns what ends the episode, or None."""
        row.episode.token_ids.append(token)
        row.episode.sampled.append(True)
        row.episode.logprobs.append(logprob)
        row.unfed = 1
        return self._read(row, token) if token in self._marks else None

    def answer(self, row: PartialEpisode) -> None:
        """Add the result that ``row`` is waiting for."""
        assert row.pending is not None, "the row waits for no tool"
        row.episode.tool_seconds += time.monotonic() - row.called
        self._feed(row, row.pending.result())
        row.pending = None

    def finish(self, row: PartialEpisode, finish: Finish) -> Episode:
        """Return the episode, ended by ``finish``."""
        if row.turn_start < len(row.episode.token_ids):
            self._end_turn(row, None)
        last_version, seconds = row.episode.turns[-1].version, time.monotonic() - row.started
        return replace(row.episode, finish=finish, last_version=last_version, seconds=seconds)

    def _read(self, row: PartialEpisode, token: int) -> Finish | None:
        """Parse the current line after ``token`` has closed a bracket, a line or the text. Returns what ends the episode, or None."""
        if token in self._eos:
            return "eos"
        line = self._policy.tokenizer.decode(row.episode.token_ids[row.line_start :], skip_special_tokens=True)
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

    def _end_turn(self, row: PartialEpisode, call: ToolCall | None) -> None:
        ids, end = row.episode.token_ids, len(row.episode.token_ids)
        text = self._policy.tokenizer.decode(ids[row.turn_start : end], skip_special_tokens=True)
        row.episode.turns.append(Turn(text, row.turn_start, end, str(call) if call else None, None, row.version))
        row.turn_start = end

    def _feed(self, row: PartialEpisode, result: str) -> None:
        """Append a tool's result, cut at the token limit, record it in the turn, and start the next turn after it."""
        episode, text = row.episode, format_result(result)
        injected: str | None = text
        ids = encode_text(self._policy.tokenizer, text)
        if (room := self._sampling.max_tokens - len(episode.token_ids)) < len(ids):
            ids = ids[:room]
            injected = self._policy.tokenizer.decode(ids, skip_special_tokens=True) or None
        episode.turns[-1] = replace(episode.turns[-1], result=injected)
        episode.token_ids += ids
        episode.sampled += [False] * len(ids)
        episode.logprobs += [0.0] * len(ids)
        row.unfed += len(ids)
        row.turn_start = row.line_start = len(episode.token_ids)


def _token_marks(policy: "Policy") -> frozenset[int]:
    """Return the tokens after which the text must be parsed: those with ``]`` or a line break, and those that end the text."""
    newline = ("\n", "Ċ", "<0x0A>")
    vocab = policy.tokenizer.get_vocab()
    marks = {index for entry, index in vocab.items() if "]" in entry or any(n in entry for n in newline)}
    return frozenset(marks | set(policy.eos_ids))
