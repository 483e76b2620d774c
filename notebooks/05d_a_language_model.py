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
    app_title="A language model: your loop, and a narrow path",
    css_file="../zorplex_rl/course/lesson/lesson.css",
)

with app.setup(hide_code=True):
    from pathlib import Path
    from types import SimpleNamespace

    import marimo as mo

    from zorplex_rl.course.figures import drawing_of
    from zorplex_rl.course.kept_file import functions_of, kept, load_notebook
    from zorplex_rl.course.lesson import exercise, lesson
    from zorplex_rl.course.lesson.later import later
    from zorplex_rl.course.widgets import LiveCurve
    from zorplex_rl.task.environment import Zorplex

    # The page shows its top before these are there: torch takes seconds.
    nb05 = later("zorplex_rl.course.nb05")
    nb05b = later("zorplex_rl.course.nb05b")
    nb05d = later("zorplex_rl.course.nb05d")
    rollout = later("zorplex_rl.policy.rollout")
    toy_policies = later("zorplex_rl.course.toy_policies")


@app.cell(hide_code=True)
def _():
    lesson.header(
        __file__,
        minutes=23,
        hardware="two CPU cores, no GPU; a network only to fetch SmolLM2",
        goals=[
            "train a real language model with the loop that you wrote in 05b",
            "say what your model learned, and what did not carry over",
            "write a layer with a narrow path beside its weights (LoRA)",
            "say how much smaller a version of the weights becomes",
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    real_card = nb05b.RecordedCard(
        "What SmolLM2 writes, step by step",
        "smollm2",
        rollout.Sampling(max_tokens=48, max_turns=48, slots=32),
        lines=2,
    )
    real_card
    return (real_card,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    SmolLM2 has 135 million parameters, and nobody taught it this task. At step 0, in the second text, it writes `EXPM` for `LOOKUP`. No tool has that name, so
    none answers, and the model writes a number itself: there the arrow stands in a *solid* box. Move the slider. When does that stop?

    The policy of 05b was made for this task. Does the same loop teach a language model that was not?
    """)
    return


@app.cell(hide_code=True)
def _():
    _kept = functions_of(kept(__file__, "my_rl.py"), "sample_episode", "policy_gradient")
    code = [*_kept.values()]
    loop = load_notebook(Path(__file__).with_name("05b_write_the_loop.py"))
    sampler, loss_of, whose = nb05d.readers_functions(loop, _kept)
    mo.vstack(
        [
            lesson.md(f"""
    ## The loop of 05b

    `sample_episode` and `policy_gradient` are {whose}. (A button in 05b writes yours into `my_rl.py`, and then they train here.) Besides the settings below, three things differ from 05b:

    - The prompt shows two worked examples before the question. Without them no answer is right, so the 1.0 for a right one is never paid.
    - Each task asks for the number of one word.
    - Around the model is a {lesson.term("key-value cache")}: it keeps what each layer has computed for the text so far, so only the newest token has to be
      read. With 05b's model, reading everything again was quick enough. And each answer of a batch is written in a
      thread of its own: once all threads wait for their next token, one pass of the model serves them all.
    """),
            lesson.folded(
                "The training of 05b, as it runs here",
                f"```python\n{exercise.solution_source('train', loop.train)}\n```",
            ),
        ]
    )
    return code, loop, loss_of, sampler, whose


@app.cell
def settings():
    full = SimpleNamespace(
        seed=0,
        kind="simple",  # look up one word
        prompts=2,
        samples=8,
        steps=3,
        learning_rate=5e-5,
        max_tokens=26,  # in training, where right answers have at most 22; the exam allows 48
        exam=16,  # tasks of each kind
    )
    return (full,)


@app.cell(hide_code=True)
def _(full):
    # Small in a build that nobody reads.
    config = lesson.brief(full, prompts=1, samples=4, steps=1, exam=2)
    return (config,)


@app.cell
def _(loop, loss_of):
    def train(policy, config, sampler, on_step):
        """Train on tasks behind two worked examples."""
        environment = Zorplex(config.seed, shots=2)
        limits = rollout.Sampling(max_tokens=config.max_tokens)
        loop.train(policy, environment, limits, config, sampler, loss_of, on_step)

    return (train,)


@app.cell(hide_code=True)
def _(config):
    ask_real = lesson.predict(
        "It trains on look-ups of one word; the exam also asks for sums of two. What will it do better?",
        "look up one word",
        "add two words",
        "both",
        f"neither: no difference that {config.exam} answers could show",
    )
    ask_real
    return (ask_real,)


@app.cell(hide_code=True)
def _(code, config):
    real = nb05.real_model()
    taught = lesson.Kept(__file__, "smollm2_taught", settings=vars(config), code=code)
    start_real = lesson.start_button(
        f"Train SmolLM2 for {config.steps} steps, with this loop", seconds=190
    )
    curve = LiveCurve(config.steps, "SmolLM2: right answers in each batch")
    # On a built page the curve would answer the predictions, so there it comes last.
    _live = [start_real] if lesson.unattended() else [start_real, curve]
    mo.vstack(_live) if real else lesson.md(
        "SmolLM2 is not on this machine, so nothing below was computed. Notebook 05 has a button that fetches it."
    )
    return curve, real, start_real, taught


@app.cell(hide_code=True)
def _(config, curve, real, real_card, sampler, start_real, taught, train):
    if real:
        lesson.wait_for(start_real, unless=taught)

    def _teach():
        curve.clear()
        _texts = 4 * config.exam + config.steps * config.prompts * config.samples
        with lesson.counting(_texts, "texts") as one_more:
            marks = nb05d.teach(real, config, train, sampler, curve, real_card, one_more)
        return marks, real_card.texts, curve.series

    marks = []
    if real:
        marks, _texts, curve.series = taught.get(_teach)
        real_card.show(_texts, config.steps)
    real_card.seal()
    lesson.md(taught.note if real else "")
    return (marks,)


@app.cell(hide_code=True)
def _(ask_real, marks, real_card, whose):
    _clean = [
        str(step)
        for step, texts in enumerate(real_card.texts)
        if not nb05d.invents(texts[1])
    ]
    right, why, shows = nb05d.learned(marks)
    lesson.reveal(
        ask_real,
        right=right,
        why=f"""
    {why}

    The functions were {whose}, and the model 150 times as large as that of 05b. The card at the top now shows these steps.
    In its second text, no result is invented at these steps: {", ".join(_clean) or "none"}.
    """,
        shows=shows,
    )
    return


@app.cell(hide_code=True)
def _():
    mo.vstack(
        [
            lesson.md(f"""
    ## Which weights moved?

    All, a little. A step must keep a gradient and two more numbers for each, and a version of the weights is as large as the model. Do so many have to move?

    {lesson.term("LoRA")} leaves the weight `W` of a layer as it is, and trains a narrow path beside it. `A` maps the input to a few
    numbers, and `B` maps these to an output. How many numbers these are is called the *rank*. `B` begins as zeros, so at first nothing changes.
    """),
            lesson.figure(
                drawing_of("narrow_path.svg"),
                "A layer with its path. Only what is green is trained.",
            ),
            mo.md("### Exercise 1: a narrow path"),
        ]
    )
    return


@app.function
def adapted(x, W, A, B, scale):
    """The output of a layer with a narrow path beside it: W x + scale · B (A x).

    x is [..., in], W [out, in], A [rank, in], B [out, rank], the output
    [..., out]; scale is a fixed number.
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: adapted,
        Solutions,
        level="warm-up",
        minutes=3,
        hints=(
            "Which shape has `x @ W.T`? And which has `x @ A.T`?",
            "The narrow path is `(x @ A.T) @ B.T`, times `scale`.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    layer, whose_layer = exercise.running(lambda: adapted, Solutions)
    return layer, whose_layer


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 2: how many numbers?

    Count what is trained if each layer of a model has a path.
    """)
    return


@app.function
def path_size(shapes, rank):
    """How many numbers all paths have, beside layers with these weights' shapes.

    >>> path_size([(3, 5)], rank=1)
    8
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: path_size,
        Solutions,
        level="warm-up",
        minutes=3,
        hints=(
            "Which shapes have `A` and `B` beside a weight [out, in]?",
            "`A` has rank · in numbers, `B` out · rank. Add up over the layers.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    count_path, _ = exercise.running(lambda: path_size, Solutions)
    return (count_path,)


@app.cell
def _(config):
    narrow_config = SimpleNamespace(**vars(config) | {"learning_rate": 5e-4, "rank": 16})
    return (narrow_config,)


@app.cell(hide_code=True)
def _(count_path, narrow_config):
    answers = narrow_config.prompts * narrow_config.samples
    ask_narrow = lesson.predict(
        f"The same tasks and steps with paths of rank {narrow_config.rank} alone. What will become of the share of right answers, from the first batch to the last?",
        "it falls clearly",
        f"no difference that {answers} answers could show",
        "it rises clearly",
    )
    whole, path = nb05d.SMOLLM2.parameters, count_path(nb05d.LAYERS, narrow_config.rank)
    mo.vstack(
        [
            lesson.md(f"""
    SmolLM2 has {whole / 1e6:.1f} million weights. Paths of rank {narrow_config.rank} beside its layers have {path / 1e6:.1f} million numbers, one in
    {whole / path:.0f}. A version of them takes {4 * path / 1e6:.0f} MB, not {4 * whole / 1e6:.0f}. Narrow paths learn best at about ten times the rate of all weights.
    """),
            ask_narrow,
        ]
    )
    return answers, ask_narrow, path, whole


@app.cell(hide_code=True)
def _(code, layer, narrow_config, real):
    _code = [*code, exercise.solution_source("adapted", layer)]
    narrow = lesson.Kept(
        __file__, "smollm2_narrow", settings=vars(narrow_config), code=_code
    )
    start_narrow = lesson.start_button("Train SmolLM2 again, with your layer", seconds=90)
    start_narrow if real else None
    return narrow, start_narrow


@app.cell(hide_code=True)
def _(
    answers,
    curve,
    layer,
    narrow,
    narrow_config,
    real,
    sampler,
    start_narrow,
    train,
):
    if real:
        lesson.wait_for(start_narrow, unless=narrow)

    def _teach():
        with lesson.counting(narrow_config.steps * answers, "texts") as one_more:
            return nb05d.teach_narrow(real, narrow_config, train, sampler, layer, one_more)

    shares = narrow.get(_teach) if real else []
    for _step, _share in enumerate(shares, 1):
        curve.add("only narrow paths", _step, _share)
    lesson.md(narrow.note if real else "")
    return (shares,)


@app.cell(hide_code=True)
def _(answers, ask_narrow, curve, marks, shares, whose_layer):
    lesson.needs(lambda: (marks, shares))
    _right, _why = nb05d.narrow_learned(curve, shares, answers)
    lesson.reveal(
        ask_narrow,
        right=_right,
        why=f"""
    {_why}
    Answers to one task resemble each other, so the true limit is higher, and this is one seed, by {whose_layer}.

    A batch is answered before its step. So the last one shows what all steps but the last have done.

    *LoRA without regret* (Schulman et al. 2025) has a reason: a reward says about one bit an episode, so few numbers can hold it.
    How few? Set `rank` to 1 above, predict, and train again. [TinyLoRA](https://arxiv.org/abs/2602.04118) reports gains from 13 numbers, on a far larger model.
    """,
        shows=[curve] if shares else [],
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.recap(
        2,
        "The same loop teaches a language model, if it is right now and then.",
        "What it learned on look-ups did not carry over to sums, which were not in the training.",
        "LoRA trains a narrow path beside frozen weights, so a version of the weights is small enough for a message.",
    )
    return


@app.cell(hide_code=True)
def _(narrow_config, path, whole):
    lesson.headline(
        f"A version of SmolLM2's weights takes {4 * whole / 1e6:.0f} MB, and {4 * path / 1e6:.0f} MB if only narrow paths of rank {narrow_config.rank} are trained."
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.links(__file__)
    return


@app.class_definition(hide_code=True)
class Solutions:
    """Check the exercises of this page, and solve them."""

    def check_adapted(adapted):
        toy_policies.check_adapted(adapted, Solutions.adapted)

    def adapted(x, W, A, B, scale):
        return x @ W.T + scale * (x @ A.T @ B.T)

    def check_path_size(path_size):
        nb05d.check_path_size(path_size, Solutions.path_size)

    def path_size(shapes, rank):
        return sum(rank * (rows + columns) for rows, columns in shapes)


if __name__ == "__main__":
    app.run()
