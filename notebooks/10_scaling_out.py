# /// script
# [tool.marimo.display]
# theme = "system"
# ///

import marimo

__generated_with = "0.25.2"
app = marimo.App(
    width="medium",
    app_title="Scaling out: what a run needs, and who gets the GPUs",
    css_file="../zorplex_rl/course/lesson/lesson.css",
)

with app.setup(hide_code=True):
    import asyncio
    import contextlib
    import inspect
    import os
    import re
    import shutil
    import signal
    import socket
    import subprocess
    import sys
    import tempfile
    import threading
    import time
    from dataclasses import replace
    from pathlib import Path
    from types import SimpleNamespace

    import marimo as mo
    import torch

    import zorplex_rl
    from zorplex_rl.cli.size import run_time
    from zorplex_rl.config import Config
    from zorplex_rl.course.figures import budget_charts, host_charts
    from zorplex_rl.course.figures.loop_drawing import loop_drawing
    from zorplex_rl.course.figures.stack_tables import (
        axes_table,
        choose_axis,
        commands,
        knob_table,
        map_table,
        named,
        sources,
    )
    from zorplex_rl.course.lesson import exercise, lesson, scene
    from zorplex_rl.course.lesson.plug_in import plug_in
    from zorplex_rl.course.namespaces import namespaced_hosts, why_not
    from zorplex_rl.course.stack_commands import COUNTED_IN, LAUNCHES
    from zorplex_rl.course.stacks import (
        FAULTS,
        NOT_FOUND,
        ORCHESTRATION,
        READ_ON,
        STACKS,
        STALENESS,
        groups,
    )
    from zorplex_rl.course.widgets import LiveCurve, WhatIf
    from zorplex_rl.course.widgets.what_if import Answer, Bar, Knob, Panel
    from zorplex_rl.run_folder import RunFolder
    from zorplex_rl.services.host import MARGIN_SECONDS
    from zorplex_rl.services.runtime import SECRET, Actor, endpoint
    from zorplex_rl.sizing.allocation import (
        BANDWIDTH_SHARE,
        COMPUTE_SHARE,
        H100,
        MEMORY_SHARE,
        MODELS,
        best_split,
        splits,
    )
    from zorplex_rl.sizing.measured_size import (
        Case,
        make_model,
        measure_all,
        workload_of,
    )
    from zorplex_rl.sizing.sizing import (
        CACHE_STEP,
        MicroBatch,
        ModelShape,
        Parallel,
        Workload,
        cache_bytes,
        generator_memory,
        trainer_memory,
    )
    from zorplex_rl.sizing.step_time import Machine, calibrate, train_seconds
    from zorplex_rl.timeline import Timeline
    from zorplex_rl.training.hosts.openers import open_hosts
    from zorplex_rl.training.hosts.placement import THIS, PlanRow

    # Seconds that a new process takes for the same imports.
    IMPORTS = time.process_time()

    SCRATCH = tempfile.TemporaryDirectory(prefix="zorplex_rl_10_hosts_")
    PORT = 4444
    # Programs that run on another host do not see this folder as their own.
    ENVIRONMENT = os.environ | {
        SECRET: os.urandom(8).hex(),
        "PYTHONPATH": os.pathsep.join(
            filter(
                None,
                (str(Path(zorplex_rl.__file__).parents[1]), os.environ.get("PYTHONPATH")),
            )
        ),
    }


@app.cell(hide_code=True)
def _():
    lesson.header(
        __file__,
        minutes=44,
        hardware="two CPU cores, 2 GB of free memory, no network",
        goals=[
            "make the memory budget of a trainer and of a generator by hand, and check it against real ones",
            "say whether a step waits for operations or for bytes",
            "choose slots and a ZeRO stage that fit",
            "divide GPUs between generators and a trainer",
            "say what a lost host costs, and when a successor of its trainer may start",
            "carry one job over to four other stacks, and read a map of more",
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## What takes the memory

    The policy of this course fits everywhere. Yours may not, and a run that does not fit fails after an hour in a queue. So make a budget first.

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

        {len(_same)} of {len(by_hand)} parts are equal, byte for byte, to those of the package's `sizing/sizing.py`. That file also knows temporaries, copies, and what the allocator keeps.
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
    highest memory. A second one samples with few slots. Both count from the moment at which everything is imported.
    """)
    return


@app.cell(hide_code=True)
def _():
    ask_measured = lesson.predict(
        "Add up all parts of the budget by hand. How does the measured peak of the trainer compare with that sum?",
        "lower by more than 5%: not all parts are there at the same time",
        "within 5%",
        "higher by more than 5%: the budget forgets something",
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


@app.cell(hide_code=True)
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
        Measured: {trained.peak / 1e6:.0f} MB. By hand, for the batch that it got: {_sum / 1e6:.0f} MB, {abs(1 / _ratio - 1):.0%} {"less" if _ratio > 1 else "more"}. `sizing.py` says {_sized.total / 1e6:.0f} MB, and is
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
                "Bars: computed. Marks: the measured peak of this run's process.",
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


@app.cell(hide_code=True)
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


@app.function(hide_code=True)
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
        "more than 80%",
        "40 to 80%",
        "less than 40%",
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
        Machine(1.0, 1.0, 1.0, 1.0, *[float("inf")] * 5, 0.0),
    )
    _same = sum(_one[part] == number for part, number in _operations.items())
    lesson.reveal(
        ask_speed,
        right=0 if _share > 0.8 else 1 if _share >= 0.4 else 2,
        why=f"""
        {_share:.0%}. The step has {sum(_operations.values()) / 1e9:.0f} billion operations and took {_taken:.2f} s of processor time. By hand it takes at least {sum(_operations.values()) / peak:.2f} s.
        `sizing/step_time.py` counts the same operations ({_same} of {len(_operations)} numbers are equal), and also the bytes of everything in between. It measures the machine in the sizes of this model, and says {sum(_computed.values()):.2f} s.
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
    ## Hosts

    The trainer goes on one host, generators on others, and only messages pass between them. Two new things
    can happen then. A host dies with everything on it. Or a cable is cut: everything on the host goes on, and nobody hears of it.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.figure(
        host_charts.two_hosts(),
        "Who lives where, and who watches whom. Small roles stay beside the controller, which alone writes the run's folder.",
    )
    return


@app.cell(hide_code=True)
def settings_hosts():
    hosts_config = SimpleNamespace(
        lease=1.0,  # seconds, of the page's hosts
        package_lease=4.0,  # seconds, the least that the package takes
        drift=3.0,  # in the exercise: the host's clock runs at a quarter of its speed
        steps=30,  # of the run over two hosts: it must outlast the start of a process
        kill_after=6,  # steps
        eval_every=5,
        eval_tasks=50,
        run_lease=10.0,  # seconds, of the run's hosts
    )
    return (hosts_config,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### A lease, in its simplest form

    From outside, a dead host and one that is cut off look alike: silence. If the controller starts a new trainer at once, there may be two. Both
    write checkpoints, both publish weights. Notebook 03 sent `kill -9` before it started a successor. That was **fencing**, and it needs a way to the
    host, which is what is missing now.

    A **lease** needs none. The host promises to end by itself. It sends the controller a *token*, the time on its own clock, and the
    controller sends it back. Once the newest token that came back is `lease` seconds old, the host kills its trainer. The controller
    starts a successor only when that time is over.
    """)
    return


@app.function
def trainer():
    while True:
        print(time.monotonic(), flush=True)
        time.sleep(0.01)


@app.function
def host(port, lease, drift, program, ledger):
    def clock():
        return time.monotonic() / (1 + drift)  # slow, if there is a drift

    with open(ledger, "w") as file:
        child = subprocess.Popen([sys.executable, "-c", program], stdout=file)
    while not os.path.getsize(ledger):
        time.sleep(0.01)  # its trainer is not up yet
    link = socket.socket(type=socket.SOCK_DGRAM)
    link.settimeout(0.05)
    newest = clock()
    while clock() < newest + lease:
        link.sendto(str(clock()).encode(), ("127.0.0.1", port))
        with contextlib.suppress(TimeoutError):
            newest = max(newest, float(link.recv(64)))
        time.sleep(0.05)
    child.kill()


@app.function
def renew(link, tokens):
    for _ in range(tokens):
        token, there = link.recvfrom(64)
        link.sendto(token, there)
    return time.monotonic()


@app.function
def two_lives(fault, lease, may_start, drift=0.0):
    with HostProcess(lease, drift) as first, HostProcess(lease) as second:
        first.start()
        heard = renew(first.link, tokens=20)
        struck = time.monotonic()
        if fault == "kill -9":
            first.kill()  # the host and its trainer at once
        # Cut off: from here on nobody hears it, and nobody answers.
        while not may_start(time.monotonic() - MARGIN_SECONDS, heard, lease, drift):
            time.sleep(0.01)
        second.start()
        renew(second.link, tokens=10)
        while first.is_running():
            renew(second.link, tokens=1)
    return lives_of(first, second, struck, heard, heard + lease * (1 + drift))


@app.class_definition(hide_code=True)
class HostProcess:
    """``host`` as a process of its own, with the controller's end of its link. Ends with the block, its trainer too."""

    def __init__(self, lease, drift=0.0):
        self.lease, self.drift = lease, drift
        self.process = None
        self.folder = tempfile.TemporaryDirectory(dir=SCRATCH.name)
        self.ledger = Path(self.folder.name) / "ledger"

    def __enter__(self):
        self.link = socket.socket(type=socket.SOCK_DGRAM)
        self.link.bind(("127.0.0.1", 0))
        self.link.settimeout(60)
        return self

    def start(self):
        port = self.link.getsockname()[1]
        arguments = (port, self.lease, self.drift, as_program(trainer), str(self.ledger))
        self.process = subprocess.Popen(
            [sys.executable, "-c", as_program(host, *arguments)], start_new_session=True
        )

    def is_running(self):
        return self.process.poll() is None

    def kill(self):
        if self.process:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def __exit__(self, *_):
        self.kill()
        self.link.close()
        self.wrote = moments_in(self.ledger)
        self.folder.cleanup()


@app.function(hide_code=True)
def as_program(function, *arguments):
    """The text of a program that calls a function of this page."""
    imports = "import contextlib, os, socket, subprocess, sys, time"
    return f"{imports}\n{source_of(function)}\n{function.__name__}(*{arguments!r})"


@app.function(hide_code=True)
def source_of(defined):
    """The source of a function or class of this page, as it stands here."""
    source = inspect.getsource(defined)
    return source[re.search(r"^(async def|def|class) ", source, re.MULTILINE).start() :]


@app.function(hide_code=True)
def moments_in(ledger):
    """What a trainer wrote. A line that was cut off by a kill is no moment."""
    text = ledger.read_text() if ledger.exists() else ""
    return [float(line) for line in text.rpartition("\n")[0].split()]


@app.function(hide_code=True)
def lives_of(first, second, struck, heard, over):
    return host_charts.Lives(
        [moment - struck for moment in first.wrote],
        [moment - struck for moment in second.wrote],
        heard - struck,
        over - struck,
    )


@app.cell(hide_code=True)
def _():
    mo.md("""
    `host` runs as a process of its own, its trainer as another. They speak UDP, which tells nobody that the other end is gone. The trainer stands for a real
    one: a hundred times a second it writes the time into a file. `MARGIN_SECONDS` is the package's: a keeper looks at its clock only now and
    then.
    """)
    return


@app.cell(hide_code=True)
def _(hosts_config):
    ask_silence = lesson.predict(
        f"The lease is {hosts_config.lease:g} s. One host gets `kill -9`, the other one is cut off. Under which fault can the successor start sooner?",
        "after `kill -9`: nothing is left that could do harm",
        "after the cut: nobody has to be killed",
        "under neither: both wait for the lease",
    )
    ask_silence
    return (ask_silence,)


@app.cell(hide_code=True)
def _(hosts_config):
    # Two faults. After each the lease ends before the successor starts.
    start_lives = lesson.start_button(
        "Kill one host, cut the other off", seconds=2 * (2 * hosts_config.lease + 2)
    )
    start_lives
    return (start_lives,)


@app.cell
def _(hosts_config, start_lives):
    lesson.wait_for(start_lives)

    def at_the_end_of_the_lease(now, last_renewed, lease, drift):
        return now >= last_renewed + lease

    with mo.status.spinner("Two hosts, two faults", remove_on_exit=True):
        lives = {
            fault: two_lives(fault, hosts_config.lease, at_the_end_of_the_lease)
            for fault in ("kill -9", "cut off")
        }
    return (lives,)


@app.cell(hide_code=True)
def _(ask_silence, hosts_config, lives):
    _waits = {fault: found.second[0] for fault, found in lives.items()}
    _sooner = abs(_waits["kill -9"] - _waits["cut off"]) > hosts_config.lease
    _together = max(found.together for found in lives.values())
    lesson.reveal(
        ask_silence,
        right=(0 if _waits["kill -9"] < _waits["cut off"] else 1) if _sooner else 2,
        why=f"""
        The successors wrote first {_waits["kill -9"]:.2f} s after `kill -9` and {_waits["cut off"]:.2f} s after the cut. The killed trainer was silent at once, the one that was cut off went on
        for {lives["cut off"].first[-1]:.2f} s. The controller saw the same of both. {"At no moment did two trainers live." if _together < 0 else f"Two trainers lived for {_together:.2f} s: a keeper on this busy machine was later than the margin."}
        """,
        shows=[
            lesson.figure(
                host_charts.lives_chart(lives),
                "From the first to the last line that each trainer wrote.",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### The package's lease

    `HostAgent` in `services/host_agent.py` is `host` above as an actor: a thread watches its lease, and ends all processes of its host. `Host` is the
    controller's side. Its `lost` is set when the host is not heard any more, and `until_ended` waits for the end of the lease. The input is the same: a trainer
    that writes the time, on a host whose link is cut, here for real.
    """)
    return


@app.class_definition(hide_code=True)
class Clock(Actor):
    """Stand for a trainer: write the time into a ledger, a hundred times a second."""

    def __init__(self, ledger):
        threading.Thread(target=self.write, args=(ledger,), daemon=True).start()

    def write(self, ledger):
        with open(ledger, "w") as file:
            while True:
                print(time.monotonic(), file=file, flush=True)
                time.sleep(0.01)

    @endpoint
    def is_up(self):
        """Answer. Spawning returns before the process is there."""


@app.function
async def two_lives_of_the_package(addresses, lease):
    async with open_hosts(Config().changed(hosts=addresses, lease=lease)) as found:
        first, second = found.hosts
        trainer = await found.spawn(first.name, "trainer", Clock, "/tmp/ledger")
        await trainer.actor.is_up.call()
        await asyncio.sleep(1)
        print("cut it off", flush=True)
        await first.lost.wait()
        print(time.monotonic(), flush=True)  # noticed
        await first.until_ended()
        print(time.monotonic(), flush=True)  # ended, as the controller counts
        successor = await found.spawn(second.name, "trainer", Clock, "/tmp/ledger")
        await successor.actor.is_up.call()
        await asyncio.sleep(1)


@app.cell(hide_code=True)
def _(hosts_config):
    # Three programs begin at a time, two of them once more; then the lease ends.
    start_package = lesson.start_button(
        "Cut off a host of the package", seconds=2 * IMPORTS + hosts_config.package_lease
    )
    start_package
    return (start_package,)


@app.cell(hide_code=True)
def _(hosts_config, lives, start_package):
    lives  # one after the other
    lesson.wait_for(start_package)
    with mo.status.spinner("Two hosts of the package", remove_on_exit=True):
        cut_for_real = None if why_not() else cut_a_host(hosts_config.package_lease)
    return (cut_for_real,)


@app.function(hide_code=True)
def cut_a_host(lease):
    """Run ``two_lives_of_the_package`` on a host, with workers on two others, and cut the first worker's off. Returns the lives, and the seconds to the notice."""
    program = "\n".join(
        [
            "import asyncio, threading, time",
            "from zorplex_rl.config import Config",
            "from zorplex_rl.services.runtime import Actor, endpoint",
            "from zorplex_rl.training.hosts.openers import open_hosts",
            *map(source_of, (Clock, two_lives_of_the_package)),
        ]
    )
    with two_workers() as (network, addresses), contextlib.ExitStack() as around:
        program += f"\nasyncio.run(two_lives_of_the_package({addresses!r}, {lease}))"
        controller = network["controller"].popen(
            sys.executable, "-c", program, cwd="/", env=ENVIRONMENT,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        around.callback(controller.communicate)
        around.callback(controller.kill)
        # Monarch says first where its log is.
        lines = iter(controller.stdout.readline, "")
        if not any("cut it off" in line for line in lines):
            raise RuntimeError(controller.stderr.read())
        struck = time.monotonic()
        network["first"].cut()
        noticed, ended = (float(next(lines)) for _ in range(2))
        controller.wait()
        wrote = [
            moments_in(found.path("/tmp/ledger")) for found in workers_of(network).values()
        ]
    over = ended - MARGIN_SECONDS
    first, second = (SimpleNamespace(wrote=moments) for moments in wrote)
    return lives_of(first, second, struck, over - lease, over), noticed - struck


@app.cell(hide_code=True)
def _(cut_for_real, hosts_config):
    if cut_for_real is None:
        _shown = lesson.md(
            f"Not run here: {why_not()}. `tests/training/hosts/test_hosts.py` cuts a host off."
        )
    else:
        _lives, _noticed = cut_for_real
        _shown = mo.vstack(
            [
                lesson.figure(
                    host_charts.lives_chart({"package": _lives}),
                    f"The same claim for the package: a host is cut off, with a lease of {hosts_config.package_lease:g} s.",
                ),
                lesson.md(f"""
                The loss was noticed after {_noticed:.1f} s. The trainer went on until its keeper ended it, {_lives.first[-1]:.1f} s after the cut. Its successor wrote from
                {_lives.second[0]:.1f} s on. {"At no moment did two trainers live." if _lives.together < 0 else f"Two trainers lived for {_lives.together:.2f} s."}
                """),
            ]
        )
    _shown
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 4: a clock that runs slow

    The host counts `lease` seconds on its *own* clock. While it counts one second, up to `1 + drift` seconds pass for the controller. Complete
    `successor_may_start`: `now` and `last_renewed`, when the newest token came, are times of the controller's clock. Return whether the host's trainer has surely ended by `now`.

    Yours is *plugged in* below, right or wrong, as soon as it returns truth values.
    """)
    return


@app.function
def successor_may_start(now, last_renewed, lease, drift):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: successor_may_start,
        check_successor_may_start,
        successor_may_start_solution,
        level="core",
        minutes=4,
        hints=(
            "How long can the host take, by the controller's clock, to count `lease` seconds?",
            "`lease * (1 + drift)` seconds at most, and it begins no later than at `last_renewed`.",
        ),
    )
    return


@app.cell(hide_code=True)
def _(hosts_config):
    start_slow = lesson.start_button(
        "Cut off a host whose clock is slow",
        seconds=hosts_config.lease * (2 + hosts_config.drift) + 2,
    )
    start_slow
    return (start_slow,)


@app.cell
def _(hosts_config, lives, start_slow):
    lives  # one after the other
    lesson.wait_for(start_slow)
    _rule, whose_rule = plug_in(
        successor_may_start, successor_may_start_solution, ends_some_day
    )
    with mo.status.spinner("A slow clock", remove_on_exit=True):
        slow = two_lives("cut off", hosts_config.lease, _rule, hosts_config.drift)
    return slow, whose_rule


@app.cell(hide_code=True)
def _(hosts_config, slow, whose_rule):
    mo.vstack(
        [
            lesson.figure(
                host_charts.lives_chart({"slow clock": slow}),
                "The host is cut off at 0. Where two trainers live, the time is marked.",
            ),
            lesson.md(f"""
            The host counted {hosts_config.lease:g} s, and {slow.first[-1] - slow.heard:.1f} s passed. When to start the successor was decided by {whose_rule}.
            {f"Two trainers lived for {slow.together:.1f} s." if slow.together > 0 else "At no moment did two trainers live."} Real clocks differ by far less, a few millionths, so the package
            has only its margin of {MARGIN_SECONDS:g} s.
            """),
        ]
    )
    return


@app.function(hide_code=True)
def ends_some_day(rule):
    """Whether the page can run with this rule: it answers yes or no, and one day yes."""
    answers = [rule(now, 0.0, 1.0, 1.0) for now in (-1.0, 0.5, 60.0)]
    return all(isinstance(answer, bool) for answer in answers) and answers[-1]


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### A run over two hosts

    `zorplex-rl train --hosts` does this with real roles. A keeper on each host has the lease (`services/host_agent.py`), and a placement says who lives where (`training/hosts/placement.py`). Where this
    page may make namespaces, its hosts are as real as one machine allows. Each has its own network, process ids, host name, `/dev/shm` and `/tmp`. Elsewhere two
    plain processes stand in for them.
    """)
    return


@app.cell(hide_code=True)
def _():
    ask_plan = lesson.predict(
        "Two hosts, a trainer, two generators and a spare. They are placed in this order, each on the host with the fewest. Where do they live?",
        "the trainer on the first host, all others on the second",
        "the trainer and one generator on the first, a generator and the spare on the second",
        "the trainer and the spare on the first, both generators on the second",
    )
    ask_plan
    return (ask_plan,)


@app.cell(hide_code=True)
def _(hosts_config):
    hosts_flag = (
        "processes:2" if why_not() else "attach:tcp://10.77.0.2:4444,tcp://10.77.0.3:4444"
    )
    hosts_run = Config().changed(
        hosts=hosts_flag,
        insecure=not why_not(),  # between namespaces of this machine
        lease=hosts_config.run_lease,
        generators=2,
        steps=hosts_config.steps,
        eval_every=hosts_config.eval_every,
        eval_tasks=hosts_config.eval_tasks,
    )
    placed = PlanRow.rows(hosts_run)
    train_flags = [
        *("--hosts", hosts_flag, "--lease", f"{hosts_config.run_lease:g}"),
        *("--generators", "2", "--steps", f"{hosts_config.steps}"),
        *("--eval-every", f"{hosts_config.eval_every}"),
        *("--eval-tasks", f"{hosts_config.eval_tasks}"),
        *(["--insecure"] if hosts_run.cluster.insecure else []),
    ]
    return hosts_run, placed, train_flags


@app.cell(hide_code=True)
def _(ask_plan, placed, train_flags):
    _where = {replica: row.host for row in placed for replica in row.replicas}
    _, _first, _second = (row.host for row in placed)
    _others = [_where[f"generator_{number}"] for number in range(3)]
    lesson.reveal(
        ask_plan,
        right={
            (_second, _second, _second): 0,
            (_second, _first, _second): 1,
            (_second, _second, _first): 2,
        }.get(tuple(_others), []),
        why=f"""
        This is what `zorplex-rl train {" ".join(train_flags[:2])} … --plan` prints. It starts nothing. The trainer is always on the first host, here {_where["trainer"]}; `generator_2` is the spare.
        """,
        shows=[
            lesson.table(
                "The plan",
                [
                    {"host": row.host, "what lives there": ", ".join(row.replicas)}
                    for row in placed
                ],
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    ask_bytes = lesson.predict(
        "Checkpoints come from the trainer, on the first host. Who writes the run's folder, and how many of its bytes does a host write?",
        "the trainer's host writes the checkpoints, some megabytes",
        "every host writes its share",
        "none: the controller writes all of it",
    )
    ask_bytes
    return (ask_bytes,)


@app.cell(hide_code=True)
def _(hosts_config):
    ask_notice = lesson.predict(
        f"Then the host of `generator_0` dies, with a lease of {hosts_config.run_lease:g} s. When does the controller notice, and count the generator as lost?",
        "at once, within a quarter of a second",
        "within seconds, long before the lease is over",
        "when the lease is over",
    )
    ask_notice
    return (ask_notice,)


@app.cell(hide_code=True)
def _():
    ask_suffers = lesson.predict(
        "The killed generator had groups half sampled. Compare the last greedy accuracy before the kill with that after the last step. What happens to it?",
        "it drops by more than five points",
        "it stays or rises: only time is lost",
    )
    ask_suffers
    return (ask_suffers,)


@app.cell(hide_code=True)
def _(hosts_run):
    hosts_time = run_time(hosts_run, IMPORTS)
    # The workers, the controller, and then a process for each model.
    start_run = lesson.start_button(
        "Start two hosts and train on them",
        seconds=hosts_time.starting(3) + hosts_time.starting(4),
    )
    start_run
    return hosts_time, start_run


@app.cell(hide_code=True)
def _(hosts_config, start_run):
    lesson.wait_for(start_run)
    run_curve = LiveCurve(hosts_config.steps, title="Accuracy over two hosts")
    run_curve
    return (run_curve,)


@app.cell(hide_code=True)
async def _(run_curve, start_run, train_flags):
    await scene.leave("10 hosts")  # what an earlier run of this cell has left open
    lesson.wait_for(start_run)
    run_curve.clear()
    with mo.status.spinner("Starting two hosts", remove_on_exit=True):
        stage = await scene.enter("10 hosts", running_on_two_hosts(train_flags, run_curve))
    lesson.md(
        f"Training has begun on {stage.kind}. Kill a host when you have seen some steps."
    )
    return (stage,)


@app.cell(hide_code=True)
def _(hosts_config, hosts_run, hosts_time, stage):
    stage
    # The run itself. Meanwhile the lease ends, and what was lost is started again.
    kill_host = lesson.start_button(
        "Kill the host of generator_0",
        seconds=hosts_time.run(hosts_run) + hosts_config.run_lease,
    )
    kill_host
    return (kill_host,)


@app.cell(hide_code=True)
async def _(hosts_config, kill_host, stage):
    lesson.wait_for(kill_host)
    try:
        with mo.status.progress_bar(
            total=hosts_config.steps, title="Steps", remove_on_exit=True
        ) as _bar:
            _shown = 0
            while not stage.over.is_set():
                _done = stage.steps()
                if stage.killed is None and _done >= hosts_config.kill_after:
                    stage.kill()
                if _done > _shown:
                    _bar.update(_done - _shown)
                    _shown = _done
                await asyncio.sleep(0.1)
    finally:
        await scene.leave("10 hosts")
    assert stage.code == 0, stage.said[-1] if stage.said else "the run said nothing"
    mo.stop(
        stage.killed is None,
        lesson.md(
            "The run was over before its host was killed. Start it again, two buttons up."
        ),
    )
    lost = SimpleNamespace(stage=stage, folder=RunFolder(stage.copy), killed=stage.killed)
    return (lost,)


@app.class_definition(hide_code=True)
class TwoHosts:
    """A run over two hosts: where its files are, how far it is, and how to kill the second host."""

    def __init__(self, command, kind, folder, kill, look_at_hosts):
        self.kind, self.folder, self._kill, self.look = kind, folder, kill, look_at_hosts
        self.killed = None  # the moment
        self.seen, self.said = {}, []
        self.over, self.code = asyncio.Event(), None
        self.copy = Path(tempfile.mkdtemp(dir=SCRATCH.name)) / "run"
        # A closed pipe ends the run: it does not outlive this process.
        self.process = subprocess.Popen(
            command,
            cwd="/",
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        for line in self.process.stdout:
            self.said.append(line.strip())

    def rows(self):
        return RunFolder(self.folder).metrics()

    def steps(self):
        return sum(row["event"] == "step" for row in self.rows())

    def kill(self):
        self.seen |= self.look()
        self.killed = time.monotonic()
        self._kill(self.process.pid)

    async def follow(self, curve):
        """Show rows as they come, until the run is over; then keep its files."""
        shown = 0
        try:
            while self.process.poll() is None:
                await asyncio.sleep(0.3)
                rows = self.rows()
                for row in rows[shown:]:
                    curve.add_row(row)
                shown = len(rows)
            self.code = self.process.returncode
            self.seen = self.look() | self.seen
            shutil.copytree(self.folder, self.copy)
        finally:
            self.over.set()


@app.function(hide_code=True)
@contextlib.contextmanager
def two_workers():
    """A worker on each of two hosts, and a third host for their controller. Yields the hosts, and what to give to ``--hosts``."""
    said = Path(SCRATCH.name) / "workers.log"
    with (
        namespaced_hosts("controller", "first", "second") as network,
        said.open("w") as log,
    ):
        workers = workers_of(network).values()
        started = [
            found.popen(
                sys.executable, "-m", "zorplex_rl", "worker", "--listen", f"tcp://{found.address}:{PORT}", "--insecure",
                cwd="/", env=ENVIRONMENT, stdout=log, stderr=log,
            )
            for found in workers
        ]  # fmt: skip
        while not all(found.listens(PORT) for found in workers):
            if any(worker.poll() is not None for worker in started):
                raise RuntimeError(f"a worker did not start: {said.read_text()}")
            time.sleep(0.1)
        yield network, "attach:" + ",".join(f"tcp://{w.address}:{PORT}" for w in workers)


@app.function(hide_code=True)
def workers_of(network):
    return {name: network[name] for name in ("first", "second")}


@app.function(hide_code=True)
@contextlib.asynccontextmanager
async def running_on_two_hosts(flags, curve):
    """Start hosts and a run over them; all of it ends with the block."""
    train = [sys.executable, "-m", "zorplex_rl", "train", *flags]
    with contextlib.ExitStack() as around:
        if why_not():
            folder = Path(tempfile.mkdtemp(dir=SCRATCH.name)) / "run"
            stage = TwoHosts(
                [*train, "--out", str(folder)],
                "two processes",
                folder,
                kill_second_worker,
                dict,
            )
        else:
            network, _ = around.enter_context(two_workers())
            workers = workers_of(network)
            controller = network["controller"]

            def look_at_hosts():
                return {
                    name: bytes_on(found)
                    for name, found in workers.items()
                    if found.inside.is_up
                }

            stage = TwoHosts(
                controller.entered(*train, "--out", "/tmp/run", cwd="/"),
                "two hosts, each a set of namespaces",
                controller.path("/tmp/run"),
                lambda _: network["second"].kill(),
                look_at_hosts,
            )
        following = asyncio.create_task(stage.follow(curve))
        try:
            yield stage
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            if stage.process.poll() is None:
                stage.process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    await asyncio.to_thread(stage.process.wait, 20)
            around.close()
            stage.process.kill()
            stage.process.wait()


@app.function(hide_code=True)
def bytes_on(host):
    """Whether a host sees the run's folder, and how many bytes lie in its own /tmp and /dev/shm."""
    written = 0
    for folder in map(host.path, ("/tmp", "/dev/shm")):
        own = (
            folder.stat().st_dev
        )  # an installation that it sees there lies on another device
        found = (path.lstat() for path in folder.rglob("*") if path.is_file())
        written += sum(file.st_size for file in found if file.st_dev == own)
    return host.path("/tmp/run").exists(), written


@app.function(hide_code=True)
def kill_second_worker(controller):
    """Kill the second of the processes that stand for hosts, and all that it has started: they are one session."""
    listed = subprocess.run(
        ["ps", "-Awwo", "pid=,ppid=,command="], capture_output=True, text=True, check=True
    )
    rows = [line.split(None, 2) for line in listed.stdout.splitlines()]
    (worker,) = (
        int(pid)
        for pid, parent, command in rows
        if int(parent) == controller and "/host_1" in command
    )
    for pid, *_ in rows:
        with contextlib.suppress(OSError):
            if os.getsid(int(pid)) == worker:
                os.kill(int(pid), signal.SIGKILL)


@app.cell(hide_code=True)
def _(lost):
    _timeline = Timeline.load(lost.folder.timeline)
    _trained = [span for span in _timeline.spans if span.kind == "train"]
    _began = min(span.start for span in _trained)
    _restarts = [span for span in _timeline.spans if span.kind == "restart"]
    lost_run = host_charts.LostHost(
        steps=sorted(span.end - _began for span in _trained),
        greedy=[(row["step"], row["greedy_accuracy"]) for row in lost.folder.evaluations()],
        killed=lost.killed - _began,
        noticed=sorted(span.start - _began for span in _restarts),
        replaced=sorted(span.end - _began for span in _restarts),
    )
    pulled = {}
    for _span in _timeline.spans:
        if _span.kind == "pull":
            pulled.setdefault(_span.actor, []).append(_span.args["transport"])
    replaced = [row for row in lost.folder.metrics() if row["event"] == "restart"]
    return lost_run, pulled, replaced


@app.cell(hide_code=True)
def _(ask_notice, hosts_config, lost_run, placed, replaced):
    mo.stop(
        not lost_run.noticed,
        lesson.md("The run was over before a replacement was ready. Give it more steps."),
    )
    _notice = lost_run.noticed[0] - lost_run.killed
    _spare_died = any({"generator_0", "generator_2"} <= set(row.replicas) for row in placed)
    lesson.reveal(
        ask_notice,
        right=0 if _notice <= 0.25 else 1 if _notice < hosts_config.run_lease else 2,
        why=f"""
        After {_notice:.1f} s, and the replacement was ready {lost_run.replaced[0] - lost_run.killed:.1f} s after the kill. A generator need not wait for the lease. One that was given up answers nobody,
        because the router drops what comes late. {"The spare lived on the same host and died with it, so a new process had to load the model." if _spare_died else ""} Only what must not exist twice waits: a trainer would have started no sooner than {hosts_config.run_lease + MARGIN_SECONDS:g} s after the
        controller last heard of its host.
        """,
        shows=[
            lesson.figure(
                host_charts.lost_host_chart(lost_run),
                "The run's steps and its held-out accuracy, from its timeline and its metrics.",
            ),
            lesson.table(
                "What was replaced, and why",
                [
                    {
                        "died": row["died"],
                        "took over": row["took_over"],
                        "s": f"{row['recovery_seconds']:.1f}",
                        "why": lesson.quote(row["reason"].partition("\n")[0][:140]),
                    }
                    for row in replaced
                ],
            ),
        ],
    )
    return


@app.cell(hide_code=True)
def _(ask_suffers, lost_run):
    _before = [
        value
        for step, value in lost_run.greedy
        if step == 0 or lost_run.steps[step - 1] < lost_run.killed
    ][-1]
    _after = lost_run.greedy[-1][1]
    lesson.reveal(
        ask_suffers,
        right=0 if _after < _before - 0.05 else 1,
        why=f"""
        {_before:.0%} at the last evaluation before the kill, {_after:.0%} after {len(lost_run.steps)} steps. Groups that died with their generator were sampled again: same numbers, same tasks, same seeds. No batch was
        smaller for it.
        """,
    )
    return


@app.cell(hide_code=True)
def _(ask_bytes, lost):
    _size = sum(
        path.stat().st_size for path in lost.folder.path.rglob("*") if path.is_file()
    )
    _seen = lost.stage.seen
    lesson.reveal(
        ask_bytes,
        right=[] if not _seen else 0 if any(sees for sees, _ in _seen.values()) else 2,
        why=f"""
        The folder has {_size / 1e6:.1f} MB. {"No host even sees it: checkpoints and the policy came to the controller as messages." if _seen and not any(sees for sees, _ in _seen.values()) else "These stand-ins share a disk with the controller, so this run cannot show who wrote."} So a
        run needs no file system that its hosts share.
        """,
        shows=[
            lesson.table(
                "Files on the hosts: the second as it was killed, the first at the end",
                [
                    {
                        "host": name,
                        "sees the run's folder": "yes" if sees else "no",
                        "bytes in its own /tmp and /dev/shm": f"{size:,}",
                    }
                    for name, (sees, size) in sorted(_seen.items())
                ],
            )
        ]
        if _seen
        else [],
    )
    return


@app.cell(hide_code=True)
def _(placed, pulled, replaced):
    _where = {replica: row.host for row in placed for replica in row.replicas}
    # One host was left, the trainer's, when the others were replaced.
    _where |= {row["took_over"]: _where["trainer"] for row in replaced}
    lesson.table(
        "How weights came to each generator: what `--transport auto` has chosen",
        [
            {
                "generator": actor,
                "host": _where.get(actor, THIS),
                "compared with the trainer's": "same"
                if _where.get(actor) == _where["trainer"]
                else "another",
                "transport": ", ".join(f"`{name}`" for name in sorted(set(transports))),
                "pulls": len(transports),
            }
            for actor, transports in sorted(pulled.items())
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    Where processes share memory, and prove it, `auto` takes shared memory. Across hosts it takes a plain socket (`tcp`), where there is no RDMA hardware. A host
    that has ended does not come back by itself: start its worker again, for the next run.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## The same job in five stacks

    Yours is not the only system that trains like this.
    Here is one job in five of them: GRPO, a policy that uses tools, generators apart from the trainer.
    Two generators, and data at most four versions old, wherever the stack can count versions.

    Flags are those of each stack's documentation.
    The values of the job are ours, and we ran none of the other four.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.md(commands())
    return


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

        Before you compare two stacks at the same setting, measure the lag in each, as notebook 09 does for ours.
        """,
        shows=[knob_table()],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A map of sixteen stacks, November 2026

    Seven questions tell these stacks apart, and you have met all seven in the course.
    """)
    return


@app.cell(hide_code=True)
def _():
    axes_table()
    return


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
    _again = _faults["from a checkpoint"]
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
        The release notes of slime v0.4.0 name a recovery of the trainer too; how it works was {NOT_FOUND}.

        The largest group by orchestration is {_first_orchestration}, with {len(_users)} of {len(STACKS)}.
        By how the age of data is bounded it is “{_first_bound}”, with {len(_bounded)}.

        Below the map, choose an axis: it groups the stacks and says how each does it.
        The numbers lead to the sources.
        """,
        shows=[
            map_table(f"Sixteen stacks on seven axes, read on {READ_ON}"),
            choose_axis(),
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    Ours is on this map to be compared. It has no inference engine such as vLLM or SGLang, and it divides a model only by FSDP2.
    For a model of many billion parameters, take one of the others.

    How to use such a map:

    - Begin with what you cannot change: your model's size, your cluster, the engine that you serve with.
    - Then ask what a lost machine costs you, and look at the last axis.
    - Read the sources of the two or three stacks that are left, at their present version.

    Where a line says that something was not found, it may exist all the same: it was not in the pages that we read.
    Another comparison, also of sixteen libraries on seven axes, is [Keep the Tokens Flowing](https://huggingface.co/blog/async-rl-training-landscape) of March 2026.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.md(f"""
    Commands and map were read on {READ_ON}, in the sources that they name.
    """)
    return


@app.cell(hide_code=True)
def _():
    sources("The sources of the map, and their versions")
    return


@app.cell(hide_code=True)
def _():
    lesson.predicted(14)
    return


@app.cell(hide_code=True)
def _():
    lesson.recap(
        "A trainer's memory is some bytes for each parameter, and some for each token that goes through at once.",
        "The sum of the parts is not the peak: parts live at different times.",
        "A generator's memory is weights and cache. Slots turn memory into speed, until operations decide.",
        "ZeRO divides what a trainer keeps; activations stay with the rank that has the tokens.",
        "The best split is where nobody waits. Longer answers move it to the generators, larger models to the trainer.",
        "A dead host and one that is cut off look alike. A lease ends both.",
        "Other stacks have the same parts under other names. Carry over what a knob means, not its number.",
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


@app.function(hide_code=True)
def check_successor_may_start(successor_may_start):
    exercise.expect(successor_may_start, 109.0, 100.0, 10.0, 0.0, result=False)
    exercise.expect(successor_may_start, 110.0, 100.0, 10.0, 0.0, result=True)
    exercise.expect(successor_may_start, 110.5, 100.0, 10.0, 0.25, result=False)
    exercise.expect(successor_may_start, 112.0, 100.0, 10.0, 0.25, result=False)
    exercise.expect(successor_may_start, 112.5, 100.0, 10.0, 0.25, result=True)
    exercise.expect(successor_may_start, 52.5, 50.0, 2.0, 0.5, result=False)
    exercise.expect(successor_may_start, 53.0, 50.0, 2.0, 0.5, result=True)


@app.function(hide_code=True)
def successor_may_start_solution(now, last_renewed, lease, drift):
    return now >= last_renewed + lease * (1 + drift)


if __name__ == "__main__":
    app.run()
