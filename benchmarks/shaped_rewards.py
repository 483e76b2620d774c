"""Record the runs of notebook 05c on shaped rewards: what a policy learns when tool calls are paid, or cost something.

    python benchmarks/shaped_rewards.py               twelve runs, about three minutes on one quiet core; writes shaped_rewards.json

Runs the notebook's own ``train`` with its own settings, once for each bonus and weight of the KL
penalty. The numbers of a step are means over its batch: the shaped reward, the share of right
answers, the tool calls of an episode, and KL to the reference in nats a token. The same run gives
the same numbers again on the same kind of machine.
"""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from table import describe_machine

from zorplex_rl.course import nb05c
from zorplex_rl.course.kept_file import load_notebook
from zorplex_rl.task.rewards import accuracy

RECORDED = Path(__file__).with_name("shaped_rewards.json")
NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
BONUSES = (-0.1, 0.0, 0.1, 0.5)
"""Reward of every tool call."""
PENALTIES = (0.0, 0.3, 3.0)
"""Weight of the KL penalty."""


def record(
    notebook: SimpleNamespace, config: SimpleNamespace, bonus: float, penalty: float
) -> dict[str, Any]:
    """Train once. Returns the bonus, the penalty and a list for each number, with a value for every step."""
    series: dict[str, list[float]] = {"reward": [], "accuracy": [], "calls": [], "kl": []}
    for step in notebook.train(config, notebook.shaped(bonus), config.hack_steps, penalty):
        series["reward"].append(round(step.reward, 4))
        series["accuracy"].append(round(accuracy(step.episodes), 4))
        series["calls"].append(round(fmean(episode.tool_calls for episode in step.episodes), 3))
        apart = notebook.Solutions.kl(*nb05c.tokens_of(step.episodes, step.before)).item()
        series["kl"].append(round(apart, 4))
    return {"bonus": bonus, "penalty": penalty, **series}


def main() -> None:
    """Train once for each setting, and write what was measured."""
    torch.set_num_threads(1)
    notebook = load_notebook(NOTEBOOKS / "05c_judging_a_run.py")
    with patch.object(notebook.mo, "cli_args", dict):
        config = notebook.settings.run()[1]["config"]
    runs = []
    for penalty in PENALTIES:
        for bonus in BONUSES:
            runs.append(record(notebook, config, bonus, penalty))
            print(
                f"bonus {bonus:g}, penalty {penalty:g}: {runs[-1]['accuracy'][-1]:.0%} right",
                flush=True,
            )
    shared = {
        "steps": config.hack_steps,
        "learning_rate": config.learning_rate,
        "seed": config.seed,
    }
    about = {
        "command": "benchmarks/shaped_rewards.py",
        "date": date.today().isoformat(),
        "machine": describe_machine(),
    }
    RECORDED.write_text(
        json.dumps(about | {"conditions": shared, "runs": runs}, indent=1) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
