"""The folder of a run, on disk.

    config.json        every setting
    task.py            with a task of the user: the text of its file, to read; it never runs from here
    metrics.jsonl      one row a line: {"event": "step" | "eval" | "restart" | "resume" | "warning", …}
    episodes.jsonl     a few episodes of every step and evaluation, readable
    journal.jsonl      what ``zorplex-rl replay`` needs (``learning/journal.py``)
    timeline.json      what every actor did when; opens in Perfetto or chrome://tracing
    curve.svg          the learning curve
    checkpoints/       step_000020/: trainer/learner.safetensors, controller.json, and a manifest with their checksums
    policy/            the trained policy; ``--policy RUN/policy`` loads it
    telemetry.json     with --telemetry, while the run goes on: where Monarch's tables are, and the state of the replicas
    log.txt            what is too long for the terminal: warnings, Monarch's reports, the traceback of what ended the run
    .lock              held by the process that writes here; the system lets go of it when that process ends, however it ends

A checkpoint is written beside its place, sealed with its manifest and renamed, so that one that
stands in its place is whole. It also says how long metrics and episodes were. A run that continues
from it cuts them back to that length, and so writes every row once.
"""

import contextlib
import json
import os
import shlex
import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, Self

from zorplex_rl.config import Config
from zorplex_rl.errors import CheckpointError, ConfigError
from zorplex_rl.manifest import expect_plain, seal, storing, sync, verify, write_whole
from zorplex_rl.task.episode import Episode
from zorplex_rl.task.own_task import EnvironmentSource
from zorplex_rl.timeline import Timeline

MetricsRow = dict[str, Any]
"""A line of ``metrics.jsonl``: ``event``, ``step``, ``seconds`` of training, and more."""
KEPT_CHECKPOINTS = 2
NUMBERS = ("seconds", "accuracy", "greedy_accuracy", "sampled_accuracy")
"""What a row may lack, and is a number where it is there."""
SCORED = ("outcome", "reward", "parts")
CONTROLLER = "controller.json"
TASK = "task.py"


class RunFolder:
    """One run's files. ``create`` and ``reopen`` raise ConfigError before anything is changed.
    Later, whatever writes raises StorageError when it cannot."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.timeline, self.curve, self.policy = path / "timeline.json", path / "curve.svg", path / "policy"
        self.telemetry, self.log = path / "telemetry.json", path / "log.txt"
        self._metrics, self._episodes = path / "metrics.jsonl", path / "episodes.jsonl"
        self.journal, self._checkpoints = path / "journal.jsonl", path / "checkpoints"
        self._lock: Any = None

    @classmethod
    def create(cls, path: Path, config: Config, bytes_needed: int = 0) -> Self:
        """Make a new folder for ``config``, on a disk with at least ``bytes_needed`` bytes free."""
        if path.exists():
            raise _taken(path)
        code = EnvironmentSource.of(config).code
        parent = next((p for p in path.absolute().parents if p.exists()), Path("/"))
        try:
            free = shutil.disk_usage(parent).free
            if free < bytes_needed:
                raise ConfigError(
                    f"there is no room for the run folder {str(path)!r}: {free / 1e6:.0f} MB are free and about {bytes_needed / 1e6:.0f} MB are "
                    f"needed; free some space or choose another --out"
                )
            made = [p for p in path.absolute().parents if not p.exists()]
            try:
                path.mkdir(parents=True)
            except FileExistsError as error:
                # Another process was faster.
                raise _taken(path) from error
            try:
                (path / "config.json").write_text(config.to_json())
                if code is not None:
                    (path / TASK).write_text(code)
            except OSError:
                for folder in (path, *made):
                    shutil.rmtree(folder, ignore_errors=True)
                raise
        except OSError as error:
            raise ConfigError(
                f"the run folder {str(path)!r} cannot be written ({error.strerror}); choose another --out"
            ) from error
        return cls(path)

    @classmethod
    def create_beside(cls, path: Path, config: Config, bytes_needed: int = 0) -> Self:
        """Make the folder ``path``, or ``path``-2, -3, … if taken: two runs may begin at once."""
        for number in count(1):
            with contextlib.suppress(FolderTaken):
                return cls.create(path.with_name(f"{path.name}-{number}") if number > 1 else path, config, bytes_needed)
        raise AssertionError

    @classmethod
    def reopen(cls, path: Path) -> tuple[Self, Config]:
        """Return an earlier run's folder, with a checkpoint at least, and its configuration."""
        config = read_config(path, "--resume")
        folder = cls(path)
        if folder.newest_checkpoint() is None:
            raise ConfigError(
                f"--resume {str(path)!r} has no checkpoint to continue from; start again with another --out"
            )
        if not os.access(path, os.W_OK):
            raise ConfigError(f"--resume {str(path)!r} cannot be written; change its permissions")
        return folder, config

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep others from writing here. Raises ConfigError at once if one does. Re-entrant."""
        from filelock import FileLock, Timeout

        self._lock = self._lock or FileLock(self.path / ".lock", timeout=0, thread_local=False)
        try:
            self._lock.acquire()
        except Timeout as error:
            raise ConfigError(
                f"the run in {str(self.path)!r} is under way in another process; wait for its end, or stop it first"
            ) from error
        except (OSError, NotImplementedError) as error:
            raise ConfigError(
                f"the run folder {str(self.path)!r} cannot be locked ({error}); choose another --out"
            ) from error
        try:
            yield
        finally:
            self._lock.release()

    @property
    def resume_command(self) -> str:
        """What to type to continue the run."""
        config = read_config(self.path, "the run")
        words = ["zorplex-rl train --resume", shlex.quote(str(self.path)), config.task_flags]
        return " ".join(filter(None, [*words, config.cluster.flags if config.cluster.is_elsewhere else ""]))

    @property
    def is_bare(self) -> bool:
        """Whether the run has ended before there was anything of it to keep."""
        return not self.metrics() and self.newest_checkpoint() is None

    def keep_log(self) -> Path:
        """Return where the log is after the run: beside the folder if that is bare, and removed."""
        if not self.is_bare:
            return self.log
        kept = self.path.with_name(f"{self.path.name}.{self.log.name}")
        with contextlib.suppress(OSError):
            shutil.copyfile(self.log, kept)
        return kept

    def remove(self) -> None:
        """Remove the folder and all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)

    @property
    def is_under_way(self) -> bool:
        """Whether a process is writing here at this moment."""
        from filelock import FileLock, Timeout

        try:
            with FileLock(self.path / ".lock", timeout=0):
                return False
        except Timeout:
            return True
        except (OSError, NotImplementedError):
            # A folder that cannot be written, for example one on a read-only disk.
            return False

    def save_config(self, config: Config) -> None:
        """Write the settings with which the run goes on, and the text of its task."""
        code = EnvironmentSource.of(config).code
        with self._writing():
            write_whole(self.path / "config.json", config.to_json())
            if code is not None:
                write_whole(self.path / TASK, code)

    def append_metrics(self, row: MetricsRow) -> None:
        with self._writing(), self._metrics.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def append_journal(self, row: dict[str, Any]) -> None:
        with self._writing(), self.journal.open("a") as file:
            file.write(json.dumps(row, separators=(",", ":")) + "\n")

    def metrics(self) -> list[MetricsRow]:
        """Return all rows so far. Others are left out: a crash cuts lines off or leaves zeros."""
        if not self._metrics.is_file():
            return []
        return [row for line in self._metrics.read_bytes().splitlines() if (row := _row(line)) is not None]

    def evaluations(self) -> list[MetricsRow]:
        """Return the rows of all evaluations so far, the one before training first."""
        return [row for row in self.metrics() if row["event"] == "eval"]

    def is_finished(self, steps: int) -> bool:
        """Whether a run of ``steps`` has ended here: the last evaluation is written last."""
        return any(row.get("final") and row["step"] >= steps for row in self.evaluations()) and self.policy.is_dir()

    def append_episode(self, step: int, episode: Episode, purpose: str) -> None:
        """Keep ``episode`` for people to read."""
        task = episode.task
        row = {"step": step, "purpose": purpose, "kind": task.kind, "question": task.question, "text": episode.text}
        row |= {"expected": task.answer} | {name: getattr(episode.score, name, None) for name in SCORED}
        row |= {"policy_version": episode.policy_version, "tokens": len(episode.token_ids), "finish": episode.finish}
        with self._writing(), self._episodes.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def save_curve(self, svg: str) -> None:
        with self._writing():
            self.curve.write_text(svg)

    def save_timeline(self, timeline: Timeline) -> None:
        with self._writing():
            timeline.save(self.timeline)

    def begin_policy(self) -> Path:
        """Return an empty folder to write the trained policy into."""
        return self._empty(self.policy.with_name(".policy"))

    def finish_policy(self, folder: Path) -> None:
        """Put the policy in ``folder`` in its place, where a shorter run's may stand."""
        with self._writing():
            shutil.rmtree(self.policy, ignore_errors=True)
            folder.rename(self.policy)

    def written(self) -> dict[str, int]:
        """Return the bytes of the files of rows, once on the disk, to which ``rewind`` cuts."""
        sizes = {}
        with self._writing():
            for file in (self._metrics, self._episodes):
                if file.exists():
                    sync(file)
                sizes[file.name] = file.stat().st_size if file.exists() else 0
        return sizes

    def rewind(self, checkpoint: Path, written: dict[str, int]) -> None:
        """Make the folder as at ``checkpoint``: later rows and newer checkpoints are gone."""
        with self._writing():
            for file in (self._metrics, self._episodes):
                if file.exists():
                    _cut(file, written[file.name])
            if self.journal.exists():
                # Its reader passes over what came after the checkpoint.
                _cut(self.journal, self.journal.stat().st_size)
            for newer in self.checkpoints():
                if step_of(newer) > step_of(checkpoint):
                    shutil.rmtree(newer)
            for unfinished in self._checkpoints.glob(".*"):
                shutil.rmtree(unfinished)

    def begin_checkpoint(self, step: int) -> Path:
        """Return an empty folder to write the checkpoint of ``step`` into."""
        return self._empty(self._checkpoints / f".step_{step:06d}")

    def finish_checkpoint(self, folder: Path, controller: dict[str, Any]) -> Path:
        """Add the controller's state to ``folder``, seal it, put it in place; keeps the last 2."""
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

    def abandon_checkpoint(self, folder: Path) -> None:
        """Remove what ``begin_checkpoint`` has begun: on a full disk it is in the way."""
        shutil.rmtree(folder, ignore_errors=True)

    def checkpoints(self) -> list[Path]:
        """Return all checkpoints, oldest first. Each was whole when it was put here."""
        found = (path for path in self._checkpoints.glob("step_*") if path.name.removeprefix("step_").isdecimal())
        return sorted(found, key=step_of)

    def newest_checkpoint(self) -> Path | None:
        return next(reversed(self.checkpoints()), None)

    def intact_checkpoint(self, step: int | None = None) -> Path:
        """Return the checkpoint of ``step``, or the newest, after reading it all. Raises
        ConfigError if it is broken or missing; the message offers another, if any."""
        found = {step_of(path): path for path in self.checkpoints()}
        if step is not None and step not in found:
            raise ConfigError(
                f"--from-checkpoint is {step}; the checkpoints in {str(self.path)!r} are of step {', '.join(map(str, found))}"
            )
        chosen = found[max(found) if step is None else step]
        if (error := _damage(chosen)) is None:
            return chosen
        raise ConfigError(self.what_else_than(chosen, error)) from error

    def what_else_than(self, checkpoint: Path, error: CheckpointError) -> str:
        """Return what ``error`` says of ``checkpoint``, and the newest whole other."""
        advice = "no other one is whole, so start again with another --out"
        others = (path for path in reversed(self.checkpoints()) if path != checkpoint and not _damage(path))
        if other := next(others, None):
            advice = f"use the one of step {step_of(other)} instead: {self.resume_command} --from-checkpoint {step_of(other)}"
        return f"the checkpoint of step {step_of(checkpoint)} in {str(self.path)!r} is broken: {error}; {advice}"

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


class FolderTaken(ConfigError):
    """A run folder that is to be made, and is there already."""


def expect_run(path: Path, called: str) -> None:
    """Raise ConfigError if ``path``, ``called`` so, is no folder of a run, or holds more than files."""
    if not (path / "config.json").is_file():
        raise ConfigError(
            f"{called} {str(path)!r} is not a run folder: it has no config.json; give one that `zorplex-rl train` has written"
        )
    expect_plain(path, called)


def read_config(path: Path, called: str) -> Config:
    """Return the configuration of the run in ``path``, ``called`` so. Raises ConfigError."""
    expect_run(path, called)
    try:
        return Config.from_dict(json.loads((path / "config.json").read_text()))
    except (OSError, ValueError, RecursionError) as error:
        reason = error if isinstance(error, ConfigError) else f"{type(error).__name__}, {error}"
        raise ConfigError(f"{called} {str(path)!r} has a config.json that cannot be read: {reason}") from error


def expect_task_named(run: Path, config: Config, task: str | None) -> None:
    """Raise ConfigError if ``run`` has a task of the user and ``task`` does not name its file again:
    no code runs out of a run's folder."""
    if config.is_own_task and not task:
        raise ConfigError(f"the run in {str(run)!r} has a task of its own; name the file again: {config.task_flags}")


def step_of(checkpoint: Path) -> int:
    """Return the step after which ``checkpoint`` was made.

    >>> step_of(Path("checkpoints/step_000020"))
    20
    """
    return int(checkpoint.name.removeprefix("step_"))


def _taken(path: Path) -> FolderTaken:
    resume = ""
    if RunFolder(path).newest_checkpoint():
        resume = f", or continue the run in it with --resume {shlex.quote(str(path))}"
    return FolderTaken(f"the run folder {str(path)!r} exists already; choose another --out{resume}")


def _row(line: bytes) -> dict[str, Any] | None:
    """Return the row that ``line`` holds, or None if it holds none."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_row = isinstance(row, dict) and isinstance(row.get("event"), str) and type(row.get("step")) is int
    is_row = is_row and isinstance(row.get("text", ""), str)
    return row if is_row and all(type(row.get(name, 0)) in (int, float) for name in NUMBERS) else None


def _damage(checkpoint: Path) -> CheckpointError | None:
    """Return what is wrong with ``checkpoint``, or None if it is whole."""
    try:
        verify(checkpoint)
    except CheckpointError as error:
        return error
    return None


def _cut(file: Path, size: int) -> None:
    """Cut ``file`` back to ``size`` bytes, and to whole lines if a crash has left less."""
    with file.open("r+b") as opened:
        kept = opened.read(min(size, file.stat().st_size))
        opened.truncate(kept.rfind(b"\n") + 1)
