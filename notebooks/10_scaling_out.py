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
    app_title="Scaling out: what a run needs, and who gets the GPUs",
    css_file="../zorplex_rl/course/lesson/lesson.css",
)

with app.setup(hide_code=True):
    import contextlib
    import json
    import math
    import os
    import socket
    import subprocess
    import sys
    import time
    from concurrent.futures import ThreadPoolExecutor
    from dataclasses import replace
    from functools import partial
    from pathlib import Path
    from types import SimpleNamespace

    import marimo as mo
    import torch

    from zorplex_rl.course import nb10, nb10_hosts
    from zorplex_rl.course.figures import bars, drawing_of, spans
    from zorplex_rl.course.lesson import exercise, keep_open, lesson
    from zorplex_rl.course.namespaces import why_not
    from zorplex_rl.course.nb10_gpus import H100, MEMORY_SHARE, MODELS
    from zorplex_rl.course.nb10_hosts import HostProcess
    from zorplex_rl.course.widgets import LiveCurve, WhatIf
    from zorplex_rl.course.widgets.what_if import Knob
    from zorplex_rl.hosts.hosts import MARGIN_SECONDS
    from zorplex_rl.hosts.lease import LEASE_SECONDS
    from zorplex_rl.sizing.memory import (
        BLOCK,
        BatchShape,
        Workload,
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
        hardware="two CPU cores, 2 GB of free memory (8 GB for SmolLM2), no network",
        goals=[
            "write the memory budget of a trainer, and check it against a real one",
            "choose slots and a ZeRO stage that fit",
            "divide GPUs between generators and a trainer",
            "say when the successor of a lost trainer may start",
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## What takes the memory

    A run that does not fit fails after an hour in a queue. So make a budget first. Each number of the
    model takes `e` bytes: 4 in float32, 2 in 16 bits.

    | part of a trainer | bytes | divided from ZeRO stage |
    |---|---|---|
    | `weights` | `e` for each parameter | 3 |
    | `masters`: **master weights**, a float32 copy | 4, only if `e` is below 4 | 1 |
    | `gradients` | 4 | 2 |
    | `moments`: AdamW's two | 8 | 1 |
    | `activations`: what autograd keeps of each layer | `activation_bytes` below | never |
    | `logits` | see below | never |

    **ZeRO** divides parts over the `ranks` of data parallelism; each rank has tokens of its own.
    Stage 0 divides nothing; stage 3 is **FSDP** (notebook 04). The logits are three float32
    tensors of `responses × response × vocabulary` numbers. A step computes its episodes in
    micro-batches, one after another. Only the largest one counts.
    """)
    return


@app.function
def activation_bytes(shape, batch, e, recomputed=False):
    """Bytes that autograd keeps of a micro-batch, a tree of `tokens` read in blocks of 128 queries."""
    tokens, kv = batch.tokens, 2 * shape.keys
    norms = 16 * shape.hidden
    inner = e * (2 * shape.hidden + 4 * shape.intermediate + 3 * shape.attention + kv)
    # keys and values that stand apart in the tree are copied for each block
    layer = tokens * (norms + inner) + e * kv * batch.copied
    # the mask, who may look at whom, has a row for each head that shares keys
    mask = min(BLOCK, tokens) * shape.heads // shape.kv_heads * batch.seen
    ends = 8 * shape.hidden * tokens + e * mask
    if recomputed:  # keep the input of each layer, and one whole layer at a time
        return shape.layers * e * shape.hidden * tokens + layer + ends
    return shape.layers * layer + ends


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 1: the budget of a trainer

    Write `trainer_budget`: a dictionary of the bytes of each part on one rank. `shape` has `parameters` and `vocabulary`;
    `batch` has `responses` and `response` (tokens).
    """)
    return


@app.function
def trainer_budget(shape, batch, e, ranks, stage):
    """Return the bytes of each part on one of `ranks` ranks at ZeRO `stage`.

    With 1,000 parameters, e = 2, 4 ranks and stage 1 there are 2,000 bytes of
    "weights", 1,000 of "masters", 4,000 of "gradients" and 2,000 of "moments".
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: trainer_budget,
        Solutions,
        level="core",
        minutes=12,
        lines=9,
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


@app.cell
def settings():
    # SmolLM2, where it is, with 8 GB of free memory; else a small model with random weights.
    config = nb10.on_smollm2() or SimpleNamespace(
        name="a small model",
        folder=None,
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
    lesson.ran_on()
    return


@app.cell
def _(config):
    my_budget, whose_budget = exercise.running(lambda: trainer_budget, Solutions)

    def on_this_machine(work):
        """With the ring of notebook 07: two copies of the weights, for generators."""
        batch = max(work.micro_batches(), key=lambda batch: batch.tokens)
        ring = {"weight ring": 2 * 4 * config.shape.parameters}
        return my_budget(config.shape, batch, 4, 1, 0) | ring

    return my_budget, on_this_machine, whose_budget


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Against a real process

    A process trains the model for two steps, and its highest memory since its imports is read from
    the operating system. Then two generators sample, for the next section.
    """)
    return


@app.cell(hide_code=True)
def _(config):
    ask_measured = lesson.predict(
        f"Add up all parts of the budget of a trainer of {config.name}, {config.shape.parameters / 1e6:.1f} million parameters. How does the measured peak compare?",
        "lower by more than 5%: not all parts are there at the same time",
        "within 5%",
        "higher by more than 5%: the budget forgets something",
    )
    ask_measured
    return (ask_measured,)


@app.cell
def _(config):
    def fits(slots):
        """With a margin of 10 %: the package's `memory.py` can be off by that much."""
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
    start_measuring = lesson.start_button("Train, then sample twice", seconds=22)
    start_measuring
    return (start_measuring,)


@app.cell
def _(config, sampling_cases, start_measuring):
    lesson.wait_for(start_measuring)
    with mo.status.spinner("Training, then sampling twice", remove_on_exit=True):
        trained, *sampled = nb10.measured_cases(
            config, [("trainer", config.work), *sampling_cases]
        )
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
    _ratio = trained.peak / _sum
    lesson.reveal(
        ask_measured,
        right=0 if _ratio < 0.95 else 1 if _ratio < 1.05 else 2,
        why=f"""
        Measured: {trained.peak / 1e6:,.0f} MB. By {whose_budget}: {_sum / 1e6:,.0f} MB, of which the weights alone are {4 * config.shape.parameters / 1e6:,.0f}. The sum leaves one thing
        out: the C library may keep blocks that Python has freed. For these, and for its libraries, the package's
        `memory.py` adds a reserve of {_sized.parts["reserve"] / 1e6:,.0f} MB, which was measured. It says {_sized.total / 1e6:,.0f} MB, highest in the {_sized.highest} pass.
        Start marimo with `MALLOC_MMAP_THRESHOLD_=65536`, and the C library gives such blocks back. How close is the sum then?
        """,
        shows=[
            lesson.figure(
                bars.parts_chart(
                    {"by hand": _hand, "memory.py": _sized.parts},
                    "A trainer's memory, computed and measured",
                    {"by hand": trained.peak, "memory.py": trained.peak},
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

    A generator has the **key-value cache**: for every token of every running row, in every layer,
    the keys and values that later tokens look at. Each **slot** has room for one row. In
    **grouped-query attention** several query heads share one head of keys, which saves cache.
    """)
    return


@app.function
def generator_budget(shape, slots, length, e):
    """Bytes by part, for `slots` rows of `length` tokens."""
    keys_and_values = shape.layers * 2 * shape.keys
    return {
        "weights": e * shape.parameters,
        "key-value cache": e * (keys_and_values + 1) * slots * length,
        "logits": e * shape.vocabulary * slots,
    }


@app.cell(hide_code=True)
def _(config, many_slots):
    ask_slots = lesson.predict(
        f"{config.budget / 1e6:,.0f} MB have room for {many_slots} slots. How does the processor time of {math.prod(config.sampled)} answers change, compared with {config.few_slots} slots?",
        "hardly: the same tokens are computed",
        "to between a half and nine tenths",
        "to less than a half",
    )
    ask_slots
    return (ask_slots,)


@app.cell(hide_code=True)
def _(ask_slots, config, many_slots, sampled):
    _few, _many = sampled
    _slow, _fast = (found.seconds for found in sampled)
    _names = [f"{config.few_slots} slots", f"{many_slots} slots"]
    _computed = [
        generator_budget(config.shape, slots, nb10.cache_length(_many.work), 4)
        for slots in (config.few_slots, many_slots)
    ]
    lesson.reveal(
        ask_slots,
        right=0 if _fast > 0.9 * _slow else 1 if _fast >= 0.5 * _slow else 2,
        why=f"""
        {_fast:.1f} s in {_many.decode_steps} decode steps, against {_slow:.1f} s in {_few.decode_steps}. Each step serves all slots. The
        memory was {"within" if _many.peak <= config.budget else "*over*"} the budget. The code above leaves out the prefill: prompts pass through the model at once.
        """,
        shows=[
            lesson.figure(
                bars.parts_chart(
                    dict(zip(_names, _computed, strict=True)),
                    "A generator's memory",
                    {_names[0]: _few.peak, _names[1]: _many.peak},
                    room=config.budget,
                ),
                "Bars: computed by generator_budget. Marks: measured. Dashed: the budget.",
            ),
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.folded(
        "Why slots pay: operations or bytes",
        "In a decode step each row brings one token, and each weight is read from memory to serve "
        "those few rows. Operations for each byte that is read: that is the "
        "**arithmetic intensity**. With few rows the reading decides. "
        f"An [H100]({H100.source}) has {H100.operations / 1e12:.0f} trillion operations and {H100.bandwidth / 1e12:.2f} TB a second, by its data sheet. "
        f"In 16 bits the two take equally long at {H100.operations / H100.bandwidth:.0f} rows. "
        "So a generator wants slots, and slots want memory.",
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A model that does not fit

    From here up to *Hosts* nothing is measured on this machine: we apply the same arithmetic to published
    models and a published GPU. If the activations of a single answer do not fit, more ranks do not
    help. **Activation checkpointing** keeps only the input of each layer, and computes the rest again
    in the backward pass.
    """)
    return


@app.cell(hide_code=True)
def _():
    _recorded = Path(mo.notebook_dir()).parent / "benchmarks" / "real_model.json"
    _runs = nb10.newest_first(json.loads(_recorded.read_text()))
    lesson.folded("Recorded with SmolLM2", "\n\nEarlier:\n\n".join(_runs))
    return


@app.cell
def _(my_budget):
    one_answer = BatchShape.of([(0, 512 + 2047)], response=2048)
    room = MEMORY_SHARE * H100.memory

    def first_stage(shape, ranks, recomputed=False):
        """The first ZeRO stage that fits one H100 with one answer at once, or "none"."""
        for stage in range(4):
            parts = my_budget(shape, one_answer, 2, ranks, stage)
            if recomputed:
                parts["activations"] = activation_bytes(shape, one_answer, 2, True)
            if sum(parts.values()) <= room:
                return stage
        return "none"

    return (first_stage,)


@app.cell(hide_code=True)
def _(first_stage, whose_budget):
    lesson.table(
        f"The first ZeRO stage that fits, with one answer of 2,048 tokens at once; computed by {whose_budget}",
        [
            {"Qwen2.5": name}
            | {
                f"{ranks} GPUs{', recomputed' * again}": f"{first_stage(shape, ranks, again)}"
                for again in (False, True)
                for ranks in (8, 64, 512)
            }
            for name, shape in MODELS.items()
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Who gets the GPUs

    In the asynchronous loop the slower side decides how long a step takes. So how many GPUs should
    generate, and how many should train?

    ### Exercise 2: the best split

    `sampling(g)` is the seconds that `g` GPUs need for a batch, `training(g)` those for a step;
    both are infinite where the memory does not suffice. Return how many GPUs, from 1 to
    `gpus - 1`, generate in the fastest split: the smallest number if several are equally fast,
    `None` if no split has room.
    """)
    return


@app.function
def best_split(gpus, sampling, training):
    """best_split(8, lambda g: 60 / g, lambda g: 20 / g) is 6: both sides take 10 s."""
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
        "64 GPUs are split in the best way for a 7B model. Then answers become four times as long. How does the best split change?",
        "more GPUs to the generators",
        "it stays",
        "more GPUs to the trainer",
    )
    ask_split
    return (ask_split,)


@app.cell
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
        static="execute" in mo.cli_args(),
    )
    return allocation_slider, my_split, whose_split


@app.cell(hide_code=True)
def _(allocation_slider, ask_split, my_split, whose_split):
    _before, _after, _small, _large = (
        nb10.share(my_split, *case)
        for case in (("7B", 1024), ("7B", 4096), ("1.5B", 1024), ("32B", 1024))
    )
    lesson.reveal(
        ask_split,
        right=0 if _after > _before else 1 if _after == _before else 2,
        why=f"""
        From {_before:.0%} to {_after:.0%} of the GPUs for generators, by {whose_split}. In sampling, a later token must read more keys and values; the
        trainer works on all tokens at once. The model's size matters, too: {_small:.0%} with 1.5B, {_large:.0%} with 32B.

        From an [H100]({H100.source})'s data sheet (read in November 2026), with 40% of its operations and 70% of its bandwidth. Links and
        tools cost no time here. Trust only the direction.
        """,
        shows=[
            allocation_slider,
            "Blue: the trainer waits. Vermilion: the generators wait. ★ is the best split, ◂ is yours.",
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Hosts

    With several hosts, a whole host can die with everything on it. Or a cable is cut: everything on
    the host runs on, but nobody can reach it.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.figure(
        drawing_of("two_hosts.svg"),
        "What runs where, and who watches whom.",
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### A lease

    A dead host and one that is cut off look alike: silence. If you start a new trainer at once, there
    may be two of them, and both publish weights. With a **lease** the host
    promises to end by itself. It sends the controller a *token*, the time on its own clock, and
    the controller sends it back. Once the newest token that came back is `lease` seconds old, the
    host kills its trainer. The controller starts a successor only after that time.
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
def two_lives(fault, lease, lease_is_over, drift=0.0):
    with (
        HostProcess(host, trainer, lease, drift) as first,
        HostProcess(host, trainer, lease=60.0) as second,  # outlives the look at it
    ):
        first.start()
        heard = renew(first.link, tokens=20)
        struck = time.monotonic()
        if fault == "kill -9":
            first.kill()  # the host and its trainer at once
        # Cut off: from here on nobody hears it, and nobody answers.
        while not lease_is_over(time.monotonic(), heard, lease, drift, MARGIN_SECONDS):
            time.sleep(0.01)
        second.start()
        renew(second.link, tokens=10)
        while first.is_running():
            renew(second.link, tokens=1)
    over = heard + lease * (1 + drift)
    return nb10_hosts.lives_of(first, second, struck, heard, over)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 3: when is the lease over?

    The host's *own* clock may be slow: while it counts one second, up to `1 + drift` seconds pass
    for the controller. And it looks at its clock only now and then, so add `margin` seconds. Has
    its trainer surely ended by `now`? `heard` is when the newest token came; both are times of the
    controller's clock.
    """)
    return


@app.function
def lease_is_over(now, heard, lease, drift, margin):
    """lease_is_over(111.5, 100.0, 10.0, 0.0, 1.5) is True; a moment before it is False."""
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: lease_is_over,
        Solutions,
        level="warm-up",
        minutes=4,
        hints=(
            "How long can the host take, by the controller's clock, to count `lease` seconds?",
            "`lease * (1 + drift)` seconds at most, from `heard` on. The margin comes on top.",
        ),
    )
    return


@app.cell
def settings_hosts():
    hosts_config = SimpleNamespace(
        lease=1.0,  # seconds, of the page's hosts
        drift=3.0,  # the third host's clock runs at a quarter of its speed
        steps=48,  # of the run over two hosts: a successor must have time to work
        kill_after=4,  # steps
    )
    return (hosts_config,)


@app.cell(hide_code=True)
def _(hosts_config):
    ask_silence = lesson.predict(
        f"The lease is {hosts_config.lease:g} s. One host gets `kill -9`, another is cut off. In which case can the successor start sooner?",
        "after `kill -9`: nothing is left that could do harm",
        "after the cut: nobody has to be killed",
        "in neither: both have to wait for the lease",
    )
    ask_silence
    return (ask_silence,)


@app.cell(hide_code=True)
def _():
    start_lives = lesson.start_button("Kill one host, cut two others off", seconds=9)
    start_lives
    return (start_lives,)


@app.cell
def _(hosts_config, start_lives):
    lesson.wait_for(start_lives)
    my_rule, whose_rule = exercise.running(lambda: lease_is_over, Solutions)
    _cases = {
        "kill -9": ("kill -9", hosts_config.lease, my_rule),
        "cut off": ("cut off", hosts_config.lease, my_rule),
        "slow clock": ("cut off", hosts_config.lease, my_rule, hosts_config.drift),
    }
    with (
        mo.status.spinner("Three hosts, side by side", remove_on_exit=True),
        ThreadPoolExecutor() as _threads,
    ):
        _found = _threads.map(lambda case: two_lives(*case), _cases.values())
        lives = dict(zip(_cases, _found, strict=True))
    return lives, whose_rule


@app.cell(hide_code=True)
def _(ask_silence, hosts_config, lives, whose_rule):
    _killed, _cut = (lives[fault].second[0] for fault in ("kill -9", "cut off"))
    _together = max(found.together for found in lives.values())
    lesson.reveal(
        ask_silence,
        right=2
        if abs(_killed - _cut) <= hosts_config.lease
        else 0
        if _killed < _cut
        else 1,
        why=f"""
        The successors wrote first {_killed:.1f} s after `kill -9` and {_cut:.1f} s after the cut. The trainer that was cut off went on for
        {lives["cut off"].first[-1]:.1f} s, the one with the slow clock for {lives["slow clock"].first[-1]:.1f} s. When to start was decided by {whose_rule}.
        {"At no moment did two trainers live." if _together < 0 else f"Two trainers lived for {_together:.2f} s: a host on this busy machine was later than the margin."}
        """,
        shows=[
            lesson.figure(
                spans.lives_chart(lives),
                "When each trainer wrote.",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### A run over two hosts

    `zorplex-rl train --hosts` does this with real roles. If this page may make namespaces, each
    host has its own network, process ids and `/tmp`. Otherwise two plain processes stand in for hosts.
    Between real hosts Monarch 0.7 speaks mutual TLS (`tls://`): both sides show a certificate.
    Plain `tcp://`, as here, lets in whoever reaches the port. (torchmonarch 0.7.0, read 2026-11-24.)
    """)
    return


@app.cell
def _(hosts_config):
    addresses = "attach:tcp://10.77.0.2:4444,tcp://10.77.0.3:4444"
    train_flags = [
        *("--hosts", "processes:2" if why_not() else addresses),
        *("--generators", "2"),
        *("--steps", f"{hosts_config.steps}", "--eval-every", "16", "--eval-tasks", "20"),
        *([] if why_not() else ["--insecure"]),
    ]
    return (train_flags,)


@app.cell(hide_code=True)
def _(hosts_config):
    ask_notice = lesson.predict(
        f"In mid-run the host of `generator_0` dies, with a lease of {LEASE_SECONDS:g} s. When does the controller count that generator as lost?",
        "within a quarter of a second",
        "within seconds, long before the lease is over",
        "when the lease is over",
    )
    start_run = lesson.start_button("Train on two hosts, and kill one", seconds=35)
    mo.vstack([ask_notice, start_run])
    return ask_notice, start_run


@app.cell(hide_code=True)
def _(hosts_config, start_run):
    lesson.wait_for(start_run)
    run_curve = LiveCurve(hosts_config.steps, title="Accuracy over two hosts")
    run_curve
    return (run_curve,)


@app.cell
async def _(hosts_config, lives, run_curve, start_run, train_flags):
    lives  # one after the other
    lesson.wait_for(start_run)
    run_curve.clear()
    await keep_open.leave("10 hosts")  # what an earlier run of this cell has left open
    with mo.status.spinner("Two hosts start, train, and one dies", remove_on_exit=True):
        run = nb10_hosts.running_on_two_hosts(train_flags, run_curve)
        stage = await keep_open.enter("10 hosts", run)
        await stage.lose_a_host(after=hosts_config.kill_after)
        await keep_open.leave("10 hosts")
    lost = nb10_hosts.lost_host(stage)
    return lost, stage


@app.cell(hide_code=True)
def _(ask_notice, hosts_config, lost, stage):
    mo.stop(
        not lost.noticed,
        lesson.md("The run was over before a replacement was ready. Give it more steps."),
    )
    _notice = lost.noticed[0] - lost.killed
    _before = lost.accuracy_before_the_kill
    lesson.reveal(
        ask_notice,
        right=0 if _notice <= 0.25 else 1 if _notice < LEASE_SECONDS else 2,
        why=f"""
        After {_notice:.1f} s, on {stage.kind}. If a lost generator speaks up later, it is ignored, so nobody has to wait for its lease. A trainer must not
        exist twice. Its successor would have started no sooner than {LEASE_SECONDS + MARGIN_SECONDS:g} s after its host was last heard.

        The replacement was ready {lost.replaced[0] - lost.killed:.1f} s after the kill. {f"The spare had died on the same host, so {lost.replaced[0] - lost.noticed[0]:.1f} s of these went into a new process." if lost.replaced[0] > lost.noticed[0] + 0.5 else "The spare had died on the same host, too, but a new one was ready by then."}
        It sampled {len(lost.worked)} groups. Accuracy was {_before:.0%} at the last
        evaluation before the kill, {lost.greedy[-1][1]:.0%} at the end.
        """,
        shows=[
            lesson.figure(
                spans.lost_host_chart(lost),
                "Its steps and its held-out accuracy.",
            ),
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Other stacks

    The site's reference page [Sixteen stacks](stacks.html) compares them on eight questions, with
    sources. Zorplex RL divides a model only by FSDP2: for many billions of parameters, use another one.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.predicted(5)
    return


@app.cell(hide_code=True)
def _():
    lesson.recap(
        "A trainer needs memory for each parameter, and for each token of a micro-batch.",
        "More slots make a generator faster, and cost memory. ZeRO divides what belongs to parameters.",
        "In the best split of the GPUs, the slower side is as fast as it can be.",
        "A dead host and one that is cut off look alike: in both cases, wait for the lease.",
    )
    return


@app.cell(hide_code=True)
def _(config, trained):
    lesson.headline(
        f"a trainer of {config.name}, {config.shape.parameters / 1e6:.1f} million parameters, took {trained.peak / 1e6:.0f} MB; `memory.py` had said {trainer_memory(config.shape, trained.work).total / 1e6:.0f} MB."
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.links(__file__)
    return


@app.class_definition(hide_code=True)
class Solutions:
    """Check the exercises of this page, and solve them."""

    def check_trainer_budget(trainer_budget):
        nb10.check_trainer_budget(trainer_budget, Solutions.trainer_budget)

    def trainer_budget(shape, batch, e, ranks, stage):
        n = shape.parameters
        masters = 4 * n if e < 4 else 0
        parts = {"weights": e * n, "masters": masters, "gradients": 4 * n, "moments": 8 * n}
        for divided in [["masters", "moments"], ["gradients"], ["weights"]][:stage]:
            for part in divided:
                parts[part] /= ranks
        logits = 3 * 4 * batch.responses * batch.response * shape.vocabulary
        return parts | {"activations": activation_bytes(shape, batch, e), "logits": logits}

    def check_best_split(best_split):
        nb10.check_best_split(best_split, Solutions.best_split)

    def best_split(gpus, sampling, training):
        def seconds(generating):
            return max(sampling(generating), training(gpus - generating))

        best = min(range(1, gpus), key=seconds)
        return best if seconds(best) < float("inf") else None

    def check_lease_is_over(lease_is_over):
        nb10.check_lease_is_over(lease_is_over, Solutions.lease_is_over)

    def lease_is_over(now, heard, lease, drift, margin):
        return now >= heard + lease * (1 + drift) + margin


if __name__ == "__main__":
    app.run()
