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
    app_title="RL at scale: the task and the benchmark",
    css_file="../zorplex_rl/course/lesson/lesson.css",
)

with app.setup(hide_code=True):
    import random
    import re
    from statistics import fmean
    from types import SimpleNamespace

    import marimo as mo

    from zorplex_rl.course.figures.loop_drawing import loop_drawing
    from zorplex_rl.course.lesson import exercise, lesson
    from zorplex_rl.course.lesson.later import later
    from zorplex_rl.course.widgets import TimelineSimulator, WhatIf
    from zorplex_rl.course.widgets.what_if import Knob
    from zorplex_rl.run.timeline import SpanRecorder, group_latencies
    from zorplex_rl.simulation.recorded import group_variation
    from zorplex_rl.simulation.setting import Setting
    from zorplex_rl.task.environment import Zorplex
    from zorplex_rl.task.episode import OUTCOMES
    from zorplex_rl.task.parser import find_answer
    from zorplex_rl.task.rewards import score
    from zorplex_rl.task.specs import HELD_OUT_WORDS, TASK_SPECS

    # The page shows its top before these are there: torch takes seconds.
    torch = later("torch")
    nb05 = later("zorplex_rl.course.nb05")
    learning = later("zorplex_rl.learning.learner")


@app.cell(hide_code=True)
def _():
    lesson.header(
        __file__,
        minutes=48,
        hardware="two CPU cores, no GPU; a network only to fetch SmolLM2",
        goals=[
            "say when RL needs a distributed system, and when one process is enough",
            "say why we ask for made-up words and not for word problems",
            "run a benchmark and read it: the capability is there, the form is not",
            "sort failures, and price each of them by a reward",
            "say why a batch waits for its slowest episode, and what asynchrony costs instead",
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## When does RL need a distributed system?

    In reinforcement learning a model writes answers, a program judges them, and the model is trained on
    them. *Generating* is limited by memory: each token reads all weights once. *Tools and checks* are
    other programs, to wait for. *Training* is limited by arithmetic. As long as one machine does all
    three and nobody waits for long, one process is enough. Beyond that, this drawing becomes a system.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.figure(
        loop_drawing(),
        "The loop of this course.",
    )
    return


@app.cell(hide_code=True)
def _():
    fetch = nb05.fetch_button()
    fetch
    return (fetch,)


@app.cell
def settings():
    config = SimpleNamespace(
        seed=0,
        samples=100,  # tasks of each kind for the small policy
        real_samples=12,  # and for SmolLM2, which is 150 times as large
        shots=2,  # worked examples that SmolLM2 sees before each question
    )
    return (config,)


@app.cell
def _(fetch):
    from zorplex_rl.policy.load import load_policy
    from zorplex_rl.policy.rollout import RolloutRequest, Sampling, rollout

    small = load_policy("embedded")
    smol, computed_on = nb05.pretrained(fetch)
    torch.set_num_threads(2 if smol else 1)
    speaker = smol or small
    return RolloutRequest, Sampling, computed_on, load_policy, rollout, small, smol, speaker


@app.cell(hide_code=True)
def _(speaker):
    lesson.ran_on(speaker)
    return


@app.cell(hide_code=True)
def _(computed_on, speaker):
    lesson.md(f"""
    {computed_on}

    ## One word problem

    {nb05.WORD_PROBLEM.question}

    The model writes:

    {lesson.fence(nb05.word_problem(speaker))}

    The right answer is **{nb05.WORD_PROBLEM.answer}**. Did it calculate, or remember a problem like this one? And how
    would a program find its answer in that text? We need a task without these two doubts.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.table(
        "Why a made-up task is better for training, and for measuring",
        [
            {
                "": "Could it be memorised?",
                "a word problem": "yes, the web is full of them",
                "made-up words": "no, the numbers are drawn now",
            },
            {
                "": "Can a program check it?",
                "a word problem": "only if it finds a number in prose",
                "made-up words": "yes: `[ANSWER]` and an integer",
            },
            {
                "": "Can we set how hard it is?",
                "a word problem": "no",
                "made-up words": "yes: words, look-ups, redirects",
            },
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Words with a secret number

    Each word has a secret number, different in every task. The model cannot know it; it can only ask
    a tool. Here is one task with its table, which only the tool sees.
    """)
    return


@app.cell
def _(config):
    environment = Zorplex(config.seed)
    (task,) = environment.tasks(("compositional",), 1)
    print(task.question, task.table)
    return environment, task


@app.cell(hide_code=True)
def _():
    mo.md("""
    An answer with tool calls grows in three ways, again and again. *Generate*: the model draws a
    token. *Call*: the text holds a complete call, so the tool runs. *Inject*: append the result to the
    text, as tokens, and keep generating. In notebook 05b you write this loop. Drag the slider.
    """)
    return


@app.cell(hide_code=True)
def _(answered, small):
    _episode = next(e for e in answered["compositional"] if e.score.outcome == "success")
    WhatIf(
        "An episode grows: solid boxes are the model's tokens, dashed ones the tool's",
        [Knob("tokens", "Tokens so far", list(range(1, len(_episode.token_ids) + 1)))],
        lambda tokens: nb05.injection(small, _episode, tokens),
        {"tokens": min(9, len(_episode.token_ids))},
        static="execute" in mo.cli_args(),
    )
    return


@app.cell(hide_code=True)
def _(environment, small):
    lesson.figure(
        nb05.four_kinds(small, environment),
        "The four kinds: what the model sees, and in bold a perfect answer. Results stand behind arrows.",
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.md(f"""
    ## The benchmark

    It asks each {lesson.term("policy", "policy")} held-out questions of every kind, and scores the
    {lesson.term("episode", "episodes")}. Their words never occur in training.
    """)
    return


@app.cell
def _(RolloutRequest, config, rollout):
    def benchmark(policy, kinds, samples, shots, sampling):
        """Answer `samples` held-out tasks of each kind. Returns {kind: episodes, scored}."""
        results = {}
        for kind in kinds:
            environment = Zorplex(config.seed, shots=shots)
            tasks = environment.tasks((kind,), samples, "held_out")
            requests = [RolloutRequest(task, seed) for seed, task in enumerate(tasks)]
            results[kind] = rollout(policy, requests, environment.execute, sampling)
            for episode in results[kind]:
                episode.score = score(episode)
        return results

    return (benchmark,)


@app.cell
def _(Sampling, benchmark, config, small, smol):
    from zorplex_rl.policy.evaluate import summarise

    sampling = Sampling(temperature=1.0, max_tokens=96, max_turns=6, slots=64)
    brief = Sampling(temperature=1.0, max_tokens=48, max_turns=4, slots=64)
    answered = benchmark(small, TASK_SPECS, config.samples, 0, sampling)
    reports = [summarise(f"small {kind}", episodes) for kind, episodes in answered.items()]
    real = {}
    if smol:
        real = benchmark(smol, TASK_SPECS, config.real_samples, config.shots, brief)
        reports += [
            summarise(f"SmolLM2 {kind}", episodes) for kind, episodes in real.items()
        ]
    return answered, brief, real, reports, sampling, summarise


@app.cell(hide_code=True)
def _(reports):
    mo.vstack(
        [
            lesson.table("The benchmark, sampled at temperature 1", nb05.rows_of(reports)),
            lesson.figure(nb05.accuracy_chart(reports)),
        ]
    )
    return


@app.cell(hide_code=True)
def _(reports):
    _widest = max(reports, key=lambda report: report.interval[1] - report.interval[0])
    lesson.md(f"""
    Read the intervals first. `{_widest.name}` has {_widest.episodes} answers, and its true accuracy may be
    anywhere from {_widest.interval[0]:.0%} to {_widest.interval[1]:.0%}. A model that is wrong about a word is wrong each time.
    So questions about the same word count as one trial, and there are only {len(HELD_OUT_WORDS)} words. The small policy was made for this task, with bad habits on purpose. A real model comes with other habits.
    """)
    return


@app.cell(hide_code=True)
def _():
    ask_shots = lesson.predict(
        "How many questions of `simple` does the model answer in the required format if it sees no worked example?",
        "fewer than a third",
        "a third to two thirds",
        "more than two thirds",
    )
    ask_shots
    return (ask_shots,)


@app.cell
def _(benchmark, brief, config, real, smol, small, speaker, summarise):
    counts = (0, 1, 2, 4) if smol else (0, 2)
    by_shots = {}
    for shots in counts:
        known = real.get("simple") if shots == config.shots else None
        episodes = (
            known
            or benchmark(speaker, ("simple",), config.real_samples, shots, brief)["simple"]
        )
        by_shots[shots] = summarise(f"{shots} examples", episodes)
    return (by_shots,)


@app.cell(hide_code=True)
def _(ask_shots, by_shots, computed_on, smol):
    from zorplex_rl.course.figures.bars import outcome_chart

    _in_form = {
        n: r.outcomes["success"] + r.outcomes["wrong_answer"] for n, r in by_shots.items()
    }
    _most = max(by_shots)
    lesson.reveal(
        ask_shots,
        right=0 if 3 * _in_form[0] < 1 else 1 if 3 * _in_form[0] <= 2 else 2,
        why=f"""
    Without an example {_in_form[0]:.0%} answer in the format, with {_most} examples {_in_form[_most]:.0%}.
    {"The weights are the same: the capability is there, the form is not." if smol else computed_on}
    {"RL needs a model that already gets some answers right, so SmolLM2 is trained with two examples before each question." if smol else ""}
    """,
        shows=[
            lesson.figure(
                outcome_chart(list(by_shots.values())),
                "`simple`, by the number of worked examples.",
            )
        ],
    )
    return (outcome_chart,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A gallery of failures

    "Wrong" is not one thing, and each kind of failure has its own cure.

    ### Exercise 1: sort them
    """)
    return


@app.function
def outcome(answer, expected, finish):
    """Say how an episode ended: the first of these that holds.

    "success"        there is an answer, and it is the expected one
    "wrong_answer"   there is an answer, and it is another one
    "tool_spam"      no answer, and `finish` is "turns": still calling tools at the limit
    "truncated"      no answer, and `finish` is "tokens": cut off
    "wrong_format"   no answer: it ended its text without one in the required format

    `answer` and `expected` are integers; `answer` is None if there is none.

    >>> outcome(7, 7, "answer"), outcome(None, 7, "turns")
    ('success', 'tool_spam')
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: outcome,
        check_outcome,
        outcome_solution,
        level="core",
        minutes=5,
        lines=3,
        hints=(
            "May an answer be 0? And can an episode be cut off although it has an answer?",
            "First the two cases with an answer: `if answer is not None: return …`. What is left depends "
            "on `finish` alone, so a dictionary with `.get(finish, …)` will do.",
        ),
    )
    return


@app.cell
def _(answered, real):
    sort, whose_sort = exercise.running(lambda: outcome, check_outcome, outcome_solution)
    gallery = {"small": {}, "SmolLM2": {}}
    for _policy, _results in (("small", answered), ("SmolLM2", real)):
        for _episode in [episode for found in _results.values() for episode in found]:
            _answers = [find_answer(text) for text in _episode.sampled_text]
            _last = next(
                (answer for answer in reversed(_answers) if answer is not None), None
            )
            ending = sort(_last, _episode.task.answer, _episode.finish)
            gallery[_policy].setdefault(ending, []).append(_episode)
    return gallery, whose_sort


@app.cell(hide_code=True)
def _(gallery, small, smol, whose_sort):
    from zorplex_rl.course.figures.tokens import episode_card

    _shown = {
        name: [episodes[0] for ending, episodes in found.items() if ending != "success"]
        for name, found in gallery.items()
    }
    lesson.figure(
        episode_card(small, _shown["small"])
        + (episode_card(smol, _shown["SmolLM2"]) if smol else ""),
        f"Failures of the small policy{', then of SmolLM2' if smol else ''}: one of each sort, by {whose_sort}. "
        "Solid: the model's tokens. Dashed: the tool's. At the right: the reward.",
    )
    return


@app.cell(hide_code=True)
def _(gallery, outcome_chart):
    _totals = {name: sum(map(len, found.values())) for name, found in gallery.items()}
    _bars = [
        SimpleNamespace(
            name=f"{name}, {_totals[name]}",
            outcomes={
                ending: len(found.get(ending, ())) / _totals[name] for ending in OUTCOMES
            },
        )
        for name, found in gallery.items()
        if found
    ]
    lesson.figure(outcome_chart(_bars), "How often each of them happens.")
    return


@app.cell(hide_code=True)
def _():
    lesson.md(f"""
    ### Exercise 2: price them

    A {lesson.term("reward")} turns failures into numbers, and training follows the numbers. So every failure gets a
    term. The right value is worth 1. Any answer in the format is worth 0.2, so that there is something
    to find on the way. Every needless call costs 0.1.
    """)
    return


@app.function
def reward(outcome, needless_calls):
    """The reward of an episode that ended with this `outcome` after so many needless calls.

    >>> reward("success", 0), reward("wrong_answer", 2), reward("truncated", 1)
    (1.2, 0.0, -0.1)
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: reward,
        check_reward,
        reward_solution,
        level="warm-up",
        minutes=4,
        lines=2,
        hints=(
            "Which two outcomes have an answer in the format?",
            'A comparison counts as 0 or 1: `(outcome == "success") + 0.2 * (outcome in (…)) − …`.',
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.table(
        "From failures to terms",
        [
            {
                "failure": "right value, wrong form",
                "term": "+0.2 for the form",
                "it learns to": "write `[ANSWER]`",
            },
            {
                "failure": "wrong answer",
                "term": "+1 for the right value only",
                "it learns to": "copy what the tool said",
            },
            {
                "failure": "tool spam",
                "term": "−0.1 for each needless call",
                "it learns to": "ask once",
            },
            {
                "failure": "truncated",
                "term": "nothing is paid",
                "it learns to": "come to an end",
            },
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    ask_lenient = lesson.predict(
        "A lenient checker pays whenever the right number appears anywhere in the text. How many more "
        "episodes of the small policy does it pay for?",
        "up to 25% more",
        "25% to 75% more",
        "more than that",
    )
    ask_lenient
    return (ask_lenient,)


@app.function
def paid_for(episode):
    """What a lenient checker would pay for, or None: the right number stands nowhere."""
    number = re.compile(rf"(?<!\d){episode.task.answer}(?!\d)")
    if episode.score.outcome == "success":
        return "answer"
    if any(number.search(text) for text in episode.sampled_text):
        return "own words"
    if any(number.search(turn.result or "") for turn in episode.turns):
        return "tool's words"
    return None


@app.cell(hide_code=True)
def _(answered, ask_lenient):
    _paid = [paid_for(episode) for episodes in answered.values() for episode in episodes]
    paid_shares = {
        what: _paid.count(what) / len(_paid)
        for what in ("answer", "own words", "tool's words")
    }
    _more = sum(paid_shares.values()) / (paid_shares["answer"] or 1e-9)
    lesson.reveal(
        ask_lenient,
        right=0 if _more <= 1.25 else 1 if _more <= 1.75 else 2,
        why=f"""
    {_more - 1:.0%} more. In {paid_shares["own words"]:.0%} of all episodes the policy wrote the number, but
    not as its answer. In {paid_shares["tool's words"]:.0%} only the tool wrote it: there the checker pays for
    calling alone. A policy that is trained on that learns to call and to stop. That is
    {lesson.term("reward hacking")}.
    """,
    )
    return (paid_shares,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Latencies

    Now look at the clock. One episode stops after a line, another goes on until it is cut off.
    """)
    return


@app.cell(hide_code=True)
def _():
    ask_slowest = lesson.predict(
        "How many times as long as the fastest does the slowest of all episodes take?",
        "up to 3 times",
        "3 to 10 times",
        "more than 10 times",
    )
    ask_slowest
    return (ask_slowest,)


@app.cell
def _(answered, real):
    timed = {
        kind: [e.seconds for e in episodes] for kind, episodes in (real or answered).items()
    }
    times = [seconds for found in timed.values() for seconds in found]
    slowest_over_fastest = max(times) / min(times)
    return slowest_over_fastest, timed, times


@app.cell(hide_code=True)
def _(ask_slowest, slowest_over_fastest, timed, times):
    lesson.reveal(
        ask_slowest,
        right=0 if slowest_over_fastest <= 3 else 1 if slowest_over_fastest <= 10 else 2,
        why=f"""
    {max(times):.2f} s over {min(times):.2f} s: {slowest_over_fastest:.1f} times. Answers of thousands of
    tokens, and tools that take seconds, spread them further.
    """,
        shows=[
            lesson.figure(nb05.density_chart(timed), "How dense the times lie, by kind.")
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 3: the straggler

    A generator has slots, each of which writes one episode at a time. In a synchronous step, the trainer
    starts when the last episode of the batch is done.
    """)
    return


@app.function
def schedule(seconds, slots):
    """Put episodes on slots, in this order: each on the slot that is free first (the lowest,
    if several are). Returns for each the pair (slot, when it starts).

    >>> schedule([3.0, 1.0, 1.0], slots=2)
    [(0, 0.0), (1, 0.0), (1, 1.0)]
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: schedule,
        check_schedule,
        schedule_solution,
        level="stretch",
        minutes=8,
        lines=6,
        hints=(
            "What must you know of each slot when the next episode comes?",
            "`free = [0.0] * slots` says when each slot is free again. `free.index(min(free))` is the slot; "
            "note it and its time, then add the seconds.",
        ),
    )
    return


@app.cell
def _(times):
    plan_of, whose_plan = exercise.running(
        lambda: schedule, check_schedule, schedule_solution
    )
    batch = random.Random(0).sample(times, min(24, len(times)))
    plan = plan_of(batch, 8)
    last = max(start + took for (_, start), took in zip(plan, batch, strict=True))
    idle_share = 1 - sum(batch) / (8 * last)
    return batch, idle_share, last, plan, whose_plan


@app.cell(hide_code=True)
def _(batch, idle_share, last, plan, whose_plan):
    lesson.figure(
        nb05.batch_chart(batch, plan),
        f"{len(batch)} of these episodes on eight slots, by {whose_plan}. The batch takes {last:.2f} s, and "
        f"{idle_share:.0%} of the slots' time is spent waiting for the last episode, in red.",
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.md(f"""
    ## The asynchronous answer

    This is the synchronous loop. Each line waits for the one before it.

    ```python
    for step in range(steps):
        tasks = draw(prompts)                              # dataset
        episodes = generate(policy, tasks)                 # generators; the trainer waits
        rewards = [reward(episode) for episode in episodes]
        advantages = compare_within_groups(rewards)
        loss = policy_gradient(policy, episodes, advantages)
        policy = optimizer_step(policy, loss)              # trainer; the generators wait
        send_weights(policy, generators)                   # everybody waits
    ```

    Stop taking turns: put a buffer between both sides, and write the next batch while the trainer
    works. A step then takes as long as the slower of the two, not as long as
    both, and a straggler delays only its own group. The price is older data,
    {lesson.term("off-policy")}; `max_lag` bounds by how many versions.

    These are the phases of one step on this machine, with 64 episodes of the small policy:
    """)
    return


@app.cell
def _(RolloutRequest, environment, load_policy, rollout, sampling):
    generator, trainer = load_policy("embedded"), learning.Learner(load_policy("embedded"))
    clock, latencies = SpanRecorder("this process"), []
    for _step in range(3):
        _tasks = environment.tasks(("compositional",), 8, start=8 * _step)
        _requests = [
            RolloutRequest(t, s, g) for g, t in enumerate(_tasks) for s in range(8)
        ]
        with clock.span("generate"):
            _batch = rollout(generator, _requests, environment.execute, sampling)
        for _episode in _batch:
            _episode.score = score(_episode)
        with clock.span("train"):
            trainer.step(_batch, [1.0, -1.0] * 32)
        with clock.span("pull"):
            generator.model.load_state_dict(trainer.policy.model.state_dict())
        latencies.append(group_latencies(_batch))
    spans = clock.drain()
    seconds = {
        kind: fmean(span.end - span.start for span in spans if span.kind == kind)
        for kind in ("generate", "train", "pull")
    }
    return latencies, seconds


@app.cell(hide_code=True)
def _(seconds):
    _share = {kind: f"{took / sum(seconds.values()):.1%}" for kind, took in seconds.items()}
    lesson.md(f"""
    Generating takes {_share["generate"]}, training {_share["train"]}, loading the new weights
    {_share["pull"]}; this split is an artefact of our code and of short answers. In large models generating is most of it:
    [SortedRL](https://arxiv.org/abs/2603.23414) (March 2026) reports up to 70% for answers of 16,000 tokens.
    Find out with the sliders:

    1. *no variance*: with how many generators is the speed-up largest?
    2. *one straggler*: beyond which lag do you gain less than 2 %?
    """)
    return


@app.cell
def _(latencies, seconds):
    this_machine = Setting(
        generators=1,
        groups_per_step=8,
        generation_seconds=seconds["generate"] / 8,
        variation=group_variation(latencies),
        training_seconds=seconds["train"],
        sync_seconds=seconds["pull"],
    )
    TimelineSimulator(
        this_machine, static="execute" in mo.cli_args(), scenario="this machine"
    )
    return (this_machine,)


@app.cell(hide_code=True)
def _():
    mo.vstack([lesson.folded(*found) for found in nb05.settled()])
    return


@app.cell(hide_code=True)
def _():
    lesson.table(
        "What asynchrony buys, and what it costs",
        [
            {
                "": "data",
                "in turns: on-policy": "of the current model",
                "side by side: off-policy": "up to `max_lag` versions old",
            },
            {
                "": "loss",
                "in turns: on-policy": "the plain one",
                "side by side: off-policy": "with a correction factor (09)",
            },
            {
                "": "waiting",
                "in turns: on-policy": "everybody, for the slowest",
                "side by side: off-policy": "hardly anybody (08)",
            },
            {
                "": "repeating a run",
                "in turns: on-policy": "bit for bit",
                "side by side: off-policy": "only by replay (11)",
            },
            {
                "": "risk",
                "in turns: on-policy": "idle machines",
                "side by side: off-policy": "learning that collapses (09)",
            },
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    It buys more than an answer to stragglers. Generators and trainers *scale apart*: twice as many of
    one, none more of the other (06). They run on *other hardware*, memory for the one, arithmetic for
    the other (10). And *faults stay where they are*: a generator that dies takes its own episodes
    with it, not the trainer (03).

    ## Why these are actors

    Each box of the drawing has a state of its own: weights, a queue, a table. It speaks to the others
    only by messages, does one thing at a time, and may die alone. A process with a state and a mailbox
    is called an actor; notebook 01 shows one. In 05b you write what they will do.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.predicted(3)
    return


@app.cell(hide_code=True)
def _(idle_share, reports):
    _small = reports[1]
    lesson.recap(
        "A made-up task cannot be memorised, a program checks it, and we set how hard it is.",
        f"The small policy is right in {_small.accuracy:.0%} of sums, "
        f"and {_small.outcomes['wrong_format']:.0%} end without the required format.",
        "Each failure has a term of the reward; a lenient checker pays for the wrong thing.",
        f"In a batch of 24 on eight slots, {idle_share:.0%} of the time is spent waiting.",
        "In turns a step is a sum; side by side it is a maximum, on older data.",
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.links(__file__)
    return


@app.function(hide_code=True)
def check_outcome(outcome):
    numbers, finishes = [None, 0, *range(-3, 4)], ("eos", "answer", "turns", "tokens")
    exercise.agree(
        outcome,
        outcome_solution,
        lambda rng: (rng.choice(numbers), rng.choice(numbers[1:]), rng.choice(finishes)),
        times=150,
    )


@app.function(hide_code=True)
def outcome_solution(answer, expected, finish):
    if answer is not None:
        return "success" if answer == expected else "wrong_answer"
    return {"turns": "tool_spam", "tokens": "truncated"}.get(finish, "wrong_format")


@app.function(hide_code=True)
def check_reward(reward):
    exercise.agree(
        reward,
        reward_solution,
        lambda rng: (rng.choice(OUTCOMES), rng.randrange(4)),
        times=60,
    )


@app.function(hide_code=True)
def reward_solution(outcome, needless_calls):
    in_the_format = outcome in ("success", "wrong_answer")
    return (outcome == "success") + 0.2 * in_the_format - 0.1 * needless_calls


@app.function(hide_code=True)
def check_schedule(schedule):
    exercise.agree(
        schedule,
        schedule_solution,
        lambda rng: (
            rng.choices((0.5, 1.0, 2.0, 4.5), k=rng.randint(1, 9)),
            rng.randint(1, 4),
        ),
        times=40,
    )


@app.function(hide_code=True)
def schedule_solution(seconds, slots):
    free, plan = [0.0] * slots, []
    for took in seconds:
        slot = free.index(min(free))
        plan.append((slot, free[slot]))
        free[slot] += took
    return plan


if __name__ == "__main__":
    app.run()
