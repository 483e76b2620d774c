"""One machine for a whole class: each learner gets a folder, a port and a token of their own.

    .venv/bin/python workshop/classroom.py start /srv/class ada ben kim --host 0.0.0.0
    .venv/bin/python workshop/classroom.py stop /srv/class

    /srv/class/ada/notebooks/      their copies, which nobody overwrites
    /srv/class/ada/zorplex_rl      a link to the course's; workshop, too
    /srv/class/classroom.json      who has which port, token and process

``start`` prints an address for each learner. It can be given again: who has a folder keeps it, and
whose server has ended gets a new one. All run as one user, so they can read each other's files, and
whoever has a token runs programs as that user. Tokens travel unencrypted: use a network that you
trust, or ``ssh -L``.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil  # marimo needs it, too

ROOT = Path(__file__).resolve().parents[1]
COPIED, LINKED = (
    ("notebooks", "examples", "pyproject.toml"),
    ("zorplex_rl", "workshop", "benchmarks"),
)
STARTED_WITHIN_S = 60.0


def make_folder(folder: Path) -> None:
    """Put the course into a learner's folder: copies of what they change, links to the rest. What
    is there already stays."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        if not (folder / name).exists():
            copy = shutil.copy2 if (ROOT / name).is_file() else shutil.copytree
            copy(ROOT / name, folder / name)
    for name in LINKED:
        if not (folder / name).exists():
            (folder / name).symlink_to(ROOT / name)


def start(
    place: Path, learners: Sequence[str], host: str, first_port: int
) -> dict[str, dict[str, Any]]:
    """Start marimo for each learner who has none. Returns everybody's port, token and process.

    Raises RuntimeError if a port is taken, or a server does not answer.
    """
    place.mkdir(parents=True, exist_ok=True)
    book = read(place)
    for learner in learners:
        if learner in book and runs(book[learner]):
            continue
        port = (
            book[learner]["port"]
            if learner in book
            else max([first_port - 1, *(one["port"] for one in book.values())]) + 1
        )
        if answers(host, port):
            raise RuntimeError(
                f"port {port} for {learner} is in use by another program; choose others with --port"
            )
        make_folder(place / learner)
        token = place / learner / ".token"
        token.write_text(secrets.token_urlsafe(16))
        token.chmod(0o600)
        command = [
            sys.executable,
            "-P",
            "-m",
            "marimo",
            "edit",
            "notebooks",
            "--headless",
            "--skip-update-check",
        ]
        command += ["--host", host, "--port", str(port), "--token-password-file", str(token)]
        with (place / learner / "server.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd=place / learner,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        book[learner] = {
            "port": port,
            "token": token.read_text(),
            "pid": process.pid,
            "born": born(process.pid),
        }
        write(place, book)
    end = time.monotonic() + STARTED_WITHIN_S
    for learner in learners:
        while not answers(host, book[learner]["port"]):
            if time.monotonic() > end or not runs(book[learner]):
                raise RuntimeError(
                    f"the server of {learner} does not answer; see {place / learner / 'server.log'}"
                )
            time.sleep(0.1)
    return book


def stop(place: Path) -> list[str]:
    """End every learner's server and whatever it has started. Returns whose. Folders stay."""
    book = read(place)
    ended = [learner for learner, one in book.items() if runs(one)]
    for sent in (signal.SIGTERM, signal.SIGKILL):
        for learner in ended:
            with suppress(ProcessLookupError):
                os.killpg(book[learner]["pid"], sent)
        end = time.monotonic() + 5.0
        while any(runs(book[learner]) for learner in ended) and time.monotonic() < end:
            time.sleep(0.1)
    return ended


def read(place: Path) -> dict[str, dict[str, Any]]:
    """Return who has which port, token and process; nothing where no class was started."""
    file = place / "classroom.json"
    return json.loads(file.read_text()) if file.exists() else {}


def write(place: Path, book: dict[str, dict[str, Any]]) -> None:
    """Write who has what, readable for this user alone."""
    file = place / "classroom.json"
    file.touch(mode=0o600)
    file.write_text(json.dumps(book, indent=1))


def answers(host: str, port: int) -> bool:
    """Return True if somebody accepts connections at ``port``."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1" if host == "0.0.0.0" else host, port)) == 0


def runs(one: dict[str, Any]) -> bool:
    """Return True if a learner's server runs: the same process, and not another with its number."""
    return one["born"] is not None and born(one["pid"]) == one["born"]


def born(pid: int) -> float | None:
    """Return when a process began, in seconds since 1970; None if there is none, or it has ended."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Start or stop a class. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="workshop/classroom.py", description="A notebook server for each learner."
    )
    actions = parser.add_subparsers(dest="action", required=True)
    starting = actions.add_parser("start", help="start a server for each learner who has none")
    starting.add_argument("place", type=Path, help="the folder of the class")
    starting.add_argument("learners", nargs="+", help="their names, which name their folders")
    starting.add_argument(
        "--host", default="127.0.0.1", help="where to listen; 0.0.0.0 lets other machines in"
    )
    starting.add_argument(
        "--port", type=int, default=9000, help="of the first learner; the others follow: 9000"
    )
    starting.add_argument(
        "--stay", action="store_true", help="wait for Ctrl-C, then stop all: for a container"
    )
    actions.add_parser("stop", help="stop all servers; folders stay").add_argument(
        "place", type=Path
    )
    asked = parser.parse_args(arguments)
    place = asked.place.resolve()
    if asked.action == "stop":
        print("stopped:", ", ".join(stop(place)) or "nobody's server was running")
        return 0
    if wrong := [
        name for name in asked.learners if not name.replace("-", "").replace("_", "").isalnum()
    ]:
        parser.error(f"{wrong[0]!r} cannot name a folder; expected letters, digits, - and _")
    try:
        book = start(place, asked.learners, asked.host, asked.port)
    except RuntimeError as error:
        parser.error(str(error))
    shown = socket.gethostname() if asked.host == "0.0.0.0" else asked.host
    for learner in asked.learners:
        print(
            f"{learner}: http://{shown}:{book[learner]['port']}/?access_token={book[learner]['token']}",
            flush=True,
        )
    if asked.stay:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with suppress(KeyboardInterrupt):
            signal.pause()
        stop(place)
    return 0


if __name__ == "__main__":
    sys.exit(main())
