"""The folder of a run, on disk.

    config.json        every setting
    metrics.jsonl      one row a line: {"event": "step" | "eval" | "restart" | "tier", …}
    episodes.jsonl     a few episodes of every step and evaluation, readable
    timeline.json      what every actor did when; opens in Perfetto or chrome://tracing
    curve.svg          the learning curve
    checkpoints/       step_000020/: trainer state (torch.distributed.checkpoint) and controller.json
    policy/            the trained policy; ``--policy RUN/policy`` loads it

A checkpoint is written beside its place and renamed into it, so that one that exists is whole.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from zorplex_rl.config import Config
from zorplex_rl.errors import ConfigError
from zorplex_rl.task.episode import Episode

KEPT_CHECKPOINTS = 2
CONTROLLER = "controller.json"


class RunFolder:
    """One run's files. Make one with ``create`` or ``reopen``; both raise ConfigError before anything is changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.timeline, self.curve, self.policy = path / "timeline.json", path / "curve.svg", path / "policy"
        self._metrics, self._episodes = path / "metrics.jsonl", path / "episodes.jsonl"
        self._checkpoints = path / "checkpoints"

    @classmethod
    def create(cls, path: Path, config: Config, bytes_needed: int = 0) -> RunFolder:
        """A new folder for ``config``, on a disk with at least ``bytes_needed`` bytes free."""
        if path.exists():
            raise ConfigError(
                f"the run folder {str(path)!r} exists already; choose another --out, or continue it with --resume {path}"
            )
        parent = next((p for p in path.absolute().parents if p.exists()), Path("/"))
        try:
            free = shutil.disk_usage(parent).free
            if free < bytes_needed:
                raise ConfigError(
                    f"there is no room for the run folder {str(path)!r}: {free / 1e6:.0f} MB are free and about {bytes_needed / 1e6:.0f} MB are "
                    f"needed; free some space or choose another --out"
                )
            made = [p for p in (path, *path.absolute().parents) if not p.exists()]
            path.mkdir(parents=True)
            try:
                (path / "config.json").write_text(config.to_json())
            except OSError:
                for folder in made:
                    shutil.rmtree(folder, ignore_errors=True)
                raise
        except OSError as error:
            raise ConfigError(
                f"the run folder {str(path)!r} cannot be written ({error.strerror}); choose another --out"
            ) from error
        return cls(path)

    @classmethod
    def reopen(cls, path: Path) -> tuple[RunFolder, Config]:
        """The folder of an earlier run with at least one checkpoint, and its configuration."""
        if not (path / "config.json").is_file():
            raise ConfigError(f"--resume {str(path)!r} is not a run folder: it has no config.json")
        try:
            config = Config.from_dict(json.loads((path / "config.json").read_text()))
        except (OSError, ValueError, RecursionError) as error:
            reason = error if isinstance(error, ConfigError) else f"{type(error).__name__}, {error}"
            raise ConfigError(f"--resume {str(path)!r} has a config.json that cannot be read: {reason}") from error
        folder = cls(path)
        if folder.newest_checkpoint() is None:
            raise ConfigError(
                f"--resume {str(path)!r} has no checkpoint to continue from; start again with another --out"
            )
        if not os.access(path, os.W_OK):
            raise ConfigError(f"--resume {str(path)!r} cannot be written; change its permissions")
        return folder, config

    def append_metrics(self, row: dict[str, Any]) -> None:
        with self._metrics.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """All rows so far; a last line that a crash has cut off is left out."""
        if not self._metrics.exists():
            return []
        rows = []
        for line in self._metrics.read_text().splitlines():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return rows

    def forget_after(self, step: int) -> None:
        """Drop the rows of steps beyond ``step``: a run resumed from there writes them again."""
        kept = [
            row
            for row in self.metrics()
            if row.get("step", 0) <= step and not (row["event"] == "eval" and row.get("final"))
        ]
        temporary = self._metrics.with_suffix(".tmp")
        temporary.write_text("".join(json.dumps(row) + "\n" for row in kept))
        temporary.replace(self._metrics)

    def append_episode(self, step: int, episode: Episode, purpose: str) -> None:
        """Keep ``episode`` for people to read."""
        row = {
            "step": step,
            "purpose": purpose,
            "kind": episode.task.kind,
            "question": episode.task.question,
            "text": episode.text,
            "expected": episode.task.answer,
            "outcome": episode.score.outcome if episode.score else None,
            "reward": episode.score.reward if episode.score else None,
            "parts": episode.score.parts if episode.score else None,
            "policy_version": episode.policy_version,
            "tokens": len(episode.token_ids),
            "finish": episode.finish,
        }
        with self._episodes.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def begin_checkpoint(self, step: int) -> Path:
        """An empty folder to write the checkpoint of ``step`` into."""
        folder = self._checkpoints / f".step_{step:06d}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def finish_checkpoint(self, folder: Path, controller: dict[str, Any]) -> Path:
        """Add the controller's state to what was written into ``folder`` and put it in its place; older ones than the last two go."""
        (folder / CONTROLLER).write_text(json.dumps(controller))
        place = folder.with_name(folder.name.lstrip("."))
        shutil.rmtree(place, ignore_errors=True)
        folder.rename(place)
        for old in self.checkpoints()[:-KEPT_CHECKPOINTS]:
            shutil.rmtree(old)
        return place

    def checkpoints(self) -> list[Path]:
        """All whole checkpoints, oldest first."""
        return sorted(p for p in self._checkpoints.glob("step_*") if (p / CONTROLLER).is_file())

    def newest_checkpoint(self) -> Path | None:
        return (self.checkpoints() or [None])[-1]

    @staticmethod
    def controller_state(checkpoint: Path) -> dict[str, Any]:
        return json.loads((checkpoint / CONTROLLER).read_text())
