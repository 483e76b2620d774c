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
    app_title="Old data: what they cost, and the losses that bear them",
    css_file="../zorplex_rl/course/lesson/lesson.css",
)

with app.setup(hide_code=True):
    import math
    from statistics import fmean
    from types import SimpleNamespace

    import marimo as mo
    import torch

    from zorplex_rl.course import nb09
    from zorplex_rl.course.figures import drawing_of, lines
    from zorplex_rl.course.lesson import exercise, lesson
    from zorplex_rl.course.recorded_study import read_study
    from zorplex_rl.course.staleness import (
        Conditions,
        advantages_of,
        held_out_accuracy,
        sample_batch,
    )
    from zorplex_rl.course.widgets import LiveCurve
    from zorplex_rl.learning.batches import collate
    from zorplex_rl.policy.load import load_policy
    from zorplex_rl.task.environment import Zorplex


@app.cell(hide_code=True)
def _():
    lesson.header(
        __file__,
        minutes=50,
        hardware="two CPU cores, no network",
        goals=[
            "say which of three policies stand in a ratio, and how old a batch is",
            "show why a ratio for each token does not make old data fresh",
            "write the two losses that most systems use for old data, and find them in TRL, verl and prime-rl",
            "choose the largest age of data from a chart of seconds and accuracy",
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Your trainer waits. Must it?

    In notebook 08 you let the generator run ahead, up to `max_lag` versions, so that the trainer need not wait. The price is age. Every batch was written by a policy that is some steps *older* than the one that learns from it.
    Data that the present policy sampled itself are **on-policy**. Data of an older one are **off-policy**: they say which actions were good for somebody else.
    """)
    return


@app.cell(hide_code=True)
def _():
    _text = mo.md("""
    ## Three policies

    Three policies meet in one training step.

    - μ, the **behaviour policy**, wrote the batch. The generator recorded log μ of each token when it drew it.
    - π₀ is the policy with which this step begins. The trainer computes its log-probs before it changes anything.
    - π is the policy in training. It leaves π₀ with the first update. A step takes one batch, and on this page it makes two updates with it.

    The **lag** of a batch counts the versions from μ to π₀, and `max_lag` bounds it.

    The **importance ratio** of a token is r = π/μ: its probability now, over that when it was drawn.
    It is the product of two others: π₀/μ is age, and π/π₀ is what this step has done.
    Most losses below take one of these three ratios, and bound what it may do when it is far from 1.
    """)
    _drawing = lesson.figure(
        drawing_of("three_policies.svg"),
        "A batch of lag 2. On fresh data μ and π₀ are the same policy.",
    )
    mo.vstack([_text, _drawing])
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## What a ratio repairs, and what it costs

    Here are three tokens, and two policies over them. You have samples of the old one, and want a mean over the new one, say of rewards.
    Take a weighted mean, in which each sample has its ratio π/μ as its weight: with many samples it comes out right. But a few rare tokens with a large ratio have much of the weight, so it scatters more.
    Here the ratios are ⅓, 1 and 5: the third token comes in one sample of ten, and has half of the weight.
    """)
    return


@app.cell
def _():
    mu = torch.tensor([0.6, 0.3, 0.1])  # the old policy
    pi = torch.tensor([0.2, 0.3, 0.5])  # the new policy
    ratio = pi / mu
    return mu, ratio


@app.cell(hide_code=True)
def _(mu, ratio):
    worth = 1000 / (mu * ratio**2).sum().item()
    lesson.md(f"""
    How many fresh samples are 1,000 old ones worth? As many as give a mean that scatters just as much.
    The {lesson.term("effective sample size")} (Kish 1965; Kong 1992) guesses it from the ratios alone: 1,000 times the squared mean of r, over the mean of r².
    Over μ the mean of r is 1 and that of r² is {1000 / worth:.2f}, so it is {worth:.0f} here.
    """)
    return (worth,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 1: the sample size

    The same from n samples, which μ drew: the effective sample size is (Σ r)² / Σ r². If all ratios are equal, that is n.
    Write it as a *share* of n. You get the logarithms of the ratios, log π − log μ, since log-probs are what a trainer has.
    """)
    return


@app.function
def sample_size(log_ratios):
    """Return the effective sample size as a share of the samples.

    sample_size([0.0, 0.0]) is 1.0, and sample_size([0.0, math.log(3)]) is
    16 / (2 * 10) = 0.8.
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: sample_size,
        Solutions,
        level="warm-up",
        minutes=4,
        lines=2,
        hints=(
            "What is the ratio, if you have its logarithm? And by what do you divide a size, to get a share?",
            "`ratios = [math.exp(log) for log in log_ratios]`. Then the square of their sum, over their number times the sum of their squares.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A ratio for each token is not enough

    So why not give each token its own ratio, and be done? A toy. An answer has two words, each *yes* or *no*.
    The reward is 1 if the second word repeats the first. μ begins with *yes* in 9 of 10 cases, π in 1 of 10.
    The second word is *yes* in half of all cases, for both policies and after either first word. Training can change one number only: how often the second word is *yes*, whatever the first was.

    π mostly begins with *no*, so *yes* should become rarer. Only two answers have a reward, and each pushes a second *yes* up or down:

    | answer | by μ | by π | ratio, word 1 | word 2 | push |
    |---|---|---|---|---|---|
    | *yes yes* | 45% | 5% | 1/9 | 1 | +0.5 |
    | *no no* | 5% | 45% | 9 | 1 | −0.5 |

    The push is the derivative of the second word's log-prob by the logit of *yes*: at a probability of ½ it is ½ or −½.
    We see the answers as often as μ writes them. The mean push, with the ratio of the second word alone, and with both:
    """)
    return


@app.cell
def _():
    own_ratio = 0.45 * 1 * 0.5 - 0.05 * 1 * 0.5
    with_prefix = 0.45 * (1 / 9) * 0.5 - 0.05 * 9 * 0.5
    return own_ratio, with_prefix


@app.cell(hide_code=True)
def _(own_ratio, with_prefix):
    lesson.md(f"""
    Weighted by its own ratio, the second word is pushed by {own_ratio:+.1f}, towards *yes*. Weighted by the ratio of the first word, too, it is pushed by
    −{abs(with_prefix):.1f}, towards *no*. Samples of π itself would push it as much: 0.05 · ½ − 0.45 · ½.

    The exact weight of a token is the product of *all* ratios of its episode (Precup, Sutton and Singh 2000). Those before it say how often π comes to this point, those after it how often this reward follows.
    But an answer of the model below has forty tokens, and a product of forty ratios is nearly 0 for most episodes and huge for a few.
    So losses use the ratio of the token alone, which can be wrong, even in its sign, but is much calmer. Then they bound the harm.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## What do old data do to a run?

    Now a language model. The loop keeps the newest version of the weights and the `lag` versions before it. It samples with the oldest one, and trains the newest.
    At lag 2:

    ```
    step                  0  1  2  3  4  5 …
    sampled by version    0  0  0  1  2  3 …
    ```

    The first steps have nothing older than version 0, so data are *up to* `lag` versions old. The loop is that of notebook 05b, and it also keeps old weights.

    It calls a loss with six things. `logp`, `start_logp` and `behaviour_logp` are log π, log π₀ and log μ of each token, a row for each episode.
    `advantage` has a number for each episode, and `mask` is 1 where the policy drew the token. `tokens` is how many it drew in the whole batch.
    Each drawn token has an *objective*, a number that training makes larger. The loss is minus their sum, divided by `tokens`. The simplest one has no ratio:
    """)
    return


@app.function
def plain(logp, start_logp, behaviour_logp, advantage, mask, tokens):
    """Take old data for fresh ones (Williams 1992)."""
    objective = advantage[:, None] * logp
    return -(objective * mask).sum() / tokens


@app.cell(hide_code=True)
def settings():
    _full = SimpleNamespace(
        policy="embedded",
        seed=2,  # one of the five seeds of the recorded study
        learning_rate=4e-4,
        lag=8,
        steps=15,  # trained here; the learning rate falls as in the recorded 60 steps
        schedule_steps=60,
        eval_every=5,
        curve_tasks=40,  # of a point on a curve; the last one has 200
        eval_tasks=200,
        ages=(0, 1, 4, 8),  # at which the ratios of one batch are looked at, in versions
    )
    config = lesson.brief(_full, steps=10, curve_tasks=10, eval_tasks=40)
    return (config,)


@app.cell(hide_code=True)
def _(config):
    torch.set_num_threads(1)
    policy = load_policy(config.policy)
    conditions = Conditions(
        policy=config.policy,
        steps=config.schedule_steps,
        learning_rate=config.learning_rate,
        held_out_tasks=config.eval_tasks,
    )
    before = held_out_accuracy(policy, Zorplex(config.seed), conditions)
    lesson.ran_on(policy)
    return before, conditions, policy


@app.cell(hide_code=True)
def _(config):
    ask_plain = lesson.predict(
        f"{config.steps} steps with the plain loss: on fresh data, and on data up to {config.lag} versions old. How does the second run end, on {config.eval_tasks} held-out tasks?",
        "no clear difference from the first",
        "clearly lower, but not below where it began",
        "clearly below where it began",
    )
    ask_plain
    return (ask_plain,)


@app.cell(hide_code=True)
def _(config):
    start_plain = lesson.start_button(f"Train twice, {config.steps} steps", seconds=25)
    plain_curve = LiveCurve(config.steps, title="The plain loss")
    mo.vstack([start_plain, *([] if lesson.unattended() else [plain_curve])])
    return plain_curve, start_plain


@app.cell(hide_code=True)
def _(conditions, config, plain_curve, policy, start_plain):
    lesson.wait_for(start_plain)
    plain_curve.clear()
    # A batch of version 0 that no step trains on. Each later version looks back at it.
    _kept = sample_batch(policy, Zorplex(config.seed), 1000, 0, conditions)
    _batches = collate(_kept, advantages_of(_kept, conditions.samples), token_budget=8192)
    ended, kept_at, wrote = {}, {}, {}
    with lesson.counting(2 * config.steps, "steps") as one_more:
        for _name, _lag in (("plain, fresh data", 0), ("plain, old data", config.lag)):

            def _look_back(step, policy, batches, lag=_lag):
                if lag == 0 and step in config.ages:
                    kept_at[step] = nb09.log_ratios(policy, _batches)

            ended[_name], wrote[_name] = nb09.curve_of(
                _name, plain, _lag, plain_curve, conditions, config, one_more, _look_back
            )
    return ended, kept_at, wrote


@app.cell(hide_code=True)
def _(ask_plain, before, config, ended, kept_at, study):
    lesson.needs(lambda: ended)
    _share, _whose = exercise.running(lambda: sample_size, Solutions)
    _tokens = {f"lag {age}": torch.cat(rows) for age, rows in kept_at.items()}
    _sizes = {
        f"lag {age}": float(_share([row.sum().item() for row in rows]))
        for age, rows in kept_at.items()
    }
    _oldest = f"lag {max(config.ages)}"
    _n = config.eval_tasks
    _fresh, _old = ended.values()
    _below = nb09.compared(_old, before, _n) < 0
    _lags = nb09.at_each_lag(study, config.learning_rate, ("reinforce",))["plain"]
    _seeds = _lags[config.lag]
    lesson.reveal(
        ask_plain,
        right=2 if _below else 1 if nb09.compared(_old, _fresh, _n) < 0 else 0,
        why=f"""
    Before training {nb09.uncertain(before, _n)} of {_n} tasks were right. After {config.steps} steps it is {nb09.uncertain(_fresh, _n)} with fresh data, and
    {nb09.uncertain(_old, _n)} with old ones. (± is two standard errors.)
    Of {len(_seeds)} recorded runs on old data, with other draws, {sum(end < before for end in _seeds)} ended below {before:.0%} after {config.schedule_steps} steps.
    And why below the start? The same bad tokens are pushed down again, step after step, although they are rare by now. The next section shows how.

    In the chart, newer and newer weights of the run on fresh data look at one batch. Each row is the beginning of a step, so its ratios are π₀/μ: age alone.
    Most tokens hardly move, a few very far.

    By {_whose}, at {_oldest} the tokens are worth {float(_share(_tokens[_oldest].tolist())):.0%} of fresh ones. Taken as whole episodes, with the product of their ratios, they are worth {_sizes[_oldest]:.0%}.
    That second number, at the right, says what exact weights would cost: a few tokens that moved far make a whole episode strange.
    """,
        shows=[
            lesson.figure(
                lines.ratio_chart(
                    {name: logs.exp().tolist() for name, logs in _tokens.items()},
                    _sizes,
                ),
                "Ratios of the tokens of one batch, which version 0 wrote. A dot is one token: 120 of them, evenly spaced from the smallest ratio to the largest. What is below 1/32 is drawn at 1/32. At the right: the effective sample size of its whole episodes.",
            ),
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Most losses are a ratio and a bound

    A is the advantage of a token, the one of its episode: above 0 for a good one, below 0 for a bad one. The names are those of this page.

    | loss | ratio | bound |
    |---|---|---|
    | plain | none | none |
    | clipped | r = π/μ | A > 0: no gradient where r > 1.2. A < 0: no gradient where r < 0.8 |
    | corrected | π/π₀, and π₀/μ as a weight | π/π₀ is clipped in the same way; a weight above 2 counts as 2 |
    | masked | r = π/μ, as a weight | a weight below 0.5 or above 5 counts as 0, whatever A is |

    *As a weight*: a number that multiplies ∇ log π, and through which no gradient flows.

    In *clipped*, the gradient flows through r itself. As in 05b, ∇π = π ∇ log π, so ∇r = r ∇ log π: where the clip is open, its factor is r, too.

    **Clipping** stops a push that goes too far, and leaves the way back open. At r = 0.5 a bad token gets no gradient, and a good one is still pushed up, with the factor 0.5.
    """)
    return


@app.cell(hide_code=True)
def _():
    ask_push = lesson.predict(
        "A bad token (A = −1) is six times likelier than when it was drawn: r = 6. A step begins, so in its first update π is π₀. Which of four losses pushes the token down hardest?",
        "plain",
        "clipped",
        "corrected",
        "masked",
    )
    _text = mo.md("""
    What does a loss *do*? It multiplies A ∇ log π of each token by a factor: 1 is what fresh data get, 0 says "leave this token alone".
    The figure below draws it over r = π/μ, on the left for a good token, on the right for a bad one.
    """)
    mo.vstack([_text, ask_push])
    return (ask_push,)


@app.cell(hide_code=True)
def _(ask_push):
    _losses = {
        "plain": plain,
        "clipped": Solutions.clipped,
        "corrected": Solutions.corrected,
        "masked": nb09.packaged("icepop"),
    }
    _pushed = [nb09.push(loss, -1.0, 1.0, 6.0) or 0.0 for loss in _losses.values()]
    _ratios = [0.02 * number + 0.01 for number in range(325)]
    lesson.reveal(
        ask_push,
        right=_pushed.index(max(_pushed)),
        why=f"""
    At r = 6 the factors are {", ".join(f"{factor:.2g} ({name})" for name, factor in zip(_losses, _pushed, strict=True))}.

    *Clipped* has no bound for a bad token with a large r: to push it down is the way back. (**Dual clip** adds that bound.) Where r is below 0.8, it stops.

    *Plain* knows no r. So it also pushes a bad token that is already rare. Its probability goes to all others. Nobody sampled most of them, so no reward says what they are worth.

    *Corrected* has a weight of 2 at most. In the first update of a step π is π₀, so its clip sees 1 and cannot act.
    It bounds what one step does, not how far a token has come from μ in many.

    *Masked* (**IcePop**) stops in both directions, so it never brings back a token that has drifted far.
    """,
        shows=[
            lesson.figure(
                lines.push_chart(_ratios, nb09.pushes(_losses, _ratios)),
                "The factor at A ∇ log π, from the gradients of the losses, in the first update of a step.",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 2: the clipped loss

    The objective of a token is min(r A, clip(r, 0.8, 1.2) A), with r = π/μ (PPO, Schulman et al. 2017). Sum it over the tokens that the policy drew, divide by `tokens`, and mind the sign.
    This loss has no use for `start_logp`.
    """)
    return


@app.function
def clipped(logp, start_logp, behaviour_logp, advantage, mask, tokens):
    """Return the clipped loss of a batch, a tensor with one number.

    One token with r = 0.5 and 1 token in all: for A = 2 the loss is −1, for
    A = −2 it is 1.6.
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: clipped,
        Solutions,
        level="core",
        minutes=6,
        lines=4,
        hints=(
            "How do you get the ratio from two log-probs? What shape must `advantage` have, so that every token of an episode gets it?",
            "`ratio = (logp - behaviour_logp).exp()`. Then two products with `advantage[:, None]`: of the ratio, and of `ratio.clamp(0.8, 1.2)`. "
            "`torch.minimum` takes the smaller, token by token.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 3: the corrected loss

    What `clipped` does around μ, this loss does around π₀: its ratio is π/π₀. It multiplies the clipped objective of each token by the weight min(π₀/μ, 2).
    You may call your `clipped` for it: what do you give it in the place of log μ, and what in the place of `mask`?
    The weight is a fact about the data. (`start_logp` and `behaviour_logp` have no gradient, so nothing must be detached.)
    """)
    return


@app.function
def corrected(logp, start_logp, behaviour_logp, advantage, mask, tokens):
    """Return the corrected loss of a batch, a tensor with one number.

    One token with π/π₀ = 0.5, π₀/μ = 3 and A = −2: the loss is 2 · 1.6 = 3.2.
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: corrected,
        Solutions,
        level="stretch",
        minutes=4,
        lines=5,
        hints=(
            "Which two log-probs make the ratio, and which two the weight? In what do their bounds differ?",
            "`weight = (start_logp - behaviour_logp).exp().clamp(max=2.0)`, `ratio = (logp - start_logp).exp()`, and the rest is the clipped loss with one factor more. Or call `clipped` with `start_logp` in the place of `behaviour_logp`, and `mask * weight` in that of `mask`.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.folded(
        "Your own stack: these losses in TRL, verl and prime-rl, and in papers",
        """
    Two more losses are in use. By the names of `zorplex-rl train --loss`, ours are `reinforce` (plain), `tis` (truncated), `grpo` (clipped), `decoupled_ppo` (corrected), `icepop` (masked) and `dppo` (masked by difference).


    - *truncated*: r = π/μ is a weight, and a weight above 2 counts as 2;
    - *masked by difference*: it has no ratio. A good token gets no gradient where π − μ > 0.15, a bad one none where π − μ < −0.15.

    If you use TRL: `AsyncGRPOTrainer` is *clipped*, around μ. `GRPOTrainer` clips around π₀, and with vLLM it leaves out episodes for which the product of π₀/μ over their tokens is above 3, by default.
    Its `num_iterations=2` makes the two updates of this page.

    Our `grpo` divides by the tokens of the batch and has no KL penalty. The paper's takes the mean of each answer first, and adds one.

    One name means two things. TRL and verl call *corrected* **truncated importance sampling**, TIS: a weight min(π₀/μ, C) beside a clip around π₀ (Yao et al. 2025).
    Our `--loss tis` is *truncated*, an older form: the weight is π/μ, and nothing is clipped.
    In Hilton et al. (2022) and AReaL (Fu et al. 2025) *corrected* is **decoupled PPO**. AReaL reports that it stood old data better than PPO's clip, on models of more than a billion parameters.

    Read on 2026-11-28 in the documentation of verl and prime-rl and in TRL's code. [Sixteen stacks](stacks.html) has the defaults of more.

    - TRL, *clipped*: `epsilon` of `AsyncGRPOTrainer`
    - TRL, *corrected*: `GRPOTrainer` with `vllm_importance_sampling_mode="token_truncate"`
    - verl, *corrected*: `rollout_is: token`, `rollout_is_threshold: 2.0`
    - verl, *clipped*: `bypass_mode` (log π₀ is not computed, so μ stands for it), `loss_type: ppo_clip`
    - verl, *plain*: `bypass_mode`, `loss_type: reinforce`; with `rollout_is: token` that is *truncated*
    - verl, *masked*: `bypass_mode`, `rollout_is_threshold: 0.5_5.0`
    - prime-rl, *masked*: `icepop`, the form of INTELLECT-3 with one ratio (notebook 11 has the other form, of Ring-1T)
    - prime-rl, *masked by difference*: the default, at 0.3 instead of 0.15, for good and bad tokens alike; *clipped* is a `custom` loss
    """,
    )
    return


@app.cell(hide_code=True)
def _():
    study = read_study(mo.notebook_dir().parent / "benchmarks" / "laboratory.jsonl")
    return (study,)


@app.cell(hide_code=True)
def _(config):
    ask_oldest = lesson.predict(
        f"On data up to 32 versions old: which of your two losses ends higher? Five recorded seeds of {config.schedule_steps} steps decide. *Clearly* means that every seed of one ends above every seed of the other.",
        "clipped, clearly",
        "corrected, clearly",
        "no clear difference",
    )
    _text = lesson.md("""
    ## How old may data be?

    The same run was recorded at more lags, with each loss. Lag 0 is the **control**: the run on fresh data. There all losses learn, so what they lack at other lags is due to age. At lag 32 the first 33 of 60 steps learn from version 0.
    """)
    mo.vstack([_text, ask_oldest])
    return (ask_oldest,)


@app.cell(hide_code=True)
def _(ask_oldest, config, study):
    _caption = f"Accuracy after {config.schedule_steps} steps at a learning rate of {config.learning_rate:g}: the mean of five seeds, the lowest and the highest"
    _rows = nb09.by_lag(study, config.learning_rate, (0, 8, 32))
    lesson.reveal(
        ask_oldest,
        right=0,  # in all five seeds: test_notebook_09.py holds it
        why="""
    At lag 32 every seed of *clipped* is above every seed of the other three losses. But its lowest one is only just above the highest of *corrected*.
    At lag 8 the ranges of clipped and corrected overlap: eight versions are too few to tell them apart by five seeds.

    The figure of pushes suggests why. Of the four, *clipped* is the first to stop a token that moves further from μ: at r = 1.2 and 0.8. *Masked* stops at 5 and 0.5.
    *Plain* and *corrected* never do: the clip of corrected bounds one step, and many steps can go far.
    But that is not the whole answer. *Corrected* has no such bound, and still ends above *masked* in the mean, though their ranges overlap. Perhaps because masked never lets a token come back, and corrected also clips the step.

    Our model has one million parameters, 40-token answers, and a learning rate at which the plain loss fails.
    So take the *question* from this table: what bounds the way from μ?
    """,
        shows=[
            lesson.table(_caption, [row for row in _rows if row["loss"] in lines.LOSSES]),
            lesson.folded(
                "The same with two more losses, truncated and masked by difference",
                "Truncated has a weight alone, and stands little age: what it lacks, compared with corrected, is the clip on one step. Masked by difference also stops a token from moving further, and stands lag 32 about as well as clipped: their ranges overlap. Whether it is better there than at 8, five seeds cannot say: its ranges overlap.",
                lesson.table(f"All the losses. {_caption}", _rows),
            ),
        ],
    )
    return


@app.cell(hide_code=True)
def _(config):
    clipped_loss, _whose_clipped = exercise.running(lambda: clipped, Solutions)
    corrected_loss, _whose_corrected = exercise.running(lambda: corrected, Solutions)
    start_saved = lesson.start_button(
        f"Train twice with the losses, {config.steps} steps", seconds=25
    )
    saved_curve = LiveCurve(config.steps, title="Two losses, old data")
    _text = lesson.md(f"""
    If you like, see lag {config.lag} for yourself: the run on old data once more, with {_whose_clipped}, and with {_whose_corrected}. The rest of the page does not need it.
    """)
    mo.vstack([_text, start_saved, *([] if lesson.unattended() else [saved_curve])])
    return clipped_loss, corrected_loss, saved_curve, start_saved


@app.cell(hide_code=True)
def _(clipped_loss, conditions, config, corrected_loss, saved_curve, start_saved):
    lesson.wait_for(start_saved)
    saved_curve.clear()
    saved, saved_texts = {}, {}
    with lesson.counting(2 * config.steps, "steps") as _one_more:
        for _name, _loss in (("clipped", clipped_loss), ("corrected", corrected_loss)):
            _line = f"{_name}, old data"
            saved[_line], saved_texts[_line] = nb09.curve_of(
                _line, _loss, config.lag, saved_curve, conditions, config, _one_more
            )
    return saved, saved_texts


@app.cell(hide_code=True)
def _(before, config, ended, plain_curve, policy, saved, saved_curve, saved_texts, wrote):
    lesson.needs(lambda: (ended, saved))
    _n = config.eval_tasks
    _ends = ended | saved
    _curves = [*plain_curve.series, *saved_curve.series]
    _old = {name: line for name, line in _curves if "old" in name}
    lesson.folded(
        "Old data, three losses: the curves, and what the policies write",
        f"""
    At the end: {", ".join(f"{name} {nb09.uncertain(_ends[name], _n)}" for name in _old)}. The ± covers the choice of tasks, not the seed.
    This run has {config.steps} steps, and the recorded ones have {config.schedule_steps}. So it may end far from theirs: it was cut off on the way.
    """,
        lesson.figure(
            lines.runs_chart(_old, before, height=420),
            f"Old data, seed {config.seed}. A point has {config.curve_tasks} tasks, the last one {_n}.",
        ),
        nb09.answers(
            {"before training": nb09.answer(policy)} | wrote | saved_texts,
            f"The first question of notebook 05 again, asked on the same draws. One question says little about the others: trust the {_n} tasks.",
        ),
    )
    return


@app.cell(hide_code=True)
def _(config, study):
    _ends = nb09.at_each_lag(study, config.learning_rate, ("grpo",))
    _clipped = _ends["clipped"]
    _seconds = {lag: nb09.seconds_at(lag, study) for lag in _clipped}
    _most = max(_seconds)
    _enough = next(lag for lag in _seconds if _seconds[lag] < 1.1 * _seconds[_most])
    _dots = {f"lag {lag}": (_seconds[lag], found) for lag, found in _clipped.items()}
    _text = lesson.md("""
    ### The rule

    Lag saves seconds and costs accuracy, so see both in one chart, for *clipped*. The accuracy is the study's, and the seconds are simulated.
    """)
    _rule = lesson.md(f"""
    In turns the run takes {_seconds[0]:.0f} s. At lag {_enough} it takes {_seconds[_enough]:.0f} s, and no larger lag saves a tenth of that, because the trainer, the slower side here, hardly waits any more.
    Clipped has {fmean(_clipped[_enough]):.0%} there, {fmean(_clipped[0]):.0%} at lag 0, and {fmean(_clipped[_most]):.0%} at lag {_most}.
    Of its five seeds {sum(end < min(_clipped[0]) for end in _clipped[_enough])} end below every seed of lag 0. That is the price of saving {1 - _seconds[_enough] / _seconds[0]:.0%} of the seconds.
    Lag 2 has {fmean(_clipped[2]):.0%}, and saves {1 - _seconds[2] / _seconds[0]:.0%}.

    So take the smallest `max_lag` at which the slower side hardly waits, here {_enough}, and clip. If that costs you too much accuracy, take a smaller one.
    Which lag that is depends on your machines: your timeline of notebook 08 shows who waits.
    """)
    _drawn = lesson.figure(
        lines.seconds_chart(_dots),
        f"A dot is the mean of five seeds, a thin line their range: the larger the lag, the wider its ends. Every run has {config.schedule_steps} steps of {study.conditions['prompts']} groups. Seconds: notebook 05's simulator with its four generators; a step trains for 2 s, so less than {2 * config.schedule_steps} s is impossible. A group takes 1 s in the mean, some several times as long. Recorded {study.dates} with `python {study.command}`.",
    )
    mo.vstack([_text, _drawn, _rule])
    return


@app.cell(hide_code=True)
def _():
    lesson.recap(
        3,
        "Three policies: μ wrote the batch, π₀ begins the step, π is in training. r = π/μ is age times what the step has done.",
        "A ratio for each token leaves an error, since the tokens before it have ratios, too. The product over an episode has none, but scatters too much.",
        "The plain loss on old data pushes tokens that are already rare, step after step. Clipping stops that.",
        "A clip around π₀ bounds what one step moves. A clip around μ bounds how far all steps since the data were written have moved.",
        "Before you blame the lag, run the control: the same run on fresh data.",
        "Take the smallest `max_lag` at which the slower side hardly waits, or a smaller one if that costs too much accuracy.",
    )
    return


@app.cell(hide_code=True)
def _(before, config, ended):
    lesson.needs(lambda: ended)
    lesson.headline(
        f"data up to {config.lag} versions old took the accuracy of the plain loss from {before:.0%} to {ended['plain, old data']:.0%}, and fresh data to {ended['plain, fresh data']:.0%}."
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.folded(
        "Papers",
        """
    - Williams 1992, *Simple statistical gradient-following algorithms* (REINFORCE, the plain loss)
    - Kish 1965, *Survey Sampling*; Kong 1992, *A note on importance sampling* (effective sample size)
    - Precup, Sutton, Singh 2000, *Eligibility traces for off-policy policy evaluation* (ratios of prefixes)
    - Ionides 2008, *Truncated importance sampling*; Espeholt et al. 2018, *IMPALA* (truncated weights)
    - Schulman et al. 2017, *Proximal policy optimization algorithms* (clipping); Shao et al. 2024, *DeepSeekMath* (GRPO)
    - Hilton, Cobbe, Schulman 2022, *Batch size-invariance for policy optimization* (decoupled);
      Fu et al. 2025, *AReaL* (decoupled, for asynchronous RL of language models)
    - Yao et al. 2025, *Your efficient RL framework secretly brings you off-policy RL training* (TIS, as TRL and verl have it)
    - Prime Intellect 2025, *INTELLECT-3*, arXiv 2512.16144, eq. 1 (masked, one ratio)
    - Qi et al. 2026 (DPPO, masked by difference)
    """,
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.links(__file__)
    return


@app.class_definition(hide_code=True)
class Solutions:
    """Check the exercises of this page, and solve them."""

    def check_sample_size(sample_size):
        exercise.expect(
            sample_size,
            [0.0, math.log(3)],
            result=0.8,
            mistakes={
                "you took the logarithms for ratios": 0.5,
                "that is a number of samples, not their share": 1.6,
                "the fraction is upside down": 1.25,
                "you summed the squares above, and squared the sum below": 10 / 32,
                "that is the mean of the ratios": 2.0,
            },
        )
        exercise.expect(sample_size, [0.0, 0.0], result=1.0)
        exercise.agree(sample_size, Solutions.sample_size, nb09.draw_log_ratios, times=40)

    def sample_size(log_ratios):
        ratios = [math.exp(log) for log in log_ratios]
        return sum(ratios) ** 2 / (len(ratios) * sum(ratio**2 for ratio in ratios))

    def check_clipped(clipped):
        right = Solutions.clipped
        nb09.check_loss(
            clipped,
            right,
            {
                "it compares π with π₀ (`start_logp`), not with μ": nb09.variant(
                    right, (0, 1, 1)
                ),
                "it takes the larger one of the two, not the smaller": (
                    lambda logp, start, behaviour, advantage, *rest: (
                        -right(logp, start, behaviour, -advantage, *rest)
                    )
                ),
                "the ratio is upside down": (
                    lambda logp, start, behaviour, *rest: right(
                        2 * behaviour - logp, start, behaviour, *rest
                    )
                ),
                "without a minimum a token may not come back: outside its bounds the clipped ratio has no gradient": (
                    lambda logp, start, behaviour, advantage, mask, tokens: (
                        -(
                            (logp - behaviour).exp().clamp(0.8, 1.2) * advantage[:, None]
                        ).sum()
                    )
                ),
                "`exp` is missing: a difference of log-probs is no ratio": (
                    lambda logp, start, behaviour, advantage, *rest: (
                        -torch.minimum(
                            (logp - behaviour) * advantage[:, None],
                            (logp - behaviour).clamp(0.8, 1.2) * advantage[:, None],
                        ).sum()
                    )
                ),
            },
        )

    def clipped(logp, start_logp, behaviour_logp, advantage, mask, tokens):
        ratio = (logp - behaviour_logp).exp()
        free = ratio * advantage[:, None]
        bounded = ratio.clamp(0.8, 1.2) * advantage[:, None]
        return -(torch.minimum(free, bounded) * mask).sum() / tokens

    def check_corrected(corrected):
        right = Solutions.corrected
        nb09.check_loss(
            corrected,
            right,
            {
                "the weight π₀/μ is missing": nb09.variant(right, (0, 1, 1)),
                "it is the clipped loss: around μ, and without a weight": Solutions.clipped,
                "its ratio is π/μ, and should be π/π₀": nb09.variant(
                    Solutions.clipped,
                    weight=lambda logp, start, behaviour: (
                        (start - behaviour).exp().clamp(max=2.0)
                    ),
                ),
                "the weight is not cut at 2": nb09.variant(
                    right,
                    (0, 1, 1),
                    lambda logp, start, behaviour: (start - behaviour).exp(),
                ),
                "the weight is π/μ, and should be π₀/μ": nb09.variant(
                    right,
                    (0, 1, 1),
                    lambda logp, start, behaviour: (
                        (logp - behaviour).detach().exp().clamp(max=2.0)
                    ),
                ),
                "the weight is π/μ, and should be π₀/μ; so a gradient flows through the weight": nb09.variant(
                    right,
                    (0, 1, 1),
                    lambda logp, start, behaviour: (logp - behaviour).exp().clamp(max=2.0),
                ),
                "you clipped the product of weight and ratio; clip only π/π₀, and multiply by the weight afterwards": (
                    lambda logp, start, behaviour, *rest: Solutions.clipped(
                        logp,
                        start,
                        start - (start - behaviour).clamp(max=math.log(2.0)),
                        *rest,
                    )
                ),
            },
        )

    def corrected(logp, start_logp, behaviour_logp, advantage, mask, tokens):
        weight = (start_logp - behaviour_logp).exp().clamp(max=2.0)
        ratio = (logp - start_logp).exp()
        free = ratio * advantage[:, None]
        bounded = ratio.clamp(0.8, 1.2) * advantage[:, None]
        return -(weight * torch.minimum(free, bounded) * mask).sum() / tokens


if __name__ == "__main__":
    app.run()
