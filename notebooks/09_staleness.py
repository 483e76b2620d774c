# /// script
# [tool.marimo.display]
# theme = "system"
# ///

import marimo

__generated_with = "0.25.2"
app = marimo.App(
    width="medium",
    app_title="Staleness: what old data cost, and the line that saves a run",
    css_file="../zorplex_rl/course/lesson/lesson.css",
)

with app.setup(hide_code=True):
    import math
    import time
    from collections import deque
    from dataclasses import replace
    from pathlib import Path
    from statistics import fmean, variance
    from types import SimpleNamespace

    import marimo as mo
    import torch

    from zorplex_rl.course.figures import staleness_charts
    from zorplex_rl.course.lesson import exercise, lesson
    from zorplex_rl.course.recorded_study import read_study, warnings
    from zorplex_rl.course.staleness import (
        Conditions,
        Trial,
        advantages_of,
        fresh_learner,
        held_out_accuracy,
        sample_batch,
        train_with_lag,
        weights_of,
    )
    from zorplex_rl.course.widgets import LiveCurve, PhaseDiagram
    from zorplex_rl.learning.batches import collate
    from zorplex_rl.learning.learner import schedule, token_logprobs
    from zorplex_rl.learning.losses import (
        LOSSES,
        effective_sample_size,
        episode_ratios,
        mismatch,
    )
    from zorplex_rl.policy.load import load_policy
    from zorplex_rl.simulation.recorded import group_variation
    from zorplex_rl.simulation.setting import Setting
    from zorplex_rl.simulation.simulate import simulate_async, simulate_sync
    from zorplex_rl.task.environment import Zorplex
    from zorplex_rl.timeline import group_latencies

    NAMES = {
        "reinforce": "plain",
        "tis": "truncated",
        "grpo": "clipped",
        "decoupled_ppo": "decoupled",
    }
    ACCURACY, TOKENS, EPISODES = (
        "held-out accuracy",
        "sample size, tokens",
        "sample size, episodes",
    )


@app.cell(hide_code=True)
def _():
    lesson.header(
        __file__,
        minutes=40,
        hardware="two CPU cores, no network",
        goals=[
            "say whether data are on-policy or off-policy, and measure how far off",
            "weigh samples of an old policy by hand, and say what that costs",
            "make a training run collapse, and save it with one line of your own",
            "read a phase diagram of learning rate, lag and loss, also where a correction does nothing",
            "put a price on lag: seconds bought, accuracy paid",
        ],
    )
    return


@app.cell
def settings():
    config = SimpleNamespace(
        policy="embedded",
        seed=0,
        prompts=6,  # in a training batch
        samples=6,  # of each prompt
        ages=(0, 1, 4, 8),  # at which the ratios of one batch are looked at, in versions
        learning_rate=4e-4,  # of the policy that moves away from that batch
        collapse_rate=8e-4,  # of the run that collapses, and of the same run saved
        collapse_lag=8,
        collapse_steps=20,
        eval_every=2,
        eval_tasks=40,
        price_rate=4e-4,  # of the study's cells that the last section compares
        price_lags=(0, 1, 2, 8, 32),
        live_steps=60,
    )
    return (config,)


@app.cell
def _(config):
    torch.set_num_threads(1)
    policy = load_policy(config.policy)
    conditions = Conditions(
        policy=config.policy,
        steps=config.live_steps,
        prompts=config.prompts,
        samples=config.samples,
        learning_rate=config.learning_rate,
    )
    environment = Zorplex(config.seed)
    lesson.ran_on(policy)
    return conditions, environment, policy


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Whose data is it?

    A policy gradient asks one question: which of *my own* actions were better than I expected? The data must come from the policy that is
    being trained. Such data are **on-policy**.

    An asynchronous system cannot wait for that. While the trainer works, the generator samples with weights that it pulled some versions
    ago. Those data are **off-policy**. Two letters keep the two policies apart:

    - π is the policy being trained: the trainer's newest weights.
    - μ is the **behaviour policy**: the weights that sampled the data, and the log-probs that were recorded then.

    Each training step makes a new **policy version**. The age of the data, counted in versions, is the **lag**. At lag 0, π and μ are the same policy.
    `max_lag`, the dial of notebook 05, is the largest lag that a run admits.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.figure(
        staleness_charts.lag_drawing([0, 2]),
        "Each training step makes the next version. At lag 2 a step trains on what the version of two steps ago has sampled. The first two steps have nothing older than version 0.",
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    In notebook 08 the lag came out of the timing, and differed from group to group. On this page it is set, so that you can see what it does.

    ## The ratio, by hand

    Forget the language model for a moment. There are three tokens, each with a reward, and two policies over them.
    """)
    return


@app.cell
def _():
    mu = torch.tensor([0.6, 0.3, 0.1])  # the old policy: it has sampled
    pi = torch.tensor([0.2, 0.3, 0.5])  # the new policy: what would it earn?
    reward = torch.tensor([0.0, 1.0, 2.0])

    tokens = torch.multinomial(mu, 1000, replacement=True)
    ratio = (pi / mu)[tokens]

    truth = (pi * reward).sum()
    plain_mean = reward[tokens].mean()
    weighted_mean = (ratio * reward[tokens]).mean()
    return mu, pi, plain_mean, ratio, reward, truth, weighted_mean


@app.cell(hide_code=True)
def _(plain_mean, truth, weighted_mean):
    lesson.table(
        "Mean reward of the new policy, from 1,000 samples of the old one",
        [
            {"estimate": name, "value": f"{value:.2f}"}
            for name, value in (
                ("the truth, Σ π · reward", truth),
                ("mean of the rewards: that of the old policy", plain_mean),
                ("mean of ratio · reward", weighted_mean),
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    The **importance ratio** π/μ repairs the mean: a token that the new policy likes more counts more. It has a price, and you can guess it before
    you measure it.
    """)
    return


@app.cell(hide_code=True)
def _():
    ask_error = lesson.predict(
        "Repeat the estimate many times. How far is it from the truth, typically, compared with a mean of 1,000 *fresh* samples of the new policy?",
        "about as far",
        "less far",
        "further",
    )
    ask_error
    return (ask_error,)


@app.cell
def _(mu, pi, reward, truth):
    def typical_error(policy, weights, repeats=2000):
        """Root mean squared error of a mean of 1,000 weighted rewards."""
        drawn = torch.multinomial(policy, repeats * 1000, replacement=True)
        means = (weights * reward)[drawn].view(repeats, 1000).mean(1)
        return (means - truth).square().mean().sqrt().item()

    weighted_error = typical_error(mu, pi / mu)
    fresh_error = typical_error(pi, torch.ones(3))
    return fresh_error, weighted_error


@app.function
def sample_size(ratios):
    """The effective sample size, as a share: 1.0 if all ratios are equal."""
    return (ratios.sum() ** 2 / (len(ratios) * (ratios**2).sum())).item()


@app.cell(hide_code=True)
def _(ask_error, fresh_error, ratio, weighted_error):
    _times = weighted_error / fresh_error
    lesson.reveal(
        ask_error,
        right=2 if _times > 1.1 else 1 if _times < 0.9 else 0,
        why=f"""
    The error is {weighted_error:.3f} with weighted samples and {fresh_error:.3f} with fresh ones: {_times:.1f} times as large. A few samples
    with a large ratio make most of the mean, and the rest hardly count. The **effective sample size** says how many are left: here
    {sample_size(ratio):.0%} of 1,000. It needs the ratios only, so it can be watched while a run goes on.
    """,
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Ratios of real tokens

    Now the language model. Sample one batch with version 0 and keep it. Then train on *other*, fresh batches, and look back at the kept batch
    from each new version. The log-prob under μ was recorded when the token was sampled; that under π is computed now. The ratio is e to their
    difference. The ratio of a whole episode is the product of those of its tokens, so its logarithm is their sum.
    """)
    return


@app.function
def log_ratios(policy, batches):
    """log π − log μ of the sampled tokens: a tensor for each episode."""
    found = []
    for batch in batches:
        with torch.no_grad():
            logp, _ = token_logprobs(policy, batch)
        rows = zip(logp - batch.behaviour_logp, batch.mask.bool(), strict=True)
        found += [row[sampled] for row, sampled in rows]
    return found


@app.function
def sample_sizes(log_ratios):
    """The effective sample sizes of tokens and of episodes."""
    tokens = torch.cat(log_ratios)
    episodes = torch.stack([row.sum() for row in log_ratios]).double()
    # A common factor cancels. Without it, all ratios could be rounded to 0.
    return sample_size(tokens.exp()), sample_size((episodes - episodes.max()).exp())


@app.cell(hide_code=True)
def _(config):
    ask_tokens = lesson.predict(
        f"The policy has moved on by {max(config.ages)} versions, at an ordinary learning rate. The kept batch has {config.prompts * config.samples} episodes. "
        "By their effective sample size: as how many fresh episodes do they count?",
        "nearly all, 30 or more",
        "10 to 29",
        "fewer than 10",
    )
    ask_tokens
    return (ask_tokens,)


@app.cell(hide_code=True)
def _(config):
    start_ageing = lesson.start_button(
        f"Train {max(config.ages)} versions and look back", seconds=15
    )
    start_ageing
    return (start_ageing,)


@app.cell
def _(conditions, config, environment, start_ageing):
    lesson.wait_for(start_ageing)
    learner = fresh_learner(
        Trial("reinforce", 0, config.seed), replace(conditions, warmup_steps=0)
    )
    kept = sample_batch(learner.policy, environment, 0, config.seed, conditions)
    # One padded batch of at most so many tokens after another, as tensors [B, T].
    kept_batches = collate(kept, advantages_of(kept, config.samples), token_budget=8192)
    kept_at, seconds, fresh_batches = {}, [], []
    for _version in range(max(config.ages) + 1):
        if _version in config.ages:
            kept_at[_version] = log_ratios(learner.policy, kept_batches)
        _began = time.monotonic()
        _fresh = sample_batch(
            learner.policy, environment, _version + 1, config.seed, conditions, _version
        )
        _sampled = time.monotonic()
        learner.step(_fresh, advantages_of(_fresh, config.samples))
        seconds.append((_sampled - _began, time.monotonic() - _sampled))
        fresh_batches.append(_fresh)
    return fresh_batches, kept_at, kept_batches, learner, seconds


@app.cell(hide_code=True)
def _(ask_tokens, config, kept_at):
    _tokens = {age: torch.cat(rows).exp() for age, rows in kept_at.items()}
    _sizes = {age: sample_sizes(rows) for age, rows in kept_at.items()}
    _oldest = max(config.ages)
    _last, _episodes = _tokens[_oldest], len(kept_at[_oldest])
    _left = _sizes[_oldest][1] * _episodes
    _half = (_last - 1).abs().median()
    lesson.reveal(
        ask_tokens,
        right=0 if _left > 29.5 else 1 if _left > 9.5 else 2,
        why=f"""
    At lag {_oldest} the {_episodes} episodes count as {_left:.0f}. Token by token it looks better: {len(_last)} tokens count as
    {_sizes[_oldest][0] * len(_last):.0f}. Half of the
    tokens are within {_half:.1%} of a ratio of 1. But an episode has about
    {len(_last) / _episodes:.0f} of them, and one that has moved far is enough.
    """,
        shows=[
            lesson.figure(
                staleness_charts.ratio_chart(
                    {f"lag {age}": found.tolist() for age, found in _tokens.items()},
                    {f"lag {age}": size for age, (size, _) in _sizes.items()},
                ),
                "Each dot is one of 120 equal parts of the batch's tokens. Dots beyond 32 or 1/32 are at the edge. At the right: the effective sample size of the tokens.",
            ),
            lesson.table(
                "Effective sample size of the kept batch",
                [
                    {
                        "lag": age,
                        "tokens": f"{of_tokens:.0%}",
                        "episodes": f"{of_episodes:.0%}",
                    }
                    for age, (of_tokens, of_episodes) in _sizes.items()
                ],
            ),
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    The package reports both numbers in every training step of every run: `effective_sample_size` and `episode_sample_size`. Here is the same
    batch, measured by the package.
    """)
    return


@app.cell(hide_code=True)
def _(config, kept_batches, learner):
    by_hand = sample_sizes(log_ratios(learner.policy, kept_batches))

    logps = [token_logprobs(learner.policy, batch)[0].detach() for batch in kept_batches]
    both = list(zip(logps, kept_batches, strict=True))
    by_package = (
        mismatch(
            torch.cat([logp.flatten() for logp in logps]),
            torch.cat([batch.behaviour_logp.flatten() for batch in kept_batches]),
            torch.cat([batch.mask.flatten() for batch in kept_batches]),
        )["effective_sample_size"],
        effective_sample_size(
            torch.cat([episode_ratios(logp, b.behaviour_logp, b.mask) for logp, b in both])
        ),
    )
    lesson.md(
        f"At lag {max(config.ages) + 1}, tokens: {by_hand[0]:.6f} by hand, {by_package[0]:.6f} in `losses.py`. "
        f"Episodes: {by_hand[1]:.6f} and {by_package[1]:.6f}."
    )
    return by_hand, by_package


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 1: the weight of a stale token

    A ratio of 30 makes one token count like 30. **Truncated importance sampling** allows no more than a limit. Complete `truncated_weight`: the
    weight of a token, from its log-prob under π, the log-prob it was sampled with, and the limit.
    """)
    return


@app.function
def truncated_weight(logprob, behaviour_logprob, limit):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: truncated_weight,
        check_truncated_weight,
        truncated_weight_solution,
        level="warm-up",
        minutes=3,
        hints=(
            "A ratio of probabilities is e to the difference of their logarithms.",
            "Take the smaller of that ratio and the limit.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## What a loss does with a ratio

    Each of these is the objective of a token: what training makes larger. They differ in what they do with the ratio. The *advantage* is that of
    notebook 05: how much better the token's episode did than its group.
    """)
    return


@app.function
def plain(logp, behaviour_logp, advantage):
    """Take stale data for fresh ones."""
    return advantage * logp


@app.function
def weighted(logp, behaviour_logp, advantage):
    """Weigh each token by its ratio."""
    ratio = (logp - behaviour_logp).exp()
    return ratio * advantage


@app.function
def truncated(logp, behaviour_logp, advantage):
    """Weigh each token by its ratio, but by no more than 2."""
    ratio = (logp.detach() - behaviour_logp).exp()  # a constant: no gradient
    return ratio.clamp(max=2.0) * advantage * logp


@app.function
def as_loss(objective):
    """Make a loss: minus the mean objective of the batch's sampled tokens."""

    def loss(logp, behaviour_logp, advantage, mask, tokens):
        per_token = objective(logp, behaviour_logp, advantage[:, None])
        return -(per_token * mask).sum() / tokens, {}

    return loss


@app.cell(hide_code=True)
def _():
    ask_push = lesson.predict(
        "A bad token (advantage −1) was sampled eight versions ago. Since then training has made it ten times rarer: its ratio is 0.1. "
        "Which objective goes on pushing it down with full strength?",
        "plain",
        "weighted",
        "truncated",
        "none of them",
    )
    ask_push
    return (ask_push,)


@app.function
def push(loss, ratio, advantage):
    """By what ``loss`` multiplies ∇ log π of a token with this ratio."""
    logp = torch.tensor([[math.log(ratio)]], requires_grad=True)
    value, _ = loss(
        logp, torch.zeros(1, 1), torch.tensor([advantage]), torch.ones(1, 1), tokens=1.0
    )
    value.backward()
    return -logp.grad.item() / advantage


@app.cell(hide_code=True)
def _(ask_push):
    _objectives = (plain, weighted, truncated)
    _at = [push(as_loss(objective), 0.1, -1.0) for objective in _objectives]
    _full = [index for index, found in enumerate(_at) if found > 0.99]
    _ratios = [0.01 * number for number in range(1, 301)]
    _pushes = {
        name: tuple(
            [push(LOSSES[loss], ratio, sign) for ratio in _ratios] for sign in (1.0, -1.0)
        )
        for loss, name in NAMES.items()
        if loss != "decoupled_ppo"
    }
    lesson.reveal(
        ask_push,
        right=_full or [3],
        why=f"""
    At ratio 0.1 plain pushes with {_at[0]:.2f}, weighted with {_at[1]:.2f}, truncated with {_at[2]:.2f}. Plain does not know that the token is
    already rare. Each step on old data pushes it down again, although π would hardly sample it any more. The probability that is taken away goes
    somewhere, and nobody has sampled there: no reward says whether it is any good.

    The third line is the one that you write next. With **clipping**, the objective weighs by the ratio too. Once a token has moved by more than 20% in the
    wanted direction, it gives no gradient at all.
    """,
        shows=[
            lesson.figure(
                staleness_charts.push_chart(_ratios, _pushes),
                "From the package's losses, by their gradients. Where lines lie on one another, the losses do the same.",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 2: clip the ratio

    Write the objective that saves the run below. It is `weighted` with another last line. For a token with ratio r and advantage A it is the smaller of r·A and clip(r, 0.8, 1.2)·A. All
    arguments are tensors of shape [B, T], or broadcast to it. What you write here trains the policy in the next section. As long as it is missing,
    the package's `grpo` does.
    """)
    return


@app.function
def corrected(logp, behaviour_logp, advantage):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: corrected,
        check_corrected,
        corrected_solution,
        level="core",
        minutes=6,
        hints=(
            "`ratio.clamp(0.8, 1.2)` is the clipped ratio. The objective compares two products.",
            "`torch.minimum` takes the smaller one of two tensors, token by token.",
        ),
    )
    return


@app.function(hide_code=True)
def plugged_in(attempt):
    """The loss of the reader's objective, and its name; the package's clipped loss as long as the objective is not written."""
    try:
        attempt(torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1))
    except NotImplementedError:
        return LOSSES[
            "grpo"
        ], "the package's `grpo`, because `corrected` is not written yet"
    return as_loss(attempt), "your `corrected`"


@app.cell
def _(kept_batches, learner):
    def gradient(loss):
        """The gradient of ``loss`` on the kept, stale batch, as one long vector."""
        learner.policy.model.zero_grad()
        for batch in kept_batches:
            if batch.advantage.any():
                logp, _ = token_logprobs(learner.policy, batch)
                value, _ = loss(
                    logp, batch.behaviour_logp, batch.advantage, batch.mask, tokens=1.0
                )
                value.backward()
        weights = list(learner.policy.model.parameters())
        found = [weight.grad.flatten() for weight in weights if weight.grad is not None]
        learner.policy.model.zero_grad()
        return torch.cat(found)

    your_loss, whose = plugged_in(corrected)
    by_page = {
        "plain": gradient(as_loss(plain)),
        "truncated": gradient(as_loss(truncated)),
        "clipped": gradient(your_loss),
    }
    by_losses = {
        name: gradient(LOSSES[loss]) for loss, name in NAMES.items() if name in by_page
    }
    return by_losses, by_page, whose, your_loss


@app.cell(hide_code=True)
def _(by_losses, by_page, whose):
    def _apart(one, other):
        share = ((one - other).norm() / other.norm()).item()
        return f"{share:.2f}" if share > 0.005 else f"{share:.0e}" if share else "0"

    lesson.table(
        "Gradients on the stale batch: length of a difference ÷ length of the second",
        [
            {
                "objective": name,
                "page, against `losses.py`": _apart(by_page[name], by_losses[name]),
                "`losses.py`, against plain": _apart(by_losses[name], by_losses["plain"]),
            }
            for name in by_page
        ],
    )
    return


@app.cell(hide_code=True)
def _(whose):
    lesson.md(f"Here the page's *clipped* is {whose}.")
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    The second column compares this page with the package. The third says how much the choice of the objective matters on data this old.

    ## The same run, twice

    Here is the whole experiment. It keeps the last `lag` versions, samples with the oldest of them, and trains the newest: two updates on each
    batch, as PPO does.
    """)
    return


@app.function
def train_on_old_data(loss, lag, conditions, seed, watch):
    """Train on data that are ``lag`` versions old. Returns the policy."""
    policy, sampler = load_policy(conditions.policy), load_policy(conditions.policy)
    environment = Zorplex(seed)
    optimizer = torch.optim.AdamW(
        policy.model.parameters(), betas=(0.9, 0.95), weight_decay=0.0
    )
    versions = deque([weights_of(policy)], maxlen=lag + 1)
    for step in range(conditions.steps):
        sampler.model.load_state_dict(versions[0])  # the oldest one that is kept
        episodes = sample_batch(sampler, environment, step, seed, conditions)
        batches = collate(
            episodes, advantages_of(episodes, conditions.samples), token_budget=8192
        )
        tokens = sum(batch.mask.sum().item() for batch in batches)
        watch(step, policy, batches)
        share = schedule(
            step, conditions.warmup_steps, conditions.steps
        )  # warm-up, then down to a tenth
        optimizer.param_groups[0]["lr"] = conditions.learning_rate * share
        for _ in range(conditions.updates_per_batch):
            for batch in batches:
                logp, _ = token_logprobs(policy, batch)
                objective, _ = loss(
                    logp, batch.behaviour_logp, batch.advantage, batch.mask, tokens
                )
                objective.backward()
            torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        versions.append(weights_of(policy))
    return policy


@app.cell
def _(conditions, config):
    collapse = replace(
        conditions, steps=config.collapse_steps, learning_rate=config.collapse_rate
    )
    return (collapse,)


@app.cell
def _(collapse, config, start_ageing):
    lesson.wait_for(start_ageing)

    def largest_difference(lag=1, steps=2):
        """The same trial by this page's loop and by the package's: how far apart are the weights?"""
        few = replace(collapse, steps=steps, held_out_tasks=1)
        mine = train_on_old_data(as_loss(plain), lag, few, config.seed, lambda *_: None)
        packaged = {}
        train_with_lag(
            Trial("reinforce", lag, config.seed),
            few,
            watch=lambda learner, _: packaged.update(weights_of(learner.policy)),
        )
        ours = weights_of(mine)
        return max((ours[name] - packaged[name]).abs().max().item() for name in ours)

    weights_apart = largest_difference()
    return (weights_apart,)


@app.cell(hide_code=True)
def _(weights_apart):
    lesson.md(
        "Two steps with the loop above, and two with `train_with_lag` of `course/staleness.py`: "
        + (
            f"the weights differ by at most {weights_apart:.0e}."
            if weights_apart
            else "the weights are equal, bit for bit."
        )
    )
    return


@app.cell(hide_code=True)
def _(config):
    ask_plain = lesson.predict(
        f"{config.collapse_steps} steps at lag {config.collapse_lag} and learning rate {config.collapse_rate:g}, with the plain objective. How does held-out accuracy go?",
        "it rises to the end",
        "it rises, then stays where it is",
        "it rises, then falls below where it began",
    )
    ask_plain
    return (ask_plain,)


@app.cell(hide_code=True)
def _():
    ask_first = lesson.predict(
        "If it falls: what falls below half of its best value first?",
        "the accuracy",
        "the effective sample size of the batch's tokens",
        "that of its episodes",
    )
    ask_first
    return (ask_first,)


@app.cell(hide_code=True)
def _(config):
    start_plain = lesson.start_button(
        f"Train {config.collapse_steps} steps, plain", seconds=35
    )
    start_plain
    return (start_plain,)


@app.cell(hide_code=True)
def _(config, start_plain):
    lesson.wait_for(start_plain)
    plain_curve = LiveCurve(
        config.collapse_steps, title="The plain objective on stale data"
    )
    None if lesson.unattended() else plain_curve
    return (plain_curve,)


@app.cell(hide_code=True)
def _(config):
    def watched(curve, environment, conditions, total):
        """What ``train_on_old_data`` calls: it measures accuracy and effective sample size, and draws them."""
        few = replace(conditions, held_out_tasks=config.eval_tasks)
        series = {ACCURACY: [], EPISODES: [], TOKENS: []}

        def add(name, step, value):
            series[name].append((step, value))
            curve.add(name, step, value)

        def watch(step, policy, batches):
            of_tokens, of_episodes = sample_sizes(log_ratios(policy, batches))
            add(TOKENS, step, of_tokens)
            if step % config.eval_every == 0:
                add(ACCURACY, step, held_out_accuracy(policy, environment, few))
            add(EPISODES, step, of_episodes)

        def finish(policy):
            final = held_out_accuracy(policy, environment, conditions)
            add(ACCURACY, total, final)
            return series, final

        return watch, finish

    return (watched,)


@app.cell
def _(collapse, config, environment, plain_curve, watched):
    plain_curve.clear()
    _watch, _finish = watched(plain_curve, environment, collapse, config.collapse_steps)
    _policy = train_on_old_data(
        as_loss(plain), config.collapse_lag, collapse, config.seed, _watch
    )
    plain_series, plain_final = _finish(_policy)
    return plain_final, plain_series


@app.cell
def _(conditions, environment, policy, start_plain):
    lesson.wait_for(start_plain)
    before = held_out_accuracy(policy, environment, conditions)
    return (before,)


@app.function(hide_code=True)
def first_under_half(points):
    """The first step at which a series is below half of its best value so far, or None."""
    best = 0.0
    for step, value in points:
        best = max(best, value)
        if value < best / 2:
            return step
    return None


@app.cell(hide_code=True)
def _(ask_plain, before, config, plain_final, plain_series):
    _best_step, _best = max(plain_series[ACCURACY], key=lambda point: point[1])
    lesson.reveal(
        ask_plain,
        right=2 if plain_final < before else 1 if plain_final < _best - 0.05 else 0,
        why=f"""
    Before training the policy got {before:.0%} of the held-out tasks right. It reached {_best:.0%} at step {_best_step} and ended at {plain_final:.0%}.
    {"The run has collapsed: it unlearned what it could." if plain_final < before else "This time it did not collapse. Try another seed."}
    The task, the rewards and the code are those of the other notebooks. Two things are unusual: the learning rate is high, and the data are
    {config.collapse_lag} versions old. Below is the control: the same run on fresh data.
    """,
        shows=[
            lesson.figure(
                staleness_charts.fall_chart({"plain": plain_series}, before),
                f"Accuracy on {config.eval_tasks} held-out tasks every {config.eval_every} steps, at the end on 200. The dotted line is the accuracy before training, also on 200.",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _(ask_first, before, config, plain_series, study):
    _names = (ACCURACY, TOKENS, EPISODES)
    _fell = {name: first_under_half(plain_series[name]) for name in _names}
    _steps = [math.inf if _fell[name] is None else _fell[name] for name in _names]
    # The accuracy is measured every few steps: what falls less than that before it may have fallen with it.
    _first = [
        index
        for index, step in enumerate(_steps)
        if step < math.inf
        and step <= min(_steps) + (config.eval_every - 1 if index == 0 else 0)
    ]
    _told = warnings([row for row in study.rows if row.lag > 0], before)
    _said = "; ".join(
        f"{name}, " + ("never" if _fell[name] is None else f"at step {_fell[name]}")
        for name in _names
    )
    lesson.reveal(
        ask_first,
        right=_first,
        why=f"""
    For the first time below half of its best: {_said}. In the recorded study below, {_told.collapsed} trials on stale data collapsed. In {_told.announced} of
    them the sample size of the episodes was below half while the accuracy had not fallen yet.

    It is a warning and no verdict: it also fell below half in {_told.false_alarms} of the {_told.healthy} trials on stale data that did *not* collapse. It
    says that the batch tells little about π. Whether the step then does harm depends on the loss. And a mean over tokens can hide what has happened to
    the episodes.
    """,
    )
    return


@app.cell(hide_code=True)
def _(whose):
    lesson.md(f"""
    ### One line

    Now change one line and nothing else: the same tasks, the same lag, the same learning rate, the same seed. The loss is {whose}.
    """)
    return


@app.cell(hide_code=True)
def _(config):
    ask_saved = lesson.predict(
        f"With the clipped objective, where does the run end after {config.collapse_steps} steps?",
        "below where it began, too",
        "above where it began, by less than 25 points",
        "above where it began, by 25 points or more",
    )
    ask_saved
    return (ask_saved,)


@app.cell(hide_code=True)
def _(config):
    start_saved = lesson.start_button(
        f"Train {config.collapse_steps} steps, clipped", seconds=30
    )
    start_saved
    return (start_saved,)


@app.cell(hide_code=True)
def _(config, start_saved):
    lesson.wait_for(start_saved)
    saved_curve = LiveCurve(config.collapse_steps, title="The same run, one line changed")
    None if lesson.unattended() else saved_curve
    return (saved_curve,)


@app.cell
def _(collapse, config, environment, saved_curve, watched, your_loss):
    saved_curve.clear()
    _watch, _finish = watched(saved_curve, environment, collapse, config.collapse_steps)
    _policy = train_on_old_data(
        your_loss, config.collapse_lag, collapse, config.seed, _watch
    )
    saved_series, saved_final = _finish(_policy)
    return saved_final, saved_series


@app.cell(hide_code=True)
def _(ask_saved, before, plain_final, plain_series, saved_final, saved_series, whose):
    _gain = saved_final - before
    lesson.reveal(
        ask_saved,
        right=0 if _gain < 0 else 1 if _gain < 0.25 else 2,
        why=f"""
    It ended at {saved_final:.0%}, against {plain_final:.0%} without the line and {before:.0%} before training. The line was {whose}.
    """,
        shows=[
            lesson.figure(
                staleness_charts.fall_chart(
                    {"plain": plain_series, "clipped": saved_series}, before
                ),
                "Both runs on the same axes.",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _(recorded_collapse):
    lesson.table(
        "The same runs, and the control on fresh data, on five seeds: accuracy after the last step",
        [
            {"loss": NAMES[cell.loss], "lag": cell.lag}
            | {f"seed {row.seed}": f"{row.accuracy:.0%}" for row in cell.rows}
            | {"mean": f"{cell.accuracy:.0%}"}
            for cell in sorted(
                recorded_collapse.cells(),
                key=lambda cell: (cell.loss, cell.lag),
                reverse=True,
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _(config, recorded_collapse):
    _mean = {(cell.loss, cell.lag): cell.accuracy for cell in recorded_collapse.cells()}
    _age = _mean["reinforce", 0] - _mean["reinforce", config.collapse_lag]
    _fresh = _mean["grpo", 0] - _mean["reinforce", 0]
    lesson.md(f"""
    With the plain objective the age of the data costs {100 * _age:.0f} points. The line is worth {100 * _fresh:.0f} points on fresh data too: a step makes two
    updates on its batch, and the second one is off-policy.

    Recorded {recorded_collapse.dates} on {recorded_collapse.machine}, with `python {recorded_collapse.command}`.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## The phase diagram

    Is the collapse a matter of the lag, of the learning rate, or of the loss? A study answers it: every combination, trained to the end of learning. It
    takes hours of processor time, so it is recorded. The *phase diagram* is its map: a square for each loss, and in it a cell for each learning
    rate and lag, with the mean accuracy of its seeds. You can train any cell again below.
    """)
    return


@app.cell(hide_code=True)
def _(seeds, study):
    lesson.md(
        f"The recording has {len(study.rows)} trials of {study.conditions['steps']} steps, with {seeds} seed{'s' * (seeds > 1)} in every cell."
    )
    return


@app.cell
def _():
    _folder = Path(mo.notebook_dir()).parent / "benchmarks"
    study = read_study(_folder / "staleness.jsonl")
    recorded_collapse = read_study(_folder / "collapse.jsonl")
    seeds = study.whole_seeds
    return recorded_collapse, seeds, study


@app.function(hide_code=True)
def pooled_deviation(samples):
    """The standard deviation within `samples`, each around its own mean, with n − 1 for each. NaN if none has two values."""
    several = [sample for sample in samples if len(sample) > 1]
    if not several:
        return math.nan
    squares = sum(variance(sample) * (len(sample) - 1) for sample in several)
    return math.sqrt(squares / sum(len(sample) - 1 for sample in several))


@app.function(hide_code=True)
def gains(study, seeds):
    """What each correction gains over plain in each cell, and how much of a gain is noise: two standard errors, infinite with one seed."""
    found = {(c.learning_rate, c.lag, c.loss): c for c in study.cells(seeds)}
    deviation = pooled_deviation([cell.accuracies for cell in found.values()])
    noise = math.inf if math.isnan(deviation) else 2 * deviation * math.sqrt(2 / seeds)
    over_plain = {
        key: cell.accuracy - found[*key[:2], "reinforce"].accuracy
        for key, cell in found.items()
        if key[2] != "reinforce" and (*key[:2], "reinforce") in found
    }
    return over_plain, noise


@app.cell(hide_code=True)
def _(seeds, study):
    over_plain, noise = gains(study, seeds)
    mildest, shortest = min((rate, lag) for rate, lag, _ in over_plain if lag)
    _corrections = [loss for loss in NAMES if loss != "reinforce"]
    ask_mild = lesson.predict(
        f"At the lowest learning rate of the study ({mildest:g}) and lag {shortest}: which correction gains most over plain, by more than the scatter of the seeds?",
        *(NAMES[loss] for loss in _corrections if (mildest, shortest, loss) in over_plain),
        "none of them",
    )
    ask_mild
    return ask_mild, mildest, noise, over_plain, shortest


@app.cell(hide_code=True)
def _(ask_mild, mildest, noise, over_plain, seeds, shortest):
    _corrections = [loss for loss in NAMES if (mildest, shortest, loss) in over_plain]
    _here = [over_plain[mildest, shortest, loss] for loss in _corrections]
    _best = max(range(len(_here)), key=_here.__getitem__)
    _said = ", ".join(
        f"{NAMES[loss]} {signed(found)}"
        for loss, found in zip(_corrections, _here, strict=True)
    )
    lesson.reveal(
        ask_mild,
        right=[] if seeds < 2 else _best if _here[_best] > noise else len(_corrections),
        why=f"""
    Against plain, in accuracy: {_said}. {noise_in_words(noise)}
    """,
    )
    return


@app.cell(hide_code=True)
def _(before, seeds, study):
    diagram = PhaseDiagram(
        study,
        NAMES,
        before,
        seeds,
        chosen={"loss": "grpo", "lag": 8, "learning_rate": 4e-4},
    )
    diagram
    return (diagram,)


@app.function(hide_code=True)
def noise_in_words(noise):
    if noise == math.inf:
        return "With one seed there is no telling how much of that is chance."
    return f"Two standard errors of such a difference are {noise:.2f}, so a smaller one may be chance."


@app.function(hide_code=True)
def signed(number):
    return f"{number:+.2f}".replace("-", "−")


@app.function(hide_code=True)
def findings(study, seeds, before):
    """What the study says of each loss, in cells with lag: how many end below the start, and how many differ from plain by more than noise."""
    over_plain, noise = gains(study, seeds)
    rows = []
    for loss, name in NAMES.items():
        own = [cell for cell in study.cells(seeds) if cell.loss == loss and cell.lag]
        against = [
            gain for (_, lag, other), gain in over_plain.items() if other == loss and lag
        ]
        better, worse = (
            sum(gain > noise for gain in against),
            sum(gain < -noise for gain in against),
        )
        rows.append(
            {
                "loss": name,
                "cells with lag": len(own),
                "end below the start": sum(cell.accuracy < before for cell in own),
                "better than plain": better if against else "",
                "no difference": len(against) - better - worse if against else "",
                "worse": worse if against else "",
            }
        )
    return rows


@app.cell(hide_code=True)
def _(before, seeds, study):
    lesson.table("What the study finds", findings(study, seeds, before))
    return


@app.cell(hide_code=True)
def _(noise, over_plain, seeds):
    _fresh = [gain for (_, lag, _), gain in over_plain.items() if lag == 0]
    _same = sum(abs(gain) <= noise for gain in _fresh)
    lesson.md(f"""
    “Better” and “worse” mean: beyond the noise. {noise_in_words(noise)} At lag 0 a correction makes no difference beyond it in {_same} of
    {len(_fresh)} cells{": there is nothing to correct" if _same == len(_fresh) else ""}.

    Each cell has {seeds} seed{"s" * (seeds > 1)}, of one small policy on one task. Elsewhere the borders lie elsewhere. What carries over is that there are borders, and that
    the loss, the learning rate and the lag move them together.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Check a cell yourself

    Choose a cell in the diagram, then press the button. It trains that cell with seed 0, by the package's own loop, and compares the result with the
    recorded one. On the same kind of machine they are equal; on another one, sums are rounded differently and a run may take another path.
    """)
    return


@app.cell(hide_code=True)
def _(config):
    start_cell = lesson.start_button(
        f"Train the chosen cell, {config.live_steps} steps", seconds=60
    )
    start_cell
    return (start_cell,)


@app.cell(hide_code=True)
def _(config, start_cell):
    lesson.wait_for(start_cell)
    cell_curve = LiveCurve(config.live_steps, title="The chosen cell, live")
    cell_curve
    return (cell_curve,)


@app.cell(hide_code=True)
def _(cell_curve, conditions, config, diagram, environment):
    cell_curve.clear()
    chosen = dict(diagram.chosen)
    _few = replace(conditions, held_out_tasks=config.eval_tasks)

    def _watch(learner, metrics):
        cell_curve.add(EPISODES, learner.version, metrics["episode_sample_size"])
        if learner.version % 6 == 0:
            cell_curve.add(
                ACCURACY,
                learner.version,
                held_out_accuracy(learner.policy, environment, _few),
            )

    live = train_with_lag(
        Trial(chosen["loss"], chosen["lag"], config.seed),
        replace(conditions, learning_rate=chosen["learning_rate"]),
        watch=_watch,
    )
    return chosen, live


@app.cell(hide_code=True)
def _(chosen, config, live, study):
    _recorded = next(
        (
            row
            for row in study.rows
            if row.key
            == (chosen["loss"], chosen["lag"], chosen["learning_rate"], config.seed)
        ),
        None,
    )
    _said = (
        "This trial is not in the recorded study."
        if _recorded is None
        else f"Recorded for this seed: {_recorded.accuracy:.1%}. "
        + ("The same." if _recorded.accuracy == live.accuracy else "The two differ.")
    )
    lesson.md(
        f"{NAMES[chosen['loss']]}, lag {chosen['lag']}, learning rate {chosen['learning_rate']:g}, seed {config.seed}: {live.accuracy:.1%} here, now. {_said}"
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 3: decoupled

    Clipping around μ has a flaw. On old data most tokens may be outside the bounds before the step begins, and then they teach nothing. **Decoupled
    PPO** clips around π₀ instead, the policy at the beginning of the step, and corrects for μ with a truncated weight. With s = π/π₀ and
    w = min(π₀/μ, 2), the objective of a token is the smaller of s·w·A and clip(s, 0.8, 1.2)·w·A. Complete it. Only π has a gradient.
    """)
    return


@app.function
def decoupled(logp, behaviour_logp, proximal_logp, advantage):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: decoupled,
        check_decoupled,
        decoupled_solution,
        level="stretch",
        minutes=8,
        hints=(
            "It is `corrected` with another ratio and another advantage.",
            "The ratio is that of `logp` and `proximal_logp`; the advantage is multiplied by the truncated weight of `proximal_logp` and `behaviour_logp`.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## What lag buys

    Nobody wants stale data. They come with speed: a generator that may run ahead need not wait for the trainer. The simulator of notebook 05 says what
    that is worth on this machine. It gets the seconds measured above, for sampling a group and for a training step.
    """)
    return


@app.cell
def _(config, fresh_batches, seconds):
    this_machine = Setting(
        generators=1,
        groups_per_step=config.prompts,
        steps=config.live_steps,
        generation_seconds=fmean(sampling for sampling, _ in seconds) / config.prompts,
        variation=group_variation(map(group_latencies, fresh_batches)),
        training_seconds=fmean(training for _, training in seconds),
        sync_seconds=0.01,
    )

    def wall_times_of(setting):
        """Seconds of a run, for each bound on the age of its data."""
        found = {}
        for lag in config.price_lags:
            simulate = simulate_async if lag else simulate_sync
            found[lag] = simulate(
                replace(setting, max_lag=lag), setting.latencies()
            ).seconds
        return found

    wall_times = wall_times_of(this_machine)
    uneven = replace(
        this_machine,
        generation_seconds=this_machine.training_seconds / config.prompts,
        variation=2.0,  # the groups' seconds scatter by twice their mean
    )
    uneven_times = wall_times_of(uneven)
    return this_machine, uneven_times, wall_times


@app.cell(hide_code=True)
def _(config):
    ask_price = lesson.predict(
        f"`max_lag` {max(config.price_lags)} saves some of the time of a synchronous run. How much of that does `max_lag` 1 save already?",
        "less than half",
        "half to nine tenths",
        "nine tenths or more",
    )
    ask_price
    return (ask_price,)


@app.cell(hide_code=True)
def _(ask_price, config, seeds, study, this_machine, uneven_times, wall_times):
    def _first_share(times):
        saved = times[0] - min(times.values())
        return (times[0] - times[1]) / saved if saved > 0 else 1.0

    _first = _first_share(wall_times)
    _rates = {cell.learning_rate for cell in study.cells(seeds)}
    _rate = min(_rates, key=lambda rate: abs(rate - config.price_rate))
    _accuracies = {
        name: {
            cell.lag: cell.accuracy
            for cell in study.cells(seeds)
            if cell.loss == loss and cell.learning_rate == _rate
        }
        for loss, name in NAMES.items()
    }
    lesson.reveal(
        ask_price,
        right=0 if _first < 0.5 else 1 if _first < 0.9 else 2,
        why=f"""
    Here a batch takes {this_machine.generation_seconds * config.prompts:.2f} s to sample and a step {this_machine.training_seconds:.2f} s to train. The first version
    of lag buys {_first:.0%} of what lag can buy at all. The second row of the table is a machine whose tools are slow and uneven. There the first version buys
    {_first_share(uneven_times):.0%}.

    In a real run `max_lag` is a bound, and most data are younger. The study's data are all as old as its lag. So its accuracies are the worst that the bound
    allows.
    """,
        shows=[
            lesson.figure(
                staleness_charts.price_chart(wall_times, _accuracies),
                f"Time: simulated with this page's latencies, one generator, {config.live_steps} steps. Accuracy: the recorded study at learning rate {_rate:g}.",
            ),
            lesson.table(
                "Seconds of a run, simulated",
                [
                    {"machine": name}
                    | {f"lag {lag}": f"{at:.0f}" for lag, at in times.items()}
                    for name, times in (
                        ("this one", wall_times),
                        ("slow, uneven tools", uneven_times),
                    )
                ],
            ),
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.predicted(8)
    return


@app.cell(hide_code=True)
def _():
    lesson.recap(
        "Data are on-policy if the policy being trained has sampled them. The lag counts the versions between; the ratio π/μ says what they mean for a token.",
        "Weighing by the ratio makes old data unbiased and noisy. The effective sample size says how much they still tell.",
        "A plain policy gradient on old data pushes tokens that are already rare, step after step. With a high learning rate that ends in collapse.",
        "Clipping stops the push once a token has moved. It is one line.",
        "A correction is no licence: see where the study finds that it does nothing, and where nothing helps.",
        "Start with `max_lag` 1, watch the effective sample size, and raise the lag only where the clock says that it buys something.",
    )
    return


@app.cell(hide_code=True)
def _(before, config, plain_final, saved_final):
    lesson.headline(
        f"data {config.collapse_lag} versions old took the policy from {before:.0%} to {plain_final:.0%}; with one line changed it ended at {saved_final:.0%}."
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.links(__file__)
    return


@app.function(hide_code=True)
def check_truncated_weight(truncated_weight):
    exercise.expect(truncated_weight, -1.0, -1.0, 2.0, result=1.0)
    exercise.expect(truncated_weight, -2.0, -1.0, 2.0, result=math.exp(-1.0))
    exercise.expect(truncated_weight, -0.1, -3.0, 2.0, result=2.0)


@app.function(hide_code=True)
def truncated_weight_solution(logprob, behaviour_logprob, limit):
    return min(math.exp(logprob - behaviour_logprob), limit)


@app.function(hide_code=True)
def check_corrected(corrected):
    for ratio, advantage, value, slope in (
        (1.0, 1.0, 1.0, 1.0),
        (0.5, 1.0, 0.5, 0.5),
        (1.5, 1.0, 1.2, 0.0),
        (1.5, -1.0, -1.5, -1.5),
        (0.5, -1.0, -0.8, 0.0),
    ):
        logp = torch.tensor([[math.log(ratio) - 1.0]], requires_grad=True)
        found = corrected(logp, torch.tensor([[-1.0]]), torch.tensor([[advantage]]))
        assert isinstance(found, torch.Tensor) and found.shape == (1, 1), (
            "corrected should give a tensor of one number for each token"
        )
        given = f"for a ratio of {ratio:g} and an advantage of {advantage:g}"
        assert math.isclose(found.item(), value, abs_tol=1e-5), (
            f"{given} corrected gives {found.item():.3g}, and should give {value:g}"
        )
        push = (
            torch.autograd.grad(found.sum(), logp)[0].item() if found.requires_grad else 0.0
        )
        assert math.isclose(push, slope, abs_tol=1e-5), (
            f"{given} the gradient is {push:.3g}, and should be {slope:g}"
        )


@app.function(hide_code=True)
def corrected_solution(logp, behaviour_logp, advantage):
    ratio = (logp - behaviour_logp).exp()
    return torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)


@app.function(hide_code=True)
def check_decoupled(decoupled):
    for new, old, advantage in (
        (1.0, 1.0, 1.0),
        (1.5, 1.0, 1.0),
        (1.5, 4.0, -1.0),
        (0.5, 0.5, -1.0),
        (1.1, 0.5, 1.0),
    ):
        logp = torch.tensor([[math.log(new * old) - 2.0]], requires_grad=True)
        proximal, behaviour = torch.tensor([[math.log(old) - 2.0]]), torch.tensor([[-2.0]])
        found = decoupled(logp, behaviour, proximal, torch.tensor([[advantage]]))
        weight = min(old, 2.0) * advantage
        value = min(new * weight, min(max(new, 0.8), 1.2) * weight)
        given = f"for π/π₀ = {new:g}, π₀/μ = {old:g} and an advantage of {advantage:g}"
        assert isinstance(found, torch.Tensor), "decoupled should give a tensor"
        assert math.isclose(found.item(), value, abs_tol=1e-5), (
            f"{given} decoupled gives {found.item():.3g}, and should give {value:.3g}"
        )


@app.function(hide_code=True)
def decoupled_solution(logp, behaviour_logp, proximal_logp, advantage):
    ratio = (logp - proximal_logp).exp()
    weight = (proximal_logp - behaviour_logp).exp().clamp(max=2.0)
    return torch.minimum(
        ratio * weight * advantage, ratio.clamp(0.8, 1.2) * weight * advantage
    )


if __name__ == "__main__":
    app.run()
