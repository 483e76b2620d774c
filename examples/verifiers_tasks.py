"""The environments of the library `verifiers`, as they are: tasksets, single turn or with tools.
``--task-data`` names a file with the name of an installed one, and its settings:

    pip install 'verifiers>=0.4,<0.5'                           older ones have load_environment, which this does not read
    echo '{"taskset": "reverse-text", "answer": "<reversed_text>{answer}</reversed_text>"}' > reverse.json
    zorplex-rl env check examples/verifiers_tasks.py --task-data reverse.json --policy PATH_OR_HUB_ID
    zorplex-rl train --task examples/verifiers_tasks.py --task-data reverse.json --policy PATH_OR_HUB_ID

    TaskData                 the question is its prompt; a hash of it says whether it is for training or held out
    Toolset                  an object in this process, a new one for each call: what a tool remembers is gone.
                             Its tool find(text, count) of the toolset wiki is called with ``wiki_find[some text, 3]``
    @vf.reward               the score, from a trace of the question and the policy's turns, without tools' results
    Harness, Runtime, Env    nothing: the episode is zorplex's, and a taskset that needs them is refused

``answer`` is how a right answer reads, with fields of the task's data, for ``env check``: ``{answer}``, if you say nothing.
"""

import asyncio
import inspect
import json
import random

import verifiers.v1 as vf
from pydantic import validate_call
from verifiers.v1.utils import loaders
from verifiers.v1.utils.decorators import discover_decorated

from zorplex_rl.task.environment import Environment
from zorplex_rl.task.episode import Score, Task
from zorplex_rl.task.rewards import classify


class Verifiers(Environment):
    """One of the library's tasksets."""

    def __init__(self, seed=0, data=""):
        settings = json.loads(data or "{}")
        if "taskset" not in settings:
            raise ValueError('--task-data must name a taskset, as {"taskset": "reverse-text"}')
        self.name = settings.pop("taskset")
        self.right_answer = settings.pop("answer", "{answer}")
        if loaders.environment_class(self.name) is not vf.SingleAgentEnv:
            raise ValueError(f"{self.name} has an Env of its own, which only the library can run")
        config = loaders.taskset_config_type(self.name)
        self.taskset = loaders.load_taskset(config(id=self.name, **settings))
        self.tools = tuple(self.methods())
        self.rows = {}
        self.questions = {"train": [], "held_out": []}
        # A taskset may have no end.
        for row in self.taskset.take(10_000):
            question = row.data.prompt_text
            split = "train" if random.Random(question).random() < 0.5 else "held_out"
            self.rows[question] = row
            self.questions[split].append(question)

    def task(self, index, split):
        questions = self.questions[split]
        if not questions:
            raise ValueError(f"{self.name} has too few tasks for two splits; give it more")
        question = questions[index % len(questions)]
        data = self.rows[question].data
        system = [data.system_prompt or ""]
        for name, method in self.methods().items():
            arguments = ", ".join(inspect.signature(method).parameters)
            system.append(f"Write {name}[{arguments}] to call a tool: {method.__doc__ or name}")
        return Task(
            kind=self.name,
            question=question,
            answer=self.right_answer.format(**dict(data)),
            min_tool_calls=0,
            system="\n".join(system),
        )

    def methods(self):
        """Return the tools of new toolsets, by the names that the library gives them."""
        config = self.taskset.config
        of_a_task = self.taskset.task_type().toolsets(config.task)
        return {
            f"{toolset.server_name}_{method.__name__}".lstrip("_"): method
            for toolset in [*of_a_task, *self.taskset.toolsets(config)]
            for method in discover_decorated(toolset, "tool")
        }

    def execute(self, task, call):
        method = self.methods()[call.name]
        # The method of a new object, which a task may set up.
        asyncio.run(method.__self__.setup_task(self.rows[task.question].data))
        count = len(inspect.signature(method).parameters)
        texts = call.argument.split(",", count - 1)
        # Pydantic turns texts into what the tool takes, as the library's server does.
        result = validate_call(method)(*map(str.strip, texts))
        return str(asyncio.run(result) if inspect.iscoroutine(result) else result)

    def reference(self, task):
        return task.answer

    def score(self, task, turns, tool_calls, finish):
        """Score by the library: the sum of its rewards, each with its weight."""
        row = self.rows[task.question]
        nodes = [vf.MessageNode(message=vf.UserMessage(content=task.question))]
        for place, turn in enumerate(turns):
            reply = vf.AssistantMessage(content=turn)
            nodes.append(vf.MessageNode(message=reply, parent=place, sampled=True))
        agent = vf.AgentInfo(config=vf.AgentConfig())
        trace = vf.Trace(agent=agent, task=vf.TraceTask(type=self.name, data=row.data), nodes=nodes)
        asyncio.run(row.score(trace))
        if not trace.rewards:
            raise ValueError(f"{self.name} is scored in a runtime; name another taskset")
        reply = trace.last_reply or None
        outcome = "success"
        if trace.reward < 1:
            outcome = classify(reply, None, finish)
        return Score(outcome, reply, trace.reward, 0.0, 0.0)
