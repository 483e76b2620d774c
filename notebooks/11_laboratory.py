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
    from pathlib import Path
    from types import SimpleNamespace

    import marimo as mo
    import torch

    from zorplex_rl.course import nb09, nb11
    from zorplex_rl.course.figures import drawing_of, lines
    from zorplex_rl.course.lesson import exercise, lesson
    from zorplex_rl.course.recorded_study import read_study
    from zorplex_rl.course.staleness import Conditions, held_out_accuracy
    from zorplex_rl.course.widgets import LiveCurve, PhaseDiagram
    from zorplex_rl.policy.load import load_policy
    from zorplex_rl.simulation.what_if import read_recording, replay, what_if
    from zorplex_rl.task.environment import Zorplex


@app.cell(hide_code=True)
def _():
    lesson.header(
        __file__,
        minutes=44,
        hardware="two CPU cores, no network",
        goals=[
            "tell three causes of a failing run apart by two measurements",
            "write the loss that bears wrong records, as its authors have it",
            "write down your diagnosis as a rule, and try it on recorded runs",
            "replay a run with one thing changed, and say whether the difference is clear",
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Three runs fail overnight

    You come in, and three runs are dead. Each ended with fewer right answers than it began with. Nobody changed the code.
    What broke them? There are three usual suspects, and a curve that falls does not say which.

    - *Old data.* The generator was many versions behind (notebook 09).
    - *Wrong records.* The engine that samples and the one that trains compute slightly different probabilities *with the same weights*.
      Then the recorded log μ is not what it should be. In large mixture-of-experts models some tokens differ a lot (Ling Team 2025).
    - *Too high a rate.* The steps are so long that the policy falls apart, however fresh its data are.

    Each needs its own cure, and the cure for one does not help with another. You have an hour of machine time. What do you measure?
    """)
    return


@app.cell(hide_code=True)
def settings():
    config = SimpleNamespace(
        policy="embedded", device="cpu", seed=30, shots=0, threads=1, max_tokens=96,
        steps=lesson.size(21, brief=6), eval_every=3,
        curve_tasks=40, eval_tasks=lesson.size(200, brief=40), rate=3e-4, high_rate=8e-4,
        old=20, wrong_share=0.1, wrong_spread=5.0,
        run=None,  # the folder of a run to replay; None: that of notebook 08
    )  # fmt: skip
    short_run = SimpleNamespace(  # the page's own run, if there is none
        policy="embedded", device="cpu", seed=0, shots=0, threads=1, max_tokens=96,
        prompts=6, samples=6, steps=6, max_lag=1, learning_rate=4e-4, eval_tasks=20,
    )  # fmt: skip
    replayed_tasks = lesson.size(
        100, brief=20
    )  # held-out tasks of each evaluation of a replay
    return config, replayed_tasks, short_run


@app.cell(hide_code=True)
def _(config):
    torch.set_num_threads(config.threads)
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
def _(before, conditions, config, failing_curve, start_runs):
    lesson.wait_for(start_runs)
    failing_curve.clear()
    faults = partial(
        nb09.other_engine, share=config.wrong_share, spread=config.wrong_spread
    )
    # What broke them stands here. Do not look yet.
    runs = {
        "run A": SimpleNamespace(
            loss="reinforce", lag=8, rate=config.high_rate, faults=None
        ),
        "run B": SimpleNamespace(loss="grpo", lag=0, rate=config.rate, faults=faults),
        "run C": SimpleNamespace(
            loss="reinforce", lag=config.old, rate=config.rate, faults=None
        ),
    }
    first_batches = {}
    ended = {}
    with lesson.counting(len(runs) * config.steps, "steps") as _one_more:
        for _name, _run in runs.items():

            def _watch(step, policy, batches, name=_name):
                _one_more(number=int(step > 0))
                if batches:
                    first_batches.setdefault(name, batches)

            ended[_name] = nb11.train(
                _run, _name, failing_curve, conditions, config, _watch
            )
    # In the editor the live curve shows them.
    _drawn = lines.runs_chart(nb09.points(failing_curve), before)
    lesson.figure(_drawn, "Right of the held-out tasks.") if lesson.unattended() else None
    return ended, faults, first_batches, runs


@app.cell(hide_code=True)
def _():
    ask_record = lesson.predict(
        "One run has wrong records, one trains on old data, and one has too high a rate. Look at the curves. In which run are the records wrong?",
        "run A",
        "run B",
        "run C",
        "the curves do not say",
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
    _worst = max(far, key=far.get)
    lesson.reveal(
        ask_record,
        right=3,
        why=f"""
    The curves do not say. The measurement does: by {_whose}, it is {_worst}, where {far[_worst]:.1%} of the tokens are far off with the same weights. In the others hardly a token is.
    (We planted it: {config.wrong_share:.0%} of the recorded log-probs got noise.)
    More than 1% is a reason to worry.
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
        "Run A and run C have right records. One trains on old data, the other has too high a rate. Train both again at lag 0. What do you expect?",
        "both learn",
        "one learns, and the other fails again",
        "both fail again",
    )
    _text = mo.md("""
    ## Second measurement: the control

    A **control** is the same run with one suspect locked up: the same loss, rate and seed, but fresh data, at lag 0. If it learns, age was to blame. If it fails too, age is innocent.
    A control costs what the run cost until it fell. That is why the first measurement comes first: it costs one batch.
    """)
    mo.vstack([_text, ask_control, start_controls])
    return ask_control, start_controls


@app.cell(hide_code=True)
def _(conditions, config, runs, start_controls):
    lesson.wait_for(start_controls)
    control_curve = LiveCurve(config.steps)
    controls = {}
    with lesson.counting(2 * config.steps, "steps") as _one_more:

        def _watch(step, policy, batches):
            _one_more(number=int(step > 0))

        for _name in ("run A", "run C"):
            _fresh = SimpleNamespace(**vars(runs[_name]) | {"lag": 0})
            _line = f"{_name}, fresh data"
            controls[_line] = nb11.train(
                _fresh, _line, control_curve, conditions, config, _watch
            )
    return control_curve, controls


@app.cell(hide_code=True)
def _(ask_control, before, config, control_curve, controls, ended, failing_curve):
    lesson.needs(lambda: (controls, ended))
    _n = config.eval_tasks
    _fails = [end < max(controls.values()) / 2 for end in controls.values()]
    _told = "; ".join(
        f"the control of {name.partition(',')[0]} ends at {nb09.uncertain(end, _n)}"
        for name, end in controls.items()
    )
    lesson.reveal(
        ask_control,
        right=sum(_fails),
        why=f"""
    {_told[:1].upper() + _told[1:]}. {"So in run A the rate is too high: it fails on fresh data, too. And run C fails on old data only." if _fails == [True, False] else "On this machine the two do not part as they should: another seed would."}

    Solid: the runs. Dashed: their controls. Run B needs none: it had lag 0 from the start.
    """,
        shows=[
            lesson.figure(
                lines.runs_chart(
                    nb09.points(failing_curve, control_curve), before, height=420
                ),
                f"A point has {config.curve_tasks} held-out tasks, the last one {_n}.",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 2: your diagnosis, as a rule

    Write down what you did. `accuracies` are the held-out accuracies of a run, in order, and `control` those of its control. `far` is the share from exercise 1.
    A run has *failed* if it ends below half of `best`, the best accuracy that it or its control ever had.

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
    Here is the rule as a drawing. Does it help? We ask {_whose} about the {len(study.rows)} runs of a recorded study, whose engines agree.
    For each we look up how the run *with* the advised change ended, on the same seed. Advice is one step: after lowering the rate you may still have to clip.
    """)
    _caption = f"Recorded {study.dates} with `python {study.command}`"
    mo.vstack(
        [
            _asked,
            lesson.figure(
                drawing_of("decision.svg"), "Far off: a ratio outside 0.8 … 1.2."
            ),
            lesson.table(_caption, nb11.worth(study, _rule)),
        ]
    )
    return (study,)


@app.cell(hide_code=True)
def _(before, study):
    _text = mo.md("""
    And here is the whole study as a map: rate, lag and loss, three seeds in each field. Look at lag 0 first, the control. At the highest rate the plain loss fails there, too.
    So in that row the lag is not to blame, and clipping helps in part: what *moves* too far is stopped, whatever the cause.
    """)
    _diagram = PhaseDiagram(
        study,
        nb09.NAMES,
        before,
        study.whole_seeds,
        chosen={"loss": "reinforce", "lag": 0, "learning_rate": 8e-4},
    )
    mo.vstack([_text, _diagram])
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A cure for wrong records

    Run B had the clipped loss, the cure for old data, and fell. Why? Where a record is e⁵ times too small, the ratio is 148, and clipping does not stop a *bad* token above 1.2: it pushes 148 times as hard.
    What is not true should not be corrected, but left out.

    *IcePop* does that, and has two published forms.

    - Ring-1T (Ling Team 2025, arXiv 2510.18855) asks *with the same weights*. k = π₀/μ, where π₀ has the weights that sampled. A token with k outside its bounds counts nothing; inside, k is its weight.
      Age is the business of PPO's clip, around π₀: the objective is k · min(π/π₀ · A, clip(π/π₀) · A).
    - INTELLECT-3 (arXiv 2512.16144, eq. 1) has one ratio, π/μ, for both: it counts inside 0.5 … 5, without a clip. That is `--loss icepop` of this package, the *masked* of notebook 09.

    So what notebook 09 found of the second form on old data says nothing about the first. Nor is either the last word: Ring's own authors report that IcePop masks *fewer* tokens while the gap between the engines grows (KPop, May 2026).

    ### Exercise 3: IcePop, as in Ring-1T

    Write it, with bounds 0.5 and 5 for k and PPO's 0.8 and 1.2. k is a fact about the record: no gradient flows through it. At lag 0, `start_logp` is log π₀.
    """)
    return


@app.function
def icepop(logp, start_logp, behaviour_logp, advantage, mask, tokens):
    """Return the loss of a batch, a tensor with one number: minus the sum of the objectives, over `tokens`.

    One token with π/π₀ = 0.5 and A = −2: with k = π₀/μ = 3 the loss is 3 · 1.6 = 4.8, with k = 6 it is 0.
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: icepop,
        Solutions,
        level="stretch",
        minutes=7,
        lines=6,
        hints=(
            "Which two log-probs make k, and which two the ratio that is clipped? What happens to a token with k = 6, and what to one with k = 3?",
            "`k = (start_logp - behaviour_logp).exp()`, then `k = k * (k >= 0.5) * (k <= 5.0)`. The rest is the clipped loss of notebook 09, with the ratio π/π₀ and the factor k.",
        ),
    )
    return


@app.cell(hide_code=True)
def _(conditions, config):
    icepop_loss, whose_icepop = exercise.running(lambda: icepop, Solutions)
    start_cure = lesson.start_button("Train run B twice more", seconds=25)
    kept_cure = lesson.Kept(
        __file__,
        "notebook_11_cure",
        config=repr((config, conditions)),
        icepop=exercise.solution_source("icepop", icepop_loss),
    )
    mo.vstack(
        [
            lesson.md(
                f"Run B once more, with the same wrong records: with {whose_icepop}, and with the one-ratio form."
            ),
            start_cure,
        ]
    )
    return icepop_loss, kept_cure, start_cure


@app.cell(hide_code=True)
def _(conditions, config, faults, icepop_loss, kept_cure, start_cure):
    lesson.wait_for(start_cure, unless=kept_cure)
    lesson.needs(lambda: faults)

    def _train():
        curve = LiveCurve(config.steps)
        losses = {
            "masked, k and clip": icepop_loss,
            "masked with one ratio": nb09.packaged("icepop"),
        }
        with lesson.counting(2 * config.steps, "steps") as _one_more:

            def count(step, policy, batches):
                _one_more(number=int(step > 0))

            for name, loss in losses.items():
                nb09.curve_of(
                    name, loss, 0, curve, conditions, config, also=count, disturb=faults
                )
        return nb09.points(curve)

    cured = kept_cure.get(_train)
    return (cured,)


@app.cell(hide_code=True)
def _(before, config, cured, ended, failing_curve):
    lesson.needs(lambda: (cured, ended))
    _n = config.eval_tasks
    _new, _one = (line[-1][1] for line in cured.values())
    _drawn = {"clipped, wrong records": nb09.points(failing_curve)["run B"]} | cured
    _apart = nb09.compared(_new, _one, _n)
    mo.vstack(
        [
            lesson.md(f"""
    Clipped, run B ended at {nb09.uncertain(ended["run B"], _n)}. With k and clip it ends at {nb09.uncertain(_new, _n)}, and with one ratio at {nb09.uncertain(_one, _n)}.
    {"On fresh data the two forms show no clear difference." if not _apart else "Between the two forms the difference is clear in this run; it is one seed."} They differ where data are old *and* records wrong.
    """),
            lesson.figure(
                lines.runs_chart(_drawn, before, height=360),
                f"Wrong records, lag 0. A point has {config.curve_tasks} tasks, the last one {_n}.",
            ),
        ]
    )
    return


@app.cell(hide_code=True)
def _(config):
    own = config.run or (None if lesson.unattended() else nb11.folder_of(__file__))
    _label = f"Replay {Path(own).name}" if own else "Make a run, and replay it"
    start_replay = lesson.start_button(_label, seconds=30)
    _text = lesson.md("""
    ## The same run again, with one thing changed

    A diagnosis is a guess until you have changed *one* thing and seen the difference. With an asynchronous run that is hard: who pulled which weights when is never the same twice.
    So the package keeps a **journal**: which weights sampled which group, which processes died, and which episodes each step was trained on. From it, one process executes the run again, without Monarch.

    If you ran notebook 08, this is *your* run, in which a generator was killed. Otherwise the page makes a short run of its own, and kills one in it, too.
    In a terminal: `zorplex-rl train --out runs/mine`, then `zorplex-rl replay runs/mine --learning-rate 1.2e-3`.
    """)
    mo.vstack([_text, start_replay])
    return own, start_replay


@app.cell(hide_code=True)
async def _(own, short_run, start_replay):
    lesson.wait_for(start_replay)
    with lesson.counting(None, "the run, and its replay"):
        recording = read_recording(Path(own or await nb11.make_run(short_run)))
        card = nb11.card_of(recording)
        unchanged = replay(recording, lambda step, policy: card.play(policy, step))
        card.seal()
    return card, recording, unchanged


@app.cell(hide_code=True)
def _(card, recording, unchanged):
    lesson.needs(lambda: unchanged)
    _text = lesson.md(f"""
    {unchanged.same["episodes"]} of {unchanged.compared["episodes"]} episodes came out the same, token for token and
    log-prob for log-prob, in {unchanged.same["steps"]} of {unchanged.compared["steps"]} steps. {len(recording.events("restart"))} process died in the run, and the replay has that, too.
    {"So whatever you change now is the only difference." if unchanged.is_equal else f"The first difference: {unchanged.first_difference}; {unchanged.why}."}
    The card's first question is that of notebook 05.
    """)
    mo.vstack([_text, card])
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    Now change one setting in the cell below. Try `{"loss": "reinforce"}`, `{"max_lag": 8}`, `{"temperature": 0.7}`, or `{}` with `without_fault = True`.
    The run is executed as it was and changed, on the same random draws, with three seeds.
    """)
    return


@app.cell
def _():
    change = {"learning_rate": 1.2e-3}
    without_fault = False
    return change, without_fault


@app.cell(hide_code=True)
def _(change, replayed_tasks):
    _what = ", ".join(f"`{name}` {value}" for name, value in change.items()) or "no fault"
    ask_change = lesson.predict(
        f"The run with {_what}: how does it end, on {replayed_tasks} held-out tasks, against the run as it was?",
        "clearly lower",
        "no clear difference",
        "clearly higher",
    )
    start_change = lesson.start_button("Execute both runs, three seeds", seconds=40)
    mo.vstack([ask_change, start_change])
    return ask_change, start_change


@app.cell(hide_code=True)
def _(change, recording, replayed_tasks, start_change, without_fault):
    lesson.wait_for(start_change)
    recording.config = recording.config.changed(eval_tasks=replayed_tasks)
    with lesson.counting(2 * 3 * len(recording.batches), "steps") as _one_more:
        compared = what_if(
            recording,
            recording.config.changed(**change),
            without_fault,
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
    At the end {_told.words}. *Clear* means that the interval does not contain 0. It is over three seeds, by Student's t: three are few, so it is wide. More seeds make it narrow (`--seeds 10`).

    {"Does that contradict the rule? No: this run had not failed, and in its few steps a higher rate is simply faster. Run A shows what it does in more of them." if _told.way == 2 and "learning_rate" in change else ""}

    In the middle panel: how many of the changed run's episodes are still those of the run, token for token. From the dotted line on their weights differ, so they write something else, and luck no longer cancels.
    """,
        shows=[
            lesson.figure(
                _told.drawn,
                "Thin: a seed. Thick: their mean. Dotted: the first step after which the weights differ.",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    _points = (
        "Old data, wrong records and too high a rate look alike in a curve.",
        "First measure the ratio with equal weights: it costs one batch. Then train the control at lag 0: it costs a run.",
        "Clip for old data, mask for wrong records, lower the rate if fresh data fail, too.",
        "IcePop has two forms. What is found about one is not found about the other.",
        "If a run can be replayed bit for bit, you can change one thing in it. One seed is not enough to judge the change.",
    )
    mo.vstack([lesson.predicted(3), lesson.recap(*_points)])
    return


@app.cell(hide_code=True)
def _(controls, cured, ended, far):
    lesson.needs(lambda: (controls, cured, ended, far))
    _end = cured["masked, k and clip"][-1][1]
    lesson.headline(
        f"three runs fell to {', '.join(f'{end:.0%}' for end in ended.values())}. On equal weights {far['run B']:.0%} of one run's tokens were far off, and a mask took it to {_end:.0%}. At lag 0 the others ended at {' and '.join(f'{end:.0%}' for end in controls.values())}."
    )
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

    def check_icepop(icepop):
        right = Solutions.icepop
        one_ratio = nb09.packaged("icepop")
        nb09.check_loss(
            icepop,
            right,
            {
                "a token with k outside its bounds is cut to the bound, and should count nothing": nb09.variant(
                    right,
                    (0, 1, 1),
                    lambda logp, start, behaviour: (
                        (start - behaviour).exp().clamp(0.5, 5.0)
                    ),
                ),
                "inside its bounds k is a weight, and it is missing": nb09.variant(
                    right, weight=lambda logp, start, behaviour: (behaviour - start).exp()
                ),
                "that is the form with one ratio: it masks π/μ, and has no clip": one_ratio,
                "the clip is missing": nb09.variant(
                    nb09.packaged("reinforce"),
                    weight=lambda logp, start, behaviour: (
                        (logp - behaviour).detach().exp()
                        * (((start - behaviour).exp() - 2.75).abs() <= 2.25)
                    ),
                ),
                "k is not bounded": nb09.variant(
                    right,
                    (0, 1, 1),
                    lambda logp, start, behaviour: (start - behaviour).exp(),
                ),
            },
        )

    def icepop(logp, start_logp, behaviour_logp, advantage, mask, tokens):
        k = (start_logp - behaviour_logp).exp()
        k = k * (k >= 0.5) * (k <= 5.0)
        ratio = (logp - start_logp).exp()
        free = ratio * advantage[:, None]
        bounded = ratio.clamp(0.8, 1.2) * advantage[:, None]
        return -(k * torch.minimum(free, bounded) * mask).sum() / tokens


if __name__ == "__main__":
    app.run()
