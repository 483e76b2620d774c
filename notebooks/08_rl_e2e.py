# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = ["marimo", "zorplex-rl"]
# tool.uv.sources.zorplex-rl = { path = "..", editable = true }
# tool.marimo.display.theme = "system"
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
    import os
    import random
    import signal
    from pathlib import Path
    from statistics import fmean, pstdev
    from types import SimpleNamespace

    import marimo as mo
    import torch

    from zorplex_rl.course import nb08, nb08_checks, nb09
    from zorplex_rl.course.figures import drawing_of
    from zorplex_rl.course.figures.loop_drawing import loop_drawing
    from zorplex_rl.course.kept_file import EXAMPLES, fill_in, functions_of, keep, kept
    from zorplex_rl.course.lesson import exercise, lesson
    from zorplex_rl.course.widgets import LiveCurve
    from zorplex_rl.policy.load import load_policy
    from zorplex_rl.run.timeline import Span, Timeline, now
    from zorplex_rl.services.runtime import run_together
    from zorplex_rl.task.latency import lognormal
    from zorplex_rl.task.own_task import EnvironmentSource
    from zorplex_rl.training.actors import DatasetActor, RewardActor
    from zorplex_rl.training.generator import GeneratorActor
    from zorplex_rl.training.trainer import TrainerActor


@app.cell(hide_code=True)
def _():
    lesson.header(
        __file__,
        minutes=50,
        hardware="two CPU cores, no network; a GPU is used where there is one",
        goals=[
            "write the rule that bounds the age of data, and the loop of the trainer",
            "tell the time of a step from what a step teaches, and say whether asynchrony paid",
            "say what became of a killed process's data",
            "keep it all in one file, `my_async_rl.py`",
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    _text = mo.md("""
    ## Somebody always waits

    In a training loop that takes turns, the trainer stands still while the generator writes, and the generator while the trainer computes.
    If a tool is slow, both wait for it. You pay for two machines and use one.

    So let them work *side by side*: while the trainer works on one batch, the generator already writes the next.
    That is *asynchronous RL*. It can make steps faster. Whether it also makes *learning* faster is another question, and this page measures both.
    You write the **controller**, which decides who works when.
    """)
    _drawing = lesson.figure(
        loop_drawing().replace("bounds their age", "keeps their order"),
        "Four processes here: the dataset, the generator (which runs the tools), the reward and the trainer. Your controller holds the buffer. It bounds the age of episodes at the arrow from the dataset, where they are started.",
    )
    _lap = mo.md("""
    ## One lap

    First the page goes around the loop once. Each role is an **actor**: an object in its own process. `await actor.method.call_one(x)`
    calls its method there and waits for the answer. The trainer *publishes* its weights, and the
    generator *pulls* them: it copies them into its model. You can skip the folded cells: the page's idea is not in them.
    """)
    mo.vstack([_text, _drawing, _lap])
    return


@app.cell(hide_code=True)
def settings():
    _name = mo.cli_args().get("policy") or "embedded"  # or smollm2, or a model's folder
    _full = SimpleNamespace(
        policy=_name,
        **(nb08.SMALL if _name == "embedded" else nb08.REAL),  # prompts: groups in a batch
        device="cuda" if torch.cuda.is_available() else "cpu",
        seed=0,
        samples=8,  # episodes in a group
        real_steps=4,  # of SmolLM2, if it is there
        steps=10,
        lags=(0, 1, 4),  # of the runs with slow tools
        held_out=200,  # tasks that say what a run has learned
        tool_seconds=0.1,  # what a tool takes, on average
        killed_steps=12,
    )
    config = lesson.brief(_full, steps=4, held_out=40, real_steps=1)
    return (config,)


@app.cell(hide_code=True)
def _(config):
    lesson.ran_on(load_policy(config.policy, config.device))
    return


@app.function(hide_code=True)
async def bring_up(run, device, generator_class=GeneratorActor):
    """Start all actors, with the weights of version 0."""
    source = EnvironmentSource.of(run)  # it makes tasks and rewards
    actors = SimpleNamespace(
        dataset=nb08.start(DatasetActor, source),  # which task has which number
        generator=nb08.start(generator_class, "generator_0", run, device),
        reward=nb08.start(RewardActor, "reward", source),
        trainer=nb08.start(TrainerActor, "trainer", run, device),
    )
    await load(actors)
    return actors


@app.function(hide_code=True)
async def load(actors):
    """Let both load the model, at the same time, and give the generator its first weights."""
    await asyncio.gather(actors.generator.setup.call_one(), actors.trainer.setup.call_one())
    await actors.trainer.publish.call_one()
    await actors.generator.subscribe.call_one(actors.trainer)  # to pull its weights
    await actors.generator.pull.call_one()


@app.cell(hide_code=True)
def _():
    mo.md("""
    A **group** is the episodes of one task. Its *number* decides the task and the random draws, so whoever gets the number can make the group again.
    One lap goes from numbers to episodes and rewards, and from there to new weights in the generator. The button runs it.
    """)
    return


@app.function(hide_code=True)
async def sample(actors, numbers):
    """Sample and score these groups. Returns a pair for each: its rewards, and its episodes."""
    tasks = await actors.dataset.tasks.call_one(list(numbers))
    request = list(zip(numbers, tasks, strict=True))
    finished = []
    groups, _history = await actors.generator.generate.call_one(request)
    for _, group in groups:
        scores = await actors.reward.score.call_one([episode.attempt for episode in group])
        for episode, score in zip(group, scores, strict=True):
            episode.score = score
        finished.append(([score.reward for score in scores], group))
    return finished


@app.function(hide_code=True)
async def one_lap(actors, numbers):
    """Sample, compare, step, publish, pull. Returns the step's metrics and the generator's version."""
    groups = await sample(actors, numbers)
    episodes = [episode for _, group in groups for episode in group]
    advantages = [
        (reward - fmean(rewards)) / (pstdev(rewards) + 1e-4)
        for rewards, _ in groups
        for reward in rewards
    ]
    metrics = await actors.trainer.step.call_one(episodes, advantages)
    await actors.trainer.publish.call_one()
    version = await actors.generator.pull.call_one()
    return metrics, version


@app.cell(hide_code=True)
def _():
    start_lap = lesson.start_button("Start four processes", seconds=12)
    start_lap
    return (start_lap,)


@app.cell(hide_code=True)
async def _(config, start_lap):
    lesson.wait_for(start_lap)
    await nb08.stop_all()  # those of an earlier run of this cell
    _began = now()
    with lesson.counting(None, "four processes start and load"):
        _actors = await bring_up(nb08.run_config(config), config.device)
    loading_seconds = now() - _began
    lap, _version = await one_lap(_actors, range(config.prompts))
    await nb08.stop_all()
    lesson.md(f"""
    Starting and loading took {loading_seconds:.1f} s. One lap: {config.prompts * config.samples} episodes in {config.prompts} groups, one step, and the generator has version {_version}.

    If generator and trainer disagree about a token's probability, the gradient is wrong, and nothing tells you. So the trainer computes every log-prob again.
    The largest difference from a recorded one: {lap["max_logp_difference"]:.6f}{", rounding" if lap["max_logp_difference"] < 1e-3 else ": more than rounding, so look into it"}.
    """)
    return lap, loading_seconds


@app.cell(hide_code=True)
def _():
    _text = mo.md("""
    ## The controller

    The controller is two coroutines, `generate` and `train`. Between them sits a queue of finished groups, `ready`: our replay buffer. It only keeps their order, because their age is bounded earlier, where they are started.

    Every step makes new weights, so groups get old while they wait. A group has the version of the weights that drew its first token, its **policy version**.
    Its **lag** is how many versions further the trainer is when it trains on it. The rule `may_start` decides how many groups may be *started*, so that no lag exceeds `max_lag`.
    What is bounded at the start need never be thrown away.

    All runs here use the clipped loss of GRPO. Its ratio compares the trained policy with the one that sampled; notebook 09 shows why.
    """)
    _drawing = lesson.figure(
        drawing_of("weights_change.svg"),
        "A pull waits for nobody: weights change in the middle of an episode. The log-prob recorded with a token (log μ) is that of the weights that drew it, so it stays true. The tool's answer, → 17, was not drawn and has none.",
    )
    _half = mo.md("""
    Here is `generate`. It shares two things with `train`: `newest.version` is the last version that `train` has published, and `news` is an `asyncio.Event`, by which `train` wakes it.

    - `news.clear()` stands first. Say version 4 is published while `pull` still copies version 3. Then `news` is set, and `news.wait()` returns at once. A `clear` after the pull would erase that news.
    - `create_task` begins a batch and does not wait for it. At its end, the `TaskGroup` waits for all of them.
    - `in_order`, in the folded cell below, queues a batch after the one before it. A later batch may be finished first, but each step gets its own groups.
    """)
    mo.vstack([_text, _drawing, _half])
    return


@app.function
async def generate(generator, may_start, ready, newest, news, steps, per_step, max_lag):
    """Start batches as early as the bound on lag allows."""
    version = 0
    started = 0
    batch = None  # the task that was started last
    async with asyncio.TaskGroup() as under_way:
        while started < steps * per_step:
            news.clear()
            if version < newest.version:
                version = await generator.pull()
            count = may_start(version, started, per_step, max_lag)
            if count < 1:
                await news.wait()
                continue
            count = min(count, per_step, steps * per_step - started)
            numbers = range(started, started + count)
            started += count
            sampled = generator.sample(numbers)  # begins when it is awaited
            # The next batch is given this one, to be queued after it.
            batch = under_way.create_task(in_order(sampled, batch, ready))


@app.function(hide_code=True)
async def in_order(sampled, earlier, ready):
    """Queue a batch when it is sampled and the one before it is in the queue."""
    finished = await sampled
    if earlier is not None:
        await earlier
    for group in finished:
        ready.put_nowait(group)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 1: admission

    Groups are numbered in the order in which they are started. Step s takes the next `per_step` of
    them, starts from version s of the weights, and makes version s + 1. So weights `version` may sample
    the groups of steps up to `version + max_lag`.

    Write `may_start`: with `started` groups started so far, how many more may be, with weights `version`?
    """)
    return


@app.function
def may_start(version, started, per_step, max_lag):
    """Return how many groups may be started now.

    may_start(0, 0, 8, 1) is 16: steps 0 and 1 may have version 0,
    and take 8 groups each. may_start(2, 28, 8, 1) is 4: steps 0 to 3
    take 32 groups, and 28 of them have been started.
    """
    ...


@app.cell(hide_code=True)
def _():
    rule, whose_rule = exercise.running(lambda: may_start, Solutions)
    exercise.feedback(
        lambda: may_start,
        Solutions,
        level="warm-up",
        minutes=5,
        hints=(
            "Which is the last step that may train on this version? How many groups do the steps up to it take in all?",
            "Steps 0 to `version + max_lag` take `(version + max_lag + 1) * per_step` groups. Some have been started.",
        ),
    )
    return rule, whose_rule


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 2: the trainer's half

    Write `train`, the other coroutine: steps 0 to `steps` - 1, each on the next `per_step` groups.

    - `await ready.get()` waits for a group: a pair, its rewards and its episodes.
    - An advantage is reward minus its group's mean, over the standard deviation plus 1e-4 (`fmean`, `pstdev`).
    - `await trainer.step(episodes, advantages)` takes two flat lists, and returns metrics. This `trainer` hides `call_one`, so you do not write it.
    - `await trainer.publish()` returns the version that belongs in `newest.version`.
    - `news.set()` wakes the generator. It must never wake and find the old version.
    - `on_step(step, metrics)` reports a step that is over.
    """)
    return


@app.function
async def train(trainer, ready, newest, news, steps, per_step, on_step):
    """Train on groups as they come.

    await train(trainer, ready, newest, news, 40, 8, print) takes 40 steps
    of 8 groups each.
    """
    ...


@app.cell(hide_code=True)
def _():
    loop, whose_loop = exercise.running(lambda: train, Solutions)
    exercise.feedback(
        lambda: train,
        Solutions,
        level="core",
        minutes=12,
        lines=15,
        hints=(
            "What is an episode compared with: its group, or the batch? And what must be true before `news.set()`, if the generator looks at `newest.version` at once?",
            "`per_step` times `rewards, group = await ready.get()`: each time two lists grow, `episodes` and `advantages`. Then `step`, `publish`, `newest.version`, `news.set()`, `on_step`, in this order.",
        ),
    )
    return loop, whose_loop


@app.function(hide_code=True)
async def run_loop(
    actors, may_start, train, steps, per_step, max_lag, on_step, versions=None
):
    """Run both halves. Returns what the actors did when; every version is kept in the folder `versions`."""
    ready = asyncio.Queue()
    news = asyncio.Event()
    newest = SimpleNamespace(version=0)  # as far as the trainer has published
    writer, learner = actors.generator, actors.trainer

    async def publish():
        version = await learner.publish.call_one()
        if versions:
            await learner.export.call_one(str(versions / str(version)))
        return version

    generator = SimpleNamespace(
        pull=writer.pull.call_one, sample=lambda numbers: sample(actors, numbers)
    )
    trainer = SimpleNamespace(step=learner.step.call_one, publish=publish)
    await run_together(  # if one fails, the other is cancelled
        generate(generator, may_start, ready, newest, news, steps, per_step, max_lag),
        train(trainer, ready, newest, news, steps, per_step, on_step),
    )
    spans = [await actor.drain_spans.call_one() for actor in (writer, learner)]
    return Timeline([*spans[0], *spans[1]])


@app.cell(hide_code=True)
def _(config, whose_loop, whose_rule):
    real_run = nb08.real_run(config)
    _small = real_run.policy == "embedded"
    _model = "the small policy" if _small else "SmolLM2"
    _text = lesson.md(f"""
    The runs below use {whose_rule} and {whose_loop}. If you edit either later, the runs are thrown away.

    If you like, see first that your loop reaches a whole language model: let it train {_model}, side by side at `max_lag` 1. The rest of the page does not need it, and its result is folded.
    """)
    start_real = lesson.start_button(
        f"Train {_model}, {config.real_steps} steps", seconds=12 if _small else 45
    )
    mo.vstack([_text, start_real])
    return real_run, start_real


@app.cell(hide_code=True)
async def _(config, loop, real_run, rule, start_real):
    lesson.wait_for(start_real)
    await nb08.stop_all()
    with lesson.counting(config.real_steps, "steps") as _one_more:
        _actors = await bring_up(real_run, config.device)
        wrote = {"before training": await nb08.answer(_actors, real_run)}
        await run_loop(
            _actors,
            rule,
            loop,
            config.real_steps,
            real_run.prompts_per_step,
            real_run.max_lag,
            _one_more,
        )
        wrote[f"after {config.real_steps} steps side by side"] = await nb08.answer(
            _actors, real_run
        )
        await nb08.stop_all()
    lesson.folded(
        "What it wrote, before and after",
        f"""
    {config.real_steps} steps are far too few to learn this question, so do not count its right answers. Where a group's rewards differ, also by a call too many, its step moves
    the weights, and then all texts begin to change.
    """,
        nb09.answers(
            wrote, "The first question of notebook 05 again, asked on the same draws."
        ),
    )
    return (wrote,)


@app.cell(hide_code=True)
def _(config):
    _text = mo.md("""
    ## Is a step faster?

    At `max_lag` 0, generator and trainer take turns. With lag they work side by side, and that can only fill *idle* time.
    Where every core computes already, there is none.

    But real tools take time: a search, a database, a compiler. A process that waits for a tool does not compute, so filling this time needs no free core.
    Let our tools be slow, too. Half of the calls take less than 0.6 times the average, and one in fifty more than 5 times.
    From here on the small policy runs.
    """)
    ask_time = lesson.predict(
        f"Tools take {1000 * config.tool_seconds:.0f} ms on average. At `max_lag` {max(config.lags)}, up to {max(config.lags)} batches are written while the trainer works. How many times as many *steps* a second does that make, against taking turns?",
        "not faster, or hardly: less than 1.2 times",
        "1.2 to 3 times",
        "more than 3 times",
    )
    start_runs = lesson.start_button(
        f"Train {config.steps} steps, {len(config.lags)} times", seconds=40
    )
    curve = LiveCurve(config.steps, title="Right answers in each training batch")
    _young = mo.md(
        "With lag, each batch was written by an older policy. So this curve does not yet say what a run has learned."
    )
    mo.vstack([_text, ask_time, start_runs, curve, _young])
    return ask_time, curve, start_runs


@app.class_definition(hide_code=True)
class SlowToolGenerator(GeneratorActor):
    """Its tools answer after `tool_latency` seconds on average. Waiting needs no core."""

    def _call_tool(self, task, call):
        # A future. Until it is there, other episodes are decoded.
        return asyncio.run_coroutine_threadsafe(self._answer(task, call), self._loop)

    async def _answer(self, task, call):
        await asyncio.sleep(lognormal(random, self.config.tool_latency, variation=1.5))
        return self._environment.execute(task, call)


@app.cell(hide_code=True)
async def _(config, curve, loop, rule, start_runs):
    lesson.wait_for(start_runs)
    curve.clear()
    runs = {}
    versions = Path(nb08.SCRATCH.name)
    await nb08.stop_all()
    small = nb08.small(config)
    _run = nb08.run_config(
        small, max_lag=max(config.lags), tool_latency=config.tool_seconds
    )
    with lesson.counting(len(config.lags) * config.steps, "steps") as _one_more:
        _actors = await bring_up(_run, config.device, SlowToolGenerator)
        for _lag in config.lags:

            def _on_step(step, metrics, lag=_lag):
                _one_more()
                curve.add(nb08.name_of(lag), step + 1, metrics["accuracy"])

            await load(_actors)  # begin again at version 0
            runs[_lag] = await run_loop(
                _actors,
                rule,
                loop,
                config.steps,
                small.prompts,
                _lag,
                _on_step,
                versions / nb08.name_of(_lag),
            )
        await nb08.stop_all()
    return runs, small, versions


@app.cell(hide_code=True)
def _(ask_time, runs):
    slow = {lag: nb08.account(run) for lag, run in runs.items()}
    _turns, _most = slow[min(slow)], slow[max(slow)]
    _times = _turns.step / _most.step
    _drawn = nb08.side_by_side(runs)
    lesson.reveal(
        ask_time,
        right=0 if _times < 1.2 else 1 if _times < 3 else 2,
        why=f"""
    {_times:.1f} times: a step takes {_turns.step:.2f} s in turns and {_most.step:.2f} s at lag {max(slow)}. This is the mean of all {len(_turns.ended)} steps, with the start and the end of each run.
    In turns, a batch is under way for {_turns.between:.2f} s; for {_turns.generate:.2f} s of that the generator computes.{" The rest is waiting for tools, most of it for the slowest episode." if _turns.generate < 0.9 * _turns.between else ""}
    """,
        shows=[
            lesson.figure(
                _drawn,
                "The same seconds of each run, from its middle. The wait for the first batch is not shown, so a step here may be shorter than the mean. At the right: how busy each process was.",
            )
        ],
    )
    return (slow,)


@app.cell(hide_code=True)
def _(config):
    ask_paid = lesson.predict(
        f"Give the run in turns and the one at `max_lag` {max(config.lags)} the same *seconds*. Which of these two runs has learned more by then?",
        "the one in turns, clearly",
        "the one with lag, clearly",
        "no clear difference",
    )
    _text = mo.md("""
    ## Did it pay?

    A faster step is not yet a gain. Three things must be told apart:

    - *the time of a step*, which you have just seen;
    - *what a step teaches*: how many points accuracy rises in a step. Old data may teach less;
    - *what the same seconds teach*: accuracy at one moment. That alone says whether asynchrony paid.

    Every version of all three runs was kept. So we let each take the same held-out tasks: after all its steps, and at the moment when the fastest run was over.
    """)
    mo.vstack([_text, ask_paid])
    return (ask_paid,)


@app.cell(hide_code=True)
def _(ask_paid, runs, small, versions):
    lesson.needs(lambda: runs)
    seconds, learned = nb08.learned(runs, nb08.examiner(small, versions))
    _apart, paid = nb08.paid(seconds, learned, small.held_out)
    lesson.reveal(
        ask_paid,
        right={1: 0, -1: 1, 0: 2}[_apart],
        why=f"""
    {paid}
    "Seconds a step" are the mean over a run. Its first steps take longer, because the untrained policy writes longer texts; so fewer of them fit before that moment than the mean says.
    That is the answer for these two runs. Notebook 09 shows that other seeds differ by more than these ±, so two runs do not settle whether asynchrony pays.
    """,
        shows=[
            lesson.table(
                f"Step time, learning, and both ({small.held_out} held-out tasks)",
                nb08.three_things(seconds, learned, small.held_out),
            )
        ],
    )
    return learned, paid


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 3: what bounds a step?

    In the run in turns, a batch was under way for `sampling` seconds, waiting included, and a training step took `training` seconds.
    Two things bound the seconds of a step from below at `max_lag` L:

    - The trainer must train on each batch.
    - A batch needs `sampling` + `training` seconds, from its start to the end of its step. With version v, the batches of steps v to v + L may be under way: L + 1 batches share that time.

    Write `least_seconds`, the longer of the two.
    """)
    return


@app.function
def least_seconds(sampling, training, max_lag):
    """Return the fewest seconds that a step can take.

    least_seconds(2.0, 0.5, 1) is 1.25.
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: least_seconds,
        Solutions,
        level="stretch",
        minutes=4,
        lines=1,
        hints=(
            "By lag, L + 1 steps take `sampling + training`. What is that for one step? And which part of a step can nothing shorten?",
            "`max` of `training` and `(sampling + training) / (max_lag + 1)`.",
        ),
    )
    return


@app.cell(hide_code=True)
def _(slow):
    lesson.needs(lambda: slow)
    _rule, _whose = exercise.running(lambda: least_seconds, Solutions)
    _most = slow[max(slow)]
    _rows = [
        {
            "run": nb08.name_of(lag),
            f"at least, by {_whose}": f"{float(_rule(slow[0].between, slow[0].train, lag)):.2f} s",
            "measured": f"{found.step:.2f} s",
            "of which the generator computes": f"{found.generate:.2f} s",
            "and the trainer": f"{found.train:.2f} s",
        }
        for lag, found in slow.items()
    ]
    _table = lesson.table(
        f"Seconds of a step, from two numbers of the run in turns: sampling {slow[0].between:.2f} s, training {slow[0].train:.2f} s",
        _rows,
    )
    _said = lesson.md(f"""
    In turns the bound is the sum of these two, so it is what was measured.
    At lag {max(slow)} the generator computes for {_most.generate:.2f} of {_most.step:.2f} s. It is the only one, and makes all batches. If it needs as much with more lag, that can make a step at most {_most.step / _most.generate:.2f} times as fast, and makes data older.
    """)
    _why = lesson.folded(
        "Why is a step longer than the bound?",
        """
The bound supposes that a batch takes as long as in turns, and that L + 1 of them are always under way.

- With lag, the last batch is started some steps before the end. From then on fewer and fewer are under way, and the mean includes that.
- Batches slow each other down, because they share the generator. And generator and trainer share the cores: see what a step of the trainer takes beside it, in the last column.
""",
    )
    mo.vstack([_table, _said, _why])
    return


@app.cell(hide_code=True)
def _(config):
    _text = mo.md("""
    ## A process is killed

    Your controller ends when a process dies. The package's goes on: its generators are a service, which
    replaces what dies (notebook 06). Here one of two gets `kill -9` in the middle of training. A spare, with its model loaded, stands by.
    """)
    ask_killed = lesson.predict(
        f"A generator dies while its groups are half sampled. The run has {config.killed_steps * config.prompts} groups to train on. On how many does it train?",
        "all but those that died with it",
        "all of them, some twice",
        "all of them, each once",
    )
    start_killed = lesson.start_button(
        f"Train {config.killed_steps} steps and kill a generator", seconds=25
    )
    mo.vstack([_text, ask_killed, start_killed])
    return ask_killed, start_killed


@app.function(hide_code=True)
async def kill_in_the_act(controller):
    """`kill -9` for a generator in the second half of the run, when it has begun to sample."""
    generator = controller.roles.services["generator"].replicas[0]  # one of two
    while (
        controller.progress.step < controller.config.steps // 2
        or "generate" in generator.doing
    ):
        await asyncio.sleep(0.01)
    while "generate" not in generator.doing:
        await asyncio.sleep(0.01)
    os.kill(generator.pid, signal.SIGKILL)
    moment = now()
    controller.log.timeline.add([Span(generator.name, "kill", moment, moment)])


@app.cell(hide_code=True)
async def _(config, start_killed):
    lesson.wait_for(start_killed)
    _run = nb08.run_config(config, steps=config.killed_steps, generators=2, spares=1)
    with (
        lesson.counting(None, "processes start, train, and one is killed"),
        nb08.quietly() as native_errors,
    ):
        _folder = nb08.create(_run, None if lesson.unattended() else __file__)
        run_log, _counters = await nb08.train_and_kill(_run, _folder, kill_in_the_act)
    books = nb08.books_of(run_log, _counters)
    return books, native_errors, run_log


@app.cell(hide_code=True)
def _(ask_killed, books, config, loading_seconds, run_log):
    lesson.needs(lambda: (loading_seconds, run_log))
    _drawn, _mended = nb08.around_the_kill(run_log.timeline)
    _all = config.killed_steps * config.prompts
    _said = f"{books.trained} of {_all}, each once" if books.each_once else "Not each once"
    lesson.reveal(
        ask_killed,
        right=0 if books.trained < _all else 2 if books.each_once else 1,
        why=f"""
    {_said}. {books.started} were started, and {books.abandoned} died with the generator. A generator gets half a batch at a time, and may sample several of these at once. What it had not finished was lost.
    Their numbers were given out again, and a number makes the same task. With newer weights its episodes may be others.
    The spare was in place {_mended:.2f} s after the kill. At the top of this page, starting and loading took {loading_seconds:.1f} s.
    """,
        shows=[
            lesson.figure(
                _drawn,
                "The batch that it was writing is missing from its row, because only finished work is reported.",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _(loop, rule, whose_loop, whose_rule):
    _kept = functions_of(kept(__file__, "my_rl.py"), "sample_episode", "policy_gradient")
    _written = _kept | {"may_start": rule, "train": loop}
    my_async_rl = fill_in(EXAMPLES / "my_async_rl.py", _written)
    _text = lesson.md(f"""
    ## One file that you keep

    `my_async_rl.py` needs no package of this course. It has {whose_rule}, {whose_loop}, and two
    processes that share the weights in memory. It trains at `max_lag` 1, in about a minute: run it, and
    watch its right answers.
    {"The two functions of your `my_rl.py` are in it, too." if _kept else "The loop inside is the course's: there is no `my_rl.py` of notebook 05b."}
    """)
    write = lesson.start_button("Write my_async_rl.py", seconds=float("nan"))
    _folded = lesson.folded(
        "`my_async_rl.py`",
        "Two things are simpler than here. Weights change between batches, not inside an episode. "
        "And its loss has no ratio, so it takes old data for fresh.\n\n"
        f"```python\n{my_async_rl}\n```",
    )
    mo.vstack([_text, _folded, write])
    return my_async_rl, write


@app.cell(hide_code=True)
def _(my_async_rl, write):
    lesson.wait_for(write)
    _nobody = "In `marimo edit`, a button here writes the file."
    lesson.md(
        _nobody
        if lesson.unattended()
        else keep(my_async_rl, kept(__file__, "my_async_rl.py"))
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.recap(
        3,
        "An asynchronous controller is two coroutines, a queue between them, and a rule for what may be started.",
        "Compare log-probs at lag 0 first. If they differ by more than rounding, generator and trainer disagree about the policy.",
        "Lag fills idle time: a free core's, and the wait for a tool, which needs no core. Where every core computes already, there is nothing to fill.",
        "The time of a step and what it teaches are two things. What the same seconds teach says whether asynchrony paid.",
        "Number the work. Then what a dead process had can be given out again.",
    )
    return


@app.cell(hide_code=True)
def _(paid, slow):
    lesson.needs(lambda: (paid, slow))
    _faster = nb08.faster(slow[0].step, slow[max(slow)].step)
    lesson.headline(
        f"With slow tools, over {len(slow[0].ended)} steps, a step at `max_lag` {max(slow)} was {_faster}. {paid}"
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.links(__file__)
    return


@app.class_definition(hide_code=True)
class Solutions:
    """Check the exercises of this page, and solve them."""

    def check_may_start(may_start):
        exercise.expect(
            may_start,
            3,
            20,
            8,
            3,
            result=36,
            mistakes={
                "it forgets what has been started": 56,
                "it ignores the version, so nothing is started after the first steps": 12,
                "it is a step short: step `version + max_lag` itself may still have this version": 28,
                "it is a step too generous: these data would be older than `max_lag`": 44,
                "it starts whole batches only, but a part of one may be started, too": 32,
                "it cuts the lag at 1, but `max_lag` may be more": 20,
            },
        )
        exercise.expect(may_start, 0, 0, 8, 1, result=16)
        exercise.agree(
            may_start, Solutions.may_start, nb08_checks.drawn_moment, times=60, whole=True
        )

    def may_start(version, started, per_step, max_lag):
        """Return how many groups may be started now."""
        return (version + max_lag + 1) * per_step - started

    def check_train(train):
        nb08_checks.check_train(train, Solutions.train)

    async def train(trainer, ready, newest, news, steps, per_step, on_step):
        """Train on groups as they come."""
        for step in range(steps):
            episodes = []
            advantages = []
            for _ in range(per_step):
                rewards, group = await ready.get()
                mean = fmean(rewards)
                deviation = pstdev(rewards)
                for reward in rewards:
                    advantages.append((reward - mean) / (deviation + 1e-4))
                episodes.extend(group)
            metrics = await trainer.step(episodes, advantages)
            newest.version = await trainer.publish()
            news.set()
            on_step(step, metrics)

    def check_least_seconds(least_seconds):
        _trainer = {"it forgets the trainer, which must train on every batch": 1.25}
        _shared = {
            "L + 1 batches share `sampling + training`, not `sampling` alone": 1.0,
            "`max_lag` L lets L + 1 batches share the time, not L": 2.5,
        }
        exercise.expect(least_seconds, 1.0, 4.0, 3, result=4.0, mistakes=_trainer)
        exercise.expect(least_seconds, 2.0, 0.5, 1, result=1.25, mistakes=_shared)
        exercise.agree(
            least_seconds, Solutions.least_seconds, nb08_checks.drawn_load, times=40
        )

    def least_seconds(sampling, training, max_lag):
        return max(training, (sampling + training) / (max_lag + 1))


if __name__ == "__main__":
    app.run()
