"""The record of one attempt at a task, as token ids: prompt, sampled and injected tokens.

    prompt_ids   [P]   chat template of system prompt and question
    token_ids    [T]   everything after the prompt, in order
    sampled      [T]   True where the policy chose the token, False where a tool's result was injected
    logprobs     [T]   log-probability of each sampled token as it was sampled; 0.0 where injected

    LOOKUP[blip] -> 17 ⏎ [ANSWER] 17 <eos>
    ~~~~~~~~~~~~         ~~~~~~~~~~~~~~~~~     sampled: trained on
                ^^^^^^^^                       injected: context only, masked from the loss

The trainer learns from exactly these ids. They are never decoded and tokenised again.
"""

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from zorplex_rl.task.parser import Answer

Finish = Literal["eos", "answer", "turns", "tokens"]
Outcome = Literal["success", "wrong_answer", "wrong_format", "tool_spam", "truncated"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


@dataclass(frozen=True, slots=True)
class Task:
    """One question with its one right answer; a perfect solver makes ``min_tool_calls``.

    Only the tools know ``table``, ``keys`` and ``redirects``: the value of each word, its key, and
    the word that it points to. A task of your own needs the first five fields, and ``table`` for
    its tools. Tasks with the same ``words`` count as one trial in a confidence interval.
    """

    kind: str
    question: str
    answer: Answer
    min_tool_calls: int
    system: str  # prompt
    words: tuple[str, ...] = ()
    difficulty: str = "easy"
    split: str = "train"
    table: dict[str, Any] = field(default_factory=dict, hash=False, repr=False)
    keys: dict[str, str] = field(default_factory=dict, hash=False, repr=False)
    redirects: dict[str, str] = field(default_factory=dict, hash=False, repr=False)
    examples: tuple[tuple[str, str], ...] = field(default=(), hash=False, repr=False)
    """Worked examples, question and answer, shown as turns before the question."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One stretch of sampled text, up to a tool call or the end of the episode. ``start`` and ``end``
    index ``Episode.token_ids``; ``version`` is the policy's at the last token. ``result`` is None
    if the turn limit came before the tool ran."""

    text: str
    start: int
    end: int
    call: str | None = None
    result: str | None = None
    version: int = 0


@dataclass(frozen=True, slots=True)
class Score:
    """An episode's outcome, and ``correct`` + ``format`` + ``extra_calls`` = ``reward``."""

    outcome: Outcome
    answer: Answer | None
    correct: float
    format: float
    extra_calls: float

    @property
    def reward(self) -> float:
        """The sum of the parts."""
        return self.correct + self.format + self.extra_calls

    @property
    def parts(self) -> dict[str, float]:
        """The parts of the reward, by name."""
        return {"correct": self.correct, "format": self.format, "extra_calls": self.extra_calls}


@dataclass(slots=True)
class Episode:
    """One finished attempt; ``finish``: by end-of-text token, complete answer line or limit. Versions
    are the policy's at the first sampled token (staleness counts from it) and the last; times, seconds."""

    task: Task
    prompt_ids: list[int]
    token_ids: list[int]
    sampled: list[bool]
    logprobs: list[float]
    turns: list[Turn]
    finish: Finish
    seed: int = 0
    group: int = 0
    first_version: int = 0
    last_version: int = 0
    seconds: float = 0.0
    tool_seconds: float = 0.0
    generator: str = ""  # the name of the actor that sampled it, if one did
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
        """What a score is made from."""
        return self.task, self.sampled_text, self.tool_calls, self.finish

    @property
    def text(self) -> str:
        """The whole transcript for people to read, with the tools' results."""
        return "".join(turn.text + (turn.result or "") for turn in self.turns)
