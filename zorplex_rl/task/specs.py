"""The four kinds of Zorplex tasks: words have hidden values, and only a tool reveals them.

    kind            tools           a perfect solver writes (injected results after ``->``)
    simple          LOOKUP          LOOKUP[blip] -> 17                          [ANSWER] 17
    compositional   LOOKUP          LOOKUP[blip] -> 17, LOOKUP[zork] -> 25      17+25=42, [ANSWER] 42
    multi_step      GETKEY, FETCH   GETKEY[blip] -> K38, FETCH[K38] -> 71       [ANSWER] 71
    recursive       LOOKUP          LOOKUP[blip] -> SEE: zork, LOOKUP[zork] -> 25   [ANSWER] 25

A task is a pure function of (seed, kind, difficulty, split, index), so a lost one can be drawn
again. It has its own secret table, keys and redirects, and carries them: a tool needs only task and
call. Held-out tasks have the other half of the words, so training cannot draw them.

Each block of 40 indices asks for every value once. So a constant answer is right in 1 of 40 tasks
of the kinds that ask for one word, and in fewer of the sums.
"""

import random
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal

from zorplex_rl.task.episode import Task
from zorplex_rl.task.parser import ToolCall, find_call

ZORPLEX_WORDS: tuple[str, ...] = tuple(
    "blip bonk clup drim faz flim frub glop gorn grix hax jint klem lurp mip nask "
    "norf plek prub quon rilk skob snib trun ulf vom wub yim zam zil zork zorp".split()
)
TRAINING_WORDS, HELD_OUT_WORDS = ZORPLEX_WORDS[::2], ZORPLEX_WORDS[1::2]
VALUES = range(10, 50)
"""The values that a word can have: two digits, so sums have up to three and a sign."""
DIFFICULTIES: dict[str, int] = {"easy": 2, "medium": 3, "hard": 4}
"""How many words a ``compositional`` task adds and subtracts."""
MAX_REDIRECTS = 3
"""No word of a ``recursive`` task needs more than this many ``SEE:`` redirects."""

Split = Literal["train", "held_out"]
WORDS_OF: dict[str, tuple[str, ...]] = {"train": TRAINING_WORDS, "held_out": HELD_OUT_WORDS}
Links = dict[str, str]
"""The key of each word, or the word that it points to."""


def make_zorplex_table(seed: int | str = 0, words: Sequence[str] = ZORPLEX_WORDS) -> dict[str, int]:
    """Draw a secret table. Returns a value from ``VALUES`` for each of ``words``, all different."""
    values = random.Random(f"table:{seed}").sample(VALUES, len(words))
    return dict(zip(words, values, strict=True))


def make_keys(seed: int | str = 0, words: Sequence[str] = ZORPLEX_WORDS) -> Links:
    """Draw ``multi_step``'s keys: ``K`` and two digits for each of ``words``, all different."""
    numbers = random.Random(f"keys:{seed}").sample(range(10, 100), len(words))
    return {word: f"K{number}" for word, number in zip(words, numbers, strict=True)}


def make_redirects(seed: int | str = 0, words: Sequence[str] = ZORPLEX_WORDS) -> Links:
    """Draw the redirects for ``recursive``. Returns the word that each redirecting word points to.

    The words are split into chains of at most ``MAX_REDIRECTS + 1``, and each points to the next.
    So no chain is too long or a circle, and the last word of each has a value.
    """
    shuffled = random.Random(f"redirects:{seed}").sample(list(words), len(words))
    chains = -(-len(words) // (MAX_REDIRECTS + 1))
    return {word: following for first in range(chains) for word, following in pairwise(shuffled[first::chains])}


class TaskSpec:
    """One kind of task. A subclass says how it differs from the look-up of one word."""

    kind: str
    tools: tuple[str, ...] = ("LOOKUP",)
    instructions: str
    phrasings: tuple[str, ...] = ("What is {}?", "Tell the value of {}.", "{} = ?")
    example = "What is blip?\nLOOKUP[blip] -> {0}\n[ANSWER] {0}"
    """The worked example of a hint; {0} is a made-up value."""

    def __init__(self, seed: int = 0, difficulty: str = "easy", hints: bool = False) -> None:
        if difficulty not in DIFFICULTIES:
            raise ValueError(f"difficulty is {difficulty!r}; expected one of {', '.join(DIFFICULTIES)}")
        self.seed, self.difficulty, self.hints = seed, difficulty, hints

    def task(self, index: int, split: Split = "train") -> Task:
        """Return task ``index`` of ``split``, always the same."""
        name = f"{self.kind}:{self.difficulty}:{self.seed}:{split}"
        rng, known = random.Random(f"{name}:{index}"), WORDS_OF[split]
        words = rng.sample(known, self._word_count())
        keys, redirects = self._connect(f"{name}:{index}", known)
        table = make_zorplex_table(f"{name}:{index}", known)
        table = _with_value(table, chain_of(words[0], redirects)[-1], _scheduled_value(name, index))
        expression, answer = self._ask(words, [table[chain_of(word, redirects)[-1]] for word in words], rng)
        system = f"Words have hidden values. {self.instructions} End with [ANSWER] and the integer."
        if self.hints:
            blip, zork = (table.get(chain_of(word, redirects)[-1], 0) for word in ("blip", "zork"))
            system += f"\nExample: {self._example(blip, zork)}"
        return Task(
            kind=self.kind,
            question=rng.choice(self.phrasings).format(expression),
            answer=answer,
            min_tool_calls=len(self._calls(words, keys, redirects)),
            system=system,
            words=tuple(words),
            difficulty=self.difficulty,
            split=split,
            table=table,
            keys=keys,
            redirects=redirects,
        )

    def execute(self, task: Task, call: ToolCall) -> str:
        """Run ``call`` for ``task``. Returns text; ``ERROR …`` for a wrong tool or argument."""
        if call.name not in self.tools:
            return f"ERROR: no tool {call.name}"
        value = self._look_up(task, call)
        return f"ERROR: unknown {call.argument}" if value is None else str(value)

    def run(self, task: Task, call: str) -> str:
        """Parse and run ``call`` for ``task``. Returns the result, or a text ``ERROR …``.

        >>> spec = get_spec("simple")
        >>> spec.run(spec.task(0), "LOOKUP[no such word]")
        'ERROR: unknown no such word'
        """
        parsed = find_call(call)
        return self.execute(task, parsed) if parsed else f"ERROR: {call!r} is not a tool call"

    def calls_needed(self, task: Task) -> list[str]:
        """Return the tool calls of a perfect solver, in order."""
        return self._calls(task.words, task.keys, task.redirects)

    def _word_count(self) -> int:
        return 1

    def _connect(self, name: str, words: Sequence[str]) -> tuple[Links, Links]:
        """Return the keys and the redirects of the task ``name``, empty where the kind has none."""
        return {}, {}

    def _calls(self, words: Sequence[str], keys: Links, redirects: Links) -> list[str]:
        return [f"LOOKUP[{word}]" for word in words]

    def _ask(self, words: list[str], values: list[int], rng: random.Random) -> tuple[str, int]:
        """Return the expression that is asked for, and the answer."""
        return words[0], values[0]

    def _look_up(self, task: Task, call: ToolCall) -> int | str | None:
        return task.table.get(call.argument)

    def _example(self, blip: int, zork: int) -> str:
        """Return the worked example; none of it is right for a task with these values of two words."""
        return self.example.format(_made_up(blip))


class Simple(TaskSpec):
    kind = "simple"
    instructions = "LOOKUP[word] tells one."


class Compositional(TaskSpec):
    kind = "compositional"
    instructions = "LOOKUP[word] tells one. Do the arithmetic."

    def _word_count(self) -> int:
        return DIFFICULTIES[self.difficulty]

    def _ask(self, words: list[str], values: list[int], rng: random.Random) -> tuple[str, int]:
        expression, answer = words[0], values[0]
        for word, value in zip(words[1:], values[1:], strict=True):
            sign = rng.choice("+-")
            expression += f" {sign} {word}"
            answer += value if sign == "+" else -value
        return expression, answer

    def _example(self, blip: int, zork: int) -> str:
        a = _made_up(blip)
        b = _made_up(zork, blip + zork - a, a)
        return f"What is blip + zork?\nLOOKUP[blip] -> {a}\nLOOKUP[zork] -> {b}\n{a}+{b}={a + b}\n[ANSWER] {a + b}"


class MultiStep(TaskSpec):
    kind = "multi_step"
    tools = ("GETKEY", "FETCH")
    instructions = "GETKEY[word] tells a key, FETCH[key] the value."
    # Keys begin at K10.
    example = "What is blip?\nGETKEY[blip] -> K07\nFETCH[K07] -> {0}\n[ANSWER] {0}"

    def _connect(self, name: str, words: Sequence[str]) -> tuple[Links, Links]:
        return make_keys(name, words), {}

    def _calls(self, words: Sequence[str], keys: Links, redirects: Links) -> list[str]:
        return [call for word in words for call in (f"GETKEY[{word}]", f"FETCH[{keys[word]}]")]

    def _look_up(self, task: Task, call: ToolCall) -> int | str | None:
        if call.name == "GETKEY":
            return task.keys.get(call.argument)
        return next((task.table[word] for word, key in task.keys.items() if key == call.argument), None)


class Recursive(TaskSpec):
    kind = "recursive"
    instructions = "LOOKUP[word] tells one, or SEE: a word to look up instead."
    # No table has the second word, so nothing leads to it, and no training prompt names it.
    example = "What is blip?\nLOOKUP[blip] -> SEE: quux\nLOOKUP[quux] -> {0}\n[ANSWER] {0}"

    def _connect(self, name: str, words: Sequence[str]) -> tuple[Links, Links]:
        return {}, make_redirects(name, words)

    def _calls(self, words: Sequence[str], keys: Links, redirects: Links) -> list[str]:
        return [f"LOOKUP[{link}]" for word in words for link in chain_of(word, redirects)]

    def _look_up(self, task: Task, call: ToolCall) -> int | str | None:
        following = task.redirects.get(call.argument)
        return f"SEE: {following}" if following else super()._look_up(task, call)


TASK_SPECS: dict[str, type[TaskSpec]] = {spec.kind: spec for spec in (Simple, Compositional, MultiStep, Recursive)}


def get_spec(kind: str, seed: int = 0, difficulty: str = "easy", hints: bool = False) -> TaskSpec:
    """Return the spec of ``kind``. Raises ValueError for an unknown kind or difficulty."""
    if kind not in TASK_SPECS:
        raise ValueError(f"task is {kind!r}; expected one of {', '.join(TASK_SPECS)}")
    return TASK_SPECS[kind](seed, difficulty, hints)


def run_tool(task: Task, call: ToolCall) -> str:
    """Run ``call`` with the tools and table of ``task``, which are all it needs. Returns text."""
    return get_spec(task.kind).execute(task, call)


def chain_of(word: str, redirects: Mapping[str, str]) -> list[str]:
    """Return ``word`` and the words that it redirects to, in order. The last one has the value.

    >>> chain_of("blip", {"blip": "zork", "zork": "mip"})
    ['blip', 'zork', 'mip']
    """
    words = [word]
    while words[-1] in redirects:
        words.append(redirects[words[-1]])
    return words


def _made_up(*true: int) -> int:
    """Return a worked example's value: the first of four that is not among ``true``."""
    return next(value for value in (26, 38, 17, 45) if value not in true)


def _scheduled_value(name: str, index: int) -> int:
    """Return the value that task ``index`` asks for: each once in ``len(VALUES)`` indices."""
    block, position = divmod(index, len(VALUES))
    return random.Random(f"values:{name}:{block}").sample(VALUES, len(VALUES))[position]


def _with_value(table: dict[str, int], word: str, value: int) -> dict[str, int]:
    """Return ``table`` with ``value`` at ``word``, swapped with any word that had it."""
    swapped = {table[word]: value, value: table[word]}
    return {other: swapped.get(found, found) for other, found in table.items()}
