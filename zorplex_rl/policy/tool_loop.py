"""Build an episode token by token: find tool calls in the text, append results, notice the end.

    row = PartialEpisode(ticket, episode, rng, started)
    loop.extend(row, token, logprob)     adds a sampled token, and a result if it completes a call
    loop.answer(row)                     adds the result of a slow tool
    loop.has_ended(row)                  says whether the episode is over
    loop.end(row)                        returns it

The text is read only when a token closes a bracket or a line, and then only from that line's start.
"""

import random
import re
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import cycle
from typing import TYPE_CHECKING, Self

from zorplex_rl.config import Config
from zorplex_rl.task.environment import ZORPLEX, Environment
from zorplex_rl.task.episode import Episode, Finish, Task, Turn
from zorplex_rl.task.parser import ToolCall, answer_is_complete, find_call, format_result

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from zorplex_rl.policy.decoder import Snapshot
    from zorplex_rl.policy.load import Policy

Tool = Callable[[Task, ToolCall], str]
"""Runs a tool. Returns the result."""
Execute = Callable[[Task, ToolCall], "str | Future[str]"]
"""Runs a tool. Returns the result, or a future of it if the tool is slow."""
EVALUATION_SEED = 1_000_003
HIDING = "\ufdd0"
"""No character: behind the first of a control token it hides that from template and tokenizer."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How episodes are sampled. ``temperature`` 0 is greedy; ``max_tokens`` counts results too."""

    temperature: float = Config.temperature
    max_tokens: int = Config.max_tokens
    max_turns: int = Config.max_turns
    slots: int = Config.slots
    """How many episodes are decoded together."""
    in_rounds: bool = False
    """Rows that wait for slow tools go on together, once no other row can and all their results are
    there. So the speed of tools does not change which rows are decoded together."""

    @classmethod
    def of(cls, config: Config, temperature: float | None = None) -> Self:
        """Return how a run of ``config`` samples: at its temperature, or at another one. At lag 0 a
        run repeats bit for bit, however fast its tools are."""
        at = config.temperature if temperature is None else temperature
        in_rounds = config.max_lag == 0
        return cls(at, config.max_tokens, config.max_turns, config.slots, in_rounds)


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """One episode to sample: the task, the seed of its random draws, and its group."""

    task: Task
    seed: int = 0
    group: int = 0


def group_requests(tasks: Iterable[tuple[int, Task]], group_size: int, run_seed: int) -> list[RolloutRequest]:
    """Return the requests for ``group_size`` episodes of each (group number, task). An episode's
    draws are the same whenever its group is generated again."""
    return [
        RolloutRequest(task, (run_seed * 1_000_003 + number) * 1_009 + sample, number)
        for number, task in tasks
        for sample in range(group_size)
    ]


def held_out_requests(tasks: Sequence[Task]) -> list[RolloutRequest]:
    """Return the requests of an evaluation: the same random draws every time."""
    return [RolloutRequest(task, EVALUATION_SEED + index) for index, task in enumerate(tasks)]


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


def encode_prompt(tokenizer: "PreTrainedTokenizerBase", task: Task) -> list[int]:
    """Return the ids of ``task``'s system prompt, examples and question in the chat template. What
    looks like a control token in the question is text."""
    special = {token.content: i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    control = "|".join(map(re.escape, sorted(special, key=len, reverse=True))) or "(?!)"
    question = re.sub(f"(?={control})(.)", rf"\1{HIDING}", task.question, flags=re.DOTALL)
    turns = [*(text for example in task.examples for text in example), question]
    messages = [{"role": "system", "content": task.system}]
    messages += [{"role": role, "content": text} for role, text in zip(cycle(("user", "assistant")), turns)]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    if question == task.question:
        return tokenizer(prompt, add_special_tokens=False)["input_ids"]
    ids: list[int] = []
    for piece in re.split(f"({control})", prompt):
        ids += [special[piece]] if piece in special else _encode(tokenizer, piece.replace(HIDING, ""))
    return ids


def encode_text(tokenizer: "PreTrainedTokenizerBase", text: str) -> list[int]:
    """Return the token ids of ``text`` behind other text: what looks like a control token is text, and a
    tokenizer that begins with a space puts it before a line break here, which is left out."""
    start = _encode(tokenizer, "\n")
    ids = _encode(tokenizer, f"\n{text}")
    # A line break that becomes one token with what follows begins otherwise.
    return ids[len(start) :] if ids[: len(start)] == start else _encode(tokenizer, text)


def _encode(tokenizer: "PreTrainedTokenizerBase", text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]


def decode_text(policy: "Policy", ids: Sequence[int]) -> str:
    """Return the text of ``ids`` but those that end it, behind other text: a tokenizer may drop a space
    at the beginning of all. Control tokens are text that was written: an answer's tag may be one."""
    decode, first = policy.tokenizer.decode, [*policy.eos_ids[:1]]
    written = [i for i in ids if i not in policy.eos_ids]
    return decode(first + written).removeprefix(decode(first))


class ToolLoop:
    """The rules of an episode: which text calls a tool, what is fed back, when the episode ends.
    ``environment`` names the tools and finds the answer; ``execute`` runs a tool."""

    def __init__(
        self, policy: "Policy", execute: Execute, sampling: Sampling, environment: Environment = ZORPLEX
    ) -> None:
        self._policy = policy
        self._execute = execute
        self._sampling = sampling
        self._tools, self._find_answer = environment.tools, environment.find_answer
        # The tokens after which the text is read: with "]", a line break or its end.
        vocabulary = policy.tokenizer.get_vocab().items()
        marks = [i for entry, i in vocabulary if any(mark in entry for mark in ("]", "\n", "Ċ", "<0x0A>"))]
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
        line = decode_text(self._policy, row.episode.token_ids[row.line_start :])
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
        text = decode_text(self._policy, ids[row.turn_start : end])
        row.episode.turns.append(Turn(text, row.turn_start, end, str(call) if call else None, None, row.version))
        row.turn_start = end

    def _feed(self, row: PartialEpisode, result: str) -> None:
        """Append a tool's result, cut at the token limit, and start the next turn behind it."""
        episode, text = row.episode, format_result(result)
        ids = encode_text(self._policy.tokenizer, text)
        if (room := self._sampling.max_tokens - len(episode.token_ids)) < len(ids):
            ids = ids[:room]
            text = decode_text(self._policy, ids)
        episode.turns[-1] = replace(episode.turns[-1], result=text or None)
        episode.token_ids += ids
        episode.sampled += [False] * len(ids)
        episode.logprobs += [0.0] * len(ids)
        row.unfed += len(ids)
        row.turn_start = row.line_start = len(episode.token_ids)
