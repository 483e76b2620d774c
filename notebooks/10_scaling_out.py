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
    app_title="Does it fit, and who gets the GPUs",
    css_file="../zorplex_rl/course/lesson/lesson.css",
)

with app.setup(hide_code=True):
    import math
    from dataclasses import replace
    from functools import partial
    from types import SimpleNamespace

    import marimo as mo
    import torch

    from zorplex_rl.course import nb10
    from zorplex_rl.course.figures import bars
    from zorplex_rl.course.lesson import exercise, lesson
    from zorplex_rl.course.nb10_gpus import (
        BANDWIDTH_SHARE,
        COMPUTE_SHARE,
        H100,
        MEMORY_SHARE,
        MODELS,
    )
    from zorplex_rl.course.widgets import WhatIf
    from zorplex_rl.course.widgets.what_if import Knob
    from zorplex_rl.sizing.memory import (
        BatchShape,
        Workload,
        available_memory,
        generator_memory,
        trainer_memory,
    )
    from zorplex_rl.sizing.model_shape import ModelShape

    torch.set_num_threads(1)


@app.cell(hide_code=True)
def _():
    lesson.header(
        __file__,
        minutes=50,
        hardware="two CPU cores, 2 GB of free memory, no network",
        goals=[
            "say on paper whether a model can be trained on the GPUs that you have",
            "check such a budget against a real process, and say why the two differ",
            "choose slots, adapters and a ZeRO stage that fit",
            "divide GPUs between generators and a trainer",
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Before you queue

    You wait a night for eight GPUs. In the morning the job starts, loads the model, takes half a step, and ends: out of memory. You make the batch smaller, and
    queue again. All of it could have been known the evening before, with ten lines of arithmetic.

    The idea: a trainer needs memory for two reasons, and they have nothing to do with each other. Some bytes belong to every *parameter* of the
    model, whatever you feed it. The others belong to every *token* of a batch. We begin with the parameters.

    ## What a parameter takes

    A weight is not alone. Training keeps up to four things beside each other for every parameter:

    | part | what for | bytes |
    |---|---|---|
    | `weights` | the model computes with them | `e`: 4 in float32, 2 in 16 bits |
    | `masters`: **master weights** | in 16 bits a small update is rounded away, so it is added to a float32 copy | 4 if `e` is 2, else 0 |
    | `gradients` | a step's batch is computed in parts, *micro-batches*; their gradients are added up, in float32 | 4 |
    | `moments` | AdamW's two running means | 8 |

    In float32 that is 4 + 4 + 8 = 16 bytes for a parameter, and in 16 bits 2 + 4 + 4 + 8 = 18. (Notebook 05 says 16 for 16 bits, because some trainers keep gradients in 16 bits, too.)

    With several GPUs each has a process of its own, a *rank*, which works on its own part of the data. In the simplest case each rank holds all four parts: on eight GPUs the same numbers eight times.
    That is waste, so **ZeRO** divides them over the `ranks`, in four stages:

    | stage | divides |
    |---|---|
    | 0 | nothing |
    | 1 | `masters` and `moments` |
    | 2 | also `gradients` |
    | 3, which is **FSDP** (notebook 04) | also `weights` |

    ### Exercise 1: the bytes of the parameters

    Write `static_parts`: a dictionary of the bytes of these four parts on *one* rank.
    """)
    return


@app.function
def static_parts(parameters, e, ranks, stage):
    """Return the bytes of each part on one of `ranks` ranks at ZeRO `stage`.

    static_parts(1000, 2, 4, 1) is
    {"weights": 2000, "masters": 1000, "gradients": 4000, "moments": 2000}
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: static_parts,
        Solutions,
        level="core",
        minutes=8,
        lines=7,
        hints=(
            "Make all parts as if nothing were divided. Which of them does stage 1 divide, which stage 2, which stage 3?",
            """Take the stages one after another:

            ```python
            for stage_parts in [["masters", "moments"], ["gradients"], ["weights"]][:stage]:
                ...  # divide each of these by `ranks`
            ```""",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    static, whose_budget = exercise.running(lambda: static_parts, Solutions)
    _stages = {
        f"stage {stage}": {
            part: float(size) for part, size in static(7e9, 2, 8, stage).items()
        }
        for stage in range(4)
    }
    lesson.figure(
        bars.parts_chart(_stages, "What ZeRO leaves on a GPU", {}, H100.memory, "GB"),
        f"7 billion parameters in 16 bits on 8 GPUs: what each GPU holds, by {whose_budget}. Dashed: the {H100.memory / 1e9:.0f} GB of an H100.",
    )
    return static, whose_budget


@app.cell(hide_code=True)
def _():
    _text = mo.md("""
    ## What a token takes

    With stage 0 the GPU is full before it has seen a token. And the tokens want memory, too. The backward pass needs what the forward pass computed, so autograd keeps it: these are the **activations**. For a
    token they are kept in every layer, and no ZeRO stage divides them, since each rank has tokens of its own. Most of them are four tensors of the MLP, which is several times as wide as the model.
    """)
    _table = lesson.folded(
        "What one layer keeps of each token",
        """
    | what | numbers | bytes each |
    |---|---|---|
    | two norms: input and result of each | 4 · `hidden` | 4, always float32 |
    | attention: its input | `hidden` | `e` |
    | attention: queries; its result; a copy of the result | 3 · `attention` | `e` |
    | attention: keys; values | 2 · `keys` | `e` |
    | MLP: its input | `hidden` | `e` |
    | gate; up; the gate's activation; their product | 4 · `intermediate` | `e` |

    `hidden` is the width of the model, and `intermediate` that of its MLP. `attention` is the width of all query heads together, `keys` that of all key heads, which are fewer. Why three and two? The kernel that computes attention keeps
    what it was given, queries, keys and values, and its result. The result lies head by head, and the next matrix needs it token by token: that is the copy, and keys have none. No matrix of tokens × tokens
    is kept, because a kernel like FlashAttention computes it again. The last norm, before the logits, adds 8 · `hidden` bytes.
    """,
    )
    mo.vstack([_text, _table])
    return


@app.function(hide_code=True)
def activation_bytes(shape, tokens, e):
    """Bytes that autograd keeps of `tokens` tokens for the backward pass."""
    norms = 4 * 4 * shape.hidden
    attention = e * (shape.hidden + 3 * shape.attention + 2 * shape.keys)
    mlp = e * (shape.hidden + 4 * shape.intermediate)
    ends = 8 * shape.hidden
    return tokens * (shape.layers * (norms + attention + mlp) + ends)


@app.cell(hide_code=True)
def _():
    _seven = MODELS["7B"]
    lesson.md(f"""
    For Qwen2.5-7B that is {activation_bytes(_seven, 1, 2) / 1e6:.1f} MB for each token, {8 * _seven.layers * _seven.intermediate / activation_bytes(_seven, 1, 2):.0%} of it in those four.

    The activations of a micro-batch are freed before the next one begins. So only the
    *largest micro-batch* counts, and you may make it small. What you cannot make smaller is one answer.

    ### Exercise 2: the logits

    At the end of the model each token of a response becomes a row of logits: one number for every entry of the vocabulary. The loss is computed in float32, and three tensors of that size are there at
    once: the log-probabilities, the probabilities, and their product, which the entropy needs. How many bytes are these?
    """)
    return


@app.function
def logit_bytes(tokens, vocabulary):
    """Return bytes. logit_bytes(10, 1000) is 120000."""
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: logit_bytes,
        Solutions,
        level="warm-up",
        minutes=2,
        hints=(
            "How many numbers does one such tensor hold?",
            "`tokens * vocabulary` numbers, of 4 bytes each, in 3 tensors.",
        ),
    )
    return


@app.cell(hide_code=True)
def _(static):
    logits, _whose = exercise.running(lambda: logit_bytes, Solutions)

    def trainer_budget(shape, batch, e, ranks, stage):
        """All parts: those of the parameters, and those of the largest micro-batch."""
        return dict(static(shape.parameters, e, ranks, stage)) | {
            "activations": activation_bytes(shape, batch.tokens, e),
            "logits": logits(batch.responses * batch.response, shape.vocabulary),
        }

    _seven = MODELS["7B"]
    lesson.md(f"""
    One answer of 2,048 tokens of Qwen2.5-7B takes {float(logits(2048, _seven.vocabulary)) / 1e9:.1f} GB of logits, by {_whose}, and {activation_bytes(_seven, 2048, 2) / 1e9:.1f} GB of activations. Because of
    the logits some trainers compute the loss in pieces of the vocabulary or of the tokens. From here on the budget is the sum of all six parts.
    """)
    return (trainer_budget,)


@app.cell(hide_code=True)
def settings():
    config = SimpleNamespace(  # of a small model with random weights
        shape=ModelShape(
            layers=8, hidden=256, heads=4, kv_heads=2, intermediate=1024, vocabulary=4000
        ),
        work=Workload(prompt=100, response=64, prompts=4, group_size=4, evaluated=0),
        sampled=(4, 8),  # the generator answers 4 prompts, each 8 times
        few_slots=4,
        budget=83_000_000,  # bytes that the generator may take
    )
    return (config,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Against a real process

    Is that how a real trainer behaves? A process trains a model for two steps, and the operating system says how much memory it took at
    its highest. Everything is float32, on one rank, so `e` is 4 and the stage is 0. The sum by hand is that of the largest micro-batch. Two copies of the weights are added: they lie in the ring of notebook
    07, for the generators. Afterwards two generators sample, for a later section.
    """)
    return


@app.cell(hide_code=True)
def _(config, trainer_budget):
    def on_this_machine(work):
        largest = max(work.micro_batches(), key=lambda batch: batch.tokens)
        parts = trainer_budget(config.shape, largest, e=4, ranks=1, stage=0)
        return parts | {"weight ring": 2 * 4 * config.shape.parameters}

    return (on_this_machine,)


@app.cell(hide_code=True)
def _():
    ask_measured = lesson.predict(
        "You add up all parts of the budget for many small trainers, and compare each sum with what its process really took. How far off is such a sum?",
        "hardly: these parts are all there is",
        "it is always too large: some parts are never there at the same time",
        "it is always too small: a process needs memory besides",
        "now too large, now too small",
    )
    ask_measured
    return (ask_measured,)


@app.cell(hide_code=True)
def _(config):
    def fits(slots):
        """Whether a generator with `slots` rows stays within the budget, with 10 % to spare."""
        work = replace(config.work, slots=slots, tasks=config.sampled[0], group_size=64)
        return generator_memory(config.shape, work).total <= 0.9 * config.budget

    many_slots = max(slots for slots in range(1, 65) if fits(slots))
    _tasks, _each = config.sampled
    _sampling = replace(config.work, tasks=_tasks, group_size=_each)
    sampling_cases = [
        ("generator", replace(_sampling, slots=slots))
        for slots in (config.few_slots, many_slots)
    ]
    return many_slots, sampling_cases


@app.cell(hide_code=True)
def _():
    start_measuring = lesson.start_button("Train, then sample twice", seconds=30)
    start_measuring
    return (start_measuring,)


@app.cell(hide_code=True)
def _(config, sampling_cases, start_measuring):
    lesson.wait_for(start_measuring)
    _cases = [("trainer", config.work), *sampling_cases]
    with lesson.counting(None, "a trainer, then two generators"):
        trained, *sampled = nb10.measured_cases(config, _cases)
    return sampled, trained


@app.cell(hide_code=True)
def _(
    ask_measured,
    config,
    on_this_machine,
    trained,
    whose_budget,
):
    lesson.needs(lambda: trained)
    _sized = trainer_memory(config.shape, trained.work)
    _hand = on_this_machine(trained.work)
    _sum = sum(_hand.values())
    _rows = "".join(
        f"\n        | {part} | {_hand.get(part, 0) / 1e6:,.0f} | {_sized.parts.get(part, 0) / 1e6:,.0f} |"
        for part in ("gradients", "activations", "reserve")
    )
    _cancel = abs(trained.peak - _sum) < abs(trained.peak - _sized.total)
    lesson.reveal(
        ask_measured,
        right=3,
        why=f"""
        For nine small float32 trainers such a sum was 0.55 to 1.12 times what was measured, and the package's `memory.py` 0.98 to 1.10 times (`benchmarks/LOG.md`, *Does it fit?*). It adds up each phase of a step for itself.
        In this run most is needed in the phase *{_sized.highest}*, and the two differ in three parts:

        | MB | the sum, by {whose_budget} | `memory.py` |
        |---|---|---|{_rows}
        | all parts | {_sum / 1e6:,.0f} | {_sized.total / 1e6:,.0f} |
        | measured | {trained.peak / 1e6:,.0f} | {trained.peak / 1e6:,.0f} |

        - This step has one micro-batch. Its *gradients* are made in the backward pass only, so in the forward pass none are there.
        - Answers to one question share its prompt. `memory.py` knows that some keys are copied for this, as *activations*.
        - The *reserve* is what processes were measured to take besides: libraries, and freed blocks in which the next tensors do not fit.

        {"Here the sum came closer: what it has too much and what it lacks happen to cancel, because this process needed less than the cautious reserve." if _cancel else "Here `memory.py` came closer."} One process does not show which of the two to trust. For a decision take the larger one, and
        leave a tenth free. `zorplex-rl size` prints what `memory.py` says of a run of yours.
        """,
        shows=[
            lesson.figure(
                bars.parts_chart(
                    {"by hand": _hand, "memory.py": _sized.parts},
                    "A trainer's memory, computed and measured",
                    {"by hand": trained.peak, "memory.py": trained.peak},
                ),
                "Bars: computed; rest is the reserve. Marks: the measured peak of this run's process.",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.folded(
        "How far off are such sums? 33 processes on a CPU, four on a GPU",
        """
        `python benchmarks/sizing.py` compares `memory.py` with 33 processes, and `benchmarks/LOG.md` has the table (*Does it fit?*). On a CPU most are
        within 10%. Those that sample in 16 bits are the worst: each new shape of a product leaves a compiled kernel behind.

        On a GPU nothing of the reserve is counted: neither the driver's own memory, nor what the allocator keeps. This is what an H200 took for SmolLM2 on 2026-11-27 (`.ci/gpu`), beside what `memory.py` said *then*:

        | process | GB computed | GB measured |
        |---|---|---|
        | trainer, bfloat16 | 7.67 | 6.51 |
        | trainer, float32 | 9.41 | 9.16 |
        | generator, bfloat16 | 0.608 | 0.926 |
        | generator, float32 | 1.19 | 1.83 |

        So a trainer took less than was computed, and a small generator half as much again.
        """,
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Train less of it

    With adapters (LoRA, notebook 07) the model is frozen. A frozen parameter takes only its weight: 2 bytes in 16 bits or 4 in float32, instead of 18 or 16. Gradients and moments
    belong to what is trained, and that is only the adapters: few parameters, in float32, of 16 bytes each. (On a CPU, a generator in float32 keeps a second copy of the matrices, with the adapters added.) What a token takes stays, because the backward pass still goes through every layer.

    Here `memory.py` computes. It adds up what is there at the same time, and the reserve.
    """)
    return


@app.function(hide_code=True)
def run_bytes(shape, work, rank):
    """Bytes of a trainer and one generator; `rank` 0 trains all weights."""
    work = replace(work, lora_rank=rank)
    return trainer_memory(shape, work).total + generator_memory(shape, work).total


@app.cell(hide_code=True)
def _(config):
    _room = 0.9 * available_memory()

    def _taken(shape, rank):
        taken = run_bytes(shape, config.work, rank)
        return f"{taken / 1e9:.1f} GB{', too much' * (taken > _room)}"

    lesson.table(
        f"What trains on this machine, with {_room / 1e9:.1f} GB to use: trainer and one generator in float32, 4 prompts of 100 tokens, 4 answers of 64 to each, by memory.py",
        [
            {
                "Qwen2.5": name,
                "all weights": _taken(MODELS[name], 0),
                "`--lora-rank 16`": _taken(MODELS[name], 16),
                "adapters": f"{MODELS[name].trained(16) / 1e6:.0f} million",
            }
            for name in ("0.5B", "1.5B", "3B", "7B")
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## What a generator holds

    A generator keeps no gradients and no moments. But it writes token after token, and each new one looks at the keys and values of
    all earlier ones, in every layer. To compute them again for each token would be slow, so they are kept: the **key-value
    cache**. Each **slot** has room for one row, a text that is being written:

    | part | bytes |
    |---|---|
    | weights | `e` for each parameter |
    | key-value cache | `e` × layers × 2 · `keys` × tokens of a row × slots |
    | logits | `e` × vocabulary × slots |

    `keys` is the width of all heads of keys together, and values are as wide. In **grouped-query attention** several query heads share one head of keys, so `keys` is small, and the cache too. The more slots, the more memory. What do they buy?
    """)
    return


@app.cell(hide_code=True)
def _(config, many_slots):
    ask_slots = lesson.predict(
        f"A generator of the same small model writes {math.prod(config.sampled)} answers, with {config.few_slots} slots and then with {many_slots}, as many as fit into {config.budget / 1e6:,.0f} MB. How much processor time does it need with {many_slots}? (Processor time, because other programs on your machine hardly change it.)",
        "about as much: the same tokens are computed",
        "50% to 90% as much",
        "less than half as much",
    )
    ask_slots
    return (ask_slots,)


@app.cell(hide_code=True)
def _(ask_slots, config, many_slots, sampled):
    _few, _many = sampled
    _slow, _fast = (case.seconds for case in sampled)
    _names = [f"{config.few_slots} slots", f"{many_slots} slots"]
    _computed = [generator_memory(config.shape, case.work).parts for case in sampled]
    lesson.reveal(
        ask_slots,
        right=0 if _fast > 0.9 * _slow else 1 if _fast >= 0.5 * _slow else 2,
        why=f"""
        {_fast:.1f} s in {_many.decode_steps} decode steps, against {_slow:.1f} s in {_few.decode_steps}. A step writes one token in every slot. Much of it costs the same for any number of slots. It starts the same small operations, which count most in a small model. It reads each weight once, which counts most in a large one. So a step takes {1e3 * _fast / _many.decode_steps:.0f} ms with {many_slots} slots, and {1e3 * _slow / _few.decode_steps:.0f} with {config.few_slots}: more, but by far less than the slots.

        By `memory.py`, {many_slots} slots fit into {config.budget / 1e6:,.0f} MB. The process took {_many.peak / 1e6:,.0f} MB, {"within" if _many.peak <= config.budget else "*over*"} this budget. (With few slots a process is so small that a tenth free is not always enough.) The rest in the figure is mostly the *prefill*, in which whole prompts pass through the model at once, and the *reserve*, what a process takes besides.
        """,
        shows=[
            lesson.figure(
                bars.parts_chart(
                    dict(zip(_names, _computed, strict=True)),
                    "A generator's memory",
                    {_names[0]: _few.peak, _names[1]: _many.peak},
                    room=config.budget,
                ),
                "Bars: computed by memory.py. Marks: measured. Dashed: the budget.",
            ),
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.folded(
        "How many rows does a GPU want?",
        "Operations for each byte that is read: that is the **arithmetic intensity**. With few rows the reading decides. "
        f"An [H100]({H100.source}) has {H100.operations / 1e12:.0f} trillion operations and {H100.bandwidth / 1e12:.2f} TB a second, by its data sheet. "
        "In 16 bits a weight is 2 bytes to read, and 2 operations for each row. "
        f"So reading and computing take equally long at {H100.operations / 1e12:.0f} ÷ {H100.bandwidth / 1e12:.2f} = {H100.operations / H100.bandwidth:.0f} rows. "
        "So a generator wants slots, and slots want memory.",
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A model that does not fit

    From here on nothing is measured: the same arithmetic is applied to published models and a published GPU.

    Which stage? Each one sends as much between the GPUs as the one before it, or more ([Rajbhandari et al. 2020](https://arxiv.org/abs/1910.02054)). So take the first stage that fits.

    If the activations of a *single* answer do not fit, no stage helps, because none divides one answer. Tensor parallelism (04b) would, but Zorplex RL divides a model only by FSDP2 ([Sixteen stacks](stacks.html) compares others). Simpler is **activation checkpointing**: keep only the input of each layer, and compute the rest of a layer again
    when the backward pass arrives there. It costs one more forward pass.
    """)
    return


@app.function(hide_code=True)
def checkpointed_bytes(shape, tokens, e):
    inputs = shape.layers * e * shape.hidden * tokens
    one_layer = activation_bytes(replace(shape, layers=1), tokens, e)
    return inputs + one_layer


@app.cell(hide_code=True)
def _(static, trainer_budget):
    one_answer = BatchShape.of([(0, 512 + 2047)], response=2048)
    room = MEMORY_SHARE * H100.memory

    def first_stage(shape, ranks, recomputed=False, rank=0):
        """The first ZeRO stage that fits one H100 with one answer at once, or "none"."""
        for stage in range(4):
            parts = trainer_budget(shape, one_answer, 2, ranks, stage)
            if rank:
                frozen = parts["weights"]
                parts |= static(shape.trained(rank), 4, ranks, stage)
                parts["weights"] += frozen
            if recomputed:
                parts["activations"] = checkpointed_bytes(shape, one_answer.tokens, 2)
            if sum(parts.values()) <= room:
                return stage
        return "none"

    return (first_stage,)


@app.cell(hide_code=True)
def _(first_stage, whose_budget):
    _columns = {f"{ranks} GPUs": (ranks, 0) for ranks in (8, 64, 512)}
    _columns["8 GPUs, adapters of rank 16"] = (8, 16)

    def _stages(shape, ranks, rank):
        plain = first_stage(shape, ranks, False, rank)
        again = first_stage(shape, ranks, True, rank)
        return f"{plain}" if plain == again else f"{plain} → {again}"

    mo.vstack(
        [
            lesson.table(
                "The first ZeRO stage that fits → with checkpointing",
                [
                    {"Qwen2.5": name}
                    | {column: _stages(shape, *given) for column, given in _columns.items()}
                    for name, shape in reversed(MODELS.items())
                ],
            ),
            lesson.md(
                f"By the sum of the six parts, with {whose_budget}: a prompt of 512 and one answer of 2,048 tokens at once. The H100s are filled to {MEMORY_SHARE:.0%} of {H100.memory / 1e9:.0f} GB. Where no stage fits there is *none*."
            ),
            lesson.folded(
                "What each stage sends",
                "With *one* micro-batch a step, stages 1 and 2 send about as much between the GPUs as no ZeRO at all. Stage 3 sends half as much again, because it gathers the weights in both passes. "
                "With several, stages 0 and 1 still send gradients once a step. Stage 2 sends them after each micro-batch, because a rank keeps only its share. Stage 3 also gathers the weights for each.",
            ),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Who gets the GPUs

    It fits. Now the question that costs money: of your GPUs, how many should generate, and how many should train? In the asynchronous loop (notebook 08)
    both sides work at the same time, each on GPUs of its own. (They may also take turns on the same GPUs, as `vllm_mode="colocate"` in TRL: then nothing is split, and each GPU holds both.) Say the generators need 20 seconds for a batch, and the trainer 5 for a step. Then the trainer waits for 15 of 20 seconds, and
    its GPUs cost as much as before. The slower side decides.

    ### Exercise 3: the best split

    `sampling(g)` is the seconds that `g` generating GPUs need for a batch. `training(g)` is the seconds that `g` training GPUs need for a step.
    Both are infinite where the memory does not suffice. Return how many GPUs, from 1 to
    `gpus - 1`, generate in the fastest split: the smallest number if several are equally fast,
    `None` if no split has room.
    """)
    return


@app.function
def best_split(gpus, sampling, training):
    """best_split(8, lambda g: 60 / g, lambda g: 20 / g) is 6: both take 10 s."""
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: best_split,
        Solutions,
        level="stretch",
        minutes=6,
        lines=5,
        hints=(
            "With `g` GPUs for generators, how long does a step take? Who waits for whom?",
            "`max(sampling(g), training(gpus - g))` is that time. Take the smallest, and look whether it is infinite.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    ask_split = lesson.predict(
        f"A step is {nb10.job(1024).prompts * nb10.job(1024).group_size:,} answers of a 7B model to prompts of {nb10.job(1024).prompt} tokens, on 64 GPUs in the best split, with answers of 1,024 tokens. Now take a model of 32B. How does the best split change?",
        "more GPUs to the generators",
        "it stays",
        "more GPUs to the trainer",
    )
    ask_split
    return (ask_split,)


@app.cell(hide_code=True)
def _():
    my_split, whose_split = exercise.running(lambda: best_split, Solutions)
    allocation_slider = WhatIf(
        "Divide the GPUs",
        [
            Knob("model", "Model", list(MODELS), "{}"),
            Knob("answer", "Tokens of an answer", [256, 512, 1024, 2048, 4096, 8192]),
            Knob("gpus", "GPUs", [8, 16, 32, 64, 128, 256]),
            Knob("eighths", "For generators", [1, 2, 3, 4, 5, 6, 7], "{}/8"),
        ],
        partial(nb10.allocation, my_split),
        {"model": "7B", "answer": 1024, "gpus": 64, "eighths": 4},
    )
    return allocation_slider, my_split, whose_split


@app.cell(hide_code=True)
def _(allocation_slider, ask_split, my_split, whose_split):
    def _share(model, answer):
        best = nb10.best_split_of(my_split, model, answer, gpus=64)
        return best.sampling.gpus / 64 if best else 0.0

    _before, _after = _share("7B", 1024), _share("32B", 1024)
    lesson.reveal(
        ask_split,
        right=0 if _after > _before else 1 if _after == _before else 2,
        why=f"""
        From {_before:.0%} to {_after:.0%} of the GPUs for generators, by {whose_split}; with 1.5B it is {_share("1.5B", 1024):.0%}. The trainer's arithmetic grows with the parameters, and so does a generator's.
        But a decode step is also many small operations, one after another. Their number grows with the layers alone, 28 to 64. So a generator's time grows less. Longer answers change the split less: with 4,096 tokens it is {_share("7B", 4096):.0%} for 7B.

        Near the best split the bars are almost equally long: a few GPUs more or less hardly matter. Far from it they matter much. And trust the direction, not the seconds, because much is assumed.
        """,
        shows=[
            allocation_slider,
            f"A bar is a split, generators + trainer. Blue: the trainer waits. Vermilion: the generators wait. ◂ is yours, ★ the best of all in steps of 1/{nb10.PARTS} of the GPUs. In the grey box, generators of `4 × 8 GPUs` are four copies of the model, each cut over eight. A trainer of `8 × 4` is one model: each layer is cut over four (notebook 04b), and ZeRO stage 3 divides the rest over eight. The GB are those of one GPU.",
            lesson.folded(
                "What is assumed",
                f"All answers have full length, the model has 16 bits, and nothing is recomputed. An [H100]({H100.source}) by its data sheet (read in November 2026) with {COMPUTE_SHARE:.0%} of its operations and {BANDWIDTH_SHARE:.0%} of its bandwidth. Links cost nothing, and tools answer at once. The trainer can cut layers, which Zorplex RL cannot. A decode step has twenty small operations in each layer, of two millionths of a second. Agents whose tools take seconds need more generators than this says, and so does an engine that uses less of the bandwidth.",
            ),
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.recap(
        3,
        "A trainer needs 16 bytes for each parameter in float32 and 18 in 16 bits, which ZeRO divides, and activations and logits for each token, which it does not.",
        "With adapters a frozen parameter takes only its weight, 2 or 4 bytes.",
        "Only the largest micro-batch counts. Checkpointing keeps the inputs of layers, and pays with a forward pass.",
        "A sum of parts can be right because its errors cancel. Leave room, most of all on a GPU.",
        "More slots make a generator faster, and cost cache.",
        "In the best split of the GPUs, the slower side is as fast as it can be.",
    )
    return


@app.cell(hide_code=True)
def _(config, trained):
    lesson.headline(
        f"a trainer of a small model, {config.shape.parameters / 1e6:.1f} million parameters, took {trained.peak / 1e6:.0f} MB; `memory.py` had said {trainer_memory(config.shape, trained.work).total / 1e6:.0f} MB."
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.links(__file__, machine=True)
    return


@app.class_definition(hide_code=True)
class Solutions:
    """Check the exercises of this page, and solve them."""

    def check_static_parts(static_parts):
        nb10.check_static_parts(static_parts, Solutions.static_parts)

    def static_parts(parameters, e, ranks, stage):
        parts = {
            "weights": e * parameters,
            "masters": 4 * parameters if e == 2 else 0,
            "gradients": 4 * parameters,
            "moments": 8 * parameters,
        }
        for divided in [["masters", "moments"], ["gradients"], ["weights"]][:stage]:
            for part in divided:
                parts[part] /= ranks
        return parts

    def check_logit_bytes(logit_bytes):
        exercise.agree(
            logit_bytes,
            Solutions.logit_bytes,
            lambda draw: (draw.randint(1, 99), draw.randint(10, 999)),
            examples=[(10, 1000), (1, 10)],
            mistakes={
                "that is one tensor, and there are three": lambda t, v: 4 * t * v,
                "a float32 has 4 bytes": lambda t, v: 3 * 2 * t * v,
                "these are numbers, not bytes": lambda t, v: 3 * t * v,
            },
        )

    def logit_bytes(tokens, vocabulary):
        return 3 * 4 * tokens * vocabulary

    def check_best_split(best_split):
        nb10.check_best_split(best_split, Solutions.best_split)

    def best_split(gpus, sampling, training):
        def seconds(generating):
            return max(sampling(generating), training(gpus - generating))

        best = min(range(1, gpus), key=seconds)
        return best if seconds(best) < float("inf") else None


if __name__ == "__main__":
    app.run()
