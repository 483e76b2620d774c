"""The log of a run: files, and callbacks for the live view. It calls no actor.

step, evaluation, restarted, …  ──► a row       metrics.jsonl, and ``show``
episode                         ──► a line      episodes.jsonl
add_spans                       ──► timeline    timeline.json
say                             ──► a message for people
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from zorplex_rl.run.folder import MetricsRow, RunFolder
from zorplex_rl.run.timeline import Span, Timeline, now
from zorplex_rl.services.replica_set import Restart
from zorplex_rl.task.episode import Episode
from zorplex_rl.task.rewards import accuracy, outcome_shares

LONGEST_SILENCE = 5.0
"""Seconds between two messages while the run waits."""


def ignore(*values: object) -> None:
    """Do nothing: the default of all callbacks."""


class RunLog:
    """Write the log of a run. Rows go to ``show`` too, messages to ``say``; evaluations call ``draw``."""

    def __init__(
        self,
        folder: RunFolder,
        show: Callable[[MetricsRow], None] = ignore,
        say: Callable[[str], None] = ignore,
        draw: Callable[[], None] = ignore,
    ) -> None:
        self.folder = folder
        self.say = say
        self.draw = draw
        self.timeline = Timeline()
        self._show = show
        self._seconds_before = 0.0
        self._began: float | None = None
        self._last_step = self._last_spans = self._opened = now()
        self.busy: dict[str, float] = {}

    @property
    def seconds(self) -> float:
        """Seconds of training so far, with earlier sessions. They count from ``start_clock`` on."""
        began = self._began
        return self._seconds_before + (0.0 if began is None else now() - began)

    @property
    def seconds_since_spans(self) -> float:
        """Seconds since ``add_spans`` was last called."""
        return now() - self._last_spans

    def start_clock(self) -> None:
        """Count the seconds of training from now on."""
        self._began = self._last_step = now()

    def write(
        self,
        event: str,
        step: int,
        **values: Any,
    ) -> MetricsRow:
        """Write a row. Returns it."""
        row = {"event": event, "step": step, "seconds": self.seconds, **values}
        self.folder.append_metrics(row)
        self._show(row)
        return row

    @contextlib.asynccontextmanager
    async def waiting(
        self,
        what: str,
        progress: Callable[[], Awaitable[str]] | None = None,
    ) -> AsyncIterator[None]:
        """Show every few seconds what the run waits for, and its ``progress()``. Writes no row."""
        began = now()

        async def show() -> None:
            while True:
                await asyncio.sleep(LONGEST_SILENCE)
                done = await progress() if progress else ""
                text = f"{what}, {done}" if done else what
                self._show({"event": "wait", "text": f"{text}: {now() - began:.0f} s"})

        showing = asyncio.create_task(show())
        try:
            yield
        finally:
            showing.cancel()

    def step(
        self,
        step: int,
        metrics: MetricsRow,
        episodes: int,
        example: Episode,
    ) -> None:
        """Write a step's ``metrics``, the run's number of ``episodes`` so far, and an example."""
        end = now()
        seconds = end - self._last_step
        self._last_step = end
        self.write(
            "step",
            step,
            **metrics | {"episodes": episodes},
            episodes_per_second=metrics["episodes"] / seconds,
            busy=self.busy,
        )
        self.folder.append_episode(step, example, "train")

    def evaluation(
        self,
        step: int,
        greedy: list[Episode],
        sampled: list[Episode],
        **values: Any,
    ) -> MetricsRow:
        """Write the held-out results of ``step``, and its first two episodes, which answer the same
        questions at every evaluation. Returns the row."""
        accuracies = {}
        outcomes = {}
        for mode, episodes in (("greedy", greedy), ("sampled", sampled)):
            accuracies[f"{mode}_accuracy"] = accuracy(episodes)
            outcomes[mode] = outcome_shares(episodes)
        row = self.write("eval", step, **accuracies, outcomes=outcomes, **values)
        for episode in sampled[:2]:
            self.folder.append_episode(step, episode, "eval")
            self.say(readable(episode))
        return row

    def warn(self, step: int, text: str) -> None:
        """Write and say a warning for the user."""
        self.write("warning", step, text=text)
        self.say(text)

    def restarted(self, step: int, role: str, restart: Restart) -> None:
        """Write that a process was replaced."""
        died = restart.died
        took_over = restart.took_over
        seconds = restart.seconds
        self.write(
            "restart",
            step,
            role=role,
            died=died,
            took_over=took_over,
            recovery_seconds=seconds,
            reason=restart.reason,
            processes={took_over: restart.pid},
        )
        end = now()
        self.timeline.add([Span(took_over, "restart", end - seconds, end, {"died": died})])
        self.say(f"{died} died; {took_over} took over after {seconds:.1f} s")

    def add_spans(self, spans: list[Span]) -> None:
        """Add the actors' spans since the last call. Rows of steps show busy shares from now on."""
        window = (self._last_spans, now())
        recent = Timeline(spans)
        self.busy = {actor: round(recent.busy_share(actor, window), 3) for actor in recent.actors}
        self.timeline.add(spans)
        self._last_spans = window[1]

    def state(self) -> dict[str, Any]:
        """Return the state for ``resume``. It covers all that was written before this call."""
        return {
            "seconds": self.seconds,
            "timeline_seconds": self.timeline.end - self.timeline.start,
            "written": self.folder.written(),
        }

    def resume(self, state: dict[str, Any]) -> None:
        """Continue clock and timeline from ``state``. ``RunFolder.rewind`` cuts the rows."""
        self._seconds_before = state["seconds"]
        earlier = Timeline.load(self.folder.timeline)
        earlier = earlier.between(earlier.start, earlier.start + state["timeline_seconds"])
        # Shifted so that it ends where this session begins.
        self.timeline.add(earlier.shifted(self._opened - earlier.end).spans)


def readable(episode: Episode) -> str:
    """Return an episode in one line, for people: question, transcript, expected answer."""
    text = episode.text.strip().replace("\n", " ⏎ ")
    return f"{episode.task.question}  │ {text} │ expected {episode.task.answer}: {episode.scored.outcome}"
