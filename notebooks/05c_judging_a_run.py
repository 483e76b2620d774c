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
    app_title="Judging a run: taught, sharpened or hacked",
    css_file="../zorplex_rl/course/lesson/lesson.css",
)

with app.setup(hide_code=True):
    import math
    from statistics import fmean, stdev

    import marimo as mo
    import torch

    from zorplex_rl.course import nb05, nb05b, nb05c
    from zorplex_rl.course.figures import bars, lines
    from zorplex_rl.course.lesson import exercise, lesson
    from zorplex_rl.course.recorded_steps import recorded_steps
    from zorplex_rl.course.widgets import LiveCurve
    from zorplex_rl.learning.train_simple import play
    from zorplex_rl.policy.evaluate import evaluate
    from zorplex_rl.policy.load import load_policy
    from zorplex_rl.policy.rollout import Sampling
    from zorplex_rl.task.environment import Zorplex, kinds_of
    from zorplex_rl.task.rewards import accuracy


@app.cell(hide_code=True)
def _():
    lesson.header(
        __file__,
        minutes=48,
        hardware="one CPU core, no network; a GPU is used where there is one",
        goals=[
            "tell a clear change from a lucky one, within a run and between runs",
            "say whether training taught something, or sharpened what was there",
            "recognise a hacked reward, and say what a KL penalty can do about it",
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    shaped_runs = nb05c.recorded_runs()
    lesson.figure(
        nb05c.two_rewards(shaped_runs),
        "Two recorded runs of one policy: the mean reward of each training batch. Which of them has learned the task?",
    )
    return (shaped_runs,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A run to judge

    A run is over, its reward has risen, and somebody wants to know what the model has learned. It may have learned the
    task. It may only say more often what it knew. It may have found a way to be paid without the task. Or you were
    lucky. The curve rises in all four cases.

    Here you train a policy and then find out. The loop is that of notebook 05b, with the package's loss in the place of
    yours. What is new is `pays`, the reward, because we will exchange it for a bad one.
    """)
    return


@app.cell(hide_code=True)
def settings():
    _full = nb05c.settings(
        mo.cli_args().get("policy") or "embedded",  # or the folder of a model
        seed=0,
        prompts=6,  # tasks in a training batch
        samples=8,  # episodes of each
        steps=30,
        held_out=200,  # questions of the exam, before and after
    )
    config = lesson.brief(
        _full, steps=6, held_out=40, kind_tasks=20, pass_tasks=8, hack_steps=4
    )
    return (config,)


@app.cell(hide_code=True)
def _(config):
    if config.policy == "embedded":
        torch.set_num_threads(1)
    policy = load_policy(config.policy, config.device)
    environment = Zorplex(config.seed, shots=config.shots)
    sampling = Sampling(max_tokens=config.max_tokens)
    lesson.ran_on(policy)
    return environment, policy, sampling


@app.function
def train(config, pays, steps, kl=0.0):
    """Train a copy of the policy on the reward `pays(episode)`.

    Yields a record after each step."""
    training = nb05c.Training(config, kl)
    for step in range(steps):
        episodes = training.play(step)
        rewards = [pays(episode) for episode in episodes]
        advantages = nb05.advantages_of(rewards, config.samples)
        yield training.step(episodes, rewards, advantages)


@app.cell(hide_code=True)
def _(config):
    start_honest = lesson.start_button(
        f"Train {config.steps} steps, and examine both policies", seconds=40
    )
    curve = LiveCurve(config.steps, title="Right answers in each training batch")
    _scatter = lesson.md(
        f"A point has only {config.prompts} tasks, some easy and some hard. So luck moves it, also the first one. The share beside its name is that of the last batch. Beside this curve, both policies take an *exam*: {config.held_out} held-out questions."
    )
    mo.vstack([start_honest, curve, _scatter])
    return curve, start_honest


@app.cell(hide_code=True)
def _(config, curve, start_honest):
    lesson.wait_for(start_honest)
    curve.clear()
    _honest = train(config, lambda episode: episode.score.reward, config.steps)
    with lesson.counting(config.steps, "steps") as _one_more:
        for _number, _step in enumerate(_honest, 1):
            curve.add("trained on the usual reward", _number, accuracy(_step.episodes))
            _one_more()
    learned = _step.policy
    return (learned,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Which mistakes are gone?

    One number hides how a text ends, and there are five ways. It is right (`success`), or there is an answer and it is wrong
    (`wrong_answer`). Without an answer, it called tools to the limit (`tool_spam`), was cut off (`truncated`), or
    simply wrote no `[ANSWER]` (`wrong_format`).
    """)
    return


@app.cell(hide_code=True)
def _():
    ask_mistakes = lesson.predict(
        "Which kind of mistake does training reduce most?",
        "`wrong_answer`",
        "`wrong_format`: it wrote no `[ANSWER]`",
        "`tool_spam` or `truncated`: too many calls, or cut off",
    )
    ask_mistakes
    return (ask_mistakes,)


@app.cell(hide_code=True)
def _(config, environment, learned, policy, sampling):
    _asked = {"compositional": config.held_out} | dict.fromkeys(
        ("simple", "multi_step", "recursive"), config.kind_tasks
    )
    examined = {}
    with lesson.counting(2 * sum(_asked.values()), "questions") as _one_more:
        for _kind, _count in _asked.items():
            _tasks = environment.tasks(kinds_of(_kind), _count, "held_out")
            examined[_kind] = []
            for _name, _who in (("before", policy), ("after", learned)):
                examined[_kind].append(
                    evaluate(_who, _name, _tasks, environment.execute, sampling, seed=1)
                )
                _one_more(number=_count)
    old, new = examined["compositional"]
    lost = [
        sum(old[0].outcomes[kind] - new[0].outcomes[kind] for kind in kinds)
        for kinds in nb05c.MISTAKES
    ]
    return examined, lost, new, old


@app.cell(hide_code=True)
def _(ask_mistakes, lost, new, old):
    (_was, _), (_is, _) = old, new
    _gain = _is.accuracy - _was.accuracy
    _drawn_once_more = recorded_steps("small")["right"][0]
    lesson.reveal(
        ask_mistakes,
        right=lost.index(max(lost)),
        why=f"""
    Of held-out tasks {_was.accuracy:.0%} were right before, and {_is.accuracy:.0%} are now: {nb05c.points(_gain)} points.
    The share of `wrong_answer` changed by {nb05c.points(-lost[0])} points, that of `wrong_format` by {nb05c.points(-lost[1])}, that of the other two by {nb05c.points(-lost[2])}.
    {"So most of the gain is formatting, and not better arithmetic: it says what it knew." if _gain > 0 and lost[1] > _gain / 2 else "So formatting is not most of the gain."}

    In 05 the same untrained policy, asked the same questions, was right in {_drawn_once_more:.0%}. Nothing differs but the random draws of its tokens.
    """,
        shows=[
            lesson.figure(
                bars.outcome_chart([_was, _is]),
                f"How {_was.episodes} held-out episodes end, sampled at temperature 1.",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 1: is it clear?

    With other questions, or other draws, the shares would be different. How far may they move by luck? Both policies answer the same
    questions. So compare them one by one: some are hard for both, and that cancels in the difference.

    Write `change` for two lists, `before` and `after`. Each has one number for each *independent* case. Two questions
    about the same word are not independent (notebook 05), so our number will be the share of right answers for each word.

    Return the mean difference, and two *standard errors* of it. The standard error of a mean of n numbers is
    their `stdev` over √n. Why two? About 95 of 100 intervals of mean ± two standard errors contain the truth. So call a change
    *clear* if it is more than two standard errors.
    """)
    return


@app.function
def change(before, after):
    """Return the mean change, and two standard errors.

    change([0, 0, 0, 0], [1, 0, 1, 0]) is (0.5, 0.577): the differences are
    1, 0, 1, 0, their stdev is 0.577, and 2 * 0.577 / √4 = 0.577.
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: change,
        Solutions,
        level="warm-up",
        minutes=4,
        lines=2,
        hints=(
            "Which single list of numbers has the mean and the scatter that you need?",
            "Make a list of `new - old`, with `zip(before, after, strict=True)`. Its `fmean`, and `2 * stdev(…) / math.sqrt(len(…))`.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    paired, whose_paired = exercise.running(lambda: change, Solutions)
    ask_kinds = lesson.predict(
        f"All training was on `compositional` tasks. On how many of the three other kinds is the trained policy clearly better, by {whose_paired}?",
        "none",
        "one",
        "two",
        "all three",
    )
    ask_kinds
    return ask_kinds, paired, whose_paired


@app.cell(hide_code=True)
def _(ask_kinds, config, examined, paired):
    lesson.needs(lambda: examined)
    kinds = {}
    for _kind in ("simple", "multi_step", "recursive"):
        _right = [nb05c.shares_by_word(episodes) for _, episodes in examined[_kind]]
        kinds[_kind] = len(_right[0]), *map(fmean, _right), *map(float, paired(*_right))
    _better = sum(gain > noise for *_, gain, noise in kinds.values())
    lesson.reveal(
        ask_kinds,
        right=_better,
        why=f"""
    {("None", "One", "Two", "All three")[_better]} of them got better by more than two standard errors.{" An answer has the same form in every kind of task." if _better else ""}
    """,
        shows=[
            lesson.table(
                f"Kinds that were not trained: {config.kind_tasks} held-out questions each. Every word counts once.",
                [
                    {
                        "kind": kind,
                        "words": f"{words}",
                        "before": f"{was:.0%}",
                        "after": f"{now:.0%}",
                        "change": f"{round(100 * now) - round(100 * was):+d} ± {100 * noise:.0f} points",
                    }
                    for kind, (words, was, now, _, noise) in kinds.items()
                ],
            )
        ],
    )
    return (kinds,)


@app.cell(hide_code=True)
def _(paired, whose_paired):
    seeds = nb05c.runs_by_seed()
    _heading = mo.md("## The same settings, another seed")
    mo.vstack([_heading, *nb05c.other_seeds(seeds, paired, whose_paired)])
    return (seeds,)


@app.cell(hide_code=True)
def _(config):
    lesson.md(f"""
    ## Taught, or sharpened?

    A policy that is right once in a hundred attempts can already find the answer. Training may only
    make it find it at the first attempt, and teach nothing new. So ask for more attempts: **pass@k** is the chance that at least
    one of k is right. If training only sharpens, the old policy catches up as k grows
    ([Yue et al. 2025](https://arxiv.org/abs/2504.13837)). It may even overtake, if training has narrowed what the policy tries.

    At a k where the old policy solves nearly every task, nothing can be seen to improve. So we take
    *harder* tasks than in training, four words instead of two. And we chose k = {config.pass_judged} of {config.pass_samples} attempts before we looked at the trained policy.

    ### Exercise 2: pass@k

    Of `samples` attempts at a task, `correct` were right. Write `pass_at_k`: draw k of these attempts,
    each at most once. What is the chance that a right one is among them? That is the estimator
    of [Chen et al. 2021](https://arxiv.org/abs/2107.03374), equation 1. It is unbiased: over many draws its average is the
    true chance. The obvious `1 - (1 - correct / samples) ** k` is biased, because it puts each attempt back.
    """)
    return


@app.function
def pass_at_k(samples, correct, k):
    """Return a chance.

    pass_at_k(4, 1, 2) is 0.5: two of four attempts are drawn.
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: pass_at_k,
        Solutions,
        level="stretch",
        minutes=6,
        lines=1,
        hints=(
            "Compute the opposite: the chance that all k drawn attempts are wrong. In how many ways can you draw k of the wrong ones?",
            "`math.comb(samples - correct, k)` ways to draw only wrong ones, of `math.comb(samples, k)` ways to draw at all. `math.comb` gives 0 if fewer than `k` are wrong.",
        ),
    )
    return


@app.cell(hide_code=True)
def _(config):
    estimator, whose_estimator = exercise.running(lambda: pass_at_k, Solutions)
    ask_pass = lesson.predict(
        f"{config.pass_tasks} held-out {config.pass_difficulty} tasks, {config.pass_samples} attempts at each, before and after. Which policy has the higher pass@{config.pass_judged}?",
        "the trained one, clearly",
        "no clear difference",
        "the old one, clearly",
    )
    start_pass = lesson.start_button(
        f"Sample {2 * config.pass_tasks * config.pass_samples:,} episodes", seconds=35
    )
    mo.vstack([ask_pass, start_pass])
    return ask_pass, estimator, start_pass, whose_estimator


@app.cell(hide_code=True)
def _(config, environment, learned, policy, sampling, start_pass):
    lesson.wait_for(start_pass)
    _kinds = kinds_of("compositional", config.pass_difficulty)
    _tasks = environment.tasks(_kinds, config.pass_tasks, "held_out")
    right = {"before": [], "after": []}
    _attempts = config.pass_samples
    with lesson.counting(2 * len(_tasks) * _attempts, "episodes") as _one_more:
        for _counts, _who in zip(right.values(), (policy, learned), strict=True):
            for _number, _task in enumerate(_tasks):
                _seed = _number * _attempts
                _played = play(_who, environment, [_task] * _attempts, _seed, sampling)
                _counts.append(sum(e.score.outcome == "success" for e in _played))
                _one_more(number=_attempts)
    return (right,)


@app.cell(hide_code=True)
def _(ask_pass, config, estimator, paired, right, whose_estimator):
    lesson.needs(lambda: right)
    passes = {
        name: {
            k: [float(estimator(config.pass_samples, count, k)) for count in counts]
            for k in config.pass_at
        }
        for name, counts in right.items()
    }
    pass_means = {
        name: {k: fmean(v) for k, v in found.items()} for name, found in passes.items()
    }
    gains = {
        k: [float(part) for part in paired(passes["before"][k], passes["after"][k])]
        for k in (min(config.pass_at), config.pass_judged)
    }
    (_low, (_first, _once)), (_high, (_last, _noise)) = gains.items()
    lesson.reveal(
        ask_pass,
        right=0 if _last > 1.5 * _noise else 2 if _last < -1.5 * _noise else 1,
        why=f"""
    pass@{_low} changes by {nb05c.points(_first)} ± {100 * _once:.0f} points, and pass@{_high} by {nb05c.points(_last)} ± {100 * _noise:.0f}, from {pass_means["before"][_high]:.0%}, by {whose_estimator}.
    Each ± counts a task as one case. But the tasks share their words, so the true interval is wider. Here a change is called clear beyond one and a half times the ±.

    {nb05c.verdict(gains[_low], gains[_high], pass_means["before"][_high])}

    Of the {config.pass_tasks} tasks the old policy never solved {right["before"].count(0)}, the trained one {right["after"].count(0)}. That is one run of one small policy.
    """,
        shows=[
            lesson.figure(
                lines.pass_chart(pass_means),
                f"pass@k on {config.pass_tasks} held-out {config.pass_difficulty} tasks, estimated from {config.pass_samples} attempts at each.",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A reward that gets hacked

    A reward does not know what you want. It pays for what it measures. In notebook 05 a lenient checker would have paid for a number that
    the tool wrote. Here is a reward with a good intention: the policy should use its tools, so every call earns a bonus.
    That is a *shaped* reward.
    """)
    return


@app.function
def shaped(bonus):
    """Pay 1 for a right answer, and `bonus` for every tool call."""
    return lambda episode: (
        1.0 * (episode.score.outcome == "success") + bonus * episode.tool_calls
    )


@app.cell(hide_code=True)
def _(config):
    ask_hack = lesson.predict(
        f"1 for a right answer and {config.hack_bonus} for every tool call. Five calls are answered, and a sixth, also paid, ends the episode. After {config.hack_steps} steps, what has become of reward and accuracy?",
        "both are higher",
        "the reward is higher, the accuracy lower",
        "the reward is higher, the accuracy as before",
    )
    start_hack = lesson.start_button(
        f"Train {config.hack_steps} steps, without and with a KL penalty", seconds=25
    )
    mo.vstack([ask_hack, start_hack])
    return ask_hack, start_hack


@app.cell(hide_code=True)
def _(config, old, policy, sampling, start_hack):
    lesson.wait_for(start_hack)
    card = nb05c.PaidCard(config.hack_bonus, policy, config.hack_steps, sampling, old[1])
    hacked = {0.0: [], config.hack_penalty: []}
    with lesson.counting(2 * config.hack_steps, "steps") as _one_more:
        for _penalty, _rows in hacked.items():
            for _step in train(
                config, shaped(config.hack_bonus), config.hack_steps, _penalty
            ):
                if not _penalty:
                    card.play(_step.policy, len(_rows) + 1)
                _rows.append(
                    {
                        "reward": _step.reward,
                        "accuracy": accuracy(_step.episodes),
                        "calls": fmean(e.tool_calls for e in _step.episodes),
                        "tokens": nb05c.tokens_of(_step.episodes, _step.before),
                    }
                )
                _one_more()
    card.seal()
    return card, hacked


@app.cell(hide_code=True)
def _(ask_hack, card, config, hacked):
    _was, _is = nb05c.ends(hacked[0.0])
    _up, _change = _is["reward"] - _was["reward"], _is["accuracy"] - _was["accuracy"]
    lesson.reveal(
        ask_hack,
        right=[] if _up <= 0 else 1 if _change < -0.1 else 0 if _change > 0.1 else 2,
        why=f"""
    The reward went from {_was["reward"]:.2f} to {_is["reward"]:.2f}, the share of right answers from {_was["accuracy"]:.0%} to {_is["accuracy"]:.0%}, and the calls from {_was["calls"]:.1f} to {_is["calls"]:.1f}.
    These are means of the first steps and of the last. {"That is **reward hacking**: nobody cheated, the policy learns what is paid." if _change < -0.1 else ""}
    On a dashboard of rewards this run looks like a success. Run B at the top of the page had this reward, and run A was paid nothing for a call.

    Six calls are not even the best: they earn 6 × {config.hack_bonus} = {6 * config.hack_bonus:.1f}, and five with a right answer 5 × {config.hack_bonus} + 1 = {5 * config.hack_bonus + 1:.1f}. Why does
    it learn six? A call always pays, an answer only if it is right. The gradient follows what pays more among the episodes that were sampled, not
    what could pay most.

    You can know this before you train. Score episodes that you already have by the new reward, and read the best-paid ones:
    `zorplex-rl replay RUN --task OTHER.py` does so for the recorded episodes of a run, and samples nothing.

    Drag the slider, and read what it writes, for the question of notebook 05 first:
    """,
        shows=[card],
    )
    return


@app.cell(hide_code=True)
def _():
    _text = mo.md("""
    ### Exercise 3: how far has it gone?

    The usual guard is a *KL penalty*. KL, the Kullback–Leibler divergence, is the mean of log(policy ÷ reference) over tokens that the policy draws.
    The **reference** is a copy of the policy from before training. Say the policy draws two tokens. The first is twice as likely as in the reference,
    log 2 = 0.69, and the second as likely, log 1 = 0. Their mean is 0.35.

    The penalty adds this number, times a weight, to the *loss*, so its gradient pulls the policy back to the
    reference. The reward stays as it is. (TRL's `beta` does the same; other libraries subtract KL from the reward.)

    Write `kl`. It gets three tensors of equal length, over all tokens of a batch: the log-prob `now`, the
    log-prob `before` by the reference, and whether the policy `sampled` the token.

    1. *A mean.* Take d = now − before of the sampled tokens. Its mean is KL, but it scatters widely, because positive and negative terms nearly cancel.
    2. *Less scatter.* Add `exp(-d) - 1` to each d. Now no term is negative, and over many draws the mean is still KL. For the two
       tokens above, the terms are 0.69 + 0.5 − 1 = 0.19 and 0.

    The package's loss does this, too. It also keeps the gradient right, which takes one more factor (`kl_penalty` in `zorplex_rl/learning/losses.py`).
    """)
    _why = lesson.folded(
        "Why the mean is still KL",
        """
    exp(−d) is reference ÷ policy. Its mean over the policy's tokens is Σ policy × reference ÷ policy = Σ reference = 1.
    So the mean of `exp(-d) - 1` is 0, and adding it leaves the mean as it is ([Schulman 2020](http://joschu.net/blog/kl-approx.html)).
    """,
    )
    mo.vstack([_text, _why])
    return


@app.function
def kl(now, before, sampled):
    """Return an estimate of KL(policy ‖ reference) per sampled token.

    For the tensors [-1.0, 0.0], [-2.0, -9.0], [True, False] it is 0.368: the
    tool wrote the second token; the first has d = 1, and exp(-1) - 1 + 1 = 0.368.
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: kl,
        Solutions,
        level="core",
        minutes=5,
        lines=2,
        hints=(
            "Which tokens did the policy not choose? What would they do to the mean?",
            "Take `d = (now - before)[sampled]`. A mask in brackets keeps the tokens where it is true. Then the mean of the terms of step 2.",
        ),
    )
    return


@app.cell(hide_code=True)
def _(config):
    distance, whose_distance = exercise.running(lambda: kl, Solutions)
    ask_kl = lesson.predict(
        f"The same with a KL penalty of weight {config.hack_penalty:g}: does it save the accuracy? (Usual weights are 0.001 to 0.1, at other learning rates.)",
        "yes, it ends within 5 points of where it began, or higher",
        "in part: lower than it began, higher than without",
        "no",
    )
    ask_kl
    return ask_kl, distance, whose_distance


@app.cell(hide_code=True)
def _(ask_kl, distance, hacked, shaped_runs, whose_distance):
    lesson.needs(lambda: hacked)
    # Here, and not in training: an edit of the exercise must not train again.
    _measured = [
        [row | {"kl": float(distance(*row["tokens"]))} for row in rows]
        for rows in hacked.values()
    ]
    (_began, _free), (_, _held) = map(nb05c.ends, _measured)
    _honest, *_, _bound = [run for run in shaped_runs["runs"] if run["bonus"] == 0]
    lesson.reveal(
        ask_kl,
        right=nb05c.saved(_began, _free, _held),
        why=f"""
    It ends at a KL of {_held["kl"]:.3f}, and without a penalty {_free["kl"]:.3f}, by {whose_distance}.
    Of the last steps' episodes {_held["accuracy"]:.0%} are right, without a penalty {_free["accuracy"]:.0%}; in the first steps {_began["accuracy"]:.0%} were. That is one seed.

    A penalty knows only where the policy began, so it holds back honest learning too. And honest learning also leads away from the
    reference, so KL alone does not tell learning from a hack. Recorded with no pay for calls, in {shaped_runs["conditions"]["steps"]} steps: without a penalty
    {_honest["accuracy"][-1]:.0%} are right at a KL of {_honest["kl"][-1]:.2f}; with a penalty of {_bound["penalty"]:g}, {_bound["accuracy"][-1]:.0%} at {_bound["kl"][-1]:.2f}.
    So mend the reward: in `zorplex_rl/task/rewards.py` a call more than needed *costs* something.
    """,
    )
    return


@app.cell(hide_code=True)
def _(sampling):
    _card = nb05b.RecordedCard(
        "What SmolLM2 writes, step by step", "smollm2", sampling, lines=2
    )
    _card.seal()
    _first, *_, _last = (step[0]["reward"] for step in _card.texts)
    _text = lesson.md(f"""
    ## Watch the text, not the reward

    This is SmolLM2, a real model, while it learns from the usual reward. For the first question the reward goes from {_first:g} to {_last:g}. Has it learned to answer it?

    Drag the slider to the last step, and read. It now looks up one word at a time, but it misspells *lurp*. It then subtracts a number from itself, and gets 9.
    It is paid because it writes a number behind `[ANSWER]`, and only the text says how it got there.
    """)
    mo.vstack([_text, _card])
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Before you report a run

    1. How do the episodes end, before and after? Show all five endings, not the reward.
    2. Are both policies asked the same tasks? Then compare task by task, and give two standard errors.
    3. What happens on tasks that were not trained?
    4. What is pass@k, at a k that leaves the old policy room?
    5. How many seeds were there? Show all of them.
    6. What do the texts of the last step look like? Read ten.
    7. Which number did you watch that nobody was paid for?
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### A run of your own, live

    Start `zorplex-rl train --out runs/mine` in a terminal. In `marimo edit` its curve then grows here after every step.
    """)
    return


@app.cell(hide_code=True)
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
    lesson.recap(
        5,
        "Look at how episodes end before you say what was learned.",
        "Compare task by task, and call a change clear only beyond two standard errors; then do it again with other seeds.",
        "pass@k can tell teaching from sharpening, on tasks that leave the old policy room; no clear difference is no proof.",
        "A policy learns what it is paid for. So watch a number that it is not paid for.",
    )
    return


@app.cell(hide_code=True)
def _(seeds):
    _, _after = seeds
    lesson.headline(
        f"{len(_after)} runs of SmolLM2 that differ in nothing but their seed: the best ended at {max(_after):.0%} right, the worst at {min(_after):.0%}."
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.links(__file__)
    return


@app.class_definition(hide_code=True)
class Solutions:
    """Check the exercises of this page, and solve them."""

    def check_change(change):
        nb05c.check_change(change, Solutions.change)

    def change(before, after):
        changes = [new - old for old, new in zip(before, after, strict=True)]
        return fmean(changes), 2 * stdev(changes) / math.sqrt(len(changes))

    def check_pass_at_k(pass_at_k):
        nb05c.check_pass_at_k(pass_at_k, Solutions.pass_at_k)

    def pass_at_k(samples, correct, k):
        return 1 - math.comb(samples - correct, k) / math.comb(samples, k)

    def check_kl(kl):
        nb05c.check_kl(kl, Solutions.kl)

    def kl(now, before, sampled):
        d = (now - before)[sampled]
        return ((-d).exp() - 1 + d).mean()


if __name__ == "__main__":
    app.run()
