"""The record of one attempt at a task, as token ids: prompt, sampled and injected tokens.

    prompt_ids   [P]   chat template of system prompt and question
    token_ids    [T]   everything after the prompt, in order
    sampled      [T]   True where the policy chose the token, False where a tool's result was injected
    logprobs     [T]   log-probability of each sampled token as it was sampled; 0.0 where injected

    LOOKUP[blip] -> 17 ⏎ [ANSWER] 17 <eos>
    ~~~~~~~~~~~~         ~~~~~~~~~~~~~~~~~     sampled: trained on
                ^^^^^^^^                       injected: context only, masked from the loss

The trainer learns from exactly these ids: they are never decoded and tokenised again.
"""

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from zorplex_rl.task.parser import Answer

Finish = Literal["eos", "answer", "turns", "tokens"]
Outcome = Literal["success", "wrong_answer", "wrong_format", "tool_spam", "truncated"]
OUTCOMES = get_args(Outcome)


@dataclass(frozen=True, slots=True)
class Task:
    """One question with its one right answer. A task of your own needs the first five fields, and
    ``table`` if it has tools."""

    kind: str
    question: str
    answer: Answer
    min_tool_calls: int
    """The number of calls that a perfect solver makes."""
    system: str
    """The system prompt."""
    words: tuple[str, ...] = ()
    """Tasks with the same words count as one trial in a confidence interval."""
    difficulty: str = "easy"
    table: dict[str, Any] = field(default_factory=dict, hash=False, repr=False)
    """The value of each word; like the next two, only the tools know it."""
    keys: dict[str, str] = field(default_factory=dict, hash=False, repr=False)
    """The key of each word."""
    redirects: dict[str, str] = field(default_factory=dict, hash=False, repr=False)
    """The word that a word points to."""
    examples: tuple[tuple[str, str], ...] = field(default=(), hash=False, repr=False)
    """Worked examples, each a question and an answer, shown as turns before the question."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One stretch of sampled text, up to a tool call or the end of the episode."""

    text: str
    start: int
    """The index of its first token in ``Episode.token_ids``."""
    end: int
    """The index behind its last token."""
    call: str | None = None
    result: str | None = None
    """The tool's; None if there was no call, or the turn limit came before the tool ran."""
    version: int = 0
    """The policy's at the last token."""


@dataclass(frozen=True, slots=True)
class Score:
    """An episode's outcome, and the parts of its reward."""

    outcome: Outcome
    answer: Answer | None
    correct: float
    format: float
    extra_calls: float

    @property
    def reward(self) -> float:
        """The sum of the parts."""
        return sum(self.parts.values())

    @property
    def parts(self) -> dict[str, float]:
        """The parts of the reward, by name."""
        return {
            "correct": self.correct,
            "format": self.format,
            "extra_calls": self.extra_calls,
        }


@dataclass(slots=True)
class Episode:
    """One finished attempt."""

    task: Task
    prompt_ids: list[int]
    token_ids: list[int]
    sampled: list[bool]
    logprobs: list[float]
    turns: list[Turn]
    finish: Finish
    """What ended it: the end-of-text token, a complete answer line, or the limit on turns or tokens."""
    seed: int = 0
    group: int = 0
    first_version: int = 0
    """The policy's version at the first sampled token: staleness counts from it."""
    last_version: int = 0
    """The policy's version at the last sampled token."""
    seconds: float = 0.0
    """From its first token to its last."""
    generator: str = ""
    """The name of the actor that sampled it, if one did."""
    score: Score | None = None

    @property
    def scored(self) -> Score:
        """The score. Raises ValueError before there is one."""
        if self.score is None:
            raise ValueError("the episode has no score yet; call zorplex_rl.task.rewards.score")
        return self.score

    @property
    def tool_calls(self) -> int:
        """Number of tool calls."""
        return sum(turn.call is not None for turn in self.turns)

    @property
    def sampled_text(self) -> list[str]:
        """What the policy wrote in each turn."""
        return [turn.text for turn in self.turns]

    @property
    def attempt(self) -> tuple[Task, list[str], int, Finish]:
        """The arguments from which a score is made."""
        return self.task, self.sampled_text, self.tool_calls, self.finish

    @property
    def text(self) -> str:
        """The whole transcript with the tools' results, for people to read."""
        return "".join(turn.text + (turn.result or "") for turn in self.turns)
