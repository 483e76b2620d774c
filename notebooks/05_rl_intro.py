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
    import math
    import os
    import random
    import re
    import time
    from concurrent.futures import ThreadPoolExecutor
    from dataclasses import replace
    from pathlib import Path
    from statistics import fmean, median, pstdev
    from types import SimpleNamespace

    import marimo as mo
    import torch

    from zorplex_rl import (
        TASK_SPECS,
        get_spec,
    )
    from zorplex_rl.course.batch_times import batch_times
    from zorplex_rl.course.figures import figures
    from zorplex_rl.course.figures.loop_drawing import loop_drawing
    from zorplex_rl.course.figures.tokens import token_strip
    from zorplex_rl.course.lesson import exercise, lesson
    from zorplex_rl.course.lesson.time_limit import run_within
    from zorplex_rl.course.reward_weights import RewardWeights, lesson_of
    from zorplex_rl.course.widgets import LiveCurve, LoopPlayer, TimelineSimulator, WhatIf
    from zorplex_rl.course.widgets.timeline_simulator import (
        GRID,
        ON_THE_GRID,
        ONE_STRAGGLER,
    )
    from zorplex_rl.course.widgets.what_if import Answer, Bar, Knob, Panel
    from zorplex_rl.course.word_problems import Recording, ask_word_problems
    from zorplex_rl.drawing.plots import timeline_chart
    from zorplex_rl.errors import PolicyError
    from zorplex_rl.learning.learner import response_logprobs
    from zorplex_rl.learning.train_simple import compare, policy_gradient
    from zorplex_rl.policy.evaluate import summarise
    from zorplex_rl.policy.load import load_policy
    from zorplex_rl.policy.rollout import RolloutRequest, Sampling, rollout
    from zorplex_rl.policy.tool_loop import encode_prompt, encode_text
    from zorplex_rl.simulation.recorded import group_variation
    from zorplex_rl.simulation.setting import Setting
    from zorplex_rl.simulation.simulate import compare as simulate
    from zorplex_rl.task.environment import Zorplex
    from zorplex_rl.task.episode import OUTCOMES
    from zorplex_rl.task.parser import find_answer, find_call
    from zorplex_rl.task.rewards import (
        CORRECT_REWARD,
        EXTRA_CALL_PENALTY,
        FORMAT_REWARD,
        score,
    )
    from zorplex_rl.timeline import SpanRecorder, Timeline, group_latencies


@app.cell(hide_code=True)
def _():
    lesson.header(
        __file__,
        minutes=45,
        hardware="two CPU cores, no network; a GPU is used where there is one",
        goals=[
            "say what RL needs that supervised learning does not, and the other way round",
            "write the two inner mechanisms: generate, call, inject; advantage, loss, step",
            "write a reward that a program can verify, and see what a lenient one would pay for",
            "train a policy for twenty steps, and say what it has learned",
            "measure what a synchronous loop loses, and bound what asynchrony can win",
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.figure(
        loop_drawing(),
        "The loop that this course takes apart. Here all of it runs in one process.",
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.md(f"""
    ## Why reinforcement learning

    Supervised learning copies: for every prompt somebody has written the right text. Often nobody can. But whether a text is good can be said:

    - *Human feedback* ({lesson.term("RLHF")}): people say which of two answers they like better.
    - *Reasoning*: a program checks the last number, or runs the tests.
    - *Agents*: the model calls tools over many turns. Whether the task is solved shows at the end.

    In reinforcement learning (RL) the model writes an answer itself, and a {lesson.term("reward")} says how good it was. The model is then called
    a {lesson.term("policy")}. Here are both ways to learn as loops. The policies are tables (`nn.Embedding`): for each of ten questions the logits of ten answers. A step is one question and one update.
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


@app.cell(hide_code=True)
def _():
    ask_labels = lesson.predict(
        "Both loops start with a chance of 10%, with plain gradient descent at rate 1. The reward is 1 for the right answer and 0 for any other. How many steps does "
        "the RL loop need until the policy is right nine times in ten, compared with the supervised one?",
        "up to twice as many",
        "two to five times as many",
        "more than five times as many",
    )
    ask_labels
    return (ask_labels,)


@app.cell(hide_code=True)
def _():
    right_answer = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5, 8])

    def steps_to_learn(loop, teacher, seed):
        """Steps until the mean probability of the right answers is 90%."""
        torch.manual_seed(seed)
        policy = torch.nn.Embedding(10, 10, _weight=torch.zeros(10, 10))
        optimizer, steps = torch.optim.SGD(policy.parameters(), lr=1.0), 0
        chance = 0.1
        while chance < 0.9 and steps < 5000:
            loop(policy, optimizer, torch.arange(10), teacher)
            steps += 10
            chances = policy.weight.softmax(-1)[torch.arange(10), right_answer]
            chance = chances.mean().item()
        return steps

    with_labels = steps_to_learn(supervised_loop, right_answer, seed=0)
    with_rewards = [
        steps_to_learn(rl_loop, lambda q, answer: float(answer == right_answer[q]), seed)
        for seed in range(3)
    ]
    return with_labels, with_rewards


@app.cell(hide_code=True)
def _(ask_labels, with_labels, with_rewards):
    _times = median(with_rewards) / with_labels
    lesson.reveal(
        ask_labels,
        right=0 if _times <= 2 else 1 if _times <= 5 else 2,
        why=f"""
    {with_labels} steps with labels. With rewards {median(with_rewards)} in the median of three seeds ({min(with_rewards)} to {max(with_rewards)}):
    {_times:.1f} times as many. A label names the right answer among ten. A reward says only whether the answer that was tried is right, and a
    reward of 0 changes nothing here. So the policy must find a right answer before it can learn it: RL starts from a model that is right now and then.
    """,
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.md(f"""
    Two lines differ, and they make the whole course. The answer comes from the policy, so somebody has to *generate* it. And it has to be *checked*.
    The reward has no gradient and needs none. It says how hard to push the log-probability of the answer that was tried.

    Why does that raise the mean reward, Σ p(a) R(a)? Its gradient is Σ p(a) R(a) ∇log p(a), because ∇p = p ∇log p. That is the mean of R ∇log p over
    answers drawn from p, and each step draws one.

    So the answers must be drawn from the present policy: such data are {lesson.term("on-policy")}. Answers of other weights come with
    other probabilities: they are {lesson.term("off-policy")}.
    """)
    return


@app.cell
def settings():
    _name = mo.cli_args().get("policy") or "embedded"
    _embedded = _name == "embedded"
    config = SimpleNamespace(
        policy=_name,  # or a model's folder: marimo edit … -- --policy FOLDER
        device="cuda" if torch.cuda.is_available() else "cpu",
        seed=0,
        hints=not _embedded,  # a worked example in the system prompt
        tasks_per_kind=200,
        max_tokens=96 if _embedded else 256,
        prompts=8,  # in a training batch
        samples=8,  # episodes of each prompt
        steps=20,
        learning_rate=2e-4 if _embedded else 3e-6,
        # One thread is fastest for a small model.
        threads=1 if _embedded else torch.get_num_threads(),
        tool_seconds=0.1,  # mean latency of a slow tool
    )
    return (config,)


@app.cell(hide_code=True)
def _(config):
    torch.set_num_threads(config.threads)
    policy = load_policy(config.policy, config.device)
    lesson.ran_on(policy)
    return (policy,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A reward that a program can verify

    The simplest reward asks for an integer and compares. But which text counts as an answer? Here the last `[ANSWER] <integer>` counts, the whole integer, and nothing else.
    """)
    return


@app.cell
def _():
    texts = [
        "[ANSWER] 42",
        "The answer is 42.",
        "[ANSWER] 42.5",
        "[ANSWER] 41\nNo:\n[ANSWER] 42",
        "40 41 42 43 44",
    ]
    return (texts,)


@app.cell(hide_code=True)
def _():
    ask_texts = lesson.predict(
        "The right answer is 42. For how many of these five texts does the rule pay?",
        "one",
        "two",
        "three",
        "four",
    )
    ask_texts
    return (ask_texts,)


@app.cell(hide_code=True)
def _(ask_texts, texts):
    _answers = [find_answer(text) for text in texts]
    _paid = _answers.count(42)
    lesson.reveal(
        ask_texts,
        right=_paid - 1,
        why=f"""
    {_paid} of {len(texts)}. A number without the tag is no answer. Nor is `42.5`, which is no integer; a parser that stopped at the point would pay for it.
    A list of guesses does not count. A correction does: that matters for texts from elsewhere, because the sampler below stops after the first answer line.
    """,
        shows=[
            lesson.table(
                "What the parser says",
                [
                    {"text": f"`{text!r}`", "answer": answer}
                    for text, answer in zip(texts, _answers, strict=True)
                ],
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Word problems

    With this rule a word problem becomes a task for RL: write what you like, only the tagged answer is paid. The policy of this page is tiny and knows only
    questions that need a tool. A policy that is never right earns nothing, and RL cannot begin. A larger one may be right now and then.
    """)
    return


@app.cell(hide_code=True)
def _():
    _folder = os.environ.get("ZORPLEX_MODEL", "")
    model_folder = (
        SimpleNamespace(value=_folder)
        if lesson.unattended()
        else mo.ui.text(
            value=_folder,
            label="Folder of an instruction-tuned model, if you have one (0.5 billion parameters need 2 GB of memory)",
            placeholder="Qwen2.5-0.5B-Instruct",
            full_width=True,
        )
    )
    None if lesson.unattended() else model_folder
    return (model_folder,)


@app.cell(hide_code=True)
def word_problems(config, model_folder, policy):
    def _told(label, attempts):
        said = f"{label}: {sum(attempt.right for attempt in attempts)} of {len(attempts)} right."
        return [lesson.md(said)] + [
            lesson.folded(
                f"{attempt.question} {'Right' if attempt.right else 'Wrong'}.",
                lesson.fence(attempt.text),
            )
            for attempt in attempts
        ]

    def _run(asked):
        name = Path(asked.name).name
        return _told(
            f"Run on this page: {lesson.quote(name)}, {asked.model.num_parameters() / 1e6:,.2f} million parameters, always the likeliest token",
            ask_word_problems(asked),
        )

    _shown, _recorded = _run(policy), Recording.read()
    if model_folder.value:
        try:
            _shown += _run(load_policy(model_folder.value, config.device))
        except PolicyError as error:
            _shown.append(lesson.md(lesson.quote(str(error))))
    elif _recorded:
        _label = f"Not run here, but recorded on {_recorded.recorded} with {lesson.quote(_recorded.command)}: {lesson.quote(_recorded.model)}, {_recorded.parameters / 1e6:,.0f} million parameters"
        _shown += _told(_label, _recorded.attempts)
    elif config.policy == "embedded":
        _shown.append(
            lesson.md(
                "No larger model was at hand, so none is shown. Name the folder of one in `ZORPLEX_MODEL`, or record its answers with "
                "`python -m zorplex_rl.course.word_problems FOLDER`. Look for right answers, with which RL can begin, and for right numbers without the tag."
            )
        )
    mo.vstack(_shown)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 1: a verifier

    The answers of grade-school word problems often end in a line `#### 1,234`. Complete `math_reward`: 1.0 if the last line that *counts* holds
    the int `answer`, else 0.0. A line counts if it is `####`, one blank, an integer, and nothing else but blanks at its end.

    - These count: `#### 42`, `#### -4`, `#### 1234`, `#### 1,234`.
    - These are ignored: `#### 42.5`, `#### 4,2`, `#### 42,`, `so #### 42`. Commas stand between all thousands or nowhere.
    """)
    return


@app.function
def math_reward(text, answer):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: math_reward,
        check_math_reward,
        math_reward_solution,
        level="core",
        minutes=5,
        hints=(
            "Find all lines that count with one pattern, then take the last. `re.MULTILINE` lets `^` and `$` match at every line.",
            "`-?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)` is an integer with commas or without. Remove them before `int`, and think of the empty list.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Zorplex: a task that cannot be known, only looked up

    A model may have seen every word problem there is. So this course uses words whose values are drawn anew for each task, and that only a
    tool reveals. To be right, the policy *must* call the tool, wait, read, and answer.
    """)
    return


@app.cell
def _(config):
    # One of four kinds of question; the others come below.
    spec = get_spec("compositional", config.seed, hints=config.hints)
    task = spec.generate_task()
    return spec, task


@app.cell(hide_code=True)
def _(policy, task):
    _words = (*task.words, *(word for word in task.table if word not in task.words))[:8]
    _table = ", ".join(f"{word} = {task.table[word]}" for word in _words)
    lesson.md(
        f"{lesson.quote(task.question)} The table of this task: {_table}, … ({len(task.table)} words). The next task has another one. "
        "The policy does not see the table. This is all that it sees:\n\n"
        + lesson.fence(policy.tokenizer.decode(encode_prompt(policy.tokenizer, task)))
    )
    return


@app.cell
def _(config):
    environment = Zorplex(config.seed, config.hints)
    # slots: how many episodes the engine below samples at once
    sampling = Sampling(
        temperature=1.0, max_tokens=config.max_tokens, max_turns=6, slots=64
    )
    return environment, sampling


@app.cell(hide_code=True)
def _():
    lesson.figure(
        loop_drawing("generator", "tools"),
        "Here: the generator writes an episode, and calls tools while it writes.",
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.md(f"""
    An {lesson.term("episode")} is all that happens from the question to the end of the answer. It is made in three moves, again and again. *Generate*: run
    the model on all tokens so far, and draw the next one. *Call*: when the text holds a complete call, run the tool. *Inject*: put the
    tool's result behind the text, as tokens, and go on. What the policy writes from one result to the next call is a *turn*.

    This is all of it. `encode_prompt` makes tokens of the text above; `find_call` and `find_answer` parse.
    """)
    return


@app.function
@torch.inference_mode()
def sample_episode(policy, task, execute, sampling, seed):
    """Token ids, whether the policy sampled each, and the log-probs of those."""
    # `execute(task, call)` runs a tool; of `sampling` only the limits are used, so the temperature is 1.
    dice, prompt = random.Random(seed), encode_prompt(policy.tokenizer, task)
    ids, sampled, logprobs, calls = [], [], [], 0
    start = 0  # of the turn: where the last tool result ended
    while len(ids) < sampling.max_tokens:
        # Generate: draw the next token, with one random number: the seed decides.
        tokens = torch.tensor([prompt + ids], device=policy.model.device)
        logp = policy.model(tokens).logits[0, -1].float().log_softmax(-1)
        cumulated = logp.exp().cumsum(-1)
        drawn = dice.random() * cumulated[-1]
        token = int(torch.searchsorted(cumulated, drawn, right=True))
        ids.append(token)
        sampled.append(True)
        logprobs.append(float(logp[token]))
        text = policy.tokenizer.decode(ids[start:], skip_special_tokens=True)
        # More digits may follow in the last line, so it is not read yet.
        *finished_lines, _ = text.split("\n")
        if token in policy.eos_ids or any(
            find_answer(line) is not None for line in finished_lines
        ):
            break
        # Call: run the tool as soon as the call is complete.
        if call := find_call(text):
            calls += 1
            if calls == sampling.max_turns:
                break
            result = encode_text(policy.tokenizer, f" -> {execute(task, call)}\n")
            # Inject: the policy will read these tokens, and did not choose them.
            result = result[: sampling.max_tokens - len(ids)]
            ids += result
            sampled += [False] * len(result)
            logprobs += [0.0] * len(result)
            start = len(ids)
    return ids, sampled, logprobs


@app.cell
def _(config, policy, sampling, spec, task):
    _ids, _, _ = sample_episode(policy, task, spec.execute, sampling, config.seed)
    lesson.md(lesson.fence(policy.tokenizer.decode(_ids)))
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    The package's engine samples many episodes at once, and keeps what the model has computed for earlier tokens in a *key-value cache*. It
    must give the same episodes. Eight tasks, the same seeds:
    """)
    return


@app.cell(hide_code=True)
def _(environment, policy, sampling):
    both_tasks = environment.tasks(tuple(TASK_SPECS), 8)
    _began = time.monotonic()
    by_hand = [
        sample_episode(policy, task, environment.execute, sampling, seed)
        for seed, task in enumerate(both_tasks)
    ]
    _simple = time.monotonic() - _began
    _began = time.monotonic()
    by_engine = rollout(
        policy,
        [RolloutRequest(task, seed) for seed, task in enumerate(both_tasks)],
        environment.execute,
        sampling,
    )
    simple_seconds = {"page": _simple, "engine": time.monotonic() - _began}
    same_tokens = [
        (ids, own) == (fast.token_ids, fast.sampled)
        for (ids, own, _), fast in zip(by_hand, by_engine, strict=True)
    ]
    largest_gap = max(
        (
            abs(one - other)
            for (_, _, logprobs), fast in zip(by_hand, by_engine, strict=True)
            for one, other in zip(logprobs, fast.logprobs, strict=False)
        ),
        default=0.0,
    )
    return by_engine, largest_gap, same_tokens, simple_seconds


@app.cell(hide_code=True)
def _(largest_gap, same_tokens, simple_seconds):
    _agree = (
        "the same tokens in all of them"
        if all(same_tokens)
        else f"the same tokens in {sum(same_tokens)} of them; where rounding tips a draw, the rest of an episode differs"
    )
    lesson.md(f"""
    {len(same_tokens)} episodes, {_agree}. The largest difference of a log-probability is {lesson.tiny(largest_gap)}. The forty lines above took
    {simple_seconds["page"]:.1f} s, the engine {simple_seconds["engine"]:.2f} s. From here on the engine samples.
    """)
    return


@app.cell(hide_code=True)
def _():
    ask_injected = lesson.predict(
        "The policy reads the tool's tokens like its own. A trainer could raise their probability too when an episode was a success. How well does the policy "
        "foresee them now, compared with its own tokens?",
        "as well as its own",
        "worse than its own",
        "better than its own",
    )
    ask_injected
    return (ask_injected,)


@app.cell(hide_code=True)
def _(by_engine, policy):
    # The probability of every token given those before it, the tool's included.
    _all = [
        replace(episode, sampled=[True] * len(episode.sampled)) for episode in by_engine
    ]
    foreseen = {True: [], False: []}
    for _episode, _logprobs in zip(by_engine, response_logprobs(policy, _all), strict=True):
        for _own, _logprob in zip(_episode.sampled, _logprobs, strict=True):
            foreseen[_own].append(math.exp(_logprob))
    foreseen = {own: fmean(chances) for own, chances in foreseen.items()}
    return (foreseen,)


@app.cell(hide_code=True)
def _(ask_injected, by_engine, foreseen, policy):
    _shown = next(
        (episode for episode in by_engine if not all(episode.sampled)), by_engine[0]
    )
    _own, _tool = foreseen[True], foreseen[False]
    lesson.reveal(
        ask_injected,
        right=0 if abs(_own - _tool) < 0.05 else 1 if _tool < _own else 2,
        why=f"""
    Its own tokens had a mean probability of {_own:.0%}, the tool's one of {_tool:.0%}. The values are drawn by chance, and nobody can foresee
    them. To raise their probability would be to learn to *invent* results. So they stay in the context, and a {lesson.term("loss mask")} keeps them from the trainer.

    The ids below are exactly those that were sampled. Nothing is decoded and tokenised again, because the second tokenisation can differ.
    """,
        shows=[
            lesson.figure(
                token_strip(policy, _shown), "An episode, as the trainer gets it."
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 2: find the fault

    `training_row` hands an episode to the trainer: the ids of the response, and for each id whether the trainer learns from it. An `episode` has its
    `text` and, for each token, `token_ids`, `sampled` and `logprobs`. Two faults are planted in the function. It
    raises nothing, and training would go on. The table shows what a trainer with the *same* weights would log: it should find the very log-probabilities
    that were written down. Your function feeds the training below when it passes its check.
    """)
    return


@app.function
def training_row(policy, episode):
    ids = encode_text(policy.tokenizer, episode.text)
    return ids, [True] * len(ids)


@app.function(hide_code=True)
def diagnose(policy, episodes, training_row):
    """What a trainer that gets these rows would log, by name; a number that cannot be had is missing."""
    rows = []
    for episode in episodes:
        ids, own = training_row(policy, episode)
        rows.append(replace(episode, token_ids=list(ids), sampled=list(own)))
    learned = [
        [logprob for logprob, own in zip(logprobs, row.sampled, strict=True) if own]
        for row, logprobs in zip(rows, response_logprobs(policy, rows), strict=True)
    ]
    recorded = [
        [logprob for logprob, own in zip(e.logprobs, e.sampled, strict=True) if own]
        for e in episodes
    ]
    gaps = [
        abs(one - other)
        for now, then in zip(learned, recorded, strict=True)
        for one, other in zip(now, then, strict=False)
    ]
    ends = sum(
        own and token in policy.eos_ids
        for row in rows
        for token, own in zip(row.token_ids, row.sampled, strict=True)
    )
    return {
        "tokens that the trainer learns from": f"{sum(map(len, learned))}",
        "of these, tokens that end a text": f"{ends}",
        "their mean probability to the trainer": f"{fmean(math.exp(lp) for row in learned for lp in row):.0%}",
        "largest difference from the log-prob at sampling, in nats": f"{max(gaps):.4f}",
    }


@app.cell(hide_code=True)
def _(by_engine, policy):
    def _diagnosed(row_of):
        found = {}
        wrong = run_within(10.0, lambda: found.update(diagnose(policy, by_engine, row_of)))
        return found, "" if wrong is None else f"raises {type(wrong).__name__}"

    _healthy, _ = _diagnosed(training_row_solution)
    _yours, _wrong = _diagnosed(training_row)
    lesson.table(
        f"{len(by_engine)} episodes, sampled by these very weights. One that was stopped after its answer, or cut off, has no token that ends it.",
        [
            {"diagnostic": name, "healthy": value, "yours": _yours.get(name, _wrong)}
            for name, value in _healthy.items()
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: training_row,
        check_training_row,
        training_row_solution,
        level="warm-up",
        minutes=4,
        hints=(
            "The trainer learns from more tokens than the policy sampled. Who wrote the others? And where do the tokens go that end a text?",
            "`episode.text` is for people. `episode.token_ids` and `episode.sampled` were written down while the policy sampled, so nothing has to be made again.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Four kinds of question

    They differ in what has to be carried from one turn to the next. In `multi_step`, `GETKEY` gives a word's key, and `FETCH` the value behind a key. In
    `recursive`, a look-up may only name another word to look up.
    """)
    return


@app.cell(hide_code=True)
def _(config):
    specs = {kind: get_spec(kind, config.seed, hints=config.hints) for kind in TASK_SPECS}
    # Of each kind the first task that needs most calls: `recursive` ones may need a single one.
    examples = {
        kind: max(
            (spec.task(number, "held_out") for number in range(20)),
            key=lambda task: task.min_tool_calls,
        )
        for kind, spec in specs.items()
    }
    return examples, specs


@app.cell(hide_code=True)
def _(examples, specs):
    lesson.table(
        "A task of each kind, solved. They are held out: training never draws their words",
        [
            {
                "kind": kind,
                "question": task.question,
                "calls and results": ", ".join(
                    f"`{call} -> {specs[kind].run(task, call)}`"
                    for call in specs[kind].calls_needed(task)
                ),
                "then": f"`[ANSWER] {task.answer}`",
            }
            for kind, task in examples.items()
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    ask_kind = lesson.predict(
        "The embedded policy was taught by examples to use the tools, carelessly. Where will it be right least often?",
        *TASK_SPECS,
    )
    ask_kind
    return (ask_kind,)


@app.function(hide_code=True)
def answer_tasks(policy, environment, tasks, sampling, on_episode=lambda episode: None):
    """One sampled episode for each of ``tasks``, scored; 64 at a time share each forward pass."""
    requests = [RolloutRequest(task, seed) for seed, task in enumerate(tasks)]
    episodes = rollout(
        policy, requests, environment.execute, sampling, on_episode=on_episode
    )
    for episode in episodes:
        episode.score = score(episode)
    return episodes


@app.cell(hide_code=True)
def _(config, environment, policy, sampling):
    held_out = {
        kind: environment.tasks((kind,), config.tasks_per_kind, "held_out")
        for kind in TASK_SPECS
    }
    with mo.status.progress_bar(
        total=sum(map(len, held_out.values())), title="Episodes", remove_on_exit=True
    ) as bar:
        answered = {
            kind: answer_tasks(
                policy, environment, tasks, sampling, on_episode=lambda _: bar.update()
            )
            for kind, tasks in held_out.items()
        }
    reports = [summarise(kind, episodes) for kind, episodes in answered.items()]
    return answered, held_out, reports


@app.cell(hide_code=True)
def _(ask_kind, reports):
    _worst, _best = (
        min(reports, key=lambda r: r.accuracy),
        max(reports, key=lambda r: r.accuracy),
    )
    lesson.reveal(
        ask_kind,
        right=[
            index
            for index, report in enumerate(reports)
            if report.interval[0] <= _worst.accuracy
        ],
        why=f"""
    Least often on `{_worst.name}`, with {_worst.accuracy:.0%}; most often on `{_best.name}`, with {_best.accuracy:.0%}. The lines are
    95% intervals; that of `{_worst.name}` is {100 * (_worst.interval[1] - _worst.interval[0]):.0f} points wide. Tasks with the same words count as one.
    """,
        shows=[
            lesson.figure(
                figures.accuracy_chart(reports),
                f"{reports[0].episodes} held-out tasks of each kind, sampled from the softmax as it is (temperature 1).",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _(sampling):
    lesson.md(f"""
    ## How it fails

    Each episode ends in exactly one of five ways, in the order of the figure:

    - `success` and `wrong_answer`: there is an answer.
    - `wrong_format`: the policy ends its text without `[ANSWER]` and an integer.
    - `tool_spam`: no answer, and still calling tools in turn {sampling.max_turns}.
    - `truncated`: no answer, and cut off after {sampling.max_tokens} tokens.
    """)
    return


@app.cell(hide_code=True)
def _(reports):
    lesson.figure(
        figures.outcome_chart(reports),
        "Shares of all episodes; those below 8% have no number.",
    )
    return


@app.cell(hide_code=True)
def _(by_outcome, everything):
    _failed = len(everything) - len(by_outcome["success"])
    _untagged = len(by_outcome["wrong_format"])
    lesson.md(f"""
    Of these {len(everything)} episodes {_failed / len(everything):.0%} fail, and {_untagged / _failed:.0%} of the failures are `wrong_format`. So
    {"most" if 2 * _untagged > _failed else "a smaller part"} of what RL can win here is a habit of writing, not a skill in arithmetic.
    """)
    return


@app.cell(hide_code=True)
def _(answered):
    everything = [episode for episodes in answered.values() for episode in episodes]
    by_outcome = {
        outcome: [episode for episode in everything if episode.score.outcome == outcome]
        for outcome in OUTCOMES
    }
    return by_outcome, everything


@app.cell(hide_code=True)
def _(by_outcome, everything):
    def show_example(outcome, episodes):
        if not episodes:
            return lesson.md(f"`{outcome}`: none of {len(everything)} episodes")
        first = episodes[0]
        return lesson.folded(
            f"`{outcome}`: {len(episodes)} of {len(everything)} episodes; an example",
            f"{lesson.quote(first.task.question)} (right: {first.task.answer})\n\n{lesson.fence(first.text)}",
        )

    mo.vstack([show_example(outcome, episodes) for outcome, episodes in by_outcome.items()])
    return


@app.cell(hide_code=True)
def _():
    lesson.md(f"""
    ## From failures to a reward

    Every share in the figure is a habit, and RL changes habits by paying for them. It pays +{CORRECT_REWARD} for the right value, +{FORMAT_REWARD} for any
    answer in the right form, −{EXTRA_CALL_PENALTY} for every call more than needed.
    """)
    return


@app.cell(hide_code=True)
def _(by_outcome):
    lesson.table(
        "Mean reward by outcome, and the parts that add up to it",
        [
            {"outcome": f"`{outcome}`", "episodes": len(episodes)}
            | {
                f"for {part.replace('_', ' ')}": f"{fmean(episode.score.parts[part] for episode in episodes):.2f}"
                for part in ("correct", "format", "extra_calls")
            }
            | {"reward": f"{fmean(episode.score.reward for episode in episodes):.2f}"}
            for outcome, episodes in by_outcome.items()
            if episodes
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    ask_lenient = lesson.predict(
        "A lenient verifier pays if the right number stands *anywhere* in the transcript. How many more episodes would it pay for than the strict one?",
        "up to a quarter more",
        "a quarter to three quarters more",
        "more than that",
    )
    ask_lenient
    return (ask_lenient,)


@app.function(hide_code=True)
def paid_for(episode):
    """What a lenient verifier would pay ``episode`` for, or None: the right number stands nowhere in it."""

    def holds_answer(text):
        return re.search(rf"(?<!\d){episode.task.answer}(?!\d)", text) is not None

    if episode.score.outcome == "success":
        return "answer"
    if any(holds_answer(text) for text in episode.sampled_text):
        return "own words"
    if any(holds_answer(turn.result or "") for turn in episode.turns):
        return "tool's words"
    return None


@app.cell(hide_code=True)
def _(everything):
    payments = [paid_for(episode) for episode in everything]
    paid_shares = {
        what: payments.count(what) / len(payments)
        for what in ("answer", "own words", "tool's words")
    }
    strict, lenient = paid_shares["answer"], sum(paid_shares.values())
    return lenient, paid_shares, strict


@app.cell(hide_code=True)
def _(ask_lenient, lenient, paid_shares, strict):
    _ratio = lenient / strict if strict else math.inf
    _more = f"{_ratio:.1f} times as many" if strict else "All that it pays for"
    lesson.reveal(
        ask_lenient,
        right=0 if _ratio <= 1.25 else 1 if _ratio <= 1.75 else 2,
        why=f"""
    {_more}: {lenient:.0%} of the episodes, against {strict:.0%}. In {paid_shares["own words"]:.0%} of all episodes the policy
    wrote the number itself, but not as its answer. In {paid_shares["tool's words"]:.0%} only a tool wrote it.

    What only a tool wrote is dangerous to pay for. In all kinds but `compositional` the last call shows the answer. A policy that only calls tools, and never answers,
    would be paid in full. To earn a reward without doing the task is called {lesson.term("reward hacking")}.
    """,
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.figure(
        loop_drawing("reward", "trainer", "weights"),
        "Here: rewards become a step, and the step a new version of the weights.",
    )
    return


@app.cell(hide_code=True)
def _(config):
    lesson.md(f"""
    ## One step of training

    A batch: {config.prompts} `compositional` tasks, and {config.samples} episodes for each of them. The episodes of one task are a {lesson.term("group")}.
    """)
    return


@app.function
def write_batch(policy, environment, sampling, config, step):
    """Scored episodes for the next tasks: a group of `config.samples` for each."""
    tasks = environment.tasks(
        ("compositional",), config.prompts, start=step * config.prompts
    )
    first_seed = (config.seed + 1) * 1_000_000 + step * config.prompts * config.samples
    requests = [
        RolloutRequest(task, seed=first_seed + group * config.samples + sample, group=group)
        for group, task in enumerate(tasks)
        for sample in range(config.samples)
    ]
    batch = rollout(policy, requests, environment.execute, sampling, version=step)
    for episode in batch:
        episode.score = score(episode)
    return batch


@app.cell(hide_code=True)
def _():
    lesson.md(f"""
    First, the {lesson.term("advantage")}: how much better an episode did than its group, in standard deviations. Subtracting a constant leaves the mean gradient as
    it is, and single steps scatter less. Exercise 3 looks at the group's own mean.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.folded(
        "Why may the mean be subtracted, and why divide?",
        "A constant b adds b Σ∇p to the mean gradient, and that is 0: probabilities always add up to 1. But the reward alone would push up every answer that "
        "earns a little, and other steps would have to undo it. Less has to be undone where only what beats the group goes up: the gradient of a single step has a lower variance. "
        "Dividing by the deviation lets every group push about equally hard, however close its rewards lie.",
    )
    return


@app.function
def advantages_of(rewards):
    # 1e-4: where all rewards are alike, nothing is divided by 0.
    mean, deviation = fmean(rewards), pstdev(rewards)
    return [(reward - mean) / (deviation + 1e-4) for reward in rewards]


@app.cell
def _(config, environment, policy, sampling):
    first_batch = write_batch(policy, environment, sampling, config, step=0)
    groups = [
        first_batch[start : start + config.samples]
        for start in range(0, len(first_batch), config.samples)
    ]
    advantages = [
        advantage
        for group in groups
        for advantage in advantages_of([episode.score.reward for episode in group])
    ]
    return advantages, first_batch, groups


@app.cell(hide_code=True)
def _(advantages, config, groups):
    _rewards = [[episode.score.reward for episode in group] for group in groups]
    _spread = [pstdev(rewards) for rewards in _rewards]
    _shown = _spread.index(max(_spread))
    _alike = _spread.count(0.0)
    _table = lesson.table(
        f"One group: “{groups[_shown][0].task.question}”",
        [
            {
                "outcome": f"`{episode.score.outcome}`",
                "reward": f"{episode.score.reward:.2f}",
                "advantage": f"{advantage:+.2f}",
            }
            for episode, advantage in zip(
                groups[_shown], advantages[_shown * config.samples :], strict=False
            )
        ],
    )
    mo.vstack(
        [
            _table,
            lesson.md(
                f"Where all rewards of a group are alike, its advantages are 0, and it teaches nothing. That holds for {_alike} of these {len(groups)} groups."
            ),
        ]
    )
    return


@app.cell(hide_code=True)
def _(groups):
    def taught_by(correct, form, extra_call):
        return lesson_of(groups, RewardWeights(correct, form, extra_call), advantages_of)

    def _answer(**weights):
        found = taught_by(**weights)
        bars = [
            Bar(
                outcome,
                advantage,
                f"{advantage:+.2f}".replace("-", "−"),
                "green" if advantage > 0 else "vermilion",
            )
            for outcome, advantage in found.advantages.items()
        ]
        # With 8 samples no advantage is beyond √7 standard deviations.
        panel = Panel("Mean advantage of each outcome", bars, most=2.7, least=-2.7)
        gains = [f"{bar.name}" for bar in bars if bar.value > 0.005]
        return Answer(
            [panel],
            f"{found.teaching} of {found.groups} groups teach. The step makes more likely: {', '.join(gains) or 'nothing'}.",
        )

    mo.vstack(
        [
            mo.md(
                "Weights are choices. Move them: the same episodes are paid anew, and bars to the right become more likely. "
                "What happens when the form is worth as much as the value? When a right answer is worth nothing?"
            ),
            WhatIf(
                "Reward weights",
                [
                    Knob("correct", "A right answer", [0.0, 0.5, 1.0]),
                    Knob("form", "The form", [0.0, 0.2, 0.5, 1.0, 2.0]),
                    Knob("extra_call", "An extra call", [0.0, 0.1, 0.3, 1.0], "−{:g}"),
                ],
                _answer,
                {
                    "correct": CORRECT_REWARD,
                    "form": FORMAT_REWARD,
                    "extra_call": EXTRA_CALL_PENALTY,
                },
                static="execute" in mo.cli_args(),
            ),
        ]
    )
    return (taught_by,)


@app.cell(hide_code=True)
def _(taught_by):
    _wrong = {
        form: taught_by(1.0, form, 0.1).advantages.get("wrong_answer")
        for form in (0.0, 0.2, 0.5, 1.0, 2.0)
    }
    _nothing = taught_by(0.0, 0.2, 0.1).advantages
    lesson.folded(
        "What the knobs show",
        "Mean advantage of a wrong answer in the form, by what the form is worth: "
        + "; ".join(
            f"{form:g}: {found:+.2f}" for form, found in _wrong.items() if found is not None
        )
        + ". The more the form is worth, the less it matters whether the value is right. "
        + f"With nothing for a right answer, `success` gets {_nothing.get('success', 0.0):+.2f} and `wrong_answer` {_nothing.get('wrong_answer', 0.0):+.2f}: "
        "the policy is paid for the form alone, whatever stands in it.",
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.md(f"""
    Then the loss, the {lesson.term("policy gradient")}. It is the line from the RL loop above, with the advantage for the reward, and summed over the
    tokens that the policy sampled. Minimise it, and tokens of good episodes become more likely, tokens of bad ones less.
    """)
    return


@app.function
def loss_of(policy, episodes, advantages):
    total, count = 0.0, 0
    for episode, advantage in zip(episodes, advantages, strict=True):
        ids = torch.tensor(
            episode.prompt_ids + episode.token_ids, device=policy.model.device
        )
        logits = policy.model(ids[None, :-1]).logits[0].float()
        logp = logits.log_softmax(-1).gather(-1, ids[1:, None])[:, 0]
        response = logp[len(episode.prompt_ids) - 1 :]
        own = torch.tensor(episode.sampled, device=policy.model.device)
        total = total + advantage * response[own].sum()
        count += sum(episode.sampled)
    return -total / count


@app.cell(hide_code=True)
def _():
    mo.md("""
    Last, the step. The package computes the same loss for the whole batch at once (`policy_gradient` in `learning/train_simple.py`). Here is one
    step from each, on the same episodes:
    """)
    return


@app.function
def take_step(policy, loss, learning_rate):
    """One step of AdamW, with the gradient cut to length 1 if it is longer. Returns the new weights."""
    parameters = policy.model.parameters()
    optimizer = torch.optim.AdamW(parameters, learning_rate, weight_decay=0.0)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
    optimizer.step()
    return torch.nn.utils.parameters_to_vector(policy.model.parameters()).detach()


@app.cell(hide_code=True)
def _(advantages, config, first_batch):
    stepped, losses = [], []
    for _loss_of in (loss_of, policy_gradient):
        _policy = load_policy(config.policy, config.device)
        _loss = _loss_of(_policy, first_batch, advantages)
        stepped.append(take_step(_policy, _loss, config.learning_rate))
        losses.append(_loss.item())
    one_step = {
        "loss": abs(losses[0] - losses[1]),
        "weights": float((stepped[0] - stepped[1]).abs().mean()) / config.learning_rate,
    }
    return losses, one_step


@app.cell(hide_code=True)
def _(losses, one_step):
    _agree = one_step["loss"] < 1e-4 and one_step["weights"] < 0.05
    lesson.md(f"""
    The page's loss is {losses[0]:.6f}, the package's {losses[1]:.6f}. After the step their weights differ in the mean by {one_step["weights"]:.1%} of
    the learning rate, which is about how far Adam's first step moves each of them. {"That is rounding." if _agree else "That is more than rounding, and has to be looked into."}
    Do not expect this loss to fall: the advantages of a group add up to 0, and every batch is new. The reward says how it goes.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.folded(
        "Two names that you will meet everywhere: PPO and GRPO",
        f"""
    - {lesson.term("PPO")} takes several steps on one batch, so that the batch is soon off-policy. It weights each token by the ratio of its new to its old
      probability, and [clips](https://arxiv.org/abs/1707.06347): a token whose ratio has left a range gets no more push. A second model, the critic, estimates values.
    - {lesson.term("GRPO")} replaces that model by the group ([DeepSeekMath](https://arxiv.org/abs/2402.03300), section 4). The step above has its advantage, with the
      plain policy gradient. GRPO also clips, takes the mean over each answer's own tokens, and adds a penalty for leaving the start (KL).
    """,
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 3: leave one out

    An episode that is compared with its group's mean is compared with itself, too: that mean is no constant. Complete `leave_one_out`: each reward minus the
    mean of the *other* rewards of the group. If it passes its check, it trains the policy below.
    """)
    return


@app.function
def leave_one_out(rewards):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: leave_one_out,
        check_leave_one_out,
        leave_one_out_solution,
        level="core",
        minutes=3,
        hints=(
            "The sum of the others is the sum of all, minus the reward itself. How many others are there?",
            "With `total = sum(rewards)` the mean of the others is `(total - reward) / (len(rewards) - 1)`.",
        ),
    )
    return


@app.cell(hide_code=True)
def _(config):
    lesson.folded(
        "What does it change? (gives the exercise away)",
        f"Less than it seems: it is n / (n − 1) times the reward minus the group's mean, here {config.samples}/{config.samples - 1}. With it the mean gradient is exact, "
        "and without it too small by this factor, which the learning rate hides. What you will notice is the other difference to `advantages_of`: nothing is divided "
        "by the deviation any more, so groups whose rewards lie far apart push harder.",
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Twenty steps that learn

    Now the loop. Generator and trainer hold a copy of the model each, as they will when they are processes of their own. So a third
    move belongs to it: the generator *pulls* the new weights. The clocks note who was busy when, for later.
    """)
    return


@app.function
def training_loop(
    generator, trainer, environment, sampling, config, advantage, row_of, on_step
):
    """Train for `config.steps` steps. Returns the batches, and who was busy when."""
    clocks = {"generator": SpanRecorder("generator"), "trainer": SpanRecorder("trainer")}
    optimizer = torch.optim.AdamW(
        trainer.model.parameters(),
        config.learning_rate,
        betas=(0.9, 0.95),
        weight_decay=0.0,
    )
    batches = []
    for step in range(config.steps):
        with clocks["generator"].span("generate"):
            batch = write_batch(generator, environment, sampling, config, step)
        with clocks["trainer"].span("train"):
            rewards = [episode.score.reward for episode in batch]
            advantages = []
            for start in range(0, len(rewards), config.samples):
                advantages += advantage(rewards[start : start + config.samples])
            rows = []
            for episode in batch:
                ids, own = row_of(trainer, episode)
                rows.append(replace(episode, token_ids=ids, sampled=own))
            loss = policy_gradient(trainer, rows, advantages)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
            optimizer.step()
        with clocks["generator"].span("pull"):
            generator.model.load_state_dict(trainer.model.state_dict())
        batches.append(batch)
        on_step(step + 1, batch)
    spans = [span for clock in clocks.values() for span in clock.drain()]
    return SimpleNamespace(batches=batches, timeline=Timeline(spans))


@app.cell(hide_code=True)
def _():
    _own_advantage = exercise.complaint(check_leave_one_out, leave_one_out) is None
    _own_row = exercise.complaint(check_training_row, training_row) is None
    advantage_in_use = leave_one_out if _own_advantage else compare
    row_in_use = training_row if _own_row else training_row_solution
    _advantage = (
        "Your `leave_one_out` trains the policy below."
        if _own_advantage
        else "`leave_one_out` does not pass its check yet, so the package's advantage trains below: `compare` of `learning/train_simple.py`, which is `advantages_of`."
    )
    _row = (
        "Your `training_row` feeds it."
        if _own_row
        else "`training_row` does not pass its check yet either."
        if not _own_advantage
        else "`training_row` does not pass its check yet."
    )
    lesson.md(
        f"{_advantage} {_row}"
        + ("" if _own_row else " So the trainer gets the tokens as they were sampled.")
    )
    return advantage_in_use, row_in_use


@app.cell(hide_code=True)
def _(config, reports):
    _before = reports[list(TASK_SPECS).index("compositional")].accuracy
    ask_gain = lesson.predict(
        f"{config.steps} steps, {config.steps * config.prompts * config.samples:,} episodes. Before, {_before:.0%} of the held-out compositional tasks were right. "
        "How many will be right afterwards?",
        "about as many, less than 10 points more",
        "10 to 25 points more",
        "more than 25 points more",
    )
    ask_gain
    return (ask_gain,)


@app.cell(hide_code=True)
def _(config):
    start = lesson.start_button(f"Train {config.steps} steps", seconds=20)
    start
    return (start,)


@app.cell(hide_code=True)
def _(config):
    curve = LiveCurve(
        total_steps=config.steps,
        title="Each batch as it comes: tasks that the policy has not seen before",
        percent=False,
    )
    return (curve,)


@app.cell(hide_code=True)
def _(ask_gain, curve):
    lesson.hold_back(ask_gain, curve)
    return


@app.cell(hide_code=True)
def _(
    advantage_in_use,
    config,
    curve,
    environment,
    row_in_use,
    sampling,
    start,
):
    lesson.wait_for(start)

    def draw(step, batch):
        right = fmean(episode.score.outcome == "success" for episode in batch)
        curve.add("share of right answers", step, right)
        curve.add("mean reward", step, fmean(episode.score.reward for episode in batch))

    curve.clear()
    trainer = load_policy(config.policy, config.device)
    run = training_loop(
        load_policy(config.policy, config.device),
        trainer,
        environment,
        sampling,
        config,
        advantage_in_use,
        row_in_use,
        draw,
    )
    return run, trainer


@app.cell(hide_code=True)
def _(environment, held_out, sampling, trainer):
    # The same held-out tasks and the same seeds as before training.
    after = answer_tasks(trainer, environment, held_out["compositional"], sampling)
    return (after,)


@app.function(hide_code=True)
def recorded_gains(log):
    """The date of the last record of `benchmarks/twenty_steps.py` in ``log``, and the points that each seed won."""
    records = re.findall(
        r"^## (\S+) · benchmarks/twenty_steps\.py$(.*?)(?=^## |\Z)",
        log,
        re.MULTILINE | re.DOTALL,
    )
    date, record = records[-1] if records else ("", "")
    return date, [float(points) for points in re.findall(r"\| ([+-][\d.]+) \|", record)]


@app.cell(hide_code=True)
def _(after, answered, ask_gain, run):
    _before = answered["compositional"]
    was, now = summarise("before", _before), summarise("after", after)
    gain = 100 * (now.accuracy - was.accuracy)
    _untagged = was.outcomes["wrong_format"] - now.outcomes["wrong_format"]
    _turned = [
        (old, new)
        for old, new in zip(_before, after, strict=True)
        if old.score.outcome != "success" and new.score.outcome == "success"
    ]
    _example = (
        f"*One task, before.* {lesson.quote(_turned[0][0].task.question)}\n\n{lesson.fence(_turned[0][0].text)}\n\n*After.*\n\n{lesson.fence(_turned[0][1].text)}"
        if _turned
        else "No task that was wrong before is right now."
    )
    _seconds = run.timeline.end - run.timeline.start
    _log = Path(__file__).parents[1] / "benchmarks" / "LOG.md"
    _date, _gains = recorded_gains(_log.read_text() if _log.is_file() else "")
    _command = "`python benchmarks/twenty_steps.py`"
    _recorded = (
        f"Recorded on {_date} with {_command}: {min(_gains):+.0f} to {max(_gains):+.0f} points on {len(_gains)} seeds."
        if _gains
        else f"{_command} trains with five."
    )
    lesson.reveal(
        ask_gain,
        right=0 if gain < 10 else 1 if gain <= 25 else 2,
        why=f"""
    From {was.accuracy:.0%} to {now.accuracy:.0%}, sampled, on {now.episodes} tasks that it never trained on: {gain:+.0f} points in {_seconds:.0f} s. Of all
    episodes `wrong_format` were {was.outcomes["wrong_format"]:.0%} before, and are {now.outcomes["wrong_format"]:.0%} now. So
    {"most" if _untagged > 0.5 * gain / 100 else "less than half"} of the gain is a habit of writing. Is one seed luck? {_recorded}
    """,
        shows=[
            lesson.figure(
                figures.outcome_chart([was, now]),
                "How the same held-out tasks end, before and after.",
            ),
            _example,
        ],
    )
    return gain, now, was


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## When one process is not enough

    A training step is three programs:

    | program | what it does | what limits it |
    |---|---|---|
    | generate | sample episodes, a token at a time | memory bandwidth, in bytes per second: each token reads all weights |
    | check | run tools, tests, a reward | somebody else's latency |
    | train | one forward and one backward pass over all tokens | arithmetic, on all GPUs in lockstep |

    A small model with short answers needs one process. You need several when they want different hardware, when model and optimizer do not fit beside
    generation's key-value cache, or when a batch waits long for its slowest episode.
    """)
    return


@app.cell(hide_code=True)
def _():
    ask_turns = lesson.predict(
        "The twenty steps took turns: generate, train, pull. What share of a step went into generating?",
        "less than a third",
        "one third to two thirds",
        "more than two thirds",
    )
    ask_turns
    return (ask_turns,)


@app.cell(hide_code=True)
def _(run):
    measured = {
        kind: [span.end - span.start for span in run.timeline.spans if span.kind == kind]
        for kind in ("generate", "train", "pull")
    }
    seconds = {kind: fmean(times) for kind, times in measured.items()}
    return measured, seconds


@app.cell(hide_code=True)
def _(ask_turns, measured, run, seconds):
    _shares = {kind: took / sum(seconds.values()) for kind, took in seconds.items()}
    _four = sum(sum(times[:4]) for times in measured.values())
    _steps = len(measured["train"])
    lesson.reveal(
        ask_turns,
        right=0
        if _shares["generate"] < 1 / 3
        else 1
        if _shares["generate"] <= 2 / 3
        else 2,
        why=f"""
    {_shares["generate"]:.0%}. While one works the other waits: the generator {1 - _shares["generate"]:.0%} of a step, the trainer {1 - _shares["train"]:.0%}. If each
    had a GPU of its own, that is the share of it you would pay for and not use.
    """,
        shows=[
            lesson.figure(
                timeline_chart(
                    run.timeline,
                    (run.timeline.start, run.timeline.start + _four),
                ),
                f"Measured: the first steps, {_four / min(4, _steps):.2f} s each. The mean of all {_steps} is {sum(seconds.values()):.2f} s; its shares are in the table.",
            ),
            lesson.table(
                f"A step, means of all {_steps}",
                [
                    {
                        "phase": kind,
                        "seconds": f"{took:.3f}",
                        "share": f"{_shares[kind]:.0%}",
                    }
                    for kind, took in seconds.items()
                ],
            ),
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Waiting for the slowest

    Generation has a wait of its own. Episodes differ in length, and all of a batch must have ended before training begins.
    """)
    return


@app.cell(hide_code=True)
def _(run):
    lesson.md(f"""
    Here are the {len(run.batches[0])} episodes of the first training step. Each has a {lesson.term("slot")}, its row of the running batch. A grey
    slot has nothing to do until the slowest episode has ended.
    """)
    return


@app.cell(hide_code=True)
def _(measured, run, seconds):
    lesson.figure(
        figures.batch_chart(run.batches[0]),
        f"The first batch of the loop above, in the order in which episodes ended. It took {measured['generate'][0]:.2f} s, a mean batch {seconds['generate']:.2f} s. The tool answers at once.",
    )
    return


@app.cell(hide_code=True)
def _(config, slow_batch):
    _calls = fmean(episode.tool_calls for episode in slow_batch)
    ask_slow = lesson.predict(
        f"A real tool is not a dictionary: it runs tests or asks a web page. Say it takes {config.tool_seconds:g} s on average, now and then ten times that. An episode makes {_calls:.1f} calls "
        f"on average, {_calls * config.tool_seconds:.2f} s. How long does a batch of {len(slow_batch)} take then, compared with these {_calls * config.tool_seconds:.2f} s?",
        "less than one and a half times as long",
        "up to three times as long",
        "more than three times as long",
    )
    ask_slow
    return (ask_slow,)


@app.function(hide_code=True)
def slow_tool(execute, pool, mean, variation=1.5, seed=0):
    """``execute`` behind a log-normal delay with this mean (seconds) and coefficient of variation."""
    delays, sigma = random.Random(seed), math.sqrt(math.log(1 + variation**2))

    def answer(task, call, delay):
        time.sleep(delay)
        return execute(task, call)

    def submit(task, call):
        return pool.submit(
            answer, task, call, delays.lognormvariate(math.log(mean) - sigma**2 / 2, sigma)
        )

    return submit


@app.cell(hide_code=True)
def _(config, environment, policy, run, sampling):
    def sample_slowly(batches):
        """The episodes of the first batch again, ``batches`` times at once, with the slow tool; and the seconds that all took."""
        requests = [RolloutRequest(old.task, old.seed) for old in run.batches[0]] * batches
        with ThreadPoolExecutor(len(requests)) as pool:
            execute = slow_tool(environment.execute, pool, config.tool_seconds)
            began = time.monotonic()
            episodes = rollout(
                policy, requests, execute, replace(sampling, slots=len(requests))
            )
            return episodes, time.monotonic() - began

    slow_batch, slow_seconds = sample_slowly(batches=1)
    return sample_slowly, slow_batch, slow_seconds


@app.cell(hide_code=True)
def _(ask_slow, config, measured, run, slow_batch, slow_seconds):
    _calls = fmean(episode.tool_calls for episode in slow_batch)
    _slow = max(episode.seconds for episode in slow_batch)
    _mean = fmean(episode.seconds for episode in slow_batch)
    _times = slow_seconds / (_calls * config.tool_seconds)
    _decoding, _before = (
        fmean(episode.seconds - episode.tool_seconds for episode in batch)
        for batch in (slow_batch, run.batches[0])
    )
    _why_shorter = (
        f" An episode decodes for {_decoding:.2f} s instead of {_before:.2f} s: rows that wait are not computed, so the others' steps are shorter."
        if _decoding < 0.95 * _before
        else ""
    )
    lesson.reveal(
        ask_slow,
        right=0 if _times < 1.5 else 1 if _times <= 3 else 2,
        why=f"""
    {slow_seconds:.2f} s: {_times:.1f} times what {_calls:.1f} calls take on average, and {slow_seconds / measured["generate"][0]:.1f} times the same
    batch with the instant tool. A batch takes as long as the *slowest* of its {len(slow_batch)} episodes, here {_slow / _mean:.1f} times as long as
    their mean. {1 - _mean / _slow:.0%} of the slots' time went in waiting for it.
    """,
        shows=[
            lesson.figure(
                figures.batch_chart(slow_batch),
                f"The same episodes, with a tool that really takes its time. A bar is a sum, not a course of time: first all decoding, then all waits.{_why_shorter}",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _(run):
    _pool = [episode for batch in run.batches for episode in batch]
    _seconds = [episode.seconds for episode in _pool]
    _calls = [episode.tool_calls for episode in _pool]
    # Within batches: between them the policy has learned.
    _scatter = math.sqrt(
        fmean(
            pstdev(episode.score.reward for episode in batch) ** 2 for batch in run.batches
        )
    )
    _latencies, _sizes = [0.0, 0.03, 0.1, 0.3, 1.0, 3.0], [8, 16, 32, 64, 128, 256]
    # One axis for all sizes, so that bars can be compared.
    _longest = {
        tool: batch_times(_seconds, _calls, _sizes[-1], tool).slowest for tool in _latencies
    }

    def _answer(tool, size):
        times = batch_times(_seconds, _calls, size, tool)
        error = _scatter / math.sqrt(size)
        return Answer(
            [
                Panel(
                    "Seconds",
                    [
                        Bar("a mean episode", times.episode, f"{times.episode:.2f} s"),
                        Bar(
                            "slowest of a batch",
                            times.slowest,
                            f"{times.slowest:.2f} s",
                            "purple",
                        ),
                    ],
                    most=_longest[tool],
                ),
                Panel(
                    "Share of the slots' time",
                    [Bar("waiting", times.waiting, f"{times.waiting:.0%}", "grey")],
                    most=1.0,
                ),
                Panel(
                    "What the batch is for",
                    [Bar("standard error of its reward", error, f"± {error:.2f}", "green")],
                    most=_scatter / math.sqrt(8),
                ),
            ],
            f"A batch of {size} takes {times.slowest / times.episode:.1f} times as long as its mean episode. Its mean reward is known to ± {error:.2f} (one standard error).",
        )

    mo.vstack(
        [
            lesson.md(
                f"Two knobs for that. The {len(_pool):,} episodes of your run are drawn into batches, with new delays; bars are means of 200 batches, and one batch may be far off. "
                "A larger batch waits longer. But its mean reward, and so its step, scatters less: four times the size halves the error."
            ),
            WhatIf(
                "Batch size and tool latency",
                [
                    Knob("tool", "A call takes", _latencies, "{:g} s"),
                    Knob("size", "Episodes in a batch", _sizes),
                ],
                _answer,
                {"tool": 0.1, "size": 64},
                static="execute" in mo.cli_args(),
            ),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## The asynchronous answer

    Stop taking turns: the generator starts the next batch while the trainer works on the last one. The time of a step is then no longer
    a sum but a maximum.
    """)
    return


@app.cell(hide_code=True)
def _():
    ask_bound = lesson.predict(
        "Generating and training now run side by side, on hardware of their own, each with one batch at a time: none is begun while another waits for tools. Weights travel in no time. At most how much faster can the loop get?",
        "at most one and a half times",
        "at most twice",
        "at most three times",
        "as many times as the hardware allows",
    )
    ask_bound
    return (ask_bound,)


@app.cell(hide_code=True)
def _():
    lesson.md(f"""
    Two things take a generator's time. Its own *work* is shared when a batch is shared
    among several generators. The *slowest* episode is not: it makes its calls one after the other, wherever it runs.

    How far generation may run ahead is bounded, too. The {lesson.term("lag")} of a batch says how many versions older the weights were that wrote it. With a
    bound `max_lag`, at most `max_lag` + 1 batches are *on their way*: begun, and not yet trained on. Each makes a round trip: generated, trained on, new weights
    pulled. If that takes 3 s and two are on their way, one arrives every 1.5 s. Only generators pull, so only their time grows by it.
    """)
    return


@app.function
def one_batch_at_a_time(work, slowest, train, pull, generators=1):
    """The least seconds for a step. The generators share each batch."""
    return max(train, max(work / generators, slowest) + pull)


@app.function
def batches_overlap(work, slowest, train, pull, max_lag, generators=1):
    """The same, if generators go on with other batches while tools answer."""
    # max_lag + 1 batches share a round trip.
    round_trip = max(work / generators, slowest) + train + pull
    return max(train, work / generators + pull, round_trip / (max_lag + 1))


@app.function(hide_code=True)
def enough_for_the_trainer(work, slowest, train, pull):
    """The least (generators, max_lag) with which the trainer is never idle, or None: pulling alone takes longer than a step."""
    if train <= pull:
        return None
    generators = math.ceil(work / (train - pull))
    round_trip = max(work / generators, slowest) + train + pull
    return generators, math.ceil(round_trip / train) - 1


@app.cell(hide_code=True)
def _(environment, measured, policy, run, sampling, seconds, slow_seconds):
    # The slowest episode of the first batch again, with a generator to itself. In its batch it was over within the batch's time, so its share is at most 1.
    _slowest = max(run.batches[0], key=lambda episode: episode.seconds)
    _began = time.monotonic()
    rollout(
        policy,
        [RolloutRequest(_slowest.task, _slowest.seed)],
        environment.execute,
        sampling,
    )
    _share = min(1.0, (time.monotonic() - _began) / measured["generate"][0])
    phases = {
        tool: {
            "work": seconds["generate"],
            "slowest": slowest,
            "train": seconds["train"],
            "pull": seconds["pull"],
        }
        for tool, slowest in (
            ("instant", _share * seconds["generate"]),
            ("slow", slow_seconds),
        )
    }
    in_turns = {
        tool: max(found["work"], found["slowest"]) + found["train"] + found["pull"]
        for tool, found in phases.items()
    }
    return in_turns, phases


@app.cell(hide_code=True)
def _(sample_slowly, slow_seconds):
    _, four_seconds = sample_slowly(batches=4)
    _overlap = 4 * slow_seconds / four_seconds
    _said = (
        f"So waits overlap: {_overlap:.1f} came out in the time of one."
        if _overlap > 1.2
        else "So here the computing took the time, and waits had nothing to hide."
    )
    lesson.md(
        f"Do waits overlap? With the slow tool one batch alone took {slow_seconds:.2f} s; four begun together took {four_seconds:.2f} s. {_said}"
    )
    return


@app.cell(hide_code=True)
def _(ask_bound, in_turns, phases):
    _one = {
        tool: in_turns[tool] / one_batch_at_a_time(**found)
        for tool, found in phases.items()
    }
    # Every ratio of generation to training between 1 : 50 and 50 : 1, on a fine grid.
    _grid = [1.05**power for power in range(-80, 81)]
    _most = max((g + 1) / one_batch_at_a_time(g, 0, train=1, pull=0) for g in _grid)
    _enough = enough_for_the_trainer(**phases["slow"])
    _idle_no_more = (
        f"With the slow tool the trainer is never idle from {_enough[0]} generator{'s' * (_enough[0] > 1)} and `max_lag` {_enough[1]} on. From there only a faster trainer helps."
        if _enough
        else "Here a pull takes longer than a training step, so the weights set the pace, and no number of generators keeps the trainer busy."
    )
    lesson.reveal(
        ask_bound,
        right=next(
            (index for index, most in enumerate((1.5, 2, 3)) if _most <= most + 1e-9), 3
        ),
        why=f"""
    The largest ratio over all mixes is {_most:.2f}, where both take equally long: (g + t) / max(g, t) ≤ 2. With your times it is {_one["instant"]:.2f}
    for the instant tool and {_one["slow"]:.2f} for the slow one.

    One batch at a time on either side means `max_lag` 1. If a generator begins another batch while one waits for a tool, that bound does not hold. Then
    the loop is at most `max_lag` + 1 times as fast with the same processes. {_idle_no_more} All these are bounds; notebook 08 measures what is reached.
    """,
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Watch it

    Both loops on one clock, simulated from the times of your twenty steps. Press *Play*, or drag the time. Who stands still while the other
    works? Which version does a dot show when the trainer takes it?
    """)
    return


@app.cell(hide_code=True)
def _(this_machine):
    _both = simulate(replace(this_machine, steps=6, max_lag=1))
    LoopPlayer(
        {
            "In turns": _both.sync.timeline,
            "Side by side, max_lag 1": _both.asynchronous.timeline,
        }
    )
    return


@app.cell(hide_code=True)
def _(in_turns, phases):
    _inputs = lesson.table(
        "What the bounds are computed from, in seconds",
        [
            {"": f"{tool} tool"} | {name: f"{took:.3f}" for name, took in found.items()}
            for tool, found in phases.items()
        ],
    )
    _paces = lesson.table(
        "Seconds for a step at best, and how much faster that is than in turns",
        [{"": "in turns"} | {f"{tool} tool": f"{in_turns[tool]:.2f} s" for tool in phases}]
        + [
            {"": name}
            | {
                f"{tool} tool": f"{pace:.2f} s ({in_turns[tool] / pace:.2f}×)"
                + (", bound by the trainer" if pace == found["train"] else "")
                for tool, found in phases.items()
                if (pace := step(**found))
            }
            for name, step in (
                ("one batch at a time", one_batch_at_a_time),
                (
                    "batches overlap, `max_lag` 1",
                    lambda **found: batches_overlap(**found, max_lag=1),
                ),
                (
                    "batches overlap, `max_lag` 4",
                    lambda **found: batches_overlap(**found, max_lag=4),
                ),
                (
                    "batches overlap, `max_lag` 4, 4 generators",
                    lambda **found: batches_overlap(**found, max_lag=4, generators=4),
                ),
            )
        ],
    )
    _how = lesson.folded(
        "How these were measured",
        "*work*, *train* and *pull*: means of all steps, with the instant tool. *slowest* with the instant tool: the slowest episode of the first batch, sampled "
        "alone, as a share of that batch; times *work*. *slowest* with the slow tool: the batch above, which waits for nothing else.",
    )
    mo.vstack([_inputs, _how, _paces])
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 4: from a sum to a maximum

    Complete `speed_up` for a run of `steps` training steps, one batch at a time on either side: its time in turns over its time side by side. A run has a
    beginning and an end, so it gains less than the bound.
    """)
    return


@app.function
def speed_up(generate, train, steps):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: speed_up,
        check_speed_up,
        speed_up_solution,
        level="stretch",
        minutes=5,
        hints=(
            "Draw three steps as two rows of bars. The first batch is generated alone, and the last one is trained on alone. Who sets the pace in between?",
            "Side by side: `generate`, then `steps - 1` times the longer of the two, then `train`.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Its price

    A batch that was generated while the trainer took a step comes from older weights: it is off-policy. `max_lag` 0
    is the loop above, 1 lets one batch be generated ahead. Notebook 09 measures the cost.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Why actors

    Taken apart, the loop is a few roles. Each owns some state, does one thing at a time and sends messages: it is an actor. To grow,
    a role gets *replicas*, several equal processes.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    | role | its state | waits for | how it grows |
    |---|---|---|---|
    | dataset | the next task | nobody | one is enough |
    | generator | a copy of the weights, a cache | its own longest episodes | more replicas |
    | tools, reward | none, or an isolated place to run code | somebody else | many cheap replicas |
    | replay buffer | episodes and their age | generators, trainer | one is enough |
    | trainer | weights, optimizer | a whole batch | more processes that share one model |

    Here the replay buffer is a queue: it hands out each group once, and draws none again.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Try it before you build it

    Below, the same run twice, on the same latencies. *This machine* has the mean times that you have just measured. The speed-up is over
    the loop in turns with as many generators.

    Three questions to settle with the sliders; the answers are folded below. "No longer helps": no later position shortens the run by more than 2%.

    1. Choose *no variance*. With which number of generators is the speed-up largest?
    2. Choose *one straggler*: one group takes eight times as long as the others. From which lag on does more lag no longer help?
    3. Choose *trainer-bound*. From which number of generators on do more no longer help?
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.folded(
        "How to read “Sample a group” and “No run can take less than this”",
        "A simulated generator samples the groups of a batch one after the other, while your loop samples them together. So *Sample a group* is the time of a "
        "batch over the number of its groups.\n\n"
        "Each row of the table looks at one thing only, over the whole run, so it holds more than that thing's own time.\n\n"
        "- *Trainer*: pull, generate the first batch, then train all steps without a pause.\n"
        "- *Generators*: pull, generate all batches without a pause, then train the last step.\n"
        "- *Weights*: send the versions that the last batch needs, one after the other, then generate it and train on it.\n"
        "- *Round trips*: pull, generate, train, one after the other, once in every `max_lag` + 1 steps; then the training of the last.\n"
        "- *All of it together*: all these rules at once, step by step, so it is never below the others.\n\n"
        "In a short run the first batch, which nothing hides, counts much. So *this machine* gains less than the table of bounds above says.",
    )
    return


@app.cell(hide_code=True)
def _(config, measured, run):
    this_machine = Setting(
        generators=1,
        groups_per_step=config.prompts,
        generation_seconds=fmean(measured["generate"]) / config.prompts,
        # Between groups: in the times of whole batches the stragglers would have vanished.
        variation=group_variation(map(group_latencies, run.batches)),
        training_seconds=fmean(measured["train"]),
        sync_seconds=fmean(measured["pull"]),
    )
    return (this_machine,)


@app.cell(hide_code=True)
def _(this_machine):
    simulator = TimelineSimulator(
        measured=this_machine, static="execute" in mo.cli_args(), scenario="this machine"
    )
    simulator
    return


@app.cell(hide_code=True)
def _():
    def _sweep(scenario, name, of):
        """Run ``scenario`` at every position of the slider ``name``: position → what ``of`` makes of it."""
        return {
            value: of(simulate(replace(scenario, **{name: value}))) for value in GRID[name]
        }

    def _listed(found, unit):
        return ", ".join(f"{value}: {number:.2f}{unit}" for value, number in found.items())

    def _enough(seconds):
        """The first position after which the time falls by less than 2%."""
        return next(
            value for value, took in seconds.items() if took <= 1.02 * min(seconds.values())
        )

    def _took(compared):
        return compared.asynchronous.seconds

    _bound = ON_THE_GRID["trainer-bound"]
    _sampling = _bound.groups_per_step * _bound.generation_seconds
    _longer = next(
        count for count in GRID["generators"] if _sampling / count < _bound.training_seconds
    )

    _ups = _sweep(
        ON_THE_GRID["no variance"], "generators", lambda compared: compared.speed_up
    )
    _lags = _sweep(ONE_STRAGGLER, "max_lag", _took)
    _counts = _sweep(ON_THE_GRID["trainer-bound"], "generators", _took)
    mo.vstack(
        [
            lesson.folded(
                "1. The largest speed-up",
                f"With {max(_ups, key=_ups.get)} (speed-up by number: {_listed(_ups, ' ×')}). There a batch is made in about the time of a training step, and both are busy. On either side of it one waits for the other.",
            ),
            lesson.folded(
                "2. The lag that hides a straggler",
                f"From {_enough(_lags)} on: more lag saves less than 2% (time by lag: {_listed(_lags, ' s')}). Then enough other batches are on their way while one waits.",
            ),
            lesson.folded(
                "3. One more generator",
                f"From {_enough(_counts)} on (time by number: {_listed(_counts, ' s')}). Training is the longer phase from {_longer} on. More generators then shorten only what nothing hides, above all the first batch.",
            ),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.predicted(9)
    return


@app.cell(hide_code=True)
def _(was, now):
    lesson.recap(
        "RL needs no written answers to copy, only a reward: the policy writes the answer, and something checks it.",
        "A verifiable reward is only as good as its parser: never pay for a tool's words.",
        "An episode is generate, call, inject. The trainer learns from the very tokens that were sampled; what a tool wrote is masked.",
        f"A step: advantages within groups, the policy gradient, new weights. Here it took the policy from {was.accuracy:.0%} to {now.accuracy:.0%}.",
        "In turns, a step is the sum of its phases, and generation takes as long as its slowest episode.",
        "Side by side it takes as long as the longer phase. The price is older data, whose age `max_lag` bounds.",
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.links(__file__)
    return


@app.function(hide_code=True)
def check_math_reward(math_reward):
    exercise.expect(math_reward, "7 crates of 12 make\n#### 84", 84, result=1.0)
    exercise.expect(math_reward, "#### 1,234", 1234, result=1.0)
    exercise.expect(math_reward, "#### -4", -4, result=1.0)
    exercise.expect(math_reward, "#### 83\nNo, 7 × 12 is\n#### 84", 84, result=1.0)
    exercise.expect(math_reward, "#### 84\nOr is it\n#### 83", 84, result=0.0)
    exercise.expect(math_reward, "The answer is 84.", 84, result=0.0)
    exercise.expect(math_reward, "#### 84.5", 84, result=0.0)
    exercise.expect(math_reward, "#### 84\n#### 84.5", 84, result=1.0)
    exercise.expect(math_reward, "#### 84  \nDone.", 84, result=1.0)
    exercise.expect(math_reward, "#### 1,234,567", 1234567, result=1.0)
    exercise.expect(math_reward, "#### 8,4", 84, result=0.0)
    exercise.expect(math_reward, "#### 84,", 84, result=0.0)
    exercise.expect(math_reward, "so #### 84", 84, result=0.0)


@app.function(hide_code=True)
def math_reward_solution(text, answer):
    integer = r"-?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)"
    found = re.findall(rf"^#### ({integer})[ \t]*$", text, re.MULTILINE)
    return float(bool(found) and int(found[-1].replace(",", "")) == answer)


@app.function(hide_code=True)
def check_leave_one_out(leave_one_out):
    exercise.expect(leave_one_out, [1.0, 0.0], result=[1.0, -1.0])
    exercise.expect(leave_one_out, [1.2, 0.0, 0.0], result=[1.2, -0.6, -0.6])
    exercise.expect(leave_one_out, [0.2, 0.2, 0.2, 0.2], result=[0.0, 0.0, 0.0, 0.0])


@app.function(hide_code=True)
def leave_one_out_solution(rewards):
    total, others = sum(rewards), len(rewards) - 1
    return [reward - (total - reward) / others for reward in rewards]


@app.function(hide_code=True)
def check_training_row(training_row):
    class ToyPolicy:
        eos_ids = (0,)

        def tokenizer(self, text, **options):
            return {
                "input_ids": [4, 7, 3]
            }  # 4 spells "ab", which the policy wrote as 1 and 2

        def __repr__(self):
            return "toy_policy"

    episode = SimpleNamespace(
        text="ab7c", token_ids=[1, 2, 7, 3, 0], sampled=[True, True, False, True, True]
    )
    exercise.expect(
        training_row,
        ToyPolicy(),
        episode,
        result=([1, 2, 7, 3, 0], [True, True, False, True, True]),
    )


@app.function(hide_code=True)
def training_row_solution(policy, episode):
    return episode.token_ids, episode.sampled


@app.function(hide_code=True)
def check_speed_up(speed_up):
    exercise.expect(speed_up, 1.0, 1.0, 1, result=1.0)
    exercise.expect(speed_up, 1.0, 1.0, 3, result=1.5)
    exercise.expect(speed_up, 4.0, 1.0, 100, result=500 / 401)
    exercise.expect(speed_up, 1.0, 4.0, 100, result=500 / 401)


@app.function(hide_code=True)
def speed_up_solution(generate, train, steps):
    in_turns = steps * (generate + train)
    side_by_side = generate + (steps - 1) * max(generate, train) + train
    return in_turns / side_by_side


if __name__ == "__main__":
    app.run()
