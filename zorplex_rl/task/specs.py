"""The four kinds of Zorplex tasks: words have hidden values, and only a tool reveals them.

    kind            tools           a perfect solver writes (injected results after ``->``)
    simple          LOOKUP          LOOKUP[blip] -> 17                          [ANSWER] 17
    compositional   LOOKUP          LOOKUP[blip] -> 17, LOOKUP[zork] -> 25      17+25=42, [ANSWER] 42
    multi_step      GETKEY, FETCH   GETKEY[blip] -> K38, FETCH[K38] -> 71       [ANSWER] 71
    recursive       LOOKUP          LOOKUP[blip] -> SEE: zork, LOOKUP[zork] -> 25   [ANSWER] 25

A task is a pure function of (seed, kind, difficulty, split, index), so a lost task can be drawn again.
It carries its secret table: a tool needs only task and call. Training and held-out tasks each have
one half of the words. Each block of 40 indices asks for every value once, so a constant answer is
right in 1 of 40 tasks where one word is asked for, and in fewer sums. Each block of 16 ``simple`` or
``multi_step`` tasks asks for every word once: some are hard to spell. Four ``recursive`` tasks in a row
ask for chains of one to four words, so a batch has some that a beginner can answer.
"""

import math
import random
from collections.abc import Mapping, Sequence
from itertools import cycle, islice, pairwise
from typing import Any, Literal

from zorplex_rl.task.episode import Task
from zorplex_rl.task.parser import ToolCall, find_call

ZORPLEX_WORDS = tuple(
    "blip bonk clup drim faz flim frub glop gorn grix hax jint klem lurp mip nask "
    "norf plek prub quon rilk skob snib trun ulf vom wub yim zam zil zork zorp".split()
)
TRAINING_WORDS = ZORPLEX_WORDS[::2]
HELD_OUT_WORDS = ZORPLEX_WORDS[1::2]
EXAMPLE_WORDS = tuple("wug dax fep toma blick modi gazz tulver".split())
"""Words of worked examples only."""
VALUES = range(10, 50)
"""Values of a word: two digits, so a sum has up to three and a sign."""
DIFFICULTIES = {"easy": 2, "medium": 3, "hard": 4}
"""How many words a ``compositional`` task adds and subtracts."""
LONGEST_CHAIN = 4
"""Maximum number of words from the one that a ``recursive`` task asks for to the one with the value."""

Split = Literal["train", "held_out"]
WORDS_OF = {"train": TRAINING_WORDS, "held_out": HELD_OUT_WORDS}
Secrets = tuple[dict[str, int], dict[str, str], dict[str, str]]
"""What only the tools know: the table of values, the keys, the redirects."""


def make_zorplex_table(seed: object = 0, words: Sequence[str] = ZORPLEX_WORDS) -> dict[str, int]:
    """Draw a secret table. Returns a value from ``VALUES`` for each of ``words``; all differ."""
    values = random.Random(f"table:{seed}").sample(VALUES, len(words))
    return dict(zip(words, values, strict=True))


def make_keys(seed: object, words: Sequence[str]) -> dict[str, str]:
    """Draw the keys of ``multi_step``. Returns ``K`` and two digits for each of ``words``; all differ."""
    numbers = random.Random(f"keys:{seed}").sample(range(10, 100), len(words))
    return {word: f"K{number}" for word, number in zip(words, numbers, strict=True)}


def make_redirects(seed: object, words: Sequence[str]) -> dict[str, str]:
    """Draw the redirects of ``recursive``: chains of at most ``LONGEST_CHAIN`` words, of which the
    last one has a value. Returns the word that each redirecting word points to."""
    shuffled = random.Random(f"redirects:{seed}").sample(words, len(words))
    chains = math.ceil(len(words) / LONGEST_CHAIN)
    redirects: dict[str, str] = {}
    for first in range(chains):
        redirects.update(pairwise(shuffled[first::chains]))
    return redirects


def run_tool(task: Task, call: ToolCall) -> str:
    """Run ``call`` for ``task``. Returns text: ``ERROR …`` for a wrong tool or argument."""
    if call.name not in TASK_SPECS[task.kind].tools:
        return f"ERROR: no tool {call.name}"
    results: Mapping[str, int | str] = task.table
    if call.name == "GETKEY":
        results = task.keys
    elif call.name == "FETCH":
        results = {key: task.table[word] for word, key in task.keys.items()}
    elif call.argument in task.redirects:
        return f"SEE: {task.redirects[call.argument]}"
    return str(results.get(call.argument, f"ERROR: unknown {call.argument}"))


class TaskSpec:
    """One kind of task. A subclass is a row of the table above: it holds what differs."""

    kind: str
    instructions: str
    tools: tuple[str, ...] = ("LOOKUP",)
    is_sum = False
    """Whether a question asks for a sum of as many words as the difficulty says."""
    has_redirects = False
    phrasings = ("What is {}?", "Tell the value of {}.", "{} = ?")
    execute = staticmethod(run_tool)

    def __init__(self, seed: int = 0, difficulty: str = "easy") -> None:
        if difficulty not in DIFFICULTIES:
            raise ValueError(
                f"difficulty is {difficulty!r}; expected one of {', '.join(DIFFICULTIES)}"
            )
        self.seed = seed
        self.difficulty = difficulty

    def task(self, index: int, split: Split = "train") -> Task:
        """Return task ``index`` of ``split``, always the same."""
        stream = f"{self.kind}:{self.difficulty}:{self.seed}:{split}"
        rng = random.Random(f"{stream}:{index}")
        words = WORDS_OF[split]
        table, keys, redirects = self._secrets(f"{stream}:{index}", words)
        if redirects:
            links = 1 + index % LONGEST_CHAIN
            words = tuple(word for word in words if len(chain_of(word, redirects)) == links)
        chosen = [_turn(words, f"words:{stream}", index)]
        if self.is_sum or redirects:
            chosen = rng.sample(words, self.length)
        asked_for = chain_of(chosen[0], redirects)[-1]
        table = _with_value(table, asked_for, _turn(VALUES, f"values:{stream}", index))
        return self._ask(chosen, (table, keys, redirects), rng)

    def examples(self, count: int) -> tuple[tuple[str, str], ...]:
        """Return ``count`` worked examples: a question, and what a perfect solver writes.

        A small language model copies the call if its question is worded like the *last* example. So
        the wordings take turns, and the last one is "What is …?". All examples share one table, so
        that no word has two values, and each asks for new words as long as there are any. Where words
        redirect, the first example asks for the shortest chain, and the last one for the longest.
        """
        stream = f"{self.kind}:{self.difficulty}:{self.seed}:example"
        rng = random.Random(stream)
        asked_for = rng.sample(EXAMPLE_WORDS, len(EXAMPLE_WORDS))
        secrets = self._secrets(stream, EXAMPLE_WORDS)
        *_, redirects = secrets
        if redirects:
            asked_for = from_short_to_long(asked_for, redirects, count)
        words = cycle(asked_for)
        examples = []
        for left in reversed(range(count)):
            phrasing = self.phrasings[left % len(self.phrasings)]
            chosen = [*islice(words, self.length)]
            task = self._ask(chosen, secrets, rng, phrasing)
            examples.append((task.question, self.solve(task)))
        return tuple(examples)

    @property
    def length(self) -> int:
        """How many words a question asks for."""
        return DIFFICULTIES[self.difficulty] if self.is_sum else 1

    def _secrets(self, name: str, words: Sequence[str]) -> Secrets:
        """Draw what only the tools know of ``words``: their table, and this kind's keys and redirects."""
        table = make_zorplex_table(name, words)
        keys = make_keys(name, words) if "GETKEY" in self.tools else {}
        redirects = make_redirects(name, words) if self.has_redirects else {}
        return table, keys, redirects

    def _ask(
        self,
        words: Sequence[str],
        secrets: Secrets,
        rng: random.Random,
        phrasing: str | None = None,
    ) -> Task:
        """Return the task that asks for ``words``. Its signs, and its phrasing unless it is given, are
        drawn from ``rng``."""
        table, keys, redirects = secrets
        expression = words[0]
        answer = table[chain_of(words[0], redirects)[-1]]
        for word in words[1:]:
            sign = rng.choice("+-")
            expression += f" {sign} {word}"
            answer += table[word] if sign == "+" else -table[word]
        phrasing = phrasing or rng.choice(self.phrasings)
        return Task(
            kind=self.kind,
            question=phrasing.format(expression),
            answer=answer,
            min_tool_calls=len(_calls(words, keys, redirects)),
            system=f"Words have hidden values. {self.instructions} End with [ANSWER] and the integer.",
            words=tuple(words),
            difficulty=self.difficulty,
            table=table,
            keys=keys,
            redirects=redirects,
        )

    def solve(self, task: Task) -> str:
        """Return what a perfect solver of ``task`` writes, results included."""
        lines = [f"{call} -> {self.run(task, call)}" for call in self.calls_needed(task)]
        if self.is_sum:
            signs = [sign for sign in task.question if sign in "+-"]
            total = ""
            for sign, word in zip(["", *signs], task.words, strict=True):
                total += f"{sign}{task.table[word]}"
            lines.append(f"{total}={task.answer}")
        return "\n".join([*lines, f"[ANSWER] {task.answer}"])

    def run(self, task: Task, call: str) -> str:
        """Run ``call``, a text such as ``LOOKUP[blip]``. Returns text."""
        parsed = find_call(call)
        if parsed is None:
            return f"ERROR: {call!r} is not a tool call"
        return run_tool(task, parsed)

    def calls_needed(self, task: Task) -> list[str]:
        """Return a perfect solver's tool calls, in order."""
        return _calls(task.words, task.keys, task.redirects)


class Simple(TaskSpec):
    kind = "simple"
    instructions = "LOOKUP[word] tells one."


class Compositional(TaskSpec):
    kind = "compositional"
    instructions = "LOOKUP[word] tells one. Do the arithmetic."
    is_sum = True


class MultiStep(TaskSpec):
    kind = "multi_step"
    instructions = "GETKEY[word] tells a key, FETCH[key] the value."
    tools = ("GETKEY", "FETCH")


class Recursive(TaskSpec):
    kind = "recursive"
    instructions = "LOOKUP[word] tells one, or SEE: a word to look up instead."
    has_redirects = True


TASK_SPECS: dict[str, type[TaskSpec]] = {
    spec.kind: spec for spec in (Simple, Compositional, MultiStep, Recursive)
}


def get_spec(
    kind: str,
    seed: int = 0,
    difficulty: str = "easy",
) -> TaskSpec:
    """Return the spec of ``kind``. Raises ValueError for an unknown kind or difficulty."""
    if kind not in TASK_SPECS:
        raise ValueError(f"task is {kind!r}; expected one of {', '.join(TASK_SPECS)}")
    return TASK_SPECS[kind](seed, difficulty)


def chain_of(word: str, redirects: Mapping[str, str]) -> list[str]:
    """Return ``word`` and the words that it redirects to, in order. The last one has the value."""
    words = [word]
    while words[-1] in redirects:
        words.append(redirects[words[-1]])
    return words


def from_short_to_long(
    words: Sequence[str],
    redirects: Mapping[str, str],
    count: int,
) -> list[str]:
    """Return ``count`` of ``words``, evenly from the one with the shortest chain to that with the longest."""
    ordered = sorted(words, key=lambda word: len(chain_of(word, redirects)))
    gaps = max(1, count - 1)
    longest = len(ordered) - 1
    return [ordered[longest * place // gaps] for place in range(count)]


def _calls(
    words: Sequence[str],
    keys: dict[str, str],
    redirects: dict[str, str],
) -> list[str]:
    calls = []
    for word in words:
        if keys:
            calls += [f"GETKEY[{word}]", f"FETCH[{keys[word]}]"]
        else:
            calls += [f"LOOKUP[{link}]" for link in chain_of(word, redirects)]
    return calls


def _with_value(table: dict[str, int], word: str, new: int) -> dict[str, int]:
    """Return ``table`` with the value ``new`` for ``word``. The word that had it gets the other one."""
    swapped = {table[word]: new, new: table[word]}
    return {each: swapped.get(value, value) for each, value in table.items()}


def _turn(choices: Sequence[Any], stream: str, index: int) -> Any:
    """Return the one of ``choices`` that has its turn at ``index``: each block of ``len(choices)``
    indices has all of them, in an order of its own."""
    block, position = divmod(index, len(choices))
    return random.Random(f"{stream}:{block}").sample(choices, len(choices))[position]
