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
    app_title="Moving weights",
    css_file="../zorplex_rl/course/lesson/lesson.css",
)

with app.setup(hide_code=True):
    import copy
    import itertools
    import math
    import random
    import threading
    import time
    from asyncio import gather
    from statistics import fmean, median
    from types import SimpleNamespace

    import marimo as mo
    import torch

    from zorplex_rl.course import nb07, nb07_push, nb07_torn
    from zorplex_rl.course.figures import bars, drawing_of
    from zorplex_rl.course.figures.spans import paired_timelines
    from zorplex_rl.course.lesson import exercise, lesson
    from zorplex_rl.course.nb07_torn import verdict
    from zorplex_rl.course.widgets import WeightRingRace
    from zorplex_rl.policy.load import load_policy
    from zorplex_rl.services.runtime import start_monarch
    from zorplex_rl.weights.fence import fence
    from zorplex_rl.weights.shared_memory import allocate


@app.cell(hide_code=True)
def _():
    lesson.header(
        __file__,
        minutes=50,
        hardware="two CPU cores, 3 GB of free memory, no network; RDMA hardware and a GPU are used where there are any",
        goals=[
            "measure what each way of moving weights costs, from one model into the other",
            "tear a copy of the weights, and write the reader that never uses a torn one",
            "say which bytes need not travel, and who waits when weights are pushed",
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## The new weights are somewhere else

    The trainer has taken a step. The generators still write with the weights from before it, because the new ones lie in another process, or
    on another machine. For a small language model that is half a gigabyte a step, for a large one a terabyte. The obvious way is to call the trainer and wait
    for the reply. Then the trainer has to answer, and until it does, everybody waits. The usual way, a broadcast, makes *everybody* stand still until the slowest has come.

    There is a better way: the trainer goes on with its next step while its weights are fetched. You will build that, and see what can go wrong.

    ## Two kinds of traffic

    Calls, versions and handles take hundreds of bytes: that is the **control plane**. Here it is messages between actors. (An actor is an object in
    a process of its own; others call its *endpoints*, which are methods.) Parameters take megabytes to terabytes: that is the **data plane**. Here it is one-sided reads of registered memory.

    A read is **one-sided** if the owner's Python runs nothing for it. With a network card for **RDMA**, remote direct memory access, not even the owner's process is needed. It
    goes in four steps:

    1. The owner *registers* a piece of its memory. The operating system *pins* these pages: it may no longer move them or swap them out. The network card gets their
    address, and a key for them.
    2. The owner gives address, length and key away, in a message. That is the **handle**. Whoever has it may read there, from now on.
    3. A reader gives the handle to its own card. The two cards move the bytes.
    4. The reader's card reports that the read is *complete*. The owner is told nothing.

    The last line is the trap of this page.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.figure(
        drawing_of("planes.svg"),
        "A message needs the owner's Python. A one-sided read does not.",
    )
    return


@app.cell(hide_code=True)
def settings():
    config = SimpleNamespace(
        policy=mo.cli_args().get("policy") or "embedded",  # or the folder of a model
        device="cuda" if torch.cuda.is_available() else "cpu",
        megabytes=32,  # what is moved and raced for
        repeats=3,  # of each way to move them
        busy_seconds=1.0,  # for which the owner is kept busy, and then stopped
        late_seconds=0.5,  # by which one side of a broadcast is late
        careless_reads=100,
        reads=30,  # by the learner's `read`
        steps=3,  # of the trainer, pushing and pulling
        batches={"fast": 8, "slow": 32},  # episodes in a batch, of the two generators
    )
    return (config,)


@app.cell(hide_code=True)
def _():
    from monarch.rdma import get_rdma_backend

    start_monarch()
    backend = get_rdma_backend()
    _here = (
        "This machine has RDMA hardware (ibverbs), and `RDMABuffer` uses it."
        if backend == "ibverbs"
        else "This machine has no RDMA hardware. `RDMABuffer` works over TCP here, with the same calls."
    )
    lesson.md(
        f"`RDMABuffer(tensor)` registers a tensor's memory, and is itself the handle. {_here}"
    )
    return (backend,)


@app.cell(hide_code=True)
def _(config):
    lesson.md(f"""
    ## The owner is busy

    Is a read really one-sided? `Writer`, an actor in another process, stands for the trainer. There are up to three ways to get bytes from it, or **transports**:

    - *message*: we call it, and the bytes are the reply.
    - *RDMABuffer*: a one-sided read with the handle.
    - *shared memory*: both processes map the same pages. That works on one host only.

    We read {config.megabytes} MB in three situations over each transport. First the owner is free. Then its Python computes for {config.busy_seconds:g} s, as in a training step. Then the operating system stops its whole *process* for {config.busy_seconds:g} s (`SIGSTOP`; a second signal wakes it).
    """)
    return


@app.cell(hide_code=True)
def _(config):
    ask_busy = lesson.predict(
        f"The owner's whole process is stopped for {config.busy_seconds:g} s. Which reads wait until it runs again?",
        "only the message",
        "the message and RDMABuffer",
        "all",
    )
    start_busy = lesson.start_button("Keep the owner busy, then stop it", seconds=11)
    mo.vstack([ask_busy, start_busy])
    return ask_busy, start_busy


@app.cell(hide_code=True)
async def _(config, start_busy):
    lesson.wait_for(start_busy)
    _transports = {"message": "message", "RDMABuffer": "rdma"}
    # On a GPU the weights wait in pinned memory; the package pins none that is shared.
    if config.device == "cpu" and allocate(64)[0] is not None:
        _transports["shared memory"] = "shm"
    with lesson.counting(3 * len(_transports), "reads") as _one_more:
        waits = await nb07.disturbed_reads(
            config.megabytes, _transports, config.busy_seconds, _one_more
        )
    return (waits,)


@app.cell(hide_code=True)
def _(ask_busy, backend, config, waits):
    def _waited(state):
        # On a loaded machine a free read is slow, too: only what comes on top was waiting.
        return [
            name
            for name, took in waits.items()
            if took[state] - took["free"] > 0.7 * config.busy_seconds
        ]

    waited_for_busy, _stopped = _waited("busy"), _waited("stopped")
    lesson.reveal(
        ask_busy,
        right=len(_stopped) - 1 if _stopped[:1] == ["message"] else [],
        why=f"""
        For the stopped process these waited: {", ".join(_stopped) or "nobody"}. {"Here the network card does the work." if backend == "ibverbs" else "Without RDMA hardware, threads of the owner's process send the bytes: its Python runs nothing, but its process must run."}
        Shared memory needs nobody, because the reader copies it itself. For the busy owner these waited: {", ".join(waited_for_busy) or "nobody"}. A message is answered by
        an endpoint, and an endpoint waits for its turn.
        """,
        shows=[
            lesson.figure(
                bars.grouped_bars(
                    {name: list(took.values()) for name, took in waits.items()},
                    ("free", "busy", "stopped"),
                    "How long a reader waits",
                    "seconds until the bytes were there",
                    line=config.busy_seconds,
                ),
                "The dashed line: the owner is free, or runs, again.",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _(config):
    lesson.md(f"""
    ## The bandwidth ladder

    `Puller`, in a third process, stands for a generator. {config.megabytes} MB move from the trainer's
    model into the generator's, in each way that this machine has. A move has three phases:

    1. *publish*: the trainer copies its weights into a buffer that can be read. Meanwhile it stands still.
    2. *fetch*: the bytes travel into a **staging buffer**, memory beside the generator's model. Nobody has to stand still: generation goes on.
    3. *swap*: the staging buffer is copied into the model, between two decode steps. Meanwhile the generator stands still.

    Besides *message* and *shared memory* there are:

    - *file*: `torch.save`, then `torch.load`.
    - *broadcast*: `torch.distributed` with gloo. It is a *collective*: both sides must call it at once, and it writes into the model itself. So fetch and swap are one.
    - *TCP*: `RDMABuffer` without a card, in chunks of 4 MB.
    """)
    return


@app.cell(hide_code=True)
def _():
    ask_ladder = lesson.predict(
        "Counted end to end: how many times as fast as a message is the fastest of these?",
        "less than 3",
        "3 to 7",
        "more than 7",
    )
    start_ladder = lesson.start_button("Climb the ladder", seconds=12)
    mo.vstack([ask_ladder, start_ladder])
    return ask_ladder, start_ladder


@app.cell(hide_code=True)
def _(backend, waits):
    settings_of = {
        "tuned": {  # Monarch's defaults are 64, 1 and 1000
            "rdma_max_chunk_size_mb": 4,
            "rdma_tcp_fallback_parallelism": 2,
            "message_ack_every_n_messages": 1,
            "rdma_disable_ibverbs": True,
        }
    }
    rungs = {
        "message": ("tuned", "message"),
        "file": ("tuned", "file"),
        "broadcast (gloo)": ("tuned", "broadcast"),
        "TCP": ("tuned", "rdma"),
    }
    if "shared memory" in waits:
        rungs["shared memory"] = ("tuned", "shm")
    if backend == "ibverbs":
        settings_of["hardware"] = settings_of["tuned"] | {"rdma_disable_ibverbs": False}
        rungs["RDMA (ibverbs)"] = ("hardware", "rdma")
    return rungs, settings_of


@app.cell(hide_code=True)
async def _(config, rungs, settings_of, start_ladder):
    lesson.wait_for(start_ladder)
    with lesson.counting(len(rungs) * (config.repeats + 1), "moves") as _one_more:
        moves, late_move, whole_model = await nb07.climb(
            config, rungs, settings_of, _one_more
        )
    return late_move, moves, whole_model


@app.cell(hide_code=True)
def _(config, moves):
    # Of each rung the repeat with the median time; the first one warms up.
    middle = {
        rung: min(
            found[1:],
            key=lambda moved: abs(moved.total - median(m.total for m in found[1:])),
        )
        for rung, found in moves.items()
    }
    rates = {rung: config.megabytes / 1e3 / moved.total for rung, moved in middle.items()}
    return middle, rates


@app.cell(hide_code=True)
def _(ask_ladder, config, late_move, middle, rates):
    _best = max(rates, key=rates.get)
    _times = rates[_best] / rates["message"]
    _tcp, _message = middle["TCP"], middle["message"]

    lesson.reveal(
        ask_ladder,
        right=0 if _times < 3 else 1 if _times <= 7 else 2,
        why=f"""
        {_times:.1f} times, by {_best}.

        Over TCP, without a card, the move took {1e3 * _tcp.total:.0f} ms, as a message {1e3 * _message.total:.0f} ms. The trainer stands still for {1e3 * _tcp.still:.0f} ms, while it publishes. With a message it stands still for {1e3 * _message.still:.0f} ms, because its Python also packs the bytes. The generator stands still for the swap only, {1e3 * _tcp.swap:.0f} ms.

        Where both sides come at once, a broadcast may be quicker or slower than TCP. What it costs everywhere is the waiting: both stand still until the later one has come, and for the move itself. With the generator
        {config.late_seconds:g} s late, the trainer's own call took {late_move.publish:.2f} s.
        """,
        shows=[
            lesson.table(
                f"{config.megabytes} MB, the median of {config.repeats} times: milliseconds. In a broadcast both sides work at once, so they are not added",
                [
                    {
                        "way": rung,
                        "publish": f"{1e3 * moved.publish:.1f}",
                        "fetch": f"{1e3 * moved.fetch:.1f}",
                        "swap": f"{1e3 * moved.swap:.1f}",
                        "end to end": f"{1e3 * moved.total:.1f}",
                        "trainer stands still": f"{1e3 * moved.still:.1f}",
                    }
                    for rung, moved in middle.items()
                ],
            ),
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A torn read

    Now the trap. The writer does not notice a one-sided reader, so it cannot wait for it. Say it begins the next version in the middle of
    a copy. Then a part of the copy is old, and the rest new: a **torn read**. No error is raised.

    A first idea is to give the writer several buffers, or **slots**, which it fills in turn: a **ring**. The reader takes the newest. Press *Play*, and find a copy
    with two colours.
    """)
    return


@app.cell(hide_code=True)
def _():
    WeightRingRace()
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    Each slot has a header of two numbers. For now only the second counts: the
    version. The writer takes the slot with the oldest version, the reader the one with the newest.
    `read_headers()` and `read_slot(slot)` are all that a reader can do, from any process.
    """)
    return


@app.function
def publish_carelessly(ring, weights, version):
    slot = ring.headers[:, 1].argmin()
    ring.slots[slot].copy_(weights)
    ring.headers[slot, 1] = version


@app.function
def read_carelessly(read_headers, read_slot):
    headers = read_headers()
    slot = max(range(len(headers)), key=lambda slot: headers[slot][1])
    return headers[slot][1], read_slot(slot)


@app.function(hide_code=True)
def race(publish, read, megabytes, reads, rest=0.002):
    """Read while a thread publishes and rests. In version 7 all numbers are 7.0."""
    size = megabytes * 250_000
    ring = SimpleNamespace(
        headers=torch.zeros(2, 2, dtype=torch.int64), slots=torch.zeros(2, size)
    )
    staging, stop = torch.zeros(size), threading.Event()
    found = SimpleNamespace(verdicts=[], copies=[], attempts=0)

    def keep_publishing():
        for version in itertools.count(1):
            publish(ring, torch.tensor(float(version)).expand(size), version)
            if stop.wait(rest * random.random()):
                return

    def read_headers():
        fence()  # the processor may not move reads across it
        headers = [tuple(header) for header in ring.headers.tolist()]
        fence()
        return headers

    def read_slot(slot):
        found.attempts += 1
        return staging.copy_(ring.slots[slot])

    writer = threading.Thread(target=keep_publishing, daemon=True)
    writer.start()
    while not ring.headers[:, 1].any():
        time.sleep(0.001)
    try:
        for _ in range(reads):
            version, weights = map(torch.as_tensor, read(read_headers, read_slot))
            found.verdicts.append(verdict(weights, version))
            found.copies.append(weights[:: size // 256].long().tolist())
            time.sleep(rest * random.random())
    finally:
        stop.set()
        writer.join()
    return found


@app.cell(hide_code=True)
def _(config):
    ask_torn = lesson.predict(
        f"Two slots of {config.megabytes} MB. A thread publishes again and again, while {config.careless_reads} careless reads are made. How many copies are torn?",
        "none: two slots keep writer and reader apart",
        "some",
        "more than half",
    )
    start_race = lesson.start_button("Let them race", seconds=3)
    mo.vstack([ask_torn, start_race])
    return ask_torn, start_race


@app.cell(hide_code=True)
def _(config, start_race):
    lesson.wait_for(start_race)
    careless = race(
        publish_carelessly,
        read_carelessly,
        config.megabytes,
        config.careless_reads,
    )
    return (careless,)


@app.cell(hide_code=True)
def _(ask_torn, careless):
    _torn = [copy for copy in careless.copies if len(set(copy)) > 1]
    _count, _all = careless.verdicts.count("torn"), len(careless.verdicts)
    lesson.reveal(
        ask_torn,
        right=0 if not _count else 1 if _count <= _all / 2 else 2,
        why=f"""
        {_count} of {_all} copies were torn. {careless.verdicts.count("another version")} more were whole, but not of the version that the header
        had said: the slot was written anew after the look at its header and before the copy.
        """,
        shows=[
            lesson.figure(
                bars.copies_chart((_torn or careless.copies)[:4]),
                f"{'Some torn copies' if _torn else 'No copy was torn; these are whole'}: a colour, and where there is room the number, for each version. A large copy is made by several threads, so new parts may lie in its middle, too.",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Never torn

    The first number of each header is the slot's *sequence*. It is 0 until the slot is first written, odd before a copy into it begins, and
    even, larger by one, after the copy is done. While it is odd, trust nothing else in that slot. Each write takes the next two numbers of the whole ring, so the slot with the smallest sequence is the oldest one.
    In the race above, switch on the check, and see which copies it throws away.

    The order of these writes matters, and `fence()` keeps it.
    """)
    return


@app.function
def publish(ring, weights, version):
    slot = ring.headers[:, 0].argmin()  # the oldest
    counter = ring.headers[:, 0].max() + 1
    ring.headers[slot, 0] = counter  # odd: being written
    fence()
    ring.slots[slot].copy_(weights)
    ring.headers[slot, 1] = version
    fence()
    # even: complete
    ring.headers[slot, 0] = counter + 1


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 1: which slot

    Which slots can be trusted at all, and which of them is the newest? `headers` has a pair (sequence, version) for each slot. Return the slot, and `None` while
    there is no complete one.
    """)
    return


@app.function
def newest_slot(headers):
    """Return the slot with the newest complete version, or None.

    newest_slot([(7, 4), (4, 2), (6, 3)]) is 2: slot 0 is being written
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: newest_slot,
        Solutions,
        level="warm-up",
        minutes=3,
        hints=(
            "Which sequences say that a slot holds a complete version?",
            "Those that are even and not 0. Of these slots take the one with the largest version; `max` has a `default`.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 2: never a torn copy

    Write `read`; it may call your `newest_slot`. The writer does not wait: it may do anything
    between two of your calls, and *during* `read_slot`. Try again as long as it takes.
    The check plays a writer that comes at the worst moments.
    """)
    return


@app.function
def read(read_headers, read_slot):
    """Return (version, weights) of the newest complete slot, never torn.

    read_headers()   [(6, 3), (7, 2)]: slot 0 holds version 3,
                     slot 1 is being written
    read_slot(0)     a copy of slot 0: some kind of array
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: read,
        Solutions,
        level="core",
        minutes=12,
        lines=8,
        hints=(
            "What can you compare before and after your copy, that says whether anybody began to write in between?",
            "Loop: take the headers; copy the newest complete slot, if there is one; take the headers again. "
            "Return only if that slot's header is what it was.",
        ),
    )
    return


@app.cell(hide_code=True)
async def _(careless, config):
    lesson.needs(lambda: careless)  # one after the other: they would share the processor
    reader, whose = exercise.running(lambda: read, Solutions)
    careful = race(publish, reader, config.megabytes, config.reads)
    afar = await nb07_torn.race_from_afar(reader, config.megabytes, config.reads // 2)
    return afar, careful, whose


@app.cell(hide_code=True)
def _(afar, careful, whose):
    def _result(found, copies):
        good, count = found.verdicts.count("whole"), len(found.verdicts)
        return f"{good} of {count} answers were whole and of the right version; of {copies} copies, the reader threw {copies - count} away"

    mo.vstack(
        [
            lesson.md(f"""
    The same race, read by {whose}: {_result(careful, careful.attempts)}.

    This protocol is a **seqlock**: it does not prevent a torn read, it reveals it. The package's
    `read_rings` is the same loop with a limit.
    """),
            lesson.folded(
                "What does `fence()` do?",
                "A processor may write in another order than the program says. `fence()` forbids that: what stands above it is written before what stands below. "
                "Python has none, so it is C's `atomic_thread_fence`, called through `ctypes`. A reader on this machine needs it, too: `read_headers()` calls it. "
                "A reader on another machine does not, because each of its reads is complete before the next begins.",
            ),
            lesson.folded(
                "And from another process, through `RDMABuffer`?",
                f"A ring of the package, here with three slots, read the same way: {_result(afar, len(afar.copies))}.",
            ),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 3: how many slots?

    With more slots, fewer reads are torn. The writer starts a new version every
    `period` seconds, always into the oldest slot, and writes for `write` seconds (`write` ≤
    `period`). A reader picks the newest complete slot at any moment, and its copy is done `read`
    seconds later. A copy that is done just when the writer begins on its slot again is in time. Return the fewest slots, 2 or more, with which no read is ever torn.
    """)
    return


@app.function
def slots_needed(read, write, period):
    """slots_needed(0.75, 0.5, 1.0) is 3."""
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: slots_needed,
        Solutions,
        level="stretch",
        minutes=7,
        hints=(
            "Follow one slot from the moment at which it is complete. How long can it be the newest? When is it overwritten?",
            "Complete at 0, it is the newest until `period`. With K slots it is overwritten from `K * period - write` on.",
        ),
    )
    return


@app.cell(hide_code=True)
def _(afar, middle):
    lesson.needs(lambda: (afar, middle))
    _count, _whose = exercise.running(lambda: slots_needed, Solutions)
    _slowest, _step = max(afar.copies), 1.0
    _publish = min(_step, middle["TCP"].publish)
    lesson.md(f"""
    With too few slots each copy may be torn, and `read` never returns. Above, a copy took {lesson.in_words(_slowest)} at most, and publishing {lesson.in_words(_publish)}. With a training step of one second,
    {_count(_slowest, _publish, _step)} slots are enough, says {_whose}. By default the package takes two, and gives up after a number of torn reads.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## What need not travel

    The trainer keeps its weights in float32, because 16 bits have too few digits for the small updates. But a generator is content with
    bfloat16, which has 8 significant bits. So half of the bytes can stay at home. (The generator is then a slightly different policy: notebook 09.)

    After rounding, many weights have not changed at all. A step of AdamW moves a weight by about the learning rate, say 0.000001. But a weight near 0.02
    can only move by steps of about 0.0001 in bfloat16. A sender may leave out what has not changed, and send the others with their places: *delta* synchronisation.
    """)
    return


@app.function(hide_code=True)
def share_unchanged(policy, learning_rate):
    """Take one step, and compare the rounded weights before and after it."""
    model = copy.deepcopy(policy.model)
    old = [weight.detach().bfloat16() for weight in model.parameters()]
    nb07_push.supervised_step(model, torch.optim.AdamW(model.parameters(), learning_rate))
    new = [weight.detach().bfloat16() for weight in model.parameters()]
    same = sum(int((a == b).sum()) for a, b in zip(old, new, strict=True))
    return same / sum(weight.numel() for weight in old)


@app.cell(hide_code=True)
def _(config):
    policy = load_policy(config.policy, config.device)
    lesson.md(f"""
    A step of this page's model leaves {share_unchanged(policy, 1e-6):.1%} of its weights unchanged at that rate, and {share_unchanged(policy, 4e-4):.0%} at 0.0004, the rate at which so small a model is trained.
    """)
    return (policy,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    The other way is LoRA, the narrow paths of notebook 05d: a layer computes `W x + B (A x)`, and only the thin matrices `A` and `B` are trained. The generators have `W` already, so only `A` and `B` travel.
    Of a layer with 576 · 1,536 = 884,736 weights these are 16 · (576 + 1,536) = 33,792 numbers at rank 16.
    """)
    return


@app.cell(hide_code=True)
def _(config, rates, whole_model):
    # Inputs and outputs of the layers of a block: queries, keys, values, output; gate, up, down.
    _block = [(576, 576)] * 2 + [(576, 192)] * 2 + [(576, 1536)] * 3
    # The embedding, 61 norms, and the layers.
    _all = (49_152 + 61) * 576 + 30 * sum(map(math.prod, _block))
    _versions = {
        "float32": 4 * _all,
        "bfloat16": 2 * _all,
        "rank 16": 16 * 4 * 30 * sum(map(sum, _block)),
    }
    _ways = rates | {"a card of 400 Gb/s": 50}
    _message = _versions["rank 16"] / 1e9 / rates["message"]
    _rung, _moved = whole_model
    _times = _moved.total * rates[_rung] * 1e3 / nb07.SMOLLM2
    mo.vstack(
        [
            lesson.table(
                "How long a version of SmolLM2 takes, estimated: its bytes, divided by the rate of the ladder. Adapters are in float32. Last row: the line rate alone (NVIDIA ConnectX-7 user manual), without publish and swap, which the other rows have",
                [
                    {"way": way}
                    | {
                        f"{name}, {size / 1e6:.0f} MB": lesson.in_words(size / 1e9 / rate)
                        for name, size in _versions.items()
                    }
                    for way, rate in _ways.items()
                ],
            ),
            lesson.md(f"""
            As adapters of rank 16, a version takes {lesson.in_words(_message)} as a message{", so the simplest way is quick enough beside a step of one second" if _message < 0.3 else ""}.
            `zorplex-rl train --lora-rank 16` publishes them, and no more.
            """),
            lesson.folded(
                "Does the estimate hold?",
                f"""A model of {nb07.SMOLLM2} MB, moved by *{_rung}*, took {lesson.in_words(_moved.total)}: {_times:.1f} times its estimate.
            {f"The rate is that of {config.megabytes} MB, which fits in the cache of a large processor. {nb07.SMOLLM2} MB does not." if _times > 1.3 else ""}""",
            ),
            lesson.folded(
                "How fast is it done at scale?",
                "Published, not measured here: RDMA writes between GPUs moved Kimi-K2, 10¹² parameters of one byte, in 1.3 s "
                "([Perplexity, 2025](https://research.perplexity.ai/articles/weight-transfer-for-rl-post-training-in-under-2-seconds)). "
                "There 256 GPUs trained and 128 generated, and each sent its own part (notebook 07b). "
                f"128 cards at the line rate of the table would need {1e12 / (128 * 50e9):.2f} s. So the wire was not what took the time.",
            ),
        ]
    )
    return


@app.cell(hide_code=True)
def _(config):
    lesson.md(f"""
    ## Push or pull?

    So far the reader *pulls*: it fetches when it wants to. A trainer can also *push*: after a step it offers the new version to
    every generator, and waits until each has taken it. A generator takes it between two batches, so that no batch has two versions.

    Here two generators decode batches of {config.batches["fast"]} and of {config.batches["slow"]} episodes. When they pull, they do so before each batch.
    Both ways run twice, in turns. The first round only warms the machine up.
    """)
    return


@app.function
async def pulling(trainer, generators, versions):
    for version in versions:
        # It trains, and publishes. The generators pull by themselves.
        await trainer.step.call_one(version)


@app.function
async def pushing(trainer, generators, versions):
    for version in versions:
        await trainer.step.call_one(version)
        await gather(*(generator.take.call_one().as_asyncio() for generator in generators))


@app.cell(hide_code=True)
def _():
    start_protocols = lesson.start_button("Push, then pull", seconds=20)
    start_protocols
    return (start_protocols,)


@app.cell(hide_code=True)
async def _(config, start_protocols):
    lesson.wait_for(start_protocols)
    with lesson.counting(4 * config.steps, "steps") as _one_more:
        protocols = await nb07_push.compare((pushing, pulling) * 2, config, _one_more)
    return (protocols,)


@app.cell(hide_code=True)
def _(protocols):
    _pull = protocols["pulling"]
    _batch = max(s.end - s.start for s in _pull.timeline.spans if s.actor == "slow")
    ask_push = lesson.predict(
        f"With pulling, a step took {_pull.step:.1f} s, and the slow generator's longest batch {_batch:.1f} s. When the trainer pushes after each step, for how much of the time does it wait?",
        "less than a tenth",
        "a tenth to a half",
        "more than half",
    )
    ask_push
    return (ask_push,)


@app.cell(hide_code=True)
def _(ask_push, config, protocols):
    _push, _pull = protocols["pushing"], protocols["pulling"]
    _shown = max(_push.seconds, _pull.seconds)
    _waits, _hardly = (
        run.step * (1 - run.timeline.busy_share("trainer")) for run in (_push, _pull)
    )
    _share, _own = _waits / _push.step, [_push.step - _waits, _pull.step - _hardly]
    _ages = [fmean(run.ages[1] or [math.nan]) for run in (_push, _pull)]
    lesson.reveal(
        ask_push,
        right=0 if _share < 0.1 else 1 if _share <= 0.5 else 2,
        why=f"""
        It waits for {_share:.0%} of the time, because the slow generator takes weights only between two long batches. That is {_waits:.2f} s in each step. When the generators pull, it waits for {_hardly:.2f} s.

        With pushing, the trainer takes no second step before all have taken the first, so weights are never more than one version old. With pulling they age by as many versions as the trainer makes during a batch.
        At the end of a batch, the slow one's weights were {_ages[0]:.1f} versions old with pushing, and {_ages[1]:.1f} with pulling{"" if _ages[1] > _ages[0] + 0.2 else ", hardly more here, because its batches are not much longer than a step"}. That age is *staleness*. It grows with the length of a batch, and only `max_lag` bounds it (notebook 08).

        The trainer's own work took {_own[0]:.2f} s of a step with pushing, and {_own[1]:.2f} s with pulling. {"So the steps differ little but for the waiting." if max(_own) < 1.2 * min(_own) else "The processes share this machine's cores, and had more of them in one of the runs. So compare the waits, and not the whole steps."}
        """,
        shows=[
            lesson.figure(
                paired_timelines(
                    {name: run.timeline for name, run in protocols.items()},
                    _shown,
                    ("trainer", *config.batches),
                ),
                "Both runs, on one axis. Where a batch found no new version, the mark between two batches is too thin to see.",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    A third way is one-sided push: the trainer *writes* into the generators' staging buffers, and nobody waits. It
    needs cards that can write, and a generator that checks for torn copies, as yours does.
    """)
    return


@app.cell(hide_code=True)
def _(policy):
    lesson.ran_on(policy)
    return


@app.cell(hide_code=True)
def _():
    lesson.recap(
        4,
        "One-sided means that the owner's Python runs nothing, and does not know who reads. With a card for RDMA its process need not run either.",
        "Publishing stops the trainer, a one-sided fetch stops nobody, the swap stops the generator.",
        "A one-sided read can be torn, silently. A seqlock reveals it.",
        "In bfloat16 half of the bytes need not travel, and at a small learning rate few weights change. Adapters fit in a message.",
        "A trainer that pushes waits for the slowest reader. One that is pulled from waits for nobody, and nothing but `max_lag` bounds how old the readers' weights are.",
    )
    return


@app.cell(hide_code=True)
def _(careful):
    lesson.headline(
        f"{careful.verdicts.count('whole')} of {len(careful.verdicts)} answers were whole, while a thread overwrote the weights: the reader threw {careful.attempts - len(careful.verdicts)} of {careful.attempts} copies away."
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.links(__file__)
    return


@app.class_definition(hide_code=True)
class Solutions:
    """Check the exercises of this page, and solve them."""

    def check_newest_slot(newest_slot):
        def drawn(draw):
            headers = [(0, 0)] * draw.randint(2, 5)
            for n in range(1, draw.randint(1, 20)):  # as a ring is written, odd while it is
                headers[(n + 1) // 2 % len(headers)] = (n, n + 3)
            return (headers,)

        exercise.agree(
            newest_slot,
            Solutions.newest_slot,
            drawn,
            times=60,
            examples=[
                ([(7, 4), (4, 2), (6, 3)],),
                ([(1, 0), (0, 0)],),
                ([(5, 3), (4, 2)],),
            ],
            mistakes={
                "a slot with an odd sequence is being written": lambda headers: (
                    Solutions.newest_slot([(2 * n, version) for n, version in headers])
                ),
                "a sequence of 0 is even, too: that slot was never written": lambda headers: (
                    Solutions.newest_slot([(n or 2, version) for n, version in headers])
                ),
                "return the slot, not its version": lambda headers: max(
                    (version for n, version in headers if n and n % 2 == 0), default=None
                ),
            },
        )

    def newest_slot(headers):
        whole = [slot for slot, (n, _) in enumerate(headers) if n and n % 2 == 0]
        return max(whole, key=lambda slot: headers[slot][1], default=None)

    def check_read(read):
        nb07_torn.check_read(read)

    def read(read_headers, read_slot):
        while True:
            headers = read_headers()
            whole = [slot for slot, (n, _) in enumerate(headers) if n and n % 2 == 0]
            if whole:
                slot = max(whole, key=lambda slot: headers[slot][1])
                weights = read_slot(slot)
                if read_headers()[slot] == headers[slot]:
                    return headers[slot][1], weights

    def check_slots_needed(slots_needed):
        def drawn(draw):  # eighths, which floats hold exactly
            period = draw.randint(1, 16)
            return draw.randint(0, 60) / 8, draw.randint(0, period) / 8, period / 8

        exercise.agree(
            slots_needed,
            Solutions.slots_needed,
            drawn,
            times=60,
            examples=[
                (0.75, 0.25, 1.0),
                (0.0, 0.0, 1.0),
                (2.5, 0.5, 1.0),
                (6.0, 0.75, 1.625),
            ],
            mistakes={
                "a read may begin just before the next version is complete: by then `period` of its slot's time is gone": lambda read, write, period: (
                    max(2, math.ceil((read + write) / period))
                ),
                "a read is torn when the writer *begins* on its slot again, `write` seconds before it is done": lambda read, _, period: (
                    Solutions.slots_needed(read, 0.0, period)
                ),
                "rounded down, the last part of the slowest read is torn": lambda read, write, period: (
                    max(2, 1 + int((read + write) / period))
                ),
            },
        )

    def slots_needed(read, write, period):
        # Complete at 0, a slot is the newest until period; with K slots it is overwritten from K * period - write on.
        return max(2, 1 + math.ceil((read + write) / period))


if __name__ == "__main__":
    app.run()
