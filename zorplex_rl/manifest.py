"""A folder of files that is whole, or known not to be.

    files ──► seal ──► manifest.json {"controller.json": {"bytes": 812, "sha256": "…"}, …}, and all of it on the disk
    files, manifest.json ──► verify ──► nothing, or CheckpointError about the first file that is not what was written

It is written last: a folder without one is not whole. Knows nothing of torch or contents.
"""

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from zorplex_rl.errors import CheckpointError, ConfigError, StorageError

MANIFEST = "manifest.json"


def seal(folder: Path) -> None:
    """Write ``folder``'s manifest. Returns when files and lists are on the disk. Raises OSError."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / MANIFEST)
    entries = {path.relative_to(folder).as_posix(): _describe(path) for path in files}
    for path in files:
        sync(path)
    write_whole(folder / MANIFEST, json.dumps(entries, indent=1) + "\n")
    for path in (*(path for path in folder.rglob("*") if path.is_dir()), folder):
        sync(path)


def verify(folder: Path) -> None:
    """Raise CheckpointError if a file is missing, cut or changed since ``seal``. Reads all."""
    try:
        entries: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
        if not entries:
            raise CheckpointError(f"its {MANIFEST} names no file")
        for name, entry in entries.items():
            path = folder / name
            if Path(name).is_absolute() or ".." in Path(name).parts or not name.isprintable():
                raise CheckpointError(f"its {MANIFEST} names {name!r:.60}, which is not in its folder")
            if not path.is_file():
                raise CheckpointError(f"it lacks {name}")
            if (size := path.stat().st_size) != entry["bytes"]:
                raise CheckpointError(f"{name} has {size:,} of {entry['bytes']:,} bytes")
            if _describe(path) != entry:
                raise CheckpointError(f"{name} is not what was written: its checksum differs")
    except FileNotFoundError as error:
        raise CheckpointError(f"it lacks {MANIFEST}, which is written last") from error
    except OSError as error:
        raise CheckpointError(f"it cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"its {MANIFEST} is damaged") from error


def write_whole(path: Path, text: str) -> None:
    """Write ``text`` to ``path``: readers, also after a crash, see the old file or the new."""
    unfinished = path.with_name(f".{path.name}.tmp")
    try:
        unfinished.write_text(text)
        sync(unfinished)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    sync(path.parent)


@contextlib.contextmanager
def storing(what: str) -> Iterator[None]:
    """Raise StorageError, about ``what``, for any OSError inside."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{what} cannot be written any more ({error.strerror or error})") from error


def sync(path: Path) -> None:
    """Return when the file or folder ``path`` is on the disk, whichever process has written it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _describe(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        checksum = hashlib.file_digest(file, "sha256").hexdigest()
        return {"bytes": file.tell(), "sha256": checksum}


def expect_plain(folder: Path, called: str) -> None:
    """Raise ConfigError if ``folder`` (``called`` in errors) holds more than files and folders."""
    for place, folders, files in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *files)):
            try:
                kind = stat.S_IFMT(path.lstat().st_mode)
            except FileNotFoundError:
                # The run goes on, and what it has written gets its name when it is whole.
                continue
            if kind not in (stat.S_IFREG, stat.S_IFDIR):
                what = "a link" if kind == stat.S_IFLNK else "neither a file nor a folder"
                raise ConfigError(
                    f"{called} {str(folder)!r} holds {str(path.relative_to(folder))!r}, which is {what}; "
                    f"a run's folder has files and folders alone: replace it, or use another run"
                )
