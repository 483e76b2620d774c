# /// script
# [tool.marimo.display]
# theme = "system"
# ///

import marimo

__generated_with = "0.25.2"
app = marimo.App(
    width="medium",
    app_title="Closing the loop: asynchronous RL, end to end",
    css_file="../zorplex_rl/course/lesson/lesson.css",
)

with app.setup(hide_code=True):
    import asyncio
    import inspect
    import json
    import logging
    import math
    import os
    import re
    import signal
    import tempfile
    import time
    from contextlib import contextmanager
    from dataclasses import replace
    from itertools import pairwise
    from pathlib import Path
    from statistics import fmean, median, stdev
    from types import SimpleNamespace

    import marimo as mo
    import torch

    from zorplex_rl.cli.size import run_time
    from zorplex_rl.config import Config, LearnerConfig, ServicesConfig
    from zorplex_rl.course.figures import figures, runs
    from zorplex_rl.course.figures.loop_drawing import loop_drawing
    from zorplex_rl.course.figures.tokens import token_strip
    from zorplex_rl.course.lesson import exercise, lesson
    from zorplex_rl.course.lesson.plug_in import plug_in
    from zorplex_rl.course.recorded_study import read_study
    from zorplex_rl.course.widgets import Dashboard, LiveCurve, WhatIf
    from zorplex_rl.course.widgets.what_if import Answer, Knob
    from zorplex_rl.drawing.plots import timeline_chart
    from zorplex_rl.learning.learner import Learner, response_logprobs, schedule
    from zorplex_rl.learning.replay import ReplayBuffer
    from zorplex_rl.learning.train_simple import compare, play
    from zorplex_rl.policy.evaluate import evaluate
    from zorplex_rl.policy.load import load_policy
    from zorplex_rl.policy.rollout import RolloutRequest, Sampling, rollout
    from zorplex_rl.run_folder import RunFolder
    from zorplex_rl.services.runtime import run_together, start_runtime, this_host
    from zorplex_rl.simulation.recorded import predict, read_run
    from zorplex_rl.task.curriculum import tier_of
    from zorplex_rl.task.environment import Zorplex
    from zorplex_rl.task.rewards import accuracy, final_answer
    from zorplex_rl.timeline import Span, Timeline
    from zorplex_rl.training import loop
    from zorplex_rl.training.actors import AdvantageActor, DatasetActor, RewardActor
    from zorplex_rl.training.controller import Controller
    from zorplex_rl.training.generator import GeneratorActor
    from zorplex_rl.training.loop import run_training, train_async
    from zorplex_rl.training.run_log import RunLog
    from zorplex_rl.training.trainer import TrainerActor

    # Seconds that a new process takes for the same imports.
    IMPORTS = time.process_time()
    # These outlive the cells that fill them: what a cell has left running is found here when it runs again.
    PROCESSES = []
    SCRATCH = tempfile.TemporaryDirectory(prefix="zorplex_rl_08_")
    # The only death on this page is intended, and the page says more about it than a warning would.
    logging.getLogger("zorplex_rl").setLevel(logging.ERROR)
    NAMES = {"grpo": "clipped", "reinforce": "plain"}
    RECORDED = Path(__file__).parents[1] / "benchmarks"


@app.cell(hide_code=True)
def _():
    lesson.header(
        __file__,
        minutes=44,
        hardware="two CPU cores, no network; a GPU is used where there is one",
        goals=[
            "write the controller of an asynchronous RL run, with the rule that bounds the age of its data",
            "find a planted fault from a step's diagnostics",
            "account for the time of two loops, and predict it",
            "say whether training taught something, or sharpened what was there",
            "recognise a hacked reward, and kill a process without losing data",
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.figure(
        loop_drawing(),
        "The whole loop. On this page every part of it is a process of its own.",
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A lap by hand

    Notebook 05 took a training step apart, 06 made services of the roles, 07 moved the weights. Here the parts become one system. You walk around its
    loop as far as the advantages, and then write the program that does the walking: the **controller**.
    """)
    return


@app.cell
def settings():
    _name = mo.cli_args().get("policy") or "embedded"
    _embedded = _name == "embedded"
    config = SimpleNamespace(
        policy=_name,  # or the folder of a model, for example a copy of Qwen2.5-0.5B-Instruct
        device="cuda" if torch.cuda.is_available() else "cpu",
        seed=0,
        hints=not _embedded,  # a worked example in the system prompt
        max_tokens=96 if _embedded else 256,
        prompts=8,  # in a training batch
        samples=8,  # of each prompt
        steps=40,
        max_lag=1,
        learning_rate=3e-4 if _embedded else 3e-6,
        eval_every=20,
        eval_tasks=100,  # while training goes on
        held_out=200,  # before and after
        same_steps=3,  # of the two runs whose weights are compared
        killed_steps=16,  # of the run in which a generator is killed
        pass_tasks=40,
        pass_difficulty="hard",  # four words, where training has two
        pass_samples=64,  # of each of these tasks
        pass_at=(1, 2, 4, 8, 16, 32, 64),
        pass_judged=16,  # beyond it the old policy solves nearly all
        kind_tasks=100,  # of each kind that was not trained
        hack_steps=14,
        hack_rate=4e-4 if _embedded else 3e-6,
        hack_bonus=0.5,  # for every tool call
        hack_penalty=3.0,  # weight of the KL penalty
        slider_lags=(0, 1, 2, 4, 8),
        # One thread is fastest for a small model.
        threads=1 if _embedded else torch.get_num_threads(),
    )
    return (config,)


@app.cell(hide_code=True)
def _(config):
    torch.set_num_threads(config.threads)
    policy = load_policy(config.policy, config.device)
    environment = Zorplex(config.seed, config.hints)
    sampling = Sampling(max_tokens=config.max_tokens)
    lesson.ran_on(policy)
    return environment, policy, sampling


@app.function(hide_code=True)
def run_config(config, **changes):
    """The package's settings of a run, checked."""
    made = Config(
        task="compositional",
        policy=config.policy,
        hints=config.hints,
        max_lag=changes.get("max_lag", config.max_lag),
        steps=changes.get("steps", config.steps),
        prompts_per_step=config.prompts,
        group_size=config.samples,
        learner=LearnerConfig(learning_rate=config.learning_rate),
        max_tokens=config.max_tokens,
        eval_every=changes.get("eval_every", config.eval_every),
        eval_tasks=changes.get("eval_tasks", config.eval_tasks),
        checkpoint_every=changes.get("steps", config.steps),
        seed=config.seed,
        device=config.device,
        threads=config.threads,
        services=ServicesConfig(
            generators=changes.get("generators", 1), spares=changes.get("spares", 0)
        ),
    )
    made.check()
    return made


@app.cell(hide_code=True)
def _(config):
    # For the labels of this page's buttons: what takes how long with this policy on this machine.
    expected = run_time(run_config(config), IMPORTS)
    return (expected,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    Each role is an actor of notebook 01, in a process of its own. `await actor.method.call_one(x)` sends one message and waits for the answer. Each
    group has a number, which decides its task and its seeds. The trainer *publishes* its weights, and the generator *pulls* them, as in notebook 07.
    Names that follow:

    - `config` is this page's settings. `run_config` makes a `Config` of them: everything that `zorplex-rl train` can set.
    - `tier_of("compositional")` is what the dataset draws from: sums and differences of two looked-up values.
    - `spawn_procs(per_host={"procs": 1})` starts one process. `PROCESSES` keeps all of them, so that `stop_all` can stop them.
    - `bring_up` starts all actors, and gives the generator its first weights. `run_together` awaits coroutines, and cancels the rest if one fails.
    """)
    return


@app.function
def start(actor_class, *arguments):
    """An actor in a process of its own."""
    start_runtime()
    procs = this_host().spawn_procs(per_host={"procs": 1})
    PROCESSES.append(procs)
    return procs.spawn(actor_class.__name__, actor_class, *arguments)


@app.function
async def bring_up(run, device):
    actors = SimpleNamespace(
        dataset=start(DatasetActor, run, tier_of(run.task)),
        generator=start(GeneratorActor, "generator_0", run, device),
        reward=start(RewardActor, "reward"),
        advantage=start(AdvantageActor, run),
        trainer=start(TrainerActor, "trainer", run, device),
    )
    # Both load the model, at the same time.
    await asyncio.gather(actors.generator.setup.call_one(), actors.trainer.setup.call_one())
    await actors.trainer.publish.call_one()
    await actors.generator.subscribe.call_one(actors.trainer)
    await actors.generator.pull.call_one()
    return actors


@app.function(hide_code=True)
async def stop_all():
    """Stop what is running, and forget it."""
    running = list(PROCESSES)
    PROCESSES.clear()
    await asyncio.gather(*(procs.stop() for procs in running))


@app.function
async def score(actors, groups):
    """Have the groups' episodes scored. The reward actor gets only what the policy wrote."""
    episodes = [episode for _, group in groups for episode in group]
    attempts = [(e.task, e.sampled_text, e.tool_calls, e.finish) for e in episodes]
    scores = await actors.reward.score.call_one(attempts)
    # A message is a copy: the actor cannot write into these episodes.
    for episode, found in zip(episodes, scores, strict=True):
        episode.score = found


@app.cell(hide_code=True)
def _(expected):
    # Three of the five have no model: they count as two. Then a batch, and three steps in this process.
    start_by_hand = lesson.start_button(
        "Start five processes",
        seconds=expected.starting(4) + expected.sample + 3 * expected.train,
    )
    start_by_hand
    return (start_by_hand,)


@app.cell
async def _(config, start_by_hand):
    lesson.wait_for(start_by_hand)
    await stop_all()  # those of an earlier run of this cell
    _began = time.monotonic()
    _actors = await bring_up(run_config(config), config.device)
    loading_seconds = time.monotonic() - _began

    # A group's number decides its task. `groups` holds pairs: number and episodes.
    _numbers = list(range(config.prompts))
    _tasks = await _actors.dataset.tasks.call_one(_numbers)
    _request = list(zip(_numbers, _tasks, strict=True))
    groups = await _actors.generator.generate.call_one(_request)
    await score(_actors, groups)
    rewards = [[e.score.reward for e in group] for _, group in groups]
    advantages = await _actors.advantage.compute.call_one(rewards)
    await stop_all()
    return advantages, groups, loading_seconds, rewards


@app.cell(hide_code=True)
def _(groups, loading_seconds, policy):
    episodes = [episode for _, group in groups for episode in group]
    _failed = [e for e in episodes if e.score.outcome != "success"]
    _one = max(_failed or episodes, key=lambda e: (e.tool_calls, len(e.token_ids)))
    mo.vstack(
        [
            lesson.md(
                f"Starting and loading took {loading_seconds:.1f} s. The lap brought {len(episodes)} episodes of {len(groups)} groups. Here is one of them, as a trainer gets it."
            ),
            lesson.figure(
                token_strip(policy, _one),
                f"“{_one.task.question}”, expected {_one.task.answer}: `{_one.score.outcome}`, reward {_one.score.reward:.2f}.",
            ),
        ]
    )
    return (episodes,)


@app.cell(hide_code=True)
def _(config):
    ask_alone = lesson.predict(
        f"In one group of {config.samples}, a single sample earned 1.2 and the others 0. In another, a single one earned 0 and the others 1.2. Which single sample is pushed harder, up or down?",
        "the lone success",
        "the lone failure",
        "both alike",
    )
    ask_alone
    return (ask_alone,)


@app.cell(hide_code=True)
def _(advantages, ask_alone, rewards):
    _alike = sum(min(group) == max(group) for group in rewards)
    _others = len(rewards[0]) - 1
    _success, _failure = compare([1.2] + [0.0] * _others), compare([0.0] + [1.2] * _others)
    _apart = abs(_success[0]) - abs(_failure[0])
    lesson.reveal(
        ask_alone,
        how="Computed",
        right=2 if abs(_apart) < 1e-6 else 0 if _apart > 0 else 1,
        why=f"""
    A reward of 1.2 is 1 for the right answer and 0.2 for its form. The lone success has the advantage {_success[0]:+.1f}, the lone failure {signed(_failure[0], 1)}, in standard
    deviations of its group. Each of the others has {signed(_success[1], 1)} or {_failure[1]:+.1f}. So a rare outcome gives a strong push, whichever it is. In a group in which all earn
    the same, nobody is pushed: in this batch {_alike} of {len(rewards)}.
    """,
        shows=[
            lesson.table(
                "Rewards of each group's samples, and their advantages",
                [
                    {
                        "group": number,
                        "rewards": " ".join(
                            f"{value:.1f}".replace("-", "−") for value in found
                        ),
                        "advantages": " ".join(
                            f"{value:+.1f}".replace("-", "−") for value in given
                        ),
                    }
                    for number, (found, given) in enumerate(
                        zip(rewards, advantages, strict=True)
                    )
                ],
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A fault that makes no noise

    Generator and trainer are two programs. If they disagree about the probability of a token, nothing fails: the policy gradient is just that of
    another policy. So a trainer compares its own log-prob of every token with the recorded one.

    The episodes above went into three training steps, each time marked as fresh. One step is sound. In one, the text that the tools wrote is
    *not masked*. In one, the generator had missed a pull, so its weights were a version too old.

    In the table, log-probs and entropy are in nats, over all tokens trained on. Entropy says how undecided the policy is about the next token. Let w be the trainer's
    probability of a token over the recorded one. The **effective sample size** of n tokens is (Σw)² / (n Σw²). At 0.6, 1,000 tokens tell only as much
    as 600 fresh ones.
    """)
    return


@app.cell(hide_code=True)
def _(advantages, config, episodes):
    def _diagnose(batch, learner):
        found = learner.step(batch, [a for given in advantages for a in given])
        return found | {"trained on": sum(sum(e.sampled) for e in batch)}

    def _fresh():
        run = run_config(config).changed(warmup_steps=0)
        return Learner(
            load_policy(config.policy, config.device), run.learner, decay_steps=run.steps
        )

    _learner = _fresh()
    _sound = _diagnose(episodes, _learner)
    diagnosed = {
        "a missed pull": _diagnose(episodes, _learner),
        "sound": _sound,
        "not masked": _diagnose(
            [replace(e, sampled=[True] * len(e.sampled)) for e in episodes], _fresh()
        ),
    }
    lesson.table(
        "Diagnostics of three training steps",
        [
            {
                "step": letter,
                "tokens trained on": found["trained on"],
                "log-probs differ by up to": f"{found['max_logp_difference']:.6f}",
                "effective sample size": f"{found['effective_sample_size']:.3f}",
                "entropy": f"{found['entropy']:.3f}",
            }
            for letter, found in zip("ABC", diagnosed.values(), strict=True)
        ],
    )
    return (diagnosed,)


@app.cell(hide_code=True)
def _():
    ask_fault = lesson.predict(
        "In which step had the generator missed a pull?",
        "step A",
        "step B",
        "step C",
    )
    ask_fault
    return (ask_fault,)


@app.cell(hide_code=True)
def _(ask_fault, diagnosed, episodes):
    _names = list(diagnosed)
    _sound, _stale, _open = (
        diagnosed[name] for name in ("sound", "a missed pull", "not masked")
    )
    _sampled = sum(sum(e.sampled) for e in episodes)
    lesson.reveal(
        ask_fault,
        right=_names.index("a missed pull"),
        why=f"""
    Step {"ABC"[_names.index("a missed pull")]}: one version of age makes a difference of {_stale["max_logp_difference"]:.2f}. That is **staleness**. Here it is a mistake, because the episodes are marked as fresh.
    Step {"ABC"[_names.index("sound")]} is sound and differs by {_sound["max_logp_difference"]:.6f} at most:
    {"that is rounding" if _sound["max_logp_difference"] < 1e-3 else "more than rounding, which has to be looked into"}, although one program samples token by
    token and the other reads whole episodes.

    The policy sampled {_sampled:,} tokens, and step {"ABC"[_names.index("not masked")]} trained on {_open["trained on"]:,}. The others are the tools'. Nobody sampled them, so their
    recorded log-prob is 0, and the trainer finds them {_open["max_logp_difference"]:.0f} away. They also enter its mean entropy, so that differs.
    """,
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.figure(
        loop_drawing("generator", "replay buffer", "trainer", "weights"),
        "The queue `ready` stands where the package has its replay buffer; advantages are computed on the way to the trainer.",
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## The controller, written out

    Now nobody takes turns: while the trainer works on one batch, the generator already writes the next. All of the
    controller is two coroutines with a queue, `ready`, between them. The two share the counts in `now`:
    groups started, steps begun, and the newest version published. Steps count from 0, so with `step` steps begun, the next one is number `step`.
    A coroutine lets others run only at an `await`. Between two of them nobody else changes `now`, so no lock is needed.

    `news` wakes a generator that has to wait. It is cleared before `now` is read, so that a publication during the pull
    is not missed.

    A group is of the **policy version** that sampled it, and its **lag** is how many versions later it is trained on. `max_lag` bounds it. Nothing
    checks the age of finished data. Instead `may_start` decides what may be *started*, so no work is thrown away.
    """)
    return


@app.cell(hide_code=True)
def _(config):
    _moments = {
        "nothing has happened": (0, 0, 0),
        "a batch is asked for": (0, 0, 1),
        "a second one": (0, 0, 2),
        "step 0 begins with the first": (0, 1, 2),
        "version 1 is out and pulled": (1, 1, 2),
    }
    lesson.table(
        f"The first moments at `max_lag` 1, with {config.prompts} groups a step",
        [
            {
                "": moment,
                "`version`": version,
                "`now.step`": step,
                "`now.started`": started * config.prompts,
                "`on_the_way`": (started - step) * config.prompts,
                "may start": may_start_solution(
                    version, step, (started - step) * config.prompts, config.prompts, 1
                ),
            }
            for moment, (version, step, started) in _moments.items()
        ],
    )
    return


@app.function
async def train_bare(actors, may_start, steps, per_step, max_lag, on_step):
    ready, news = asyncio.Queue(), asyncio.Event()  # finished groups; new weights are out
    now = SimpleNamespace(started=0, step=0, published=0)

    async def generate():
        version = 0  # pulled in bring_up
        while now.started < steps * per_step:
            news.clear()  # before the looks below, so that no news is missed
            if version < now.published:
                version = await actors.generator.pull.call_one()
            on_the_way = now.started - now.step * per_step
            count = may_start(version, now.step, on_the_way, per_step, max_lag)
            if count < 1:
                await news.wait()
                continue
            # At most one batch in a message, and no group after the last step.
            end = min(now.started + min(count, per_step), steps * per_step)
            numbers = list(range(now.started, end))
            now.started = end
            tasks = await actors.dataset.tasks.call_one(numbers)
            request = list(zip(numbers, tasks, strict=True))
            groups = await actors.generator.generate.call_one(request)
            await score(actors, groups)
            for _, group in groups:
                ready.put_nowait(group)  # oldest first; `may_start` bounds how many

    async def train():
        while now.step < steps:
            batch = [await ready.get() for _ in range(per_step)]
            now.step += 1  # begun: its groups are no longer on the way
            rewards = [[e.score.reward for e in group] for group in batch]
            advantages = await actors.advantage.compute.call_one(rewards)
            episodes = [e for group in batch for e in group]
            flat = [a for given in advantages for a in given]
            metrics = await actors.trainer.step.call_one(episodes, flat)
            now.published = await actors.trainer.publish.call_one()
            news.set()  # only newer weights let more groups start
            on_step(now.step, metrics)

    await run_together(generate(), train())  # if one fails, the other is cancelled


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 1: admission

    Complete `may_start`: how many more groups may be started with weights `version` while `step` is the next step to begin? Step s trains version s
    and makes version s + 1. It takes `per_step` groups. `on_the_way` groups have been started, and no step has taken them yet (05 counts a batch until its step is over). They are older, so they
    go first. A group must be trained on at step `version + max_lag` at the latest. Return a count, 0 if none may start. For example,
    `may_start(0, 0, 0, 8, 1)` is 16: steps 0 and 1 are left, and take 8 groups each. It is plugged in, and drives the run below.
    """)
    return


@app.function
def may_start(version, step, on_the_way, per_step, max_lag):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: may_start,
        check_may_start,
        may_start_solution,
        level="core",
        minutes=6,
        hints=(
            "How many steps are left for such a group, the one at `version + max_lag` included? How many groups do these steps take?",
            "`version + max_lag - step + 1` steps are left, of `per_step` groups each. Those on the way take their places first. The answer is never negative.",
        ),
    )
    return


@app.cell(hide_code=True)
def _(config):
    rule, _whose = plug_in(
        may_start, may_start_solution, lambda attempt: keeps_going(attempt, config)
    )
    rule_is_yours = rule is may_start
    lesson.md(
        f"The run below asks {_whose}."
        + (
            ""
            if rule_is_yours
            else " A rule that would stop the loop for ever is not plugged in. Any other wrong rule drives the run, and you see what it does."
        )
    )
    return rule, rule_is_yours


@app.function(hide_code=True)
def keeps_going(attempt, config):
    """Whether the loop can run with this rule at all: with the newest weights and nothing on the way, something may start."""
    return all(
        attempt(version, version, on_the_way, config.prompts, lag) >= 1
        for version in range(4)
        for lag in (0, config.max_lag)
        for on_the_way in range(config.prompts)
    )


@app.cell(hide_code=True)
def _(config):
    ask_ahead = lesson.predict(
        f"One step is done, version 1 is published, and nothing is on the way. `max_lag` is 1. A generator has not pulled and still has version 0. How many "
        f"groups may it start, at {config.prompts} a step?",
        "none",
        f"{config.prompts}",
        f"{2 * config.prompts}",
    )
    ask_ahead
    return (ask_ahead,)


@app.cell(hide_code=True)
def _(ask_ahead, config, rule):
    _buffer = ReplayBuffer(config.prompts, 1, total_groups=1_000 * config.prompts)
    for _number in _buffer.admit(0, config.prompts):
        _buffer.add(_number, 0, "a group")
    _buffer.take()
    _old = len(_buffer.admit(0, 1_000))
    _answers = [0, config.prompts, 2 * config.prompts]
    lesson.reveal(
        ask_ahead,
        how="Computed",
        right=_answers.index(_old) if _old in _answers else [],
        why=f"""
    The package's replay buffer admits {_old}. A group of version 0 must be trained on at step 0 + 1. That is the next step, and it takes {config.prompts} groups. The rule
    that drives the run below says {rule(0, 1, 0, config.prompts, 1)}, and after a pull {rule(1, 1, 0, config.prompts, 1)}.
    """,
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    Notebook 05 used the plain policy gradient. The trainer here uses PPO's clipped loss, for data that may be old:

    ```python
    ratio = exp(logp - recorded_logp)   # the trainer's probability of a token over the one that the generator recorded
    clipped = clamp(ratio, 0.8, 1.2)
    loss = -min(ratio * advantage, clipped * advantage)
    ```

    A token is *clipped*, so it gives no gradient, when its probability has already moved by more than 20% in the wanted direction. The dashboard
    shows the share of such tokens, the **entropy** of the next token and the lag. Its effective sample size is that of
    *episodes*: w is then the product over an episode's tokens. The line of the package is its run further down. Their first steps can
    differ: the package samples two batches at once, and trains on what is finished first.
    """)
    return


@app.cell(hide_code=True)
def _(config, expected):
    start_bare = lesson.start_button(
        f"Train {config.steps} steps with the controller above",
        seconds=expected.run(run_config(config, eval_tasks=1)),
    )
    start_bare
    return (start_bare,)


@app.cell(hide_code=True)
def _(config):
    dashboard = Dashboard(
        config.steps,
        {
            "reward": "mean reward",
            "accuracy": "share of right answers",
            "entropy": "entropy, nats",
            "clipped": "share of clipped tokens",
            "episode_sample_size": "sample size of episodes",
            "lag_mean": "mean lag, versions",
        },
        title="Each training batch as it comes",
    )
    dashboard
    return (dashboard,)


@app.function(hide_code=True)
def add_step(dashboard, name, step, metrics):
    """Add a training step to the dashboard."""
    clipped = sum(metrics.get(f"clip_fraction_{side}", 0.0) for side in ("low", "high"))
    dashboard.add(name, step, metrics | {"clipped": clipped})


@app.cell(hide_code=True)
async def _(config, dashboard, rule, start_bare):
    lesson.wait_for(start_bare)
    await stop_all()
    dashboard.clear("this page's")
    _rows, _times = [], []

    def _on_step(step, metrics):
        _rows.append(metrics)
        _times.append(time.monotonic())
        add_step(dashboard, "this page's", step, metrics)

    with mo.status.spinner("Starting processes, then training", remove_on_exit=True):
        _actors = await bring_up(run_config(config), config.device)
        await train_bare(
            _actors, rule, config.steps, config.prompts, config.max_lag, _on_step
        )
        _weights = new_path("bare")
        await _actors.trainer.export.call_one(str(_weights))
        _spans = [
            span
            for actor in (_actors.trainer, _actors.generator)
            for span in await actor.drain_spans.call_one()
        ]
        await stop_all()
    bare_run = SimpleNamespace(
        rows=_rows,
        phases=phases_of(_spans, config.steps),
        policy=_weights,
        step=median(later - sooner for sooner, later in pairwise(_times)),
        lags=[row["lag_max"] for row in _rows],
    )
    return (bare_run,)


@app.function(hide_code=True)
def phases_of(spans, steps):
    """Seconds of training, the median of the steps, and of sampling, the mean."""
    seconds = {"train": [], "generate": []}
    for span in spans:
        if span.kind in seconds:
            seconds[span.kind].append(span.end - span.start)
    # A step is one span of training, but many of sampling.
    return {"train": median(seconds["train"]), "generate": sum(seconds["generate"]) / steps}


@app.function(hide_code=True)
def new_path(name):
    """A path that is gone when the notebook is."""
    return Path(tempfile.mkdtemp(dir=SCRATCH.name)) / name


@app.cell(hide_code=True)
def _(bare_run, config, environment, policy, rule_is_yours, sampling):
    _tasks = environment.tasks(tier_of("compositional"), config.held_out, "held_out")
    _before, _after = (
        evaluate(who, "held out", _tasks, environment.execute, sampling, seed=1)[0].accuracy
        for who in (policy, load_policy(str(bare_run.policy), config.device))
    )
    _highest = max(bare_run.lags)
    lesson.md(f"""
    {len(bare_run.rows)} steps, {sum(row["episodes"] for row in bare_run.rows):,.0f} episodes, {bare_run.step:.2f} s for a step in the median. The oldest group was {_highest:.0f} version{"s" * (_highest != 1)} old, and the bound is {config.max_lag}:
    {"it was kept" if _highest <= config.max_lag else "your rule let too much start" if rule_is_yours else "it was not kept"}. Of {config.held_out} held-out tasks {_before:.0%} were right before, and {_after:.0%} are now.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Is it the package's loop?

    The package's loops do the same, and more: several generators, evaluations, checkpoints, and processes that may die. This is its trainer.
    `create_task` begins to fetch scored groups with their advantages, and `await upcoming` waits until they are there.
    `improve` takes the step and publishes. `end_training` wakes generators that still wait. Its generator is folded below, with notes:
    """)
    return


@app.cell(hide_code=True)
def _():
    def _code(function):
        """Its source without the docstring."""
        code = re.sub(
            '    """.*?"""\n', "", inspect.getsource(function), count=1, flags=re.S
        )
        return f"```python\n{code}```"

    _notes = """
    - `TaskGroup` lets tasks run beside this one, and waits for them at its end. `is_behind` compares the generator's version with the newest.
    - `config.update == "groups"` is a setting: finish the groups under way before new weights come in. `gather` waits for them.
    - `refresh` pulls. It is false if the generator died meanwhile, so the loop begins anew.
    - `admit` asks the replay buffer, whose rule is the counterpart of `may_start`. It answers with one of three cases of `Admission`.
    - `"start"`: sample these groups, and hand them in, as two tasks. A slow group delays nobody. `add_done_callback` forgets a task that is done.
    - `"pull"`: newer weights are needed first. `trainer_is_up` waits for a trainer that is being restarted. `"over"`: stop.
    """
    mo.vstack(
        [
            lesson.md(_code(loop.train)),
            lesson.folded("One of the package's generators", _code(loop.generate) + _notes),
        ]
    )
    return


@app.cell(hide_code=True)
def _(config):
    ask_same = lesson.predict(
        f"At `max_lag` 0 generator and trainer wait for each other, so timing decides nothing. Both controllers take {config.same_steps} steps from the same seed, this page's with the rule of the solution. How far apart are the two policies afterwards?",
        "equal, to the last bit of every weight",
        "apart by rounding",
        "apart like two runs with different seeds",
    )
    ask_same
    return (ask_same,)


@app.cell(hide_code=True)
def _(config, expected):
    start_same = lesson.start_button(
        f"Take {config.same_steps} steps with each",
        seconds=2
        * expected.run(
            run_config(config, steps=config.same_steps, max_lag=0, eval_tasks=2)
        ),
    )
    start_same
    return (start_same,)


@app.cell(hide_code=True)
async def _(config, start_same):
    lesson.wait_for(start_same)
    _run = run_config(config, steps=config.same_steps, max_lag=0, eval_tasks=2)
    with mo.status.spinner("The page's controller, then the package's"):
        await stop_all()
        _actors = await bring_up(_run, config.device)
        await train_bare(
            _actors,
            may_start_solution,
            config.same_steps,
            config.prompts,
            0,
            lambda *_: None,
        )
        _ours = new_path("ours")
        await _actors.trainer.export.call_one(str(_ours))
        await stop_all()
        _folder = RunFolder.create(new_path("theirs"), _run)
        await run_training(_run, _folder, loop=train_async)
    same_weights = [
        torch.nn.utils.parameters_to_vector(
            load_policy(str(path), "cpu").model.parameters()
        )
        for path in (_ours, _folder.policy)
    ]
    weights_apart = float((same_weights[0] - same_weights[1]).detach().abs().max())
    return same_weights, weights_apart


@app.cell(hide_code=True)
def _(ask_same, config, policy, same_weights, weights_apart):
    _start = torch.nn.utils.parameters_to_vector(policy.model.parameters())
    _moved = float((same_weights[0] - _start.cpu()).detach().abs().max())
    _learner = run_config(config).learner
    _rates = [
        _learner.learning_rate * schedule(step, _learner.warmup_steps, 0)
        for step in range(config.same_steps)
    ]
    lesson.reveal(
        ask_same,
        right=0 if weights_apart == 0 else 1 if weights_apart < 0.01 * _moved else 2,
        why=f"""
    {f"The largest difference of a weight is {weights_apart:.1g}" if weights_apart else "No weight differs"}. In the same {config.same_steps} steps training has moved a weight by up to {_moved:.5f}. A step of Adam moves it by about
    the learning rate, which is still warming up: over these steps the rates add up to {sum(_rates):.5f}. Every draw has a seed that
    belongs to its group's number, and the batches are the same. {"So the two programs compute the same, on this machine." if weights_apart == 0 else "What remains comes from sums in another order."}
    """,
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## In turns, side by side

    The package trains twice, with equal seeds, tasks and numbers of episodes: once with `max_lag` 0, so generator and trainer take turns, and once with
    `max_lag` 1.
    """)
    return


@app.cell(hide_code=True)
def _(config, expected):
    start_both = lesson.start_button(
        f"Train {config.steps} steps twice with the package",
        seconds=sum(
            expected.run(run_config(config, max_lag=lag)) for lag in (0, config.max_lag)
        ),
    )
    start_both
    return (start_both,)


@app.cell(hide_code=True)
def _(config, start_both):
    lesson.wait_for(start_both)
    both_curve = LiveCurve(config.steps, title="Held-out accuracy, sampled")
    both_curve
    return (both_curve,)


@app.function(hide_code=True)
def watched(name, curve, bar, on_step=lambda row: None):
    """Hands rows of metrics to a curve, a progress bar, and steps to ``on_step``."""

    def show(row):
        if row["event"] == "eval":
            curve.add(name, row["step"], row["sampled_accuracy"])
        elif row["event"] == "step":
            bar.update()
            on_step(row)

    return show


@app.cell(hide_code=True)
async def _(both_curve, config, dashboard):
    both_curve.clear()
    dashboard.clear("the package's")
    folders = {}

    def _on_dashboard(row):
        add_step(dashboard, "the package's", row["step"], row)

    with mo.status.progress_bar(
        total=2 * config.steps,
        title="Starting processes, then training",
        remove_on_exit=True,
    ) as _bar:
        for _name, _lag, _on_step in (
            ("in turns", 0, lambda row: None),
            ("side by side", config.max_lag, _on_dashboard),
        ):
            _run = run_config(config, max_lag=_lag)
            folders[_name] = RunFolder.create(new_path("run"), _run)
            await run_training(
                _run, folders[_name], show=watched(_name, both_curve, _bar, _on_step)
            )
    return (folders,)


@app.cell(hide_code=True)
def _(config):
    ask_time = lesson.predict(
        f"The same {config.steps} steps side by side, on two processes that share this machine: how long does a median step take, compared with one in turns?",
        "about half as long, two thirds at most",
        "in between",
        "about as long, or longer",
    )
    ask_time
    return (ask_time,)


@app.function(hide_code=True)
def rows_of(folder, event):
    return [row for row in folder.metrics() if row["event"] == event]


@app.cell(hide_code=True)
def _(config, folders):
    timelines = {name: Timeline.load(folder.timeline) for name, folder in folders.items()}

    def _account(folder, timeline):
        """What a run took and did, evaluations included."""
        steps = rows_of(folder, "step")
        pace = [b["seconds"] - a["seconds"] for a, b in pairwise(steps)]
        begin = min(s.start for s in timeline.spans if s.kind == "generate")
        shares = timeline.shares((begin, begin + steps[-1]["seconds"]))
        lags = runs.lags_of(timeline)
        return SimpleNamespace(
            episodes=steps[-1]["episodes"],
            seconds=steps[-1]["seconds"],
            step=median(pace),
            **phases_of([s for s in timeline.spans if s.start >= begin], len(steps)),
            trainer=1 - shares["trainer"]["idle"],
            generator=1 - shares["generator_0"]["idle"],
            lag=sum(lag * n for lag, n in lags.items()) / sum(lags.values()),
            oldest=max(lags),
            after=rows_of(folder, "eval")[-1]["sampled_accuracy"],
        )

    accounts = {name: _account(folder, timelines[name]) for name, folder in folders.items()}

    def _stretch(timeline):
        """Six steps in turns, and as many seconds of the other run."""
        begins = sorted(span.start for span in timeline.spans if span.kind == "train")
        return begins[min(3, config.steps // 3)]

    stretch = 6 * accounts["in turns"].step
    windows = {
        name: timeline.between(_stretch(timeline), _stretch(timeline) + stretch)
        for name, timeline in timelines.items()
    }
    return accounts, stretch, windows


@app.cell(hide_code=True)
def _(accounts, ask_time, bare_run, config, stretch, windows):
    _sync, _async = accounts["in turns"], accounts["side by side"]
    _ratio = _async.step / _sync.step
    _longer = max(_sync.train, _sync.generate)
    _slower = {
        kind: getattr(_async, kind) / getattr(_sync, kind) for kind in ("train", "generate")
    }
    _between = bare_run.step - _async.step
    _inside = bare_run.phases["train"] - _async.train
    lesson.reveal(
        ask_time,
        right=0 if _ratio < 0.67 else 1 if _ratio < 0.97 else 2,
        why=f"""
    {_ratio:.0%} of the time. In turns the trainer was busy for {_sync.trainer:.0%} and the generator, with its evaluations, for {_sync.generator:.0%}. In the rest neither worked: messages and scoring. Of a step in turns, {_sync.step:.2f} s, the longer phase takes {_longer:.2f} s.
    If it hid everything else, and slowed nothing, a step would take {_longer / _sync.step:.0%}.

    {f"But the two slow each other. Training took {_slower['train']:.1f} and sampling {_slower['generate']:.1f} times as long beside the other as in turns." if max(_slower.values()) > 1.1 else "Neither was much slower beside the other, so what is left is waiting."}
    A step of this page's controller took {bare_run.step:.2f} s, {bare_run.phases["train"]:.2f} s of it training. The package's took
    {_async.step:.2f} s and {_async.train:.2f} s. {"So the two keep about the same pace." if abs(_between) < 0.1 * _async.step else "So most of this difference lies in training itself: the same work, at another time." if _inside / _between > 0.5 else "So they differ mainly in what is between two steps."}
    """,
        shows=[
            lesson.figure(
                runs.paired_timelines(windows, stretch, ["generator_0", "trainer"]),
                f"An excerpt: {stretch:.1f} s of each run, from the beginning of the same training step, with its busy shares. The table has the whole run, with its evaluations.",
            ),
            lesson.table(
                "The two runs",
                [
                    {"": label}
                    | {
                        name: how.format(getattr(found, field))
                        for name, found in accounts.items()
                    }
                    for label, field, how in (
                        ("episodes", "episodes", "{:,}"),
                        ("wall time, evaluations included", "seconds", "{:.1f} s"),
                        ("median time of a step", "step", "{:.3f} s"),
                        ("training, median of a step", "train", "{:.3f} s"),
                        ("sampling, mean of a step", "generate", "{:.3f} s"),
                        ("trainer busy", "trainer", "{:.0%}"),
                        ("generator busy", "generator", "{:.0%}"),
                        ("mean lag of a group, versions", "lag", "{:.2f}"),
                        ("largest lag of a group, versions", "oldest", "{}"),
                        (f"right of {config.eval_tasks} held-out tasks", "after", "{:.0%}"),
                    )
                ],
            ),
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Could you have known?

    The simulator of notebook 05 knows only the rules of the loop, and how long each group, step and transfer took in the two runs above.
    The last row predicts the run side by side from the latencies *in turns*.
    """)
    return


@app.cell(hide_code=True)
def _(config, folders):
    recorded = {name: read_run(folder.path) for name, folder in folders.items()}
    _sync, _async = recorded.values()
    predictions = [
        ("in turns", predict(_sync), _sync.seconds),
        ("side by side", predict(_async), _async.seconds),
        (
            "side by side, from the latencies in turns",
            predict(_sync, max_lag=config.max_lag),
            _async.seconds,
        ),
    ]
    _errors = [run.seconds / seconds - 1 for _, run, seconds in predictions]
    mo.vstack(
        [
            lesson.table(
                "Wall time of a run, simulated and measured",
                [
                    {
                        "run": name,
                        "simulated": f"{run.seconds:.2f} s",
                        "measured": f"{seconds:.2f} s",
                        "error": f"{round(error, 3) + 0:+.1%}".replace("-", "−"),
                    }
                    for (name, run, seconds), error in zip(
                        predictions, _errors, strict=True
                    )
                ],
            ),
            lesson.md(
                (
                    "With the latencies of a run itself, the rules of the loop explain its time. "
                    if max(map(abs, _errors[:2])) < 0.05
                    else "Even with its own latencies, a run is not explained to 5%. "
                )
                + (
                    "With the latencies in turns, the simulator promises too much: it does not know that each phase gets slower beside the other."
                    if _errors[2] < -0.05
                    else "Here the latencies in turns do not promise too much."
                )
            ),
        ]
    )
    return (recorded,)


@app.cell(hide_code=True)
def _(config):
    ask_enough = lesson.predict(
        "The simulator, with the latencies of the run side by side: from which `max_lag` on is the run within 2% of the shortest one?",
        *(f"{lag}" for lag in config.slider_lags),
    )
    ask_enough
    return (ask_enough,)


@app.cell(hide_code=True)
def _(config, recorded):
    lag_study = read_study(RECORDED / "lags.jsonl")
    simulated = {
        lag: predict(recorded["side by side"], max_lag=lag) for lag in config.slider_lags
    }
    recorded_accuracy = {
        (NAMES[cell.loss], cell.lag): cell.accuracies for cell in lag_study.cells()
    }

    def _at(max_lag, loss):
        run = simulated[max_lag]
        found = recorded_accuracy.get((loss, max_lag), [])
        return Answer(
            figure=runs.paired_timelines(
                {
                    f"max_lag {max_lag}": run.timeline.between(
                        run.timeline.start, run.timeline.start + _shown
                    )
                },
                _shown,
                ["generator_0", "trainer"],
            ),
            numbers=[
                (
                    "Wall time",
                    f"{run.seconds:.1f} s",
                    "simulated with this page's latencies",
                ),
                (
                    "Mean lag",
                    f"{sum(lag * n for lag, n in run.staleness.items()) / sum(run.staleness.values()):.2f}",
                    "of that run's groups",
                ),
                (
                    "Accuracy",
                    f"{fmean(found):.0%}" if found else "unknown",
                    f"recorded, data all as old as that, {len(found)} seed{'s' * (len(found) != 1)}",
                ),
            ],
        )

    _shown = 6 * simulated[0].seconds / config.steps
    lag_slider = WhatIf(
        "One lag bound: timeline, wall time and accuracy",
        [
            Knob("max_lag", "Max lag", list(config.slider_lags)),
            Knob("loss", "Loss", list(NAMES.values()), "{}"),
        ],
        _at,
        {"max_lag": config.max_lag, "loss": "clipped"},
        static="execute" in mo.cli_args(),
    )
    return lag_slider, lag_study, recorded_accuracy, simulated


@app.cell(hide_code=True)
def _(
    ask_enough,
    config,
    lag_slider,
    lag_study,
    recorded,
    recorded_accuracy,
    simulated,
):
    _seconds = {lag: run.seconds for lag, run in simulated.items()}
    _best = min(_seconds.values())
    _enough = next(lag for lag in config.slider_lags if _seconds[lag] < 1.02 * _best)
    _high = max(config.slider_lags)

    def _all_of(shares):
        return " and ".join(f"{share:.0%}" for share in shares)

    _costs = " and ".join(
        f"from {_all_of(recorded_accuracy[loss, 0])} to {_all_of(recorded_accuracy[loss, _high])} with the {loss} loss"
        for loss in NAMES.values()
        if (loss, 0) in recorded_accuracy and (loss, _high) in recorded_accuracy
    )
    lesson.reveal(
        ask_enough,
        how="Simulated",
        right=config.slider_lags.index(_enough),
        why=f"""
    From {_enough} on: the five lags take {", ".join(f"{_seconds[lag]:.1f}" for lag in config.slider_lags)} s. More lag lets the trainer go on while the generator evaluates or has a slow batch. The run in turns was measured at {recorded["in turns"].seconds:.1f} s, not {_seconds[0]:.1f}: its
    phases had no other beside them.

    More lag is not free. From lag 0 to lag {_high}, accuracy went {_costs}: one number for each seed. That is a study of short runs with another
    learning rate, recorded on {lag_study.dates}; its command is in `benchmarks/lags.jsonl`. There every group was as old as the lag; here `max_lag` is only a bound.
    Notebook 09 is about that price.
    """,
        shows=[lag_slider],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 2: how many generators?

    One generator samples a group in `generate` seconds, a training step takes `train` seconds and needs `groups` groups. Complete
    `generators_needed`: the least number of generators that keeps the trainer busy, if they share the work of each step evenly, even parts of a
    group. Pulls take no time. For example, 8 groups of 1 s each for steps of 2 s need 4 generators.
    """)
    return


@app.function
def generators_needed(generate, train, groups):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: generators_needed,
        check_generators_needed,
        generators_needed_solution,
        level="warm-up",
        minutes=3,
        hints=(
            "How many seconds of sampling does a step need? How many of them can one generator do while the trainer takes a step?",
            "Divide `groups * generate` by `train`. Two thirds of a generator do not exist: `math.ceil`. Rounding to nine digits first keeps 3.0000000000000004 from becoming 4.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A process is killed

    The page's controller ends when any process dies: a call to it raises an error. The package's goes on:
    its generators are a service, as in notebook 06. In mid-training one of two generators gets `kill -9`. A third, a spare, is loaded and waits.
    """)
    return


@app.cell(hide_code=True)
def _(config):
    ask_killed = lesson.predict(
        f"The generator dies with groups half sampled. The run is to train on {config.killed_steps * config.prompts} groups. How many will it have trained on?",
        "all but those that died with it",
        "all of them, some twice",
        "all of them, each once",
    )
    ask_killed
    return (ask_killed,)


@app.cell(hide_code=True)
def _(config, expected):
    start_killed = lesson.start_button(
        f"Train {config.killed_steps} steps and kill a generator",
        seconds=expected.run(
            run_config(config, steps=config.killed_steps, generators=2, spares=1)
        ),
    )
    start_killed
    return (start_killed,)


@app.cell(hide_code=True)
def _(config, start_killed):
    lesson.wait_for(start_killed)
    killed_curve = LiveCurve(
        config.killed_steps, title="A generator is killed half-way: accuracy"
    )
    killed_curve
    return (killed_curve,)


@app.function
async def kill_in_the_act(controller):
    """`kill -9` for a generator in the second half, when it has been busy for a while."""
    busy, steps = 0, controller.config.steps
    while controller.step < steps // 2 or (busy < 3 and controller.step < steps):
        await asyncio.sleep(0.03)
        generator = controller.services["generator"].status().replicas[0]
        # `in_flight`: the requests that it has now. Three busy looks in a row are enough.
        busy = busy + 1 if generator.in_flight else 0
    os.kill(generator.pid, signal.SIGKILL)
    now = time.monotonic()
    controller.log.timeline.add([Span(generator.replica, "kill", now, now)])


@app.function(hide_code=True)
async def train_and_kill(run, folder, show):
    """Train, and kill a generator meanwhile. Returns the run's log and the replay buffer's books."""
    log = RunLog(folder, show)
    async with Controller.assemble(run, log) as controller:
        await controller.begin()
        await run_together(train_async(controller), kill_in_the_act(controller))
        await controller.finish()
        books = (await controller.replay.state.route())["counters"]
    return log, books


@app.function(hide_code=True)
@contextmanager
def quietly():
    """Keep what native code writes to file descriptor 2 off the page. Yields a list, which has its lines at the end."""
    lines, saved = [], os.dup(2)
    with tempfile.TemporaryFile() as kept:
        os.dup2(kept.fileno(), 2)
        try:
            yield lines
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            kept.seek(0)
            lines += [
                line
                for line in kept.read().decode(errors="replace").splitlines()
                if line.strip()
            ]


@app.cell(hide_code=True)
async def _(config, killed_curve):
    killed_curve.clear()
    _run = run_config(
        config,
        steps=config.killed_steps,
        generators=2,
        spares=1,
        eval_every=config.killed_steps,
    )
    with (
        mo.status.progress_bar(
            total=config.killed_steps,
            title="Starting processes, then training",
            remove_on_exit=True,
        ) as _bar,
        quietly() as native_errors,
    ):
        run_log, books = await train_and_kill(
            _run,
            RunFolder.create(new_path("killed"), _run),
            watched("held-out, sampled", killed_curve, _bar),
        )
    return books, native_errors, run_log


@app.cell(hide_code=True)
def _(ask_killed, books, config, loading_seconds, native_errors, run_log):
    _kill, _restart = (
        next(span for span in run_log.timeline.spans if span.kind == kind)
        for kind in ("kill", "restart")
    )
    since_kill = _restart.end - _kill.start
    _trained = sorted(
        number
        for span in run_log.timeline.spans
        if span.kind == "train"
        for number, *_ in span.args["groups"]
    )
    each_once = _trained == list(range(config.killed_steps * config.prompts))
    balance = books["started"] - books["trained"] - books["abandoned"] - books["stale"]
    _rows = rows_of(run_log.folder, "restart")
    _around = run_log.timeline.between(_kill.start - 1.0, _restart.end + 4.0)
    _mark = (_around.end - _around.start) / 150  # a kill takes no time: its mark is widened
    _noticed = _restart.start - _kill.start
    _left_out = (
        f" Monarch wrote {len(native_errors)} more, which this page leaves out."
        if native_errors
        else ""
    )
    _noted = lesson.quote(_rows[0]["reason"].partition("\n")[0][:120])
    lesson.reveal(
        ask_killed,
        right=2
        if each_once
        else 0
        if len(_trained) < config.killed_steps * config.prompts
        else 1,
        why=f"""
    {"All of them, each once." if each_once else "Not all of them exactly once: the books say what is missing."} A group belongs to its *number*. When a generator dies, the numbers that it was
    working on are admitted again, with the same tasks and the same seeds. The spare took its place {since_kill:.2f} s after the kill, because it had been kept
    ready. Starting and loading took {loading_seconds:.1f} s at the top of this page.

    The run noted: {_noted}.{_left_out}

    A trainer that dies comes back from its last checkpoint: `tests/training/test_faults.py` kills one.
    """,
        shows=[
            lesson.figure(
                timeline_chart(
                    Timeline(
                        sorted(
                            (
                                replace(s, end=s.end + _mark) if s.kind == "kill" else s
                                for s in _around.spans
                                if s.actor.startswith(("generator", "trainer"))
                            ),
                            key=lambda s: s.actor,
                        )
                    )
                ),
                f"Around the kill. The dead generator's last moments died with it. The service notices {_noticed:.2f} s later: there “restart” begins, until the spare gets requests. Until then its groups count as under way, so `max_lag` may leave the other generator nothing to start.",
            ),
            lesson.table(
                "The books of the run",
                [
                    {"entry": "processes replaced", "value": len(_rows)},
                    {"entry": "groups started", "value": books["started"]},
                    {
                        "entry": "groups lost with the generator, and generated again",
                        "value": books["abandoned"],
                    },
                    {"entry": "groups trained on", "value": books["trained"]},
                    {"entry": "groups thrown away as too old", "value": books["stale"]},
                    {"entry": "unaccounted for", "value": balance},
                    {
                        "entry": "numbers found in the trainer's steps",
                        "value": "each once"
                        if each_once
                        else f"{len(set(_trained))} different ones",
                    },
                ],
            ),
        ],
    )
    return balance, each_once


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Before and after

    The policy before training and those of the package's three runs answer the same held-out tasks, with the same random draws. Other shares on this
    page differ by some points: they are of other tasks and draws, and often of fewer.
    """)
    return


@app.cell(hide_code=True)
def _(config, environment, folders, policy, run_log, sampling):
    _tasks = environment.tasks(tier_of("compositional"), config.held_out, "held_out")
    trained = {
        **{
            f"after, {name}": load_policy(str(folder.policy), config.device)
            for name, folder in folders.items()
        },
        "after, with a kill": load_policy(str(run_log.folder.policy), config.device),
    }
    evaluated = {
        name: evaluate(found, name, _tasks, environment.execute, sampling, seed=1)
        for name, found in ({"before": policy} | trained).items()
    }
    learned = trained["after, side by side"]
    return evaluated, learned


@app.cell(hide_code=True)
def _(config, evaluated):
    _reports = [report for report, _ in evaluated.values()]
    _before, _after = evaluated["before"][0], evaluated["after, side by side"][0]
    _tagless = [report.outcomes["wrong_format"] for report in (_before, _after)]
    mo.vstack(
        [
            lesson.figure(
                figures.accuracy_chart(_reports),
                f"{_reports[0].episodes} held-out tasks, sampled at temperature 1, with 95% intervals. The run with a kill had {config.killed_steps} steps, the others {config.steps}.",
            ),
            lesson.figure(figures.outcome_chart(_reports), "How the episodes ended."),
            lesson.md(f"""
    Side by side: from {_before.accuracy:.0%} to {_after.accuracy:.0%}, {signed(100 * (_after.accuracy - _before.accuracy))} points. Episodes that end without `[ANSWER]` went from {_tagless[0]:.0%} to {_tagless[1]:.0%}, {signed(100 * (_tagless[1] - _tagless[0]))} points. An episode now
    has {_after.tokens:.0f} tokens, against {_before.tokens:.0f} before, and {_after.tool_calls:.1f} tool calls against {_before.tool_calls:.1f}.
    """),
        ]
    )
    return


@app.cell(hide_code=True)
def _(evaluated, learned, policy):
    _old, _new = evaluated["before"][1], evaluated["after, side by side"][1]
    _turned = [
        index
        for index, (was, now) in enumerate(zip(_old, _new, strict=True))
        if was.score.outcome != "success" and now.score.outcome == "success"
    ]
    _shown = _turned[0] if _turned else 0
    mo.vstack(
        [
            lesson.figure(
                token_strip(owner, episodes[_shown]),
                f"{when}: “{episodes[_shown].task.question}”, expected {episodes[_shown].task.answer}, `{episodes[_shown].score.outcome}`.",
            )
            for when, owner, episodes in (
                ("Before", policy, _old),
                ("After", learned, _new),
            )
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Taught, or sharpened?

    A policy that is right once in a hundred attempts has the answer somewhere. Training can make it come at once, and have taught nothing new. So ask for more: **pass@k** is
    the chance that at least one of k attempts is right. If training only sharpens, the old policy catches up as k grows
    ([Yue et al. 2025](https://arxiv.org/abs/2504.13837)).

    Where the old policy solves every task at the largest k, nobody can be ahead of it. So these tasks are *harder* than those of the training: more
    words to add and subtract.

    ### Exercise 3: pass@k

    Of `samples` attempts at a task, `correct` were right. Complete `pass_at_k`: the chance that k attempts, drawn from them without putting any back, hold a right
    one. That is the estimator of [Chen et al. 2021](https://arxiv.org/abs/2107.03374), equation 1, and it has no bias. `1 - (1 - correct / samples) ** k` has one.
    """)
    return


@app.function
def pass_at_k(samples, correct, k):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: pass_at_k,
        check_pass_at_k,
        pass_at_k_solution,
        level="stretch",
        minutes=6,
        hints=(
            "Compute the opposite: the chance that all k drawn attempts are wrong. In how many ways can you draw k of the wrong ones?",
            "`math.comb(samples - correct, k)` ways to draw only wrong ones, of `math.comb(samples, k)` ways to draw at all. `math.comb` gives 0 if fewer than `k` are wrong.",
        ),
    )
    return


@app.cell(hide_code=True)
def _(config):
    _passes = exercise.complaint(check_pass_at_k, pass_at_k) is None
    estimator = pass_at_k if _passes else pass_at_k_solution
    lesson.md(
        "Your `pass_at_k` draws the figure below."
        if _passes
        else "`pass_at_k` does not pass its check yet, so the course's solution draws the figure below."
    )
    return (estimator,)


@app.cell(hide_code=True)
def _(config):
    ask_pass = lesson.predict(
        f"{config.pass_tasks} held-out {config.pass_difficulty} tasks, {config.pass_samples} attempts at each, before and after. Which policy has the higher pass@{config.pass_judged}?",
        "the trained one, clearly",
        "no clear difference",
        "the old one, clearly",
    )
    ask_pass
    return (ask_pass,)


@app.cell(hide_code=True)
def _(config, expected):
    start_pass = lesson.start_button(
        f"Sample {2 * config.pass_tasks * config.pass_samples:,} episodes",
        seconds=expected.sampling(
            2 * config.pass_tasks * config.pass_samples, run_config(config)
        ),
    )
    start_pass
    return (start_pass,)


@app.cell(hide_code=True)
def _(config, environment, learned, policy, sampling, start_pass):
    lesson.wait_for(start_pass)
    _tier = tier_of("compositional", config.pass_difficulty)
    _tasks = environment.tasks(_tier, config.pass_tasks, "held_out")
    right = {}
    with mo.status.progress_bar(
        total=2 * config.pass_tasks * config.pass_samples,
        title="Episodes",
        remove_on_exit=True,
    ) as _bar:
        for _name, _policy in (("before", policy), ("after", learned)):
            _requests = [
                RolloutRequest(task, number * config.pass_samples + attempt)
                for number, task in enumerate(_tasks)
                for attempt in range(config.pass_samples)
            ]
            _episodes = rollout(
                _policy,
                _requests,
                environment.execute,
                sampling,
                on_episode=lambda _: _bar.update(),
            )
            _good = [is_right(e) for e in _episodes]
            right[_name] = [
                sum(_good[first : first + config.pass_samples])
                for first in range(0, len(_good), config.pass_samples)
            ]
    return (right,)


@app.cell(hide_code=True)
def _(ask_pass, config, estimator, right):
    passes = {
        name: {
            k: [estimator(config.pass_samples, count, k) for count in counts]
            for k in config.pass_at
        }
        for name, counts in right.items()
    }
    _low, _high = min(config.pass_at), config.pass_judged
    _gain = {k: paired(passes["before"][k], passes["after"][k]) for k in (_low, _high)}
    (_first, _once), (_last, _noise) = _gain[_low], _gain[_high]
    _never = {name: counts.count(0) for name, counts in right.items()}
    _old = fmean(passes["before"][_high])
    _said = (
        "So it was taught, as far as this k tells: it solves more than the old policy does in as many attempts"
        if _last > _noise
        else "So the old policy, given enough attempts, is ahead: training has narrowed what it tries"
        if _last < -_noise
        else "The old policy leaves too little room there: these tasks cannot show teaching"
        if 1 - _old <= _noise
        else f"The old policy catches up, so this is sharpening. It left {100 * (1 - _old):.0f} points of room, and a gain had to be beyond ± {100 * _noise:.0f} to be clear"
        if _first > _once
        else "Neither is clearly better at one attempt either, so this run decides nothing"
    )
    lesson.reveal(
        ask_pass,
        right=0 if _last > _noise else 2 if _last < -_noise else 1,
        why=f"""
    From before to after, pass@{_low} changes by {signed(100 * _first)} ± {100 * _once:.0f} points, and pass@{_high} by {signed(100 * _last)} ± {100 * _noise:.0f}, from {_old:.0%} (± is two standard errors over tasks).
    {_said}. Of the {config.pass_tasks} tasks the old policy never solved {_never["before"]}, the trained one {_never["after"]}. That is a finding about this small policy, and
    about tasks that it was not trained on.
    """,
        shows=[
            lesson.figure(
                figures.pass_chart(
                    {
                        name: {k: fmean(v) for k, v in found.items()}
                        for name, found in passes.items()
                    }
                ),
                f"pass@k on {config.pass_tasks} held-out {config.pass_difficulty} tasks, estimated from {config.pass_samples} attempts at each.",
            )
        ],
    )
    return (passes,)


@app.cell(hide_code=True)
def _():
    ask_kinds = lesson.predict(
        "All training was on `compositional` tasks. How many of the three other kinds does the trained policy solve clearly more often than before?",
        "none",
        "one",
        "two",
        "all three",
    )
    ask_kinds
    return (ask_kinds,)


@app.cell(hide_code=True)
def _(ask_kinds, config, environment, learned, policy, sampling):
    _rows, _better, _silent = [], 0, {"before": 0, "after": 0}
    for _kind in ("simple", "multi_step", "recursive"):
        _tasks = environment.tasks(tier_of(_kind), config.kind_tasks, "held_out")
        _right = {}
        for _when, _who in (("before", policy), ("after", learned)):
            _, _episodes = evaluate(
                _who, _kind, _tasks, environment.execute, sampling, seed=2
            )
            _right[_when] = [e.score.outcome == "success" for e in _episodes]
            _silent[_when] += sum(e.score.answer is None for e in _episodes)
        _gain, _noise = paired(*_right.values())
        _better += _gain > _noise
        _rows.append(
            {"kind": _kind}
            | {when: f"{fmean(found):.0%}" for when, found in _right.items()}
            | {"change": f"{signed(100 * _gain)} ± {100 * _noise:.0f} points"}
        )
    _all = 3 * config.kind_tasks
    lesson.reveal(
        ask_kinds,
        right=_better,
        why=f"""
    {("None", "One", "Two", "All three")[_better]}, by more than two standard errors. Over the three kinds, {_silent["before"] / _all:.0%} of the episodes ended without an answer before, and
    {_silent["after"] / _all:.0%} do now. The form of an answer is the same for every kind.
    """,
        shows=[
            lesson.table(
                f"Kinds that were not trained: {config.kind_tasks} held-out tasks each, ± two standard errors",
                _rows,
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.figure(
        loop_drawing("reward", "trainer"),
        "Here: the reward is changed, and the trainer does what it pays for.",
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A reward that gets hacked

    The policy should use its tools, so somebody pays for it: a *shaped* reward, with a bonus for every call instead of the parts for form and
    for extra calls. The KL penalty is the usual guard. KL, the Kullback–Leibler divergence, measures how far the policy is from its **reference**, a copy of what it was before training.
    Let d be the log-prob of a sampled token, less its log-prob by the reference. The mean of `exp(-d) - 1 + d` over tokens estimates KL(policy ‖ reference).
    The penalty adds this mean, times a weight, to the *loss*, so its gradient pulls the policy back. The reward stays as it is.
    """)
    return


@app.function
def shaped(episode, bonus):
    correct = episode.score.outcome == "success"
    return 1.0 * correct + bonus * episode.tool_calls


@app.function
def train_shaped(config, bonus, kl, on_step):
    environment = Zorplex(config.seed, config.hints)
    reference, policy = (load_policy(config.policy, config.device) for _ in range(2))
    learner = Learner(
        policy,
        LearnerConfig(learning_rate=config.hack_rate, warmup_steps=2, kl_coefficient=kl),
    )
    for step in range(config.hack_steps):
        tasks = environment.tasks(("compositional",), 6, start=6 * step)
        copies = [task for task in tasks for _ in range(config.samples)]
        seed = (config.seed * 1_000 + step) * len(copies)
        episodes = play(learner.policy, environment, copies, seed)  # samples and scores
        rewards = [shaped(episode, bonus) for episode in episodes]
        advantages = []
        for first in range(0, len(rewards), config.samples):
            advantages += compare(rewards[first : first + config.samples])
        # For the KL penalty: the log-probs that the reference gives the same tokens.
        before = response_logprobs(reference, episodes)
        on_step(step + 1, learner, episodes, fmean(rewards), before)
        learner.step(episodes, advantages, before)
    return learner.policy


@app.cell(hide_code=True)
def _(config):
    ask_hack = lesson.predict(
        f"1 for a right answer and {config.hack_bonus} for every tool call. Five calls are answered, and a sixth, also paid, ends the episode. After {config.hack_steps} steps, what has become of reward and accuracy?",
        "both are higher",
        "the reward is higher, the accuracy lower",
        "the reward is higher, the accuracy as before",
    )
    ask_hack
    return (ask_hack,)


@app.cell(hide_code=True)
def _(config, expected):
    start_hack = lesson.start_button(
        f"Train {config.hack_steps} steps, without and with a KL penalty",
        seconds=2 * config.hack_steps * (expected.sample + expected.train),
    )
    start_hack
    return (start_hack,)


@app.function(hide_code=True)
def hack_board(steps, hacked):
    """A dashboard of these runs, drawn when they are over: while they went on, it would tell the result."""
    board = Dashboard(
        steps,
        {
            "reward": "mean shaped reward",
            "accuracy": "share of right answers",
            "kl": "KL, nats a token",
            "calls": "tool calls of an episode",
        },
        title="What the shaped reward pays for",
    )
    for name, rows in hacked.items():
        for step, row in enumerate(rows, start=1):
            board.add(name, step, row)
    return board


@app.cell(hide_code=True)
def _(config, start_hack):
    lesson.wait_for(start_hack)
    hacked = {"no penalty": [], "with a KL penalty": []}
    with mo.status.progress_bar(
        total=2 * config.hack_steps, title="Training twice", remove_on_exit=True
    ) as _bar:
        for _rows, _kl in zip(hacked.values(), (0.0, config.hack_penalty), strict=True):

            def _watch(step, learner, episodes, reward, before, rows=_rows):
                rows.append(
                    {
                        "reward": reward,
                        "accuracy": accuracy(episodes),
                        "kl": kl_to(learner.policy, episodes, before),
                        "calls": fmean(e.tool_calls for e in episodes),
                        "episodes": episodes,
                    }
                )
                _bar.update()

            train_shaped(config, config.hack_bonus, _kl, _watch)
    return (hacked,)


@app.cell(hide_code=True)
def _(ask_hack, config, hacked):
    _run = hacked["no penalty"]
    _end = min(3, len(_run) // 2) or 1
    _was, _is = (
        {
            name: fmean(row[name] for row in rows)
            for name in ("reward", "accuracy", "kl", "calls")
        }
        for rows in (_run[:_end], _run[-_end:])
    )
    _up, _change = _is["reward"] - _was["reward"], _is["accuracy"] - _was["accuracy"]
    # A sixth call ends the episode, so who made five gave an answer then.
    _five = [is_right(e) for row in _run for e in row["episodes"] if e.tool_calls == 5]
    _bonus, _chance = config.hack_bonus, fmean(_five) if _five else 0.0
    lesson.reveal(
        ask_hack,
        right=[] if _up <= 0 else 1 if _change < -0.1 else 0 if _change > 0.1 else 2,
        why=f"""
    Means of the first {_end} steps and of the last {_end}: the reward went from {_was["reward"]:.2f} to {_is["reward"]:.2f}. The share of right answers went from {_was["accuracy"]:.0%} to {_is["accuracy"]:.0%}, the calls from {_was["calls"]:.1f} to {_is["calls"]:.1f}.
    {"That is **reward hacking**: nobody cheated, the policy learns what is paid. " if _change < -0.1 else ""}On a dashboard of rewards this run looks like a success.

    An episode of the last step:
    """,
        shows=[
            lesson.md(lesson.fence(_run[-1]["episodes"][0].text)),
            hack_board(config.hack_steps, {"no penalty": _run}),
            lesson.folded(
                "Six calls are not the best. Why does it learn them?",
                f"Six calls earn {6 * _bonus:.1f}, and five with a right answer {5 * _bonus + 1:.1f}. But a call always pays {_bonus}, an answer only if it is right. "
                + (
                    f"In this run {len(_five)} episodes stopped after five calls, and {_chance:.0%} of them were right: their answers earned {_chance:.2f} on average. "
                    if _five
                    else "In this run no episode stopped after five calls."
                )
                + (
                    ""
                    if not _five
                    else "The sixth call paid more. The gradient follows what pays more among the sampled episodes, not what could pay most."
                    if _chance < _bonus
                    else "So an answer paid more there, and these numbers do not say why the calls won."
                ),
            ),
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    ask_kl = lesson.predict(
        "The same with the KL penalty: does it save the accuracy?",
        "yes, it ends within 5 points of where it began, or higher",
        "in part: lower than it began, higher than without",
        "no",
    )
    ask_kl
    return (ask_kl,)


@app.cell(hide_code=True)
def _(ask_kl, config, hacked, shaped_runs):
    _end = min(3, len(hacked["no penalty"]) // 2) or 1
    _free, _held = (
        {name: fmean(row[name] for row in rows[-_end:]) for name in ("accuracy", "kl")}
        for rows in hacked.values()
    )
    _began = fmean(row["accuracy"] for row in hacked["no penalty"][:_end])
    _nearer = _held["kl"] < 0.8 * _free["kl"]
    _honest = {run["penalty"]: run for run in shaped_runs["runs"] if run["bonus"] == 0}
    _strict = max(_honest)
    lesson.reveal(
        ask_kl,
        right=[]
        if not _nearer
        else 0
        if _held["accuracy"] >= _began - 0.05
        else 1
        if _held["accuracy"] > _free["accuracy"] + 0.05
        else 2,
        why=f"""
    Means of the last {_end} steps: with weight {config.hack_penalty:g} it is {_held["kl"]:.2f} nats a token from its reference, without {_free["kl"]:.2f}. Of the episodes {_held["accuracy"]:.0%} are right,
    without a penalty {_free["accuracy"]:.0%}; in its first {_end} steps {_began:.0%} were.
    {"The penalty held the policy nearer." if _nearer else "The penalty did not hold the policy clearly nearer, so this run does not tell what it does for the accuracy."} That is one seed.

    A penalty knows only where the policy began, so it holds back honest learning too. Two recorded runs were paid for right answers alone. Without a penalty
    the last step had {_honest[0]["accuracy"][-1]:.0%} right, with weight {_strict:g} {_honest[_strict]["accuracy"][-1]:.0%}. The free one was {_honest[0]["kl"][-1]:.2f} nats away then: KL alone does not tell learning from a hack.
    Mend the reward: in `zorplex_rl/task/rewards.py` a call more than needed *costs* something.
    """,
        shows=[hack_board(config.hack_steps, hacked)],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    A negative reward for a call is a fine, a positive one a bonus. The sliders choose among recorded runs of `train_shaped`: what a call pays, and the weight of the KL penalty.
    """)
    return


@app.cell(hide_code=True)
def _():
    shaped_runs = json.loads((RECORDED / "shaped_rewards.json").read_text())
    _by_setting = {(run["bonus"], run["penalty"]): run for run in shaped_runs["runs"]}
    _most = max(max(run["calls"]) for run in shaped_runs["runs"])

    def _at(bonus, penalty):
        run = _by_setting[bonus, penalty]
        return Answer(
            figure=runs.shaped_chart(run["accuracy"], run["calls"], _most),
            numbers=[
                (name, f"{run[key][0]:{how}} → {run[key][-1]:{how}}", note)
                for name, key, how, note in (
                    ("Shaped reward", "reward", ".2f", "what the policy is paid"),
                    ("Right answers", "accuracy", ".0%", "of the batch"),
                    ("KL", "kl", ".2f", "to the reference, nats a token"),
                )
            ],
        )

    shaped_slider = WhatIf(
        "Shaped rewards: first and last step of recorded runs",
        [
            Knob("bonus", "Reward of a call", sorted({bonus for bonus, _ in _by_setting})),
            Knob("penalty", "KL penalty", sorted({penalty for _, penalty in _by_setting})),
        ],
        _at,
        {"bonus": 0.0, "penalty": 0.0},
        static="execute" in mo.cli_args(),
    )
    shaped_slider
    return (shaped_runs,)


@app.cell(hide_code=True)
def _(shaped_runs):
    lesson.md(
        f"Recorded on {shaped_runs['date']} with `python {shaped_runs['command']}`, {shaped_runs['conditions']['steps']} steps each, one seed."
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.predicted(11)
    return


@app.cell(hide_code=True)
def _():
    lesson.recap(
        "An asynchronous controller is two coroutines with a queue between them, and a rule that says what may be started.",
        "Compare log-probs at lag 0 first: a difference beyond rounding means that two programs disagree about the policy.",
        "Side by side, a step takes as long as its longer phase at best.",
        "Work that has a number can be given out again, so a killed process costs time and no data.",
        "pass@k tells sharpening from teaching, on tasks that leave the old policy room.",
        "A policy learns what is paid. Watch a number that nobody is paid for.",
    )
    return


@app.cell(hide_code=True)
def _(config, passes):
    lesson.headline(
        f"On {config.pass_difficulty} tasks, pass@{min(config.pass_at)} went from {fmean(passes['before'][min(config.pass_at)]):.0%} to {fmean(passes['after'][min(config.pass_at)]):.0%}, pass@{config.pass_judged} from {fmean(passes['before'][config.pass_judged]):.0%} to {fmean(passes['after'][config.pass_judged]):.0%}."
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.links(__file__)
    return


@app.function(hide_code=True)
def is_right(episode):
    """Whether the episode's answer is right; it need not have been scored."""
    return final_answer(episode.sampled_text) == episode.task.answer


@app.function(hide_code=True)
def paired(before, after):
    """The mean change over tasks, and two of its standard errors."""
    changes = [float(new) - float(old) for old, new in zip(before, after, strict=True)]
    return fmean(changes), 2 * stdev(changes) / math.sqrt(len(changes))


@app.function(hide_code=True)
def signed(number, digits=0):
    return f"{number:+.{digits}f}".replace("-", "−")


@app.function(hide_code=True)
def kl_to(policy, episodes, before):
    """The mean of the k3 estimate of KL to the reference over sampled tokens, in nats a token."""
    now = response_logprobs(policy, episodes)
    deltas = [
        new - old
        for episode, ours, theirs in zip(episodes, now, before, strict=True)
        for own, new, old in zip(episode.sampled, ours, theirs, strict=True)
        if own
    ]
    return fmean(math.exp(-delta) - 1 + delta for delta in deltas)


@app.function(hide_code=True)
def check_may_start(may_start):
    exercise.expect(may_start, 0, 0, 0, 8, 0, result=8)
    exercise.expect(may_start, 0, 0, 0, 8, 1, result=16)
    exercise.expect(may_start, 0, 1, 0, 8, 1, result=8)
    exercise.expect(may_start, 3, 3, 5, 8, 1, result=11)
    exercise.expect(may_start, 0, 2, 0, 8, 1, result=0)
    exercise.expect(may_start, 1, 3, 4, 8, 1, result=0)


@app.function(hide_code=True)
def may_start_solution(version, step, on_the_way, per_step, max_lag):
    steps_left = version + max_lag - step + 1
    return max(0, steps_left * per_step - on_the_way)


@app.function(hide_code=True)
def check_generators_needed(generators_needed):
    exercise.expect(generators_needed, 1.0, 2.0, 8, result=4)
    exercise.expect(generators_needed, 1.0, 3.0, 8, result=3)
    exercise.expect(generators_needed, 0.125, 4.0, 8, result=1)


@app.function(hide_code=True)
def generators_needed_solution(generate, train, groups):
    # Rounded first: 3 * 0.1 / 0.1 is a little more than 3.
    return math.ceil(round(groups * generate / train, 9))


@app.function(hide_code=True)
def check_pass_at_k(pass_at_k):
    exercise.expect(pass_at_k, 10, 0, 4, result=0.0)
    exercise.expect(pass_at_k, 10, 10, 4, result=1.0)
    exercise.expect(pass_at_k, 10, 3, 1, result=0.3)
    exercise.expect(pass_at_k, 4, 1, 2, result=0.5)
    exercise.expect(pass_at_k, 96, 2, 64, result=1 - 32 * 31 / (96 * 95))


@app.function(hide_code=True)
def pass_at_k_solution(samples, correct, k):
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)


if __name__ == "__main__":
    app.run()
