"""The environments of OpenEnv, as they are, each in the process that asks: no server, no container. Those whose
episode is one step. ``--task-data`` names a file with the class of an installed one:

    pip install 'openenv>=0.10,<0.11'          or openenv-core 0.3, and the environment's package, such as reasoning_gym_env
    zorplex-rl env check examples/openenv_tasks.py --task-data chain_sum.json --policy PATH_OR_HUB_ID
    zorplex-rl train --task examples/openenv_tasks.py --task-data chain_sum.json --policy PATH_OR_HUB_ID

    {"environment": "reasoning_gym_env.server.reasoning_gym_environment:ReasoningGymEnvironment",
     "reset": {"dataset_name": "chain_sum", "size": 1},     beside a seed, which is the task's number
     "question": "{question}",                              made from the fields of what reset returns
     "answer": "{correct_answer}"}                          and of what step returns, if it tells

    train      seed 0, 3, 4, …    beyond a first one of the run; a draw from the question says which split
    held_out   seed 1, 2, 5, …    it is in, so none is in both

What follows ``[ANSWER]`` on its line is the action: its one field that must be there, or a JSON object of several.
The reward of the step is the score. An environment of several steps (a game, MCP tools) is refused: a tool here is
called without what was called before, so a class that remembers cannot go on from there.
"""

import inspect
import json
import pkgutil
import random
import re
import typing

from zorplex_rl.task.environment import Environment
from zorplex_rl.task.episode import Score, Task
from zorplex_rl.task.rewards import classify, final_answer

SYSTEM = "Think. Then end with a line that holds [ANSWER] and your answer, as: [ANSWER] 12"
STRIDE = 10_000_000
"""No run has so many tasks."""
ATTEMPTS = 64
"""Half of all questions are in a split, so one of 64 is."""


class OpenEnv(Environment):
    """One of its environments."""

    def __init__(self, seed=0, data=""):
        defaults = {"reset": {}, "question": "{question}", "answer": ""}
        self.settings = {**defaults, **json.loads(data or "{}")}
        if "environment" not in self.settings:
            raise ValueError('--task-data must name a class, as {"environment": "MODULE:CLASS"}')
        self.name = self.settings["environment"]
        self.environment = pkgutil.resolve_name(self.name)
        if "seed" not in inspect.signature(self.environment.reset).parameters:
            raise ValueError(f"{self.name} has one task: its reset takes no seed; give it one")

        self.action = typing.get_type_hints(self.environment.step)["action"]
        fields = self.action.model_fields.items()
        self.fields = [name for name, field in fields if field.is_required()]
        if not self.fields:
            raise ValueError(f"{self.name} takes calls of MCP tools; name one with its own Action")
        self.first_seed = random.Random(seed).randrange(2**30)

    def play(self, seed, text):
        """Return what a new environment says at first, and to the action that ``text`` is, if it is one."""
        environment = self.environment()
        settings = self.settings["reset"]
        said = environment.reset(seed=seed, **settings)
        try:
            action = self.action_of(text)
        except ValueError:
            return said.model_dump(), {}
        told = environment.step(action)
        environment.close()
        if not told.done:
            raise ValueError(f"an episode of {self.name} has several steps; name one of one step")
        return said.model_dump(), told.model_dump()

    def action_of(self, text):
        if len(self.fields) == 1:
            return self.action(**{self.fields[0]: text})
        return self.action.model_validate_json(text)

    def task(self, index, split):
        for attempt in range(ATTEMPTS):
            seed = self.first_seed + index + attempt * STRIDE
            # Any action makes an environment tell the right answer, if it does.
            said, told = self.play(seed, "0")
            question = self.settings["question"].format(**said)
            draw = random.Random(question).random()
            if (draw < 0.5) == (split == "train"):
                return Task(
                    kind=self.name,
                    question=question,
                    answer=self.settings["answer"].format(**told),
                    min_tool_calls=0,
                    system=SYSTEM,
                    table={"seed": seed},
                )
        raise ValueError(f"{self.name} has too few questions for two splits")

    def find_answer(self, text):
        found = re.findall(r"\[ANSWER\][ \t]*(.*\S)", text)
        return found[-1] if found else None

    def score(self, task, turns, tool_calls, finish):
        answer = final_answer(turns, self.find_answer)
        reward = 0.0
        if answer is not None:
            _, told = self.play(task.table["seed"], answer)
            reward = float(told.get("reward") or 0)
        outcome = "success"
        if reward < 1:
            outcome = classify(answer, None, finish)
        return Score(
            outcome=outcome,
            answer=answer,
            correct=reward,
            format=0.0,
            extra_calls=0.0,
        )
