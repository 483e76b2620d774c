"""Compare what a learner's code gives with what is right, and say how they differ.

    same(found, right)                 equal as a learner means it: numbers, sequences, arrays and tensors of any kind
    shown(value)                       a value as one would write it: four digits, long ones cut, no addresses of objects
    call("f", arguments)               a call as one would write it, in 220 characters
    difference(called, found, right)   "`f(3)` gives `5`, and should give `6`", with the kind of mistake if it is one of these:
                                       no `await`, no `return`, another order

>>> difference("`f(3)`", None, 6.0)
'`f(3)` gives `None`, and should give `6.0`: is a `return` missing?'
"""

import inspect
import math
import re
import reprlib
from collections.abc import ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from decimal import Decimal
from numbers import Real
from typing import Any

from zorplex_rl.course.lesson.markup import quote

LONGEST_CALL = 220
LONGEST_VALUE = 60
"""Characters of a result that a sentence shows whole; of a longer one it shows the place that differs."""


def same(found: Any, right: Any, tolerance: float = 1e-6) -> bool:
    """Return True if both are equal as a learner means it: numbers, sequences of any kind.

    >>> import torch
    >>> same(torch.tensor([0.5, 2.0]), (0.5, 2)), same([1.0], 1.0), same(None, 0)
    (True, False, False)

    A mask may be written with ones and zeros, a single truth value may not.

    >>> same([1, 0], [True, False]), same(1, True), same([True, 2], [1, 2])
    (True, False, False)
    """
    found, right = plain(found), plain(right)
    if isinstance(right, bool) or isinstance(found, bool):
        return found is right
    if isinstance(right, Real) and isinstance(found, Real | Decimal):
        found = float(found) if isinstance(found, Decimal) else found
        if math.isnan(right) or math.isnan(found):
            return math.isnan(right) and math.isnan(found)
        # An integer is exact: a count of 10,000,001 is not 10,000,000.
        exact = isinstance(right, int) and isinstance(found, int)
        return found == right or (
            not exact and math.isclose(found, right, rel_tol=tolerance, abs_tol=tolerance / 1000)
        )
    if isinstance(right, list | tuple):
        alike = isinstance(found, list | tuple) and len(found) == len(right)
        if alike and all(isinstance(one, bool) for one in right):
            return all(
                isinstance(one, Real) and one == other
                for one, other in zip(found, right, strict=True)
            )
        return alike and all(
            same(one, other, tolerance) for one, other in zip(found, right, strict=True)
        )
    if isinstance(right, Mapping):
        alike = isinstance(found, Mapping) and found.keys() == right.keys()
        return alike and all(same(found[key], right[key], tolerance) for key in right)
    return type(found) is type(right) and bool(found == right)


def plain(value: Any) -> Any:
    """Return a tensor, an array, or what a loop goes through as nested lists or one number, and other values as they are."""
    if callable(getattr(value, "detach", None)):
        value = value.detach().cpu()
    if callable(getattr(value, "tolist", None)):
        return value.tolist()
    return (
        list(value)
        if isinstance(value, range | Iterator | KeysView | ValuesView | ItemsView)
        else value
    )


def in_order(values: Sequence[Any]) -> list[Any]:
    """Return ``values`` in some order that depends on nothing but them."""
    return sorted(values, key=lambda value: repr(_rounded(plain(value), 6)))


def size(value: Any) -> int:
    """Return how many numbers and texts ``value`` holds: of two cases the smaller one teaches more.

    >>> size(([1.0, 2.0], "a")), size(([], "a"))
    (5, 3)
    """
    value = plain(value)
    if isinstance(value, Mapping):
        return 1 + sum(map(size, value.values()))
    if isinstance(value, list | tuple | set):
        return 1 + sum(map(size, value))
    return 1 + len(value) // 8 if isinstance(value, str) else 1


def shown(value: Any, digits: int = 4, most: int = 8) -> str:
    """Return ``value`` as one would write it: floats of four digits, at most ``most`` elements, objects by their class.

    >>> shown([1 / 3, 2.0, 70000.7]), shown(object()), shown(range(30), most=3)
    ('[0.3333, 2.0, 70001.0]', '<object>', '[0, 1, 2, ...]')
    """
    cut = _Short()
    cut.maxlist = cut.maxtuple = cut.maxset = cut.maxdict = most
    cut.maxstring = cut.maxother = 80
    try:
        return cut.repr(_rounded(plain(value), digits))
    except Exception:
        return f"<{type(value).__name__}>"


class _Short(reprlib.Repr):
    """Shorten values, and name objects by their class."""

    def repr_instance(self, x: Any, level: int) -> str:
        text = bare(re.sub(r"\s*\n\s*", " ", repr(x)))
        return text if len(text) <= self.maxother else f"{text[: self.maxother - 3]}..."


def _rounded(value: Any, digits: int) -> Any:
    """Return nested values with floats of so many digits; whole numbers keep theirs."""
    value = plain(value)
    if value == 0 and isinstance(value, float):
        return 0.0  # not -0.0
    if isinstance(value, float) and not value.is_integer() and math.isfinite(value):
        return float(f"{value:.{max(digits, len(str(int(abs(value)))))}g}")
    if type(value) in (list, tuple, set):
        return type(value)(_rounded(one, digits) for one in value)
    if isinstance(value, dict):
        return {key: _rounded(one, digits) for key, one in value.items()}
    return value


def bare(text: str) -> str:
    """Return ``text`` with no more of an object than its class.

    >>> bare("got <Reply pending name='Task-1' coro=<Mailbox._answer() running at nb01.py:85>>")
    'got <Reply>'
    """
    before = ""
    while before != text:
        before, text = text, re.sub(r"<(?:\w+\.|<locals>\.)*(\w+)\b[^<>]+>", r"‹\1›", text)
    return text.replace("‹", "<").replace("›", ">")


def call(name: str, arguments: Sequence[Any], named: Mapping[str, Any] | None = None) -> str:
    """Return the call as one would write it; long arguments are cut until it fits a sentence."""
    for most in (24, 8, 4, 2):
        parts = [shown(value, most=most) for value in arguments]
        parts += [f"{key}={shown(value, most=most)}" for key, value in (named or {}).items()]
        text = f"{name}({', '.join(parts)})"
        if len(text) <= LONGEST_CALL:
            break
    return text


def difference(
    called: str, found: Any, right: Any, verbs: tuple[str, str] = ("gives", "give")
) -> str:
    """Return the sentence on two results that differ: what differs, and the kind of mistake if it is a usual one."""
    if inspect.isawaitable(found):
        return f"{called} {verbs[0]} {quote(shown(found))}, not its result: is an `await` missing?"
    found, right = plain(found), plain(right)
    ours, theirs, place = *_apart(found, right), ""
    if all(isinstance(value, list | tuple) for value in (found, right)) and _is_long(found, right):
        if len(found) == len(right):
            number = next(
                (n for n, both in enumerate(zip(found, right, strict=True)) if not same(*both)), 0
            )
            ours, theirs, place = *_apart(found[number], right[number]), f" at position {number}"
        else:
            ours, theirs = _counted(found), _counted(right)
    there = " there" if place else ""
    return f"{called} {verbs[0]} {ours}{place}, and should {verbs[1]} {theirs}{there}{_kind(found, right)}"


def _kind(found: Any, right: Any) -> str:
    """Return what is usually behind such a difference, for the end of a sentence, or nothing."""
    if found is None:
        return ": is a `return` missing?"
    lists = isinstance(found, list | tuple) and isinstance(right, list | tuple)
    if lists and same(in_order(found), in_order(right)):
        return ": the order is another one"
    return ""


def negative(value: Any) -> Any:
    """Return numbers, tensors, and sequences of them with the other sign."""
    if isinstance(value, list | tuple):
        return [negative(one) for one in value]
    return -value if hasattr(value, "__neg__") else value


def _is_long(*values: Sequence[Any]) -> bool:
    """Return True for sequences of which a sentence shows the place that differs."""
    nested = any(len(value) > 3 and isinstance(value[0], list | tuple) for value in values)
    return nested or any(len(shown(value, most=99)) > LONGEST_VALUE for value in values)


def _counted(values: Sequence[Any]) -> str:
    return f"{len(values)} element{'s' * (len(values) != 1)}, {quote(shown(values, most=3))}"


def _apart(found: Any, right: Any) -> tuple[str, str]:
    """Return both as code, with as many digits as it takes to tell them apart; at last, with their types."""
    for digits in (4, 6, 9, 17):
        ours, theirs = (shown(value, digits) for value in (found, right))
        if ours != theirs and not same(found, right):
            return quote(ours), quote(theirs)
    ours, theirs = (f"{shown(value)} ({type(value).__name__})" for value in (found, right))
    return quote(ours), quote(theirs)
