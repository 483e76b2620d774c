"""Check before a run that its tasks can be answered within ``max_tokens`` and ``max_turns``.

    LOOKUP[blip] -> 17⏎LOOKUP[zork] -> 25⏎[ANSWER] 42       the shortest answer that a perfect solver gives: calls, results, the tag
    └─ 3 ──┘└── 5 ──┘└─ 3 ──┘└── 5 ──┘└─── 5 ───┘           21 tokens, 3 turns

Written arithmetic does not count: a policy can do without. Calls do: without, it would guess.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from zorplex_rl.errors import ConfigError
from zorplex_rl.task.environment import Environment, Zorplex
from zorplex_rl.task.parser import format_result

TASKS_TRIED = 32
"""Tasks of each kind to look at: enough to meet every number of redirects."""


@dataclass(frozen=True, slots=True)
class Need:
    """One task's needs: tokens of its prompt, and tokens and turns of its shortest answer."""

    prompt: int
    tokens: int
    turns: int


def needs(zorplex: Zorplex | Environment, name: str, count_tokens: Callable[[str], int]) -> list[Need]:
    """Return the needs of the first tasks of ``name``, ``kind:difficulty``, by ``count_tokens``. A
    user's environment knows no shortest answer: prompt, turns and the answer itself count."""
    if not isinstance(zorplex, Zorplex):
        return [
            Need(
                count_tokens(task.system) + count_tokens(task.question),
                count_tokens(zorplex.reference(task)),
                task.min_tool_calls + 1,
            )
            for task in (zorplex.task(index, "train") for index in range(TASKS_TRIED))
        ]
    spec, found = zorplex.spec(name), []
    for task in map(spec.task, range(TASKS_TRIED)):
        calls = spec.calls_needed(task)
        texts = [*calls, *(format_result(spec.run(task, call)) for call in calls), f"[ANSWER] {task.answer}"]
        prompt = count_tokens(task.system) + count_tokens(task.question)
        found.append(Need(prompt, sum(map(count_tokens, texts)), len(calls) + 1))
    return found


def check_limits(
    zorplex: Zorplex | Environment,
    names: Sequence[str],
    max_tokens: int,
    max_turns: int,
    count_tokens: Callable[[str], int],
    positions: int | None = None,
) -> list[str]:
    """Return a warning for each kind in ``names`` with tasks that the limits rule out.
    ``positions`` is the number of tokens that the model can read, if known. Raises ConfigError if a
    response of ``max_tokens`` does not fit into it, or if no task of any kind can be answered."""
    of_kind = {name: needs(zorplex, name, count_tokens) for name in names}
    everything = [need for found in of_kind.values() for need in found]
    longest, shortest = max(need.prompt for need in everything), min(need.tokens for need in everything)
    if positions is not None and longest + max_tokens > positions:
        reads = f"the policy reads at most {positions} tokens, and prompts take {longest} of them"
        room = positions - longest
        if room < shortest:
            raise ConfigError(f"{reads}, but the shortest answer takes {shortest}; use a policy that reads more")
        raise ConfigError(f"--max-tokens is {max_tokens}, but {reads}; use {room} or less")
    turns, enough = min(n.turns for n in everything), _enough(everything)
    if shortest > max_tokens:
        what = f"the shortest answer with its tool calls takes {shortest} tokens"
        raise ConfigError(f"--max-tokens is {max_tokens}, but {what}; use {enough.tokens} or more")
    if turns > max_turns:
        what = f"the shortest answer takes {turns}, one more than its tool calls"
        raise ConfigError(f"--max-turns is {max_turns}, but {what}; use {enough.turns} or more")
    if not any(need.tokens <= max_tokens and need.turns <= max_turns for need in everything):
        what = f"within --max-tokens {max_tokens} and --max-turns {max_turns}"
        raise ConfigError(f"no task can be answered {what}; use {enough.tokens} and {enough.turns} or more")
    return [
        f"{share:.0%} of the {name} tasks cannot be answered within --max-tokens {max_tokens} and --max-turns {max_turns}; "
        f"{_enough(found).tokens} and {_enough(found).turns} would do for all"
        for name, found in of_kind.items()
        if (share := sum(n.tokens > max_tokens or n.turns > max_turns for n in found) / len(found))
    ]


def _enough(found: Sequence[Need]) -> Need:
    return Need(max(n.prompt for n in found), max(n.tokens for n in found), max(n.turns for n in found))
