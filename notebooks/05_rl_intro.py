# /// script
# [tool.marimo.display]
# theme = "system"
# ///

import marimo

__generated_with = "0.25.2"
app = marimo.App(
    width="medium",
    app_title="RL at scale: the systems problem",
    css_file="../zorplex_rl/viz/lesson.css",
)

with app.setup(hide_code=True):
    import math
    import pickle
    import random
    import re
    import time
    from concurrent.futures import ThreadPoolExecutor
    from dataclasses import replace
    from statistics import fmean, median
    from types import SimpleNamespace

    import marimo as mo
    import torch

    from zorplex_rl import (
        TASK_SPECS,
        generate_with_tools,
        get_spec,
        print_result,
    )
    from zorplex_rl.analysis.recorded import group_latencies, group_variation
    from zorplex_rl.analysis.setting import Setting
    from zorplex_rl.analysis.timeline import SpanRecorder, Timeline
    from zorplex_rl.learning.advantages import group_relative
    from zorplex_rl.learning.learner import Learner, Learning, response_logprobs
    from zorplex_rl.learning.losses import (
        effective_sample_size,
        episode_ratios,
        mismatch,
    )
    from zorplex_rl.policy.evaluate import summarise
    from zorplex_rl.policy.load import load_policy
    from zorplex_rl.policy.rollout import RolloutRequest, Sampling, rollout
    from zorplex_rl.task.environment import Zorplex
    from zorplex_rl.task.episode import Task
    from zorplex_rl.task.parser import find_answer
    from zorplex_rl.task.rewards import (
        CORRECT_REWARD,
        EXTRA_CALL_PENALTY,
        FORMAT_REWARD,
        OUTCOMES,
        score,
    )
    from zorplex_rl.viz import exercise, figures, lesson
    from zorplex_rl.viz.plots import timeline_chart
    from zorplex_rl.viz.tokens import token_strip
    from zorplex_rl.viz.widgets import TimelineSimulator


@app.cell(hide_code=True)
def _():
    lesson.header(
        __file__,
        minutes=25,
        hardware="two CPU cores, no network; a GPU is used where there is one",
        goals=[
            "say when RL of a language model needs more than one process, and when it does not",
            "write a reward that a program can verify, and see what a lenient one would pay for",
            "tell the tokens that a policy sampled from those that a tool put into its context",
            "measure what a synchronous loop loses to its slowest episode",
            "bound what asynchrony can win, and name its price",
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## When one process is not enough

    Pre-training reads its next batch from a disk: the data do not depend on the weights. In RL the model that you train has to *write* the
    next batch, and somebody has to check it. A training step becomes three programs:

    | program | what it does | what limits it |
    |---|---|---|
    | generate | sample episodes, a token at a time | memory bandwidth; as long as the longest episode |
    | check | run tools, tests, a reward | somebody else's latency |
    | train | one forward and one backward pass over all tokens | arithmetic; all ranks in step |

    One process can run the three in turns, and for a small model with short answers it should. You need a system of several when

    - they want different hardware or different numbers of it, so that taking turns leaves most of it idle,
    - the model with its optimizer does not fit beside the cache that generation needs,
    - episodes differ so much in length that a batch waits for its slowest,
    - or so many machines take part that one of them fails before the run is over.

    This notebook runs all three programs in one process and measures. What you measure decides how the next notebooks take them apart.
    """)
    return


@app.cell
def settings():
    _name = mo.cli_args().get("policy") or "embedded"
    _embedded = _name == "embedded"
    config = SimpleNamespace(
        policy=_name,  # or the folder of a model, for example a copy of Qwen2.5-0.5B-Instruct
        device="cuda" if torch.cuda.is_available() else "cpu",
        seed=0,
        hints=not _embedded,  # a worked example in the system prompt
        tasks_per_kind=200,
        max_tokens=96 if _embedded else 256,
        prompts=8,  # in a training batch
        samples=8,  # of each prompt
        steps=8,
        learning_rate=3e-4 if _embedded else 3e-6,
        # One thread is fastest for a small model.
        threads=1 if _embedded else torch.get_num_threads(),
        tool_seconds=0.1,  # mean latency of a slow tool
    )
    return (config,)


@app.cell
def _(config):
    torch.set_num_threads(config.threads)
    policy = load_policy(config.policy, config.device)
    lesson.ran_on(policy)
    return (policy,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A reward that a program can verify

    The simplest RL for language models: ask for an integer, compare. No reward model, no human. What has to be decided is which text counts
    as an answer. The rule of this course: the last `[ANSWER] <integer>`, the whole integer, and nothing else. The texts below are written
    by hand; the column on the right is what the parser says.
    """)
    return


@app.cell
def _():
    _texts = [
        "[ANSWER] 42",
        "The answer is 42.",
        "[ANSWER] 42.5",
        "[ANSWER] 41\nNo:\n[ANSWER] 42",
        "40 41 42 43 44",
    ]
    lesson.table(
        "What counts as an answer",
        [{"text": f"`{t!r}`", "answer": find_answer(t)} for t in _texts],
    )
    return


@app.cell(hide_code=True)
def _(config, policy):
    word_problems = [
        ("A crate holds 12 bottles. How many bottles are in 7 crates?", 84),
        ("Ana has 35 beads, loses 8 and buys 20. How many has she now?", 47),
        (
            "A train leaves at 9:40 and arrives at 11:05. How many minutes is it under way?",
            85,
        ),
    ]

    def ask(question, answer):
        system = "Think step by step. End with [ANSWER] and the integer."
        task = Task(
            "word_problem", question, answer, min_tool_calls=0, system=system, words=()
        )
        (episode,) = rollout(
            policy,
            [RolloutRequest(task)],
            lambda *_: "ERROR: no tools here",
            Sampling(0.0, 256),
        )
        return {
            "question": question,
            "the policy wrote": lesson.quote(episode.text),
            "reward": score(episode).correct,
        }

    if policy.parameter_count > 1e8:
        _shown = lesson.table(
            "Word problems, answered greedily", [ask(*problem) for problem in word_problems]
        )
    else:
        _shown = lesson.md(
            f"`{config.policy}` has {policy.parameter_count / 1e6:.2f} million parameters and has never seen a word problem, so it is "
            "not asked one. With `-- --policy FOLDER` behind the command, an instruction-tuned model answers three here."
        )
    _shown
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 1: a verifier (5 minutes)

    The answers of grade-school word problems often end in a line `#### 1,234`. Complete `math_reward`: 1.0 if the **last** such line holds
    `answer`, else 0.0. Commas between thousands are allowed, a minus sign too; a line like `#### 42.5` holds no integer, and a number
    anywhere else earns nothing.
    """)
    return


@app.function
def math_reward(text, answer):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(math_reward, check_math_reward, math_reward_solution)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Zorplex: a task that cannot be known, only looked up

    A model may have seen every word problem there is. So this course uses words whose values are drawn anew for each task, and that only a
    tool reveals. To be right, the policy *must* call the tool, wait, read, and answer: several turns, as in any agent.
    """)
    return


@app.cell
def _(config):
    spec = get_spec("compositional", config.seed, hints=config.hints)
    task = spec.generate_task()
    lesson.md(
        f"**{task.question}** The table of this task: "
        + ", ".join(
            f"{word} = {task.table[word]}"
            for word in (*task.words, *(w for w in task.table if w not in task.words))[:8]
        )
        + f", … ({len(task.table)} words). The next task has another one."
    )
    return spec, task


@app.cell
def _(config, policy, spec, task):
    episode = generate_with_tools(policy.model, policy.tokenizer, spec, task, config.device)
    print_result(episode)
    return (episode,)


@app.cell(hide_code=True)
def _():
    lesson.predict(
        "Both tool results are in the context, and the policy reads them like its own words. Should the trainer raise the probability of those tokens "
        "when the episode was a success?",
        "yes, they led to success",
        "no, the policy did not choose them",
        "only if they were right",
    )
    return


@app.cell
def _(episode, policy):
    lesson.figure(
        token_strip(policy, episode), "The episode above, as the trainer gets it."
    )
    return


@app.cell(hide_code=True)
def _(episode):
    lesson.reveal(f"""
    No. The tool wrote {len(episode.sampled) - sum(episode.sampled)} of these {len(episode.sampled)} tokens; to learn them would be to learn
    to *invent* results. They stay in the context and are masked from the loss. The ids in the figure are also exactly the ids that were
    sampled: nothing is decoded and tokenised again on the way to the trainer, because the second tokenisation can differ from the first.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 2: the loss mask (3 minutes)

    Complete `mean_logprob`: the mean log-probability of the tokens that the policy itself sampled. `logprobs` holds a number for every
    token of the response, and `sampled` says which of them the policy chose.
    """)
    return


@app.function
def mean_logprob(logprobs, sampled):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(mean_logprob, check_mean_logprob, mean_logprob_solution)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Four kinds of question

    They differ in the number of turns, and in what has to be carried from one to the next.
    """)
    return


@app.cell
def _(config):
    specs = {kind: get_spec(kind, config.seed, hints=config.hints) for kind in TASK_SPECS}
    examples = {kind: spec.task(0, "held_out") for kind, spec in specs.items()}
    return examples, specs


@app.cell(hide_code=True)
def _(examples, specs):
    lesson.table(
        "One held-out task of each kind, and the calls of a perfect solver",
        [
            {
                "kind": kind,
                "question": task.question,
                "calls": ", ".join(f"`{call}`" for call in specs[kind].calls_needed(task)),
                "answer": task.answer,
            }
            for kind, task in examples.items()
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.predict(
        "The embedded policy was taught by examples to use the tools, carelessly. Where will it be right least often?",
        "simple",
        "compositional",
        "multi_step",
        "recursive",
    )
    return


@app.function
def answer_tasks(policy, environment, tasks, sampling, on_episode=lambda episode: None):
    """One sampled episode for each of ``tasks``, scored; 64 at a time share each forward pass."""
    requests = [RolloutRequest(task, seed) for seed, task in enumerate(tasks)]
    episodes = rollout(
        policy, requests, environment.execute, sampling, on_episode=on_episode
    )
    for episode in episodes:
        episode.score = score(episode)
    return episodes


@app.cell
def _(config, policy):
    environment = Zorplex(config.seed, config.hints)
    sampling = Sampling(temperature=1.0, max_tokens=config.max_tokens, slots=64)
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
    return answered, environment, reports, sampling


@app.cell(hide_code=True)
def _(reports):
    lesson.figure(
        figures.accuracy_chart(reports),
        f"{reports[0].episodes} held-out tasks of each kind, sampled at temperature 1.",
    )
    return


@app.cell(hide_code=True)
def _(reports):
    _worst, _best = (
        min(reports, key=lambda r: r.accuracy),
        max(reports, key=lambda r: r.accuracy),
    )
    lesson.reveal(f"""
    `{_worst.name}`, with {_worst.accuracy:.0%}; most often right on `{_best.name}`, with {_best.accuracy:.0%}. The lines are
    95 % intervals, in which tasks on the same words count as a cluster: with {_worst.episodes} tasks, that of `{_worst.name}` is
    {100 * (_worst.interval[1] - _worst.interval[0]):.0f} points wide. Kinds that are closer than that are not told apart here.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## How it fails

    Each episode ends in exactly one of five ways, and the first that holds is its name: a right answer, a wrong one, still calling tools at
    the turn limit, cut off at the token limit, or an end without `[ANSWER]`.
    """)
    return


@app.cell(hide_code=True)
def _(reports):
    lesson.figure(
        figures.outcome_chart(reports),
        "Shares of all episodes; those below 8 % have no number.",
    )
    return


@app.cell
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
            f"**{first.task.question}** (right: {first.task.answer})\n\n{lesson.fence(first.text)}",
        )

    mo.vstack([show_example(outcome, episodes) for outcome, episodes in by_outcome.items()])
    return


@app.cell(hide_code=True)
def _():
    lesson.md(f"""
    ## From failures to a reward

    Every share in the figure is a habit, and RL changes habits by paying for them: +{CORRECT_REWARD} for the right value, +{FORMAT_REWARD} for any
    answer in the right form, −{EXTRA_CALL_PENALTY} for every call more than needed. The table shows what the episodes above earned.
    """)
    return


@app.cell(hide_code=True)
def _(by_outcome):
    lesson.table(
        "Mean reward by outcome",
        [
            {"outcome": f"`{outcome}`", "episodes": len(episodes)}
            | {
                part.replace(
                    "_", " "
                ): f"{fmean(episode.score.parts[part] for episode in episodes):.2f}"
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
    lesson.predict(
        "A lenient verifier pays if the right number stands *anywhere* in the transcript. How many more episodes would it pay for than the strict one?",
        "hardly any",
        "half as many again",
        "twice as many or more",
    )
    return


@app.function
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


@app.cell
def _(everything):
    payments = [paid_for(episode) for episode in everything]
    paid_shares = {
        what: payments.count(what) / len(payments)
        for what in ("answer", "own words", "tool's words")
    }
    strict, lenient = paid_shares["answer"], sum(paid_shares.values())
    lesson.table(
        "What the lenient verifier pays for",
        [
            {"the right number stands": where, "episodes": f"{paid_shares[what]:.0%}"}
            for what, where in (
                ("answer", "behind the tag, as the strict one wants it"),
                ("own words", "in the policy's own words, but not as its answer"),
                ("tool's words", "in a tool's words only"),
            )
        ],
    )
    return lenient, paid_shares, strict


@app.cell(hide_code=True)
def _(lenient, paid_shares, strict):
    _more = f"{lenient / strict:.1f} times as many" if strict else "All that it pays for"
    lesson.reveal(f"""
    {_more}: {lenient:.0%} of the episodes, against {strict:.0%}. The difference has two parts. In {paid_shares["own words"]:.0%} of all episodes the policy
    wrote the number itself and missed only the form. In {paid_shares["tool's words"]:.0%} only a tool wrote it. The second part is the
    dangerous one: in three of the four kinds the last look-up shows the answer, and there a policy that only calls tools and never answers
    would be paid in full.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## The synchronous loop

    Here is all of RL in one process: generate a batch with the newest weights, score it, take one step, copy the weights back. Generator
    and trainer hold a copy of the model each, as they will when they are processes of their own. A sample's advantage is its reward
    compared with the other samples of the same prompt.
    """)
    return


@app.function
def sample_batch(actor, environment, sampling, config, number, version):
    """Batch ``number`` of the training tasks, sampled with weights ``version``."""
    tasks = environment.tasks(
        ("compositional",), config.prompts, start=number * config.prompts
    )
    first = number * config.prompts * config.samples
    requests = [
        RolloutRequest(task, first + prompt * config.samples + sample, group=prompt)
        for prompt, task in enumerate(tasks)
        for sample in range(config.samples)
    ]
    return rollout(actor, requests, environment.execute, sampling, version=version)


@app.function
def train_synchronously(actor, learner, environment, sampling, config):
    """Steps in turns: what was sampled, who was busy when, and an untouched batch's log-probs under every version."""
    generator, trainer = SpanRecorder("generator"), SpanRecorder("trainer")
    batches = []
    # Sampled with version 0, and never trained on: it shows below what age does to a batch.
    untouched = sample_batch(
        actor, environment, sampling, config, number=config.steps, version=0
    )
    rescored = [response_logprobs(learner.policy, untouched)]
    for step in mo.status.progress_bar(
        range(config.steps), title="Synchronous steps", remove_on_exit=True
    ):
        with generator.span("generate"):
            episodes = sample_batch(actor, environment, sampling, config, step, step)
        batches.append(episodes)
        with trainer.span("train"):
            for episode in episodes:
                episode.score = score(episode)
            rewards = [episode.score.reward for episode in episodes]
            groups = [
                rewards[start : start + config.samples]
                for start in range(0, len(rewards), config.samples)
            ]
            learner.step(
                episodes,
                [advantage for group in group_relative(groups) for advantage in group],
            )
        with generator.span("pull"):
            actor.model.load_state_dict(learner.policy.model.state_dict())
        rescored.append(response_logprobs(learner.policy, untouched))
    return SimpleNamespace(
        batches=batches,
        untouched=untouched,
        rescored=rescored,
        timeline=Timeline(generator.drain() + trainer.drain()),
    )


@app.cell
def _(config, environment, sampling):
    learner = Learner(
        load_policy(config.policy, config.device),
        # Without a warm-up: every step is a full one, and so is the difference between two versions.
        Learning(learning_rate=config.learning_rate, warmup_steps=0),
    )
    run = train_synchronously(
        load_policy(config.policy, config.device), learner, environment, sampling, config
    )
    lesson.figure(
        timeline_chart(run.timeline),
        "Measured. Neither works while the other does; the gaps are this notebook's own bookkeeping.",
    )
    return learner, run


@app.cell
def _(run):
    measured = {
        kind: [span.end - span.start for span in run.timeline.spans if span.kind == kind]
        for kind in ("generate", "train", "pull")
    }
    seconds = {kind: median(times) for kind, times in measured.items()}
    return measured, seconds


@app.cell(hide_code=True)
def _(seconds):
    lesson.table(
        "A synchronous step, medians",
        [
            {
                "phase": kind,
                "seconds": f"{took:.3f}",
                "share": f"{took / sum(seconds.values()):.0%}",
            }
            for kind, took in seconds.items()
        ],
    )
    return


@app.cell(hide_code=True)
def _(run, seconds):
    _right = [
        fmean(episode.score.outcome == "success" for episode in batch)
        for batch in run.batches
    ]
    _train = seconds["train"] / sum(seconds.values())
    lesson.md(f"""
    The first batch was right in {_right[0]:.0%} of its episodes, the last in {_right[-1]:.0%}, after {len(_right) - 1} steps. What the loop
    does not do is use both halves of the machine: the generator waits for {_train:.0%} of a step, the trainer for {1 - _train:.0%}. If each
    had a GPU of its own, that is the share of it you would pay for and not use.
    """)
    return


@app.cell
def _(config, run):
    group = run.batches[0][: config.samples]
    (advantages,) = group_relative([[episode.score.reward for episode in group]])
    return advantages, group


@app.cell(hide_code=True)
def _(advantages, group):
    lesson.table(
        f"One prompt of the first batch, “{group[0].task.question}”, and its samples",
        [
            {
                "outcome": f"`{episode.score.outcome}`",
                "reward": f"{episode.score.reward:.2f}",
                "advantage": f"{advantage:+.2f}",
            }
            for episode, advantage in zip(group, advantages, strict=True)
        ],
    )
    return


@app.cell(hide_code=True)
def _(config, run):
    _rewards = [
        [episode.score.reward for episode in run.batches[0][start : start + config.samples]]
        for start in range(0, len(run.batches[0]), config.samples)
    ]
    _alike = [group for group in _rewards if max(group) == min(group)]
    lesson.md(f"""
    A positive advantage makes a sample's tokens more likely, a negative one less. Where all rewards of a group are alike, all its advantages
    are 0, and the prompt teaches nothing, however the other prompts went: every *group* needs differences, between right and wrong, or
    between few calls and many. In the first batch {len(_alike)} of {len(_rewards)} groups had none.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Waiting for the slowest

    Inside the generation phase there is a second wait. Episodes differ in length: another turn, another digit, an error to look up again.
    All of a batch must have ended before training begins. These are the latencies of the benchmark's episodes, each measured from its first
    step to its last.
    """)
    return


@app.cell
def _(answered):
    latencies = {
        kind: [episode.seconds for episode in episodes]
        for kind, episodes in answered.items()
    }
    return (latencies,)


@app.cell(hide_code=True)
def _(latencies):
    lesson.table(
        "Seconds for an episode, 64 decoding together",
        [
            {
                "kind": kind,
                "median": f"{median(times):.3f}",
                "95th percentile": f"{sorted(times)[int(0.95 * len(times))]:.3f}",
                "slowest": f"{max(times):.3f}",
                "slowest ÷ median": f"{max(times) / median(times):.1f}×",
            }
            for kind, times in latencies.items()
        ],
    )
    return


@app.cell(hide_code=True)
def _(latencies):
    lesson.figure(figures.density_chart(latencies))
    return


@app.cell(hide_code=True)
def _(run):
    lesson.md(f"""
    Now the same as a batch: {len(run.batches[0])} episodes of the first training step. What is grey is a slot that has nothing to do until
    the slowest episode has ended.
    """)
    return


@app.cell(hide_code=True)
def _(run):
    lesson.figure(
        figures.batch_chart(run.batches[0]),
        "The first batch of the loop above. The tool is a dictionary and answers at once.",
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 3: the price of the slowest (3 minutes)

    Every slot of a batch is taken until the slowest episode has ended. Complete `idle_share`: the share of all slots' time that goes in
    waiting, given how many `seconds` each episode took.
    """)
    return


@app.function
def idle_share(seconds):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(idle_share, check_idle_share, idle_share_solution)
    return


@app.cell(hide_code=True)
def _(config, run):
    _calls = fmean(episode.tool_calls for episode in run.batches[0])
    lesson.predict(
        f"A real tool is not a dictionary: it runs tests or asks a web page. Say it takes {config.tool_seconds:g} s on average, now and then ten times that. An episode makes {_calls:.1f} calls "
        "on average. How long does a batch take then, compared with the time of these calls?",
        "about as long",
        "two to three times as long",
        "more than three times as long",
    )
    return


@app.function
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


@app.cell
def _(config, environment, policy, run, sampling):
    def sample_slowly(batches):
        """``batches`` of the same tasks at once, with the slow tool: the episodes, and the seconds that all took."""
        tasks = [episode.task for episode in run.batches[0]] * batches
        with ThreadPoolExecutor(len(tasks)) as pool:
            execute = slow_tool(environment.execute, pool, config.tool_seconds)
            requests = [RolloutRequest(task, seed) for seed, task in enumerate(tasks)]
            began = time.monotonic()
            episodes = rollout(
                policy, requests, execute, replace(sampling, slots=len(tasks))
            )
            return episodes, time.monotonic() - began

    slow_batch, slow_seconds = sample_slowly(batches=1)
    lesson.figure(
        figures.batch_chart(slow_batch),
        "The same tasks, with a tool that really takes its time.",
    )
    return sample_slowly, slow_batch, slow_seconds


@app.cell(hide_code=True)
def _(config, run, slow_batch):
    _calls = fmean(episode.tool_calls for episode in slow_batch)
    _slow, _fast = (
        max(episode.seconds for episode in batch) for batch in (slow_batch, run.batches[0])
    )
    _mean = fmean(episode.seconds for episode in slow_batch)
    lesson.reveal(f"""
    {_slow:.2f} s: {_slow / (_calls * config.tool_seconds):.1f} times what {_calls:.1f} calls take on average, and {_slow / _fast:.1f} times the
    batch with the instant tool. A batch takes as long as the *slowest* of its {len(slow_batch)} episodes, here {_slow / _mean:.1f} times as long as
    their mean: {1 - _mean / _slow:.0%} of the slots' time went in waiting for it. Add episodes to a batch, and its slowest can only become slower.
    """)
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
    lesson.predict(
        "Generating and training now run side by side, on hardware of their own, each with one batch at a time. At most how much faster can the loop get?",
        "at most twice as fast",
        "as fast as the hardware allows",
        "it depends on the number of steps",
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    Two things take a generator's time, and more hardware helps against one of them only. Its own *work* is shared when a batch is shared
    among several generators. The *slowest* episode is not: it makes its calls one after the other, wherever it runs. A batch that waits for
    it takes as long with four generators as with one.
    """)
    return


@app.function
def one_batch_at_a_time(work, slowest, train, pull, generators=1):
    """The least seconds for a step if ``generators`` share each batch, and begin with the next one when it is complete."""
    return max(train, max(work / generators, slowest) + pull)


@app.function
def batches_overlap(work, slowest, train, pull, max_lag, generators=1):
    """The least seconds for a step if a generator begins with another batch while episodes of the last one wait for tools.

    Each batch makes the round trip of generating, training and pulling, and at most ``max_lag`` + 1 of them are on their way.
    """
    round_trip = max(work / generators, slowest) + train + pull
    return max(train, work / generators + pull, round_trip / (max_lag + 1))


@app.function
def enough_for_the_trainer(work, slowest, train, pull):
    """The least (generators, max_lag) with which the trainer is never idle, or None: pulling alone takes longer than a step."""
    if train <= pull:
        return None
    generators = math.ceil(work / (train - pull))
    round_trip = max(work / generators, slowest) + train + pull
    return generators, math.ceil(round_trip / train) - 1


@app.cell
def _(environment, policy, run, sampling, seconds, slow_seconds):
    # The slowest episode of the first batch again, with a generator to itself.
    _slowest = max(run.batches[0], key=lambda episode: episode.seconds)
    _began = time.monotonic()
    rollout(
        policy,
        [RolloutRequest(_slowest.task, _slowest.seed)],
        environment.execute,
        sampling,
    )
    phases = {
        tool: {
            "work": seconds["generate"],
            "slowest": slowest,
            "train": seconds["train"],
            "pull": seconds["pull"],
        }
        for tool, slowest in (
            ("instant", time.monotonic() - _began),
            ("slow", slow_seconds),
        )
    }
    in_turns = {
        tool: max(found["work"], found["slowest"]) + found["train"] + found["pull"]
        for tool, found in phases.items()
    }
    return in_turns, phases


@app.cell(hide_code=True)
def _(in_turns, phases):
    lesson.table(
        "Seconds for a step at best, and how much faster that is than in turns",
        [{"": "in turns"} | {f"{tool} tool": f"{in_turns[tool]:.2f} s" for tool in phases}]
        + [
            {"": name}
            | {
                f"{tool} tool": f"{pace:.2f} s ({in_turns[tool] / pace:.1f}×)"
                for tool, found in phases.items()
                if (pace := step(**found))
            }
            for name, step in (
                ("one batch at a time", one_batch_at_a_time),
                (
                    "one batch at a time, 4 generators share it",
                    lambda **found: one_batch_at_a_time(**found, generators=4),
                ),
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
    return


@app.cell
def _(sample_slowly, slow_seconds):
    _, four_seconds = sample_slowly(batches=4)
    lesson.md(
        f"Do waits overlap? Measured with the slow tool: one batch alone took {slow_seconds:.2f} s; four begun together took {four_seconds:.2f} s, "
        f"{four_seconds / 4:.2f} s each."
    )
    return (four_seconds,)


@app.cell(hide_code=True)
def _(four_seconds, in_turns, phases, slow_seconds):
    _one = {
        tool: in_turns[tool] / one_batch_at_a_time(**found)
        for tool, found in phases.items()
    }
    _enough = enough_for_the_trainer(**phases["slow"])
    _idle_no_more = (
        f"With the slow tool the trainer is never idle from {_enough[0]} generator{'s' * (_enough[0] > 1)} and `max_lag` {_enough[1]} on. From there only a faster trainer helps."
        if _enough
        else "Here a pull takes longer than a training step, so the weights set the pace, and no number of generators keeps the trainer busy."
    )
    lesson.reveal(f"""
    At most twice, when both take equally long: (g + t) / max(g, t) ≤ 2. Here the bound is {_one["instant"]:.2f} with the instant tool and
    {_one["slow"]:.2f} with the slow one.

    With more than one batch on its way that bound does not hold. A generator that waits for a tool has nothing to do, and may as well begin
    another batch: the waits of both pass at the same time. Measured above, {4 * slow_seconds / four_seconds:.1f} batches with the slow tool came out in the time
    of one. What bounds the loop then is its lag: `max_lag` + 1 batches can be on their way, so it is at most `max_lag` + 1 times as fast.
    {_idle_no_more} All these are bounds; notebook 08 measures what is reached.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 4: from a sum to a maximum (5 minutes)

    Complete `speed_up` for `steps` training steps, one batch at a time on either side, with no variance and no bound on staleness. In turns, a
    step takes `generate + train`. Side by side, the first batch has to be generated before training can begin, the last one has to be trained after generation has ended,
    and in between the slower of the two sets the pace. Return the time in turns over the time side by side.
    """)
    return


@app.function
def speed_up(generate, train, steps):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(speed_up, check_speed_up, speed_up_solution)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Its price

    A batch that was generated while the trainer took a step comes from weights that are one version old by the time it is used: its *lag*
    is 1. The gradient is that of a policy which no longer exists. How different is it? Before the loop above began, one more batch was
    sampled with version 0 and put aside: nothing was ever trained on it. Below it is scored under each later version. The ratio compares the
    probability of a sampled token under that version with the probability it was sampled with; the ratio of an episode is the product of
    its tokens'. Effective sample size: weighted by their ratios, 1,000 stale tokens may tell you only as much as 600 fresh ones.
    """)
    return


@app.cell
def _(run):
    def padded(rows):
        rows = [torch.tensor(row, dtype=torch.float32) for row in rows]
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)

    own = padded([episode.sampled for episode in run.untouched])
    behaviour = padded([episode.logprobs for episode in run.untouched])
    price = [
        mismatch(logp, behaviour, own)
        | {"episodes": effective_sample_size(episode_ratios(logp, behaviour, own))}
        for logp in map(padded, run.rescored)
    ]
    return (price,)


@app.cell(hide_code=True)
def _(price):
    lesson.table(
        "A batch of version 0 that was never trained on, under later weights",
        [
            {
                "lag": lag,
                "largest change of a log-prob": f"{row['max_logp_difference']:.5f}",
                "largest ratio of a token": f"{row['ratio_max']:.2f}",
                "effective sample size, tokens": f"{row['effective_sample_size']:.1%}",
                "effective sample size, episodes": f"{row['episodes']:.1%}",
            }
            for lag, row in enumerate(price)
        ],
    )
    return


@app.cell(hide_code=True)
def _(price):
    _fresh, _old = price[0], price[-1]
    _agree = (
        "the trainer computes the log-probs that the sampler recorded, up to rounding"
        if _fresh["max_logp_difference"] < 1e-3
        else "trainer and sampler differ by more than rounding in float32, which has to be looked into"
    )
    lesson.md(f"""
    At lag 0 {_agree} ({_fresh["max_logp_difference"]:.0e}): token in, token out. At lag {len(price) - 1}, 1,000 tokens are worth
    {1000 * _old["effective_sample_size"]:.0f} fresh ones, and some token is {math.exp(_old["max_logp_difference"]):,.1f} times more or less likely
    than when it was sampled. Over an episode such ratios multiply: counted in whole episodes, {_old["episodes"]:.0%} of the batch is left.

    So age is bounded. `max_lag` is the one dial of this system: 0 is the loop above, 1 lets one batch be generated ahead, and beyond that the
    loss corrects for what the data no longer say (clipping, truncated importance sampling). Notebook 08 shows what each costs in accuracy.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Why actors

    Taken apart, the loop is a few roles that own some state, do one thing at a time and send each other messages: the definition of an
    actor. What do they send each other, and how large is it?
    """)
    return


@app.cell
def _(learner, run):
    payload = {
        "tasks": len(pickle.dumps([episode.task for episode in run.batches[0]])),
        "episodes": len(pickle.dumps(run.batches[0])),
        "weights": sum(
            p.numel() * p.element_size() for p in learner.policy.model.parameters()
        ),
    }
    payload["weights of 8 billion parameters in bfloat16 (computed)"] = 2 * 8 * 10**9
    return (payload,)


@app.cell(hide_code=True)
def _(payload):
    lesson.table(
        "What travels in one training step",
        [{"payload": name, "bytes": f"{size:,}"} for name, size in payload.items()],
    )
    return


@app.cell(hide_code=True)
def _(payload):
    lesson.md(
        f"Here the weights are {payload['weights'] / payload['episodes']:,.0f} times as large as a batch of episodes. Those of 8 billion parameters are "
        f"{payload['weights of 8 billion parameters in bfloat16 (computed)'] / payload['episodes']:,.0f} times as large as the same batch, which is why notebook 07 gives the weights a road of their own."
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    | role | its state | waits for | how it grows |
    |---|---|---|---|
    | dataset | the next task | nobody | one is enough |
    | generator | a copy of the weights, a cache | its own longest episodes | more replicas |
    | tools, reward | none, or a sandbox | somebody else | many cheap replicas |
    | replay buffer | episodes and their age | generators, trainer | one is enough |
    | trainer | weights, optimizer | a whole batch | more ranks for one model |

    From this follows what the system has to offer, and where the course builds it: messages to one or to many, a failure that
    is noticed and repaired without stopping the others, pools that hide how many replicas there are (both 06), bulk data beside the
    messages (07), and a loop that holds all of it together (08).
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Try it before you build it

    Below, the same run twice: in turns, and side by side with a bound on the age of what is trained on. Both train on the same number of
    episodes with the same latencies, drawn once, and both obey the replay buffer that the package trains with. *This machine* has the mean
    times that you have just measured, and lets groups differ as much as yours did. A simulated generator samples one group at a time.
    Three questions to settle with the sliders:

    1. With no variance and one generator, what is the largest speed-up, and where is it?
    2. Make one group eight times slower than the others. Which lag hides it?
    3. When does another generator no longer help?
    """)
    return


@app.cell
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
    simulator = TimelineSimulator(
        measured=this_machine, static="execute" in mo.cli_args(), scenario="this machine"
    )
    simulator
    return


@app.cell(hide_code=True)
def _():
    lesson.recap(
        "In RL the model writes its own next batch, so generation, checking and training share one loop and want different machines.",
        "A verifiable reward is only as good as its parser: pay for the whole answer in the right form, and never for a tool's words.",
        "The trainer learns from the very tokens that were sampled; what a tool injected is context and masked.",
        "A synchronous step is the sum of its phases, and generation takes as long as the slowest episode of the batch.",
        "Side by side a step takes as long as the longer phase: with one generator and one trainer at most twice as fast with one batch at a time on either side, and at most `max_lag` + 1 times where batches overlap.",
        "The price is data from older weights: `max_lag` bounds their age.",
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


@app.function(hide_code=True)
def math_reward_solution(text, answer):
    found = re.findall(r"^#### (-?\d[\d,]*)$", text, re.MULTILINE)
    return float(bool(found) and int(found[-1].replace(",", "")) == answer)


@app.function(hide_code=True)
def check_mean_logprob(mean_logprob):
    exercise.expect(mean_logprob, [-1.0, -3.0], [True, True], result=-2.0)
    exercise.expect(
        mean_logprob, [-1.0, 0.0, 0.0, -3.0], [True, False, False, True], result=-2.0
    )
    exercise.expect(mean_logprob, [-0.5, -9.0], [True, False], result=-0.5)


@app.function(hide_code=True)
def mean_logprob_solution(logprobs, sampled):
    chosen = [logprob for logprob, own in zip(logprobs, sampled, strict=True) if own]
    return sum(chosen) / len(chosen)


@app.function(hide_code=True)
def check_idle_share(idle_share):
    exercise.expect(idle_share, [2.0, 2.0, 2.0], result=0.0)
    exercise.expect(idle_share, [1.0, 3.0], result=1 / 3)
    exercise.expect(idle_share, [1.0, 1.0, 1.0, 5.0], result=0.6)


@app.function(hide_code=True)
def idle_share_solution(seconds):
    return 1 - sum(seconds) / (len(seconds) * max(seconds))


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
