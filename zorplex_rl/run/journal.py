"""The journal of a run: what it takes to execute it again in one process (``zorplex-rl replay``).

    {"event": "session", "step": 0, "steps": 40, "torch": "2.13.0", …}     the run begins or is continued
    {"event": "engine_events", "generator": "generator_0", "events": […]}  policy/requests.py: EngineEvent
    {"event": "batch", "step": 1, "groups": [0, 1], "tokens": "…", …}      the groups of a step, in order

Each is a row of ``journal.jsonl``. The seed of an episode follows from the run's seed, its group and its
place in the group; its task follows from the group's number. Evaluations and faults are in
``metrics.jsonl``. Tokens and log-probabilities are kept for comparison: little-endian int32 and float32,
base64.
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
"""As in ``policy/requests.py``: (steps since the event before, what happened, its value)."""


@dataclass(slots=True)
class RecordedEpisode:
    """The part of an ``Episode`` that the journal keeps."""

    token_ids: list[int]
    logprobs: list[float]
    turns: list[tuple[int, int, int]]
    """(start, end, version) of each turn."""
    first_version: int
    reward: float


@dataclass(slots=True)
class RecordedBatch:
    """What one step was trained on."""

    groups: list[int]
    """The numbers of the groups, in order."""
    generators: list[str]
    """The generator that sampled each group."""
    episodes: list[RecordedEpisode]
    """The episodes of all groups, in order."""


@dataclass(slots=True)
class Session:
    """A run from its start or a checkpoint to where it ended or was continued."""

    steps: int
    """How many steps the whole run was to have."""
    machine: dict[str, str]
    """What the arithmetic may depend on: see ``machine()``."""
    batches: dict[int, RecordedBatch] = field(default_factory=dict)
    """The batch of each step."""
    engine_events: dict[str, dict[int, list[EngineEvent]]] = field(default_factory=dict)
    """The events of each generator, by the number of events before them."""

    @property
    def histories(self) -> dict[str, list[EngineEvent]]:
        """The events of each generator in order. Their rows may be in another order, because one
        answer of a generator may overtake another."""
        histories = {}
        for generator, events in self.engine_events.items():
            histories[generator] = list(chain(*(events[before] for before in sorted(events))))
        return histories


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


def session_row(step: int, steps: int) -> dict[str, Any]:
    """Return the row that begins a session: a run of ``steps`` steps, continued after ``step``."""
    return {"event": "session", "step": step, "steps": steps, **machine()}


def engine_events_row(generator: str, before: int, events: Sequence[EngineEvent]) -> dict[str, Any]:
    """Return the row of ``events`` of a generator's engine, which follow ``before`` earlier ones."""
    return {"event": "engine_events", "generator": generator, "before": before, "events": events}


def batch_row(step: int, groups: Sequence[tuple[int, Sequence[Episode]]]) -> dict[str, Any]:
    """Return the row of the (number, group) that ``step`` was trained on."""
    episodes = list(chain.from_iterable(group for _, group in groups))
    turns = []
    for episode in episodes:
        turns.append([(turn.start, turn.end, turn.version) for turn in episode.turns])
    return {
        "event": "batch",
        "step": step,
        "groups": [number for number, _ in groups],
        "generators": [group[0].generator for _, group in groups],
        "turns": turns,
        "first_versions": [episode.first_version for episode in episodes],
        "rewards": [episode.scored.reward for episode in episodes],
        "lengths": [len(episode.token_ids) for episode in episodes],
        "tokens": _encode("i", (e.token_ids for e in episodes)),
        "logprobs": _encode("f", (e.logprobs for e in episodes)),
    }


def read_journal(file: Path) -> list[Session]:
    """Return the sessions of the run whose journal is ``file``. Where a session continues from a
    checkpoint, later batches of the sessions before are left out. Raises ConfigError if there is no
    step."""
    sessions: list[Session] = []
    for row in read_rows(file):
        match row["event"]:
            case "session":
                for session in sessions:
                    _forget_batches(session, after=row["step"])
                sessions.append(Session(row["steps"], {name: row[name] for name in machine()}))
            case "engine_events":
                parts = sessions[-1].engine_events.setdefault(row["generator"], {})
                parts[row["before"]] = [tuple(event) for event in row["events"]]
            case "batch":
                sessions[-1].batches[row["step"]] = _batch(row)
    trained = [session for session in sessions if session.batches]
    if not trained:
        raise ConfigError(
            f"the journal in {str(file.parent)!r} has no training step; let the run train first"
        )
    return trained


def _forget_batches(session: Session, after: int) -> None:
    session.batches = {step: batch for step, batch in session.batches.items() if step <= after}


def _batch(row: dict[str, Any]) -> RecordedBatch:
    episodes = map(
        RecordedEpisode,
        _decode("i", row["tokens"], row["lengths"]),
        _decode("f", row["logprobs"], row["lengths"]),
        [list(map(tuple, turns)) for turns in row["turns"]],
        row["first_versions"],
        row["rewards"],
    )
    return RecordedBatch(row["groups"], row["generators"], list(episodes))


def _encode(kind: str, rows: Iterable[Sequence[float]]) -> str:
    """Return the numbers of ``rows`` as base64 text."""
    return base64.b64encode(array(kind, chain(*rows)).tobytes()).decode()


def _decode(kind: str, text: str, lengths: Sequence[int]) -> list[list[Any]]:
    """Return the numbers in ``text`` as rows of ``lengths``."""
    rest = iter(array(kind, base64.b64decode(text)))
    return [list(islice(rest, length)) for length in lengths]
