"""Read commands and flags as dataclasses, with tyro. Bad input gets one sentence (ConfigError).

tyro prints a box and exits. Here the box's first paragraph becomes the error's message.
"""

import contextlib
import dataclasses
import difflib
import io
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import tyro

from zorplex_rl.errors import ConfigError

FLAT = (tyro.conf.OmitSubcommandPrefixes, tyro.conf.OmitArgPrefixes)
"""A dataclass within another adds no prefix: ``--steps``, not ``--config.steps``."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """What every command has."""

    debug: bool = False
    """If something fails, show the traceback; and in train what Monarch reports."""


def parse_command(
    commands: Any,
    arguments: Sequence[str],
    prog: str,
    default: Any = tyro.MISSING_NONPROP,
    description: str | None = None,
) -> Any:
    """Return one of the dataclasses ``commands``, from ``arguments``, else from ``default``. Raises
    ConfigError for an unknown command or flag, naming the nearest, and for a missing or wrong
    value. ``--help`` prints the help and exits."""
    words = list(takewhile(lambda argument: not argument.startswith("-"), arguments))
    complaint = io.StringIO()
    _check_no_value_is_empty(arguments, f"{prog} {' '.join(words[:1])}")
    try:
        with contextlib.redirect_stderr(complaint):
            parsed, unknown = tyro.cli(
                commands, args=arguments, default=default, prog=prog, return_unknown_args=True, registry=_values(),
                config=FLAT, description=description,
            )  # fmt: skip
    except SystemExit as ended:
        if not ended.code:
            raise
        said = complaint.getvalue()
        if "Missing subcommand" in said:
            asked, expected = " ".join(words or arguments[:1]), _first_paragraph(said).removeprefix("Expected ")
            raise ConfigError(f"no command {asked!r}; expected {expected}; see {prog} --help") from None
        command = next((kind for kind in get_args(commands) if words[:1] == [kind.__name__.lower()]), None)
        if "Missing from" in said and command:
            raise ConfigError(f"something is missing; write {prog} {words[0]} {_needed(command)}") from None
        raise ConfigError(f"{_first_paragraph(said)}; see {prog} {' '.join(words[:1])} --help") from None
    if unknown:
        known = {*_flags(type(parsed)), "--help"}
        owners = [kind.__name__.lower() for kind in get_args(commands) if unknown[0].partition("=")[0] in _flags(kind)]
        raise ConfigError(_unknown(unknown[0], known, f"{prog} {words[0]}", owners))
    return parsed


def _check_no_value_is_empty(arguments: Sequence[str], prog: str) -> None:
    """Raise ConfigError if an argument behind the command is empty, which is nothing's value."""
    for before, argument in pairwise(arguments):
        flag, value = (argument[:-1], "") if re.fullmatch("--[^=]+=", argument) else (before, argument)
        if not value.strip():
            what = flag if flag.startswith("-") else "an argument"
            raise ConfigError(f"{what} is empty; give it a value, or leave it out; see {prog} --help")


def _unknown(token: str, known: Collection[str], prog: str, owners: Sequence[str]) -> str:
    if not token.startswith("-"):
        return f"{token!r} belongs to no flag; see {prog} --help"
    flag = token.partition("=")[0]
    if owners:
        return f"no flag {flag}, which is one of {', '.join(owners)}; see {prog} --help"
    # tyro accepts underscores for hyphens.
    nearest = difflib.get_close_matches(flag.replace("_", "-"), sorted(known), 1)
    return f"no flag {flag}; " + (f"did you mean {nearest[0]}?" if nearest else f"see {prog} --help")


def _flags(command: type) -> Iterator[str]:
    """Yield every flag that sets a field of ``command``, or of a dataclass within it."""
    for name, kind, marks, _ in _fields(command):
        if parts := [
            part for part in (kind, *get_args(kind)) if isinstance(part, type) and dataclasses.is_dataclass(part)
        ]:
            for part in parts:
                yield from _flags(part)
        elif tyro.conf.Positional not in marks:
            yield f"--{name}"
            if kind is bool:
                yield f"--no-{name}"


def _fields(command: type) -> Iterator[tuple[str, Any, list[Any], bool]]:
    """Yield of each field of ``command`` its name in a flag, its type, tyro's marks, and whether it
    has a default."""
    types = get_type_hints(command, include_extras=True)
    for field in dataclasses.fields(command):
        hint = types[field.name]
        kind, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        has_default = {field.default, field.default_factory} != {dataclasses.MISSING}
        yield field.name.replace("_", "-"), kind, marks, has_default


def _needed(command: type) -> str:
    """Return the arguments that ``command`` cannot do without, as one writes them."""
    needed = []
    for name, kind, marks, has_default in _fields(command):
        if not has_default:
            value = "|".join(get_args(kind)) if get_origin(kind) is Literal else name.upper()
            needed.append(value if tyro.conf.Positional in marks else f"--{name} {value}")
    return " ".join(needed)


def _values() -> tyro.constructors.ConstructorRegistry:
    """Return the rules for values: none is an empty text, no message names a Python function."""
    registry = tyro.constructors.ConstructorRegistry()
    for kind, expected in ((int, "a whole number"), (float, "a number"), (str, "a text"), (Path, "a path")):
        registry.primitive_rule(_reader(kind, expected))
    registry.primitive_rule(_choice)
    return registry


def _choice(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec[Any] | None:
    """Return how one of several texts is read; tyro's own message would rate the choices. A union
    of choices and text is a choice that may also be something else, which is checked later."""
    named = next((kind for kind in (info.type, *get_args(info.type)) if get_origin(kind) is Literal), None)
    if named is None:
        return None
    choices = get_args(named)
    if str in get_args(info.type):
        return _one_word(
            f"{{{','.join(choices)}}}|FILE:CLASS", lambda values: values[0], lambda value: isinstance(value, str)
        )

    may_be_none = named is not info.type

    def read(values: list[str]) -> str | None:
        if may_be_none and values == ["None"]:
            return None
        if values[0] not in choices:
            raise ValueError(f"{values[0]!r}; expected one of {', '.join(choices)}")
        return values[0]

    return _one_word(
        f"{{{','.join(choices)}}}", read, lambda value: value in choices or (may_be_none and value is None)
    )


def _one_word(metavar: str, read: Callable[[list[str]], Any], is_instance: Callable[[Any], bool]) -> Any:
    """Return how tyro reads the one word after a flag with ``read``, and writes a value."""
    return tyro.constructors.PrimitiveConstructorSpec(1, metavar, read, is_instance, lambda value: [str(value)])


def _reader(kind: type, expected: str) -> Any:
    def read(values: list[str]) -> Any:
        (value,) = values
        if not isinstance(value, str):
            # tyro's placeholder for an argument after an unknown flag, which gets its own error.
            return None
        shown = value if len(value) <= 60 else value[:60] + "…"
        try:
            found = kind(value)
            if kind is Path:
                # Only the system knows which names are too long or hold forbidden characters.
                found.exists()
            return found
        except OSError as error:
            raise ValueError(f"{shown!r} cannot be looked at ({error.strerror})") from error
        except ValueError:
            raise ValueError(f"{shown!r} is not {expected}") from None

    def rule(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec[Any] | None:
        if info.type is not kind and info.type != kind | None:
            return None
        # A path may be called None; for a number the word means what the setting's default does.
        may_be_none = info.type != kind and kind is not Path
        return _one_word(
            kind.__name__.upper(),
            lambda values: None if may_be_none and values == ["None"] else read(values),
            lambda value: isinstance(value, kind) or value is None,
        )

    return rule


def _first_paragraph(box: str) -> str:
    """Return a box's text below the title as one line. It is drawn in ASCII if not in UTF-8."""
    lines: list[str] = []
    for line in re.sub(r"\x1b\[[0-9;]*m", "", box).splitlines()[1:]:
        text = line.strip(" │|")
        if text.strip("─-╰╯+"):
            lines.append(text)
        elif lines:
            break
    return (
        " ".join(lines).removesuffix(" Expected 1 values.").rstrip(".").removeprefix("Error parsing ")
        or "the flags could not be read"
    )
