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
    from pathlib import Path
    from types import SimpleNamespace

    import marimo as mo
    import torch
    from zorplex_rl.learning.alarm import Alarm

    from zorplex_rl.cli.replay import curves_of
    from zorplex_rl.course import nb09, nb11
    from zorplex_rl.course import staleness as lab
    from zorplex_rl.course.figures import drawing_of, lines
    from zorplex_rl.course.lesson import exercise, lesson
    from zorplex_rl.course.recorded_study import read_study
    from zorplex_rl.course.stacks import AXES, STACKS
    from zorplex_rl.course.widgets import LiveCurve
    from zorplex_rl.drawing.two_runs import two_runs
    from zorplex_rl.learning.batches import collate
    from zorplex_rl.learning.learner import token_logprobs
    from zorplex_rl.learning.microscope import factors, in_type, sample_as
    from zorplex_rl.policy.load import load_policy
    from zorplex_rl.policy.tool_loop import RolloutRequest
    from zorplex_rl.simulation.replay import read_recording, replay
    from zorplex_rl.simulation.what_if import what_if
    from zorplex_rl.task.curriculum import tier_of
    from zorplex_rl.task.environment import Zorplex


@app.cell(hide_code=True)
def _():
    lesson.header(
        __file__,
        minutes=50,
        hardware="two CPU cores, no network",
        goals=[
            "replay a run with one thing changed, and say whether the difference is clear",
            "split a ratio into numerics and staleness",
            "go from a symptom over a measurement to a correction, by your own rule",
            "say what a version costs to send, and when a step is lost in rounding",
            "teach a policy from another one's log-probs",
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.vstack(
        [
            mo.md("""
    ## From a symptom to a correction

    A run fell. Was it old data, too large a rate, or an engine that computes otherwise? Each has
    another cure. This page measures its way down this tree; it builds on notebooks 08 and 09.
    """),
            lesson.figure(
                drawing_of("decision.svg"),
                "Each question is a measurement of this page. A ratio is far off outside 0.8 … 1.2.",
            ),
        ]
    )
    return


@app.cell
def settings():
    config = SimpleNamespace(
        policy="embedded", device="cpu", seed=0, hints=False, threads=1, max_tokens=96,
        # The page's own run, if that of notebook 08 is not there.
        prompts=6, samples=6, steps=12, max_lag=1, learning_rate=4e-4, eval_tasks=50,
        # The two policies that this page trains in one process, and the age at which it looks.
        rate=3e-4, taught_steps=20, age=4,
        # The run that falls: a setting of the recorded study, with a seed of its own.
        study=lab.Conditions(steps=18, schedule_steps=60, learning_rate=4e-4, held_out_tasks=40),
        fallen_seed=20,
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
    start_run = lesson.start_button(
        "Replay my run of notebook 08" if own else "Make a run, and replay it", seconds=30
    )
    mo.vstack(
        [
            mo.md("""
    ## The same run again

    The package keeps a **journal** of every run: which weights sampled which group, who died, and
    what each step was trained on. From it one process can execute the run again, without Monarch.
    If you ran notebook 08, this is *your* run, the one with the killed generator. Else the page
    makes a short one.
    """),
            start_run,
        ]
    )
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
    {unchanged.same_episodes} of {unchanged.episodes} episodes came out the same, token for token and
    log-prob for log-prob, in {unchanged.same_steps} of {unchanged.steps} steps.
    {"So whatever you change now is the only difference." if unchanged.is_equal else f"The first difference: {unchanged.first_difference}. The likeliest reason: {unchanged.why}."}
    {len(recording.events("restart"))} process was killed in it.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## One thing changed

    Change one setting, and execute both runs on the same random draws, with three seeds. Others to
    try: `{"loss": "tis"}`, `{"order": "freshest"}` (which waiting group is trained on first), or `{}`
    with `without_fault = True`. For any run: `zorplex-rl replay RUN --max-lag 8`.
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
    compared = what_if(recording, changed, without_fault, seeds=3, evaluate_every=3)
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

    Where do they part? In the first seed {compared.why}. {f"The simulator says {_was:.1f} s as it was and {_now:.1f} s changed." if _was and _now else ""}
    """,
        shows=[
            lesson.figure(
                two_runs(
                    list(map(curves_of, compared.pairs)), compared.change, compared.why
                ),
                "Thin: a seed. Thick: their mean. The dotted line: where the weights part.",
            )
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

    First a policy that moves: GRPO's loss, a batch of its own samples each step. We keep every
    version, and need the last one again below.
    """)
    return


@app.function
def train(config, conditions, loss_of, watch):
    """Train the embedded policy on its own samples. Returns it, and all its versions."""
    policy, environment = load_policy(config.policy), Zorplex(config.seed)
    optimizer = torch.optim.AdamW(
        policy.model.parameters(), lr=config.rate, betas=(0.9, 0.95), weight_decay=0.0
    )
    versions = [lab.weights_of(policy)]
    for step in range(config.taught_steps):
        watch(step, policy)
        episodes = lab.sample_batch(policy, environment, step, config.seed, conditions)
        batches = collate(episodes, lab.advantages_of(episodes, conditions.samples), 8192)
        tokens = sum(batch.mask.sum().item() for batch in batches)
        for batch in batches:
            logp, _ = token_logprobs(policy, batch)
            loss_of(logp, batch, tokens).backward()
        torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        versions.append(lab.weights_of(policy))
    watch(config.taught_steps, policy)
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

    def following(shown, name):
        """Return what adds a point to a line, every second step."""

        def watch(step, policy):
            if step % 2 == 0:
                shown.add(
                    name, step, lab.held_out_accuracy(policy, environment, conditions)
                )

        return watch

    def grpo(logp, batch, tokens):
        return -(batch.advantage[:, None] * logp * batch.mask).sum() / tokens

    teacher, versions = train(config, conditions, grpo, following(curve, "GRPO"))
    return following, teacher, versions


@app.cell
def _(config, environment, then, versions):
    moved = load_policy(config.policy)
    moved.model.load_state_dict(versions[config.age])
    _tasks = environment.tasks(tier_of("compositional"), 32, "held_out")
    requests = [RolloutRequest(task, seed) for seed, task in enumerate(_tasks)]
    seen, apart = {}, 0.0
    for dtype in ("float32", "float16", "bfloat16"):
        _episodes = sample_as(in_type(then, dtype), requests, environment.execute)
        seen[dtype] = factors(_episodes, then, moved)  # log π_v/μ, and log π/π_v
        _product = seen[dtype].numerics.exp() * seen[dtype].staleness.exp()
        _whole = factors(_episodes, moved).numerics.exp()  # π/μ, computed by itself
        apart = max(apart, (_product / _whole - 1).abs().max().item())
    return apart, seen


@app.cell(hide_code=True)
def _(apart, ask_factor, config, seen):
    _low = seen["bfloat16"]
    _times = (_low.staleness.square().mean() / _low.numerics.square().mean()).item()
    lesson.reveal(
        ask_factor,
        right=0 if _times < 1 else 1 if _times <= 100 else 2,
        why=f"""
    Staleness is {_times:,.0f} times as large. The two factors multiply to the whole ratio, which is
    computed by itself, within {lesson.tiny(apart)}.

    This model is small and dense. In large mixtures of experts the numerics can be what hurts
    (notebook 09's run with wrong records). So look before you choose.
    """,
        shows=[
            lesson.table(
                f"Mean of (log ratio)², data {config.age} versions old",
                [
                    {
                        "generator": dtype,
                        "numerics": lesson.tiny(look.numerics.square().mean().item()),
                        "staleness": f"{look.staleness.square().mean().item():.2f}",
                        "largest numerics": f"{look.numerics.abs().max().exp().item():.3f}",
                    }
                    for dtype, look in seen.items()
                ],
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 1: the tree

    Write the drawing at the top as a function. It gets the held-out `accuracies` of a run over its
    course, those of its `control`, the same run on fresh data, and `numerics`: log π_v − log μ of
    some tokens. A run has fallen if its last accuracy is below half of its best. Return
    `"leave it"`, `"mask"`, `"lower the rate"` or `"clip"`.
    """)
    return


@app.function
def advise(accuracies, control, numerics):
    """Name what to change.

    advise([0.4, 0.9, 0.1], [0.4, 0.9, 0.9], [0.0, 0.1]) is "clip": it fell, its control did not.
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: advise,
        check_advise,
        advise_solution,
        level="core",
        minutes=8,
        lines=8,
        hints=(
            "What is asked of two lists? And is 0.8 a bound of the ratio, or of its logarithm?",
            "A function inside, `fell(run)`: `run[-1] < max(run) / 2`. The share of `numerics` whose `math.exp` is outside 0.8 … 1.2, compared with 0.01. Then the questions from top to bottom, each with a `return`.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    ask_rate = lesson.predict(
        "Recorded runs on data 8 versions old, at the highest rate (8e-4), with the plain loss: all fall. What would fresh data have done for them?",
        "saved them",
        "little: most fall on fresh data, too",
    )
    ask_rate
    return (ask_rate,)


@app.cell
def _(seen):
    study = read_study(Path(mo.notebook_dir()).parent / "benchmarks" / "staleness.jsonl")
    rule, whose_rule = exercise.running(lambda: advise, check_advise, advise_solution)
    # The study's engines compute in float32, as the microscope's first ones do.
    advice = nb11.worth(study, rule, seen["float32"].numerics.tolist())
    return advice, rule, study, whose_rule


@app.cell(hide_code=True)
def _(advice, ask_rate, before, study, whose_rule):
    _cells = {(c.loss, c.lag, c.learning_rate): c.accuracies for c in study.cells()}
    _fresh = _cells["reinforce", 0, 8e-4]
    _below = sum(accuracy < before for accuracy in _fresh)
    lesson.reveal(
        ask_rate,
        right=int(2 * _below > len(_fresh)),
        how="Recorded",
        why=f"""
    {_below} of {len(_fresh)} seeds end below where they began, without any old data. So the lag is not to
    blame there. A run needs its control before anybody blames the lag.

    We asked {whose_rule}, about all {len(study.rows)} recorded runs, and looked up what runs of the
    same seed came to that did as told. Advice is one step: who lowers the rate on old data may
    have to clip next.
    """,
        shows=[
            lesson.table(
                f"Advice, and what it was worth; recorded {study.dates} with `python {study.command}`",
                advice,
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## One leaf, live, with an alarm

    Plain on data 8 versions old at 4e-4: the recorded runs fall. Here is one live, with its control,
    and with what the tree advises. The package's **alarm** watches each step's diagnostics, and
    rings when they look like those of runs that collapsed soon after.
    """)
    return


@app.cell(hide_code=True)
def _():
    ask_alarm = lesson.predict(
        "When does the alarm ring in the run that falls?",
        "before its accuracy has halved",
        "after that, or never",
    )
    start_fall = lesson.start_button("Train three runs, 18 steps each", seconds=35)
    fall_curve = LiveCurve(18, title="Right of 40 held-out tasks")
    mo.vstack([ask_alarm, start_fall, *([] if lesson.unattended() else [fall_curve])])
    return ask_alarm, fall_curve, start_fall


@app.cell
def _(config, fall_curve, start_fall):
    lesson.wait_for(start_fall)
    fall_curve.clear()
    rang, world = {}, Zorplex(config.fallen_seed)
    for _name, _loss, _lag in (
        ("plain, old data", "reinforce", 8),
        ("plain, fresh data", "reinforce", 0),
        ("clipped, old data", "grpo", 8),
    ):
        _alarm = Alarm()

        def _watch(learner, metrics, name=_name, alarm=_alarm):
            if said := alarm.note(metrics):
                rang.setdefault(name, (learner.version, said))
            if learner.version % 3 == 0:
                share = lab.held_out_accuracy(learner.policy, world, config.study)
                fall_curve.add(name, learner.version, share)

        lab.train_with_lag(lab.Trial(_loss, _lag, config.fallen_seed), config.study, _watch)
    return (rang,)


@app.cell(hide_code=True)
def _(ask_alarm, before, fall_curve, rang, rule, seen, whose_rule):
    _runs = nb09.points(fall_curve)
    _plain, _fresh, _clipped = ([share for _, share in run] for run in _runs.values())
    _half = next((s for s, v in _runs["plain, old data"] if v < max(_plain) / 2), math.inf)
    _step, _said = rang.get("plain, old data", (math.inf, ""))
    _advice = rule(_plain, _fresh, seen["float32"].numerics.tolist())
    lesson.reveal(
        ask_alarm,
        right=0 if _step < _half else 1,
        why=f"""
    Accuracy had halved at step {_half:g}; the alarm rang at {_step:g} (*inf*: never). {_said.capitalize()}{"." if _said else ""}
    In {len(rang) - (_step < math.inf)} of the two other runs it rang, too.

    From these curves, {whose_rule} says: {_advice}. Plain ended at {_plain[-1]:.0%}, on fresh data at
    {_fresh[-1]:.0%}, clipped on old data at {_clipped[-1]:.0%}.
    """,
        shows=[
            lesson.figure(
                lines.runs_chart(_runs, before),
                "Each point: 40 held-out tasks. The rate falls as in 60 steps.",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    _kinds = Counter(stack.cells[list(AXES).index("correction")].kind for stack in STACKS)
    lesson.md(f"""
    ### What sixteen systems chose

    The sources of sixteen open stacks, read on 2026-11-25, say what their losses do by default:
    {_kinds["clips"]} clip, {_kinds["truncates"]} truncate weights, {_kinds["masks"]} masks tokens, and
    {_kinds["a choice"]} leaves it to you. Nearly all offer the others as options. Column *correction* of
    [Sixteen stacks](stacks.html) has each with its source.

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
        lambda: bytes_of_change,
        check_bytes_of_change,
        bytes_of_change_solution,
        level="warm-up",
        minutes=3,
        lines=1,
        hints=(
            "How many bytes is a mask of all weights? When is it smaller than the indices?",
            "`min(4 * changed, weights / 8)`, and the values.",
        ),
    )
    return


@app.cell(hide_code=True)
def _(config, versions):
    _bytes_of, _whose = exercise.running(
        lambda: bytes_of_change, check_bytes_of_change, bytes_of_change_solution
    )
    _last, _new = map(nb11.flat, versions[-2:])
    mo.vstack(
        [
            lesson.md(
                f"The last step of the run above, scaled to other rates and rounded. The bytes are by {_whose}. Where does the mask take over?"
            ),
            nb11.change_slider(
                _last, _new - _last, config.rate, _bytes_of, "execute" in mo.cli_args()
            ),
        ]
    )
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

    Where student and teacher agree, nothing is pushed. With logp [[-1.0]], teacher_logp [[-3.0]],
    mask [[1.0]] and 4 tokens, the gradient with respect to logp is 0.5.
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: distill,
        check_distill,
        distill_solution,
        level="stretch",
        minutes=5,
        lines=2,
        hints=(
            "In 05 an advantage weighs ∇ log π, and is a constant. What is the constant here?",
            "`gap = (logp - teacher_logp).detach()`. Then a sum of `gap * logp * mask`. A token that the teacher likes less has a positive gap, and is to become rarer.",
        ),
    )
    return


@app.cell(hide_code=True)
def _(config):
    ask_taught = lesson.predict(
        f"The same batches, rate and start as GRPO's {config.taught_steps} steps above, whose last policy is the teacher. When is the student at 90 % of the held-out tasks?",
        "earlier than GRPO was",
        "at the same time",
        "later, or never",
    )
    start_taught = lesson.start_button(
        f"Teach a student, {config.taught_steps} steps", seconds=8
    )
    taught_curve = LiveCurve(config.taught_steps, title="Right of 100 held-out tasks")
    mo.vstack([ask_taught, start_taught, *([] if lesson.unattended() else [taught_curve])])
    return ask_taught, start_taught, taught_curve


@app.cell
def _(conditions, config, curve, following, start_taught, taught_curve, teacher):
    lesson.wait_for(start_taught)
    taught_curve.clear()
    taught_by, whose_loss = exercise.running(
        lambda: distill, check_distill, distill_solution
    )

    def from_teacher(logp, batch, tokens):
        with torch.no_grad():
            teacher_logp, _ = token_logprobs(teacher, batch)
        return taught_by(logp, teacher_logp, batch.mask, tokens)

    train(config, conditions, from_teacher, following(taught_curve, "distilled"))
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
    (*inf*: never). That is one seed, measured every second step on 100 tasks, so ± 3 points. The teacher
    cost its own {config.taught_steps} steps, and the student learns only what it knows.
    """,
        shows=[
            lesson.figure(
                lines.runs_chart(both, before),
                "Right of 100 held-out tasks. The same tasks and random draws in both.",
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
        "In bfloat16 a low rate changes few weights: cheap to send, and lost without float32 masters.",
        "A teacher's log-probs say something about every token, where a reward says one number.",
    )
    _headline = lesson.headline(
        f"With {compared.change}, accuracy over the run was {nb11.said(compared).words}; a student had 90 % after {taught_at:g} steps, GRPO after {grpo_at:g}."
    )
    mo.vstack([lesson.predicted(5), _recap, _headline, lesson.links(__file__)])
    return


@app.function(hide_code=True)
def check_advise(advise):
    exercise.expect(advise, [0.4, 0.9, 0.1], [0.4, 0.9, 0.9], [0.0, 0.1], result="clip")
    exercise.agree(advise, advise_solution, nb11.draw_run, times=80)


@app.function(hide_code=True)
def advise_solution(accuracies, control, numerics):
    def fell(run):
        return run[-1] < max(run) / 2

    far = sum(not 0.8 <= math.exp(log) <= 1.2 for log in numerics) / len(numerics)
    if not fell(accuracies):
        return "leave it"
    if far > 0.01:
        return "mask"
    return "lower the rate" if fell(control) else "clip"


@app.function(hide_code=True)
def check_bytes_of_change(bytes_of_change):
    exercise.expect(bytes_of_change, 10, 32_000, result=60)
    exercise.agree(bytes_of_change, bytes_of_change_solution, nb11.draw_change, times=40)


@app.function(hide_code=True)
def bytes_of_change_solution(changed, weights):
    return 2 * changed + min(4 * changed, weights / 8)


@app.function(hide_code=True)
def check_distill(distill):
    exercise.agree(
        distill, distill_solution, nb11.draw_tokens, gradients=True, values=False
    )


@app.function(hide_code=True)
def distill_solution(logp, teacher_logp, mask, tokens):
    gap = (logp - teacher_logp).detach()
    return (gap * logp * mask).sum() / tokens


if __name__ == "__main__":
    app.run()
