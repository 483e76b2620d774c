"""An environment with a tool of its own: a register says which locker holds a word, and only opening
the locker shows the value.

    zorplex-rl env check examples/lockers.py
    zorplex-rl train --task examples/lockers.py --steps 40

    What is blip?
    LOOKUP[blip] -> K38         the register
    FETCH[K38] -> 17            the locker
    [ANSWER] 17

In the demonstrations that the embedded policy comes from, LOOKUP always gave the value itself.
Before training it often answers with the locker's number, and mostly without the tag. If the prompt
does not mention FETCH, it still may find it by sampling, but not with every seed
(benchmarks/LOG.md).

The names LOOKUP and FETCH stay, because the embedded policy can write no others: a name that it
never saw has a probability of 1e-9 or less. Choose your own for a policy that reads the prompt.
"""

import random

from zorplex_rl.task.environment import Environment
from zorplex_rl.task.episode import Task
from zorplex_rl.task.parser import ToolCall
from zorplex_rl.task.specs import WORDS_OF, Split

SYSTEM = (
    "Words have hidden values. LOOKUP[word] tells a key, FETCH[key] the value. "
    # The end is that of the prompts that the embedded policy knows.
    "End with [ANSWER] and the integer."
)
PHRASINGS = ("What is {}?", "Tell the value of {}.", "{} = ?")


class Lockers(Environment):
    """Find the locker of a word, open it, and say what is in it. Every task has its own register and
    its own lockers."""

    tools = ("LOOKUP", "FETCH")

    def task(self, index: int, split: Split) -> Task:
        rng = random.Random(f"lockers:{self.seed}:{split}:{index}")
        words = WORDS_OF[split]
        numbers = rng.sample(range(10, 100), len(words))
        lockers = [f"K{number}" for number in numbers]
        values = rng.sample(range(10, 50), len(words))
        register = dict(zip(words, lockers, strict=True))
        contents = dict(zip(lockers, values, strict=True))
        word = rng.choice(words)
        phrasing = rng.choice(PHRASINGS)
        return Task(
            kind="lockers",
            question=phrasing.format(word),
            answer=contents[register[word]],
            min_tool_calls=2,
            system=SYSTEM,
            words=(word,),
            table={"LOOKUP": register, "FETCH": contents},
        )

    def execute(self, task: Task, call: ToolCall) -> str:
        table = task.table[call.name]
        if call.argument not in table:
            return f"ERROR: unknown {call.argument}"
        return str(table[call.argument])
