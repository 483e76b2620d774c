"""The four kinds of Zorplex tasks: words have hidden values, and only a tool reveals them.

    kind            tools           a perfect solver writes (injected results after ``->``)
    simple          LOOKUP          LOOKUP[blip] -> 17                          [ANSWER] 17
    compositional   LOOKUP          LOOKUP[blip] -> 17, LOOKUP[zork] -> 25      17+25=42, [ANSWER] 42
    multi_step      GETKEY, FETCH   GETKEY[blip] -> K38, FETCH[K38] -> 71       [ANSWER] 71
    recursive       LOOKUP          LOOKUP[blip] -> SEE: zork, LOOKUP[zork] -> 25   [ANSWER] 25

A task is a pure function of (seed, kind, difficulty, split, index), so a lost one can be drawn
again. It carries its own secret table: a tool needs only task and call. Held-out tasks have the
other half of the words. Each block of 40 indices asks for every value once, so a constant answer is
right in 1 of 40 tasks of the kinds that ask for one word, and in fewer of the sums.
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
EXAMPLE_WORDS = tuple("wug dax fep toma blick modi gazz tulver".split())  # in worked examples alone
VALUES = range(10, 50)  # of a word: two digits, so sums have up to three and a sign
DIFFICULTIES: dict[str, int] = {"easy": 2, "medium": 3, "hard": 4}
"""How many words a ``compositional`` task adds and subtracts."""
MAX_REDIRECTS = 3
"""No word of a ``recursive`` task needs more than this many ``SEE:`` redirects."""

Split = Literal["train", "held_out"]
WORDS_OF: dict[str, tuple[str, ...]] = {"train": TRAINING_WORDS, "held_out": HELD_OUT_WORDS}
Secrets = tuple[dict[str, int], dict[str, str], dict[str, str]]
"""What only the tools know: the table of values, the keys, the redirects."""


def make_zorplex_table(seed: int | str = 0, words: Sequence[str] = ZORPLEX_WORDS) -> dict[str, int]:
    """Draw a secret table. Returns a value from ``VALUES`` for each of ``words``, all different."""
    values = random.Random(f"table:{seed}").sample(VALUES, len(words))
    return dict(zip(words, values, strict=True))


def make_keys(seed: int | str = 0, words: Sequence[str] = ZORPLEX_WORDS) -> dict[str, str]:
    """Draw ``multi_step``'s keys: ``K`` and two digits for each of ``words``, all different."""
    numbers = random.Random(f"keys:{seed}").sample(range(10, 100), len(words))
    return {word: f"K{number}" for word, number in zip(words, numbers, strict=True)}


def make_redirects(seed: int | str = 0, words: Sequence[str] = ZORPLEX_WORDS) -> dict[str, str]:
    """Draw the redirects for ``recursive``. Returns the word that each redirecting word points to:
    chains of at most ``MAX_REDIRECTS + 1`` words, of which the last one has a value."""
    shuffled = random.Random(f"redirects:{seed}").sample(list(words), len(words))
    chains = -(-len(words) // (MAX_REDIRECTS + 1))
    return {
        word: following
        for first in range(chains)
        for word, following in pairwise(shuffled[first::chains])
    }


class TaskSpec:
    """One kind of task. A subclass is a row of the table above: it holds what differs."""

    kind: str
    instructions: str
    tools: tuple[str, ...] = ("LOOKUP",)
    is_sum = False  # of as many words as the difficulty says
    has_redirects = False
    phrasings: tuple[str, ...] = ("What is {}?", "Tell the value of {}.", "{} = ?")

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
        words = rng.sample(WORDS_OF[split], self.length)
        table, keys, redirects = self._secrets(f"{stream}:{index}", WORDS_OF[split])
        last = chain_of(words[0], redirects)[-1]
        table = _scheduled(table, last, stream, index)
        return self._ask(words, (table, keys, redirects), rng, split)

    def examples(self, count: int) -> tuple[tuple[str, str], ...]:
        """Return ``count`` worked examples: a question, and what a perfect solver writes.

        A small language model copies the call where its question is worded like the *last* example.
        So the wordings take turns, and the last one is "What is …?". All examples have one table, so
        that no word has two values, and each asks for other words as long as there are any.
        """
        stream = f"{self.kind}:{self.difficulty}:{self.seed}:example"
        rng = random.Random(stream)
        order = rng.sample(EXAMPLE_WORDS, len(EXAMPLE_WORDS))
        secrets = self._secrets(stream, EXAMPLE_WORDS)
        tasks = []
        for number in range(count):
            words = [order[(number * self.length + i) % len(order)] for i in range(self.length)]
            phrasing = self.phrasings[(count - 1 - number) % len(self.phrasings)]
            tasks.append(self._ask(words, secrets, rng, "example", phrasing))
        return tuple((task.question, self.solve(task)) for task in tasks)

    @property
    def length(self) -> int:
        """How many words a question asks for."""
        return DIFFICULTIES[self.difficulty] if self.is_sum else 1

    def _secrets(self, name: str, words: Sequence[str]) -> Secrets:
        """Draw what only the tools know of ``words``: a table, and the keys and redirects of this kind."""
        keys = make_keys(name, words) if "GETKEY" in self.tools else {}
        redirects = make_redirects(name, words) if self.has_redirects else {}
        return make_zorplex_table(name, words), keys, redirects

    def _ask(
        self,
        words: Sequence[str],
        secrets: Secrets,
        rng: random.Random,
        split: str,
        phrasing: str | None = None,
    ) -> Task:
        """Return the task that asks for ``words``, with signs and any missing ``phrasing`` drawn from ``rng``."""
        table, keys, redirects = secrets
        expression = words[0]
        answer = table[chain_of(words[0], redirects)[-1]]
        for word in words[1:]:
            sign = rng.choice("+-")
            expression += f" {sign} {word}"
            answer += table[word] if sign == "+" else -table[word]
        return Task(
            kind=self.kind,
            question=(phrasing or rng.choice(self.phrasings)).format(expression),
            answer=answer,
            min_tool_calls=len(_calls(words, keys, redirects)),
            system=f"Words have hidden values. {self.instructions} End with [ANSWER] and the integer.",
            words=tuple(words),
            difficulty=self.difficulty,
            split=split,
            table=table,
            keys=keys,
            redirects=redirects,
        )

    def solve(self, task: Task) -> str:
        """Return what a perfect solver of ``task`` writes, results included."""
        lines = [f"{call} -> {self.run(task, call)}" for call in self.calls_needed(task)]
        if self.is_sum:
            signs = [sign for sign in task.question if sign in "+-"]
            terms = [
                f"{sign}{task.table[word]}"
                for sign, word in zip(["", *signs], task.words, strict=True)
            ]
            lines.append(f"{''.join(terms)}={task.answer}")
        return "\n".join([*lines, f"[ANSWER] {task.answer}"])

    def execute(self, task: Task, call: ToolCall) -> str:
        """Run ``call`` for ``task``; see ``run_tool``."""
        return run_tool(task, call)

    def run(self, task: Task, call: str) -> str:
        """Parse and run ``call``, a text such as ``LOOKUP[blip]``. Returns text."""
        parsed = find_call(call)
        return run_tool(task, parsed) if parsed else f"ERROR: {call!r} is not a tool call"

    def calls_needed(self, task: Task) -> list[str]:
        """Return the tool calls of a perfect solver, in order."""
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


def get_spec(kind: str, seed: int = 0, difficulty: str = "easy") -> TaskSpec:
    """Return the spec of ``kind``. Raises ValueError for an unknown kind or difficulty."""
    if kind not in TASK_SPECS:
        raise ValueError(f"task is {kind!r}; expected one of {', '.join(TASK_SPECS)}")
    return TASK_SPECS[kind](seed, difficulty)


def run_tool(task: Task, call: ToolCall) -> str:
    """Run ``call`` for ``task``. Returns text; ``ERROR …`` for a wrong tool or argument."""
    found: int | str | None
    if call.name not in TASK_SPECS[task.kind].tools:
        return f"ERROR: no tool {call.name}"
    if call.name == "GETKEY":
        found = task.keys.get(call.argument)
    elif call.name == "FETCH":
        found = next(
            (task.table[word] for word, key in task.keys.items() if key == call.argument), None
        )
    elif call.argument in task.redirects:
        found = f"SEE: {task.redirects[call.argument]}"
    else:
        found = task.table.get(call.argument)
    return f"ERROR: unknown {call.argument}" if found is None else str(found)


def chain_of(word: str, redirects: Mapping[str, str]) -> list[str]:
    """Return ``word`` and the words that it redirects to, in order. The last one has the value."""
    words = [word]
    while words[-1] in redirects:
        words.append(redirects[words[-1]])
    return words


def _calls(words: Sequence[str], keys: dict[str, str], redirects: dict[str, str]) -> list[str]:
    if keys:
        return [call for word in words for call in (f"GETKEY[{word}]", f"FETCH[{keys[word]}]")]
    return [f"LOOKUP[{link}]" for word in words for link in chain_of(word, redirects)]


def _scheduled(table: dict[str, int], word: str, stream: str, index: int) -> dict[str, int]:
    """Return ``table`` with the value of ``word`` that task ``index`` asks for, each once in
    ``len(VALUES)`` indices; a word that had it gets the other."""
    block, position = divmod(index, len(VALUES))
    value = random.Random(f"values:{stream}:{block}").sample(VALUES, len(VALUES))[position]
    swapped = {table[word]: value, value: table[word]}
    return {other: swapped.get(found, found) for other, found in table.items()}
