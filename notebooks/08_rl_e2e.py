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
    import math
    import os
    import signal
    import time
    from functools import partial
    from statistics import fmean, pstdev
    from types import SimpleNamespace

    import marimo as mo
    import torch

    from zorplex_rl.course import nb08, nb08_checks
    from zorplex_rl.course.figures.loop_drawing import loop_drawing
    from zorplex_rl.course.figures.tokens import token_strip
    from zorplex_rl.course.kept_file import EXAMPLES, fill_in, functions_of, keep
    from zorplex_rl.course.lesson import exercise, lesson
    from zorplex_rl.course.widgets import LiveCurve, WhatIf
    from zorplex_rl.course.widgets.what_if import Knob
    from zorplex_rl.policy.evaluate import evaluate
    from zorplex_rl.policy.load import load_policy
    from zorplex_rl.policy.rollout import Sampling
    from zorplex_rl.run.timeline import Span, Timeline
    from zorplex_rl.services.runtime import run_together, start_monarch, this_host
    from zorplex_rl.task.environment import Zorplex, kinds_of
    from zorplex_rl.task.own_task import EnvironmentSource
    from zorplex_rl.training.actors import DatasetActor, RewardActor
    from zorplex_rl.training.generator import GeneratorActor
    from zorplex_rl.training.trainer import TrainerActor

    # Seconds that a new process takes for the same imports.
    IMPORTS = time.process_time()
    # These outlive the cells that fill them: what a cell has left running is found here when it runs again.
    PROCESSES = []


@app.cell(hide_code=True)
def _():
    lesson.header(
        __file__,
        minutes=50,
        hardware="two CPU cores, no network; a GPU is used where there is one",
        goals=[
            "write the rule that bounds the age of data, and the loop of the trainer",
            "find a planted fault from a step's diagnostics",
            "say what generator and trainer gain when nobody takes turns",
            "kill a process in mid-training without losing data",
            "keep it all in one file, `my_async_rl.py`",
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

    Here the parts become one system. First you walk around its loop once. Then you write its
    **controller**, the program that does the walking.

    Each role is an **actor**: an object in a process of its own. `await actor.method.call_one(x)` calls
    its method there and waits for the answer. The trainer *publishes* its weights, and the generator
    *pulls* them: it copies them into its model. `nb08.run_config` makes the package's settings of these:
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
        shots=0 if _embedded else 2,  # worked examples, as turns of the chat
        max_tokens=96 if _embedded else 256,
        prompts=8,  # groups in a training batch
        samples=8,  # episodes in a group
        steps=40,
        max_lag=1,
        learning_rate=3e-4 if _embedded else 3e-6,
        eval_tasks=50,  # in the run that is killed
        held_out=200,  # before and after
        killed_steps=16,
        # One thread is fastest for a small model.
        threads=1 if _embedded else torch.get_num_threads(),
    )
    return (config,)


@app.cell(hide_code=True)
def _(config):
    torch.set_num_threads(config.threads)
    policy = load_policy(config.policy, config.device)
    environment = Zorplex(config.seed, shots=config.shots)
    # For the labels of this page's buttons: what takes how long with this policy on this machine.
    expected = nb08.run_time(nb08.run_config(config), policy, IMPORTS)
    lesson.ran_on(policy)
    return environment, expected, policy


@app.function
def start(actor_class, *arguments):
    """Start an actor in a process of its own."""
    start_monarch()
    procs = this_host().spawn_procs(per_host={"procs": 1})  # one new process
    PROCESSES.append(procs)
    return procs.spawn(actor_class.__name__, actor_class, *arguments)


@app.function
async def bring_up(run, device):
    """Start all actors, and give the generator its first weights."""
    source = EnvironmentSource.of(run)  # whose tasks and rewards they are
    actors = SimpleNamespace(
        dataset=start(DatasetActor, source),  # which task has which number
        generator=start(GeneratorActor, "generator_0", run, device),
        reward=start(RewardActor, "reward", source),
        trainer=start(TrainerActor, "trainer", run, device),
    )
    # Both load the model, at the same time.
    await asyncio.gather(actors.generator.setup.call_one(), actors.trainer.setup.call_one())
    await actors.trainer.publish.call_one()
    await actors.generator.subscribe.call_one(actors.trainer)  # whose weights it pulls
    await actors.generator.pull.call_one()
    return actors


@app.function
async def stop_all():
    """Stop what is running, and forget it."""
    running = list(PROCESSES)
    PROCESSES.clear()
    await asyncio.gather(*(procs.stop() for procs in running))


@app.cell(hide_code=True)
def _():
    mo.md("""
    A **group** is the episodes of one task, as in 05. Its *number* decides its task and its random
    draws. `sample` walks the lap as far as the rewards:
    """)
    return


@app.function
async def sample(actors, numbers):
    """Sample and score these groups. Returns a pair for each: its rewards, and its episodes."""
    tasks = await actors.dataset.tasks.call_one(list(numbers))
    request = list(zip(numbers, tasks, strict=True))
    finished = []
    # The second is for the journal of the package's runs.
    groups, _ = await actors.generator.generate.call_one(request)
    for _, group in groups:
        scores = await actors.reward.score.call_one([episode.attempt for episode in group])
        # A message is a copy: the actor cannot write into these episodes.
        for episode, found in zip(group, scores, strict=True):
            episode.score = found
        finished.append(([found.reward for found in scores], group))
    return finished


@app.cell(hide_code=True)
def _(expected):
    start_by_hand = lesson.start_button(
        "Start four processes",
        seconds=expected.starting(3) + expected.sample + 3 * expected.train,
    )
    start_by_hand
    return (start_by_hand,)


@app.cell
async def _(config, start_by_hand):
    lesson.wait_for(start_by_hand)
    await stop_all()  # those of an earlier run of this cell
    _began = time.monotonic()
    _actors = await bring_up(nb08.run_config(config), config.device)
    loading_seconds = time.monotonic() - _began
    finished = await sample(_actors, range(config.prompts))
    await stop_all()
    return finished, loading_seconds


@app.cell(hide_code=True)
def _(finished, loading_seconds, policy):
    episodes = [episode for _, group in finished for episode in group]
    _failed = [e for e in episodes if e.score.outcome != "success"]
    _one = max(_failed or episodes, key=lambda e: (e.tool_calls, len(e.token_ids)))
    mo.vstack(
        [
            lesson.md(
                f"Starting and loading took {loading_seconds:.1f} s. The lap brought {len(episodes)} episodes of {len(finished)} groups. Here is one:"
            ),
            lesson.figure(
                token_strip(policy, _one),
                f"“{_one.task.question}”, expected {_one.task.answer}: `{_one.score.outcome}`, reward {_one.score.reward:.2f}.",
            ),
        ]
    )
    return (episodes,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A fault that makes no noise

    Generator and trainer are two programs. If they disagree about the probability of a token, nothing
    fails. But the gradient is biased: its samples are off-policy, or weighted by a wrong ratio. So a
    trainer compares its own log-prob of every token with the recorded one.

    The episodes above went into three training steps, as if of the newest version. One step is sound. In
    one, the tools' text is *not masked*. In one, the generator had missed a pull: its weights were a
    version old.

    Let w be the trainer's probability of a token divided by the recorded one. The **effective sample size**
    of n tokens is (Σw)² / (n Σw²). At 0.6, 1,000 tokens tell only as much as 600 fresh ones.
    """)
    return


@app.cell(hide_code=True)
def _(config, episodes, finished):
    _given = [
        (reward - fmean(rewards)) / (pstdev(rewards) + 1e-4)
        for rewards, _ in finished
        for reward in rewards
    ]
    diagnosed = nb08.diagnose(config, episodes, _given)
    lesson.table(
        "Diagnostics of three training steps, over all tokens trained on",
        [
            {
                "step": letter,
                "tokens trained on": found["trained on"],
                "log-probs differ by up to": f"{found['max_logp_difference']:.6f}",
                "effective sample size": f"{found['effective_sample_size']:.3f}",
            }
            for letter, found in zip("ABC", diagnosed.values(), strict=True)
        ],
    )
    return (diagnosed,)


@app.cell(hide_code=True)
def _(diagnosed):
    ask_fault = lesson.predict(
        "In which step had the generator missed a pull?",
        *(f"step {letter}" for letter in "ABC"[: len(diagnosed)]),
    )
    ask_fault
    return (ask_fault,)


@app.cell(hide_code=True)
def _(ask_fault, diagnosed):
    _at = {name: "ABC"[place] for place, name in enumerate(diagnosed)}
    _stale, _sound, _open = diagnosed.values()
    lesson.reveal(
        ask_fault,
        right="ABC".index(_at["a missed pull"]),
        why=f"""
    Step {_at["a missed pull"]}: one version of age makes a difference of {_stale["max_logp_difference"]:.2f}. That is **staleness**.
    Step {_at["sound"]} is sound and differs by {_sound["max_logp_difference"]:.6f} at most: {"that is rounding" if _sound["max_logp_difference"] < 1e-3 else "more than rounding, so look into it"}.
    Step {_at["not masked"]} trained on {_open["trained on"]:,} tokens, but the policy sampled {_sound["trained on"]:,}. The others are the tools'.
    Nobody sampled them, so their recorded log-prob is 0, and the trainer finds them {_open["max_logp_difference"]:.0f} away.
    """,
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## The controller

    Now nobody takes turns. While the trainer works on one batch, the generator writes the next. The
    controller is two coroutines: `generate` and `train`. Between them is the queue `ready` of finished
    groups, where the package has its replay buffer. They share three counts in `now`: groups `started`, steps begun (`step`), and the newest
    version `published`. Steps count from 0.

    A coroutine lets others run only at an `await`, so `now` needs no lock. `news` wakes a generator
    that waits for new weights.

    A group is of the **policy version** that sampled it. Its **lag** is how many versions later it is
    trained on, and `max_lag` bounds that.
    Nobody checks finished groups and throws old ones away. Instead, `may_start` decides which groups
    may be *started*. Here is the generator's half. It asks for one batch at most, and stops after the
    last step:
    """)
    return


@app.function
async def generate(generator, may_start, ready, now, news, steps, per_step, max_lag):
    version = 0
    while now.started < steps * per_step:
        news.clear()  # before the looks below, so that no news is missed
        if version < now.published:
            version = await generator.pull()
        on_the_way = now.started - now.step * per_step
        count = may_start(version, now.step, on_the_way, per_step, max_lag)
        if count < 1:
            await news.wait()
            continue
        first = now.started
        now.started = min(first + min(count, per_step), steps * per_step)
        for finished in await generator.sample(range(first, now.started)):
            ready.put_nowait(finished)


@app.cell(hide_code=True)
def _(config):
    ask_ahead = lesson.predict(
        f"Step 0 is done, version 1 is published, nothing is on the way, and `max_lag` is 1. A generator still has version 0. How many groups may it start, at {config.prompts} a step?",
        "none",
        f"{config.prompts}",
        f"{2 * config.prompts}",
    )
    ask_ahead
    return (ask_ahead,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 1: admission

    Write `may_start`: how many more groups may be started with weights `version`, while `step` is the
    next step to begin? Step s trains version s, takes `per_step` groups, and makes version s + 1. So a
    group of this version must be in step `version + max_lag` at the latest.
    `on_the_way` groups have been started and are in no step yet. They go first.
    Return 0 if none may start.
    """)
    return


@app.function
def may_start(version, step, on_the_way, per_step, max_lag):
    """Return how many groups may be started now.

    may_start(0, 0, 0, 8, 1) is 16: steps 0 and 1 are left, and take 8 groups each.
    """
    ...


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
def _(ask_ahead, config):
    rule, whose_rule = exercise.running(
        lambda: may_start, check_may_start, may_start_solution
    )
    _old, _new = (rule(version, 1, 0, config.prompts, 1) for version in (0, 1))
    lesson.reveal(
        ask_ahead,
        how="Computed",
        right=[0, config.prompts, 2 * config.prompts].index(_old),
        why=f"""
    A group of version 0 must be trained on at step 0 + 1. That is the next step, and it takes {config.prompts} groups.
    So says {whose_rule}: {_old} with version 0, and {_new} after a pull.
    """,
    )
    return rule, whose_rule


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 2: the trainer's half

    Write `train`. Until `now.step` is `steps`, repeat:

    - Take `per_step` pairs from `ready`, an `asyncio.Queue`: `await ready.get()` waits for one. Each is
      a group's rewards and its episodes.
    - The step has now *begun*: add one to `now.step`, so that its groups are no longer on the way.
    - Compute advantages as in 05: less the mean of the group, over its standard deviation plus 1e-4.
      `fmean` and `pstdev` are imported. Put episodes and advantages into two flat lists.
    - `await trainer.step(episodes, advantages)` takes the step and returns its metrics.
      `await trainer.publish()` returns the new version, which goes into `now.published`.
    - `news` is an `asyncio.Event`: `news.set()` wakes whoever waits for it. Wake the generator, and
      call `on_step(now.step, metrics)`, with 1 after the first step.
    """)
    return


@app.function
async def train(trainer, ready, now, news, steps, per_step, on_step):
    """Train on groups as they come.

    await train(trainer, ready, now, news, 40, 8, print) takes 40 steps of 8 groups each.
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: train,
        check_train,
        train_solution,
        level="stretch",
        minutes=12,
        lines=10,
        hints=(
            "Who must know first that a step has begun, and what would the generator compute if it heard of it only when the step is over? What must be true before `news.set()`?",
            "`batch = [await ready.get() for _ in range(per_step)]`, then `now.step += 1`. A loop over `batch` fills two lists with `+=`. Then `step`, `publish`, `now.published`, `news.set()`, `on_step`, in this order.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    loop, whose_loop = exercise.running(lambda: train, check_train, train_solution)
    return loop, whose_loop


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## In turns, side by side

    `run_loop` puts both halves together. At `max_lag` 0 a generator may only start groups for the
    next step, with the newest weights. So generator and trainer take turns.
    """)
    return


@app.function
async def run_loop(actors, may_start, train, steps, per_step, max_lag, on_step):
    ready, news = asyncio.Queue(), asyncio.Event()  # finished groups; new weights are out
    now = SimpleNamespace(started=0, step=0, published=0)
    generator = SimpleNamespace(
        pull=actors.generator.pull.call_one, sample=partial(sample, actors)
    )
    trainer = SimpleNamespace(
        step=actors.trainer.step.call_one, publish=actors.trainer.publish.call_one
    )
    await run_together(  # if one fails, the other is cancelled
        generate(generator, may_start, ready, now, news, steps, per_step, max_lag),
        train(trainer, ready, now, news, steps, per_step, on_step),
    )


@app.cell(hide_code=True)
def _(config):
    ask_time = lesson.predict(
        f"The same {config.steps} steps with `max_lag` {config.max_lag}, on two processes that share this machine. How long does a median step take, compared with one in turns?",
        "about half as long, two thirds at most",
        "in between",
        "about as long, or longer",
    )
    ask_time
    return (ask_time,)


@app.cell(hide_code=True)
def _(config, expected, whose_loop, whose_rule):
    start_both = lesson.start_button(
        f"Train {config.steps} steps twice",
        seconds=sum(
            expected.run(nb08.run_config(config, max_lag=lag, eval_tasks=1))
            for lag in (0, config.max_lag)
        ),
    )
    both_curve = LiveCurve(config.steps, title="Right answers in each training batch")
    mo.vstack(
        [
            lesson.md(
                f"Both runs use {whose_rule}, and {whose_loop}. To edit one later discards both."
            ),
            start_both,
            both_curve,
        ]
    )
    return both_curve, start_both


@app.cell
async def _(both_curve, config, loop, rule, start_both):
    lesson.wait_for(start_both)
    both_curve.clear()
    both = {}
    for _name, _lag in (("in turns", 0), ("side by side", config.max_lag)):

        def _on_step(step, metrics, name=_name):
            both_curve.add(name, step, metrics["accuracy"])

        await stop_all()
        _actors = await bring_up(nb08.run_config(config), config.device)
        await run_loop(_actors, rule, loop, config.steps, config.prompts, _lag, _on_step)
        _weights = nb08.new_path("weights")
        await _actors.trainer.export.call_one(str(_weights))
        _spans = [
            span
            for actor in (_actors.generator, _actors.trainer)
            for span in await actor.drain_spans.call_one()  # what it did, and when
        ]
        both[_name] = SimpleNamespace(timeline=Timeline(_spans), weights=_weights)
    await stop_all()
    return (both,)


@app.cell
def _(both, config, environment, policy):
    _tasks = environment.tasks(kinds_of("compositional"), config.held_out, "held_out")
    _sampling = Sampling(max_tokens=config.max_tokens)

    def _share(who):
        return evaluate(who, "held out", _tasks, environment.execute, _sampling, seed=1)[
            0
        ].accuracy

    before = _share(policy)
    after = {
        name: _share(load_policy(str(run.weights), config.device))
        for name, run in both.items()
    }
    return after, before


@app.cell(hide_code=True)
def _(after, ask_time, before, both, config):
    accounts = {
        name: nb08.account(run.timeline, config.steps) for name, run in both.items()
    }
    _sync, _async = accounts.values()
    _ratio, _longer = _async.step / _sync.step, max(_sync.train, _sync.generate)
    _train, _sample = _async.train / _sync.train, _async.generate / _sync.generate
    lesson.reveal(
        ask_time,
        right=0 if _ratio < 0.67 else 1 if _ratio < 0.97 else 2,
        why=f"""
    {_ratio:.0%} of the time. A step in turns takes {_sync.step:.2f} s, and its longer phase {_longer:.2f} s.
    If that phase hid all else and slowed nothing, a step side by side would take {_longer / _sync.step:.0%}.
    {f"But the two slow each other: beside the other, training took {_train:.1f} and sampling {_sample:.1f} times as long." if max(_train, _sample) > 1.1 else "Neither was much slower beside the other, so what is left is waiting."}

    Of {config.held_out} held-out tasks {before:.0%} were right before training. The oldest group was {_async.oldest} version{"s" * (_async.oldest != 1)} old, and the bound was {config.max_lag}.
    The trainer's loss is PPO's clipped one, which still works on data that old. Notebook 09 is about older data.
    """,
        shows=[
            lesson.figure(
                nb08.side_by_side(both, 6 * _sync.step),
                "The same seconds of each run, from the beginning of a step. At the right: how much of them each was busy. The table is about all of a run.",
            ),
            lesson.table("The two runs", nb08.rows_of(accounts, after, config.held_out)),
        ],
    )
    return (accounts,)


@app.cell(hide_code=True)
def _():
    lesson.folded(
        "Is it the package's loop?",
        "`zorplex_rl/training/loop.py` has the same two halves, for several generators that may die. What `may_start` decides here, its replay buffer decides in `admit`. "
        "A test of the course takes two steps with both controllers at `max_lag` 0: no weight differs in any bit.",
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 3: how many generators?

    One generator samples a group in `generate` seconds. A training step takes `train` seconds and
    needs `groups` groups. Write `generators_needed`: the least number of generators that keeps the
    trainer busy. They share the work of a step evenly, even parts of a group. Pulls take no time.
    `math` is imported.
    """)
    return


@app.function
def generators_needed(generate, train, groups):
    """Return a whole number; generators_needed(1.0, 2.0, 8) is 4."""
    ...


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
            "Divide `groups * generate` by `train`. Two thirds of a generator do not exist: `math.ceil`.",
        ),
    )
    return


@app.cell(hide_code=True)
def _(accounts, config):
    _found = accounts["side by side"]
    _needed, _whose = exercise.running(
        lambda: generators_needed, check_generators_needed, generators_needed_solution
    )
    _count = _needed(_found.generate / config.prompts, _found.train, config.prompts)
    generator_slider = WhatIf(
        "The phases of this page's run, simulated",
        [
            Knob("generators", "Generators, each with a core", [1, 2, 4]),
            Knob("max_lag", "Max lag", [0, 1, 2, 4]),
        ],
        lambda generators, max_lag: nb08.simulated(
            _found, config.prompts, generators, max_lag
        ),
        {"generators": 1, "max_lag": config.max_lag},
        static="execute" in mo.cli_args(),
    )
    mo.vstack(
        [
            lesson.md(
                f"For the run above, {_whose} says {_count}. The simulator of 05 counts pulls too, and groups of unequal length, so the trainer waits now and then. From which lag on is it about as busy as it gets, by number of generators?"
            ),
            generator_slider,
            lesson.folded(
                "The trainer's busy time", nb08.busy_by_lag(_found, config.prompts)
            ),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A process is killed

    Your controller ends when any process dies: a call to it raises an error. The package's goes on.
    Its generators are a service, a pool that replaces what dies: notebook 06 builds one. In mid-training
    one of two gets `kill -9`; Monarch's brown lines below report that. A third, a spare, is loaded and waits.
    """)
    return


@app.function
async def kill_in_the_act(controller):
    """`kill -9` for a generator in the second half, when it has been busy for a while."""
    busy, steps = 0, controller.config.steps
    while controller.step < steps // 2 or (busy < 3 and controller.step < steps):
        await asyncio.sleep(0.03)
        generator = controller.services["generator"].replicas[0]  # one of two
        # `in_flight`: the requests that it has now. Three busy looks in a row are enough.
        busy = busy + 1 if generator.in_flight else 0
    os.kill(generator.pid, signal.SIGKILL)
    now = time.monotonic()
    controller.log.timeline.add([Span(generator.name, "kill", now, now)])


@app.cell(hide_code=True)
def _(config, expected):
    ask_killed = lesson.predict(
        f"The generator dies with groups half sampled. The run is to train on {config.killed_steps * config.prompts} groups. How many will it have trained on?",
        "all but those that died with it",
        "all of them, some twice",
        "all of them, each once",
    )
    start_killed = lesson.start_button(
        f"Train {config.killed_steps} steps and kill a generator",
        seconds=expected.run(
            nb08.run_config(config, steps=config.killed_steps, generators=2, spares=1)
        ),
    )
    mo.vstack([ask_killed, start_killed])
    return ask_killed, start_killed


@app.cell
async def _(config, start_killed):
    lesson.wait_for(start_killed)
    _run = nb08.run_config(config, steps=config.killed_steps, generators=2, spares=1)
    with mo.status.spinner("Training"), nb08.quietly() as native_errors:
        run_log, _counters = await nb08.train_and_kill(
            _run,
            nb08.create(_run, None if lesson.unattended() else __file__),
            kill_in_the_act,
        )
    books = nb08.books_of(run_log, _counters)
    return books, native_errors, run_log


@app.cell(hide_code=True)
def _(ask_killed, books, config, loading_seconds, run_log):
    _drawn, _noticed, _mended = nb08.around_the_kill(run_log.timeline)
    _all = config.killed_steps * config.prompts
    each_once = books["numbers found in the trainer's steps"] == "each once"
    lesson.reveal(
        ask_killed,
        right=0 if books["groups trained on"] < _all else 2 if each_once else 1,
        why=f"""
    {"All of them, each once." if each_once else "Not all of them exactly once: the books say what is missing."} A group belongs to its *number*. The dead generator's numbers
    are admitted again, with the same tasks and the same seeds. The spare took its place {_mended:.2f} s after the kill, because it was ready.
    Without a spare, a new process would have to start and load first. At the top of this page, four of them took {loading_seconds:.1f} s.
    A spare in its place need not be busy at once. The other generator may take the lost groups first, and `max_lag` decides when more may start.

    A trainer that dies comes back from its last checkpoint, a file of its state: `tests/training/test_faults.py` kills one.
    """,
        shows=[
            lesson.figure(
                _drawn,
                f"Around the kill. The service notices {_noticed:.2f} s later: there “restart” begins, until the spare is in the dead one's place. Till then the lost groups count as under way. What the dead one had not finished left no record, so it is not drawn.",
            ),
            lesson.table(
                "The books of the run",
                [{"entry": entry, "value": value} for entry, value in books.items()],
            ),
        ],
    )
    return (each_once,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## One file that you keep

    `my_async_rl.py` is this page in 220 lines, with your `may_start` and your `train`. Generator and
    trainer are two processes of Python's `multiprocessing`, and the weights lie in memory that both
    share, behind a lock. `sample_episode` and `policy_gradient` are those of your `my_rl.py` where you
    wrote it in notebook 05, and else that page's solutions.
    """)
    return


@app.cell(hide_code=True)
def _(loop, rule):
    _kept = functions_of(EXAMPLES.parent / "my_rl.py", "sample_episode", "policy_gradient")
    my_async_rl = fill_in(
        EXAMPLES / "my_async_rl.py", _kept | {"may_start": rule, "train": loop}
    )
    lesson.folded("`my_async_rl.py`", f"```python\n{my_async_rl}\n```")
    return (my_async_rl,)


@app.cell(hide_code=True)
def _():
    write = lesson.start_button("Write my_async_rl.py", seconds=float("nan"))
    write
    return (write,)


@app.cell(hide_code=True)
def _(my_async_rl, write):
    lesson.wait_for(write)
    lesson.md(
        "In `marimo edit` a button writes it."
        if lesson.unattended()
        else keep(my_async_rl, EXAMPLES.parent / "my_async_rl.py")
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.predicted(4)
    return


@app.cell(hide_code=True)
def _():
    lesson.recap(
        "An asynchronous controller is two coroutines with a queue between them, and a rule that says what may be started.",
        "Compare log-probs at lag 0 first: a difference beyond rounding means that two programs disagree about the policy.",
        "Side by side, a step takes as long as its longer phase at best.",
        "Work that has a number can be given out again, so a killed process costs time and no data.",
    )
    return


@app.cell(hide_code=True)
def _(accounts, after, before):
    lesson.headline(
        f"Side by side, a step took {accounts['side by side'].step / accounts['in turns'].step:.0%} of its time in turns, and right answers went from {before:.0%} to {after['side by side']:.0%}."
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.links(__file__)
    return


@app.function(hide_code=True)
def check_may_start(may_start):
    exercise.expect(may_start, 0, 0, 0, 8, 1, result=16)
    exercise.expect(may_start, 0, 2, 0, 8, 1, result=0)
    exercise.agree(
        may_start, may_start_solution, nb08_checks.drawn_moment, times=60, whole=True
    )


@app.function(hide_code=True)
def may_start_solution(version, step, on_the_way, per_step, max_lag):
    return max(0, (version + max_lag - step + 1) * per_step - on_the_way)


@app.function(hide_code=True)
def check_train(train):
    nb08_checks.check_train(train, train_solution)


@app.function(hide_code=True)
async def train_solution(trainer, ready, now, news, steps, per_step, on_step):
    while now.step < steps:
        batch = [await ready.get() for _ in range(per_step)]
        now.step += 1
        episodes = [episode for _, group in batch for episode in group]
        advantages = []
        for rewards, _ in batch:
            advantages += [(r - fmean(rewards)) / (pstdev(rewards) + 1e-4) for r in rewards]
        metrics = await trainer.step(episodes, advantages)
        now.published = await trainer.publish()
        news.set()
        on_step(now.step, metrics)


@app.function(hide_code=True)
def check_generators_needed(generators_needed):
    exercise.expect(generators_needed, 1.0, 2.0, 8, result=4)
    exercise.agree(
        generators_needed,
        generators_needed_solution,
        nb08_checks.drawn_load,
        times=40,
        whole=True,
    )


@app.function(hide_code=True)
def generators_needed_solution(generate, train, groups):
    return math.ceil(groups * generate / train)


if __name__ == "__main__":
    app.run()
