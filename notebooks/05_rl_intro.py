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
    from textwrap import wrap
    from types import SimpleNamespace

    import marimo as mo

    from zorplex_rl.config import LearnerConfig
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
    from zorplex_rl.task.rewards import final_answer, score
    from zorplex_rl.task.specs import HELD_OUT_WORDS, TASK_SPECS

    # The page shows its top before these are there: torch takes seconds.
    torch = later("torch")
    nb05 = later("zorplex_rl.course.nb05")
    nb05b = later("zorplex_rl.course.nb05b")
    learning = later("zorplex_rl.learning.learner")
    simple = later("zorplex_rl.learning.train_simple")


@app.cell(hide_code=True)
def _():
    lesson.header(
        __file__,
        minutes=50,
        hardware="two CPU cores, no GPU; a network only to fetch SmolLM2",
        goals=[
            "say when RL needs a distributed system, and when one process is enough",
            "say why we ask for made-up words and not for word problems",
            "run a benchmark, and read its intervals and outcomes",
            "sort failures, and write the reward that prices them",
            "say why a batch waits for its slowest episode, and what asynchrony costs",
        ],
    )
    return


@app.cell(hide_code=True)
def _(config, environment, sampling, small):
    _exam = environment.tasks(("compositional",), 40, "held_out")
    with mo.status.spinner("A small model answers 40 questions", remove_on_exit=True):
        _answered = simple.play(small, environment, _exam, config.seed, sampling)
    card = nb05b.Card(
        "Four questions, and what a small model writes while it is trained",
        small,
        config.steps,
        sampling,
        nb05b.varied([nb05b.example(small, sampling), *_answered], 4),
        lines=5,
    )
    card
    return (card,)


@app.cell(hide_code=True)
def _():
    lesson.md(f"""
    Each word has a secret number, and only a tool knows it. Solid boxes are tokens of the model, dashed
    ones come from the tool. At the right stands the {lesson.term("reward")}, and what it is made of (exercise 2). At step 0 you see
    three ways to fail, and a success. Once the training further down has run, the slider shows what 20 steps change.
    The first question comes back in 05b, 05c, 09 and 11.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.md(f"""
    ## When does RL need a distributed system?

    In reinforcement learning a model, called a {lesson.term("policy")}, writes answers. A program judges them, and the model
    is trained on the judgements.

    *Generating* is limited by memory bandwidth: each step of decoding reads all weights, and does little
    arithmetic with them. *Tools and checks* are other programs, to wait for. *Training* is limited by
    arithmetic. As long as one machine does all three and nobody waits for long, one process is enough;
    notebook 10 counts what fits.
    """)
    return


@app.cell(hide_code=True)
def _():
    _drawing = lesson.figure(
        loop_drawing(), "The buffer keeps finished answers that are not too old."
    )
    _models = mo.md("""
    Two models answer here. The *small policy* comes with the course, and was made for this task, with
    bad habits on purpose. *SmolLM2* is a real language model of 135 million parameters.
    """)
    mo.vstack([_drawing, _models])
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
        samples=100,  # tasks of each of four kinds for the small policy
        real_samples=12,  # and for SmolLM2, which is 150 times as large
        shots=2,  # worked examples that SmolLM2 sees before each question
        steps=20,  # of training the small policy
    )
    return (config,)


@app.cell
def _(config):
    from zorplex_rl.policy.load import load_policy
    from zorplex_rl.policy.rollout import RolloutRequest, Sampling, rollout

    small = load_policy("embedded")  # it comes with this course
    environment = Zorplex(config.seed)
    # A tool call ends a turn. A slot writes one episode at a time, beside the others.
    sampling = Sampling(temperature=1.0, max_tokens=96, max_turns=6, slots=64)
    return RolloutRequest, environment, load_policy, rollout, sampling, small


@app.cell
def _(fetch, small):
    smol, computed_on = nb05.pretrained(fetch)
    torch.set_num_threads(2 if smol else 1)
    policy, name = (smol, "SmolLM2") if smol else (small, "the small policy")
    return computed_on, name, policy, smol


@app.cell(hide_code=True)
def _(policy):
    lesson.ran_on(policy)
    return


@app.cell(hide_code=True)
def _(computed_on, name, policy):
    with mo.status.spinner("Answering a word problem", remove_on_exit=True):
        _text = nb05.word_problem(policy)
    lesson.md(f"""
    {computed_on}

    ## A word problem, answered live

    {nb05.WORD_PROBLEM.question}

    This is what {name} writes:

    {lesson.fence(_text)}

    The right answer is **{nb05.WORD_PROBLEM.answer}**; the last number of that text is {(re.findall("[0-9]+", _text) or ["missing"])[-1]}.
    A model may remember such an answer. And how should a program find it in prose: is it really the
    last number? We need a task without these two doubts.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.table(
        "Why a made-up task is better for training, and for measuring",
        nb05.rows("""
        | a word problem | made-up words
        Could it be memorised? | yes, the web is full of them | no, each task draws its own numbers
        Can a program check it? | if it finds a number in prose | yes: `[ANSWER]` and an integer
        Can we set how hard it is? | hardly, with problems from a file | yes: how many words
        """),
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Words with a secret number

    Each number is new in every task. The model cannot know it; it can only ask a tool. Here is one task
    with its table, which only the tool sees.
    """)
    return


@app.cell
def _(environment):
    (task,) = environment.tasks(("compositional",), 1)
    print(task.question, *wrap(f"{task.table}", 72), sep="\n")
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    An answer is written in three moves. *Generate*: the model draws a token. *Call*: once the text holds
    a complete call, the tool runs. *Inject*: its result is appended, as tokens, and generating goes on.
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
def _(environment):
    lesson.figure(
        nb05.four_kinds(environment),
        "The four kinds: instruction, question, and in bold a perfect answer. Results stand behind arrows.",
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.md(f"""
    ## The benchmark

    The benchmark asks questions of every kind, and scores the {lesson.term("episode", "episodes")}. The questions are held out: their
    words are kept from all training.
    """)
    return


@app.cell
def _(RolloutRequest, config, rollout):
    def benchmark(policy, kinds, samples, shots, sampling):
        """Answer `samples` held-out tasks of each kind. Returns {kind: episodes, scored}."""
        results = {}
        for kind in mo.status.progress_bar(kinds, title="Asking", remove_on_exit=True):
            environment = Zorplex(config.seed, shots=shots)
            tasks = environment.tasks((kind,), samples, "held_out")
            requests = [RolloutRequest(task, seed) for seed, task in enumerate(tasks)]
            results[kind] = rollout(policy, requests, environment.execute, sampling)
            for episode in results[kind]:
                episode.score = score(episode)
        return results

    return (benchmark,)


@app.cell
def _(benchmark, config, sampling, small):
    answered = benchmark(small, TASK_SPECS, config.samples, 0, sampling)
    return (answered,)


@app.cell(hide_code=True)
def _(config, smol):
    # All kinds, and `simple` with three other numbers of worked examples.
    _asked = f"Ask SmolLM2 {(len(TASK_SPECS) + 3) * config.real_samples} questions"
    start_real = lesson.start_button(_asked, seconds=100) if smol else None
    start_real
    return (start_real,)


@app.cell
def _(answered, benchmark, config, sampling, smol, start_real):
    from zorplex_rl.policy.evaluate import summarise

    real = {}
    if smol:
        lesson.wait_for(start_real)
        real = benchmark(smol, TASK_SPECS, config.real_samples, config.shots, sampling)
    reports = [summarise(f"small {kind}", episodes) for kind, episodes in answered.items()]
    reports += [summarise(f"SmolLM2 {kind}", episodes) for kind, episodes in real.items()]
    return real, reports, summarise


@app.cell(hide_code=True)
def _(config, real, reports):
    _real = f", {config.real_samples} for SmolLM2, after {config.shots} worked examples"
    _caption = f"The benchmark, sampled at temperature 1: {config.samples} tasks of each kind for the small policy{_real if real else ''}"
    _table = lesson.table(_caption, nb05.rows_of(reports))
    mo.vstack([_table, lesson.figure(nb05.accuracy_chart(reports))])
    return


@app.cell(hide_code=True)
def _(reports):
    _widest = max(reports, key=lambda report: report.interval[1] - report.interval[0])
    lesson.md(f"""
    Read the intervals first: the true accuracy of `{_widest.name}` may be anywhere from {_widest.interval[0]:.0%} to {_widest.interval[1]:.0%}.
    Mistakes about the same words repeat, so the interval counts questions with the same words as one. There are
    {len(HELD_OUT_WORDS)} held-out words.
    """)
    return


@app.cell(hide_code=True)
def _(name):
    ask_shots = lesson.predict(
        f"How many questions of kind `simple` does {name} answer in the required format if it sees no worked example?",
        "fewer than a third",
        "a third to two thirds",
        "more than two thirds",
    )
    ask_shots
    return (ask_shots,)


@app.cell
def _(benchmark, config, real, sampling, small, smol, summarise):
    by_shots, anywhere = {}, {}
    policies = {"small": small} | ({"SmolLM2": smol} if smol else {})
    for who, asked in policies.items():
        for shots in (0, 1, 2, 4):
            found = real
            if asked is small or shots != config.shots:
                found = benchmark(asked, ("simple",), config.real_samples, shots, sampling)
            by_shots[who, shots] = summarise(f"{who}, examples: {shots}", found["simple"])
            # Does the right number stand anywhere?
            numbers = [
                (e.task.answer, re.findall("[0-9]+", e.text)) for e in found["simple"]
            ]
            anywhere[who, shots] = fmean(str(right) in texts for right, texts in numbers)
    return anywhere, by_shots


@app.cell(hide_code=True)
def _(anywhere, ask_shots, by_shots, computed_on, config, smol):
    from zorplex_rl.course.figures.bars import outcome_chart

    _who = "SmolLM2" if smol else "small"
    _without, _with = (
        by_shots[_who, n].outcomes["success"] + by_shots[_who, n].outcomes["wrong_answer"]
        for n in (0, 4)
    )
    _bare, _shown = (anywhere[_who, n] for n in (0, 4))
    lesson.reveal(
        ask_shots,
        right=0 if 3 * _without < 1 else 1 if 3 * _without <= 2 else 2,
        why=f"""
    Without an example {_without:.0%} answer in the format, with 4 examples {_with:.0%}.
    The right number stands somewhere, the tool's lines included, in {_bare:.0%} of the texts without an example, and in {_shown:.0%} of those with 4.
    {"" if not smol else "So the examples show the task, not only the form." if 2 * _bare < _shown else "The number was often there: much of what examples add is the form."}
    {"RL needs a model that already gets some answers right, so 05b trains SmolLM2 with two examples before each question." if smol else computed_on}
    """,
        shows=[
            lesson.figure(
                outcome_chart([by_shots[key] for key in sorted(by_shots, reverse=True)]),
                f"How answers to `simple` end, by the number of worked examples ({config.real_samples} answers each, so only large differences count). The small policy was made without any.",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A gallery of failures

    "Wrong" is not one thing. First sort the failures, then give each of them a price.

    ### Exercise 1: sort them
    """)
    return


@app.function
def outcome(answer, expected, finish):
    """Say how an episode ended: the first of these that holds.

    "success"        an answer, the expected one
    "wrong_answer"   an answer, another one
    "tool_spam"      no answer, `finish` is "turns": still calling
    "truncated"      no answer, `finish` is "tokens": cut off
    "wrong_format"   no answer, and any other `finish`

    `answer` and `expected` are integers; `answer` is None if there is none.
    `finish` says what ended it: a limit ("turns", "tokens"), its last token ("eos")
    or its last line ("answer").

    >>> outcome(7, 7, "answer"), outcome(None, 7, "turns")
    ('success', 'tool_spam')
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: outcome,
        Solutions,
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
    lesson.needs(lambda: real)
    sort, whose_sort = exercise.running(lambda: outcome, Solutions)
    gallery = {"small": [], "SmolLM2": []}
    for _policy, _results in (("small", answered), ("SmolLM2", real)):
        for _episode in [episode for found in _results.values() for episode in found]:
            _answer = final_answer(_episode.sampled_text)
            ending = sort(_answer, _episode.task.answer, _episode.finish)
            gallery[_policy].append((ending, _episode))
    return gallery, whose_sort


@app.cell(hide_code=True)
def _(gallery, small, smol, whose_sort):
    lesson.figure(
        nb05.gallery_of(gallery, (small, smol)),
        f"One episode of each sort, and how often it comes. By {whose_sort}.",
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.md(f"""
    ### Exercise 2: write the reward

    A {lesson.term("reward")} turns failures into numbers, and training follows the numbers. Ours is a sum:

    1 for the right answer + 0.2 for any answer in the form − 0.1 for each needless call

    Calls beyond the number that a perfect answer makes are *needless*. They cost in every outcome, so a
    reward may be negative.
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
        Solutions,
        level="warm-up",
        minutes=3,
        lines=1,
        hints=(
            "Which two outcomes have an answer in the format?",
            'A comparison counts as 0 or 1: `(outcome == "success") + 0.2 * (outcome in (…)) − …`.',
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.md(f"""
    ### What a lenient checker pays for

    Ours is strict: it reads what stands behind `[ANSWER]`. A lenient one pays whenever the right number
    appears anywhere, even if only the tool wrote it. Where that is the answer, a policy need only call and stop. Training that finds
    such a way is {lesson.term("reward hacking")}; 05c shows one.
    """)
    return


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


@app.cell
def _(answered):
    pay, whose_pay = exercise.running(lambda: reward, Solutions)
    priced, lenient = {outcome: [] for outcome in OUTCOMES}, []
    for _episode in [episode for episodes in answered.values() for episode in episodes]:
        _ending, _parts = _episode.score.outcome, _episode.score.parts.values()
        _needless = max(0, _episode.tool_calls - _episode.task.min_tool_calls)
        lenient.append(paid_for(_episode))
        priced[_ending].append((*_parts, pay(_ending, _needless), bool(lenient[-1])))
    return lenient, priced, whose_pay


@app.cell(hide_code=True)
def _(lenient, priced, whose_pay):
    _rows = ["ending | episodes | answer | form | calls | reward | lenient"]
    for _ending, _found in priced.items():
        if _found:
            *_parts, _share = (fmean(column) for column in zip(*_found, strict=True))
            _means = " | ".join(f"{value + 0:+.2f}".replace("-", "−") for value in _parts)
            _rows.append(
                f"{_ending.replace('_', ' ')} | {len(_found)} | {_means} | {_share:.0%}"
            )
    _table = lesson.table(
        f"What each ending earns, term by term, in the mean. The reward is by {whose_pay}",
        nb05.rows("\n".join(_rows)),
    )
    _right, _own, _tool = map(lenient.count, ("answer", "own words", "tool's words"))
    _told = lesson.md(f"""
    A lenient checker pays for {_right + _own + _tool} of {len(lenient)} episodes instead of {_right}. In {_own} the policy wrote the
    number, but not as its answer; in {_tool} only the tool wrote it.
    """)
    mo.vstack([_table, _told])
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Latencies

    Rewards come when episodes are done, and when is that? One stops after a line, another goes on until it is cut off. They are written side by side,
    so each also waits for the others' tokens.
    """)
    return


@app.cell
def _(answered, real):
    timed = {
        kind: [e.seconds for e in episodes] for kind, episodes in (real or answered).items()
    }
    times = [seconds for found in timed.values() for seconds in found]
    slowest_over_fastest = max(times) / min(times)
    return slowest_over_fastest, timed, times


@app.cell(hide_code=True)
def _(slowest_over_fastest, timed, times):
    lesson.figure(
        nb05.density_chart(timed),
        f"How dense the times lie, by kind. The fastest episode took {min(times):.2f} s, the slowest {slowest_over_fastest:.1f} times as long.",
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 3: the straggler

    Each slot of a generator writes one episode at a time. In turns, the trainer starts when the last
    episode of a batch, the *straggler*, is done.
    """)
    return


@app.cell(hide_code=True)
def _():
    ask_idle = lesson.predict(
        "16 of these episodes go to eight slots. How much of the slots' time goes into waiting for the last?",
        "less than 15%",
        "15% to 35%",
        "more than 35%",
    )
    ask_idle
    return (ask_idle,)


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
        Solutions,
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
    lesson.needs(lambda: times)
    plan_of, whose_plan = exercise.running(lambda: schedule, Solutions)
    batch = random.Random(0).sample(times, min(16, len(times)))
    plan = plan_of(list(batch), 8)
    last = max(start + took for (_, start), took in zip(plan, batch, strict=True))
    idle_share = 1 - sum(batch) / (8 * last)
    return batch, idle_share, last, plan, whose_plan


@app.cell(hide_code=True)
def _(ask_idle, batch, idle_share, last, plan, whose_plan):
    lesson.reveal(
        ask_idle,
        right=0 if idle_share < 0.15 else 1 if idle_share <= 0.35 else 2,
        why=f"""
    {idle_share:.0%}. The batch takes {last:.2f} s; shared out evenly, {sum(batch) / 8:.2f} s.
    """,
        shows=[
            lesson.figure(
                nb05.batch_chart(batch, plan),
                f"{len(batch)} episodes on eight slots, as if each took as long alone, by {whose_plan}. In orange: the straggler.",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.md(f"""
    ## The asynchronous answer

    This is the synchronous loop. Each line waits for the one before it. Several answers to one question
    are a {lesson.term("group")}. An answer's {lesson.term("advantage")} says how much better it was than the mean of its group, and
    only that teaches. In 05b you write the sampler and the loss, in 08 the advantages.

    ```python
    for step in range(steps):
        tasks = draw(prompts)                              # dataset
        episodes = generate(policy, tasks, copies=4)       # generators; the trainer waits
        rewards = [reward(episode) for episode in episodes]
        advantages = compare_within_groups(rewards)
        loss = policy_gradient(policy, episodes, advantages)
        policy = optimizer_step(policy, loss)              # trainer; the generators wait
        send_weights(policy, generators)                   # everybody waits
    ```

    Stop taking turns: put a buffer between generators and trainer, and write the next batch while the trainer
    works. If each side has its own hardware, a step then takes at best as long as the slower of the
    two, not as long as both. And while one answer is late, others of later batches are begun. The price: the trainer
    learns from answers of older weights, {lesson.term("off-policy")} data. `max_lag` bounds their age in versions.

    Here is the loop in turns, with a clock around each phase. It fills the card at the top.
    """)
    return


@app.cell
def _(card, config, environment, load_policy, sampling):
    generator = load_policy("embedded")
    rate = LearnerConfig(learning_rate=3e-4, warmup_steps=0)
    trainer = learning.Learner(load_policy("embedded"), rate)
    clock, latencies = SpanRecorder("this process"), []
    for _step in range(config.steps):
        with clock.span("generate"):
            _episodes = nb05.generate(generator, environment, _step, sampling)
        with clock.span("train"):
            trainer.step(_episodes, nb05.compare_within_groups(_episodes))
        with clock.span("pull"):
            generator.model.load_state_dict(trainer.policy.model.state_dict())
        latencies.append(group_latencies(_episodes))
        card.play(generator, _step + 1)
    card.seal()
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
    Of a step with 32 episodes, generating takes {_share["generate"]}, training {_share["train"]}, loading the new weights
    {_share["pull"]}. For a large model and answers of 16,000 tokens,
    [SortedRL](https://arxiv.org/abs/2603.23414) reports that generating takes up to 70%.

    The simulator below draws both ways, as if each side had its own machine. Its scenario *this machine* has the numbers of this run.
    """)
    return


@app.cell(hide_code=True)
def _():
    ask_lag = lesson.predict(
        "Four generators write the eight groups of a step, 1 s each, and the trainer takes 4 s. Once, a group takes 8 s. "
        "What is the smallest `max_lag` of 0 to 4 whose run of six steps is within 2 % of the fastest? "
        "Afterwards try it: the scenario *one straggler*.",
        *("0", "1", "2", "3 or more"),
    )
    ask_lag
    return (ask_lag,)


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
    TimelineSimulator(this_machine, static="execute" in mo.cli_args())
    return (this_machine,)


@app.cell(hide_code=True)
def _(ask_lag):
    _lags = nb05.straggler_by_lag()
    _enough = [took <= 1.02 * min(_lags.values()) for took in _lags.values()].index(True)
    _told = ", ".join(f"{took:.1f} s at {lag}" for lag, took in _lags.items())
    lesson.reveal(
        ask_lag,
        right=min(_enough, 3),
        why=f"{_told}. The larger `max_lag`, the earlier the straggler may begin.",
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.table(
        "What asynchrony buys, and what it costs",
        nb05.rows("""
        | in turns: on-policy | side by side: off-policy
        data | of the current model | up to `max_lag` versions old
        loss | the plain one | with a correction factor (09)
        waiting | everybody, for the slowest | less: 08 measures how much
        repeating a run | bit for bit | only by replay (11)
        risk | idle machines | learning that collapses (09)
        """),
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    Two separate sides buy more than that:

    - Generators and trainers *scale separately* (notebook 06).
    - They run on *different hardware*: fast memory for one, arithmetic for the other (notebook 10).
    - *Faults stay where they are*: a dead generator takes only its own episodes with it (notebook 03).

    ## Why these are actors

    A box of the drawing keeps something of its own, like weights or a queue. It speaks to the others
    only by messages, and may die alone. That is an actor: 01 shows one, 06 a
    pool, 07 how weights reach them, 08 the whole drawing.
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
        "A made-up task cannot be memorised, and a program checks it.",
        f"The small policy is right in {_small.accuracy:.0%} of sums; {_small.outcomes['wrong_format']:.0%} end in the wrong format.",
        f"With 16 episodes on eight slots, the slots wait {idle_share:.0%} of the time.",
        "In turns a step takes as long as all phases together; side by side, at best as the slowest.",
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.links(__file__)
    return


@app.class_definition(hide_code=True)
class Solutions:
    """Check the exercises of this page, and solve them."""

    def check_outcome(outcome):
        numbers, finishes = [None, 0, *range(-3, 4)], ("eos", "answer", "turns", "tokens")
        exercise.agree(
            outcome,
            Solutions.outcome,
            lambda rng: (
                rng.choice(numbers),
                rng.choice(numbers[1:]),
                rng.choice(finishes),
            ),
            times=150,
        )

    def outcome(answer, expected, finish):
        if answer is not None:
            return "success" if answer == expected else "wrong_answer"
        return {"turns": "tool_spam", "tokens": "truncated"}.get(finish, "wrong_format")

    def check_reward(reward):
        exercise.expect(reward, "success", 0, result=1.2)
        exercise.agree(
            reward,
            Solutions.reward,
            lambda rng: (rng.choice(OUTCOMES), rng.randrange(4)),
            times=60,
        )

    def reward(outcome, needless_calls):
        return (
            (outcome == "success")
            + 0.2 * (outcome in ("success", "wrong_answer"))
            - 0.1 * needless_calls
        )

    def check_schedule(schedule):
        exercise.agree(
            schedule,
            Solutions.schedule,
            lambda rng: (
                rng.choices((0.5, 1.0, 2.0, 4.5), k=rng.randint(1, 9)),
                rng.randint(1, 4),
            ),
            times=40,
        )

    def schedule(seconds, slots):
        free, plan = [0.0] * slots, []
        for took in seconds:
            slot = free.index(min(free))
            plan.append((slot, free[slot]))
            free[slot] += took
        return plan


if __name__ == "__main__":
    app.run()
