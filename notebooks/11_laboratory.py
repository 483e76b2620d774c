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
    app_title="The laboratory: change one thing in a run, and find what ails it",
    css_file="../zorplex_rl/course/lesson/lesson.css",
)

with app.setup(hide_code=True):
    import math
    import random
    from collections import Counter
    from pathlib import Path
    from types import SimpleNamespace

    import marimo as mo
    import torch

    from zorplex_rl.config import LearnerConfig
    from zorplex_rl.course import nb09, nb11
    from zorplex_rl.course import staleness as lab
    from zorplex_rl.course.alarm import BEARABLE, RATE, SMALLEST_SAMPLE_SIZE, Alarm
    from zorplex_rl.course.figures import drawing_of, lines
    from zorplex_rl.course.lesson import exercise, lesson
    from zorplex_rl.course.microscope import factors
    from zorplex_rl.course.recorded_study import read_study
    from zorplex_rl.course.stacks import AXES, STACKS
    from zorplex_rl.course.widgets import LiveCurve
    from zorplex_rl.policy.load import load_policy
    from zorplex_rl.policy.requests import RolloutRequest, Sampling
    from zorplex_rl.policy.rollout import rollout
    from zorplex_rl.simulation.what_if import read_recording, replay, what_if
    from zorplex_rl.task.environment import Zorplex, kinds_of


@app.cell(hide_code=True)
def _():
    lesson.header(
        __file__,
        minutes=45,
        hardware="two CPU cores, no network",
        goals=[
            "replay a run with one thing changed, and say whether the difference is clear",
            "go from a symptom through a measurement to a correction, by your own rule",
            "judge an alarm by its misses and its false alarms",
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    _asked = lesson.md("""
    ## From a symptom to a correction

    A run went wrong. Was it old data, too high a learning rate, or an engine that computes slightly
    different numbers? Each needs its own cure. This tree leads from the symptom to the cure. The page
    builds on notebooks 08 and 09.
    """)
    _said = "The control is the same run on fresh data. Far off: outside 0.8 … 1.2."
    mo.vstack([_asked, lesson.figure(drawing_of("decision.svg"), _said)])
    return


@app.cell
def settings():
    config = SimpleNamespace(
        policy="embedded", device="cpu", seed=0, shots=0, threads=1, max_tokens=96,
        run=None,  # the folder of a run to replay; None: that of notebook 08
        # The page's own run, if there is none.
        prompts=6, samples=6, steps=6, max_lag=1, learning_rate=4e-4, eval_tasks=20,
        # The runs that fall: the study's live setting, and the first of its five seeds.
        study=lab.Conditions(steps=21, schedule_steps=60, learning_rate=3e-4, held_out_tasks=40),
        fallen_seed=30, old=20, wrong_share=0.1, wrong_spread=5.0,
    )  # fmt: skip
    return (config,)


@app.cell
def _(config):
    torch.set_num_threads(config.threads)
    environment = Zorplex(config.seed)
    then = load_policy(config.policy)  # version 0 of every run here
    before = lab.held_out_accuracy(then, Zorplex(config.fallen_seed), config.study)
    lesson.ran_on(then)
    return before, environment, then


@app.cell(hide_code=True)
def _(config):
    own = config.run or (None if lesson.unattended() else nb11.folder_of(__file__))
    _label = f"Replay {Path(own).name}" if own else "Make a run, and replay it"
    start_run = lesson.start_button(_label, seconds=30)
    _told = lesson.md("""
    ## The same run again

    The package keeps a **journal** of every run: which weights sampled which group, which processes
    died, and which episodes each step was trained on. From it, one process can execute the run again,
    without Monarch. If you ran notebook 08, this is *your* run, the one with the killed generator. Otherwise
    the page makes a short run of its own. Any other will do: name its folder as `run` in the settings
    above. Replaying a run of SmolLM2 takes about as long as the run did:
    `zorplex-rl train --preset smollm2 --steps 3 --out runs/mine`.
    """)
    mo.vstack([_told, start_run])
    return own, start_run


@app.cell
async def _(config, own, start_run):
    lesson.wait_for(start_run)
    recording = read_recording(Path(own or await nb11.make_run(config)))
    card = nb11.card_of(recording)
    unchanged = replay(recording, lambda step, policy: card.play(policy, step))
    card.seal()
    return card, recording, unchanged


@app.cell(hide_code=True)
def _(card, recording, unchanged):
    _told = lesson.md(f"""
    {unchanged.same["episodes"]} of {unchanged.compared["episodes"]} episodes came out the same, token for token and
    log-prob for log-prob, in {unchanged.same["steps"]} of {unchanged.compared["steps"]} steps.
    {"So whatever you change now is the only difference." if unchanged.is_equal else f"The first difference: {unchanged.first_difference}; {unchanged.why}."}
    Processes that died in it: {len(recording.events("restart"))}. The card's first question is that of notebook 05.
    """)
    mo.vstack([_told, card])
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## One thing changed

    Change one setting, in the cell below: `change = …`. Then the run is executed as it was and changed, on the same random draws, with
    three seeds. Also try `{"temperature": 0.7}`, `{"max_lag": 8}`, or `{}` with `without_fault = True`.
    On the command line, for any run: `zorplex-rl replay RUN --learning-rate 1.2e-3`.
    """)
    return


@app.cell
def _():
    change = {"learning_rate": 1.2e-3}
    without_fault = False
    return change, without_fault


@app.cell(hide_code=True)
def _(change):
    ask_change = lesson.predict(
        f"The run with {', '.join(f'`{k}` {v}' for k, v in change.items()) or 'no fault'}: how does its mean accuracy over all evaluations compare with that of the run as it was?",
        "clearly lower",
        "no clear difference",
        "clearly higher",
    )
    start_change = lesson.start_button("Execute both runs, three seeds", seconds=22)
    mo.vstack([ask_change, start_change])
    return ask_change, start_change


@app.cell
def _(change, config, recording, start_change, without_fault):
    lesson.wait_for(start_change)
    changed = recording.config.changed(**change)
    compared = what_if(
        recording, changed, without_fault, seeds=3, evaluate_every=config.steps // 2
    )
    return (compared,)


@app.cell(hide_code=True)
def _(ask_change, compared):
    _told = nb11.said(compared)
    _was, _now = compared.predicted
    lesson.reveal(
        ask_change,
        right=_told.way,
        why=f"""
    {_told.words[:1].upper() + _told.words[1:]}, in three seeds. *Clear* means that the interval does not contain 0. Both runs
    of a pair have the same random draws, so most of the luck cancels. But three seeds are few.

    When do the two runs begin to differ? In the first seed {_told.why}. {f"The simulator predicts {_was:.1f} s for the run as it was, and {_now:.1f} s for the changed one." if _was and _now else ""}
    """,
        shows=[
            lesson.figure(_told.drawn, "Thin: a seed. Thick: their mean. Dots: they part.")
        ],
    )
    return


@app.cell
def _(environment, then):
    _tasks = environment.tasks(kinds_of("compositional"), 32, "held_out")
    _requests = [RolloutRequest(task, seed) for seed, task in enumerate(_tasks)]
    _episodes = rollout(then, _requests, environment.execute, Sampling())
    exact = factors(_episodes, then).numerics.tolist()  # log π_v − log μ of each token
    return (exact,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 1: the tree

    Two things move the ratio π/μ of a token away from 1. *Numerics*: the sampler and the trainer
    compute slightly different numbers. *Staleness*: the weights have changed since. Let π_v be what
    the trainer computes with the weights that sampled. Then π/μ = (π_v/μ) · (π/π_v): numerics times staleness.

    Write the drawing at the top of the page as a function. It gets the held-out `accuracies` of a run, in order,
    and those of its `control`, the same run on fresh data with right records. `numerics` are
    log π_v − log μ of some tokens; many are *far off* if more than 1 % of the ratios are outside 0.8 … 1.2. `best` is the best accuracy that this run or its control reached.
    A run has failed if its final accuracy is less than half of that. Return `"leave it"`, `"mask"`,
    `"lower the rate"` or `"clip"`.
    """)
    return


@app.function
def advise(accuracies, control, numerics):
    """Name what to change.

    advise([0.4, 0.9, 0.1], [0.4, 0.9, 0.9], [0.0, 0.1]) is "clip".
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: advise, check_advise, advise_solution, level="stretch", minutes=8, lines=8,
        hints=(
            "Which question do you ask of both runs? And is 0.8 a bound of the ratio, or of its logarithm?",
            "`best = max([*accuracies, *control])`. The share of `numerics` whose `math.exp` is outside 0.8 … 1.2, compared with 0.01. Then the questions from top to bottom, each with a `return`.",
        ),
    )  # fmt: skip
    return


@app.cell
def _(exact):
    recorded = mo.notebook_dir().parent / "benchmarks"
    study = read_study(recorded / "staleness.jsonl")
    rule, whose_rule = exercise.running(lambda: advise, check_advise, advise_solution)
    # The study's engines compute in float32, as those of this page do.
    advice = nb11.worth(study, rule, exact)
    return advice, recorded, rule, study, whose_rule


@app.cell(hide_code=True)
def _(advice, before, study, whose_rule):
    _fresh = [r.accuracy for r in study.rows if r.key[:3] == ("reinforce", 0, 8e-4)]
    _asked = lesson.md(f"""
    We asked {whose_rule} about all {len(study.rows)} runs of notebook 09's study. For each we looked up
    how the run with the advised change ended, on the same seed. Each piece of advice is only the next
    step: after lowering the rate you may still have to clip. Why *lower the rate*? At 8e-4, the plain loss on
    *fresh* data ends below the {before:.0%} before training (on 40 tasks) in {sum(found < before for found in _fresh)} of {len(_fresh)} seeds.
    There the lag is not to blame.
    """)
    _caption = f"Recorded {study.dates} with `python {study.command}`"
    mo.vstack([_asked, lesson.table(_caption, advice)])
    return


@app.cell(hide_code=True)
def _(config):
    start_fall = lesson.start_button("Train three runs", seconds=25)
    fall_curve = LiveCurve(config.study.steps, title="Right of 40 held-out tasks")
    _told = lesson.md("""
    ## Two leaves of the tree, live

    *Clip*: the plain loss on data that are up to 20 versions old. *Mask*: fresh data, but the engine records
    a tenth of the log-probs wrongly, a fault that we plant. Both have the same control, which is
    recorded: the plain loss on fresh data, with the same seed.
    """)
    ask_leaves = lesson.predict(
        "A tenth of the recorded log-probs are wrong, and the data are fresh. Clipping is the cure for old data. Does it cure this, too?",
        "yes: it ends as high as the control, or nearly",
        "in part: it ends clearly lower",
        "no: it ends below where it began",
    )
    _live = [] if lesson.unattended() else [fall_curve]
    mo.vstack([_told, ask_leaves, start_fall, *_live])
    return ask_leaves, fall_curve, start_fall


@app.function
def wrong_records(share, spread, noise):
    """Return what spoils the records of a `share` of the sampled tokens, and notes by how much."""
    draw = random.Random(0)

    def spoil(episodes):
        for episode in episodes:
            for place, sampled in enumerate(episode.sampled):
                if sampled:
                    hit = draw.random() < share
                    noise.append(hit * spread * draw.gauss(0, 1))  # log π_v − log μ
                    episode.logprobs[place] -= noise[-1]

    return spoil


@app.cell
def _(config, fall_curve, start_fall):
    lesson.wait_for(start_fall)
    fall_curve.clear()
    rang, noise, world = {}, [], Zorplex(config.fallen_seed)
    planted = wrong_records(config.wrong_share, config.wrong_spread, noise)
    runs = (
        ("plain, old data", "reinforce", config.old),
        ("clipped, wrong records", "grpo", 0, planted),
        ("masked, wrong records", "icepop", 0, planted),
    )
    for _name, _loss, _lag, *_spoil in runs:
        _alarm = Alarm(
            LearnerConfig(loss=_loss, learning_rate=config.study.learning_rate), _lag
        )

        def _watch(learner, metrics, name=_name, alarm=_alarm):
            if alarm.note(metrics):
                rang.setdefault(name, learner.version)
            if learner.version % 6 == 3 and learner.version < config.study.steps:
                share = lab.held_out_accuracy(learner.policy, world, config.study)
                fall_curve.add(name, learner.version, share)

        _trial = lab.Trial(_loss, _lag, config.fallen_seed)
        _end = lab.train_with_lag(_trial, config.study, _watch, *_spoil)
        fall_curve.add(_name, config.study.steps, _end.accuracy)
    drawn = nb09.points(fall_curve)
    return drawn, noise, rang


@app.cell
def _(control, drawn, exact, noise, rule):
    lesson.needs(lambda: drawn)
    old, wrong, masked = ([y for _, y in run] for run in drawn.values())
    advised = rule(old, control, exact), rule(wrong, control, noise)
    ends = [run[-1] for run in (old, wrong, masked, control)]
    return advised, ends


@app.cell
def _(config, recorded):
    _confirmed = read_study(recorded / "confirmed_20.jsonl")  # with five seeds
    _thin = {
        "plain, old data": ("reinforce", config.old, 3e-4),
        "plain, fresh data": ("reinforce", 0, 3e-4),
        "clipped, old data": ("grpo", config.old, 3e-4),
    }
    five_runs = nb09.recorded(_confirmed, _thin)
    five = {(cell.loss, cell.lag): cell.accuracy for cell in _confirmed.cells()}
    _same = ("reinforce", 0, 3e-4, config.fallen_seed)
    (control,) = (row.accuracies for row in _confirmed.rows if row.key == _same)
    return control, five, five_runs


@app.cell(hide_code=True)
def _(advised, ask_leaves, before, config, drawn, ends, five, five_runs, whose_rule):
    lesson.reveal(
        ask_leaves,
        right=2 if ends[1] < before else 0 if ends[1] > ends[3] - 0.1 else 1,
        why=f"""
    With wrong records, clipped ends at {ends[1]:.0%} and masked at {ends[2]:.0%}; the control ends at {ends[3]:.0%}.
    {whose_rule[:1].upper() + whose_rule[1:]} says *{advised[1]}*. On old data the plain loss ends at {ends[0]:.0%}, and the rule says
    *{advised[0]}*. Does that help? In the mean of five recorded seeds, old data end at {five["reinforce", 20]:.0%} with plain, at
    {five["grpo", 20]:.0%} with clipped, and at {five["dppo", 20]:.0%} with `dppo` (below).
    """,
        shows=[
            lesson.figure(
                lines.runs_chart(drawn, before, five_runs, height=420),
                f"Thick: this page, seed {config.fallen_seed}. Thin: five recorded seeds of plain and clipped. 40 held-out tasks a point.",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _(rang):
    ask_alarm = lesson.predict(
        "We tuned the thresholds on some recorded runs. On the *other* runs: how many collapses does the alarm announce at least ten steps early?",
        "nearly all",
        "about two thirds",
        "a third, or fewer",
    )
    _told = lesson.md(f"""
    ## An alarm

    Can you know in advance that a run will collapse? Our **alarm** has two parts:

    - A *forecast*, from the settings alone. In our recorded runs, harm grew roughly like lag × rate³. So we convert each run to the
      lag that would be equally harmful at a rate of {RATE:g}. The plain loss survives up to {BEARABLE["reinforce"]} such versions,
      masking up to {BEARABLE["icepop"]}. Importance weights survive up to {BEARABLE["tis"]}, and losses that also limit the size of a step
      up to {BEARABLE["m2po"]}. Clipping survived all of them.
    - A *diagnostic*: the smoothed effective sample size of the episodes is below {SMALLEST_SAMPLE_SIZE:.2g}.

    In the three runs above it rang {"; ".join(f"in *{name}* at step {step}" for name, step in rang.items()) or "in none"}. Wrong records
    lower the sample size whether a mask cures them or not. So the alarm does not tell which fault it is.
    """)
    mo.vstack([_told, ask_alarm])
    return (ask_alarm,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 2: the forecast

    Write `forecast`: convert a `lag` at a learning `rate` to the lag that is equally harmful at the
    rate `usual`, if harm grows like lag × rate³.
    """)
    return


@app.function
def forecast(lag, rate, usual):
    """Return a lag; forecast(16, 2e-4, 4e-4) is 2.0: half the rate does an eighth of the harm."""
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: forecast, check_forecast, forecast_solution, level="warm-up", minutes=2, lines=1,
        hints=(
            "Which two products must be equal?",
            "`found * usual**3 == lag * rate**3`. Solve for `found`.",
        ),
    )  # fmt: skip
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 3: judge the alarm

    An alarm that always rings misses nothing. So count both: the collapses that it announced in time,
    and the healthy runs in which it rang for nothing. Write `judge`. Each run is a pair: the step at which the
    alarm first rang, and the step at which the run collapsed, `None` if it never did. A collapse is
    *foretold* if the alarm rang at least `ahead` steps before.
    """)
    return


@app.function
def judge(runs, ahead):
    """Return four counts: foretold, all that collapsed, rung in vain, all that did not collapse.

    judge([(2, 30), (25, 30), (None, 9), (4, None), (None, None)], 10) is (1, 3, 1, 2).
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: judge, check_judge, judge_solution, level="core", minutes=5, lines=5,
        hints=(
            "Into which two lists do you divide the runs first? Step 0 is a step: do you ask `is not None`?",
            "`fell = [(rang, at) for rang, at in runs if at is not None]`, and the others. Of `fell` count those with `rang is not None and at - rang >= ahead`.",
        ),
    )  # fmt: skip
    return


@app.cell
def alarms(recorded):
    later, seen = read_study(recorded / "foretold.jsonl"), []
    for _row in later.rows:
        if _row.seed < 10:
            continue  # These helped to choose the thresholds: they would flatter the alarm.
        _config = LearnerConfig(loss=_row.loss, learning_rate=_row.learning_rate)
        _alarm = Alarm(_config, _row.lag)
        _rang = [n for n, row in enumerate(_row.diagnostics, 1) if _alarm.note(row)]
        if _row.collapsed_at or _row.is_healthy:  # what only dipped is left out
            seen.append((next(iter(_rang), None), _row.collapsed_at))
    return later, seen


@app.cell
def _(later, recorded, seen):
    stale = [*read_study(recorded / "laboratory.jsonl").rows, *later.rows]
    stale = [row for row in stale if row.lag]
    count, whose_count = exercise.running(lambda: judge, check_judge, judge_solution)
    told = [int(number) for number in count(seen, 10)]
    return stale, told, whose_count


@app.cell(hide_code=True)
def _(ask_alarm, stale, told, whose_count):
    lesson.needs(lambda: ask_alarm)
    _foretold, _fell, _vain, _well = told
    _share = _foretold / _fell
    lesson.reveal(
        ask_alarm,
        right=0 if _share > 0.85 else 1 if _share > 0.5 else 2,
        why=f"""
    {_foretold} of {_fell} collapses, and {_vain} false alarms in {_well} healthy runs, counted by {whose_count}.
    It nearly always rings at step 2, when nothing is lost yet. Until a run begins to collapse, its
    diagnostics look like those of a healthy run (`benchmarks/LOG.md`). Only its *settings* differ, and the forecast
    uses them. Where a column below has several colours, the seed decides. These thresholds fit this
    task. On yours, a silent alarm promises little.
    """,
        shows=[
            lesson.figure(
                nb11.foretold(stale),
                f"All {len(stale)} recorded runs on easy tasks with stale data",
            )
        ],
    )
    return


@app.cell
def _(recorded):
    at_4e_4 = read_study(recorded / "laboratory.jsonl")
    kinds = Counter(stack.cells[list(AXES).index("correction")].kind for stack in STACKS)
    by_loss = nb11.by_lag(at_4e_4, 4e-4, (0, 8, 32))
    collapsed = {row["loss"]: row["collapsed"] for row in by_loss}
    return at_4e_4, by_loss, collapsed, kinds


@app.cell(hide_code=True)
def _(at_4e_4, by_loss, collapsed, kinds):
    _chosen = lesson.md(f"""
    ### What sixteen systems chose

    The sources of sixteen open stacks, read on 2026-11-25, say what their losses do by default:
    {kinds["clips"]} clip, {kinds["truncates"]} truncate weights, {kinds["masks"]} masks tokens, and
    {kinds["a choice"]} leaves it to you. Nearly all offer the others as options. Column *correction* of
    [Sixteen stacks](stacks.html) lists them with sources. The table shows the same losses on our task,
    with two updates a batch, short episodes and equal engines. `zorplex-rl train --help` explains each.
    """)
    _caption = f"Accuracy after 60 steps at 4e-4; recorded {at_4e_4.dates} with `python {at_4e_4.command}`"
    _disputed = lesson.md(f"""
    The authors of DPPO say that CISPO collapses; those of ScaleRL chose it. Of its runs in the table {collapsed["`cispo`"]}
    collapsed, of DPPO's {collapsed["`dppo`"]}. By a rule that we wrote down before, CISPO collapses at
    lag 32, and lag 8 is undecided (`benchmarks/LOG.md`). A mask like IcePop's cures wrong records, but
    not old data here.
    """)
    mo.vstack([_chosen, lesson.table(_caption, by_loss), _disputed])
    return


@app.cell(hide_code=True)
def _():
    lesson.folded(
        "Five ideas that this page does not run",
        """
    *Numerics under the microscope.* How large is the first factor? In a recorded run (`benchmarks/LOG.md`,
    2026-11-27), the mean of (log ratio)² on equal weights was 1e-13 in float32, 1e-6 in float16 and 7e-5 in
    bfloat16. Data 8 versions old reach 0.1. `zorplex_rl/course/microscope.py` measures both factors.

    *A step lost in rounding.* A step changes a bfloat16 weight only if it is larger than about a 256th of
    the weight. At a low rate most weights stay as they are. So a version can travel as what has changed,
    and a trainer needs float32 *master weights*, or it would lose those steps.

    *Taught by another policy.* A reward says one number about an episode; a teacher's log-probs say one
    about every token. In on-policy distillation the student samples. Its loss is the sum of
    g · log π over its tokens, with the constant g = log π − log teacher
    ([Lu et al. 2025](https://thinkingmachines.ai/blog/on-policy-distillation/)).

    *Routing replay.* In a mixture of experts the sampler and the trainer may send a token to other
    experts. Rollout Routing Replay records the sampler's choice and makes the trainer use it, so that the
    numerics shrink at their cause ([Ma et al. 2025](https://arxiv.org/abs/2510.11370)).

    *LoRA.* Train two thin matrices beside each weight matrix, and leave that as it is. A version is then
    small to send. For RL its authors report that even rank 1 did as well as training all weights
    ([Schulman et al. 2025](https://thinkingmachines.ai/blog/lora/)).
    """,
    )
    return


@app.cell(hide_code=True)
def _(compared, told):
    lesson.needs(lambda: compared)
    _recap = lesson.recap(
        "If a run can be replayed bit for bit, you can change one thing in it. Pairs on the same draws need few seeds, but more than one.",
        "A ratio is numerics times staleness. Measure both before you correct either.",
        "Symptom, control, correction: clip for old data, mask for wrong records, lower the rate if fresh data fail, too.",
        "An alarm has misses and false alarms: ask for both counts, on runs that it was not tuned on.",
    )
    _headline = lesson.headline(
        f"with {compared.change}, accuracy over the run was {nb11.said(compared).words}; the alarm foretold {told[0]} of {told[1]} recorded collapses, with {told[2]} false alarms in {told[3]} healthy runs."
    )
    mo.vstack([lesson.predicted(3), _recap, _headline, lesson.links(__file__)])
    return


@app.function(hide_code=True)
def check_advise(advise):
    exercise.expect(advise, [0.4, 0.9, 0.1], [0.4, 0.9, 0.9], [0.0, 0.1], result="clip")
    exercise.agree(advise, advise_solution, nb11.draw_run, times=80)


@app.function(hide_code=True)
def advise_solution(accuracies, control, numerics):
    best = max([*accuracies, *control])
    far = sum(not 0.8 <= math.exp(log) <= 1.2 for log in numerics) / len(numerics)
    if accuracies[-1] >= best / 2:
        return "leave it"
    if far > 0.01:
        return "mask"
    return "lower the rate" if control[-1] < best / 2 else "clip"


@app.function(hide_code=True)
def check_forecast(forecast):
    exercise.expect(forecast, 16, 2e-4, 4e-4, result=2.0)
    exercise.agree(forecast, forecast_solution, nb11.draw_settings, times=40)


@app.function(hide_code=True)
def forecast_solution(lag, rate, usual):
    return lag * (rate / usual) ** 3


@app.function(hide_code=True)
def check_judge(judge):
    _runs = [(2, 30), (25, 30), (None, 9), (4, None), (None, None)]
    exercise.expect(judge, _runs, 10, result=(1, 3, 1, 2))
    exercise.agree(judge, judge_solution, nb11.draw_alarms, times=60)


@app.function(hide_code=True)
def judge_solution(runs, ahead):
    fell = [(rang, at) for rang, at in runs if at is not None]
    well = [rang for rang, at in runs if at is None]
    foretold = sum(rang is not None and at - rang >= ahead for rang, at in fell)
    return foretold, len(fell), sum(rang is not None for rang in well), len(well)


if __name__ == "__main__":
    app.run()
