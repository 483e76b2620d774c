"""Record the laboratory of staleness: blocks of ``staleness.py``'s trials, the most telling ones
first.

    python benchmarks/laboratory.py --budget 90       go on with it for at most 90 minutes

    confirmed.jsonl          the setting of notebook 09 (lag 8, 18 steps) on seeds that no other study has
    confirmed_16.jsonl       another setting (lag 16, 15 steps) on other such seeds
    confirmed_20.jsonl       a third (3e-4, lag 20, 21 steps), again on other such seeds
    laboratory.jsonl         lag × loss × seed on easy tasks at 4e-4, and some at other rates
    laboratory_hard.jsonl    the same on hard ones
    laboratory_ess.jsonl     the same on easy ones with --ess-control
    laboratory_bfloat16.jsonl    the same on easy ones, fresh data, sampled in bfloat16
    foretold.jsonl           learning rate × lag × loss on seeds of their own, which judge the alarm; those from 10 on
                             chose nothing of it

Resumable like ``staleness.py``: a trial that is in its file is not run again, and a file grows by a
line when a trial is done. What the recording decides, and by which rule, is in ``VERDICTS.md``,
which is older than the first trial.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

import tyro
from log import describe_machine
from staleness import Options, missing, record, shared, write_header

from zorplex_rl.course.recorded_study import Study, read_study
from zorplex_rl.course.staleness import Trial

COMMAND = "benchmarks/laboratory.py"
HERE = Path(__file__).parent
EASY = Options(learning_rates=(4e-4,), lags=(0, 8, 32), seeds=5, out=HERE / "laboratory.jsonl")
HARD = replace(EASY, difficulty="hard", out=HERE / "laboratory_hard.jsonl")
CONTROLLED = replace(EASY, ess_control=True, seeds=2, out=HERE / "laboratory_ess.jsonl")
BFLOAT16 = replace(EASY, sampler_dtype="bfloat16", lags=(0,), out=HERE / "laboratory_bfloat16.jsonl")
LIVE = replace(EASY, first_seed=20, steps=18, schedule_steps=60, lags=(8,), out=HERE / "confirmed.jsonl")
LIVE_16 = replace(LIVE, first_seed=25, steps=15, lags=(16,), out=HERE / "confirmed_16.jsonl")
LIVE_20 = replace(LIVE, learning_rates=(3e-4,), first_seed=30, steps=21, lags=(20,), out=HERE / "confirmed_20.jsonl")
FORETOLD = replace(
    EASY, first_seed=5, seeds=7, learning_rates=(3e-4, 2e-4, 4e-4), lags=(8, 32, 2), out=HERE / "foretold.jsonl"
)
FIVE = ("reinforce", "grpo", "cispo", "dppo", "icepop")
OTHERS = ("tis", "decoupled_ppo", "m2po", "gspo", "sequence_rejection", "dapo")

BLOCKS = (
    replace(FORETOLD, losses=("reinforce", "grpo", "tis", "cispo", "dppo", "icepop", "gspo", "decoupled_ppo", "m2po")),
    replace(BFLOAT16, losses=("reinforce", "grpo", "icepop")),
    replace(LIVE, losses=("reinforce", "grpo", "dppo", "icepop", "decoupled_ppo")),
    replace(LIVE, losses=("reinforce",), lags=(0,)),
    replace(LIVE_16, losses=("reinforce", "grpo", "dppo")),
    replace(LIVE_16, losses=("reinforce",), lags=(0,)),
    replace(LIVE_20, losses=("reinforce", "dppo", "grpo")),
    replace(LIVE_20, losses=("reinforce",), lags=(0,)),
    replace(CONTROLLED, losses=("reinforce",)),
    # The two disputes, first what decides them.
    replace(EASY, losses=("cispo", "dppo", "icepop"), lags=(8, 32)),
    replace(EASY, losses=("cispo",), lags=(0,)),
    replace(EASY, losses=FIVE),
    # Slow collapses, which an alarm can announce.
    replace(EASY, losses=("reinforce", "tis", "decoupled_ppo", "cispo"), lags=(32,), learning_rates=(2e-4,)),
    replace(HARD, losses=("reinforce", "grpo"), seeds=1),
    replace(CONTROLLED, losses=("reinforce", "tis", "grpo"), seeds=5),
    replace(EASY, losses=OTHERS),
    replace(EASY, losses=FIVE, lags=(1, 2, 4, 16)),
    replace(HARD, losses=FIVE),
    replace(EASY, losses=OTHERS, lags=(1, 2, 4, 16)),
    replace(HARD, losses=OTHERS),
    # Other rates: foretold.jsonl has them at three lags. What it lacks: fresh data, and a rate that nothing bears.
    replace(EASY, losses=FIVE, lags=(0,), learning_rates=(2e-4, 3e-4)),
    replace(EASY, losses=FIVE, learning_rates=(8e-4,)),
)
"""The study, in the order in which it is recorded."""
EMPTY = Study(COMMAND, "", {}, ())


@dataclass(frozen=True, slots=True)
class Recording:
    """How much of the laboratory to record now."""

    budget: float = 90.0
    """Minutes after which no further trial is started."""
    processes: int = 2
    """Trials that run at the same time, each in a process with one torch thread."""


def left_out() -> set[tuple[str, float, Trial]]:
    """Return the trials that are not recorded yet: file, learning rate, trial. Blocks overlap."""
    studies = {file: read_study(file) if file.exists() else EMPTY for file in {block.out for block in BLOCKS}}
    return {(block.out.name, *found) for block in BLOCKS for found in missing(block, studies[block.out])}


def main(recording: Recording) -> None:
    """Record the blocks one after the other, until all is there or the budget is spent."""
    until = time.monotonic() + 60 * recording.budget
    for block in BLOCKS:
        write_header(block.out, COMMAND, describe_machine(), shared(block))
        left = (until - time.monotonic()) / 60
        record(replace(block, budget=left, processes=recording.processes))
    print(f"{len(left_out())} trials are missing.")


if __name__ == "__main__":
    main(tyro.cli(Recording, description=__doc__))
