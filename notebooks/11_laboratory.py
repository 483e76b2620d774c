# /// script
# [tool.marimo.display]
# theme = "system"
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
    from collections import Counter
    from types import SimpleNamespace

    import marimo as mo
    import torch
    from torch.nn.utils import clip_grad_norm_, parameters_to_vector

    from zorplex_rl.config import LearnerConfig
    from zorplex_rl.course import nb09, nb11
    from zorplex_rl.course import staleness as lab
    from zorplex_rl.course.alarm import BEARABLE, RATE, SMALLEST_SAMPLE_SIZE, Alarm
    from zorplex_rl.course.figures import drawing_of, lines
    from zorplex_rl.course.lesson import exercise, lesson
    from zorplex_rl.course.microscope import factors, in_type
    from zorplex_rl.course.recorded_study import read_study
    from zorplex_rl.course.stacks import AXES, STACKS
    from zorplex_rl.course.widgets import LiveCurve
    from zorplex_rl.learning.batches import collate
    from zorplex_rl.learning.learner import token_logprobs
    from zorplex_rl.policy.load import load_policy
    from zorplex_rl.policy.rollout import rollout
    from zorplex_rl.policy.tool_loop import RolloutRequest, Sampling
    from zorplex_rl.simulation.what_if import read_recording, replay, what_if
    from zorplex_rl.task.environment import Zorplex, kinds_of


@app.cell(hide_code=True)
def _():
    lesson.header(
        __file__,
        minutes=48,
        hardware="two CPU cores, no network",
        goals=[
            "replay a run with one thing changed, and say whether the difference is clear",
            "go from a symptom over a measurement to a correction, by your own rule",
            "say what a version costs to send, and when a step is lost in rounding",
            "teach a policy from another one's log-probs",
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    _asked = lesson.md("""
    ## From a symptom to a correction

    A run went wrong. Was it old data, too large a rate, or an engine that computes otherwise? Each has
    another cure. This page measures its way down this tree; it builds on notebooks 08 and 09.
    """)
    _said = "The control is the same run on fresh data. Far off: outside 0.8 … 1.2."
    mo.vstack([_asked, lesson.figure(drawing_of("decision.svg"), _said)])
    return


@app.cell
def settings():
    config = SimpleNamespace(
        policy="embedded", device="cpu", seed=0, threads=1, max_tokens=96,
        # The page's own run, if that of notebook 08 is not there.
        prompts=6, samples=6, steps=12, max_lag=1, learning_rate=4e-4, eval_tasks=50,
        # The two policies that this page trains in one process, and the age at which it looks.
        rate=3e-4, taught_steps=20, age=4, seen=SimpleNamespace(eval_every=2, eval_tasks=100),
        # The runs that fall: the study's live setting, and the first of its five seeds.
        study=lab.Conditions(steps=21, schedule_steps=60, learning_rate=3e-4, held_out_tasks=40),
        fallen_seed=30, old=20, wrong_share=0.1, wrong_spread=5.0,
    )  # fmt: skip
    return (config,)


@app.cell
def _(config):
    torch.set_num_threads(config.threads)
    environment = Zorplex(config.seed)
    conditions = lab.Conditions(prompts=4, samples=4, held_out_tasks=100)
    then = load_policy(config.policy)  # version 0 of every run here
    before = lab.held_out_accuracy(then, environment, conditions)
    lesson.ran_on(then)
    return before, conditions, environment, then


@app.cell(hide_code=True)
def _():
    own = None if lesson.unattended() else nb11.folder_of(__file__)
    _label = "Replay my run of notebook 08" if own else "Make a run, and replay it"
    start_run = lesson.start_button(_label, seconds=30)
    _told = lesson.md("""
    ## The same run again

    The package keeps a **journal** of every run: which weights sampled which group, who died, and
    what each step was trained on. From it one process can execute the run again, without Monarch.
    If you ran notebook 08, this is *your* run, the one with the killed generator. Else the page
    makes a short one.
    """)
    mo.vstack([_told, start_run])
    return own, start_run


@app.cell
async def _(config, own, start_run):
    lesson.wait_for(start_run)
    recording = read_recording(own or await nb11.make_run(config))
    unchanged = replay(recording)
    return recording, unchanged


@app.cell(hide_code=True)
def _(recording, unchanged):
    lesson.md(f"""
    {unchanged.same["episodes"]} of {unchanged.compared["episodes"]} episodes came out the same, token for token and
    log-prob for log-prob, in {unchanged.same["steps"]} of {unchanged.compared["steps"]} steps.
    {"So whatever you change now is the only difference." if unchanged.is_equal else f"The first difference: {unchanged.first_difference}; {unchanged.why}."}
    Processes that died in it: {len(recording.events("restart"))}.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## One thing changed

    Change one setting, and execute both runs on the same random draws, with three seeds. Others to
    try: `{"loss": "tis"}`, `{"temperature": 0.7}`, or `{}` with `without_fault = True`. For any run:
    `zorplex-rl replay RUN --max-lag 8`.
    """)
    return


@app.cell
def _():
    change = {"max_lag": 8}
    without_fault = False
    return change, without_fault


@app.cell(hide_code=True)
def _(change):
    ask_change = lesson.predict(
        f"The run with {', '.join(f'`{k}` {v}' for k, v in change.items()) or 'no fault'}: how does its accuracy, the mean over its course, compare with the run as it was?",
        "clearly lower",
        "no clear difference",
        "clearly higher",
    )
    start_change = lesson.start_button("Execute both runs, three seeds", seconds=35)
    mo.vstack([ask_change, start_change])
    return ask_change, start_change


@app.cell
def _(change, recording, start_change, without_fault):
    lesson.wait_for(start_change)
    changed = recording.config.changed(**change)
    compared = what_if(recording, changed, without_fault, seeds=3, evaluate_every=4)
    return (compared,)


@app.cell(hide_code=True)
def _(ask_change, compared):
    _told = nb11.said(compared)
    _was, _now = compared.predicted
    lesson.reveal(
        ask_change,
        right=_told.way,
        why=f"""
    With three seeds: {_told.words}. *Clear* means that the interval leaves out 0. Pairs share their
    draws, so luck drops out of the difference, but not all of it: three seeds are few.

    Where do they part? In the first seed {_told.why}. {f"The simulator says {_was:.1f} s as it was and {_now:.1f} s changed." if _was and _now else ""}
    """,
        shows=[
            lesson.figure(_told.drawn, "Thin: a seed. Thick: their mean. Dots: they part.")
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## The microscope

    Two things move a ratio. The engine that sampled computes in another way, perhaps in bfloat16:
    **numerics**. And the weights have moved on since: **staleness**. Let π_v be the trainer's
    arithmetic on the weights that sampled. Then

    π/μ = (π_v/μ) · (π/π_v).

    First a policy that moves: GRPO's loss on its own samples. We keep every version.
    """)
    return


@app.function
def train(config, conditions, loss_of, watch):
    """Train the embedded policy on its own samples. Returns it, and all its versions."""
    policy, environment = load_policy(config.policy), Zorplex(config.seed)
    optimizer = torch.optim.Adam(policy.model.parameters(), config.rate, (0.9, 0.95))
    versions = [lab.weights_of(policy)]
    for step in range(config.taught_steps):
        watch(step, policy, None)
        episodes = lab.sample_batch(policy, environment, step, config.seed, conditions)
        batches = collate(episodes, lab.advantages_of(episodes, conditions.samples), 8192)
        tokens = sum(batch.mask.sum().item() for batch in batches)
        for batch in batches:
            logp, _ = token_logprobs(policy, batch)
            loss_of(logp, batch, tokens).backward()
        clip_grad_norm_(policy.model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        versions.append(lab.weights_of(policy))
    watch(config.taught_steps, policy, None)
    return policy, versions


@app.cell(hide_code=True)
def _(config):
    ask_factor = lesson.predict(
        f"A generator in bfloat16, data {config.age} versions old. By the mean of (log ratio)², which factor is larger?",
        "numerics",
        "staleness, up to 100 times",
        "staleness, more than 100 times",
    )
    start_teacher = lesson.start_button(f"Train {config.taught_steps} steps", seconds=8)
    curve = LiveCurve(config.taught_steps, title="Right of 100 held-out tasks")
    mo.vstack([ask_factor, start_teacher, *([] if lesson.unattended() else [curve])])
    return ask_factor, curve, start_teacher


@app.cell
def _(conditions, config, curve, environment, start_teacher):
    lesson.wait_for(start_teacher)
    curve.clear()

    def grpo(logp, batch, tokens):
        return -(batch.advantage[:, None] * logp * batch.mask).sum() / tokens

    follow = nb09.follow(curve, "GRPO", environment, conditions, config.seen)
    _, versions = train(config, conditions, grpo, follow)
    return (versions,)


@app.cell
def _(config, environment, then, versions):
    moved = load_policy(config.policy)
    moved.model.load_state_dict(versions[config.age])
    _tasks = environment.tasks(kinds_of("compositional"), 32, "held_out")
    requests = [RolloutRequest(task, seed) for seed, task in enumerate(_tasks)]
    seen, sizes, apart = {}, {}, 0.0
    for dtype in ("float32", "float16", "bfloat16"):
        _sampler = in_type(then, dtype)
        _episodes = rollout(_sampler, requests, environment.execute, Sampling())
        seen[dtype] = factors(_episodes, then, moved)  # log π_v/μ, and log π/π_v
        _product = seen[dtype].numerics.exp() * seen[dtype].staleness.exp()
        _whole = factors(_episodes, moved).numerics.exp()  # π/μ, computed by itself
        apart = max(apart, (_product / _whole - 1).abs().max().item())
        _parts = seen[dtype].describe().items()
        sizes[dtype] = {part: found["second_moment"] for part, found in _parts}
    return apart, seen, sizes


@app.cell(hide_code=True)
def _(apart, ask_factor, config, sizes):
    _low = sizes["bfloat16"]
    _times = _low["staleness"] / _low["numerics"]
    _rows = [
        {"generator": dtype, "numerics": lesson.tiny(look["numerics"])}
        | {part: f"{look[part]:.3f}" for part in ("staleness", "whole")}
        for dtype, look in sizes.items()
    ]
    lesson.reveal(
        ask_factor,
        right=0 if _times < 1 else 1 if _times <= 100 else 2,
        why=f"""
    Staleness is {_times:,.0f} times as large. The two factors multiply to the whole ratio, which is
    computed by itself, within {lesson.tiny(apart)}.

    This model is small and dense. In large mixtures of experts the numerics can be what hurts
    (notebook 09's run with wrong records). So look before you choose.
    """,
        shows=[lesson.table(f"Mean of (log ratio)², {config.age} versions old", _rows)],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 1: the tree

    Write the drawing at the top as a function. It gets the held-out `accuracies` of a run over its
    course and those of its `control`, the same run on fresh data with right records. `numerics` are
    log π_v − log μ of some tokens. Of both runs take the `best` accuracy: a run is ill if its last
    one is below half of that. Return `"leave it"`, `"mask"`, `"lower the rate"` or `"clip"`.
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
        lambda: advise, check_advise, advise_solution, level="core", minutes=8, lines=8,
        hints=(
            "What is asked of two lists? And is 0.8 a bound of the ratio, or of its logarithm?",
            "`best = max([*accuracies, *control])`. The share of `numerics` whose `math.exp` is outside 0.8 … 1.2, compared with 0.01. Then the questions from top to bottom, each with a `return`.",
        ),
    )  # fmt: skip
    return


@app.cell
def _(seen):
    recorded = mo.notebook_dir().parent / "benchmarks"
    study = read_study(recorded / "staleness.jsonl")
    rule, whose_rule = exercise.running(lambda: advise, check_advise, advise_solution)
    # The study's engines compute in float32, as the microscope's first ones do.
    exact = seen["float32"].numerics.tolist()
    advice = nb11.worth(study, rule, exact)
    return advice, exact, recorded, rule, study, whose_rule


@app.cell(hide_code=True)
def _(advice, before, study, whose_rule):
    _fresh = [r.accuracy for r in study.rows if r.key[:3] == ("reinforce", 0, 8e-4)]
    _asked = lesson.md(f"""
    We asked {whose_rule}, about all {len(study.rows)} runs of notebook 09's study, and looked up
    what runs of the same seed came to that did as told. Advice is one step: who lowers the rate on
    old data may have to clip next. Why *lower the rate*? At 8e-4 plain on *fresh* data ends below
    the {before:.0%} before training in {sum(found < before for found in _fresh)} of {len(_fresh)} seeds.
    There the lag is not to blame.
    """)
    _caption = f"Recorded {study.dates} with `python {study.command}`"
    mo.vstack([_asked, lesson.table(_caption, advice)])
    return


@app.cell(hide_code=True)
def _(config):
    start_fall = lesson.start_button("Train five runs", seconds=50)
    fall_curve = LiveCurve(config.study.steps, title="Right of 40 held-out tasks")
    _told = lesson.md(f"""
    ## Two leaves, live, with an alarm

    *Clip*: plain on data 20 versions old. *Mask*: fresh data, but an engine that records a tenth of
    the log-probs wrongly, a fault that we plant. Both have the same control. The package's **alarm**
    has two parts:

    - A *forecast*. The learning rate does more harm than the lag, by its cube. So the forecast is a
      lag: the one that is as bad at a rate of {RATE:g}. Plain bears {BEARABLE["reinforce"]} versions, a loss that masks
      tokens {BEARABLE["icepop"]}, that weights them {BEARABLE["tis"]}, that also limits the move {BEARABLE["m2po"]}, and a clipped one any.
    - A *diagnostic*: the effective sample size of the episodes, smoothed, below {SMALLEST_SAMPLE_SIZE:.2g}.

    Recorded runs chose all these bounds.
    """)
    ask_alarm = lesson.predict(
        "Other recorded runs did not. Before how many of their collapses does it ring, ten steps ahead or more?",
        "nearly all",
        "about two thirds",
        "a third, or fewer",
    )
    _live = [] if lesson.unattended() else [fall_curve]
    mo.vstack([_told, ask_alarm, start_fall, *_live])
    return ask_alarm, fall_curve, start_fall


@app.cell
def _(config, fall_curve, start_fall):
    lesson.wait_for(start_fall)
    fall_curve.clear()
    rang, policies, noise, world = {}, {}, [], Zorplex(config.fallen_seed)
    planted = nb11.wrong_records(config.wrong_share, config.wrong_spread, noise)
    runs = (
        ("plain, old data", "reinforce", config.old),
        ("plain, fresh data", "reinforce", 0),
        ("clipped, old data", "grpo", config.old),
        ("clipped, wrong records", "grpo", 0, planted),
        ("masked, wrong records", "icepop", 0, planted),
    )
    for _name, _loss, _lag, *_spoil in runs:
        _alarm = Alarm(
            LearnerConfig(loss=_loss, learning_rate=config.study.learning_rate), _lag
        )

        def _watch(learner, metrics, name=_name, alarm=_alarm):
            policies[name] = learner.policy
            if alarm.note(metrics):
                rang.setdefault(name, learner.version)
            if learner.version % 3 == 0:
                share = lab.held_out_accuracy(learner.policy, world, config.study)
                fall_curve.add(name, learner.version, share)

        _trial = lab.Trial(_loss, _lag, config.fallen_seed)
        lab.train_with_lag(_trial, config.study, _watch, *_spoil)
    drawn = nb09.points(fall_curve)
    return drawn, noise, policies, rang, runs


@app.cell
def _(drawn, exact, noise, rule):
    old, control, clipped, wrong, masked = ([y for _, y in run] for run in drawn.values())
    advised = rule(old, control, exact), rule(wrong, control, noise)
    ends = [run[-1] for run in (old, clipped, wrong, masked, control)]
    return advised, ends


@app.cell(hide_code=True)
def _(advised, before, config, drawn, ends, rang, recorded, runs, whose_rule):
    _confirmed = read_study(recorded / "confirmed_20.jsonl")
    _thin = {name: (loss, lag, 3e-4) for name, loss, lag, *_ in runs[:3]}
    _five = {(cell.loss, cell.lag): cell.accuracy for cell in _confirmed.cells()}
    _said = lesson.md(f"""
    We ask {whose_rule}. Of plain on old data it says *{advised[0]}*, and clipped ends at
    {ends[1]:.0%} instead of {ends[0]:.0%}. Of clipped with wrong records it says *{advised[1]}*, and
    masked ends at {ends[3]:.0%} instead of {ends[2]:.0%}. The control ends at {ends[4]:.0%}. In the mean
    of five recorded seeds old data end at {_five["reinforce", 20]:.0%} with plain, at {_five["grpo", 20]:.0%} with
    clipped, at {_five["dppo", 20]:.0%} with `dppo` (below).

    The alarm rang {"; ".join(f"in *{name}* at step {step}" for name, step in rang.items()) or "in none of them"}. Wrong
    records lower the sample size, too, whether a mask cures them or not: which of the two it is, the
    microscope tells, not the alarm.
    """)
    _chart = lines.runs_chart(drawn, before, nb09.recorded(_confirmed, _thin), height=420)
    _caption = f"Thick: this page, seed {config.fallen_seed}. Thin: five recorded seeds of the first three. 40 held-out tasks a point."
    mo.vstack([_said, lesson.figure(_chart, _caption)])
    return


@app.cell
def alarms(recorded):
    told, later = Counter(), read_study(recorded / "foretold.jsonl")
    for _row in later.rows:
        if _row.seed < 10:
            continue  # These helped to choose the alarm: they would flatter it.
        _config = LearnerConfig(loss=_row.loss, learning_rate=_row.learning_rate)
        _alarm = Alarm(_config, _row.lag)
        _rang = [n for n, row in enumerate(_row.diagnostics, 1) if _alarm.note(row)]
        if _row.collapsed_at:
            _at = _row.collapsed_at
            _ahead = _at - _rang[0] if _rang else 0
            told += Counter(collapsed=1, ten_before=_ahead > 9)
        elif _row.is_healthy:
            told += Counter(healthy=1, in_vain=len(_rang) > 0)
    return later, told


@app.cell(hide_code=True)
def _(ask_alarm, later, recorded, told):
    _share = told["ten_before"] / told["collapsed"]
    _all = [*read_study(recorded / "laboratory.jsonl").rows, *later.rows]
    _stale = [row for row in _all if row.lag]
    lesson.reveal(
        ask_alarm,
        right=0 if _share > 0.85 else 1 if _share > 0.5 else 2,
        why=f"""
    Before {told["ten_before"]} of {told["collapsed"]}, nearly always at step 2, when nothing is lost yet. It rang in
    vain in {told["in_vain"]} of {told["healthy"]} healthy runs. Until a run begins to fall, nearly all its
    numbers are those of a healthy one (`benchmarks/LOG.md`). Only its *settings* differ, and the
    forecast knows them. They are enough: how fast a policy moves at first does not tell which seed
    will fall. Where a column below has all colours, chance decides. The bounds are of this task: on yours,
    silence promises little.
    """,
        shows=[
            lesson.figure(
                nb11.foretold(_stale),
                f"All {len(_stale)} recorded runs on easy tasks with stale data",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _(recorded):
    _study = read_study(recorded / "laboratory.jsonl")
    _kinds = Counter(stack.cells[list(AXES).index("correction")].kind for stack in STACKS)
    _ends = nb11.by_lag(_study, 4e-4, (0, 8, 32))
    _of = {row["loss"]: row["collapsed"] for row in _ends}
    _chosen = lesson.md(f"""
    ### What sixteen systems chose

    The sources of sixteen open stacks, read on 2026-11-25, say what their losses do by default:
    {_kinds["clips"]} clip, {_kinds["truncates"]} truncate weights, {_kinds["masks"]} masks tokens, and
    {_kinds["a choice"]} leaves it to you. Nearly all offer the others as options. Column *correction* of
    [Sixteen stacks](stacks.html) has each with its source. And these losses on our task, two updates
    a batch, short episodes, equal engines. What each does: `zorplex-rl train --help`.
    """)
    _caption = f"Accuracy after 60 steps at 4e-4; recorded {_study.dates} with `python {_study.command}`"
    _disputed = lesson.md(f"""
    DPPO's authors say that CISPO collapses; ScaleRL's chose it. Of its runs in the table {_of["`cispo`"]}
    collapsed, of DPPO's {_of["`dppo`"]}. By the rule that we had written down before, CISPO collapses at
    lag 32, and lag 8 is undecided (`benchmarks/LOG.md`). A mask like IcePop's, the cure for wrong
    records, is none for old data here.
    """)
    mo.vstack([_chosen, lesson.table(_caption, _ends), _disputed])
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A step that is lost in rounding

    Generators often hold bfloat16 weights. A step changes such a weight only if it is large against
    the gap to the next number, about a 128th of the weight. Adam's step is about the learning rate.
    So at a low rate most weights stay as they are, and a version can travel as what has changed. A
    trainer with such weights would lose those steps, so `Learner` keeps float32 *master weights*.

    ### Exercise 2: the bytes of a change

    A change is two parts. The new values take 2 bytes each. Which weights they are is said by
    indices, 4 bytes for each that has changed, or by a mask, one bit for each weight: whichever is
    smaller.
    """)
    return


@app.function
def bytes_of_change(changed, weights):
    """Return a number; bytes_of_change(10, 32_000) is 60: ten values, and ten indices."""
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: bytes_of_change, check_bytes_of_change, bytes_of_change_solution, level="warm-up", minutes=3, lines=1,
        hints=(
            "How many bytes is a mask of all weights? When is it smaller than the indices?",
            "`min(4 * changed, weights / 8)`, and the values.",
        ),
    )  # fmt: skip
    return


@app.cell(hide_code=True)
def _(config, versions):
    _bytes_of, _whose = exercise.running(
        lambda: bytes_of_change, check_bytes_of_change, bytes_of_change_solution
    )
    _last, _new = (parameters_to_vector(found.values()) for found in versions[-2:])
    _step, _static = _new - _last, "execute" in mo.cli_args()
    _slider = nb11.change_slider(_last, _step, config.rate, _bytes_of, _static)
    _said = f"The last step of the run above, scaled to other rates and rounded. The bytes are by {_whose}. Where does the mask take over?"
    mo.vstack([lesson.md(_said), _slider])
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Taught by another policy

    A reward says one number about an episode. A **teacher**, a policy that can do it, says one about
    every token. In **on-policy distillation** the student samples, and the loss is the KL from the
    student to the teacher, token by token, on what the student wrote
    ([Lu et al. 2025](https://thinkingmachines.ai/blog/on-policy-distillation/)).

    ### Exercise 3: the distillation loss

    We minimise the mean of g = log π − log teacher over tokens that π itself samples. The gradient of
    that mean is the mean of g · ∇ log π. Write a loss with this gradient, summed over the mask and
    divided by `tokens`. Beware: the gradient of `logp - teacher_logp` alone is ∇ log π, without g.
    """)
    return


@app.function
def distill(logp, teacher_logp, mask, tokens):
    """Return the loss of a batch, a tensor with one number. ``logp`` [B, T] has a gradient.

    Where student and teacher agree, nothing is pushed. With logp [[-1.0]], mask [[1.0]],
    teacher_logp [[-3.0]] and 4 tokens, the gradient with respect to logp is 0.5.
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: distill, check_distill, distill_solution, level="stretch", minutes=5, lines=2,
        hints=(
            "In 05 an advantage weighs ∇ log π, and is a constant. What is the constant here?",
            "`gap = (logp - teacher_logp).detach()`. Then a sum of `gap * logp * mask`. A token that the teacher likes less has a positive gap, and is to become rarer.",
        ),
    )  # fmt: skip
    return


@app.cell(hide_code=True)
def _(config):
    ask_taught = lesson.predict(
        f"The same batches, rate and start as GRPO's {config.taught_steps} steps above; the teacher is the control of the live runs. When is the student at 90 % of the held-out tasks?",
        "earlier than GRPO was",
        "at the same time",
        "later, or never",
    )
    start_taught = lesson.start_button("Teach a student", seconds=8)
    taught_curve = LiveCurve(config.taught_steps, title="Right of 100 held-out tasks")
    mo.vstack([ask_taught, start_taught, *([] if lesson.unattended() else [taught_curve])])
    return ask_taught, start_taught, taught_curve


@app.cell
def _(conditions, config, curve, environment, policies, start_taught, taught_curve):
    lesson.wait_for(start_taught)
    taught_curve.clear()
    teacher = policies["plain, fresh data"]  # the control of the live runs
    taught_by, whose_loss = exercise.running(
        lambda: distill, check_distill, distill_solution
    )

    def from_teacher(logp, batch, tokens):
        with torch.no_grad():
            teacher_logp, _ = token_logprobs(teacher, batch)
        return taught_by(logp, teacher_logp, batch.mask, tokens)

    _follow = nb09.follow(taught_curve, "distilled", environment, conditions, config.seen)
    train(config, conditions, from_teacher, _follow)
    both = nb09.points(curve, taught_curve)
    grpo_at, taught_at = (
        next((step for step, share in line if share >= 0.9), math.inf)
        for line in both.values()
    )
    return both, grpo_at, taught_at, whose_loss


@app.cell(hide_code=True)
def _(ask_taught, before, both, config, grpo_at, taught_at, whose_loss):
    lesson.reveal(
        ask_taught,
        right=0 if taught_at < grpo_at else 1 if taught_at == grpo_at else 2,
        why=f"""
    Trained with {whose_loss}. GRPO first had 90 % after {grpo_at:g} steps, the student after {taught_at:g}
    (*inf*: never); they end at {both["GRPO"][-1][1]:.0%} and {both["distilled"][-1][1]:.0%}. That is one
    seed, measured every second step on 100 tasks, so ± 3 points. The teacher cost its own
    {config.study.steps} steps, on more data each, and the student learns only what it knows.
    """,
        shows=[
            lesson.figure(
                lines.runs_chart(both, before), "The same tasks and random draws."
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.folded(
        "Three ideas that this page does not run",
        """
    *Routing replay.* In a mixture of experts the sampler and the trainer may send a token to other
    experts. Rollout Routing Replay records the sampler's choice and makes the trainer use it, so that the
    numerics shrink at their cause ([Ma et al. 2025](https://arxiv.org/abs/2510.11370)).

    *Evolution strategies.* Try many randomly changed copies of the weights, and move towards those that
    were paid more. No gradient, so nothing is on- or off-policy; only seeds and rewards have to travel
    ([Qiu et al. 2025](https://arxiv.org/abs/2509.24372), who report it for models of billions of weights).

    *LoRA.* Train two thin matrices beside each weight matrix, and leave that as it is. A version is then
    small to send. For RL its authors report that even rank 1 did as well as training all weights
    ([Schulman et al. 2025](https://thinkingmachines.ai/blog/lora/)).
    """,
    )
    return


@app.cell(hide_code=True)
def _(compared, grpo_at, taught_at):
    _recap = lesson.recap(
        "A run that can be replayed bit for bit can be asked what if. Pairs on the same draws need few seeds, but more than one.",
        "A ratio is numerics times staleness. Measure both before you correct either.",
        "Symptom, control, correction: clip for old data, mask for wrong records, lower the rate where fresh data fall, too.",
        "An alarm has misses and false alarms: ask for both counts, on runs that did not choose it.",
        "In bfloat16 a low rate changes few weights: cheap to send, and lost without float32 masters.",
        "A teacher's log-probs say something about every token, where a reward says one number.",
    )
    _headline = lesson.headline(
        f"With {compared.change}, accuracy over the run was {nb11.said(compared).words}; a student had 90 % after {taught_at:g} steps, GRPO after {grpo_at:g}."
    )
    mo.vstack([lesson.predicted(4), _recap, _headline, lesson.links(__file__)])
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
def check_bytes_of_change(bytes_of_change):
    exercise.expect(bytes_of_change, 10, 32_000, result=60)
    exercise.agree(bytes_of_change, bytes_of_change_solution, nb11.draw_change, times=40)


@app.function(hide_code=True)
def bytes_of_change_solution(changed, weights):
    return 2 * changed + min(4 * changed, weights / 8)


@app.function(hide_code=True)
def check_distill(distill):
    _only = {"gradients": True, "values": False}
    exercise.agree(distill, distill_solution, nb11.draw_tokens, **_only)


@app.function(hide_code=True)
def distill_solution(logp, teacher_logp, mask, tokens):
    gap = (logp - teacher_logp).detach()
    return (gap * logp * mask).sum() / tokens


if __name__ == "__main__":
    app.run()
