"""Zorplex: words have hidden values, and only a tool reveals them.

No policy can know the values, because every seed draws them anew; it has to learn to *use* the tools.

    kind            tools           a perfect solver writes (injected results after ``->``)
    simple          LOOKUP          LOOKUP[blip] -> 17                          [ANSWER] 17
    compositional   LOOKUP          LOOKUP[blip] -> 17, LOOKUP[zork] -> 25      17+25=42, [ANSWER] 42
    multi_step      GETKEY, FETCH   GETKEY[blip] -> K38, FETCH[K38] -> 71       [ANSWER] 71
    recursive       LOOKUP          LOOKUP[blip] -> SEE: zork, LOOKUP[zork] -> 25   [ANSWER] 25

``Zorplex(seed)`` holds the one table that everything in a run shares. Tasks are a pure function of
(seed, kind, difficulty, split, index): a task that was lost with a process can be drawn again.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, get_args

from zorplex_rl.task.episode import Task
from zorplex_rl.task.parser import ToolCall, find_call

ZORPLEX_WORDS: tuple[str, ...] = tuple(
    "blip bonk clup drim faz flim frub glop gorn grix hax jint klem lurp mip nask "
    "norf plek prub quon rilk skob snib trun ulf vom wub yim zam zil zork zorp".split()
)
VALUES = range(10, 50)
"""What a word can be worth: two digits, so that sums and differences have one to three and a sign."""
DIFFICULTIES: dict[str, int] = {"easy": 2, "medium": 3, "hard": 4}
"""Compositional difficulty: how many words are added and subtracted."""
MAX_REDIRECTS = 3
"""No word of a ``recursive`` task needs more than this many ``SEE:`` redirects."""
HELD_OUT_SHARE = 5
"""One set of words in this many belongs to the held-out split."""

Split = Literal["train", "held_out"]
_ENDING = "End with [ANSWER] and the integer."


def make_zorplex_table(seed: int = 0) -> dict[str, int]:
    """The secret table of ``seed``: every word's value, distinct members of ``VALUES``."""
    values = random.Random(f"table:{seed}").sample(VALUES, len(ZORPLEX_WORDS))
    return dict(zip(ZORPLEX_WORDS, values, strict=True))


def make_keys(seed: int = 0) -> dict[str, str]:
    """Every word's key for ``multi_step``: ``K`` and two digits, distinct."""
    numbers = random.Random(f"keys:{seed}").sample(range(10, 100), len(ZORPLEX_WORDS))
    return {word: f"K{number}" for word, number in zip(ZORPLEX_WORDS, numbers, strict=True)}


def make_redirects(seed: int = 0) -> dict[str, str]:
    """Which word each redirecting word points to, for ``recursive``.

    The words are dealt into ``MAX_REDIRECTS + 1`` levels. A word of level k points to one of level k − 1 and a word of
    level 0 to none, so no chain can be longer than ``MAX_REDIRECTS``, or a circle.
    """
    rng = random.Random(f"redirects:{seed}")
    words = rng.sample(ZORPLEX_WORDS, len(ZORPLEX_WORDS))
    levels = [words[level :: MAX_REDIRECTS + 1] for level in range(MAX_REDIRECTS + 1)]
    return {word: rng.choice(below) for below, level in pairwise(levels) for word in level}


def split_of(words: Sequence[str]) -> Split:
    """The split that a set of words belongs to, whatever their order; the same for every seed, kind and process."""
    digest = zlib.crc32("+".join(sorted(words)).encode())
    return "held_out" if digest % HELD_OUT_SHARE == 0 else "train"


class TaskSpec:
    """One kind of task over the table of ``seed``.

    ``task(index, split)`` is a pure function; ``generate_task()`` walks through the indices. ``execute`` runs a tool.
    """

    kind: str
    tools: tuple[str, ...] = ("LOOKUP",)
    instructions: str
    phrasings: tuple[str, ...]

    def __init__(self, seed: int = 0, difficulty: str = "easy", hints: bool = False) -> None:
        if difficulty not in DIFFICULTIES:
            raise ValueError(f"difficulty is {difficulty!r}; expected one of {', '.join(DIFFICULTIES)}")
        self.seed, self.difficulty, self.hints = seed, difficulty, hints
        self.table = make_zorplex_table(seed)
        self._index = -1

    def generate_task(self, split: Split = "train") -> Task:
        """The next task of ``split``."""
        self._index += 1
        return self.task(self._index, split)

    def task(self, index: int, split: Split = "train") -> Task:
        """Task number ``index`` of ``split``: always the same one. ValueError for an unknown split."""
        if split not in get_args(Split):
            raise ValueError(f"split is {split!r}; expected one of {', '.join(get_args(Split))}")
        rng = random.Random(f"{self.kind}:{self.difficulty}:{self.seed}:{split}:{index}")
        while True:
            words = self._draw_words(rng)
            if split_of(words) == split:
                break
        question, answer = self._ask(words, rng)
        return Task(
            kind=self.kind,
            question=question,
            answer=answer,
            min_tool_calls=len(self.calls_needed(words)),
            system=self.get_system_prompt(self.hints),
            words=tuple(words),
            difficulty=self.difficulty,
            split=split,
        )

    def get_system_prompt(self, with_hint: bool = False) -> str:
        """What the policy is told; a hint adds a worked example whose values are not true for this table."""
        prompt = f"Words have hidden values. {self.instructions} {_ENDING}"
        return f"{prompt}\nExample: {self._example()}" if with_hint else prompt

    def execute(self, call: ToolCall) -> str:
        """What the tool answers; a wrong name or argument is answered with ``ERROR``, as a tool would."""
        if call.name not in self.tools:
            return f"ERROR: no tool {call.name}"
        value = self._answer_call(call)
        return f"ERROR: unknown {call.argument}" if value is None else value

    def run(self, call: str) -> str:
        """``execute`` for a call as text.

        >>> get_spec("simple").run("LOOKUP[no such word]")
        'ERROR: unknown no such word'
        """
        parsed = find_call(call)
        return self.execute(parsed) if parsed else f"ERROR: {call!r} is not a tool call"

    def calls_needed(self, words: Sequence[str]) -> list[str]:
        """The tool calls of a perfect solver, in order."""
        return [f"LOOKUP[{word}]" for word in words]

    def _draw_words(self, rng: random.Random) -> list[str]:
        return rng.sample(ZORPLEX_WORDS, 1)

    def _ask(self, words: list[str], rng: random.Random) -> tuple[str, int]:
        return rng.choice(self.phrasings).format(words[0]), self.table[words[0]]

    def _answer_call(self, call: ToolCall) -> str | None:
        value = self.table.get(call.argument)
        return None if value is None else str(value)

    def _example(self) -> str:
        raise NotImplementedError

    def _false_value(self, *words: str) -> list[int]:
        """Values for an example: in no word's case the true one."""
        rng = random.Random(f"example:{self.seed}")
        return [rng.choice([v for v in VALUES if v != self.table[word]]) for word in words]


class Simple(TaskSpec):
    kind = "simple"
    instructions = "LOOKUP[word] tells one."
    phrasings = ("What is {}?", "Tell the value of {}.", "{} = ?")

    def _example(self) -> str:
        (value,) = self._false_value("blip")
        return f"What is blip?\nLOOKUP[blip] -> {value}\n[ANSWER] {value}"


class Compositional(TaskSpec):
    kind = "compositional"
    instructions = "LOOKUP[word] tells one. Do the arithmetic."
    phrasings = ("What is {}?", "Tell the value of {}.", "{} = ?")

    def _draw_words(self, rng: random.Random) -> list[str]:
        return rng.sample(ZORPLEX_WORDS, DIFFICULTIES[self.difficulty])

    def _ask(self, words: list[str], rng: random.Random) -> tuple[str, int]:
        expression, answer = words[0], self.table[words[0]]
        for word in words[1:]:
            sign = rng.choice("+-")
            expression += f" {sign} {word}"
            answer += self.table[word] if sign == "+" else -self.table[word]
        return rng.choice(self.phrasings).format(expression), answer

    def _example(self) -> str:
        a, b = self._false_value("blip", "zork")
        if a + b == self.table["blip"] + self.table["zork"]:
            # Two false values can make a true sum; then take a third number, beyond what any word is worth.
            b = VALUES.stop
        return f"What is blip + zork?\nLOOKUP[blip] -> {a}\nLOOKUP[zork] -> {b}\n{a}+{b}={a + b}\n[ANSWER] {a + b}"


class MultiStep(TaskSpec):
    kind = "multi_step"
    tools = ("GETKEY", "FETCH")
    instructions = "GETKEY[word] tells a key, FETCH[key] the value."
    phrasings = Simple.phrasings

    def __init__(self, seed: int = 0, difficulty: str = "easy", hints: bool = False) -> None:
        super().__init__(seed, difficulty, hints)
        self.keys = make_keys(seed)
        self._values = {key: self.table[word] for word, key in self.keys.items()}

    def calls_needed(self, words: Sequence[str]) -> list[str]:
        return [call for word in words for call in (f"GETKEY[{word}]", f"FETCH[{self.keys[word]}]")]

    def _answer_call(self, call: ToolCall) -> str | None:
        if call.name == "GETKEY":
            return self.keys.get(call.argument)
        value = self._values.get(call.argument)
        return None if value is None else str(value)

    def _example(self) -> str:
        (value,) = self._false_value("blip")
        key = next(f"K{n}" for n in range(10, 100) if f"K{n}" not in self._values)
        return f"What is blip?\nGETKEY[blip] -> {key}\nFETCH[{key}] -> {value}\n[ANSWER] {value}"


class Recursive(TaskSpec):
    kind = "recursive"
    instructions = "LOOKUP[word] tells one, or SEE: a word to look up instead."
    phrasings = Simple.phrasings

    def __init__(self, seed: int = 0, difficulty: str = "easy", hints: bool = False) -> None:
        super().__init__(seed, difficulty, hints)
        self.redirects = make_redirects(seed)

    def chain(self, word: str) -> list[str]:
        """``word`` and the words that it leads to; the last one has the value."""
        words = [word]
        while words[-1] in self.redirects:
            words.append(self.redirects[words[-1]])
        return words

    def calls_needed(self, words: Sequence[str]) -> list[str]:
        return [f"LOOKUP[{link}]" for word in words for link in self.chain(word)]

    def _ask(self, words: list[str], rng: random.Random) -> tuple[str, int]:
        return rng.choice(self.phrasings).format(words[0]), self.table[self.chain(words[0])[-1]]

    def _answer_call(self, call: ToolCall) -> str | None:
        if call.argument in self.redirects:
            return f"SEE: {self.redirects[call.argument]}"
        return super()._answer_call(call)

    def _example(self) -> str:
        target = next(w for w in ZORPLEX_WORDS if w not in ("blip", self.redirects.get("blip")))
        (value,) = self._false_value(target)
        if value == self.table[self.chain("blip")[-1]]:
            # False for the word looked up and yet the true answer; then take one that no word is worth.
            value = VALUES.stop
        return f"What is blip?\nLOOKUP[blip] -> SEE: {target}\nLOOKUP[{target}] -> {value}\n[ANSWER] {value}"


TASK_SPECS: dict[str, type[TaskSpec]] = {spec.kind: spec for spec in (Simple, Compositional, MultiStep, Recursive)}


def get_spec(kind: str, seed: int = 0, difficulty: str = "easy", hints: bool = False) -> TaskSpec:
    """The spec of ``kind``; ValueError names the known kinds."""
    if kind not in TASK_SPECS:
        raise ValueError(f"task is {kind!r}; expected one of {', '.join(TASK_SPECS)}")
    return TASK_SPECS[kind](seed, difficulty, hints)
