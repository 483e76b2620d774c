"""The exact words of messages to people, all in ``wording.txt``. A test says when a message comes and
what it must name; how it is put stands there alone, to be read like a page.

    # cli/test_cli.py::test_of_a_message
    the case
        what is said in this case

Whoever changes a message writes it anew with ``WORDING=renew pytest -n0 TESTS…``, and reads the diff.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

FILE = Path(__file__).with_name("wording.txt")
RENEW = os.environ.get("WORDING") == "renew"
Key = tuple[str, str]
"""A test, and a case of it."""


def parse(text: str) -> dict[Key, str]:
    found: dict[Key, str] = {}
    for section in re.split(r"^# ", text, flags=re.MULTILINE)[1:]:
        test, _, cases = section.partition("\n")
        for case, said in re.findall(r"^(\S.*)\n((?:    .*\n)+)", cases, re.MULTILINE):
            found[test, case] = re.sub(r"^    ", "", said, flags=re.MULTILINE).rstrip("\n")
    return found


def written(wording: dict[Key, str]) -> str:
    lines, last = [], ""
    for (test, case), said in sorted(wording.items(), key=lambda item: item[0][0]):
        if test != last:
            lines += ["", f"# {test}"]
            last = test
        lines += [case, *(f"    {line}" for line in said.split("\n"))]
    return "\n".join([*lines[1:], ""])


def compare(test: str, case: str, said: str) -> None:
    """Check that ``said`` is what ``wording.txt`` has, or enter it there."""
    case = case if len(case) <= 60 else f"{case[:50]}… ({len(case)} characters)"
    known = parse(FILE.read_text(encoding="utf-8"))
    if RENEW:
        known[test, case] = said
        FILE.write_text(written(known), encoding="utf-8")
    assert said == known.get((test, case)), f"{case}: not the words of {FILE.name}; WORDING=renew enters them there"
