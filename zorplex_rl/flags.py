"""A command's flags: a dataclass, read from the command line by tyro. Whatever is wrong with them is said in one sentence (ConfigError).

tyro reports a mistake as a box of several lines on standard error, and exits. What it says is kept: the first paragraph of the box.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import io
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import tyro

from zorplex_rl.errors import ConfigError

Command = TypeVar("Command")


def parse_flags(command: type[Command], arguments: Sequence[str], default: Command, prog: str) -> Command:
    """Return ``command`` with the fields that ``arguments`` set; the others are those of ``default``.

    Raises ConfigError for an unknown flag, with the nearest known one, and for a value that is missing or of the wrong type. ``--help`` prints
    the help and exits.
    """
    known = {*_flags(command), "--help"}
    for token in arguments:
        if token.startswith("--") and _flag(token) not in known and not token.startswith("--tyro-"):
            raise ConfigError(_unknown(token, known, prog))
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            parsed, unknown = tyro.cli(
                command, args=arguments, default=default, prog=prog, return_unknown_args=True, registry=_values()
            )
    except SystemExit as ended:
        if not ended.code:
            raise
        raise ConfigError(_first_paragraph(complaint.getvalue()) + f"; see {prog} --help") from None
    if unknown:
        raise ConfigError(_unknown(unknown[0], known, prog))
    return parsed


def _unknown(token: str, known: Collection[str], prog: str) -> str:
    if not token.startswith("-"):
        return f"{token!r} belongs to no flag; see {prog} --help"
    nearest = difflib.get_close_matches(_flag(token), sorted(known), 1)
    return f"no flag {token.partition('=')[0]}; " + (f"did you mean {nearest[0]}?" if nearest else f"see {prog} --help")


def _flag(token: str) -> str:
    """The flag of ``--flag=value`` or ``--flag``. tyro takes underscores for hyphens, and so does this."""
    return token.partition("=")[0].replace("_", "-")


def _flags(command: type) -> Iterator[str]:
    """Every flag that sets a field of ``command``, or of a dataclass within it."""
    types = get_type_hints(command, include_extras=True)
    for field in dataclasses.fields(command):
        kind, *marks = (
            get_args(types[field.name]) if get_origin(types[field.name]) is Annotated else (types[field.name],)
        )
        name = field.name.replace("_", "-")
        if dataclasses.is_dataclass(kind):
            yield from _flags(kind)
        elif tyro.conf.Positional not in marks:
            yield f"--{name}"
            if kind is bool:
                yield f"--no-{name}"


def _values() -> tyro.constructors.ConstructorRegistry:
    """How numbers, texts and paths are read: nowhere is an empty text a value, and no complaint names a Python function."""
    registry = tyro.constructors.ConstructorRegistry()
    for kind, expected in ((int, "a whole number"), (float, "a number"), (str, "a text"), (Path, "a path")):
        registry.primitive_rule(_reader(kind, expected))
    return registry


def _reader(kind: type, expected: str) -> Any:
    def read(values: list[str]) -> Any:
        (value,) = values
        shown = value if len(value) <= 60 else value[:60] + "…"
        try:
            if value.strip():
                found = kind(value)
                if kind is Path:
                    # A name that is too long, or holds what no name may, is found out by asking.
                    found.exists()
                return found
        except OSError as error:
            raise ValueError(f"{shown!r} cannot be looked at ({error.strerror})") from error
        except ValueError:
            pass
        raise ValueError(f"{shown!r} is not {expected}" if value.strip() else f"it is empty; expected {expected}")

    def rule(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec[Any] | None:
        if info.type is not kind and info.type != kind | None:
            return None
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs=1,
            metavar=kind.__name__.upper(),
            instance_from_str=read,
            is_instance=lambda value: isinstance(value, kind) or value is None,
            str_from_instance=lambda value: [str(value)],
        )

    return rule


def _first_paragraph(box: str) -> str:
    """The text below the title of a box, as one line. Where standard output is not UTF-8, a box is drawn with blanks and hyphens."""
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
