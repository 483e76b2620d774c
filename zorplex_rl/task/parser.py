"""Parse what a policy writes: tool calls and the final answer.

Sampler, environment and score must read a text alike, so all three use this file. Neither a call nor
an answer spans a line break, so a sampler reads only the line that is being written.

A line's answer is the integer behind its last tag, if no other number follows on the line: a policy
cannot give two answers at once. Words after it are ignored. Digits and signs are ASCII.

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
"""The names that make a call. ``specs.py`` says which kind of task has which tools."""
ANSWER_TAG = "[ANSWER]"
Answer = int | str
"""An integer, unless an environment has its own ``find_answer``."""
_SHARE = re.compile(r"\W*?[%‰‱％﹪٪؉؊]")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A complete tool call."""

    name: str
    """The tool's."""
    argument: str
    """Without spaces around it."""
    end: int
    """The index in the text behind ``]``."""

    def __str__(self) -> str:
        return f"{self.name}[{self.argument}]"


@cache
def _call(tools: tuple[str, ...]) -> re.Pattern[str]:
    names = "|".join(map(re.escape, tools))
    return re.compile(rf"\b({names})\[([^\[\]\n]*)\]")


@cache
def _answer(tag: str) -> re.Pattern[str]:
    """Return the pattern of a line's last tag, its integer, and the rest of the line."""
    tag = re.escape(tag)
    return re.compile(rf"{tag}[ \t]*([+-]?[0-9]+)(?!\w)((?:(?!{tag})[^\n])*)$", re.MULTILINE)


def find_call(text: str, tools: tuple[str, ...] = TOOL_NAMES) -> ToolCall | None:
    """Return the first complete call of one of ``tools`` in ``text``, or None."""
    match = _call(tools).search(text) if tools else None
    if match is None:
        return None
    return ToolCall(match[1], match[2].strip(), match.end())


def find_answer(text: str, tag: str = ANSWER_TAG) -> int | None:
    """Return the answer of the last line of ``text`` that has one behind ``tag``, or None."""
    answer = None
    for digits, rest in _answer(tag).findall(text):
        # An answer has no other number on its line nor, before the first letter, a percent sign.
        if not _SHARE.match(rest) and not any(map(str.isnumeric, rest)):
            answer = digits
    # Python refuses to convert absurdly long digit strings; values here have few.
    return int(answer) if answer and len(answer) <= 1000 else None


def answer_is_complete(line: str, find: Callable[[str], Answer | None] = find_answer) -> bool:
    """Return whether ``line`` has ended, with an answer that ``find`` finds."""
    return "\n" in line and find(line) is not None


def format_result(result: str) -> str:
    """Return a tool's result as it is injected after the call: LOOKUP[blip]`` -> 17⏎``."""
    return f" -> {result}\n"
