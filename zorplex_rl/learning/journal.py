"""The journal of a run: what it takes to execute it again in one process (``zorplex-rl replay``).

    journal.jsonl    {"event": "sitting", "step": 0, "steps": 40, "torch": "2.13.0", …}         the run begins, or goes on
                     {"event": "told", "generator": "generator_0", "before": 0, "events": […]}  what an engine was told (policy/rollout.py)
                     {"event": "batch", "step": 1, "groups": [0, 1], "tokens": "…", …}          what a step was trained on, in order

The seed of an episode follows from the run's seed, its group and its place in the group; its task
follows from the group's number. Evaluations and faults are in ``metrics.jsonl``. Tokens and
log-probabilities are there to be compared with: little-endian int32 and float32, base64. A batch of
64 episodes takes about 30 kB.

``read_journal`` trusts nothing in the file. A crash may have cut off its last line. Batches that
were trained on after the checkpoint from which a run went on are passed over.
"""

from __future__ import annotations

import base64
import json
import platform
import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from zorplex_rl.config import Config
from zorplex_rl.errors import ConfigError
from zorplex_rl.task.episode import Episode

if TYPE_CHECKING:
    from zorplex_rl.policy.rollout import Event

TURN = 3
"""A turn is its start, its end and its version."""
VALUES = {"submit": list, "answers": list, "version": int}


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
class Batch:
    """The groups of one step in order, who sampled each, and their episodes."""

    groups: list[int]
    generators: list[str]
    episodes: list[Written]


@dataclass(slots=True)
class Sitting:
    """A run from its start, or from a checkpoint, to where it ended or was continued.

    ``batches`` holds the batch of each step. ``told`` holds for each generator how many events came
    before, and events, as the answers with them arrived. ``machine`` is what the arithmetic may
    depend on.
    """

    steps: int
    machine: dict[str, str]
    batches: dict[int, Batch] = field(default_factory=dict)
    told: dict[str, list[tuple[int, list[Event]]]] = field(default_factory=dict)

    @property
    def histories(self) -> dict[str, list[Event]]:
        """The events of each generator, in order."""
        return {
            name: [event for _, events in sorted(told, key=lambda row: row[0]) for event in events]
            for name, told in self.told.items()
        }

    @property
    def lost(self) -> str | None:
        """The name of a generator of which events are missing, or None."""
        for name, told in self.told.items():
            reached = 0
            for before, events in sorted(told, key=lambda row: row[0]):
                if before != reached:
                    return name
                reached += len(events)
        return None


@dataclass(slots=True)
class Journal:
    """The sittings of a run, in order."""

    sittings: list[Sitting]

    @property
    def steps(self) -> int:
        """Number of steps."""
        return sum(len(sitting.batches) for sitting in self.sittings)

    @property
    def lost(self) -> str | None:
        """The name of a generator of which events are missing, or None."""
        return next((sitting.lost for sitting in self.sittings if sitting.lost), None)


def machine() -> dict[str, str]:
    """Return what the last bit of a result may depend on, as far as it is known without torch."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {"torch": version("torch"), "processor": models[0] if models else platform.machine(), "system": sys.platform}


def sitting_row(step: int, steps: int) -> dict[str, Any]:
    """Return the row that begins a sitting: the run of ``steps`` steps goes on after ``step``."""
    return {"event": "sitting", "step": step, "steps": steps, **machine()}


def history_row(generator: str, before: int, events: Sequence[Event]) -> dict[str, Any]:
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
        "turns": [list(chain(*((t.start, t.end, t.version) for t in e.turns))) for e in episodes],
        "first_versions": [episode.first_version for episode in episodes],
        "rewards": [episode.scored.reward for episode in episodes],
        "lengths": [len(episode.token_ids) for episode in episodes],
        "tokens": _encode("i", (e.token_ids for e in episodes)),
        "logprobs": _encode("f", (e.logprobs for e in episodes)),
    }


def read_journal(file: Path, config: Config, vocabulary: int) -> Journal:
    """Return the journal in ``file`` of a run of ``config``, whose policy has ``vocabulary``
    tokens. Raises ConfigError if there is none, or if it cannot be one."""
    run = repr(str(file.parent))
    if not file.is_file():
        raise ConfigError(
            f"the run in {run} has no {file.name}: an earlier version made it; train anew to replay a run"
        )
    sittings: list[Sitting] = []
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            # Cut off by a crash.
            continue
        try:
            match row["event"]:
                case "sitting":
                    _begin_sitting(sittings, row)
                case "told":
                    _add_events(sittings[-1], row)
                case "batch":
                    _add_batch(sittings[-1], row, config, vocabulary)
                case _:
                    _refuse(f"its event is {row['event']!r:.40}")
        except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            reason = str(error) if isinstance(error, Refused) else f"{type(error).__name__}, {error}"
            raise ConfigError(f"line {number} of the journal in {run} is none of a run: {reason:.200}") from error
    journal = Journal([sitting for sitting in sittings if sitting.batches])
    done = [step for sitting in journal.sittings for step in sitting.batches]
    if not done:
        raise ConfigError(f"the journal in {run} has no training step; let the run train first")
    if done != list(range(1, len(done) + 1)):
        raise ConfigError(
            f"the journal in {run} lacks steps: it has {done[0]} to {done[-1]}, {len(done)} in all; an earlier version "
            f"began the run, or the file was changed, so train anew to replay a run"
        )
    return journal


class Refused(ValueError):
    """A row that cannot be. The message says why."""


def _refuse(why: str) -> NoReturn:
    raise Refused(why)


def _begin_sitting(sittings: list[Sitting], row: dict[str, Any]) -> None:
    step = _count(row["step"])
    for sitting in sittings:
        sitting.batches = {done: batch for done, batch in sitting.batches.items() if done <= step}
    sittings.append(Sitting(_count(row["steps"]), {name: str(row.get(name))[:40] for name in machine()}))


def _add_events(sitting: Sitting, row: dict[str, Any]) -> None:
    events: list[Event] = []
    for steps, what, value in row["events"]:
        if type(value) is not VALUES.get(what):
            _refuse(f"an event is {what!r:.40} {value!r:.40}")
        events.append((_count(steps), what, [*map(_count, value)] if isinstance(value, list) else _count(value)))
    sitting.told.setdefault(_text(row["generator"]), []).append((_count(row["before"]), events))


def _add_batch(sitting: Sitting, row: dict[str, Any], config: Config, vocabulary: int) -> None:
    step, groups, size = _count(row["step"]), [*map(_count, row["groups"])], config.group_size
    if len(groups) != config.prompts_per_step or len({*groups}) != len(groups):
        _refuse(f"{len(groups)} groups, not {config.prompts_per_step} different ones")
    lengths = [*map(_count, row["lengths"])]
    columns = [row["turns"], row["first_versions"], row["rewards"], lengths]
    if {len(column) for column in columns} != {len(groups) * size} or len(row["generators"]) != len(groups):
        _refuse(f"it has not {size} episodes of each of {len(groups)} groups")
    if not all(1 <= length <= config.max_tokens for length in lengths):
        _refuse(f"an episode has {max(lengths)} tokens, and --max-tokens was {config.max_tokens}")
    tokens, logprobs = _decode("i", row["tokens"], lengths), _decode("f", row["logprobs"], lengths)
    episodes = []
    for ids, logp, turns, first, reward, length in zip(
        tokens, logprobs, row["turns"], row["first_versions"], row["rewards"], lengths, strict=True
    ):
        if not all(0 <= token < vocabulary for token in ids):
            _refuse(f"a token is not one of the policy's {vocabulary}")
        flat = [*map(_count, turns)]
        parts = [(flat[i], flat[i + 1], flat[i + 2]) for i in range(0, len(flat), TURN)]
        bounds = [bound for start, end, _ in parts for bound in (start, end)]
        if not parts or bounds != sorted(bounds) or bounds[-1] > length or _count(first) > step:
            _refuse("the turns of an episode are not within its tokens")
        if type(reward) not in (int, float) or not abs(reward) < 1e30:
            _refuse(f"a reward is {reward!r:.40}")
        episodes.append(Written(ids, logp, parts, first, float(reward)))
    sitting.batches[step] = Batch(groups, [*map(_text, row["generators"])], episodes)


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**53:
        _refuse(f"{value!r:.40} is no count")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 100:
        _refuse(f"{value!r:.40} is no name")
    return value


def _encode(kind: str, rows: Iterator[Sequence[float]]) -> str:
    numbers: array[Any] = array(kind, chain(*rows))
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode()


def _decode(kind: str, text: str, lengths: Sequence[int]) -> list[list[Any]]:
    """Return the numbers in ``text`` as rows of ``lengths``."""
    numbers: array[Any] = array(kind)
    numbers.frombytes(base64.b64decode(text, validate=True))
    if sys.byteorder == "big":
        numbers.byteswap()
    if len(numbers) != sum(lengths):
        _refuse(f"{len(numbers)} numbers for {sum(lengths)} tokens")
    flat = iter(numbers)
    return [[next(flat) for _ in range(length)] for length in lengths]
