"""The folder of a run, on disk.

    config.json        every setting
    metrics.jsonl      one row a line: {"event": "step" | "eval" | "restart" | "resume" | "warning", …}
    episodes.jsonl     a few episodes of every step and evaluation, readable
    journal.jsonl      what ``zorplex-rl replay`` needs (``run/journal.py``)
    timeline.json      what every actor did when; opens in Perfetto or chrome://tracing
    curve.svg          the learning curve
    checkpoints/       step_000020/: trainer/learner.safetensors, controller.json, a manifest of checksums
    policy/            the trained policy; ``--policy RUN/policy`` loads it
    task.py            the user's own task, as it was when the run last began
    task_data.txt      the data that this task read
    log.txt            warnings, Monarch's reports, the traceback of the error that ended the run
    .lock              held by the process that writes here

A checkpoint is written under another name, sealed with its manifest and renamed, so one that has its
name is complete. It holds the lengths of the files of metrics and episodes. A run that continues from it
cuts them back to these lengths, so every row is written once.
"""

import contextlib
import hashlib
import json
import os
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from zorplex_rl.config import Config
from zorplex_rl.errors import CheckpointError, ConfigError, StorageError
from zorplex_rl.run.timeline import Timeline
from zorplex_rl.task.episode import Episode
from zorplex_rl.task.own_task import EnvironmentSource

MetricsRow = dict[str, Any]
"""A line of ``metrics.jsonl``: ``event``, ``step``, ``seconds`` of training, and more."""
KEPT_CHECKPOINTS = 2
CONTROLLER = "controller.json"
MANIFEST = "manifest.json"


class RunFolder:
    """One run's files. ``create`` and ``reopen`` raise ConfigError; methods that write raise
    StorageError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.timeline = path / "timeline.json"
        self.curve = path / "curve.svg"
        self.policy = path / "policy"
        self.log = path / "log.txt"
        self.journal = path / "journal.jsonl"
        self._metrics = path / "metrics.jsonl"
        self._episodes = path / "episodes.jsonl"
        self._checkpoints = path / "checkpoints"
        self._lock: Any = None

    @classmethod
    def create(cls, path: Path, config: Config, bytes_needed: int = 0) -> Self:
        """Make a new folder for ``config``, on a disk with at least ``bytes_needed`` bytes free."""
        parent = next(folder for folder in path.absolute().parents if folder.exists())
        free = shutil.disk_usage(parent).free
        if free < bytes_needed:
            sizes = f"about {bytes_needed / 1e6:.0f} MB, and {free / 1e6:.0f} are free"
            raise ConfigError(f"a run in {str(path)!r} needs {sizes}; choose another --out")
        try:
            path.mkdir(parents=True)
            (path / "config.json").write_text(config.to_json())
        except OSError as error:
            problem = f"the run folder {str(path)!r} cannot be made ({error.strerror})"
            advice = "choose another --out, or continue the run in it with --resume"
            raise ConfigError(f"{problem}; {advice}") from error
        return cls(path)

    @classmethod
    def reopen(cls, path: Path) -> tuple[Self, Config]:
        """Return an earlier run's folder, which must have a checkpoint, and its configuration."""
        folder = cls(path)
        config = read_config(path)
        if not folder.checkpoints():
            problem = f"{str(path)!r} has no checkpoint to continue from"
            raise ConfigError(f"{problem}; start again with another --out")
        return folder, config

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing here. Raises ConfigError at once if one does. Re-entrant."""
        from filelock import FileLock, Timeout

        if self._lock is None:
            self._lock = FileLock(self.path / ".lock", timeout=0, thread_local=False)
        try:
            self._lock.acquire()
        except Timeout as error:
            problem = f"the run in {str(self.path)!r} is under way in another process"
            raise ConfigError(f"{problem}; stop it first") from error
        except (OSError, NotImplementedError) as error:
            problem = f"the run folder {str(self.path)!r} cannot be locked ({error})"
            raise ConfigError(f"{problem}; take a folder on a disk of this machine") from error
        try:
            yield
        finally:
            # The disk may be full.
            for unfinished in self._checkpoints.glob(".*"):
                shutil.rmtree(unfinished, ignore_errors=True)
            self._lock.release()

    @property
    def how_to_go_on(self) -> str:
        """What to do after a run has ended early, in words."""
        checkpoints = self.checkpoints()
        if not checkpoints:
            return "there is no checkpoint to continue from, so start again with another --out"
        config = read_config(self.path)
        words = ["zorplex-rl", "train", "--resume", str(self.path)]
        # A folder must not decide what code runs, and where: the user gives these flags again.
        if config.is_own_task:
            words += ["--task", config.task]
        if config.task_data:
            words += ["--task-data", config.task_data]
        if config.hosts.startswith("attach"):
            words += ["--hosts", config.hosts]
            if config.insecure:
                words.append("--insecure")
        step = step_of(checkpoints[-1])
        return f"continue from the checkpoint of step {step} with: {shlex.join(words)}"

    def save_config(self, config: Config) -> None:
        """Write the settings with which the run goes on. The user's own task and its data are kept beside
        them for people to read; nothing is run from here."""
        source = EnvironmentSource.of(config)
        texts = {
            "config.json": config.to_json(),
            "task.py": source.code,
            "task_data.txt": source.data,
        }
        with self._writing():
            for name, text in texts.items():
                if text:
                    write_whole(self.path / name, text)

    def append_metrics(self, row: MetricsRow) -> None:
        self._append(self._metrics, row)

    def append_journal(self, row: dict[str, Any]) -> None:
        self._append(self.journal, row)

    def append_episode(self, step: int, episode: Episode, purpose: str) -> None:
        """Keep ``episode`` for people to read."""
        task = episode.task
        score = episode.scored
        row = {
            "step": step,
            "purpose": purpose,
            "kind": task.kind,
            "question": task.question,
            "text": episode.text,
            "expected": task.answer,
            "outcome": score.outcome,
            "reward": score.reward,
            "parts": score.parts,
            "policy_version": episode.first_version,
            "tokens": len(episode.token_ids),
            "finish": episode.finish,
        }
        self._append(self._episodes, row)

    def _append(self, path: Path, row: dict[str, Any]) -> None:
        with self._writing(), path.open("a") as file:
            file.write(json.dumps(row, separators=(",", ":")) + "\n")

    def metrics(self) -> list[MetricsRow]:
        """Return all rows so far; a last line that a crash has cut off is left out."""
        return read_rows(self._metrics)

    def evaluations(self) -> list[MetricsRow]:
        """Return the rows of all evaluations so far, the one before training first."""
        return [row for row in self.metrics() if row["event"] == "eval"]

    def is_finished(self, steps: int) -> bool:
        """Return whether a run of ``steps`` has ended here. The last evaluation is the last row."""
        return any(row.get("final") and row["step"] >= steps for row in self.evaluations())

    def save_curve(self, svg: str) -> None:
        with self._writing():
            self.curve.write_text(svg)

    def save_timeline(self, timeline: Timeline) -> None:
        with self._writing():
            write_whole(self.timeline, json.dumps(timeline.to_chrome_trace()))

    def begin_policy(self) -> Path:
        """Return an empty folder for the trained policy."""
        return self._empty(self.policy.with_name(".policy"))

    def finish_policy(self, folder: Path) -> None:
        """Put the policy in ``folder`` in its place. Replaces that of a shorter run."""
        with self._writing():
            shutil.rmtree(self.policy, ignore_errors=True)
            folder.rename(self.policy)

    def written(self) -> dict[str, int]:
        """Return the lengths in bytes to which ``rewind`` cuts the files of rows, once these bytes are
        on the disk."""
        sizes = {}
        with self._writing():
            for file in (self._metrics, self._episodes):
                file.touch()
                sync(file)
                sizes[file.name] = file.stat().st_size
        return sizes

    def rewind(self, checkpoint: Path, written: dict[str, int]) -> None:
        """Restore the folder as it was at ``checkpoint``: remove later rows and newer checkpoints."""
        with self._writing():
            for file in (self._metrics, self._episodes, self.journal):
                if file.exists():
                    # The journal is not in ``written``: its reader skips what came after the checkpoint.
                    _cut(file, written.get(file.name, file.stat().st_size))
            for other in self.checkpoints():
                if step_of(other) > step_of(checkpoint):
                    shutil.rmtree(other)

    def begin_checkpoint(self, step: int) -> Path:
        """Return an empty folder to write the checkpoint of ``step`` into."""
        return self._empty(self._checkpoints / f".step_{step:06d}")

    def finish_checkpoint(self, folder: Path, controller: dict[str, Any]) -> Path:
        """Add the controller's state to ``folder``, seal it and put it in place. Removes all but the
        last two checkpoints."""
        place = folder.with_name(folder.name.lstrip("."))
        with self._writing():
            (folder / CONTROLLER).write_text(json.dumps(controller))
            seal(folder)
            shutil.rmtree(place, ignore_errors=True)
            folder.rename(place)
            sync(self._checkpoints)
            for old in self.checkpoints()[:-KEPT_CHECKPOINTS]:
                shutil.rmtree(old)
        return place

    def checkpoints(self) -> list[Path]:
        """Return all checkpoints, oldest first. Each was complete when it got its name."""
        return sorted(self._checkpoints.glob("step_*"), key=step_of)

    def newest_checkpoint(self) -> Path:
        """Return the newest checkpoint. Reads all of it, and raises CheckpointError if it is broken."""
        newest = self.checkpoints()[-1]
        try:
            verify(newest)
        except CheckpointError as error:
            problem = f"the checkpoint {str(newest)!r} is broken: {error}"
            raise CheckpointError(
                f"{problem}; remove it to continue from the one before"
            ) from error
        return newest

    @staticmethod
    def controller_state(checkpoint: Path) -> dict[str, Any]:
        """Return what the controller wrote into ``checkpoint``."""
        return json.loads((checkpoint / CONTROLLER).read_text())

    def _empty(self, folder: Path) -> Path:
        with self._writing():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        return folder

    def _writing(self) -> contextlib.AbstractContextManager[None]:
        return storing(f"the run folder {str(self.path)!r}")


def read_config(path: Path) -> Config:
    """Return the configuration of the run in ``path``. Raises ConfigError."""
    if not (path / "config.json").is_file():
        raise ConfigError(f"{str(path)!r} is not a run folder: it has no config.json")
    return Config.from_json((path / "config.json").read_text())


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a JSON-lines file; a last line that a crash has cut off is left out. Raises
    ConfigError if another line is broken: a run must not go on as if that row had never been."""
    lines = file.read_bytes().splitlines() if file.is_file() else []
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            if number < len(lines):
                advice = "bring the file back from a copy, or remove the line"
                raise ConfigError(
                    f"line {number} of {str(file)!r} is no longer what was written; {advice}"
                ) from error
    return rows


def step_of(checkpoint: Path) -> int:
    """Return the step after which ``checkpoint`` (``step_000020``) was made."""
    return int(checkpoint.name.removeprefix("step_"))


def seal(folder: Path) -> None:
    """Write ``folder``'s manifest, the checksum of each file. Returns when everything is on the disk."""
    checksums: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            checksums[path.relative_to(folder).as_posix()] = _checksum(path)
            sync(path)
    write_whole(folder / MANIFEST, json.dumps(checksums, indent=1) + "\n")


def verify(folder: Path) -> None:
    """Raise CheckpointError if a file is missing, cut or changed since ``seal``. Reads all files."""
    try:
        checksums = json.loads((folder / MANIFEST).read_text())
        changed = [name for name in checksums if _checksum(folder / name) != checksums[name]]
    except (OSError, ValueError) as error:
        raise CheckpointError(f"it cannot be read ({error})") from error
    if changed:
        raise CheckpointError(f"{changed[0]} is not what was written: its checksum differs")


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_whole(path: Path, text: str) -> None:
    """Write ``text`` to ``path``: readers, also after a crash, see the old file or the new."""
    unfinished = path.with_name(f".{path.name}.tmp")
    unfinished.write_text(text, encoding="utf-8")
    sync(unfinished)
    unfinished.replace(path)
    sync(path.parent)


@contextlib.contextmanager
def storing(what: str) -> Iterator[None]:
    """Turn an OSError of the body into a StorageError about ``what``."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{what} cannot be written any more ({error.strerror or error})"
        ) from error


def sync(path: Path) -> None:
    """Wait until the file or folder ``path`` is on the disk, whichever process has written it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _cut(path: Path, size: int) -> None:
    """Cut ``path`` back to ``size`` bytes, and to whole lines if a crash has left less."""
    with path.open("r+b") as file:
        kept = file.read(size)
        file.truncate(kept.rfind(b"\n") + 1)
