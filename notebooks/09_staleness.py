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
    app_title="Staleness: what old data cost, and the loss that saves a run",
    css_file="../zorplex_rl/course/lesson/lesson.css",
)

with app.setup(hide_code=True):
    import math
    from collections import deque
    from dataclasses import replace
    from functools import partial
    from itertools import product
    from pathlib import Path
    from types import SimpleNamespace

    import marimo as mo
    import torch

    from zorplex_rl.course import nb09
    from zorplex_rl.course.figures import lines
    from zorplex_rl.course.figures.loop_drawing import loop_drawing
    from zorplex_rl.course.lesson import exercise, lesson
    from zorplex_rl.course.recorded_study import read_study
    from zorplex_rl.course.staleness import (
        Conditions,
        Trial,
        advantages_of,
        held_out_accuracy,
        sample_batch,
        train_with_lag,
        weights_of,
    )
    from zorplex_rl.course.widgets import LiveCurve, PhaseDiagram
    from zorplex_rl.learning.batches import collate
    from zorplex_rl.learning.learner import schedule, token_logprobs
    from zorplex_rl.policy.load import load_policy
    from zorplex_rl.task.environment import Zorplex


@app.cell(hide_code=True)
def _():
    lesson.header(
        __file__,
        minutes=46,
        hardware="two CPU cores, no network",
        goals=[
            "say how old a batch is, and measure how far its policy is from the one in training",
            "show why a ratio for each token does not make old data fresh",
            "write two losses for such data, and choose between them by a measurement",
            "say why a run needs its control, the same run on fresh data",
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Whose data is it?

    A policy gradient asks which of *my own* actions were better than I expected. Data that the present
    policy sampled itself are **on-policy**. In an asynchronous system, the generator samples with
    weights that it pulled some steps ago. Those data are **off-policy**.

    - π is the policy in training.
    - μ, the **behaviour policy**, sampled the data. Its log-probs were recorded then.

    Each training step makes a new version of the weights. The **lag** of a batch counts the
    versions between μ and π: at lag 2, a step trains on what the version of two steps ago sampled. `max_lag`, the dial of notebook 05, bounds it.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.figure(
        loop_drawing("replay buffer", "trainer"),
        "The buffer bounds the age; this page is about what the trainer does with it.",
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## What a weight repairs, and what it costs

    Three tokens with rewards, and two policies over them. The old one sampled the data; we want the
    mean reward of the new one. The **importance ratio** π/μ repairs the mean: a token that the new
    policy likes more counts more. But it has a price.
    """)
    return


@app.cell
def _():
    mu = torch.tensor([0.6, 0.3, 0.1])  # the old policy
    pi = torch.tensor([0.2, 0.3, 0.5])  # the new policy
    reward = torch.tensor([0.0, 1.0, 2.0])
    ratio = pi / mu
    truth = (pi * reward).sum()

    # The variance of one sample: a sum over the three tokens. (Of `normalised` if there are many samples.)
    fresh = (pi * (reward - truth) ** 2).sum()
    weighted = (mu * (ratio * reward - truth) ** 2).sum()
    normalised = (
        mu * (ratio * (reward - truth)) ** 2
    ).sum()  # divided by the sum of the ratios
    worth = [(1000 * fresh / spread).item() for spread in (weighted, normalised)]
    worth += [(1000 / (mu * ratio**2).sum()).item()]  # from the ratios alone
    return (worth,)


@app.cell(hide_code=True)
def _(worth):
    lesson.md(f"""
    1,000 old samples, multiplied by their ratios, tell as much as {worth[0]:.0f} fresh ones: rare
    tokens with a large ratio make most of the mean. *Normalised*, divided by the sum of the ratios
    instead of their number, they tell as much as {worth[1]:.0f}. The **effective sample size**
    (Kish 1965; Kong 1992) guesses that second number from the ratios alone: {worth[2]:.0f}. It
    knows no rewards, so it is a guess.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A ratio for each token is not enough

    A toy with two words: the reward is 1 if the second repeats the first. μ begins with *left* in 9
    of 10 cases, π in 1 of 10. Both toss a coin for the second word. Should training push it to
    *left*? π mostly begins with *right*, so: no.
    """)
    return


@app.cell
def _():
    mu_first = {"left": 0.9, "right": 0.1}
    pi_first = {"left": 0.1, "right": 0.9}

    def push_to_left(weight):
        """The expected gradient of the second word's logit of "left", from data of μ."""
        total = 0.0
        for first, second in product(("left", "right"), repeat=2):
            chance = mu_first[first] * 0.5
            earned = 1.0 if first == second else 0.0
            slope = 0.5 if second == "left" else -0.5  # d log π(second) / d logit
            total += chance * weight(first) * earned * slope
        return total

    own_ratio = push_to_left(
        lambda first: 0.5 / 0.5
    )  # the second word's own: μ and π agree
    with_prefix = push_to_left(lambda first: pi_first[first] / mu_first[first])
    return own_ratio, with_prefix


@app.cell(hide_code=True)
def _(own_ratio, with_prefix):
    lesson.md(f"""
    Weighted by its own ratio, the second word is pushed by {own_ratio:+.1f}. The true gradient is
    −{abs(with_prefix):.1f}: the other way. The correct weight of a token also contains the ratios of
    the tokens before it, its *prefix*, and, since the reward comes at the end, of those after it. The product over a whole episode is right
    (Precup, Sutton and Singh 2000), but its variance grows with every token. So losses for old data
    accept some error, and limit the harm that it does.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A run that falls

    Now the language model. Here is the whole experiment. The loop keeps the newest version
    and the `lag` before it. It samples with the oldest of them, and trains the newest, with two updates on each
    batch. The first `lag` steps all use version 0, so data are *up to* `lag` versions old.
    """)
    return


@app.cell
def settings():
    config = SimpleNamespace(
        policy="embedded",
        seed=2,  # one of the three seeds of the recorded study
        learning_rate=4e-4,
        lag=8,
        steps=15,  # trained here; the learning rate falls as in the recorded 60 steps
        schedule_steps=60,
        eval_every=5,
        eval_tasks=40,  # of each point of a curve
        ages=(0, 1, 4, 8),  # at which the ratios of one batch are looked at, in versions
        wrong_share=0.05,  # of tokens whose log-prob the second run records wrongly
        wrong_spread=5.0,
    )
    return (config,)


@app.cell(hide_code=True)
def _(config):
    torch.set_num_threads(1)
    policy = load_policy(config.policy)
    conditions = Conditions(
        policy=config.policy,
        steps=config.schedule_steps,
        learning_rate=config.learning_rate,
    )
    environment = Zorplex(config.seed)
    before = held_out_accuracy(
        policy, environment, replace(conditions, held_out_tasks=config.eval_tasks)
    )
    lesson.ran_on(policy)
    return before, conditions, environment, policy


@app.function
def train_on_old_data(loss, lag, conditions, seed, steps, watch, disturb=None):
    """Train on data that are up to ``lag`` versions old. Returns the policy."""
    policy, sampler = load_policy(conditions.policy), load_policy(conditions.policy)
    environment = Zorplex(seed)
    optimizer = torch.optim.AdamW(
        policy.model.parameters(), betas=(0.9, 0.95), weight_decay=0.0
    )
    versions = deque([weights_of(policy)], maxlen=lag + 1)
    for step in range(steps):
        sampler.model.load_state_dict(versions[0])  # the oldest one that is kept
        episodes = sample_batch(sampler, environment, step, seed, conditions)
        batches = collate(
            episodes, advantages_of(episodes, conditions.samples), token_budget=8192
        )  # the most tokens of a micro-batch
        tokens = sum(batch.mask.sum().item() for batch in batches)
        for batch in batches if disturb else ():
            disturb(batch, step)
        watch(step, policy, batches)
        share = schedule(step, conditions.warmup_steps, conditions.steps)
        optimizer.param_groups[0]["lr"] = conditions.learning_rate * share
        for _ in range(conditions.updates_per_batch):
            for b in batches:
                logp, _ = token_logprobs(policy, b)
                loss(logp, b.behaviour_logp, b.advantage, b.mask, tokens).backward()
            torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        versions.append(weights_of(policy))
    return policy


@app.function
def plain(logp, behaviour_logp, advantage, mask, tokens):
    """Take old data for fresh ones (Williams 1992)."""
    return -(advantage[:, None] * logp * mask).sum() / tokens


@app.function
def log_ratios(policy, batches):
    """log π − log μ of the sampled tokens, one tensor for each episode."""
    found = []
    for batch in batches:
        with torch.no_grad():
            logp, _ = token_logprobs(policy, batch)
        rows = zip(logp - batch.behaviour_logp, batch.mask.bool(), strict=True)
        found += [row[sampled] for row, sampled in rows]
    return found


@app.function
def sample_sizes(log_ratios):
    """The effective sample size, as a share, of tokens and of episodes."""

    def share(logs):
        ratios = (logs - logs.max()).double().exp()  # a common factor cancels
        return (ratios.sum() ** 2 / (len(ratios) * (ratios**2).sum())).item()

    return share(torch.cat(log_ratios)), share(
        torch.stack([row.sum() for row in log_ratios])
    )


@app.cell(hide_code=True)
def _(config):
    ask_plain = lesson.predict(
        f"The same {config.steps} steps with the plain loss, on fresh data and on data up to {config.lag} versions old. What happens to accuracy on held-out tasks with the old data?",
        "it rises as with fresh data",
        "it rises, then stays where it is",
        "it rises, then falls below where it began",
    )
    ask_plain
    return (ask_plain,)


@app.cell(hide_code=True)
def _(config):
    start_plain = lesson.start_button(f"Train twice, {config.steps} steps", seconds=20)
    start_plain
    return (start_plain,)


@app.cell(hide_code=True)
def _(config, start_plain):
    lesson.wait_for(start_plain)
    plain_curve = LiveCurve(config.steps, title="The plain loss")
    None if lesson.unattended() else plain_curve
    return (plain_curve,)


@app.cell
def _(conditions, config, environment):
    def accuracy_of(name, loss, lag, curve, also=lambda *_: None):
        """Train with ``loss``, draw ``curve``, and return its last point."""
        follow = nb09.follow(curve, name, environment, conditions, config)

        def watch(step, policy, batches):
            follow(step, policy, batches)
            also(step, policy, batches)

        trained = train_on_old_data(loss, lag, conditions, config.seed, config.steps, watch)
        watch(config.steps, trained, None)
        return nb09.points(curve)[name][-1][1]

    return (accuracy_of,)


@app.cell
def _(accuracy_of, conditions, config, environment, plain_curve, policy):
    plain_curve.clear()
    card = nb09.falling(policy, environment, conditions, config.steps)
    # A batch of version 0 that no step trains on. Each later version looks back at it.
    _kept = sample_batch(load_policy(config.policy), environment, 1000, 0, conditions)
    _batches = collate(_kept, advantages_of(_kept, conditions.samples), token_budget=8192)
    kept_at = {}

    def _look_back(step, policy, batches):
        if step in config.ages:
            kept_at[step] = log_ratios(policy, _batches)

    def _show(step, policy, batches):
        if step:
            card.play(policy, step)

    ended = {
        "plain, fresh data": accuracy_of(
            "plain, fresh data", plain, 0, plain_curve, also=_look_back
        ),
        "plain, old data": accuracy_of(
            "plain, old data", plain, config.lag, plain_curve, also=_show
        ),
    }
    card.seal()
    return card, ended, kept_at


@app.cell(hide_code=True)
def _(ask_plain, before, card, config, ended, kept_at):
    _fresh, _old = ended.values()
    _tokens = {
        f"lag {age}": torch.cat(rows).exp().tolist() for age, rows in kept_at.items()
    }
    _sizes = {age: sample_sizes(rows) for age, rows in kept_at.items()}
    _last = _sizes[max(config.ages)]
    lesson.reveal(
        ask_plain,
        right=2 if _old < before else 1 if _old < _fresh - 0.1 else 0,
        why=f"""
    Before training {before:.0%} of the tasks were right; after {config.steps} steps {_fresh:.0%} with
    fresh data and {_old:.0%} with old ones. Nothing else differs. The card shows the run on old data, word by word. Its first question is notebook 05's.

    Most tokens have hardly moved, a few very much. At lag {max(config.ages)}, the effective sample
    size of the tokens is {_last[0]:.0%}; that of the *episodes*, whose ratio is the product over all
    tokens, {_last[1]:.0%}.
    """,
        shows=[
            card,
            lesson.figure(
                lines.ratio_chart(
                    _tokens, {f"lag {age}": size for age, (size, _) in _sizes.items()}
                ),
                "Each dot is one of 120 equal parts of the tokens. At the right: their effective sample size.",
            ),
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Two losses for old data

    With advantage A and ratio r = π/μ, a token's *objective* is what training makes larger.

    | loss | objective of a token | idea |
    |---|---|---|
    | plain | A log π | take the data for fresh |
    | clipped (PPO, Schulman et al. 2017) | min(r A, clip(r, 0.8, 1.2) A) | stop a token that has moved by 20 % in the wanted direction; let it come back |
    | masked (after IcePop, Ling Team 2025) | r A if 0.5 ≤ r ≤ 2, else 0 | leave out a token whose ratio is far off |

    Sum over the tokens that the policy sampled (`mask` is 1) and divide by `tokens`, their number in
    the whole batch. A loss is minus that. The package has more losses (`--loss`); its `icepop`
    has other bounds, 0.5 and 5.
    """)
    return


@app.cell(hide_code=True)
def _():
    ask_push = lesson.predict(
        "A bad token (A = −1) is ten times rarer than when it was sampled: r = 0.1. Which loss goes on pushing it down with full strength?",
        "plain",
        "clipped",
        "masked",
        "none of them",
    )
    ask_push
    return (ask_push,)


@app.cell(hide_code=True)
def _(ask_push):
    _losses = {"plain": plain, "clipped": Solutions.clipped, "masked": Solutions.masked}
    _at = [nb09.push(loss, 0.1, -1.0) for loss in _losses.values()]
    _ratios = [0.01 * number for number in range(1, 301)]
    lesson.reveal(
        ask_push,
        right=[index for index, found in enumerate(_at) if found > 0.99] or [3],
        why="""
    Plain pushes a token that is already rare, at every step. Its probability goes to tokens that were
    not sampled, and no reward says what those are worth. Clipping stops the push in one
    direction only: a bad token with r = 3 is pushed three times as hard. Masking stops it in both, so this
    loss never brings back a token that has drifted far.
    """,
        shows=[
            lesson.figure(
                lines.push_chart(_ratios, nb09.pushes(_losses, _ratios)),
                "The factor at ∇ log π, from the gradients of the losses.",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 1: the clipped loss

    Write it. It trains the run below.
    """)
    return


@app.function
def clipped(logp, behaviour_logp, advantage, mask, tokens):
    """Return the clipped loss of a batch, a tensor with one number.

    ``logp``, ``behaviour_logp`` and ``mask`` are [B, T], ``advantage`` is [B], ``tokens`` a number.
    With logp = behaviour_logp = [[-1.0]], advantage [2.0], mask [[1.0]] and 4 tokens: −0.5.
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
            "`torch.minimum` takes the smaller, token by token. Then mask, sum, divide, and mind the sign.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 2: the masked loss

    It begins like the clipped loss, but leaves out other tokens.
    """)
    return


@app.function
def masked(logp, behaviour_logp, advantage, mask, tokens):
    """Return the masked loss of a batch: tokens with a ratio outside 0.5 … 2 count nothing.

    With a ratio of 1.5, advantage [2.0], mask [[1.0]] and 4 tokens: −0.75. With a ratio of 3: 0.
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: masked,
        Solutions,
        level="warm-up",
        minutes=4,
        lines=4,
        hints=(
            "Which tokens count? That is one more mask. Which number do you divide by: that of the tokens that count, or `tokens`?",
            "`trusted = mask * (ratio >= 0.5) * (ratio <= 2.0)`, and `ratio * advantage[:, None]` is the objective.",
        ),
    )
    return


@app.cell
def _():
    clipped_loss, whose_clipped = exercise.running(lambda: clipped, Solutions)
    masked_loss, whose_masked = exercise.running(lambda: masked, Solutions)
    return clipped_loss, masked_loss, whose_clipped, whose_masked


@app.cell(hide_code=True)
def _(config, whose_clipped, whose_masked):
    lesson.md(f"""
    ## The same run, with your losses

    We repeat the run on data up to {config.lag} versions old: with {whose_clipped}, and with {whose_masked}.
    """)
    return


@app.cell(hide_code=True)
def _():
    ask_saved = lesson.predict(
        "Which of the two ends above the accuracy before training?",
        "both",
        "clipped only",
        "masked only",
        "neither",
    )
    ask_saved
    return (ask_saved,)


@app.cell(hide_code=True)
def _(config):
    start_saved = lesson.start_button(f"Train twice, {config.steps} steps", seconds=20)
    start_saved
    return (start_saved,)


@app.cell(hide_code=True)
def _(config, start_saved):
    lesson.wait_for(start_saved)
    saved_curve = LiveCurve(config.steps, title="Two losses for old data")
    None if lesson.unattended() else saved_curve
    return (saved_curve,)


@app.cell
def _(accuracy_of, clipped_loss, config, masked_loss, saved_curve):
    lesson.needs(lambda: saved_curve)
    saved_curve.clear()
    saved = {
        name: accuracy_of(name, loss, config.lag, saved_curve)
        for name, loss in (
            ("clipped, old data", clipped_loss),
            ("masked, old data", masked_loss),
        )
    }
    return (saved,)


@app.cell
def _(config):
    study = read_study(Path(mo.notebook_dir()).parent / "benchmarks" / "staleness.jsonl")
    lags = read_study(Path(mo.notebook_dir()).parent / "benchmarks" / "lags.jsonl")
    seeds = study.whole_seeds
    in_study = {
        "plain, fresh data": ("reinforce", 0, config.learning_rate),
        "plain, old data": ("reinforce", config.lag, config.learning_rate),
        "clipped, old data": ("grpo", config.lag, config.learning_rate),
    }
    return in_study, lags, seeds, study


@app.cell(hide_code=True)
def _(
    ask_saved,
    before,
    config,
    ended,
    in_study,
    plain_curve,
    saved,
    saved_curve,
    seeds,
    study,
):
    lesson.needs(lambda: (ended, saved))
    _clipped, _masked = (found > before for found in saved.values())
    _ends = {
        (cell.loss, cell.lag, cell.learning_rate): cell.accuracy
        for cell in study.cells(seeds)
    }
    _mean = {name: _ends[key] for name, key in in_study.items()}
    lesson.reveal(
        ask_saved,
        right={(True, True): 0, (True, False): 1, (False, True): 2}.get(
            (_clipped, _masked), 3
        ),
        why=f"""
    Clipped ends at {saved["clipped, old data"]:.0%}, masked at {saved["masked, old data"]:.0%}, plain
    at {ended["plain, old data"]:.0%}; before training it was {before:.0%}. Here the tokens are far off
    because *training moved them*. Clipping stops the push early, at 0.8 and 1.2, and pulls back what
    went too far. Masking stops late and never pulls back.

    The thin lines are recorded: three seeds over 60 steps. After the last one, plain has
    {_mean["plain, fresh data"]:.0%} with fresh and {_mean["plain, old data"]:.0%} with old data,
    clipped {_mean["clipped, old data"]:.0%} with old data.
    """,
        shows=[
            lesson.figure(
                lines.runs_chart(
                    nb09.points(plain_curve, saved_curve),
                    before,
                    nb09.recorded(study, in_study),
                    height=460,
                ),
                f"Thick: trained by this page. Thin: recorded {study.dates} with `python {study.command}`. Each point: {config.eval_tasks} held-out tasks.",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _(config):
    lesson.md(f"""
    ## A run that needs the other loss

    Ratios can be off on fresh data, too: the engine that samples and the one that trains may compute
    slightly different probabilities. In large mixture-of-experts models, some tokens then differ a lot
    (Ling Team 2025). We plant that fault: at lag 0, {config.wrong_share:.0%} of the recorded
    log-probs get noise.
    """)
    return


@app.cell
def _(config):
    wrong_records = partial(
        nb09.other_engine, share=config.wrong_share, spread=config.wrong_spread
    )
    return (wrong_records,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 3: which loss does a run need?

    Decide before you train. You get log π − log μ for the tokens of a fresh batch, and for those of a
    batch as old as the run's data. If more than 1 % of the *fresh* tokens have a ratio outside 0.8 … 1.2,
    the engines disagree: `"masked"`. Otherwise, if more than 1 % of the *old* tokens do, training has
    moved them: `"clipped"`. Otherwise `"plain"`.
    """)
    return


@app.function
def loss_for(fresh, old):
    """Name the loss that a run needs, from two lists of log π − log μ.

    loss_for([0.0, 0.0], [0.0, 1.0]) is "clipped": half of the old ratios are e, about 2.7.
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: loss_for,
        Solutions,
        level="stretch",
        minutes=5,
        lines=5,
        hints=(
            "What is needed twice? And is 0.8 a bound of the ratio, or of its logarithm?",
            "A function inside: the share of a list whose `math.exp` is below 0.8 or above 1.2. Ask it for `fresh` first, then for `old`.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    start_wrong = lesson.start_button(
        "Measure both runs, train the second one twice", seconds=20
    )
    start_wrong
    return (start_wrong,)


@app.cell
def _(
    clipped_loss,
    conditions,
    config,
    environment,
    kept_at,
    masked_loss,
    start_wrong,
    wrong_records,
):
    lesson.wait_for(start_wrong)
    decide, whose_choice = exercise.running(lambda: loss_for, Solutions)
    _seen = []

    def _measure(step, policy, batches):
        if step == 0:
            _seen.extend(torch.cat(log_ratios(policy, batches)).tolist())

    def _ends_at(loss):
        trained = train_on_old_data(
            loss, 0, conditions, config.seed, config.steps, _measure, wrong_records
        )
        return held_out_accuracy(trained, environment, conditions)

    wrong = {"clipped": _ends_at(clipped_loss), "masked": _ends_at(masked_loss)}
    _fresh, _old = (torch.cat(kept_at[age]).tolist() for age in (0, max(config.ages)))
    chosen_for = {"old data": decide(_fresh, _old), "wrong records": decide(_seen, _seen)}
    return chosen_for, whose_choice, wrong


@app.cell(hide_code=True)
def _(chosen_for, conditions, whose_choice, wrong):
    lesson.md(f"""
    We ask {whose_choice}. For the run on old data it says *{chosen_for["old data"]}*, for the one with
    wrong records *{chosen_for["wrong records"]}*. Of {conditions.held_out_tasks} held-out tasks, clipped with wrong records ends at
    {wrong["clipped"]:.0%} and masked at {wrong["masked"]:.0%}. Where
    a recorded probability is e⁵ times too small, the ratio is 148, and clipping pushes a bad token 148
    times as hard.
    """)
    return


@app.cell(hide_code=True)
def _(config, study):
    lesson.md(f"""
    ## Is it the lag, the rate or the loss?

    A recorded study has trained every combination of loss, lag, rate and seed to the end, {len(study.rows)} runs. The *phase
    diagram* is its map. *Truncated* multiplies the plain loss by min(r, 2) (Ionides 2008; Espeholt et
    al. 2018). **Decoupled PPO** clips around recent weights and corrects for μ with a
    truncated weight (Hilton et al. 2022; Fu et al. 2025). Look at lag 0, the control: at the highest
    rate, the plain loss fails in most seeds even on fresh data. Notebook 11, the laboratory, shows how to tell the
    causes apart.
    """)
    return


@app.cell(hide_code=True)
def _(before, config, seeds, study):
    diagram = PhaseDiagram(
        study,
        nb09.NAMES,
        before,
        seeds,
        chosen={"loss": "grpo", "lag": config.lag, "learning_rate": config.learning_rate},
    )
    diagram
    return (diagram,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    One small policy, one task, three seeds. *Check a cell yourself:* choose one, then press the
    button. It trains that cell with seed 0.
    """)
    return


@app.cell(hide_code=True)
def _(config):
    start_cell = lesson.start_button(
        f"Train the chosen cell, {config.schedule_steps} steps", seconds=60
    )
    start_cell
    return (start_cell,)


@app.cell
def _(conditions, diagram, start_cell):
    lesson.wait_for(start_cell)
    chosen, live = dict(diagram.chosen), None
    if not lesson.unattended():
        live = train_with_lag(
            Trial(chosen["loss"], chosen["lag"], seed=0),  # one run of the study
            replace(conditions, learning_rate=chosen["learning_rate"]),
        )
    return chosen, live


@app.cell(hide_code=True)
def _(chosen, live, study):
    _key = (chosen["loss"], chosen["lag"], chosen["learning_rate"], 0)
    _recorded = next((row for row in study.rows if row.key == _key), None)
    _said = (
        "not in the study" if _recorded is None else f"recorded: {_recorded.accuracy:.1%}"
    )
    lesson.md(
        f"{nb09.NAMES[chosen['loss']]}, lag {chosen['lag']}, rate {chosen['learning_rate']:g}: {live.accuracy:.1%} here; {_said}. "
        "On another kind of machine a run may take another path."
        if live
        else "In `marimo edit`, a button here trains the chosen cell and compares it with the record."
    )
    return


@app.cell(hide_code=True)
def _(lags):
    lesson.md(f"""
    ## How much lag?

    Lag buys time: notebook 08 measures how much. In a recorded benchmark with tools of 50 ms, lag 1 made 1.25 times as many episodes a second as lag 0.
    Lag 4 made 1.80 times as many (`benchmarks/LOG.md`, 2026-11-22, two cores). Lag costs accuracy: at lag {nb09.accuracy_by_lag(lags)}. That is after {lags.conditions["steps"]}
    steps, the mean of {lags.whole_seeds} seeds, recorded {lags.dates}. With {lags.whole_seeds} seeds,
    the differences between lags 0 and 4 are noise. So choose the smallest `max_lag` beyond which a run gets
    no faster.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.predicted(3)
    return


@app.cell(hide_code=True)
def _():
    lesson.recap(
        "The lag of a batch counts the versions between the policy that sampled it and the one in training.",
        "A ratio for each token leaves a bias, since the prefix has a ratio, too. The product over an episode has no bias, but too much variance.",
        "The plain loss on old data pushes tokens that are already rare, step after step.",
        "Clipping stops the push and lets tokens return: use it for old data. Masking leaves out what cannot be trusted: use it for wrong records.",
        "Before you blame the lag, run the control: the same run on fresh data.",
    )
    return


@app.cell(hide_code=True)
def _(before, config, ended, saved):
    lesson.needs(lambda: (ended, saved))
    lesson.headline(
        f"data up to {config.lag} versions old took the policy from {before:.0%} to {ended['plain, old data']:.0%}, where fresh data took it to {ended['plain, fresh data']:.0%}; with the clipped loss, old data took it to {saved['clipped, old data']:.0%}."
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
    - Ling Team 2025, *Every step evolves* (Ring-1T; IcePop, masking)
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

    def check_clipped(clipped):
        exercise.agree(clipped, Solutions.clipped, nb09.draw_batch, gradients=True)

    def clipped(logp, behaviour_logp, advantage, mask, tokens):
        ratio = (logp - behaviour_logp).exp()
        weighted = ratio * advantage[:, None]
        bounded = ratio.clamp(0.8, 1.2) * advantage[:, None]
        return -(torch.minimum(weighted, bounded) * mask).sum() / tokens

    def check_masked(masked):
        # Its gradient is what matters: the ratio may be detached, beside the log-prob.
        exercise.agree(
            masked, Solutions.masked, nb09.draw_batch, gradients=True, values=False
        )

    def masked(logp, behaviour_logp, advantage, mask, tokens):
        ratio = (logp - behaviour_logp).exp()
        trusted = mask * (ratio >= 0.5) * (ratio <= 2.0)
        objective = ratio * advantage[:, None]
        return -(objective * trusted).sum() / tokens

    def check_loss_for(loss_for):
        exercise.expect(loss_for, [0.0, 0.0], [0.0, 1.0], result="clipped")
        exercise.agree(loss_for, Solutions.loss_for, nb09.draw_gaps, times=60)

    def loss_for(fresh, old):
        def outside(logs):
            return sum(not 0.8 <= math.exp(log) <= 1.2 for log in logs) / len(logs)

        if outside(fresh) > 0.01:
            return "masked"
        return "clipped" if outside(old) > 0.01 else "plain"


if __name__ == "__main__":
    app.run()
