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
    from functools import partial
    from textwrap import fill
    from types import SimpleNamespace

    import marimo as mo

    from zorplex_rl.course.figures.loop_drawing import loop_drawing
    from zorplex_rl.course.lesson import exercise, lesson
    from zorplex_rl.course.lesson.later import later
    from zorplex_rl.course.widgets import TimelineSimulator
    from zorplex_rl.run.timeline import SpanRecorder
    from zorplex_rl.task.environment import Zorplex
    from zorplex_rl.task.episode import OUTCOMES
    from zorplex_rl.task.rewards import final_answer, score
    from zorplex_rl.task.specs import TASK_SPECS

    # The page shows its top before these are there: torch takes seconds.
    torch = later("torch")
    nb05 = later("zorplex_rl.course.nb05")
    nb05b = later("zorplex_rl.course.nb05b")
    models = later("zorplex_rl.policy.load")
    requests = later("zorplex_rl.policy.requests")


@app.cell(hide_code=True)
def _():
    lesson.header(
        __file__,
        minutes=50,
        hardware="two CPU cores, no GPU; a network only to fetch SmolLM2",
        goals=[
            "say when RL needs more than one machine, with a number",
            "say why a model that knows the answer may be paid nothing, and what RL does about it",
            "sort failures, and write the reward that prices them",
            "say what the slowest answer costs, and what asynchrony buys and costs",
        ],
    )
    return


@app.cell(hide_code=True)
def _(sampling):
    card = nb05b.RecordedCard(
        "Drag the slider: a small model, while it learns from rewards alone",
        "small",
        sampling,
        lines=5,
    )
    card
    return (card,)


@app.cell(hide_code=True)
def _(card):
    _before, _after = card.recording["right"]
    lesson.md(f"""
    A box is a token: solid if the model wrote it, dashed if a tool inserted it. The number at the right is the
    {lesson.term("reward")}: 1 for the right number, 0.2 for writing a number behind `[ANSWER]`, −0.1 for each look-up
    more than needed. The bar at the left says how the text ended. Green is right, dark orange a wrong number, yellow no
    `[ANSWER]`, light blue too many calls, grey cut off.

    *Look at the first question, at step 0.* The model looks up both words and subtracts correctly. Then it
    writes `So 3.`, and is paid nothing. It *knows* the answer, but it does not *say* it where a program looks.
    Nobody shows it a better text. It tries, and what was paid becomes more likely. Of 200 new questions it
    answered {_before:.0%} before, and {_after:.0%} after the last step, in a recorded run.

    You can start the course here: nothing before it is needed, and the end of this page says what an actor is.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.md(f"""
    ## When does RL need a distributed system?

    In reinforcement learning (RL) a model, called a {lesson.term("policy")}, writes answers, a program judges them, and the model is
    trained on the judgements. Two things make that too much for one machine.

    - *It does not fit.* Training keeps about 16 bytes for each parameter (2 + 2 + 4 + 4 + 4: 16-bit weights and gradients,
      a float32 copy, and AdamW's two running means). Eight GPUs of 80 GB, a large machine, hold {8 * 80 / 16:.0f} billion parameters.
    - *The expensive part stands idle.* Answers are written a token at a time, and the trainer cannot begin before the
      slowest is done. For answers of 16,000 tokens, [SortedRL](https://arxiv.org/abs/2603.23414)
      reports that writing takes up to 70% of a step. For that time the trainer's GPUs wait.

    If the model is small and answers are short, one process is enough. So it is here, and you can see the whole loop.

    Two models answer on this page. The *small policy* comes with the course. It was taught this task with bad
    habits on purpose, so that you can watch RL break a habit within seconds. *SmolLM2* is a real
    language model of 135 million parameters, which has never seen the task.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.figure(
        loop_drawing(),
        "Each box becomes a program of its own in notebook 08. The replay buffer keeps finished answers until the trainer "
        "takes them, and drops those that a too old version of the model wrote. Weights: where the trainer leaves each new "
        "version, for the generators to fetch.",
    )
    return


@app.cell(hide_code=True)
def _():
    fetch = nb05.fetch_button()
    fetch
    return (fetch,)


@app.cell(hide_code=True)
def settings():
    _full = SimpleNamespace(
        seed=0,
        samples=100,  # tasks of each of four kinds, for the small policy
        # Tasks of one kind, for SmolLM2, which is 150 times as large.
        real_samples=32,
        steps=20,  # of training the small policy
    )
    config = lesson.brief(_full, steps=8, samples=40, real_samples=4)
    return (config,)


@app.cell(hide_code=True)
def _(config):
    small = models.load_policy("embedded")  # it comes with this course
    torch.set_num_threads(1)  # fastest for a model this small
    environment = Zorplex(config.seed)
    sampling = requests.Sampling(temperature=1.0, max_tokens=96, max_turns=6, slots=64)
    lesson.ran_on(small)
    return environment, sampling, small


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Words with a secret number

    Why not ask word problems, as everybody does? A model may have read a problem, and remember its answer. A
    program would have to find the answer in prose: is it the last number? And nobody can set how hard a
    problem is.

    So our tasks are made up. Each word has a number, drawn anew for every task, and only a tool knows it. A model
    cannot remember it; it can only ask. Here is one task with its table, which only the tool sees.
    """)
    return


@app.cell
def _(environment):
    task = environment.spec("compositional").task(0)
    print(task.question)
    print(fill(f"{task.table}", 72))
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    An answer is written in three moves. *Generate*: the model draws a token. *Call*: once the text holds
    a complete call, the tool runs. *Inject*: its result is appended, as tokens, and generating goes on. What
    the model writes between two results is a *turn*. In the card at the top you can see all three.
    """)
    return


@app.cell(hide_code=True)
def _(environment):
    lesson.figure(
        nb05.four_kinds(environment),
        "The four kinds of task: instruction, question, and in bold a perfect answer. What follows an arrow was inserted by the tool.",
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.md(f"""
    ## The benchmark

    How good is the small policy? Ask it questions of every kind, and score its {lesson.term("episode", "episodes")}:
    an episode is one attempt at one task, with all that the tool answered. The questions are held out, which means that
    their words are kept from all training.
    """)
    return


@app.function
def benchmark(policy, environment, kind, samples, ask):
    """Ask `samples` held-out questions of a kind. Returns scored episodes."""
    tasks = environment.tasks((kind,), samples, "held_out")
    episodes = ask(policy, environment, tasks)
    for episode in episodes:
        episode.score = score(episode)
    return episodes


@app.cell(hide_code=True)
def _(config):
    start_small = lesson.start_button(
        f"Ask the small policy {len(TASK_SPECS) * config.samples} questions", seconds=8
    )
    start_small
    return (start_small,)


@app.cell(hide_code=True)
def _(config, environment, sampling, small, start_small):
    lesson.wait_for(start_small)
    answered, reports = {}, []
    with lesson.counting(len(TASK_SPECS) * config.samples, "questions") as _one_more:
        _ask = partial(nb05.rollout, sampling=sampling, one_more=_one_more)
        for _kind in TASK_SPECS:
            answered[_kind] = benchmark(small, environment, _kind, config.samples, _ask)
            reports.append(nb05.summarise(_kind, answered[_kind]))
    return answered, reports


@app.cell(hide_code=True)
def _(answered, config, reports):
    mo.vstack(
        [
            lesson.figure(
                nb05.accuracy_chart(reports),
                f"The small policy's right answers, {config.samples} sampled texts of each kind.",
            ),
            lesson.md(f"""
    The black line is an interval: about 95 of 100 such intervals contain the true share. Two questions about
    the same word are not independent, so we count them as one observation. The {config.samples} `simple` questions
    are about {len({episode.task.words for episode in answered["simple"]})} words, and count as that many observations. That makes the interval wide.
    """),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## It knows more than it says

    Only a number behind `[ANSWER]` counts. Where else may the right number stand?
    """)
    return


@app.function
def place_of_the_number(episode):
    """Say where the right number stands: in the answer, else in the policy's own
    words, else only in the tool's. None: nowhere."""
    number = re.compile(rf"(?<!\d){episode.task.answer}(?!\d)")
    if episode.score.outcome == "success":
        return "answer"
    if any(number.search(text) for text in episode.sampled_text):
        return "own words"
    if any(number.search(turn.result or "") for turn in episode.turns):
        return "tool's words"
    return None


@app.cell(hide_code=True)
def _():
    ask_known = lesson.predict(
        "Take the texts that are *not* right. How many of them have the right number somewhere in the policy's own words?",
        "fewer than a third",
        "a third to two thirds",
        "more than two thirds",
    )
    ask_known
    return (ask_known,)


@app.cell(hide_code=True)
def _(answered, ask_known):
    places = [
        place_of_the_number(episode)
        for episodes in answered.values()
        for episode in episodes
    ]
    _said, _own, _tool, _none = map(
        places.count, ("answer", "own words", "tool's words", None)
    )
    _share = _own / max(1, len(places) - _said)
    lesson.reveal(
        ask_known,
        right=0 if 3 * _share < 1 else 1 if 3 * _share <= 2 else 2,
        why=f"""
    {_share:.0%}. **The policy knew the answer in {_said + _own} of {len(places)} texts, and said it in {_said}.** In {_own} it
    wrote the number, but not behind `[ANSWER]`. In {_tool} only the tool wrote it, and in {_none} it stands nowhere.

    The ability is there; what is missing is the discipline to use it. *RL pays for saying it.* A teacher would have to write
    right texts. RL only has to recognise one, and the model finds them itself. But it must
    find one now and then: if it never succeeded, there would be nothing to pay for.
    """,
    )
    return (places,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A real language model, asked the same

    SmolLM2 has never seen this task. Ask it for the number of one word: first plainly, then behind two worked
    examples, which are earlier turns of the same chat.
    """)
    return


@app.cell(hide_code=True)
def _(config, fetch):
    smol, computed_on = nb05.pretrained(fetch)
    smol_answers = lesson.Kept(__file__, "smollm2_answers", samples=config.real_samples)
    start_real = lesson.start_button(
        f"Ask SmolLM2 {2 * config.real_samples} questions", seconds=60
    )
    start_real if smol else lesson.md(computed_on)
    return computed_on, smol, smol_answers, start_real


@app.cell(hide_code=True)
def _(config, sampling, smol, smol_answers, start_real):
    if smol:
        lesson.wait_for(start_real, unless=smol_answers)

    def _ask():
        samples = config.real_samples
        nb05.leave_a_core()
        with lesson.counting(2 * samples, "questions") as one_more:
            ask = partial(nb05.rollout, sampling=sampling, one_more=one_more)
            found = {
                shots: benchmark(
                    smol, Zorplex(config.seed, shots=shots), "simple", samples, ask
                )
                for shots in (0, 2)
            }
        torch.set_num_threads(1)
        return found

    nb05.real_answers(smol, smol_answers.get(_ask)) if smol else lesson.md("")
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A gallery of failures

    "Wrong" is not one thing, and a reward treats each kind of failure in its own way. So first sort them.

    ### Exercise 1: sort them

    Go through the list from its top: the first line that holds decides.
    """)
    return


@app.function
def outcome(answer, expected, finish):
    """Say how an episode ended: the first of these that holds.

    "success"        an answer, the expected one
    "wrong_answer"   an answer, another one
    "tool_spam"      no answer, and it called tools until its turns were used up
    "truncated"      no answer, and it wrote until its tokens were used up
    "wrong_format"   no answer, and it ended otherwise

    `answer` is the integer behind `[ANSWER]`, or None; `expected` is an integer.
    `finish` says why the text ended: "turns" (all used up), "tokens" (all used
    up), "eos" (the model ended it), "answer" (its last line was one).

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


@app.cell(hide_code=True)
def _(answered, small):
    lesson.needs(lambda: answered)
    _sort, _whose = exercise.running(lambda: outcome, Solutions)
    gallery = []
    for _episode in [episode for episodes in answered.values() for episode in episodes]:
        _answer = final_answer(_episode.sampled_text)
        gallery.append((_sort(_answer, _episode.task.answer, _episode.finish), _episode))
    lesson.figure(
        nb05.gallery_of(gallery, small),
        f"One episode of each sort, by {_whose}. The table below says how often each comes.",
    )
    return (gallery,)


@app.cell(hide_code=True)
def _():
    lesson.md(f"""
    ### Exercise 2: write the reward

    A {lesson.term("reward")} turns failures into numbers, and training follows the numbers. Ours is a sum:

    1 for the right number + 0.2 for any number behind `[ANSWER]` − 0.1 for each needless call

    Calls beyond the number that a perfect answer makes are *needless*. They cost in every outcome, so a
    reward may be negative.
    """)
    return


@app.function
def reward(outcome, needless_calls):
    """Return the reward of an episode by its `outcome` and its needless calls.

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
            "Which two outcomes have a number behind `[ANSWER]`?",
            'A comparison counts as 0 or 1: `(outcome == "success") + 0.2 * (outcome in (…)) − …`.',
        ),
    )
    return


@app.cell(hide_code=True)
def _(answered, places):
    lesson.needs(lambda: (answered, places))
    pay, whose_pay = exercise.running(lambda: reward, Solutions)
    lesson.table(
        f"What each ending earns in the mean. The reward is by {whose_pay}",
        nb05.prices(answered, places, pay),
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.md(f"""
    The last column is a warning. A *lenient* checker pays whenever the right number appears anywhere, even if only
    the tool wrote it. In `simple` tasks the tool's reply is the answer. So a policy that looks it up and stops would be paid in full,
    and training would find that out. It is called {lesson.term("reward hacking")}; 05c shows one.

    ## The slowest answer

    A reward comes when its episode is done, and when is that? One text stops after a line, another goes on until
    it is cut off. A generator writes many episodes at once, each in a *slot* of its own. When an episode is done,
    its slot takes the next one. The trainer starts when the last episode of the batch is done: the *straggler*.
    """)
    return


@app.cell(hide_code=True)
def _(answered):
    times = [episode.seconds for found in answered.values() for episode in found]
    slowest_over_fastest = max(times) / min(times)
    lesson.md(f"""
    Among the {len(times)} episodes of the benchmark, the slowest took {slowest_over_fastest:.0f} times as long as the fastest.
    """)
    return slowest_over_fastest, times


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


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 3: the straggler

    Your `schedule` puts the 16 episodes on the slots. It draws the figure that answers the prediction.
    """)
    return


@app.function
def schedule(seconds, slots):
    """Put episodes on slots, in this order: each on the slot that is free first
    (the lowest, if several are). Returns for each the pair (slot, start).

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


@app.cell(hide_code=True)
def _(ask_idle, times):
    lesson.needs(lambda: times)
    _plan_of, _whose = exercise.running(lambda: schedule, Solutions)
    _batch = random.Random(0).sample(times, min(16, len(times)))
    _plan = _plan_of(list(_batch), 8)
    _last = max(start + took for (_, start), took in zip(_plan, _batch, strict=True))
    idle_share = 1 - sum(_batch) / (8 * _last)
    lesson.reveal(
        ask_idle,
        right=0 if idle_share < 0.15 else 1 if idle_share <= 0.35 else 2,
        why=f"""
    {idle_share:.0%}. The batch takes {_last:.2f} s; shared out evenly, it would take {sum(_batch) / 8:.2f} s.
    """,
        shows=[
            lesson.figure(
                nb05.batch_chart(_batch, _plan),
                f"{len(_batch)} episodes on eight slots, as if each took as long alone, by {_whose}. In orange: the straggler.",
            )
        ],
    )
    return (idle_share,)


@app.cell(hide_code=True)
def _():
    lesson.md(f"""
    ## The asynchronous answer

    The plain loop takes turns: each line waits for the one before it. Several answers to one question
    are a {lesson.term("group")}. An answer's {lesson.term("advantage")} says how much better it was than the mean of its
    group, because a reward alone does not tell a good answer from an easy question.

    ```python
    for step in range(steps):
        tasks = draw(prompts)                              # dataset
        episodes = generate(policy, tasks, copies=4)       # generators; the trainer waits
        rewards = [reward(episode) for episode in episodes]
        advantages = advantages_of(rewards)                # each within its group
        loss = policy_gradient(policy, episodes, advantages)
        policy = optimizer_step(policy, loss)              # trainer; the generators wait
        send_weights(policy, generators)                   # everybody waits
    ```

    *Spot the problem?* While the generators write, the trainer waits, and the other way round. And everybody waits
    for the slowest answer.

    So stop taking turns. Put a buffer between generators and trainer, and write the next batch while the trainer
    works on this one. With hardware of its own for each side, a step then takes at best as long as the slower of the two, not
    as long as both. While one answer is late, the generators already start answers of the next batch.

    The price: the trainer learns from answers that an older version of the model wrote. Such data are called
    {lesson.term("off-policy")}. `max_lag` says how many versions old they may be. Old data can ruin a run, so the loss corrects
    for them (09). And to repeat such a run bit for bit, somebody must write down what came when (11).

    Play with it. The simulator draws both ways, as if each side had its own machine. Raise the *variation*, the scatter of the
    answers' times, and watch who waits. Its table says how long the run takes at least because of each part. The last
    row is a chain: weights are sent, a batch is written, a step is taken, one after another. With `max_lag` L that chain comes once in every L + 1 steps.
    """)
    return


@app.cell(hide_code=True)
def _():
    TimelineSimulator()
    return


@app.cell(hide_code=True)
def _():
    ask_lag = lesson.predict(
        "The scenario *one straggler* is a run of six steps. Four generators write 8 groups for each step, and a training step takes 4 s. A single group of the whole run takes 8 s, every other 1 s. With `max_lag` 1 the generators may be one batch ahead. "
        "Does that hide the straggler: is the run within 2% of one with a large `max_lag`? Think first, then try it above.",
        "yes",
        "no, but `max_lag` 2 does",
        "no, and 2 is not enough either",
    )
    ask_lag
    return (ask_lag,)


@app.cell(hide_code=True)
def _(ask_lag):
    _lags = nb05.straggler_by_lag()
    _hidden = [lag for lag, took in _lags.items() if took <= 1.02 * min(_lags.values())]
    _told = ", ".join(f"{took:.1f} s at {lag}" for lag, took in _lags.items())
    lesson.reveal(
        ask_lag,
        right={1: 0, 2: 1}.get(min(_hidden), 2),
        why=f"""
    Six steps take {_told}. The straggler lasts as long as two steps of the trainer. If the generators may be
    one batch ahead, the trainer has one batch to work on in that time, and then it waits. Each further batch fills one more step.
    """,
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### The loop in turns, with a clock

    How long does each phase take here, where one process does all of them?
    """)
    return


@app.function(hide_code=True)
def take_turns(policy, environment, sampling, steps, on_step):
    """Train for `steps` steps. Returns the mean seconds of each phase."""
    trainer, clock = nb05.new_trainer(), SpanRecorder("this process")
    for step in range(steps):
        with clock.span("generate"):
            episodes = nb05.generate(policy, environment, step, sampling)
        with clock.span("train"):
            rewards = [episode.score.reward for episode in episodes]
            trainer.step(episodes, nb05.advantages_of(rewards))
        with clock.span("weights"):
            policy.model.load_state_dict(trainer.policy.model.state_dict())
        on_step(step + 1)
    return nb05.mean_seconds(clock)


@app.cell(hide_code=True)
def _(config):
    trained = lesson.Kept(
        __file__, "seconds_in_turns", seed=config.seed, steps=config.steps
    )
    start_turns = lesson.start_button(f"Train {config.steps} steps", seconds=25)
    start_turns
    return start_turns, trained


@app.cell(hide_code=True)
def _(card, config, environment, sampling, start_turns, trained):
    lesson.wait_for(start_turns, unless=trained)

    def _train():
        policy = models.load_policy("embedded")
        card.play(policy, 0)
        with lesson.counting(config.steps, "steps") as one_more:

            def on_step(step):
                card.play(policy, step)
                one_more()

            took = take_turns(policy, environment, sampling, config.steps, on_step)
        return card.texts, took

    _texts, seconds = trained.get(_train)
    card.show(_texts, config.steps)
    card.seal()
    return (seconds,)


@app.cell(hide_code=True)
def _(seconds, trained):
    _share = {kind: f"{took / sum(seconds.values()):.0%}" for kind, took in seconds.items()}
    lesson.md(f"""
    Of a step with 32 episodes, generating takes {_share["generate"]}, training {_share["train"]}, and loading the new weights
    {_share["weights"]}. Scroll up: the card now shows this run.

    {trained.note}
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.md(f"""
    Two separate sides buy more than speed:

    - Generators and trainers *scale separately*: twice as many generators need no second trainer (06).
    - They run on *different hardware* (10). Writing reads all weights for each token, so fast memory helps; training needs arithmetic.
    - *Faults stay where they are.* If each generator is a process of its own, a dead one takes only its own episodes with it (03).

    ## Why these are actors

    A generator keeps weights and half-written answers, a trainer keeps an optimizer, a buffer keeps a queue. Each keeps something
    of its own, talks to the others by messages alone, and can die without taking them with it. Such a program is called an
    {lesson.term("actor")}. In Monarch, the library of this course, it is an object in a process of its own. Other processes can
    call its *endpoints*, which are marked methods.

    What comes next: in 05b you write the inner loop and the loss yourself, and train this policy with them. 05d trains SmolLM2. 05c asks what they
    really learned. Then the boxes become processes: a pool that heals (06), weights on their way (07), the whole loop (08).
    """)
    return


@app.cell(hide_code=True)
def _(idle_share):
    lesson.recap(
        3,
        "A made-up task cannot be remembered, and a program checks it strictly.",
        "A model often knows more than it says; RL pays for saying it, if it succeeds now and then.",
        f"Slots that wait for the slowest answer are wasted: in our batch, {idle_share:.0%} of their time.",
        "In turns a step takes as long as all phases together; with a buffer between, at best as the slowest.",
    )
    return


@app.cell(hide_code=True)
def _(slowest_over_fastest, times):
    lesson.headline(
        f"Of {len(times)} answers of a small model the slowest took {slowest_over_fastest:.0f} times as long as the fastest, and a trainer waits for it."
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
        right = Solutions.outcome
        limits = {"turns": "tool_spam", "tokens": "truncated"}
        exercise.agree(
            outcome,
            right,
            lambda rng: (
                rng.choice(numbers),
                rng.choice(numbers[1:]),
                rng.choice(finishes),
            ),
            times=150,
            examples=[
                (0, 3, "turns"),
                (0, 0, "answer"),
                (3, 3, "tokens"),
                (None, 3, "tokens"),
            ],
            mistakes={
                "an answer may be 0, and `if answer` takes that for none": lambda a, e, f: (
                    right(a or None, e, f)
                ),
                "you ask how it ended before you look for an answer": lambda a, e, f: (
                    limits.get(f) or right(a, e, f)
                ),
                "`turns` and `tokens` are exchanged": lambda a, e, f: right(
                    a, e, {"turns": "tokens", "tokens": "turns"}.get(f, f)
                ),
            },
        )

    def outcome(answer, expected, finish):
        if answer is not None:
            return "success" if answer == expected else "wrong_answer"
        return {"turns": "tool_spam", "tokens": "truncated"}.get(finish, "wrong_format")

    def check_reward(reward):
        right = Solutions.reward
        exercise.agree(
            reward,
            right,
            lambda rng: (rng.choice(OUTCOMES), rng.randrange(4)),
            times=60,
            examples=[
                ("success", 0),
                ("wrong_answer", 0),
                ("wrong_format", 0),
                ("tool_spam", 3),
            ],
            mistakes={
                "a wrong number behind `[ANSWER]` earns the 0.2, too": lambda o, n: (
                    right(o, n) - 0.2 * (o == "wrong_answer")
                ),
                "you cut it off at 0, and needless calls cost in every outcome": lambda o, n: (
                    max(0, right(o, n))
                ),
                "the 0.2 come on top of the 1": lambda o, n: (
                    right(o, n) - 0.2 * (o == "success")
                ),
            },
        )

    def reward(outcome, needless_calls):
        return (
            (outcome == "success")
            + 0.2 * (outcome in ("success", "wrong_answer"))
            - 0.1 * needless_calls
        )

    def check_schedule(schedule):
        right = Solutions.schedule
        exercise.agree(
            schedule,
            right,
            lambda rng: (
                rng.choices((0.5, 1.0, 2.0, 4.5), k=rng.randint(1, 9)),
                rng.randint(1, 4),
            ),
            times=40,
            examples=[([2.0, 1.0], 2), ([2.0, 1.0, 1.0], 2)],
            mistakes={
                "you go round the slots in turn, and the next episode goes to the slot that is free first": lambda s, n: [
                    (i % n, sum(s[i % n : i : n])) for i in range(len(s))
                ],
                "you say when each episode ends, not when it starts": lambda s, n: [
                    (slot, start + took)
                    for (slot, start), took in zip(right(s, n), s, strict=True)
                ],
                "the slot comes first in a pair": lambda s, n: [
                    (start, slot) for slot, start in right(s, n)
                ],
            },
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
