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
    app_title="Write the loop: a tool, a loss, twenty steps",
    css_file="../zorplex_rl/course/lesson/lesson.css",
)

with app.setup(hide_code=True):
    import random
    from statistics import fmean, median, pstdev
    from textwrap import wrap
    from types import SimpleNamespace

    import marimo as mo

    from zorplex_rl.course.figures.loop_drawing import loop_drawing
    from zorplex_rl.course.kept_file import EXAMPLES, fill_in, keep, kept
    from zorplex_rl.course.lesson import exercise, lesson
    from zorplex_rl.course.lesson.later import later
    from zorplex_rl.course.widgets import LiveCurve, WhatIf
    from zorplex_rl.course.widgets.what_if import Knob
    from zorplex_rl.policy.tokenizer import encode_prompt, encode_text
    from zorplex_rl.task.environment import Zorplex
    from zorplex_rl.task.parser import find_answer, find_call
    from zorplex_rl.task.rewards import score

    # The page shows its top before these are there: torch takes seconds.
    torch = later("torch")
    nb05b = later("zorplex_rl.course.nb05b")
    toy_policies = later("zorplex_rl.course.toy_policies")
    learning = later("zorplex_rl.learning.learner")
    simple = later("zorplex_rl.learning.train_simple")


@app.cell(hide_code=True)
def _():
    lesson.header(
        __file__,
        minutes=47,
        hardware="two CPU cores, no GPU, no network",
        goals=[
            "say why a reward can replace the right answer",
            "write the loop in which a model uses a tool: generate, call, inject",
            "say which tokens may be trained on, and mask the others",
            "write the loss that raises the mean reward",
            "train a small policy with your two functions, and keep them in a file",
        ],
    )
    return


@app.cell(hide_code=True)
def _(sampling):
    card = nb05b.RecordedCard(
        "Four questions, and what the policy writes while your functions train it",
        "small",
        sampling,
        lines=5,
    )
    card
    return (card,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    How do you teach a model to use a tool, if nobody has written thousands of right texts for it? In notebook 05
    the policy often knew the answer, and only had to be paid for saying it. Here you write the two functions that
    train it: one samples a text, with a tool's results in it; one pushes the tokens of good texts up.

    Solid boxes are the policy's tokens, dashed ones the tool's. It is a recording, until your functions have trained.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.figure(
        loop_drawing("dataset", "generator", "tools", "reward", "trainer"),
        "The loop of this course. What is lit runs on this page.",
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.md(f"""
    ## Why reinforcement learning

    If you know REINFORCE, skip to *A task that can only be looked up*.

    Supervised learning copies a right text. In reinforcement learning the model, called a {lesson.term("policy")}, writes
    the answer itself, and a {lesson.term("reward")} says how good it was. Often nobody has written a right text, but a program can check one.

    The smallest example: ten questions, ten answers, 100 logits. The lines with a comment differ.
    """)
    return


@app.function
def supervised_loop(policy, optimizer, questions, right_answer):
    for question in questions:
        logp = policy(question).log_softmax(-1)
        answer = right_answer[question]  # somebody wrote it
        loss = -logp[answer]  # as likely as possible
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@app.function
def rl_loop(policy, optimizer, questions, reward):
    for question in questions:
        logp = policy(question).log_softmax(-1)
        answer = logp.exp().multinomial(1).item()  # the policy writes it
        loss = -reward(question, answer) * logp[answer]  # if it was good
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@app.cell(hide_code=True)
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
def _():
    ask_rewards = lesson.predict(
        "Until nine answers in ten are right, how many times as many steps will rewards need as labels?",
        "about as many",
        "two to five times",
        "more than five times",
    )
    ask_rewards
    return (ask_rewards,)


@app.cell(hide_code=True)
def _(ask_rewards, with_labels, with_rewards):
    _times = median(with_rewards) / with_labels
    lesson.reveal(
        ask_rewards,
        right=0 if _times < 2 else 1 if _times <= 5 else 2,
        why=f"""
    {_times:.1f} times as many: {with_labels} steps with labels, and {median(with_rewards)} with rewards (median of three seeds). At first, nine tries in ten are wrong, and they teach nothing.
    """,
    )
    return


@app.cell(hide_code=True)
def _():
    mo.vstack(
        [
            lesson.md(
                "A reward judges only the answer that was tried. **As long as none is right, all "
                "rewards are 0, and so is the gradient**: RL needs a model that already gets some "
                "answers right.\n\n"
                "Why does this loop raise the mean reward? We cannot differentiate the reward, only the probabilities. But "
                "∇p = p ∇log p. So the gradient of the mean reward is again a mean over answers that the policy "
                "draws, and drawing answers estimates it:"
            ),
            lesson.math(
                r"\nabla \sum_a p(a) R(a) = \sum_a p(a) \, R(a) \, \nabla \log p(a) = "
                r"\mathbb{E}_{a \sim p} \left[ R(a) \, \nabla \log p(a) \right]"
            ),
            lesson.md(
                "An answer with p = 0.1 is drawn one time in ten, and each time ∇log p is ten times ∇p. So in the mean it gets ∇p. "
                "`rl_loop` estimates the mean from one sampled answer. This is REINFORCE. The minus is there because an optimizer descends. Each step samples from the "
                f"present model; such data are called {lesson.term('on-policy')}. Older ones need a correction: notebook 09."
            ),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A task that can only be looked up

    Each word has a secret number, and only a tool knows it. The policy reads this; only the tool sees the table below it.
    """)
    return


@app.cell(hide_code=True)
def _():
    from zorplex_rl.policy.evaluate import summarise
    from zorplex_rl.policy.load import load_policy
    from zorplex_rl.policy.rollout import RolloutRequest, Sampling, rollout

    return RolloutRequest, Sampling, load_policy, rollout, summarise


@app.cell
def settings():
    full = SimpleNamespace(
        policy=mo.cli_args().get("policy") or "embedded",  # or a model's folder
        seed=0,
        kind="compositional",  # tasks: the sum or difference of two words
        prompts=4,  # tasks in a training batch
        samples=4,  # episodes of each
        steps=20,
        learning_rate=3e-4,
        held_out=200,  # tasks of the evaluation, before and after
    )
    return (full,)


@app.cell(hide_code=True)
def _(full):
    # Small in a build that nobody reads.
    config = lesson.brief(full, steps=3, held_out=20)
    return (config,)


@app.cell(hide_code=True)
def _(Sampling, config, load_policy):
    torch.set_num_threads(1)  # fastest for a model this small
    policy = load_policy(config.policy)
    environment = Zorplex(config.seed)
    # Your sampler bounds an episode by its tokens alone, so `max_turns` is out of reach here.
    # `slots`: how many episodes the package's engine decodes side by side.
    sampling = Sampling(temperature=1.0, max_tokens=96, max_turns=96, slots=64)
    (task,) = environment.tasks((config.kind,), 1)
    print(policy.tokenizer.decode(encode_prompt(policy.tokenizer, task)))
    print(*wrap(f"{task.table}", 72), sep="\n")
    return environment, policy, sampling, task


@app.cell(hide_code=True)
def _(policy):
    lesson.ran_on(policy)
    return


@app.cell(hide_code=True)
def _():
    lesson.md(f"""
    ### Exercise 1: generate, call, inject

    An {lesson.term("episode")} goes from the question to the end of the answer. *Generate* a token,
    *call* the tool when a call is complete, *inject* its result as tokens, and go on. How a token is drawn is written down:
    """)
    return


@app.function
def draw_token(policy, ids, temperature, rng):
    """Draw the token that follows `ids`.

    A temperature below 1 makes likely ones likelier.
    """
    logits = policy.model(torch.tensor([ids])).logits[0, -1]
    chances = (logits / temperature).softmax(-1).tolist()
    return rng.choices(range(len(chances)), weights=chances)[0]


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    The rest is yours. Read only what was written since the last result: else you find the old call again after every token.
    And read answers only in finished lines. After `[ANSWER] 4` the next token may be a 2.

    | what you need | what it returns |
    |---|---|
    | `encode_prompt(policy.tokenizer, task)` | the prompt's ids, a list |
    | `encode_text(policy.tokenizer, text)` | the ids of any text, a list |
    | `policy.tokenizer.decode(ids, skip_special_tokens=True)` | the text of these ids |
    | `text.rpartition("\n")[0]` | its finished lines |
    | `find_answer(text)` | the answer in it, or `None` |
    | `find_call(text)` | its first complete call, or `None` |
    | `execute(task, call)` | the tool's result, a text |
    """)
    return


@app.function
def sample_episode(policy, task, execute, sampling, seed):
    """Sample a response. Returns two lists: its token ids, and True where the
    policy drew one.

    Make one `rng = random.Random(seed)` for the whole episode. Draw at
    `sampling.temperature`, and keep each token. The episode is over after
    - an end-of-text token, one of `policy.eos_ids`,
    - a finished line with an answer, or
    - `sampling.max_tokens`, results included: cut off what does not fit.
    After a complete call inject " -> ", its result and a line break.

    >>> sample_episode(policy, task, environment.execute, sampling, seed=0)
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: sample_episode,
        Solutions,
        level="core",
        minutes=16,
        lines=20,
        hints=(
            "What has to survive from one token to the next? Where does the text after the last result begin, "
            "and when does that change?",
            "`while len(ids) < sampling.max_tokens:` draw a token after `prompt + ids`. Then "
            "decode `ids[start:]`. Is it over? Does it call? Then add the result's ids, with "
            "`False` for each, and move `start`.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    sampler, whose_sampler = exercise.running(lambda: sample_episode, Solutions)
    return sampler, whose_sampler


@app.cell
def _(config, environment, policy, sampler, sampling, task):
    with torch.inference_mode():
        _ids, _ = sampler(policy, task, environment.execute, sampling, config.seed)
    print(policy.tokenizer.decode(_ids))
    return


@app.cell(hide_code=True)
def _(environment, policy, sampler, sampling, whose_sampler):
    by_engine, same_tokens = nb05b.beside_the_engine(policy, environment, sampler, sampling)
    lesson.md(
        f"This was {whose_sampler}, which reads the whole text anew for each token. The package's engine keeps what it has read; "
        f"it wrote the same tokens in {sum(same_tokens)} of {len(same_tokens)} episodes."
    )
    return by_engine, same_tokens


@app.cell(hide_code=True)
def _():
    ask_injected = lesson.predict(
        "How much probability does the policy give to the tool's tokens, compared with its own?",
        "as much",
        "less",
        "more",
    )
    ask_injected
    return (ask_injected,)


@app.cell(hide_code=True)
def _(ask_injected, by_engine, policy):
    foreseen = nb05b.foreseen(policy, by_engine)
    _own, _tool = foreseen[True], foreseen[False]
    lesson.reveal(
        ask_injected,
        right=0 if abs(_own - _tool) < 0.05 else 1 if _tool < _own else 2,
        why=f"""
    Its own had a mean probability of {_own:.0%}, the tool's {_tool:.0%}: it cannot know a secret number. If the loss pushed the
    tool's tokens too, the policy would learn to write results itself instead of asking, as SmolLM2 did in notebook 05. A
    {lesson.term("loss mask")} keeps them out.
    """,
    )
    return (foreseen,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    Keep the tokens, not the text: many ids spell the same text. Whoever encodes the text again trains on tokens that the policy
    never drew, and nothing raises an exception. So an episode records `token_ids`, and with each whether the policy drew it: *token in, token out*.
    """)
    return


@app.cell(hide_code=True)
def _(RolloutRequest, config, environment, rollout, sampling):
    def answer_tasks(policy, tasks):
        """One sampled episode for each task, scored."""
        requests = [RolloutRequest(task, seed) for seed, task in enumerate(tasks)]
        episodes = rollout(policy, requests, environment.execute, sampling)
        for episode in episodes:
            episode.score = score(episode)
        return episodes

    held_out = environment.tasks(("compositional",), config.held_out, "held_out")
    return answer_tasks, held_out


@app.cell(hide_code=True)
def _():
    lesson.md(f"""
    ## One step of training

    The reward is a sum: 1 if the answer is right, 0.2 if a number stands behind `[ANSWER]`, and −0.1 for each needless call. So it is 1.2 at most.

    Several episodes of one task are a {lesson.term("group")}. The {lesson.term("advantage")}
    says how much better an episode did than the mean of its group: what is better is pushed up, what is worse
    down. A group whose rewards are all alike teaches nothing.
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
        "Why may the mean be subtracted, and what does the division cost?",
        "Subtracting a constant b takes b Σ∇p, a sum over all answers, from the mean gradient. That is 0: "
        "probabilities always add up to 1. A constant near the mean leaves less to "
        "undo, so a step's gradient usually scatters less.\n\nDividing by the standard deviation lets "
        "every group push about equally hard. So it overweights groups that are nearly all right or all wrong: of eight "
        f"episodes with one wrong, that one gets {advantages_of([1.0] * 7 + [0.0])[-1]:.1f}. "
        "And where no answer is right, a number that was merely guessed earns 0.2, and the others nothing. Divided, this guess is pushed up as hard as the only "
        f"right answer of a group: {advantages_of([0.2] + 7 * [0.0])[0]:.1f} and {advantages_of([1.2] + 7 * [0.0])[0]:.1f}. So a weak policy learns to guess. "
        "[Dr. GRPO](https://arxiv.org/abs/2503.20783) (Liu et al., 2025) leaves the division out, and so does `zorplex-rl train --preset smollm2`.",
    )
    return


@app.cell(hide_code=True)
def _():
    mo.vstack(
        [
            lesson.md("""
            ### From an episode to its tokens

            The t-th token of an episode e is eₜ. The policy π draws some, each with a probability that
            depends on all before it. The tool writes the others, each with a probability too, here always 1:
            """),
            lesson.math(
                r"\log p(e) = \sum_{t \,\in\, \text{drawn}} \log \pi_\theta(e_t \mid e_{\lt t}) "
                r"+ \sum_{t \,\in\, \text{tool}} \log p_{\text{tool}}(e_t \mid e_{\lt t})"
            ),
            lesson.md(
                "The second sum does not contain the weights θ. So the "
                "gradient is a sum over tokens with a mask m, 1 for drawn and 0 for injected ones. "
                "Using the advantage A in place of the reward, the loss of a batch is:"
            ),
            lesson.math(
                r"L = - \frac{1}{\sum_e \sum_t m_t} \; \sum_e A(e) \sum_t m_t \, \log "
                r"\pi_\theta(e_t \mid e_{\lt t})"
            ),
            lesson.md(
                "The loss divides by the drawn tokens of the whole batch, a choice called the token mean: long episodes count for more."
                "\n\nTry one push, where an answer begins. After its sum the policy writes `[ANSWER] 3`, or `So 3.`, as in the first text of the card at step 0. "
                "The second form is not what was asked for, and is paid nothing. The push is large, so that you can see it; a real step is far smaller:"
            ),
        ]
    )
    return


@app.cell(hide_code=True)
def _(config, environment, policy):
    begins = environment.tasks(("compositional",), min(24, config.held_out), "held_out")
    chances = nb05b.chances_after(policy, environment, begins)
    WhatIf(
        "One push",
        [
            Knob("token", "Drawn token", list(chances)[:2], "{}"),
            Knob("advantage", "Advantage of its episode", [-2.0, -1.0, 0.0, 1.0, 2.0]),
        ],
        lambda token, advantage: nb05b.push(chances, token, advantage),
        {
            "token": nb05b.ANSWERS if nb05b.ANSWERS in chances else next(iter(chances)),
            "advantage": 1.0,
        },
    )
    return (begins,)


@app.cell(hide_code=True)
def _():
    lesson.md(f"""
    ### Exercise 2: the loss of a batch

    Write L, whose gradient is the {lesson.term("policy gradient")}. An episode has `prompt_ids`, `token_ids` and `sampled`.
    """)
    return


@app.function
def policy_gradient(policy, episodes, advantages):
    """The loss L of a batch: a scalar tensor, through which gradients flow.

    The model reads `prompt_ids + token_ids`, and its logits at a position are
    those of the *next* token. `sampled` is m: True where the policy drew the token
    of `token_ids`.

    >>> policy_gradient(policy, episodes, advantages=[1.0, -1.0]).backward()
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: policy_gradient,
        Solutions,
        level="stretch",
        minutes=11,
        lines=12,
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


@app.cell(hide_code=True)
def _():
    loss_of, whose_loss = exercise.running(lambda: policy_gradient, Solutions)
    return loss_of, whose_loss


@app.cell(hide_code=True)
def _():
    lesson.folded(
        "Two names that you will meet everywhere: PPO and GRPO",
        f"""
    - {lesson.term("PPO")} takes several steps on one batch, so it weights each token by the ratio of its new to its old
      probability, and [clips](https://arxiv.org/abs/1707.06347) that ratio (notebook 09). A second model estimates the reward to be expected.
    - {lesson.term("GRPO")} replaces that model by the group
      ([DeepSeekMath](https://arxiv.org/abs/2402.03300), section 4). The step here has its
      advantage, without its clip and its penalty for drifting from the starting model (KL). In TRL's `GRPOConfig`, the step here
      is `beta=0`, `num_iterations=1`, `scale_rewards="group"` and `loss_type="dapo"`, the token mean.
    """,
    )
    return


@app.cell(hide_code=True)
def _(whose_loss, whose_sampler):
    lesson.md(f"""
    ## Twenty steps that learn

    Sample, score, compare, push: with {whose_sampler}, and {whose_loss}. (`play` does the first two.)
    """)
    return


@app.function(hide_code=True)
@torch.inference_mode()
def play(policy, environment, sampling, config, step, sampler):
    """The next tasks, and a group of `config.samples` scored episodes for each."""
    tasks = environment.tasks((config.kind,), config.prompts, start=step * config.prompts)
    copies = [task for task in tasks for _ in range(config.samples)]
    first_seed = (config.seed + 1) * 1_000_000 + step * len(copies)

    def sample(number):
        return sampler(
            policy, copies[number], environment.execute, sampling, first_seed + number
        )

    # A model may offer to read several texts side by side.
    each = getattr(policy.model, "map", map)
    return [
        nb05b.as_episode(policy, task, *response)
        for task, response in zip(copies, each(sample, range(len(copies))), strict=True)
    ]


@app.function
def train(policy, environment, sampling, config, sampler, loss_of, on_step):
    parameters = [weight for weight in policy.model.parameters() if weight.requires_grad]
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


@app.cell(hide_code=True)
def _(
    answer_tasks,
    begins,
    card,
    config,
    curve,
    environment,
    held_out,
    load_policy,
    loss_of,
    sampler,
    sampling,
    start,
    summarise,
):
    lesson.wait_for(start)
    learner = load_policy(config.policy)
    history = [nb05b.chances_after(learner, environment, begins)]

    alike = []

    def draw(step, episodes):
        rewards = torch.tensor([episode.score.reward for episode in episodes])
        groups = rewards.view(config.prompts, -1)
        alike.append((groups.amin(1) == groups.amax(1)).sum().item())
        curve.add("mean reward, 1.2 at most", step, rewards.mean().item())
        history.append(nb05b.chances_after(learner, environment, begins))
        card.play(learner, step)

    curve.clear()
    _texts = config.steps * config.prompts * config.samples + 2 * config.held_out
    with lesson.counting(_texts, "texts") as _one_more:
        was = summarise("before", answer_tasks(learner, held_out))
        _one_more(number=config.held_out)
        card.play(learner, 0)
        _counted = nb05b.counted(sampler, _one_more)
        train(learner, environment, sampling, config, _counted, loss_of, draw)
        now = summarise("after", answer_tasks(learner, held_out))
    card.seal()
    return alike, history, now, was


@app.cell(hide_code=True)
def _(alike, config, history, now, was, whose_loss, whose_sampler):
    gain = 100 * (now.accuracy - was.accuracy)
    mo.vstack(
        [
            lesson.md(f"""
    **From {was.accuracy:.0%} to {now.accuracy:.0%}, with two functions: {whose_sampler}, and {whose_loss}.** In these {config.steps} steps nobody showed it a
    right text. (It came with the calls learned.) Of {config.steps * config.prompts} groups, {sum(alike)} had rewards that were all alike, and taught nothing. The card at the top now shows these steps.

    What has it learned? 05c finds out. In 05d the same two functions train a language model that was not made for this task.
    """),
            lesson.figure(
                nb05b.mass_chart(history),
                "What it writes where an answer should begin, step by step, on held-out tasks.",
            ),
        ]
    )
    return (gain,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Your file

    Your `sample_episode` and `policy_gradient`, with a task and a tool around them, are a whole program.
    """)
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
    _smollm2 = (EXAMPLES / "my_rl_smollm2.py").read_text()
    lesson.md(
        "In `marimo edit` a button writes it."
        if lesson.unattended()
        else keep(my_rl, kept(__file__, "my_rl.py"))
        + "\n\n"
        + keep(_smollm2, kept(__file__, "my_rl_smollm2.py"))
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.recap(
        2,
        "A reward judges only the answer that was tried, so no right answer is needed, and some right answers are.",
        "The log-probability of an episode is a sum over tokens; a tool's carry no gradient.",
        "RL raises what the policy already does now and then.",
    )
    return


@app.cell(hide_code=True)
def _(config, now, was):
    lesson.headline(
        f"With two functions, and no right text shown, {config.steps} steps take a small model that already knew the calls from {was.accuracy:.0%} to {now.accuracy:.0%} right."
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.links(__file__)
    return


@app.class_definition(hide_code=True)
class Solutions:
    """Check the exercises of this page, and solve them."""

    def check_sample_episode(sample_episode):
        toy_policies.check_sampler(sample_episode, Solutions.sample_episode)

    def sample_episode(policy, task, execute, sampling, seed):
        """Sample a response. Returns its token ids, and True where the policy drew one."""
        rng = random.Random(seed)
        prompt = encode_prompt(policy.tokenizer, task)
        ids = []
        sampled = []
        start = 0  # where the text after the last result begins
        while len(ids) < sampling.max_tokens:
            # Generate: the model reads all tokens so far, and the next one is drawn.
            token = draw_token(policy, prompt + ids, sampling.temperature, rng)
            ids.append(token)
            sampled.append(True)
            if token in policy.eos_ids:
                break

            # Sampling stops only once the answer's line is finished: until then more digits may follow.
            text = policy.tokenizer.decode(ids[start:], skip_special_tokens=True)
            finished_lines = text.rpartition("\n")[0]
            if find_answer(finished_lines) is not None:
                break

            # Call: run the tool as soon as the call is complete.
            call = find_call(text)
            if call is not None:
                result = execute(task, call)
                # Inject: the model will read these tokens, but did not draw them.
                result_ids = encode_text(policy.tokenizer, f" -> {result}\n")
                ids.extend(result_ids)
                sampled.extend([False] * len(result_ids))
                start = len(ids)

        # The last result may have passed the limit.
        most = sampling.max_tokens
        return ids[:most], sampled[:most]

    def check_policy_gradient(policy_gradient):
        toy_policies.check_loss(policy_gradient, Solutions.policy_gradient)

    def policy_gradient(policy, episodes, advantages):
        """Return −mean of advantage · log-probability, over all tokens that the policy drew."""
        total = 0.0
        drawn = 0
        for episode, advantage in zip(episodes, advantages, strict=True):
            ids = torch.tensor([episode.prompt_ids + episode.token_ids])
            # The logits at a position are those of the next token: no token follows the last.
            logits = policy.model(ids[:, :-1]).logits[0]  # [T - 1, V]
            logprobs = logits.log_softmax(-1)
            next_ids = ids[0, 1:, None]
            chosen = logprobs.gather(-1, next_ids)[:, 0]  # [T - 1]
            # The last position of the prompt predicts the first token of the response.
            response = chosen[len(episode.prompt_ids) - 1 :]
            mask = torch.tensor(episode.sampled)
            total = total + advantage * response[mask].sum()
            drawn += sum(episode.sampled)
        return -total / drawn


if __name__ == "__main__":
    app.run()
