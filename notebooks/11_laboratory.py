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
    app_title="The laboratory: what broke this run?",
    css_file="../zorplex_rl/course/lesson/lesson.css",
)

with app.setup(hide_code=True):
    import math
    from functools import partial
    from types import SimpleNamespace

    import marimo as mo
    import torch

    from zorplex_rl.course import nb09, nb11
    from zorplex_rl.course.figures import lines
    from zorplex_rl.course.lesson import exercise, lesson
    from zorplex_rl.course.recorded_study import read_study
    from zorplex_rl.course.staleness import Conditions, held_out_accuracy
    from zorplex_rl.course.widgets import LiveCurve
    from zorplex_rl.policy.load import load_policy
    from zorplex_rl.simulation.what_if import read_recording, replay, what_if
    from zorplex_rl.task.environment import Zorplex

    clipped = nb09.packaged("grpo")  # the clipped loss of notebook 09


@app.cell(hide_code=True)
def _():
    lesson.header(
        __file__,
        minutes=50,
        hardware="two CPU cores, no network",
        goals=[
            "tell three causes of a failing run apart by two measurements",
            "write the loss that leaves wrong records out, as its authors have it",
            "write down your diagnosis as a rule, and try it on recorded runs",
            "replay a run with one thing changed, and say whether the difference is clear",
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Three runs fail overnight

    Three runs trained overnight, and now they give fewer right answers than before. Nobody changed the code. There are three usual causes.

    - *Old data.* The generator was many versions behind (notebook 09).
    - *Wrong records.* The engine that samples and the one that trains compute different probabilities *with the same weights*, so the recorded log μ is wrong.
      Mostly the difference is small. In large mixture-of-experts models it is large for some tokens (Ling Team 2025).
    - *Too high a learning rate.* The steps are so long that the policy gets worse, however fresh its data are.

    Each cause has its own cure. Two of them need no diagnosis, as you will see: to clip, and to halve the learning rate. Wrong records need one.
    You have an hour of machine time. What do you measure?
    """)
    return


@app.cell(hide_code=True)
def settings():
    _full = SimpleNamespace(
        policy="embedded", seed=30,
        steps=21, eval_every=3,
        curve_tasks=40, eval_tasks=200, rate=3e-4, high_rate=8e-4,
        old=20, wrong_share=0.1, wrong_spread=5.0,
        replay_tasks=100,  # of each evaluation of a replay
    )  # fmt: skip
    config = lesson.brief(_full, steps=3, curve_tasks=10, eval_tasks=20, replay_tasks=8)
    _short_run = SimpleNamespace(  # the page's own run, if there is none
        policy="embedded", device="cpu", seed=0, threads=1,
        prompts=6, samples=6, steps=6, eval_tasks=20,
    )  # fmt: skip
    short_run = lesson.brief(_short_run, prompts=3, steps=3)
    return config, short_run


@app.cell(hide_code=True)
def _(config):
    torch.set_num_threads(1)
    conditions = Conditions(
        policy=config.policy,
        steps=60,
        learning_rate=config.rate,
        held_out_tasks=config.eval_tasks,
    )
    then = load_policy(config.policy)  # version 0 of every run here
    before = held_out_accuracy(then, Zorplex(config.seed), conditions)
    lesson.ran_on(then)
    return before, conditions, then


@app.cell(hide_code=True)
def _(config):
    start_runs = lesson.start_button("Let the three runs fail", seconds=50)
    failing_curve = LiveCurve(config.steps, title="Right of the held-out tasks")
    mo.vstack([start_runs, *([] if lesson.unattended() else [failing_curve])])
    return failing_curve, start_runs


@app.cell(hide_code=True)
def _(before, conditions, config, failing_curve, start_runs, then):
    lesson.wait_for(start_runs)
    failing_curve.clear()
    _faults = partial(
        nb09.other_engine, share=config.wrong_share, spread=config.wrong_spread
    )
    # What broke them stands here. Do not look yet.
    runs = {
        "run A": SimpleNamespace(
            loss=nb09.packaged("reinforce"), lag=8, rate=config.high_rate, faults=None
        ),
        "run B": SimpleNamespace(loss=clipped, lag=0, rate=config.rate, faults=_faults),
        "run C": SimpleNamespace(
            loss=nb09.packaged("reinforce"), lag=config.old, rate=config.rate, faults=None
        ),
    }
    first_batches, ended = {}, {}
    _wrote = {"before training": nb09.answer(then)}
    with lesson.counting(len(runs) * config.steps, "steps") as _one_more:
        for _name, _run in runs.items():
            ended[_name], _wrote[_name], first_batches[_name] = nb11.train(
                _run, _name, failing_curve, conditions, config, _one_more
            )
    _seen = f"The first question of notebook 05 again, and what each policy writes most often at the end. This is one question, asked {nb09.DRAWS} times; the curves have many questions, each asked once."
    _rose = [name for name, end in ended.items() if end >= before]
    _shown = [
        lesson.md(f"""
    They began at {before:.0%} and ended at {", ".join(f"{end:.0%}" for end in ended.values())}.
    {f"*Not as planned:* in these {config.steps} steps {' and '.join(_rose)} did not fall. The causes are planted all the same, so the first measurement still holds. What the page says about a fall is not true of {' and '.join(_rose)}." if _rose else ""}
    """),
        lesson.folded(
            "What each policy writes",
            "The texts are a symptom: they show *how* a run fails, but not why.",
            nb09.answers(_wrote, _seen),
        ),
    ]
    if lesson.unattended():  # in the editor the live curve shows them
        _drawn = lines.runs_chart(dict(failing_curve.series), before)
        _seen = f"A point has {config.curve_tasks} held-out tasks, the dotted line and the last points {config.eval_tasks}."
        _shown.insert(0, lesson.figure(_drawn, _seen))
    mo.vstack(_shown)
    return ended, first_batches, runs


@app.cell(hide_code=True)
def _():
    ask_record = lesson.predict(
        "One run fails because of wrong records, one because its data are old, and one because its learning rate is too high, on data that are old, too. In which are the records wrong? Decide by the curves; then we measure.",
        "run A",
        "run B",
        "run C",
    )
    ask_record
    return (ask_record,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## First measurement: the same weights

    The ratio π/μ of a token has two factors that you do not want. One is *age*: the weights have changed since. The other is **numerics**: two programs computed with the same weights, and got different numbers.
    To see numerics alone, take age away. Let the trainer compute the log-probs of a batch *with the very weights that sampled it*. Then π/μ should be 1, up to rounding.

    In every run here, version 0 sampled the first batch. So version 0 computes its log-probs once more. In your own stack: take the first step of a run, or one at lag 0.

    ### Exercise 1: how many are far off?

    Write the measurement. You get log π − log μ of the tokens. Return the share of those whose *ratio* is below 0.8 or above 1.2.
    """)
    return


@app.function
def far_off(log_ratios):
    """Return the share of tokens whose ratio is outside 0.8 … 1.2.

    far_off([0.0, 0.1, 1.0, -0.3]) is 0.5: the ratios are 1, 1.11, 2.72 and 0.74.
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: far_off,
        Solutions,
        level="warm-up",
        minutes=3,
        lines=2,
        hints=(
            "Is 0.8 a bound of the ratio, or of its logarithm?",
            "Count the tokens for which `0.8 <= math.exp(log) <= 1.2` is not true, and divide by how many there are.",
        ),
    )
    return


@app.cell(hide_code=True)
def _(ask_record, before, config, ended, first_batches, then):
    lesson.needs(lambda: ended)
    _far_off, _whose = exercise.running(lambda: far_off, Solutions)
    far = {
        name: float(_far_off(torch.cat(nb09.log_ratios(then, batches)).tolist()))
        for name, batches in first_batches.items()
    }
    _n = config.eval_tasks
    _rows = [
        {"run": name, "ends at": nb09.uncertain(ended[name], _n), "far off": f"{share:.1%}"}
        for name, share in far.items()
    ]
    *_others, _worst = sorted(far, key=far.get)
    lesson.reveal(
        ask_record,
        right=[*far].index(_worst),
        why=f"""
    By {_whose}, it is {_worst}: {far[_worst]:.1%} of its tokens are far off with the same weights, in the others at most {far[_others[-1]]:.1%}.
    A curve can suggest that. This measurement shows it. (Run B has notebook 09's clipped loss, which reads the records. The plain loss of A and C does not.)

    We planted it: with a chance of {config.wrong_share:.0%}, a recorded log-prob got noise of standard deviation {config.wrong_spread:g}. That is far more than engines usually differ, so that {config.steps} steps show it.
    """,
        shows=[
            lesson.table(
                f"Three runs that began at {nb09.uncertain(before, _n)}, on {_n} tasks",
                _rows,
            )
        ],
    )
    return (far,)


@app.cell(hide_code=True)
def _():
    start_controls = lesson.start_button("Train the controls of A and C", seconds=25)
    ask_control = lesson.predict(
        "Run A and run C have right records, and both had old data. In one of them the learning rate is too high, too. Train both again at lag 0. Which one fails again?",
        "run A",
        "run C",
        "neither: fresh data mend both",
    )
    _text = mo.md("""
    ## Second measurement: the control

    A **control** is the same run without one possible cause. Here it has the same loss, learning rate and seed, but fresh data, at lag 0.
    If it learns, old data were the cause. If it fails too, they were not the only cause.
    It costs as many steps as the run took to fail. The ratio costs one batch, so measure it first.
    """)
    mo.vstack([_text, ask_control, start_controls])
    return ask_control, start_controls


@app.cell(hide_code=True)
def _(conditions, config, runs, start_controls):
    lesson.wait_for(start_controls)
    control_curve = LiveCurve(config.steps)
    controls = {}
    with lesson.counting(2 * config.steps, "steps") as _one_more:
        for _name in ("run A", "run C"):
            _fresh = SimpleNamespace(**vars(runs[_name]) | {"lag": 0})
            _line = f"{_name}, fresh data"
            controls[_line], *_ = nb11.train(
                _fresh, _line, control_curve, conditions, config, _one_more
            )
    return control_curve, controls


@app.cell(hide_code=True)
def _(
    ask_control,
    before,
    config,
    control_curve,
    controls,
    ended,
    failing_curve,
):
    lesson.needs(lambda: (controls, ended))
    _n = config.eval_tasks
    _learns = [nb09.compared(end, before, _n) > 0 for end in controls.values()]
    _step, _top = max(control_curve.series[0][1], key=lambda point: point[1])
    _a, _c = (nb09.uncertain(end, _n) for end in controls.values())
    _as_planted = _learns == [False, True]
    lesson.reveal(
        ask_control,
        right=[0] if _as_planted else [],
        why=f"""
    The control of run A ends at {_a}, that of run C at {_c}. Before training it was {before:.0%}.
    {f"With fresh data run A still had {_top:.0%} at step {_step}, its best, and then fell all the same. So old data are not its only cause. The two controls differ in one thing, the learning rate: {config.high_rate:g} for run A, {config.rate:g} for run C. So that of run A is too high. Run C fails on old data only." if _as_planted else "With this seed, on this machine, the controls do not show what we planted."}
    (We planted a rate of {config.high_rate:g} in run A, and in run C data of up to {config.old} versions ago.)

    Solid: the runs. Dashed: their controls. Run B needs none, because it had lag 0 from the start.
    """,
        shows=[
            lesson.figure(
                lines.runs_chart(
                    dict([*failing_curve.series, *control_curve.series]), before, height=420
                ),
                f"A point has {config.curve_tasks} held-out tasks, the last one {_n}.",
            ),
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 2: your diagnosis, as a rule

    Write what you would do today. The rule names the cause of a failure. To mend the run, something blunter may do as well: to clip every run, whatever its cause. So we try that afterwards, too.

    `accuracies` are the held-out accuracies of a run, in order, and `control` those of its control. `far` is the share from exercise 1.
    A run has *failed* if it ends below half of `best`, the best accuracy that it or its control ever had. The control is measured against the same `best`.

    | what you see | what to do |
    |---|---|
    | the run has not failed | `"leave it"` |
    | it has, and more than 1% of the tokens are far off | `"mask"` |
    | it has, the records are right, and the control has failed, too | `"lower the rate"` |
    | it has, the records are right, and the control learns | `"clip"` |
    """)
    return


@app.function
def advise(accuracies, control, far):
    """Name what to do.

    advise([0.4, 0.9, 0.1], [0.4, 0.9, 0.9], 0.0) is "clip".
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: advise,
        Solutions,
        level="core",
        minutes=5,
        lines=8,
        hints=(
            "Which question do you ask of both runs? And of which accuracy of the control do you ask it: its last one, or its best?",
            "`best = max([*accuracies, *control])`. Then the rows of the table from top to bottom, each with a `return`.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    study = read_study(mo.notebook_dir().parent / "benchmarks" / "staleness.jsonl")
    _rule, _whose = exercise.running(lambda: advise, Solutions)
    _asked = lesson.md(f"""
    Is the advice good? We ask {_whose} about the {len(study.rows)} runs of a recorded study: {study.whole_seeds} seeds, {study.conditions["steps"]} steps.
    The study has each seed with every loss, lag and rate. So we can look up three others for each run: the one that took the advice, the clipped one, and the clipped one at half the rate (*both cures*).
    (The lowest rate, 0.0002, stays.) In this study the engines agree, so the advice to mask is not tried.
    """)
    _caption = (
        f"Mean accuracy at the end. Recorded {study.dates} with `python {study.command}`"
    )
    _rows = nb11.worth(study, _rule)
    _lower = next(row for row in _rows if row["advice"] == "lower the rate")
    _judged = lesson.md(f"""
    To clip every run does as well in every row, or better. The {_lower["runs"]} runs with too high a rate reach only {_lower["with the advice"]} with a lower one, because most of them have old data, too.
    Clipped they reach {_lower["clipped instead"]}, because clipping bounds both: long steps, and what old data do.
    Both cures together are best in every row.

    So two cures need no diagnosis: clip every run, and halve the rate of one that fails. Wrong records need one. If a run with both cures still fails, measure as above.
    Are tokens far off? Mask. If not, train its control, clipped, too. If that fails as well, lower the rate further.
    """)
    mo.vstack([_asked, lesson.table(_caption, _rows), _judged])
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A cure for wrong records

    Run B had the clipped loss, which is the cure for old data. It does not protect from wrong records.
    Take a token whose recorded log μ is too small by 5: its ratio is e⁵ = 148. Clipping does not stop a *bad* token above 1.2, so it is pushed 148 times as hard.
    A wrong record cannot be corrected. So leave its token out.

    *IcePop* does that (Ling Team 2025, on Ring-1T, arXiv 2510.18855). It has two ratios, and one task for each.

    - k compares the engines *with the same weights*, those that sampled: the trainer's probability over the recorded μ. A token with k outside its bounds counts nothing. Inside, k is its weight.
    - The second ratio is what training has changed since. PPO's clip bounds it.

    ### Exercise 3: the mask of IcePop

    Run B has lag 0, so the weights that sampled are those with which the step begins: π₀ of notebook 09. So k = π₀/μ, and the objective of a token is k · min(π/π₀ · A, clip(π/π₀) · A).

    `clipped` is notebook 09's clipped loss. It multiplies the objective of each token by `mask`, so k goes there. In place of μ it gets π₀, around which it clips.
    One line is left: a token with k outside 0.5 … 5 counts nothing.
    """)
    return


@app.function
def icepop_ring(logp, start_logp, behaviour_logp, advantage, mask, tokens):
    """Return the loss of a batch, a tensor with one number.

    One token with π/π₀ = 0.5 and A = −2: with k = π₀/μ = 3 the loss is
    3 · 1.6 = 4.8, with k = 6 it is 0.
    """
    k = (start_logp - behaviour_logp).exp()
    raise NotImplementedError  # write the line on k here, in place of this one
    return clipped(logp, start_logp, start_logp, advantage, k * mask, tokens)


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: icepop_ring,
        Solutions,
        level="core",
        minutes=3,
        lines=1,
        hints=(
            "What must become of k = 6, and what of k = 3?",
            "`k >= 0.5` is true or false for each token. As a factor it is 1 or 0. So `k = k * (k >= 0.5) * …`.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    icepop_loss, whose_icepop = exercise.running(lambda: icepop_ring, Solutions)
    start_cure = lesson.start_button("Train run B once more", seconds=12)
    _text = lesson.md(
        f"Train run B once more, with {whose_icepop} instead of the clipped loss."
    )
    _other = lesson.folded(
        "The other form of IcePop, and where the two differ",
        """
    INTELLECT-3 (arXiv 2512.16144, eq. 1) has one ratio, π/μ, for both tasks. Inside 0.5 … 5 it is the token's weight, outside the token counts nothing, and there is no clip.
    That is `--loss icepop` of this package, the *masked* of notebook 09. A result on one form says nothing about the other.

    A good token shows the difference, with A = 1, π₀/μ = 6 (its record is wrong) and π/π₀ = 0.2 (training has moved it).
    Exercise 3's form leaves it out, because k = 6. But π/μ is 1.2, which hides the wrong record, so the form with one ratio multiplies its ∇ log π by 1.2.

    At a larger lag π₀ is not what sampled. There the trainer would have to keep its log-probs of the weights that sampled, to have k.

    Neither form is the last word. Ring's own authors report that IcePop masks *fewer* tokens while the gap between the engines grows.
    """,
    )
    mo.vstack([_text, start_cure, _other])
    return icepop_loss, start_cure


@app.cell(hide_code=True)
def _(conditions, config, icepop_loss, runs, start_cure):
    lesson.wait_for(start_cure)
    lesson.needs(lambda: runs)
    _run = SimpleNamespace(**vars(runs["run B"]) | {"loss": icepop_loss})
    with lesson.counting(config.steps, "steps") as _one_more:
        cured, *_ = nb11.train(
            _run, "masked", LiveCurve(config.steps), conditions, config, _one_more
        )
    return (cured,)


@app.cell(hide_code=True)
def _(config, cured, ended):
    lesson.needs(lambda: (cured, ended))
    _n = config.eval_tasks
    lesson.md(f"""
    Clipped, run B ended at {nb09.uncertain(ended["run B"], _n)}. With k and clip it ends at {nb09.uncertain(cured, _n)}, with the same wrong records.
    """)
    return


@app.cell(hide_code=True)
def _():
    own = None if lesson.unattended() else nb11.folder_of(__file__)
    _label = f"Replay {own.name}" if own else "Make a run, and replay it"
    start_replay = lesson.start_button(_label, seconds=30)
    _text = lesson.md("""
    ## The same run again, with one thing changed

    A diagnosis is a guess until you have changed *one* thing and seen the difference. With an asynchronous run that is hard: who pulled which weights when is never the same twice.
    So the package keeps a **journal**: which weights sampled which group, which processes died, and which episodes each step was trained on. From it, one process executes the run again, without Monarch.

    If you ran notebook 08, this is *your* run, in which a generator was killed. Otherwise the page makes a short run of its own, and kills one in it, too.
    """)
    _terminal = lesson.folded(
        "The same in a terminal",
        "`zorplex-rl train --out runs/mine`, then `zorplex-rl replay runs/mine --learning-rate 1.2e-3`. More seeds: `--seeds 10`.",
    )
    mo.vstack([_text, start_replay, _terminal])
    return own, start_replay


@app.cell(hide_code=True)
async def _(own, short_run, start_replay):
    lesson.wait_for(start_replay)
    with lesson.counting(None, "the run, and its replay"):
        recording = read_recording(own or await nb11.make_run(short_run))
        unchanged = replay(recording)
    return recording, unchanged


@app.cell(hide_code=True)
def _(recording, unchanged):
    lesson.needs(lambda: unchanged)
    lesson.md(f"""
    {unchanged.same["episodes"]} of {unchanged.compared["episodes"]} episodes came out the same, token for token and
    log-prob for log-prob, in {unchanged.same["steps"]} of {unchanged.compared["steps"]} steps. {len(recording.events("restart"))} process died in the run, and the replay has that, too.
    The run had the `{recording.config.learner.loss}` loss, `max_lag` {recording.config.max_lag}, a learning rate of {recording.config.learner.learning_rate:g} and {recording.config.steps} steps.
    {"So whatever you change now is the only difference." if unchanged.is_equal else f"The first difference: {unchanged.first_difference}; {unchanged.why}."}
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    Now change one setting in the cell below: this one, or for example `{"loss": "reinforce"}`.
    The schedule of the journal is kept: who samples with which version. The first seed is the run's; the two others draw other tasks and texts on the same schedule.
    For each seed the run is executed twice: as it was, and changed.
    """)
    return


@app.cell
def _():
    change = {"learning_rate": 1.2e-3}
    return (change,)


@app.cell(hide_code=True)
def _(change, config):
    _what = ", ".join(f"`{name}` {value}" for name, value in change.items())
    ask_change = lesson.predict(
        f"The run with {_what}: how does it end, on {config.replay_tasks} held-out tasks, against the run as it was?",
        "clearly lower",
        "no clear difference",
        "clearly higher",
    )
    start_change = lesson.start_button("Execute both runs, three seeds", seconds=40)
    mo.vstack([ask_change, start_change])
    return ask_change, start_change


@app.cell(hide_code=True)
def _(change, config, recording, start_change):
    lesson.wait_for(start_change)
    recording.config = recording.config.changed(eval_tasks=config.replay_tasks)
    with lesson.counting(2 * 3 * len(recording.batches), "steps") as _one_more:
        compared = what_if(
            recording,
            recording.config.changed(**change),
            seeds=3,
            on_step=_one_more,
        )
    return (compared,)


@app.cell(hide_code=True)
def _(ask_change, change, compared):
    lesson.needs(lambda: compared)
    _told = nb11.said(compared)
    lesson.reveal(
        ask_change,
        right=_told.way,
        why=f"""
    At the end {_told.words}. *Clear* means that the interval does not contain 0. It is over three seeds, by Student's t: three are few, so it is wide. More seeds make it narrow.

    {"Does that contradict the rule? No: this run had not failed, and the rule leaves such a run alone. In a few steps a higher rate can be faster, and fail in more." if _told.way == 2 and "learning_rate" in change else ""}
    """,
        shows=[
            lesson.figure(
                _told.drawn,
                "Thin: a seed. Thick: their mean. Dotted: the first step after which the weights differ. Below: the share of episodes that both runs have, token for token.",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.recap(
        3,
        "A run falls for three usual reasons: old data, wrong records, too high a learning rate. A curve does not prove which.",
        "First measure the ratio with equal weights: it costs one batch. Then train the control at lag 0: it costs a run.",
        "Clip from the start. If the run fails, try half the rate. If it still fails, measure. Tokens are far off: mask. If not, and its clipped control fails, too: lower the rate further.",
        "If a run can be replayed bit for bit, you can change one thing in it. One seed is not enough to judge the change.",
    )
    return


@app.cell(hide_code=True)
def _(controls, cured, ended, far):
    lesson.needs(lambda: (controls, cured, ended, far))
    lesson.headline(
        f"three runs ended at {', '.join(f'{end:.0%}' for end in ended.values())}. With equal weights {far['run B']:.0%} of run B's tokens were far off; with a mask it ended at {cured:.0%}. At lag 0 the others ended at {' and '.join(f'{end:.0%}' for end in controls.values())}."
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.md("""
    ## What now?

    You have written the loop, its weight sync, its losses and a diagnosis. Four ways to go on:

    - *Your own task* is a class with two methods: one draws a question, one answers a tool call. Copy the one in `docs/OWN_TASK.md` into `doubling.py`.
      `zorplex-rl env check doubling.py` says whether a policy can learn it, and `zorplex-rl train --task doubling.py` trains one.
    - *Your own stack.* [Sixteen stacks](stacks.html) compares TRL, verl, prime-rl and others. Measure there what you measured here: the ratio with equal weights, then a control.
    - *A number to beat.* `speedrun/RULES.md` has the rules, and `speedrun/RECORDS.md` the fastest training so far. An entry is one short file.
      Begin with `python speedrun/run.py speedrun/entries/rate.py --seeds 1`.
    - *A run of your own, live.* Start one in a terminal. In `marimo edit` its curve grows below; type the run's folder.
    """)
    return


@app.cell
def _():
    metrics = lesson.follow("runs/mine")
    return (metrics,)


@app.cell(hide_code=True)
def _(metrics):
    _curve = LiveCurve(total_steps=120)
    _where = lesson.show_run(metrics, _curve)
    None if lesson.unattended() else mo.vstack([_curve, _where])
    return


@app.cell(hide_code=True)
def _():
    lesson.links(__file__)
    return


@app.class_definition(hide_code=True)
class Solutions:
    """Check the exercises of this page, and solve them."""

    def check_far_off(far_off):
        exercise.expect(
            far_off,
            [0.0, 0.1, 0.1, 0.1, -0.21, 1.0, 1.0, -0.3],
            result=3 / 8,
            mistakes={
                "you took the logarithms for ratios": 6 / 8,
                "you bounded the logarithm by 0.2, but log 0.8 is −0.22": 4 / 8,
                "you counted only the ratios above 1.2": 2 / 8,
                "that is the share of the others, which are near": 5 / 8,
                "that is a number of tokens, not their share": 3,
            },
        )
        exercise.agree(far_off, Solutions.far_off, nb09.draw_log_ratios, times=40)

    def far_off(log_ratios):
        near = sum(0.8 <= math.exp(log) <= 1.2 for log in log_ratios)
        return 1 - near / len(log_ratios)

    def check_advise(advise):
        fell, well, low = [0.9, 0.1], [0.9, 0.9], [0.3, 0.3]
        _control = {
            "it never asks whether the control has failed": "clip",
            "it compares the run with the end of its control, which may have fallen, too": "leave it",
        }
        _far = {
            "it does not see that more than 1% of the tokens, 0.01, are far off": "clip"
        }
        _best = {"it compares the run with its own best, not with that of both": "leave it"}
        _healthy = {
            "it asks for the far tokens before it asks whether the run has failed": "mask"
        }
        exercise.expect(advise, well, well, 0.5, result="leave it", mistakes=_healthy)
        exercise.expect(advise, fell, fell, 0.0, result="lower the rate", mistakes=_control)
        exercise.expect(advise, fell, well, 0.5, result="mask", mistakes=_far)
        exercise.expect(advise, low, well, 0.0, result="clip", mistakes=_best)
        exercise.agree(advise, Solutions.advise, nb11.draw_run, times=80)

    def advise(accuracies, control, far):
        best = max([*accuracies, *control])
        if accuracies[-1] >= best / 2:
            return "leave it"
        if far > 0.01:
            return "mask"
        if control[-1] < best / 2:
            return "lower the rate"
        return "clip"

    def check_icepop_ring(icepop_ring):
        right = Solutions.icepop_ring

        def weighted(weight, policies=(0, 1, 1), loss=right):
            """Return the clipped loss without k, and with `weight` of log π, log π₀, log μ."""
            return nb09.variant(loss, policies, weight)

        def inside(log_k):
            k = log_k.exp()
            return k * (k >= 0.5) * (k <= 5.0)

        nb09.check_loss(
            icepop_ring,
            right,
            {
                "a token with k outside its bounds is cut to the bound, and should count nothing": weighted(
                    lambda logp, start, behaviour: (start - behaviour).exp().clamp(0.5, 5.0)
                ),
                "inside its bounds k is a weight, and it is missing": weighted(
                    lambda logp, start, behaviour: inside(start - behaviour) > 0
                ),
                "k compares π with μ, and should compare π₀, the weights at the start, with μ": weighted(
                    lambda logp, start, behaviour: inside((logp - behaviour).detach())
                ),
                "a gradient flows through k, which should compare π₀ with μ, not π": weighted(
                    lambda logp, start, behaviour: inside(logp - behaviour)
                ),
                "the clip is around μ, and should be around π₀: what this step has moved is π/π₀": weighted(
                    lambda logp, start, behaviour: inside(start - behaviour), (0, 2, 2)
                ),
                "that is the form with one ratio: it masks π/μ, and has no clip": nb09.packaged(
                    "icepop"
                ),
                "the clip is missing": weighted(
                    lambda logp, start, behaviour: (
                        (logp - start).detach().exp() * inside(start - behaviour)
                    ),
                    loss=nb09.packaged("reinforce"),
                ),
                "k is not bounded": weighted(
                    lambda logp, start, behaviour: (start - behaviour).exp()
                ),
            },
        )

    def icepop_ring(logp, start_logp, behaviour_logp, advantage, mask, tokens):
        k = (start_logp - behaviour_logp).exp()
        k = k * (k >= 0.5) * (k <= 5.0)
        return clipped(logp, start_logp, start_logp, advantage, k * mask, tokens)


if __name__ == "__main__":
    app.run()
