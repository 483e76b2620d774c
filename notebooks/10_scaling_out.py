# /// script
# [tool.marimo.display]
# theme = "system"
# ///

import marimo

__generated_with = "0.25.2"
app = marimo.App(
    width="medium",
    app_title="Scaling out: what a run needs, and who gets the GPUs",
    css_file="../zorplex_rl/viz/lesson.css",
)

with app.setup(hide_code=True):
    import tempfile
    import time
    from dataclasses import replace
    from pathlib import Path
    from types import SimpleNamespace

    import marimo as mo
    import torch

    from zorplex_rl.analysis.allocation import (
        BANDWIDTH_SHARE,
        COMPUTE_SHARE,
        H100,
        MEMORY_SHARE,
        MODELS,
        best_split,
        splits,
    )
    from zorplex_rl.analysis.measured_size import (
        Case,
        make_model,
        measure_all,
        workload_of,
    )
    from zorplex_rl.analysis.sizing import (
        CACHE_STEP,
        MicroBatch,
        ModelShape,
        Parallel,
        Workload,
        cache_bytes,
        generator_memory,
        trainer_memory,
    )
    from zorplex_rl.analysis.step_time import Machine, calibrate, train_seconds
    from zorplex_rl.viz import budget_charts, exercise, lesson
    from zorplex_rl.viz.loop_drawing import loop_drawing
    from zorplex_rl.viz.plug_in import plug_in
    from zorplex_rl.viz.stack_commands import COUNTED_IN, LAUNCHES
    from zorplex_rl.viz.stack_tables import (
        axes_table,
        choose_axis,
        commands,
        knob_table,
        map_table,
        named,
        sources_table,
    )
    from zorplex_rl.viz.stacks import (
        FAULTS,
        NOT_FOUND,
        ORCHESTRATION,
        READ_ON,
        STACKS,
        STALENESS,
        groups,
    )
    from zorplex_rl.viz.widgets import WhatIf
    from zorplex_rl.viz.widgets.what_if import Answer, Bar, Knob, Panel

    # Seconds that a new process takes for the same imports.
    IMPORTS = time.process_time()


@app.cell(hide_code=True)
def _():
    lesson.header(
        __file__,
        minutes=30,
        hardware="two CPU cores, 2 GB of free memory, no network",
        goals=[
            "make the memory budget of a trainer and of a generator by hand, and check it against a real process",
            "say whether a step waits for operations or for bytes",
            "choose slots and a ZeRO stage that fit",
            "divide GPUs between generators and a trainer, and say when to divide them otherwise",
            "carry one job over to four other stacks, and find any stack on a map of seven axes",
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## What takes the memory

    The policy of this course fits everywhere. Yours may not, and a run that does not fit fails after an hour in a queue. So make a budget
    first. Most of it is multiplication.

    Besides its weights a trainer keeps **gradients** and AdamW's two **moments** for each parameter. If the weights have 16 bits, it also
    keeps a float32 copy of them, the **master weights**. For the backward pass autograd keeps **activations**: what each layer has computed for each token.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.figure(
        loop_drawing("trainer", "weights", "generator"),
        "This page: the three parts of the loop that take memory, and most of the time.",
    )
    return


@app.cell
def settings():
    config = SimpleNamespace(
        # A model of Qwen2's architecture with random weights, made on the spot.
        shape=ModelShape(
            layers=8, hidden=256, heads=4, kv_heads=2, intermediate=1024, vocabulary=4000
        ),
        prompts=4,  # of a training batch
        samples=4,  # of each prompt
        sampled_prompts=8,  # that the generator answers, each 8 times
        answer=64,  # tokens
        few_slots=8,
        budget=160_000_000,  # bytes that the generator of exercise 2 may take
        matrix=2048,  # rows and columns of the matrix in "Operations or bytes"
        rows=(1, 4, 16, 64, 256),
    )
    return (config,)


@app.cell(hide_code=True)
def _(config):
    torch.set_num_threads(1)
    work = Workload(
        prompt=100,
        response=config.answer,
        prompts=config.prompts,
        group_size=config.samples,
        tasks=config.sampled_prompts,
        evaluated=0,
    )
    speeds = calibrate(config.shape, work, seconds=0.03)
    lesson.ran_on()
    return speeds, work


@app.cell(hide_code=True)
def _(config):
    ask_largest = lesson.predict(
        f"A trainer of {config.shape.parameters / 1e6:.1f} million parameters in float32 takes a step on {config.prompts * config.samples} answers of "
        f"{config.answer} tokens. Three copies of the weights wait for generators in the ring of notebook 07. What takes most?",
        "the weights",
        "AdamW's moments",
        "the ring",
        "activations",
        "logits",
    )
    ask_largest
    return (ask_largest,)


@app.function
def trainer_budget(shape, batch, e):
    """Bytes by part, for one micro-batch; a number of the model has `e` bytes."""
    n, layers, h, i = shape.parameters, shape.layers, shape.hidden, shape.intermediate
    queries, keys = shape.attention, shape.keys
    answer = batch.response - 1  # the first token comes from the prompt's last state
    width = batch.prompt + answer
    tokens = batch.rows * answer + batch.prompts * batch.prompt
    norms = (24 if e == 4 else 16) * h * tokens
    inner = e * (4 * i + 2 * queries) * tokens
    attended = e * (
        2 * queries * batch.rows * width + 2 * keys * batch.prompts * batch.prompt
    )
    mask = e * batch.rows * answer * width
    return {
        "weights": e * n,
        "masters": 4 * n if e < 4 else 0,
        "gradients": 4 * n,
        "moments": 8 * n,
        "weight ring": 3 * e * n,
        "activations": layers * (norms + inner + attended + mask)
        + (2 * e + 4) * h * tokens,
        # Four float32 tensors; in 16 bits also a float32 copy of the output layer.
        "logits": 4 * shape.vocabulary * (4 * batch.rows * batch.response + h * (e < 4)),
    }


@app.function
def generator_budget(shape, slots, length, e):
    """Bytes by part, for `slots` rows of `length` tokens."""
    keys_and_values = shape.layers * 2 * shape.keys
    return {
        "weights": e * shape.parameters,
        "staging": e * shape.parameters,
        "key-value cache": e * (keys_and_values + 1) * slots * length,
        "logits": e * shape.vocabulary * slots,
    }


@app.function(hide_code=True)
def largest_parts(memory):
    """Each part of a ``Memory`` in the phase in which it is largest."""
    found = {}
    for parts in memory.phases.values():
        for part, size in parts.items():
            found[part] = max(size, found.get(part, 0))
    return {part: size for part, size in found.items() if size}


@app.function(hide_code=True)
def compared(by_hand, by_package):
    """Rows of a table: every part by hand and as ``sizing.py`` has it."""
    return [
        {
            "part": part,
            "by hand, MB": f"{by_hand[part] / 1e6:.1f}" if by_hand.get(part) else "–",
            "sizing.py, MB": f"{by_package[part] / 1e6:.1f}"
            if by_package.get(part)
            else "–",
        }
        for part in dict.fromkeys([*by_hand, *by_package])
        if by_hand.get(part) or by_package.get(part)
    ]


@app.cell
def _(config, work):
    (batch, _), *_ = work.micro_batches
    by_hand = trainer_budget(config.shape, batch, e=4)
    by_package = largest_parts(trainer_memory(config.shape, work))
    return batch, by_hand, by_package


@app.cell(hide_code=True)
def _(ask_largest, by_hand, by_package, config):
    _order = ["weights", "moments", "weight ring", "activations", "logits"]
    _largest = max(_order, key=by_hand.__getitem__)
    _same = [part for part in by_hand if by_hand[part] == by_package.get(part, 0)]
    lesson.reveal(
        ask_largest,
        right=_order.index(_largest),
        why=f"""
        The {_largest}: {by_hand[_largest] / 1e6:.0f} MB, where the weights have {by_hand["weights"] / 1e6:.0f} MB. What each parameter costs is fixed: here
        {(by_hand["weights"] + by_hand["gradients"] + by_hand["moments"]) / config.shape.parameters:.0f} bytes, without the ring. Activations and logits grow with
        the tokens that go through at once. In the package `token_budget` bounds those.

        {len(_same)} of {len(by_hand)} parts are equal, byte for byte, to those of the package's `analysis/sizing.py`. That file also knows what lives shorter: temporaries,
        copies, and what the allocator keeps.
        """,
        shows=[
            lesson.figure(
                budget_charts.parts_chart(
                    {"trainer": by_hand}, "A trainer's memory, by hand"
                ),
                "All parts, as if they were there at the same time.",
            ),
            lesson.table(
                "A trainer's parts, each where it is largest", compared(by_hand, by_package)
            ),
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Against a real process

    The next cell makes the model, starts a process that trains it for two steps, and reads the operating system's mark of the
    highest memory. A second process samples with few slots, for later. Both count from the moment at which everything is imported.
    """)
    return


@app.cell(hide_code=True)
def _():
    ask_measured = lesson.predict(
        "Add up all parts of the budget by hand. How does the measured peak of the trainer compare with that sum?",
        "lower by more than 5 %: not all parts are there at the same time",
        "within 5 %",
        "higher by more than 5 %: the budget forgets something",
    )
    ask_measured
    return (ask_measured,)


@app.cell(hide_code=True)
def _(config, speeds, work):
    def seconds_of(case):
        """Expected seconds of a measurement: the process starts and warms up, then works."""
        busy = 2 * sum(train_seconds(config.shape, work, speeds).values())
        rows = case.prompts * case.group_size
        step = 60 * config.shape.layers * speeds.call * (1 + case.slots / 64)
        sampling = case.max_tokens * rows / case.slots * step
        return busy if case.role == "trainer" else sampling

    start_seconds = 2 * IMPORTS  # it imports, and warms up
    trainer_case = Case(
        "trainer",
        "",
        prompts=config.prompts,
        group_size=config.samples,
        max_tokens=config.answer,
        checkpoint=False,
    )
    few_case = Case(
        "generator",
        "",
        prompts=config.sampled_prompts,
        group_size=8,
        max_tokens=config.answer,
        slots=config.few_slots,
        calibrate=False,
    )
    expected_seconds = start_seconds + seconds_of(trainer_case) + seconds_of(few_case)
    start_measuring = lesson.start_button("Start both processes", seconds=expected_seconds)
    start_measuring
    return (
        expected_seconds,
        few_case,
        seconds_of,
        start_measuring,
        start_seconds,
        trainer_case,
    )


@app.function(hide_code=True)
def measured_cases(shape, cases, expected):
    """What a model of ``shape`` takes in each of ``cases``, in a process of its own; stopped far beyond the ``expected`` seconds."""
    with tempfile.TemporaryDirectory() as folder:
        make_model(shape, Path(folder))
        placed = [replace(case, folder=folder) for case in cases]
        found = list(measure_all(placed, timeout=60 + 20 * expected))
        return [
            (measured, workload_of(case, measured)[1])
            for case, measured in zip(placed, found, strict=True)
        ]


@app.cell
def _(config, expected_seconds, few_case, start_measuring, trainer_case):
    lesson.wait_for(start_measuring)
    with mo.status.spinner("Training, then sampling", remove_on_exit=True):
        (trained, trainer_work), (few_sampled, few_work) = measured_cases(
            config.shape, [trainer_case, few_case], expected_seconds
        )
    return few_sampled, few_work, trained, trainer_work


@app.cell(hide_code=True)
def _(ask_measured, config, trained, trainer_work):
    _sized = trainer_memory(config.shape, trainer_work)
    (_batch, _), *_ = trainer_work.micro_batches
    _hand = trainer_budget(config.shape, _batch, 4)
    _sum = sum(_hand.values())
    _ratio = trained.peak / _sum
    lesson.reveal(
        ask_measured,
        right=0 if _ratio < 0.95 else 1 if _ratio < 1.05 else 2,
        why=f"""
        Measured: {trained.peak / 1e6:.0f} MB. By hand: {_sum / 1e6:.0f} MB, {abs(_ratio - 1):.0%} {"less" if _ratio > 1 else "more"}. `sizing.py` says {_sized.total / 1e6:.0f} MB, and is
        {abs(_sized.total / trained.peak - 1):.0%} off. It counts what is there at the same time: here the highest phase is *{_sized.highest}*. Then
        {_sized.parts.get("kept by the allocator", 0) / 1e6:.0f} MB are free for Python and not free for the system: the C library keeps small blocks.
        """,
        shows=[
            lesson.figure(
                budget_charts.parts_chart(
                    {"by hand": _hand, "sizing.py": _sized.parts},
                    "A trainer's memory, computed and measured",
                    {"by hand": trained.peak, "sizing.py": trained.peak},
                ),
                "Bars: computed. Marks: the measured peak of this run's process. A GPU's allocator keeps blocks too, but reuses them better.",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## What a generator holds

    A generator has no gradients. It has the **key-value cache**: for every token of every running row, in every layer, the keys and values that later tokens
    will look at. Each **slot** has room for one row. With **grouped-query attention** several query heads share one head of keys and values, and the cache shrinks
    by as much.

    ### Exercise 1: bytes of a cache

    Complete `bytes_of_cache`: all keys and values of `slots` rows of `length` tokens. Every number has `itemsize` bytes, and a head has `hidden / heads` numbers.
    """)
    return


@app.function
def bytes_of_cache(layers, hidden, heads, kv_heads, slots, length, itemsize):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: bytes_of_cache,
        check_bytes_of_cache,
        bytes_of_cache_solution,
        level="warm-up",
        minutes=3,
        hints=(
            "How many numbers does one token leave in one layer? Keys and values, for each of `kv_heads` heads.",
            "`2 * kv_heads * hidden // heads` numbers, in each layer, for each token of each row.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 2: as many slots as fit

    Complete `largest_slots`: the largest number from 1 to `most` for which `bytes_of(slots)` is not above `budget`, or 0 if even
    one slot is too much. `bytes_of` never falls when the slots grow, and it is slow: 20 calls must be enough for a thousand slots.

    Yours is plugged in. As soon as it returns a number from 1 to 64, right or wrong, a real generator runs with that many slots.
    """)
    return


@app.function
def largest_slots(bytes_of, budget, most):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: largest_slots,
        check_largest_slots,
        largest_slots_solution,
        level="core",
        minutes=5,
        hints=(
            "Keep two numbers: one that is known to fit, and one that is known to be the most possible. Try the middle.",
            "Begin with 0 and `most`. If the middle (rounded up) fits, it becomes the lower one; if not, the upper one becomes the middle minus 1.",
        ),
    )
    return


@app.cell(hide_code=True)
def _(config):
    ask_slots = lesson.predict(
        f"The generator may take {config.budget / 1e6:.0f} MB. With {config.few_slots} slots it answered {8 * config.sampled_prompts} times. With as many slots as fit, "
        "how does the processor time of sampling change?",
        "hardly: the same tokens are computed",
        "to between a half and nine tenths",
        "to less than a half",
    )
    ask_slots
    return (ask_slots,)


@app.function
def slots_for(largest_slots, shape, work, budget, most):
    """Slots under `budget`, with a reserve of 15 %: as far off is `sizing.py` at times."""

    def bytes_of(slots):
        return generator_memory(shape, replace(work, slots=slots)).total

    return largest_slots(bytes_of, 0.85 * budget, most)


@app.cell(hide_code=True)
def _(config, few_case, few_work, seconds_of, start_seconds):
    _most = few_case.prompts * few_case.group_size
    _asked = config.shape, few_work, config.budget, _most
    slots_in_use, whose_slots = plug_in(
        largest_slots,
        largest_slots_solution,
        lambda yours: slots_for(yours, *_asked) in range(1, _most + 1),
    )
    chosen_case = replace(few_case, slots=slots_for(slots_in_use, *_asked))
    chosen_seconds = start_seconds + seconds_of(chosen_case)
    start_sampling = lesson.start_button(
        f"Sample with {chosen_case.slots} slots", seconds=chosen_seconds
    )
    start_sampling
    return chosen_case, chosen_seconds, start_sampling, whose_slots


@app.cell
def _(chosen_case, chosen_seconds, config, start_sampling):
    lesson.wait_for(start_sampling)
    with mo.status.spinner("Sampling", remove_on_exit=True):
        ((sampled, sampled_work),) = measured_cases(
            config.shape, [chosen_case], chosen_seconds
        )
    return sampled, sampled_work


@app.cell(hide_code=True)
def _(
    ask_slots,
    chosen_case,
    config,
    few_case,
    few_sampled,
    few_work,
    sampled,
    sampled_work,
    whose_slots,
):
    def _seconds(measured):
        return measured.seconds["first step"] + measured.seconds["sample"]

    _share = _seconds(sampled) / _seconds(few_sampled)
    _within = sampled.peak <= config.budget
    _sized = {
        case.slots: generator_memory(config.shape, load)
        for case, load in ((few_case, few_work), (chosen_case, sampled_work))
    }
    _peaks = {few_case.slots: few_sampled.peak, chosen_case.slots: sampled.peak}
    lesson.reveal(
        ask_slots,
        right=0 if _share > 0.9 else 1 if _share >= 0.5 else 2,
        why=f"""
        {chosen_case.slots} slots, chosen by {whose_slots}. Sampling took {_seconds(sampled):.1f} s of processor time in {sampled.decode_steps} steps, against {_seconds(few_sampled):.1f} s in {few_sampled.decode_steps}
        with {few_case.slots} slots. The process took {sampled.peak / 1e6:.0f} MB at its highest: {"within" if _within else "*over*"} the budget of {config.budget / 1e6:.0f} MB{"." if _within else ". Somebody's machine has now stopped it."}
        """,
        shows=[
            lesson.figure(
                budget_charts.parts_chart(
                    {f"{slots} slots": memory.parts for slots, memory in _sized.items()},
                    "A generator's memory",
                    {f"{slots} slots": peak for slots, peak in _peaks.items()},
                    room=config.budget,
                ),
                "Bars: computed by sizing.py. Marks: measured. Dashed: the budget. Most of the rest is the staging buffer for new weights.",
            ),
            lesson.table(
                "The generator's parts, computed",
                compared(
                    generator_budget(
                        config.shape, chosen_case.slots, cache_length(sampled_work), 4
                    ),
                    largest_parts(_sized[chosen_case.slots]),
                ),
            ),
        ],
    )
    return


@app.function(hide_code=True)
def cache_length(work):
    """Tokens that a row of the cache has room for: the engine rounds up."""
    return -(-(work.prompt + work.response) // CACHE_STEP) * CACHE_STEP


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## What takes the time

    A weight of a matrix is used in one multiplication and one addition for each token: 2 operations, and 6 with the backward pass. Attention adds some for
    each pair of tokens. Divide by what the machine can do in a second, and you have a time that no program can beat.
    """)
    return


@app.function
def train_operations(shape, batch):
    """Operations of one micro-batch, forward and backward."""
    answer = batch.response - 1
    tokens = batch.rows * answer + batch.prompts * batch.prompt
    pairs = batch.rows * answer * (batch.prompt + answer) + batch.prompts * batch.prompt**2
    matrices = shape.hidden * (
        2 * shape.attention + 2 * shape.keys + 3 * shape.intermediate
    )
    return {
        "matrix products": 6 * shape.layers * matrices * tokens,
        "attention": 12 * shape.layers * shape.attention * pairs,
        "logits": 6 * shape.hidden * shape.vocabulary * batch.rows * batch.response,
    }


@app.function
def median_seconds(run, times=9):
    """Processor time of `run`, whatever else the machine does."""
    found = []
    for _ in range(times):
        began = time.process_time()
        run()
        found.append(time.process_time() - began)
    return sorted(found)[times // 2]


@app.cell
def _(config):
    side = config.matrix
    weights, states = torch.randn(side, side), torch.randn(max(config.rows), side)
    product_seconds = {
        rows: median_seconds(lambda rows=rows: states[:rows] @ weights)
        for rows in config.rows
    }
    peak = 2 * side**2 * max(config.rows) / product_seconds[max(config.rows)]
    bandwidth = weights.nbytes / median_seconds(weights.sum)
    return bandwidth, peak, product_seconds, side


@app.cell(hide_code=True)
def _(peak):
    ask_speed = lesson.predict(
        f"A large matrix product reaches {peak / 1e9:.0f} billion operations a second on one core here. Which share of that does the measured training step reach?",
        "more than 80 %",
        "40 to 80 %",
        "less than 40 %",
    )
    ask_speed
    return (ask_speed,)


@app.cell(hide_code=True)
def _(ask_speed, config, peak, trained, trainer_work):
    _operations = {"matrix products": 0.0, "attention": 0.0, "logits": 0.0}
    for _batch, _count in trainer_work.micro_batches:
        for _part, _number in train_operations(config.shape, _batch).items():
            _operations[_part] += _count * _number
    _computed = train_seconds(config.shape, trainer_work, Machine(**trained.machine))
    _taken = trained.seconds["step 2"]
    _share = sum(_operations.values()) / peak / _taken
    # With a speed of 1 the package's seconds are operations.
    _one = train_seconds(
        config.shape,
        trainer_work,
        Machine(1.0, 1.0, 1.0, 1.0, *[float("inf")] * 3, 0.0),
    )
    _same = sum(_one[part] == number for part, number in _operations.items())
    lesson.reveal(
        ask_speed,
        right=0 if _share > 0.8 else 1 if _share >= 0.4 else 2,
        why=f"""
        {_share:.0%}. The step has {sum(_operations.values()) / 1e9:.0f} billion operations and took {_taken:.2f} s of processor time. By hand it takes at least {sum(_operations.values()) / peak:.2f} s.
        `analysis/step_time.py` counts the same operations ({_same} of {len(_operations)} numbers are equal), and also the bytes of everything in between. It measures the machine in the sizes of this model, and says {sum(_computed.values()):.2f} s.
        """,
        shows=[
            lesson.table(
                "Seconds of a training step",
                [
                    {
                        "part": part,
                        "by hand, at the peak": f"{_operations[part] / peak:.3f}"
                        if part in _operations
                        else "–",
                        "step_time.py": f"{seconds:.3f}",
                    }
                    for part, seconds in _computed.items()
                ],
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Operations or bytes

    In a decode step each row brings one token, and each weight is read from memory to serve those few rows. Operations for each byte that is read: that is the
    **arithmetic intensity**. With few rows, the reading decides. The cell above has multiplied one matrix with 1 to 256 rows.
    """)
    return


@app.cell(hide_code=True)
def _(config):
    ask_rows = lesson.predict(
        f"One row takes a certain time. How long do {config.rows[2]} rows take?",
        "less than 4 times as long",
        "4 to 10 times as long",
        f"more than 10 times: {config.rows[2]} times the work",
    )
    ask_rows
    return (ask_rows,)


@app.cell(hide_code=True)
def _(ask_rows, bandwidth, config, peak, product_seconds, side):
    _rows = config.rows[2]
    _times = product_seconds[_rows] / product_seconds[config.rows[0]]
    _here = peak / bandwidth * 2
    _there = H100.operations / H100.bandwidth
    lesson.reveal(
        ask_rows,
        right=0 if _times < 4 else 1 if _times <= 10 else 2,
        why=f"""
        {_times:.1f} times as long. This core computes {peak / 1e9:.0f} billion operations and reads {bandwidth / 1e9:.1f} GB in a second. In float32 the two are in balance at {_here:.0f} rows. An
        [H100]({H100.source}) has {H100.operations / 1e12:.0f} trillion and {H100.bandwidth / 1e12:.2f} TB: in 16 bits, {_there:.0f} rows. So a generator wants slots, and slots want memory.
        """,
        shows=[
            lesson.figure(
                budget_charts.rows_chart(
                    product_seconds, 4 * side**2 / bandwidth, 2 * side**2 / peak
                ),
                f"A matrix of {side} × {side}, multiplied with so many rows on one core of this machine. Both axes are logarithmic.",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A model that does not fit

    In this section and the next nothing is measured: no GPU is needed. The same arithmetic runs on published models (Qwen2.5) and a published GPU.

    **ZeRO** divides what a trainer keeps over the ranks of data parallelism. Stage 1 divides moments and master weights, stage 2 also the gradients, and stage 3 also the weights: that is
    **FSDP**. Activations stay: each rank has its own tokens.
    """)
    return


@app.function
def on_each_gpu(shape, ranks, stage, batch):
    """Bytes by part on one of `ranks` GPUs, in 16 bits."""
    parts = trainer_budget(shape, batch, e=2)
    divided = [["masters", "moments"], ["gradients"], ["weights"]][:stage]
    parts |= {part: parts[part] // ranks for group in divided for part in group}
    del parts["weight ring"]  # it lies in main memory
    return parts


@app.cell(hide_code=True)
def _():
    one_answer = MicroBatch(prompts=1, prompt=512, rows=1, response=2048)
    room = MEMORY_SHARE * H100.memory
    stages = {
        f"stage {stage}": on_each_gpu(MODELS["7B"], 8, stage, one_answer)
        for stage in range(4)
    }
    ask_stage = lesson.predict(
        f"A model of {MODELS['7B'].parameters / 1e9:.1f} billion parameters, 8 GPUs of {H100.memory / 1e9:.0f} GB, of which {MEMORY_SHARE:.0%} can be used. One answer of {one_answer.response:,} tokens goes through at once. At which stage does it fit first?",
        "stage 0: nothing divided",
        "stage 1",
        "stage 2",
        "stage 3",
    )
    ask_stage
    return ask_stage, one_answer, room, stages


@app.cell(hide_code=True)
def _(ask_stage, room, stages):
    _fits = [sum(parts.values()) <= room for parts in stages.values()]
    _totals = [sum(parts.values()) / 1e9 for parts in stages.values()]
    lesson.reveal(
        ask_stage,
        right=_fits.index(True) if any(_fits) else [],
        why=f"""
        The stages need {", ".join(f"{total:.0f}" for total in _totals)} GB on each GPU. {_fits.count(True)} of 4 fit into {room / 1e9:.0f} GB. What is saved at a stage is paid in
        messages: at stage 3 the weights are gathered for each layer, forward and backward (notebook 04).
        """,
        shows=[
            lesson.figure(
                budget_charts.parts_chart(
                    stages, "One of eight GPUs", room=room, unit=1e9, name="GB"
                ),
                "Computed, not measured. Dashed: what an H100 has, less a tenth.",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 3: the first stage that fits

    Mixed precision, so each parameter has 2 bytes of weights, 4 of master weights, 8 of moments and 4 of gradients. Complete `first_stage`: the lowest of the
    stages 0 to 3 at which a GPU needs at most `room` bytes, `rest` included, or `None` if it never fits. `rest` are the bytes of activations and logits.
    """)
    return


@app.function
def first_stage(parameters, ranks, rest, room):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: first_stage,
        check_first_stage,
        first_stage_solution,
        level="stretch",
        minutes=5,
        hints=(
            "Of the 18 bytes of a parameter, how many are divided at each stage? 0, then 12, then 16, then all.",
            "A GPU needs `rest + parameters * (18 - divided + divided / ranks)` bytes. Return the first stage where that is not above `room`.",
        ),
    )
    return


@app.cell(hide_code=True)
def _(one_answer, room):
    stage_in_use, whose_stage = plug_in(
        first_stage,
        first_stage_solution,
        lambda yours: yours(1000, 2, 0, 1e9) in (None, 0, 1, 2, 3),
    )

    def _stage(shape, ranks):
        parts = trainer_budget(shape, one_answer, 2)
        rest = parts["activations"] + parts["logits"]
        found = stage_in_use(shape.parameters, ranks, rest, room)
        return "none" if found is None else f"{found}"

    lesson.table(
        f"The first stage that fits, computed by {whose_stage}",
        [
            {"model": f"Qwen2.5, {name}"}
            | {
                f"{ranks} GPU{'s' * (ranks > 1)}": _stage(shape, ranks)
                for ranks in (1, 8, 64, 512)
            }
            for name, shape in MODELS.items()
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    More ranks do not help where the activations of one answer alone are too much. Then the layers themselves are cut (**tensor parallel**, notebook 04), or activations
    are computed again in the backward pass.

    ## Who gets the GPUs

    In the asynchronous loop both sides work at the same time, and a step takes as long as the slower one. How many GPUs should generate, and how many train?
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.figure(
        budget_charts.split_drawing(),
        "Eight GPUs for two jobs. Move one across, and one side becomes faster, the other slower.",
    )
    return


@app.cell(hide_code=True)
def _():
    ask_split = lesson.predict(
        "64 GPUs have the best split for a model of 7 billion parameters and answers of 1,024 tokens. Answers become four times as long. Which way does the best split move?",
        "more GPUs to the generators",
        "it stays",
        "more GPUs to the trainer",
    )
    ask_split
    return (ask_split,)


@app.function(hide_code=True)
def job(answer, prompt=512, group=16):
    """A step of 1,024 episodes in 16 bits."""
    return Workload(
        prompt=prompt,
        response=answer,
        prompts=1024 // group,
        group_size=group,
        dtype="bfloat16",
        transfer="bfloat16",
        stored="bfloat16",
        evaluated=0,
    )


@app.function(hide_code=True)
def allocation(model, answer, gpus, prompt, eighths):
    """What the widget shows: seconds of every split, and the numbers of the chosen one."""
    found = splits(MODELS[model], job(answer, prompt), gpus)
    best, mine = best_split(found), found[eighths - 1]
    longest = max([split.seconds for split in found if split.fits], default=1.0)
    bars = []
    for split in found:
        mark = " ★" if split is best else ""
        text = f"{seconds_text(split.seconds)}{mark}" if split.fits else "no room"
        colour = "blue" if split.waits == "trainer" else "vermilion"
        name = f"{split.sampling.gpus} + {split.training.gpus}" + " ◂" * (split is mine)
        bars.append(
            Bar(
                name,
                split.seconds if split.fits else 0.0,
                text,
                colour if split.fits else "grey",
            )
        )
    numbers = [
        (
            "Sampling",
            seconds_text(mine.sampling.seconds) if mine.sampling.fits else "no room",
            f"{mine.sampling.processes} × {mine.sampling.tensor} GPUs, {mine.sampling.slots} slots, {mine.sampling.bytes / 1e9:.0f} GB each",
        ),
        (
            "Training",
            seconds_text(mine.training.seconds) if mine.training.fits else "no room",
            f"{mine.training.processes} × {mine.training.tensor} GPUs, {mine.training.bytes / 1e9:.0f} GB each",
        ),
    ]
    if best is None:
        said = f"No split of {gpus} GPUs has room for {model} with answers of {answer:,} tokens."
    elif not mine.fits:
        said = f"This split has no room; the best one generates on {best.sampling.gpus} GPUs: {seconds_text(best.seconds)} a step."
    else:
        who = "trainer waits" if mine.waits == "trainer" else "generators wait"
        better = (
            "no split is faster"
            if mine is best
            else f"the best split has {best.sampling.gpus}: {seconds_text(best.seconds)}"
        )
        said = f"With {mine.sampling.gpus} of {gpus} GPUs for generators a step takes {seconds_text(mine.seconds)} and the {who}; {better}."
    panel = Panel("Seconds (GPUs: generators + trainer)", bars, most=longest)
    return Answer([panel], said, numbers=numbers)


@app.function(hide_code=True)
def seconds_text(seconds):
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


@app.cell(hide_code=True)
def _():
    allocation_slider = WhatIf(
        "Divide the GPUs",
        [
            Knob("model", "Model", list(MODELS), "{}"),
            Knob("answer", "Tokens of an answer", [256, 512, 1024, 2048, 4096, 8192]),
            Knob("gpus", "GPUs", [8, 16, 64, 256]),
            Knob("prompt", "Tokens of a prompt", [128, 512, 2048]),
            Knob("eighths", "For generators", [1, 2, 3, 4, 5, 6, 7], "{}/8"),
        ],
        allocation,
        {"model": "7B", "answer": 1024, "gpus": 64, "prompt": 512, "eighths": 4},
        static="execute" in mo.cli_args(),
    )
    return (allocation_slider,)


@app.function(hide_code=True)
def best_share(model, answer, gpus=64):
    """The best share of the GPUs for generators, or None where nothing fits."""
    best = best_split(splits(MODELS[model], job(answer), gpus, parts=16))
    return None if best is None else best.sampling.gpus / gpus


@app.cell(hide_code=True)
def _(allocation_slider, ask_split):
    _answers = (256, 1024, 4096)
    _shares = {
        model: {answer: best_share(model, answer) for answer in _answers}
        for model in ("0.5B", "1.5B", "7B", "14B", "32B", "72B")
    }
    _before, _after = _shares["7B"][1024], _shares["7B"][4096]
    _small, _large = _shares["1.5B"][1024], _shares["32B"][1024]
    lesson.reveal(
        ask_split,
        right=0 if _after > _before else 1 if _after == _before else 2,
        why=f"""
        From {_before:.0%} to {_after:.0%} for generators. A later token looks at more keys and values, and all of them are read again for each token; the trainer works on all tokens at once.
        Model size moves it too: at 1,024 tokens the best share is {_small:.0%} with 1.5B and {_large:.0%} with 32B. In a small model a decode step is all reading and launching; in a large one it computes.

        Computed from an [H100]({H100.source})'s data sheet, and not measured: {COMPUTE_SHARE:.0%} of the operations, {BANDWIDTH_SHARE:.0%} of the bandwidth, links for nothing, no tools. A step has 1,024 episodes, in
        groups of 16, and all answers have full length. Trust the direction, then measure.
        """,
        shows=[
            allocation_slider,
            "Blue: the trainer waits for the generators. Vermilion: the generators wait. ★ is the best split, ◂ is yours.",
            lesson.table(
                "Share of 64 GPUs for generators in the best of 15 splits, by tokens of an answer",
                [
                    {"model": f"Qwen2.5, {model}"}
                    | {
                        f"{answer:,}": "none" if share is None else f"{share:.0%}"
                        for answer, share in found.items()
                    }
                    for model, found in _shares.items()
                ],
            ),
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## The same job in five stacks

    Yours is not the only system that trains like this.
    Here is one job in five of them: GRPO, a policy that uses tools, generators apart from the trainer.
    Two generators, and data at most four versions old, wherever the stack can count versions.

    Flags are those of each stack's documentation.
    The values of the job are ours, and nothing but our own command was run here.
    Names of models, data and batch sizes are left out where the documentation leaves them to you.
    """)


@app.cell(hide_code=True)
def _():
    lesson.md(commands())


@app.cell(hide_code=True)
def _():
    same_unit = lesson.predict(
        """
        Every one of the five commands bounds how old the data may be.
        In how many of the five does that bound count versions of the policy, as `--max-lag` does?
        One weight update makes one version.
        """,
        "all five",
        "three or four",
        "one or two",
    )
    same_unit
    return (same_unit,)


@app.cell(hide_code=True)
def _(same_unit):
    _versions = [unit in ("versions", "weight updates") for unit in COUNTED_IN]
    _others = named(
        launch.stack
        for launch, counts in zip(LAUNCHES, _versions, strict=True)
        if not counts
    )
    lesson.reveal(
        same_unit,
        right=0 if all(_versions) else 1 if sum(_versions) >= 3 else 2,
        why=f"""
        {sum(_versions)} of {len(_versions)} count versions.
        {_others} counts finished batches that wait in a queue.
        A queue of four says how far generation may run ahead.
        How old a batch is when the trainer takes it follows from that, but the flag does not name it.

        So carry over the meaning, not the number.
        Before you compare two stacks at the same setting, measure the lag in each, as you did here.
        """,
        shows=[knob_table()],
    )


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A map of sixteen stacks, November 2026

    Now step back from flags to design.
    Seven questions tell these stacks apart, and you have met all seven in the course.
    """)


@app.cell(hide_code=True)
def _():
    axes_table()


@app.cell(hide_code=True)
def _():
    replaces = lesson.predict(
        """
        Long runs on many machines lose processes.
        Take the fifteen stacks of the map that are not ours.
        How many have a documented way to replace a dead generator while the run goes on?
        """,
        "more than ten",
        "six to ten",
        "fewer than six",
    )
    replaces
    return (replaces,)


@app.cell(hide_code=True)
def _(replaces):
    _faults = groups(FAULTS)
    _replacing = _faults["replaces generators"]
    _again = _faults["starts again from a checkpoint"]
    _unknown = _faults[NOT_FOUND]
    _first_orchestration, _users = next(iter(groups(ORCHESTRATION).items()))
    _first_bound, _bounded = next(iter(groups(STALENESS).items()))
    _count = len(_replacing)
    lesson.reveal(
        replaces,
        right=0 if _count > 10 else 1 if _count >= 6 else 2,
        why=f"""
        {_count}, by what we read on {READ_ON}: {named(stack.name for stack in _replacing)}.
        {len(_again)} start again from a checkpoint.
        For {named(stack.name for stack in _unknown)} we found no page about it.

        What they agree on is the shape: a trainer, generators, and weights that travel from one to the others.
        The largest group by orchestration is {_first_orchestration}, with {len(_users)} of {len(STACKS)}.
        By how the age of data is bounded it is “{_first_bound}”, with {len(_bounded)}.

        Choose an axis below the map: it groups the stacks and says how each does it.
        The numbers in brackets lead to the sources.
        """,
        shows=[
            map_table(f"Sixteen stacks on seven axes, read on {READ_ON}"),
            choose_axis(),
        ],
    )


@app.cell(hide_code=True)
def _():
    mo.md("""
    Ours is on this map to be compared, not to win.
    It has no inference engine such as vLLM or SGLang, and it divides a model only by FSDP2.
    For a model of many billion parameters, take one of the others.
    Ours is small enough to read, and every process in it may be killed while you watch.

    How to use such a map:

    - Begin with what you cannot change: your model's size, your cluster, the engine that you serve with.
    - Then ask what a lost machine costs you, and look at the last axis.
    - Read the sources of the two or three stacks that are left, at their present version.

    A map like this ages within months.
    Where a line says that something was not found, it may exist all the same: it was not in the pages that we read.
    Another comparison, also of sixteen libraries on seven axes, is [Keep the Tokens Flowing](https://huggingface.co/blog/async-rl-training-landscape) of March 2026.
    """)


@app.cell(hide_code=True)
def _():
    lesson.md(f"""
    Every line of the map comes from the pages below, all read on {READ_ON}.
    A commit or release in the last column is the version that we read, which need not be the newest.
    """)


@app.cell(hide_code=True)
def _():
    sources_table("Sources of the map")


@app.cell(hide_code=True)
def _():
    lesson.predicted(9)
    return


@app.cell(hide_code=True)
def _():
    lesson.recap(
        "A trainer's memory is some bytes for each parameter, and some for each token that goes through at once. Compute both before you queue.",
        "The sum of the parts is not the peak: parts live at different times, and allocators keep what was freed.",
        "A generator's memory is weights and cache. Slots turn memory into speed, until operations and not bytes decide.",
        "ZeRO divides what a trainer keeps; activations stay with the rank that has the tokens.",
        "The best split is where nobody waits. Longer answers move it to the generators, larger models to the trainer.",
    )
    return


@app.cell(hide_code=True)
def _(config, trained, trainer_work):
    lesson.headline(
        f"a trainer of {config.shape.parameters / 1e6:.1f} million parameters took {trained.peak / 1e6:.0f} MB; the budget had said {trainer_memory(config.shape, trainer_work).total / 1e6:.0f} MB."
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.links(__file__)
    return


@app.function(hide_code=True)
def check_bytes_of_cache(bytes_of_cache):
    exercise.expect(bytes_of_cache, 1, 64, 4, 4, 1, 1, 4, result=512)
    exercise.expect(bytes_of_cache, 1, 64, 4, 2, 1, 1, 4, result=256)
    exercise.expect(bytes_of_cache, 24, 896, 14, 2, 64, 1024, 2, result=805306368)
    shape = MODELS["72B"]
    exercise.expect(
        bytes_of_cache,
        shape.layers,
        shape.hidden,
        shape.heads,
        shape.kv_heads,
        1,
        100,
        2,
        result=cache_bytes(shape, 1, 100, "bfloat16", Parallel()),
    )


@app.function(hide_code=True)
def bytes_of_cache_solution(layers, hidden, heads, kv_heads, slots, length, itemsize):
    head_size = hidden // heads
    return itemsize * layers * 2 * kv_heads * head_size * slots * length


@app.function(hide_code=True)
def check_largest_slots(largest_slots):
    def try_one(name, bytes_of, budget, most, result):
        calls = []

        def counted(slots):
            calls.append(slots)
            assert isinstance(slots, int) and 1 <= slots <= most, (
                f"`bytes_of({slots!r})` is called, but slots go from 1 to {most}"
            )
            return bytes_of(slots)

        found = largest_slots(counted, budget, most)
        given = f"`largest_slots` with `bytes_of(slots) = {name}`, a budget of {budget:,} and at most {most:,} slots"
        assert found == result and type(found) is int, (
            f"{given} gives `{found!r}`, and should give `{result}`"
        )
        assert len(calls) <= 20, f"{given} asks {len(calls)} times; 20 are enough"

    try_one("100 + 10 * slots", lambda slots: 100 + 10 * slots, 150, 64, 5)
    try_one("100 + 10 * slots", lambda slots: 100 + 10 * slots, 159, 64, 5)
    try_one("100 + 10 * slots", lambda slots: 100 + 10 * slots, 5000, 64, 64)
    try_one("100 + 10 * slots", lambda slots: 100 + 10 * slots, 109, 64, 0)
    try_one("max(500, 10 * slots)", lambda slots: max(500, 10 * slots), 500, 1000, 50)
    try_one("10 * slots", lambda slots: 10 * slots, 7770, 1000, 777)


@app.function(hide_code=True)
def largest_slots_solution(bytes_of, budget, most):
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if bytes_of(middle) <= budget:
            low = middle
        else:
            high = middle - 1
    return low


@app.function(hide_code=True)
def check_first_stage(first_stage):
    exercise.expect(first_stage, 1000, 4, 0, 18000, result=0)
    exercise.expect(first_stage, 1000, 4, 1, 18000, result=1)
    exercise.expect(first_stage, 1000, 4, 0, 9000, result=1)
    exercise.expect(first_stage, 1000, 4, 0, 8999, result=2)
    exercise.expect(first_stage, 1000, 4, 0, 5999, result=3)
    exercise.expect(first_stage, 1000, 4, 0, 4499, result=None)
    exercise.expect(first_stage, 1000, 1, 500, 18499, result=None)


@app.function(hide_code=True)
def first_stage_solution(parameters, ranks, rest, room):
    for stage, divided in enumerate((0, 12, 16, 18)):
        if rest + parameters * (18 - divided + divided / ranks) <= room:
            return stage
    return None


if __name__ == "__main__":
    app.run()
