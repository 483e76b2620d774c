"""Refuse to this process what a hook of Python does not see: files that C++ or Rust opens, other
programs, TCP, signals to others. The kernel does it, and nobody can take it back.

Linux calls it Landlock (5.13 or later; TCP from 6.7, signals from 6.12). Elsewhere nothing happens.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

CREATE, ADD_RULE, RESTRICT = 444, 445, 446
"""Numbers of the system calls, the same on every kind of processor."""
NO_NEW_PRIVILEGES, VERSION, BENEATH = 38, 1, 1
EXECUTE, READ_FILE, READ_DIR, EVERYTHING = 1, 4, 8, 0x7FFF
"""Rights on files. The last are those of the third version, truncation included."""
TCP, SIGNALS = 0b11, 0b10
SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/dev/null", "/dev/urandom")
"""What a library that is loaded late needs."""


def confine(own: Path, readable: Iterable[Path], hidden: Path) -> bool:
    """From now on let this thread, and those that it starts, use files in ``own`` alone, and read those
    below ``readable`` and the system's libraries, except below ``hidden``. Returns whether the kernel does so."""
    if sys.platform != "linux":
        return False
    call = ctypes.CDLL(None, use_errno=True).syscall
    version = call(CREATE, None, 0, VERSION)
    if version < 3:
        return False
    # Names of files may be listed.
    handled = EVERYTHING & ~READ_DIR
    rules = struct.pack("QQQ", handled, TCP, SIGNALS)[: 8 if version < 4 else 16 if version < 6 else 24]
    ruleset = call(CREATE, rules, len(rules), 0)
    if ruleset < 0:
        return False
    allowed = [(own, handled & ~EXECUTE)]
    allowed += [(part, READ_FILE) for tree in [*readable, *map(Path, SYSTEM)] for part in without(tree, hidden)]
    for path, rights in allowed:
        file = os.open(path, os.O_PATH)
        call(ADD_RULE, ruleset, BENEATH, struct.pack("=Qi", rights, file), 0)
        os.close(file)
    prctl = ctypes.CDLL(None).prctl
    done = prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0 and call(RESTRICT, ruleset, 0) == 0
    os.close(ruleset)
    return done


def without(tree: Path, hidden: Path) -> Iterator[Path]:
    """Yield the parts of ``tree``, if it is there, that do not have ``hidden`` in them."""
    if not hidden.is_relative_to(tree):
        if tree.exists():
            yield tree
    elif tree != hidden:
        for part in tree.iterdir():
            yield from without(part, hidden)
