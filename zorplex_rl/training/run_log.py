"""What a run writes down. It asks no actor and decides nothing: ``controller.py`` does.

step, evaluation, restarted, …  ──► a row      metrics.jsonl, and ``show`` (the live view)
episode                         ──► a line     episodes.jsonl
add_spans                       ──► timeline   timeline.json
say                             ──► a remark for people
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

LONGEST_SILENCE = 5.0  # seconds


class RunLog:
    """The log of a run. ``show`` gets rows, ``say`` remarks; evaluations call ``draw``, aside."""

    def __init__(
        self,
        folder: RunFolder,
        show: Callable[[MetricsRow], None] = lambda row: None,
        say: Callable[[str], None] = lambda text: None,
        draw: Callable[[], None] = lambda: None,
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
        """Seconds of training so far, with earlier sessions; stands still until ``start_clock``."""
        return self._seconds_before + (now() - self._began if self._began is not None else 0.0)

    @property
    def seconds_since_spans(self) -> float:
        """Seconds since ``add_spans`` was last called."""
        return now() - self._last_spans

    def start_clock(self) -> None:
        """Count the seconds of training from now on."""
        self._began = self._last_step = now()

    def write(self, event: str, step: int, **values: Any) -> MetricsRow:
        """Write a row. Returns it."""
        row = {"event": event, "step": step, "seconds": self.seconds, **values}
        self.folder.append_metrics(row)
        self._show(row)
        return row

    @contextlib.asynccontextmanager
    async def waiting(
        self, what: str, progress: Callable[[], Awaitable[str]] | None = None
    ) -> AsyncIterator[None]:
        """Show every few seconds, but do not write, for what the run waits, and its ``progress()``."""
        began = now()

        async def show() -> None:
            while True:
                await asyncio.sleep(LONGEST_SILENCE)
                text = what
                if progress and (done := await progress()):
                    text += f", {done}"
                self._show({"event": "wait", "text": f"{text}: {now() - began:.0f} s"})

        showing = asyncio.create_task(show())
        try:
            yield
        finally:
            showing.cancel()

    def step(self, step: int, metrics: MetricsRow, episodes: int, example: Episode) -> None:
        """Write a step's ``metrics``, the run's number of ``episodes``, and one of the step's."""
        before, self._last_step = self._last_step, now()
        speed = metrics["episodes"] / max(self._last_step - before, 1e-9)
        self.write(
            "step",
            step,
            **metrics | {"episodes": episodes},
            episodes_per_second=speed,
            busy=self.busy,
        )
        self.folder.append_episode(step, example, "train")

    def evaluation(
        self, step: int, greedy: list[Episode], sampled: list[Episode], **values: Any
    ) -> MetricsRow:
        """Write the held-out results of ``step``, and two episodes of it. Returns the row."""
        both = {"greedy": greedy, "sampled": sampled}
        kinds = {
            kind: {
                name: accuracy([e for e in found if e.task.kind == kind])
                for name, found in both.items()
            }
            for kind in sorted({episode.task.kind for episode in greedy})
        }
        outcomes = {name: outcome_shares(found) for name, found in both.items()}
        accuracies = {f"{name}_accuracy": accuracy(found) for name, found in both.items()}
        row = self.write("eval", step, **accuracies, kinds=kinds, outcomes=outcomes, **values)
        for episode in sampled[:2]:
            self.folder.append_episode(step, episode, "eval")
            self.say(readable(episode))
        return row

    def warn(self, step: int, text: str) -> None:
        """Write, and say, what the user should know."""
        self.write("warning", step, text=text)
        self.say(text)

    def restarted(self, step: int, role: str, restart: Restart) -> None:
        """Write that a process was replaced."""
        self.write(
            "restart", step, role=role, died=restart.died, took_over=restart.took_over,
            recovery_seconds=restart.seconds, reason=restart.reason, processes={restart.took_over: restart.pid},
        )  # fmt: skip
        self.timeline.add(
            [
                Span(
                    restart.took_over,
                    "restart",
                    now() - restart.seconds,
                    now(),
                    {"died": restart.died},
                )
            ]
        )
        self.say(
            f"{restart.died} died; {restart.took_over} took over after {restart.seconds:.1f} s"
        )

    def add_spans(self, spans: list[Span]) -> None:
        """Add what the actors did since the last call; the next steps show busy shares."""
        window, recent = (self._last_spans, now()), Timeline(spans)
        self.busy = {actor: round(recent.busy_share(actor, window), 3) for actor in recent.actors}
        self.timeline.add(spans)
        self._last_spans = window[1]

    def state(self) -> dict[str, Any]:
        """Return what ``resume`` needs. What is written after this call is no part of it."""
        seconds = {
            "seconds": self.seconds,
            "timeline_seconds": self.timeline.end - self.timeline.start,
        }
        return seconds | {"written": self.folder.written()}

    def resume(self, state: dict[str, Any]) -> None:
        """Continue clock and timeline from ``state``. ``RunFolder.rewind`` cuts back the rows."""
        self._seconds_before = state["seconds"]
        earlier = Timeline.load(self.folder.timeline)
        earlier = earlier.between(earlier.start, earlier.start + state["timeline_seconds"])
        # It ended when this session began.
        self.timeline.add(earlier.shifted(self._opened - earlier.end).spans)


def readable(episode: Episode) -> str:
    """Return an episode in one line, for people: question, transcript, what was right."""
    text = episode.text.strip().replace("\n", " ⏎ ")
    return f"{episode.task.question}  │ {text} │ expected {episode.task.answer}: {episode.scored.outcome}"
