"""The bookkeeping of a run: rows of metrics, evaluations, checkpoints, the curriculum, and the wish to stop.

The loops stay short because everything that does not move data is here.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

from zorplex_rl.analysis.timeline import Span, Timeline
from zorplex_rl.config import Config
from zorplex_rl.run_folder import RunFolder
from zorplex_rl.services.replica_set import Restart
from zorplex_rl.task.curriculum import Tier
from zorplex_rl.task.episode import Episode
from zorplex_rl.task.rewards import OUTCOMES
from zorplex_rl.training.crew import Batch, Crew
from zorplex_rl.training.generators import Worker

Row = dict[str, Any]
SECONDS_BETWEEN_SPANS = 1.0


class StopRequested(Exception):
    """The run was asked to stop, and has written a checkpoint."""


class Journal:
    """What a run has done so far. ``show`` is given every row, ``say`` every remark for people."""

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        ladder: tuple[Tier, ...],
        show: Callable[[Row], None],
        say: Callable[[str], None],
    ) -> None:
        self.config, self.folder, self.ladder = config, folder, ladder
        self.step = self.episodes = self.tier = 0
        self.timeline = Timeline()
        self.stop_requested = False
        self.under_way = False
        """Whether a step is to come, after which a checkpoint is written and the run can stop."""
        self._show, self._say = show, say
        self._seconds_before = 0.0
        self._began: float | None = None
        self._last_step = self._last_drain = self._opened = time.monotonic()
        self._next_evaluation = 0
        self._busy: dict[str, float] = {}
        self._books = asyncio.Lock()
        """Held while an evaluation and what follows from it are written down, and while a checkpoint's state is gathered."""

    @property
    def seconds(self) -> float:
        """Seconds of training so far, earlier sittings included; the clock stands still until ``begin``."""
        return self._seconds_before + (time.monotonic() - self._began if self._began is not None else 0.0)

    def begin(self) -> None:
        """Start the clock of training."""
        self._began = self._last_step = time.monotonic()
        self.under_way = True

    async def after_step(self, crew: Crew, batch: Batch, metrics: Row) -> None:
        """Write down a training step; checkpoint if it is time. Raises StopRequested after the checkpoint if asked to."""
        now = time.monotonic()
        self.step += 1
        self.episodes += metrics["episodes"]
        done = self.step >= self.config.steps
        to_be_saved = done or self.stop_requested or self.step % self.config.checkpoint_every == 0
        await self._drain_spans(crew, at_once=to_be_saved)
        row = {"event": "step", "step": self.step, "seconds": self.seconds, **metrics, "episodes": self.episodes}
        row |= {"episodes_per_second": metrics["episodes"] / max(now - self._last_step, 1e-9), "busy": self._busy}
        self._last_step = now
        self._write(row)
        self.folder.append_episode(self.step, batch.episodes[0], "train")
        if to_be_saved or self.stop_requested:
            await self.checkpoint(crew)
        if self.stop_requested:
            raise StopRequested

    def evaluation_is_due(self, version: int) -> bool:
        return self._next_evaluation <= version < self.config.steps

    async def evaluate(self, crew: Crew, worker: Worker, final: bool = False) -> Row:
        """Measure held-out accuracy with the weights that ``worker`` has, write it down, and move up the curriculum if it is high enough.

        The row's ``seconds`` are those at which the evaluation began, so those at which these weights were there.
        """
        began, seconds = time.monotonic(), self.seconds
        greedy, sampled = await crew.evaluate(worker)
        version = worker.version
        row = {
            "event": "eval",
            "step": version,
            "seconds": seconds,
            "greedy_accuracy": accuracy(greedy),
            "sampled_accuracy": accuracy(sampled),
            "kinds": {
                kind: {"greedy": accuracy(_of_kind(greedy, kind)), "sampled": accuracy(_of_kind(sampled, kind))}
                for kind in sorted({e.task.kind for e in greedy})
            },
            "outcomes": {"greedy": outcome_shares(greedy), "sampled": outcome_shares(sampled)},
            "tier": list(self.ladder[self.tier]),
            "final": final,
            "evaluation_seconds": time.monotonic() - began,
        }
        async with self._books:
            self._next_evaluation = version - version % self.config.eval_every + self.config.eval_every
            self._write(row)
            for episode in sampled[:2]:
                self.folder.append_episode(version, episode, "eval")
                self._say(readable(episode))
            if not final:
                await self._climb(crew, row["greedy_accuracy"], version)
        await asyncio.to_thread(self.draw)
        return row

    def restarted(self, role: str, restart: Restart) -> None:
        """Write down that a process was replaced."""
        row = {"event": "restart", "step": self.step, "seconds": self.seconds, "role": role, "died": restart.died}
        row |= {"took_over": restart.took_over, "recovery_seconds": restart.seconds, "reason": restart.reason}
        self._write(row)
        now = time.monotonic()
        self.timeline.add([Span(restart.took_over, "restart", now - restart.seconds, now, {"died": restart.died})])
        self._say(f"{restart.died} died; {restart.took_over} took over after {restart.seconds:.1f} s")

    async def checkpoint(self, crew: Crew) -> None:
        """Save everything from which the run can be continued."""
        folder = self.folder.begin_checkpoint(self.step)
        try:
            await crew.trainer.save(folder / "trainer")
            async with self._books:
                state = await self._state(crew)
            # Before the checkpoint, which says how much of it is part of the run up to here.
            self.folder.save_timeline(self.timeline)
            # Reads back and hashes all that was written, in a thread of its own.
            finished = await asyncio.to_thread(self.folder.finish_checkpoint, folder, state)
        except Exception:
            self.folder.abandon_checkpoint(folder)
            raise
        crew.trainer.checkpointed(finished / "trainer")

    async def restore(self, crew: Crew, checkpoint: Path) -> None:
        """Bring every actor, this journal and the rows on disk to what they were at ``checkpoint``, and write down that the run goes on."""
        state = self.folder.controller_state(checkpoint)
        await crew.trainer.load(checkpoint / "trainer")
        await crew.replay.load_state.call_one(state["replay"])
        await crew.dataset.load_state.call_one(state["stages"])
        self.step, self.episodes, self.tier = state["step"], state["episodes"], state["tier"]
        self._seconds_before, self._next_evaluation = state["seconds"], state["next_evaluation"]
        self.timeline.add(self._earlier_timeline(state["timeline_seconds"]).spans)
        self.folder.rewind(checkpoint, state["written"])
        self._write({"event": "resume", "step": self.step, "seconds": self.seconds})
        self._say(f"continuing after step {self.step}")

    def draw(self) -> None:
        """Bring the learning curve up to date."""
        from zorplex_rl.viz.plots import learning_curve

        self.folder.save_curve(learning_curve(self.folder.metrics()))

    async def _state(self, crew: Crew) -> Row:
        """What this journal and the small actors know. Rows are counted last: with what is written after that, a resumed run begins."""
        replay, stages = await asyncio.gather(crew.replay.state.call_one(), crew.dataset.state.call_one())
        return {
            "step": self.step,
            "episodes": self.episodes,
            "seconds": self.seconds,
            "tier": self.tier,
            "next_evaluation": self._next_evaluation,
            "timeline_seconds": self.timeline.end - self.timeline.start,
            "written": self.folder.written(),
            "replay": replay,
            "stages": stages,
        }

    def _earlier_timeline(self, seconds: float) -> Timeline:
        """The first ``seconds`` of the timeline on disk, ending when this sitting began: the clock may have been another machine's."""
        try:
            earlier = Timeline.load(self.folder.timeline)
        except (OSError, ValueError) as error:
            self._say(f"the timeline of the run so far cannot be read, so it begins anew: {error}")
            return Timeline()
        earlier = earlier.between(earlier.start, earlier.start + seconds)
        return earlier.shifted(self._opened - earlier.end)

    async def _climb(self, crew: Crew, held_out_accuracy: float, version: int) -> None:
        if self.tier + 1 >= len(self.ladder) or held_out_accuracy < self.config.curriculum_threshold:
            return
        self.tier += 1
        first = (await crew.replay.state.call_one())["next_group"]
        await crew.dataset.advance.call_one(self.ladder[self.tier], first)
        self._write({"event": "tier", "step": version, "seconds": self.seconds, "tier": list(self.ladder[self.tier])})
        self._say(f"held-out accuracy {held_out_accuracy:.2f}: next tier, {', '.join(self.ladder[self.tier])}")

    async def _drain_spans(self, crew: Crew, at_once: bool = False) -> None:
        now = time.monotonic()
        if now - self._last_drain < SECONDS_BETWEEN_SPANS and not at_once:
            return
        spans = await crew.drain_spans()
        recent = Timeline(spans)
        self._busy = {actor: round(recent.busy_share(actor, (self._last_drain, now)), 3) for actor in recent.actors}
        self.timeline.add(spans)
        self._last_drain = now

    def _write(self, row: Row) -> None:
        self.folder.append_metrics(row)
        self._show(row)


def accuracy(episodes: list[Episode]) -> float:
    """The share of episodes that succeeded."""
    return fmean(episode.score.outcome == "success" for episode in episodes)


def outcome_shares(episodes: list[Episode]) -> dict[str, float]:
    """The share of each outcome among scored episodes."""
    found = Counter(episode.score.outcome for episode in episodes)
    return {outcome: found[outcome] / len(episodes) for outcome in OUTCOMES}


def readable(episode: Episode) -> str:
    """An episode in one line, for people: question, transcript, what was right."""
    text = episode.text.strip().replace("\n", " ⏎ ")
    return f"{episode.task.question}  │ {text} │ expected {episode.task.answer}: {episode.score.outcome}"


def _of_kind(episodes: list[Episode], kind: str) -> list[Episode]:
    return [episode for episode in episodes if episode.task.kind == kind]
