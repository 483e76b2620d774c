"""Parse what a policy writes: tool calls and the final answer.

Sampler, environment and score must read a text alike: all three use this file. Neither a call nor an
answer spans a line break, so a sampler looks only at the line that is being written.

A line's answer is its last tag's integer, if that is the only number up to the end of the line: a
policy cannot give two at once. Words after it are ignored. Digits and signs are ASCII.

    [ANSWER] 12.           12              [ANSWER] 12 or 13     no answer: two numbers
    [ANSWER] 12 apples     12              [ANSWER] 12 %         no answer: a share is not an integer
    [ANSWER] -12           -12             [ANSWER] −12      no answer: the Unicode minus is not a sign
    [ANSWER] 12 no, [ANSWER] 13   13       [ANSWER] 12 − 3      no answer: two numbers
                                           [ANSWER] 12 [ANSWER] 13 or 14   no answer: the last tag has two
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

TOOL_NAMES = ("LOOKUP", "GETKEY", "FETCH")
"""The names that make a call; which kind of task has which tool, says ``specs.py``."""
ANSWER_TAG = "[ANSWER]"

Answer = int | str
"""What an answer is: an integer, unless an environment has its own ``find_answer``."""

_SHARE = re.compile(r"\W*?[%‰‱％﹪٪؉؊]")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A complete call: the tool's name, its stripped argument, and the index after ``]``."""

    name: str
    argument: str
    end: int

    def __str__(self) -> str:
        return f"{self.name}[{self.argument}]"


@cache
def _call(tools: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(r"\b(" + "|".join(map(re.escape, tools)) + r")\[([^\[\]\n]*)\]")


@cache
def _answer(tag: str) -> re.Pattern[str]:
    """Return the pattern of a line's last tag, its integer, and the rest of the line."""
    tag = re.escape(tag)
    return re.compile(rf"{tag}[ \t]*([+-]?[0-9]+)(?!\w)((?:(?!{tag})[^\n])*)$", re.MULTILINE)


def find_call(text: str, tools: tuple[str, ...] = TOOL_NAMES) -> ToolCall | None:
    """Return the first complete call of one of ``tools`` in ``text``, or None."""
    match = _call(tools).search(text) if tools else None
    return ToolCall(match[1], match[2].strip(), match.end()) if match else None


def find_answer(text: str, tag: str = ANSWER_TAG) -> int | None:
    """Return the answer of the last line of ``text`` that has one behind ``tag``, or None."""
    # An answer has no other number on its line nor, before the first letter, a percent sign.
    answers = [
        digits
        for digits, rest in _answer(tag).findall(text)
        if not _SHARE.match(rest) and not any(map(str.isnumeric, rest))
    ]
    # Python refuses to convert absurdly long digit strings; values here have few.
    return int(answers[-1]) if answers and len(answers[-1]) <= 1000 else None


def answer_is_complete(line: str, find: Callable[[str], Answer | None] = find_answer) -> bool:
    """Return whether ``line`` has an answer that ``find`` finds, and has ended."""
    return "\n" in line and find(line) is not None


def format_result(result: str) -> str:
    """Return a tool's result as it is injected after the call: LOOKUP[blip]`` -> 17⏎``."""
    return f" -> {result}\n"
