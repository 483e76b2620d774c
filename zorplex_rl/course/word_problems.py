"""Ask a policy three word problems, and keep what it wrote as a recording that says who wrote it, when, and by which command.

    python -m zorplex_rl.course.word_problems FOLDER        asks the model in FOLDER, writes benchmarks/word_problems.json

The embedded policy knows no English beyond its own tasks. A model that does, such as Qwen2.5-0.5B-Instruct, has a gigabyte of weights and does not
come with this package. Whoever has its folder runs the command; notebook 05 then shows the recording.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

from zorplex_rl.errors import ConfigError, PolicyError
from zorplex_rl.policy.load import Policy, load_policy
from zorplex_rl.policy.rollout import RolloutRequest, rollout
from zorplex_rl.policy.tool_loop import Sampling
from zorplex_rl.task.episode import Task
from zorplex_rl.task.parser import Answer
from zorplex_rl.task.rewards import score

SYSTEM = "Think step by step. Do not use tools. End with a line that holds [ANSWER] and the integer, for example: [ANSWER] 12"
WORD_PROBLEMS = (
    ("A crate holds 12 bottles. How many bottles are in 7 crates?", 84),
    ("Ana has 35 beads, loses 8 and buys 20. How many has she now?", 47),
    ("A train leaves at 9:40 and arrives at 11:05. How many minutes is it under way?", 85),
)
RECORDING = Path(__file__).parents[2] / "benchmarks" / "word_problems.json"
"""Where the command writes, and where notebook 05 looks."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One word problem: what the policy wrote, greedily, and whether the strict parser finds the right answer in it."""

    question: str
    answer: Answer
    text: str
    right: bool


@dataclass(frozen=True, slots=True)
class Recording:
    """What a model wrote, with its name, its number of parameters, the command and the day."""

    model: str
    parameters: int
    command: str
    recorded: str
    attempts: tuple[Attempt, ...]

    @classmethod
    def read(cls, path: Path = RECORDING) -> Recording | None:
        """Return the recording in ``path``, or None if there is no such file. Raises ConfigError if it is not such a recording."""
        if not path.is_file():
            return None
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            return cls(**found | {"attempts": tuple(Attempt(**attempt) for attempt in found["attempts"])})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f"{path.name} is no recording of word problems ({error}); write it anew: python -m zorplex_rl.course.word_problems FOLDER"
            ) from error

    def write(self, path: Path) -> None:
        """Write to ``path``. Raises ConfigError if that is not possible."""
        try:
            path.write_text(json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{path} cannot be written ({error.strerror}); give another file with --out") from error


def ask_word_problems(policy: Policy, max_tokens: int = 256) -> list[Attempt]:
    """Let ``policy`` answer the word problems, greedily, with at most ``max_tokens`` tokens each. Returns what it wrote."""
    tasks = [Task("word_problem", question, answer, 0, SYSTEM, words=()) for question, answer in WORD_PROBLEMS]
    requests = [RolloutRequest(task) for task in tasks]
    sampling = Sampling(temperature=0.0, max_tokens=max_tokens, slots=len(tasks))
    episodes = rollout(policy, requests, lambda *_: "ERROR: no tools here", sampling)
    return [
        Attempt(task.question, task.answer, episode.text, score(episode).outcome == "success")
        for task, episode in zip(tasks, episodes, strict=True)
    ]


def main(arguments: list[str] | None = None) -> int:
    """Ask the model of a folder, and write the recording. Returns the exit code: 2 if there is no such model, or the file cannot be written."""
    parser = argparse.ArgumentParser(
        prog="python -m zorplex_rl.course.word_problems", description="Record word problems."
    )
    parser.add_argument(
        "folder", metavar="FOLDER", help="of an instruction-tuned model, with its tokenizer and its chat template"
    )
    parser.add_argument(
        "--out", type=Path, default=RECORDING, metavar="FILE", help="where to (default: benchmarks/word_problems.json)"
    )
    asked = parser.parse_args(arguments)
    try:
        policy = load_policy(asked.folder)
        # Only the folder's name: its place on this machine is nobody's business.
        name = Path(asked.folder).resolve().name
        command = f"python -m zorplex_rl.course.word_problems {name}"
        attempts = tuple(ask_word_problems(policy))
        Recording(name, policy.model.num_parameters(), command, date.today().isoformat(), attempts).write(asked.out)
    except (ConfigError, PolicyError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    print(f"{asked.out}: {name} has {sum(attempt.right for attempt in attempts)} of {len(attempts)} right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
