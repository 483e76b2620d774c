"""The journal of a run: what it takes to execute it again in one process (``zorplex-rl replay``).

    journal.jsonl    {"event": "sitting", "step": 0, "steps": 40, "torch": "2.13.0", …}         the run begins, or goes on
                     {"event": "told", "generator": "generator_0", "before": 0, "events": […]}  what an engine was told (policy/rollout.py)
                     {"event": "batch", "step": 1, "groups": [0, 1], "tokens": "…", …}          what a step was trained on, in order

The seed of an episode follows from the run's seed, its group and its place in the group; its task
follows from the group's number. Evaluations and faults are in ``metrics.jsonl``. Tokens and
log-probabilities are there to be compared with: little-endian int32 and float32, base64.
"""

import base64
import platform
import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import chain, islice
from pathlib import Path
from typing import Any

from zorplex_rl.errors import ConfigError
from zorplex_rl.run.folder import read_rows
from zorplex_rl.task.episode import Episode

EngineEvent = tuple[int | None, str, Any]
"""What became of an engine, and when: policy/requests.py."""


@dataclass(slots=True)
class Written:
    """What is written of one episode; see ``Episode``. ``turns`` has (start, end, version) of
    each."""

    token_ids: list[int]
    logprobs: list[float]
    turns: list[tuple[int, int, int]]
    first_version: int
    reward: float

    @property
    def sampled(self) -> list[bool]:
        """True where the policy chose the token."""
        chosen = [False] * len(self.token_ids)
        for start, end, _ in self.turns:
            chosen[start:end] = [True] * (end - start)
        return chosen


@dataclass(slots=True)
class WrittenBatch:
    """The groups of one step in order, who sampled each, and their episodes."""

    groups: list[int]
    generators: list[str]
    episodes: list[Written]


@dataclass(slots=True)
class Sitting:
    """A run from its start, or from a checkpoint, to where it ended or was continued.

    ``batches`` holds the batch of each step, and ``told`` the events of each generator by the
    number of those before. ``machine`` is what the arithmetic may depend on.
    """

    steps: int
    machine: dict[str, str]
    batches: dict[int, WrittenBatch] = field(default_factory=dict)
    told: dict[str, dict[int, list[EngineEvent]]] = field(default_factory=dict)

    @property
    def histories(self) -> dict[str, list[EngineEvent]]:
        """The events of each generator, in order: answers that bring them may overtake each other."""
        return {
            name: [event for before in sorted(parts) for event in parts[before]]
            for name, parts in self.told.items()
        }


def machine() -> dict[str, str]:
    """Return what the last bit of a result may depend on, as far as it is known without torch."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "torch": version("torch"),
        "processor": models[0] if models else platform.machine(),
        "system": sys.platform,
    }


def sitting_row(step: int, steps: int) -> dict[str, Any]:
    """Return the row that begins a sitting: the run of ``steps`` steps goes on after ``step``."""
    return {"event": "sitting", "step": step, "steps": steps, **machine()}


def history_row(generator: str, before: int, events: Sequence[EngineEvent]) -> dict[str, Any]:
    """Return the row of ``events`` that the engine of ``generator`` was told, after ``before``
    earlier ones."""
    return {"event": "told", "generator": generator, "before": before, "events": events}


def batch_row(step: int, groups: Sequence[tuple[int, Sequence[Episode]]]) -> dict[str, Any]:
    """Return the row of the (number, group) that ``step`` was trained on."""
    episodes = [episode for _, group in groups for episode in group]
    return {
        "event": "batch",
        "step": step,
        "groups": [number for number, _ in groups],
        "generators": [group[0].generator for _, group in groups],
        "turns": [[(turn.start, turn.end, turn.version) for turn in e.turns] for e in episodes],
        "first_versions": [episode.first_version for episode in episodes],
        "rewards": [episode.scored.reward for episode in episodes],
        "lengths": [len(episode.token_ids) for episode in episodes],
        "tokens": _encode("i", (e.token_ids for e in episodes)),
        "logprobs": _encode("f", (e.logprobs for e in episodes)),
    }


def read_journal(file: Path) -> list[Sitting]:
    """Return the sittings of the run whose journal is ``file``. Batches that were trained on after
    the checkpoint from which it went on are left out. Raises ConfigError if there is no step."""
    sittings: list[Sitting] = []
    for row in read_rows(file):
        match row["event"]:
            case "sitting":
                for sitting in sittings:
                    sitting.batches = {
                        step: b for step, b in sitting.batches.items() if step <= row["step"]
                    }
                sittings.append(Sitting(row["steps"], {name: row[name] for name in machine()}))
            case "told":
                parts = sittings[-1].told.setdefault(row["generator"], {})
                parts[row["before"]] = [tuple(event) for event in row["events"]]
            case "batch":
                sittings[-1].batches[row["step"]] = _batch(row)
    trained = [sitting for sitting in sittings if sitting.batches]
    if not trained:
        raise ConfigError(
            f"the journal in {str(file.parent)!r} has no training step; let the run train first"
        )
    return trained


def _batch(row: dict[str, Any]) -> WrittenBatch:
    columns = (
        _decode("i", row["tokens"], row["lengths"]),
        _decode("f", row["logprobs"], row["lengths"]),
    )
    turns = [
        [(start, end, version) for start, end, version in of_episode] for of_episode in row["turns"]
    ]
    episodes = map(Written, *columns, turns, row["first_versions"], row["rewards"])
    return WrittenBatch(row["groups"], row["generators"], list(episodes))


def _encode(kind: str, rows: Iterable[Sequence[float]]) -> str:
    return base64.b64encode(array(kind, chain(*rows)).tobytes()).decode()


def _decode(kind: str, text: str, lengths: Sequence[int]) -> list[list[Any]]:
    """Return the numbers in ``text`` as rows of ``lengths``."""
    rest = iter(array(kind, base64.b64decode(text)))
    return [list(islice(rest, length)) for length in lengths]
