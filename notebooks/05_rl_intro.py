# /// script
# [tool.marimo.display]
# theme = "system"
# ///

import marimo

__generated_with = "0.25.2"
app = marimo.App(
    width="medium",
    app_title="RL at scale: the systems problem",
    css_file="../zorplex_rl/course/lesson/lesson.css",
)

with app.setup(hide_code=True):
    import random
    import re
    from pathlib import Path
    from statistics import fmean, median, pstdev
    from types import SimpleNamespace

    import marimo as mo

    from zorplex_rl.course.figures.loop_drawing import loop_drawing
    from zorplex_rl.course.kept_file import EXAMPLES, fill_in, keep
    from zorplex_rl.course.lesson import exercise, lesson
    from zorplex_rl.course.lesson.later import later
    from zorplex_rl.course.widgets import LiveCurve, TimelineSimulator, WhatIf
    from zorplex_rl.course.widgets.what_if import Knob
    from zorplex_rl.policy.tool_loop import encode_prompt, encode_text
    from zorplex_rl.run.timeline import SpanRecorder, group_latencies
    from zorplex_rl.simulation.recorded import group_variation
    from zorplex_rl.simulation.setting import Setting
    from zorplex_rl.task.environment import Zorplex
    from zorplex_rl.task.parser import find_answer, find_call
    from zorplex_rl.task.rewards import score
    from zorplex_rl.task.specs import TASK_SPECS

    # The page shows its top before these are there: torch takes seconds.
    torch = later("torch")
    nb05 = later("zorplex_rl.course.nb05")
    toy_policies = later("zorplex_rl.course.toy_policies")


@app.cell(hide_code=True)
def _():
    lesson.header(
        __file__,
        minutes=50,
        hardware="two CPU cores, no network, no GPU",
        goals=[
            "write the loop in which a model uses a tool, and the loss that trains it",
            "train a policy with both, and keep the program: one file",
            "say what a lenient reward pays for, and what taking turns costs",
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.figure(
        loop_drawing(),
        "The loop of this course, here in one process.",
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.md(f"""
    ## Why reinforcement learning

    Supervised learning copies: somebody has written the right text. Often nobody can, but a
    program can check one. In reinforcement learning (RL) the model, called a
    {lesson.term("policy")}, writes the answer itself, and a {lesson.term("reward")} says how good
    it was. Here both learn answers to ten questions. Two lines differ.
    """)
    return


@app.function
def supervised_loop(policy, optimizer, questions, right_answer):
    for question in questions:
        logp = policy(question).log_softmax(-1)
        answer = right_answer[question]  # somebody wrote it
        loss = -logp[answer]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@app.function
def rl_loop(policy, optimizer, questions, reward):
    for question in questions:
        logp = policy(question).log_softmax(-1)
        answer = logp.exp().multinomial(1).item()  # the policy writes it
        loss = -reward(question, answer) * logp[answer]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@app.cell
def _():
    right_answer = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5, 8])

    def steps_to_learn(loop, teacher, seed):
        torch.manual_seed(seed)
        table = torch.nn.Embedding(10, 10, _weight=torch.zeros(10, 10))
        optimizer, steps, chance = torch.optim.SGD(table.parameters(), lr=1.0), 0, 0.1
        while chance < 0.9 and steps < 5000:
            loop(table, optimizer, torch.arange(10), teacher)
            steps += 10
            chances = table.weight.softmax(-1)[torch.arange(10), right_answer]
            chance = chances.mean().item()
        return steps

    def is_right(question, answer):
        return float(answer == right_answer[question])

    with_labels = steps_to_learn(supervised_loop, right_answer, seed=0)
    with_rewards = [steps_to_learn(rl_loop, is_right, seed) for seed in range(3)]
    return with_labels, with_rewards


@app.cell(hide_code=True)
def _(with_labels, with_rewards):
    mo.vstack(
        [
            lesson.md(
                f"To be right nine times in ten takes {with_labels} steps with labels, and "
                f"{median(with_rewards)} with rewards (median of three seeds). "
                "A reward judges only the answer that was tried: RL starts from a model that is "
                "right now and then.\n\n"
                "Why does it raise the mean reward? Because ∇p = p ∇log p:"
            ),
            lesson.math(
                r"\nabla \sum_a p(a) R(a) = \sum_a p(a) \, R(a) \, \nabla \log p(a) = "
                r"\mathbb{E}_{a \sim p} \left[ R(a) \, \nabla \log p(a) \right]"
            ),
            lesson.md(
                "A step draws one such answer, from the present policy: "
                f"{lesson.term('on-policy')} data. An older policy's would need weights, as in 08."
            ),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A task that can only be looked up

    Words have values, drawn anew for each task, and only a tool tells them. An answer
    is `[ANSWER]` and one integer.
    """)
    return


@app.cell(hide_code=True)
def _():
    from zorplex_rl.course.figures.tokens import token_strip
    from zorplex_rl.policy.evaluate import summarise
    from zorplex_rl.policy.load import load_policy
    from zorplex_rl.policy.rollout import RolloutRequest, Sampling, rollout

    return (
        RolloutRequest,
        Sampling,
        load_policy,
        rollout,
        summarise,
        token_strip,
    )


@app.cell
def settings():
    config = SimpleNamespace(
        policy=mo.cli_args().get("policy") or "embedded",  # or a model's folder
        seed=0,
        prompts=4,  # tasks in a training batch
        samples=4,  # episodes of each
        steps=20,
        learning_rate=3e-4,
        tasks_per_kind=200,
    )
    return (config,)


@app.cell
def _(Sampling, config, load_policy):
    torch.set_num_threads(1)  # fastest for a model this small
    policy = load_policy(config.policy)
    environment = Zorplex(config.seed)
    # Of these only the first two concern you: `max_turns` bounds the calls of an episode, and `slots`
    # says how many the package's engine decodes side by side.
    sampling = Sampling(temperature=1.0, max_tokens=96, max_turns=96, slots=64)
    (task,) = environment.tasks(("compositional",), 1)
    print(policy.tokenizer.decode(encode_prompt(policy.tokenizer, task)), dict(task.table))
    return environment, policy, sampling, task


@app.cell(hide_code=True)
def _(policy):
    lesson.ran_on(policy)
    return


@app.cell(hide_code=True)
def _():
    lesson.md(f"""
    The policy sees the text. Only the tool sees the table.

    ### Exercise 1: generate, call, inject

    An {lesson.term("episode")} goes from the question to the end of the answer. *Generate*: run
    the model on all tokens so far, draw the next one. *Call*: when the text holds a complete
    call, run the tool. *Inject*: put its result behind the text, as tokens, and go on.
    """)
    return


@app.function
def sample_episode(policy, task, execute, sampling, seed):
    """Sample a response. Returns two lists: its token ids, and True where the policy drew one.

    Make one `rng = random.Random(seed)` for the episode, and call `rng.choices` once a
    token, at the temperature.
    Stop after a token of `policy.eos_ids`, which is part of the response, or when a
    *finished* line holds an answer: in the last line more digits may follow. Never return
    more than `max_tokens`, results included: what does not fit of a result is cut off.
    Look for a call in what was written since the last result. Inject " -> ", the result
    and a line break.

        policy.model(ids).logits                 ids [1, T] in, logits [1, T, V] out
        encode_prompt(policy.tokenizer, task)    the ids of what the policy sees
        encode_text(policy.tokenizer, text)      the ids of any text
        policy.tokenizer.decode(ids, skip_special_tokens=True)
        find_call(text)                          the first complete call in it, or None
        find_answer(text)                        the answer that it gives, or None
        execute(task, call)                      a call's result, a text

    >>> ids, sampled = sample_episode(policy, task, environment.execute, sampling, 0)
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: sample_episode,
        check_sample_episode,
        sample_episode_solution,
        level="core",
        minutes=16,
        lines=20,
        hints=(
            "What has to survive from one token to the next? Where does the present turn begin, "
            "and when does that change?",
            "`while len(ids) < sampling.max_tokens:` the logits of the last position; `chances "
            "= (logits / temperature).softmax(-1).tolist()`; "
            "`rng.choices(range(len(chances)), chances)` is a list with one token. Then the "
            "text since `start`, decoded with "
            "`skip_special_tokens=True`. Is it over? `text.rpartition('\\n')[0]` has the "
            "finished lines. Does it call? Then add the result's ids, with "
            "`False` for each, and move `start`.",
        ),
    )
    return


@app.cell
def _():
    sampler, whose_sampler = exercise.running(
        lambda: sample_episode, check_sample_episode, sample_episode_solution
    )
    return sampler, whose_sampler


@app.cell
def _(config, environment, policy, sampler, sampling, task):
    with torch.inference_mode():
        _ids, _ = sampler(policy, task, environment.execute, sampling, config.seed)
    print(policy.tokenizer.decode(_ids))
    return


@app.cell(hide_code=True)
def _(environment, policy, sampler, sampling, whose_sampler):
    by_engine, same_tokens, both_seconds = nb05.beside_the_engine(
        policy, environment, sampler, sampling
    )
    lesson.md(
        f"This was {whose_sampler}. The package's engine, many episodes at once, gives the same "
        "tokens in "
        f"{sum(same_tokens)} of {len(same_tokens)}, in {both_seconds[0]:.2f} s instead of "
        f"{both_seconds[1]:.2f} s."
    )
    return by_engine, same_tokens


@app.cell(hide_code=True)
def _():
    ask_injected = lesson.predict(
        "How well does the policy foresee the tool's tokens, compared with its own?",
        "as well as its own",
        "worse than its own",
        "better than its own",
    )
    ask_injected
    return (ask_injected,)


@app.cell(hide_code=True)
def _(ask_injected, by_engine, policy, token_strip):
    foreseen = nb05.foreseen(policy, by_engine)
    _own, _tool = foreseen[True], foreseen[False]
    lesson.reveal(
        ask_injected,
        right=0 if abs(_own - _tool) < 0.05 else 1 if _tool < _own else 2,
        why=f"""
    Its own had a mean probability of {_own:.0%}, the tool's {_tool:.0%}. Trained on these, it
    would learn to *invent* results after good episodes, and to avoid true ones after bad ones. A
    {lesson.term("loss mask")} keeps them from the trainer.
    """,
        shows=[lesson.figure(token_strip(policy, by_engine[1]))],
    )
    return (foreseen,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 2: find the fault

    `training_row` hands an episode to the trainer, with two faults. Nothing raises. A
    trainer with the *same* weights should find the log-probabilities of sampling.
    """)
    return


@app.function
def training_row(policy, episode):
    """The ids of the response, and for each whether the trainer learns from it.

    An episode has `text`, `token_ids` and `sampled`.

    >>> training_row(policy, by_engine[0])
    """
    ids = encode_text(policy.tokenizer, episode.text)
    return ids, [True] * len(ids)


@app.cell(hide_code=True)
def _(by_engine, policy):
    lesson.table(
        f"What a trainer would log of {len(by_engine)} episodes",
        nb05.diagnosis(policy, by_engine, training_row, training_row_solution),
    )
    return


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: training_row,
        check_training_row,
        training_row_solution,
        level="warm-up",
        minutes=3,
        hints=(
            "The trainer learns from more tokens than the policy sampled. Who wrote the others? "
            "And where are the tokens that end a text?",
            "`episode.text` is for people. What was written down while the policy sampled need "
            "not be made again.",
        ),
    )
    return


@app.cell(hide_code=True)
def _(environment, reports):
    _right = ", ".join(f"`{report.name}` {report.accuracy:.0%}" for report in reports)
    lesson.folded(
        "Four kinds of question, and how often it is right",
        f"{nb05.task_table(environment, TASK_SPECS)}\n\nRight, sampled, on "
        f"{reports[0].episodes} held-out tasks of each kind: {_right}.",
    )
    return


@app.cell(hide_code=True)
def _(
    RolloutRequest,
    config,
    environment,
    policy,
    rollout,
    sampling,
    summarise,
):
    def answer_tasks(policy, kind):
        """One sampled episode for each held-out task of this kind, scored."""
        tasks = environment.tasks((kind,), config.tasks_per_kind, "held_out")
        requests = [RolloutRequest(task, seed) for seed, task in enumerate(tasks)]
        episodes = rollout(policy, requests, environment.execute, sampling)
        for episode in episodes:
            episode.score = score(episode)
        return episodes

    answered = {kind: answer_tasks(policy, kind) for kind in TASK_SPECS}
    reports = [summarise(kind, episodes) for kind, episodes in answered.items()]
    return answer_tasks, answered, reports


@app.cell(hide_code=True)
def _(reports):
    _untagged = reports[1].outcomes["wrong_format"]
    lesson.md(f"""
    ## From failures to a reward

    {_untagged:.0%} of `compositional` episodes, two look-ups and a sum, end without an answer in
    the form. RL pays: +1 for the right value, +0.2 for any answer in the form (1.2 for both),
    −0.1 for every needless call.
    """)
    return


@app.cell(hide_code=True)
def _():
    ask_lenient = lesson.predict(
        "A lenient verifier pays if the right number stands *anywhere*. How many more episodes, "
        "of all four kinds, does it pay for?",
        "up to 25% more",
        "25% to 75% more",
        "more than that",
    )
    ask_lenient
    return (ask_lenient,)


@app.function(hide_code=True)
def paid_for(episode):
    """What a lenient verifier would pay for, or None: the right number stands nowhere."""
    number = re.compile(rf"(?<!\d){episode.task.answer}(?!\d)")
    if episode.score.outcome == "success":
        return "answer"
    if any(number.search(text) for text in episode.sampled_text):
        return "own words"
    if any(number.search(turn.result or "") for turn in episode.turns):
        return "tool's words"
    return None


@app.cell(hide_code=True)
def _(answered, ask_lenient):
    _paid = [paid_for(episode) for episodes in answered.values() for episode in episodes]
    paid_shares = {
        what: _paid.count(what) / len(_paid)
        for what in ("answer", "own words", "tool's words")
    }
    _more = sum(paid_shares.values()) / (paid_shares["answer"] or 1e-9)
    lesson.reveal(
        ask_lenient,
        right=0 if _more <= 1.25 else 1 if _more <= 1.75 else 2,
        why=f"""
    {_more - 1:.0%} more. In {paid_shares["own words"]:.0%} of all the policy wrote the number,
    but not as its answer. In
    {paid_shares["tool's words"]:.0%} only a tool wrote it. To be paid for calling alone is
    {lesson.term("reward hacking")}.
    """,
    )
    return (paid_shares,)


@app.cell(hide_code=True)
def _():
    lesson.md(f"""
    ## One step of training

    Several episodes of one task are a {lesson.term("group")}. The {lesson.term("advantage")}
    says how much better an episode did than its group, in standard deviations.
    """)
    return


@app.function
def advantages_of(rewards):
    # 1e-4: where all rewards are alike, nothing is divided by 0.
    mean, deviation = fmean(rewards), pstdev(rewards)
    return [(reward - mean) / (deviation + 1e-4) for reward in rewards]


@app.cell(hide_code=True)
def _():
    lesson.folded(
        "Why may the mean be subtracted, and why divide?",
        "A constant b adds b Σ∇p to the mean gradient, and that is 0: probabilities always add "
        "up to 1. The reward alone would push up every answer that earns a "
        "little, and other steps would have to undo it. A constant near the mean leaves less to "
        "undo, so a step's gradient usually scatters less; a bad constant "
        "makes it scatter more. The group's mean is no constant: an episode is part of it, "
        "so without the division the mean gradient is too small by the factor (n − 1)/n. "
        "Dividing by the deviation lets every group push about equally hard. That overweights "
        "groups that are nearly all right or all wrong, and "
        "[Dr. GRPO](https://arxiv.org/abs/2503.20783) (Liu et al., 2025) leaves it out.",
    )
    return


@app.cell(hide_code=True)
def _():
    mo.vstack(
        [
            lesson.md("""
            ### From an episode to its tokens

            An episode e is many tokens. The policy π draws some, each with a probability that
            depends on all before it, `e<t`. The tool writes the others, by a rule of its own. So:
            """),
            lesson.math(
                r"\log p(e) = \sum_{t \,\in\, \text{drawn}} \log \pi_\theta(e_t \mid e_{\lt t}) "
                r"+ \sum_{t \,\in\, \text{tool}} \log p_{\text{tool}}(e_t \mid e_{\lt t})"
            ),
            lesson.md(
                "The second sum does not contain the weights θ: its gradient is 0. So the "
                "gradient is a sum over tokens with a mask m, 1 for drawn and 0 for injected "
                "ones. "
                "With the advantage A for the reward, the loss of a batch is:"
            ),
            lesson.math(
                r"L = - \frac{1}{\sum_e \sum_t m_t} \; \sum_e A(e) \sum_t m_t \, \log "
                r"\pi_\theta(e_t \mid e_{\lt t})"
            ),
            lesson.md(
                "To divide by the number of drawn tokens is a choice, the token mean: a long "
                "episode counts for more. Try one push, where an answer begins:"
            ),
        ]
    )
    return


@app.cell(hide_code=True)
def _(config, environment, policy):
    begins = environment.tasks(
        ("compositional",), min(24, config.tasks_per_kind), "held_out"
    )
    chances = nb05.chances_after(policy, environment, begins)
    WhatIf(
        "One push",
        [
            Knob("token", "Drawn token", list(chances)[:2], "{}"),
            Knob("advantage", "Advantage of its episode", [-2.0, -1.0, 0.0, 1.0, 2.0]),
        ],
        lambda token, advantage: nb05.push(chances, token, advantage),
        {
            "token": nb05.ANSWERS if nb05.ANSWERS in chances else next(iter(chances)),
            "advantage": 1.0,
        },
        static="execute" in mo.cli_args(),
    )
    return (begins,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 3: the loss of a batch

    Write L. An episode has `prompt_ids`, `token_ids` and `sampled`.
    """)
    return


@app.function
def policy_gradient(policy, episodes, advantages):
    """The loss L of a batch: a scalar tensor, through which gradients flow.

    The model reads `prompt_ids + token_ids`, and its logits at a position are those of
    the *next* token. `sampled` is m: True where the policy drew the token of `token_ids`.

    >>> policy_gradient(policy, by_engine[:2], [1.0, -1.0]).backward()
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: policy_gradient,
        check_policy_gradient,
        policy_gradient_solution,
        level="stretch",
        minutes=9,
        lines=7,
        hints=(
            "Which position's logits predict the first token of the response? And what is the "
            "sum divided by: tokens or episodes?",
            "One episode at a time: feed all ids but the last, take `log_softmax(-1)`, and "
            "`gather` the entries of all ids but the first. The last "
            "`len(token_ids)` of these belong to the response. Select with a tensor of "
            "`sampled`, sum, and count.",
        ),
    )
    return


@app.cell
def _():
    loss_of, whose_loss = exercise.running(
        lambda: policy_gradient, check_policy_gradient, policy_gradient_solution
    )
    return loss_of, whose_loss


@app.cell(hide_code=True)
def _():
    lesson.folded(
        "Two names that you will meet everywhere: PPO and GRPO",
        f"""
    - {lesson.term("PPO")} takes several steps on one batch, so that the batch is soon off-policy.
      It weights each token by the ratio of its new to its old
      probability, and [clips](https://arxiv.org/abs/1707.06347). Clipping is one-sided: beyond a
      range a token gets no more push *in the direction of its
      advantage*, but a push back always counts. A second model, the critic, estimates values.
    - {lesson.term("GRPO")} replaces that model by the group
      ([DeepSeekMath](https://arxiv.org/abs/2402.03300), section 4). The step here has its
      advantage, with the
      plain policy gradient. GRPO also clips, takes the mean over each answer's own tokens, and adds
      a penalty for leaving the start (KL).
    """,
    )
    return


@app.cell(hide_code=True)
def _(whose_loss, whose_sampler):
    lesson.md(f"""
    ## Twenty steps that learn

    Sample, score, compare, push: with {whose_sampler}, and {whose_loss}.
    """)
    return


@app.function
@torch.inference_mode()
def play(policy, environment, sampling, config, step, sampler):
    """The next tasks, and a group of `config.samples` scored episodes for each."""
    tasks = environment.tasks(
        ("compositional",), config.prompts, start=step * config.prompts
    )
    copies = [task for task in tasks for _ in range(config.samples)]
    first_seed = (config.seed + 1) * 1_000_000 + step * len(copies)
    responses = [
        sampler(policy, task, environment.execute, sampling, first_seed + number)
        for number, task in enumerate(copies)
    ]
    return [
        nb05.as_episode(policy, task, *response)
        for task, response in zip(copies, responses, strict=True)
    ]


@app.function
def train(policy, environment, sampling, config, sampler, loss_of, on_step):
    parameters = list(policy.model.parameters())
    optimizer = torch.optim.AdamW(parameters, config.learning_rate, weight_decay=0.0)
    for step in range(config.steps):
        episodes = play(policy, environment, sampling, config, step, sampler)
        rewards = [episode.score.reward for episode in episodes]
        starts = range(0, len(rewards), config.samples)
        groups = [rewards[start : start + config.samples] for start in starts]
        advantages = [advantage for group in groups for advantage in advantages_of(group)]
        optimizer.zero_grad()
        loss_of(policy, episodes, advantages).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        on_step(step + 1, episodes)


@app.cell(hide_code=True)
def _(reports):
    ask_gain = lesson.predict(
        f"Before, {reports[1].accuracy:.0%} of the held-out compositional tasks were right. And "
        "afterwards?",
        "less than 20 points more",
        "20 to 40 points more",
        "more than 40 points more",
    )
    ask_gain
    return (ask_gain,)


@app.cell(hide_code=True)
def _(config):
    start = lesson.start_button(f"Train {config.steps} steps", seconds=30)
    start
    return (start,)


@app.cell(hide_code=True)
def _(config):
    curve = LiveCurve(
        config.steps,
        "Each batch as it comes: tasks that are new to the policy",
        percent=False,
    )
    curve
    return (curve,)


@app.cell
def _(
    begins,
    config,
    curve,
    environment,
    load_policy,
    loss_of,
    sampler,
    sampling,
    start,
):
    lesson.wait_for(start)
    learner = load_policy(config.policy)
    history = [nb05.chances_after(learner, environment, begins)]

    def draw(step, episodes):
        curve.add("mean reward", step, fmean(episode.score.reward for episode in episodes))
        history.append(nb05.chances_after(learner, environment, begins))

    curve.clear()
    train(learner, environment, sampling, config, sampler, loss_of, draw)
    return history, learner


@app.cell(hide_code=True)
def _(answer_tasks, answered, ask_gain, history, learner, summarise):
    was, now = (
        summarise(name, episodes)
        for name, episodes in (
            ("before", answered["compositional"]),
            ("after", answer_tasks(learner, "compositional")),
        )
    )
    gain = 100 * (now.accuracy - was.accuracy)
    _form = was.outcomes["wrong_format"] - now.outcomes["wrong_format"]
    lesson.reveal(
        ask_gain,
        right=0 if gain < 20 else 1 if gain <= 40 else 2,
        why=f"""
    From {was.accuracy:.0%} to {now.accuracy:.0%}, on words that training never draws. Episodes
    without the form fell from
    {was.outcomes["wrong_format"]:.0%} to {now.outcomes["wrong_format"]:.0%}:
    {"most" if 200 * _form > gain else "less than half"} of it is a habit of writing.
    """,
        shows=[
            lesson.figure(
                nb05.mass_chart(history),
                "What it writes where an answer should begin, step by step, on held-out tasks.",
            )
        ],
    )
    return gain, now, was


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## When one process is not enough

    In large models *generating* is limited by memory: each decoding step reads all weights,
    once for the whole batch. *Tools and checks* are other programs, to wait for. *Training* is
    limited by arithmetic. Here, with 64 episodes of the engine:
    """)
    return


@app.cell
def _(
    RolloutRequest,
    config,
    environment,
    load_policy,
    loss_of,
    rollout,
    sampling,
):
    generator, trainer = load_policy(config.policy), load_policy(config.policy)
    _optimizer = torch.optim.AdamW(trainer.model.parameters(), config.learning_rate)
    clock, latencies = SpanRecorder("this process"), []
    for _step in range(3):
        _tasks = environment.tasks(("compositional",), 8, start=8 * _step)
        _requests = [
            RolloutRequest(t, s, g) for g, t in enumerate(_tasks) for s in range(8)
        ]
        with clock.span("generate"):
            _batch = rollout(generator, _requests, environment.execute, sampling)
        with clock.span("train"):
            loss_of(trainer, _batch, [1.0, -1.0] * 32).backward()
            _optimizer.step()
        with clock.span("pull"):
            generator.model.load_state_dict(trainer.model.state_dict())
        latencies.append(group_latencies(_batch))
    spans = clock.drain()
    seconds = {
        kind: fmean(span.end - span.start for span in spans if span.kind == kind)
        for kind in ("generate", "train", "pull")
    }
    return latencies, seconds


@app.cell(hide_code=True)
def _(seconds):
    _share = {kind: f"{took / sum(seconds.values()):.1%}" for kind, took in seconds.items()}
    lesson.md(f"""
    Generating takes {_share["generate"]} of a step, training {_share["train"]}, pulling the new
    weights {_share["pull"]}. That split is of this code: the engine generates 64 episodes at once, and
    the loss of this page takes one after the other. In large models generating is most of it:
    [SortedRL](https://arxiv.org/abs/2603.23414) (March 2026, 8 and 32 billion parameters)
    reports up to 70% for answers of 16,000 tokens. Ours have some 30. Every further
    token is one more decoding step, and a batch waits for its slowest episode.

    ## The asynchronous answer

    Stop taking turns: generate the next batch while the trainer works. A step's time is then no
    sum but a maximum: at best half. The price is older data, {lesson.term("off-policy")};
    `max_lag` bounds by how many versions. Settle with the sliders:

    1. *no variance*: with how many generators is the speed-up largest?
    2. *one straggler*: from which lag on does more save less than 2%?
    """)
    return


@app.cell
def _(latencies, seconds):
    this_machine = Setting(
        generators=1,
        groups_per_step=8,
        generation_seconds=seconds["generate"] / 8,
        variation=group_variation(latencies),
        training_seconds=seconds["train"],
        sync_seconds=seconds["pull"],
    )
    TimelineSimulator(
        this_machine, static="execute" in mo.cli_args(), scenario="this machine"
    )
    return (this_machine,)


@app.cell(hide_code=True)
def _():
    mo.vstack([lesson.folded(*found) for found in nb05.settled()])
    return


@app.cell(hide_code=True)
def _():
    lesson.md("## Your file")
    return


@app.cell(hide_code=True)
def _(loss_of, sampler):
    _functions = {"sample_episode": sampler, "policy_gradient": loss_of}
    my_rl = fill_in(EXAMPLES / "my_rl.py", _functions)
    lesson.folded(
        f"`my_rl.py`: this page in {len(my_rl.splitlines())} lines, on torch and transformers alone",
        f"```python\n{my_rl}\n```",
    )
    return (my_rl,)


@app.cell(hide_code=True)
def _():
    write = lesson.start_button("Write my_rl.py", seconds=float("nan"))
    write
    return (write,)


@app.cell(hide_code=True)
def _(my_rl, write):
    lesson.wait_for(write)
    lesson.md(
        "In `marimo edit` a button writes it."
        if lesson.unattended()
        else keep(my_rl, Path(__file__).resolve().parents[1] / "my_rl.py")
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.predicted(3)
    return


@app.cell(hide_code=True)
def _(now, was):
    lesson.recap(
        "RL needs a reward, and a policy that is right now and then.",
        "The log-probability of an episode is a sum over tokens; a tool's carry no gradient.",
        f"Twenty steps: from {was.accuracy:.0%} to {now.accuracy:.0%} right.",
        "In turns a step is a sum; side by side a maximum, on older data.",
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.links(__file__)
    return


@app.function(hide_code=True)
def check_sample_episode(sample_episode):
    toy_policies.check_sampler(sample_episode, sample_episode_solution)


@app.function(hide_code=True)
def sample_episode_solution(policy, task, execute, sampling, seed):
    rng, prompt = random.Random(seed), encode_prompt(policy.tokenizer, task)
    ids, sampled, start = [], [], 0
    while len(ids) < sampling.max_tokens:
        # Generate: the model reads all tokens so far, and the next one is drawn.
        logits = policy.model(torch.tensor([prompt + ids])).logits[0, -1]
        chances = (logits / sampling.temperature).softmax(-1).tolist()
        ids, sampled = ids + rng.choices(range(len(chances)), chances), [*sampled, True]
        text = policy.tokenizer.decode(ids[start:], skip_special_tokens=True)
        # More digits may follow in the last line, so it is not read yet.
        if ids[-1] in policy.eos_ids or find_answer(text.rpartition("\n")[0]) is not None:
            break
        # Call: run the tool as soon as the call is complete.
        if call := find_call(text):
            result = encode_text(policy.tokenizer, f" -> {execute(task, call)}\n")
            # Inject: the model will read these tokens, and did not draw them.
            ids, sampled = ids + result, sampled + [False] * len(result)
            start = len(ids)
    return ids[: sampling.max_tokens], sampled[: sampling.max_tokens]


@app.function(hide_code=True)
def check_training_row(training_row):
    toy_policies.check_row(training_row, training_row_solution)


@app.function(hide_code=True)
def training_row_solution(policy, episode):
    return episode.token_ids, episode.sampled


@app.function(hide_code=True)
def check_policy_gradient(policy_gradient):
    toy_policies.check_loss(policy_gradient, policy_gradient_solution)


@app.function(hide_code=True)
def policy_gradient_solution(policy, episodes, advantages):
    total = 0.0
    for episode, advantage in zip(episodes, advantages, strict=True):
        ids = torch.tensor([episode.prompt_ids + episode.token_ids])
        # The logits at a position are those of the next token.
        logp = policy.model(ids[:, :-1]).logits[0].log_softmax(-1)
        chosen = logp.gather(-1, ids[0, 1:, None])[len(episode.prompt_ids) - 1 :, 0]
        total = total + advantage * chosen[torch.tensor(episode.sampled)].sum()
    return -total / sum(sum(episode.sampled) for episode in episodes)


if __name__ == "__main__":
    app.run()
