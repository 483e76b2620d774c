# /// script
# [tool.marimo.display]
# theme = "system"
# ///

import marimo

__generated_with = "0.25.2"
app = marimo.App(
    width="medium",
    app_title="Moving weights",
    css_file="../zorplex_rl/course/lesson/lesson.css",
)

with app.setup(hide_code=True):
    import asyncio
    import itertools
    import math
    import os
    import pickle
    import random
    import signal
    import tempfile
    import threading
    import time
    from contextlib import AsyncExitStack, asynccontextmanager
    from dataclasses import replace
    from itertools import pairwise
    from pathlib import Path
    from statistics import fmean, median
    from types import SimpleNamespace

    import marimo as mo
    import torch
    from torch import nn

    from zorplex_rl import TASK_SPECS
    from zorplex_rl.course.figures.loop_drawing import loop_drawing
    from zorplex_rl.course.figures.runs import paired_timelines
    from zorplex_rl.course.figures.transfer import (
        copies_chart,
        ladder_chart,
        planes_drawing,
        waits_chart,
    )
    from zorplex_rl.course.lesson import exercise, lesson
    from zorplex_rl.course.lesson.plug_in import plug_in
    from zorplex_rl.course.widgets import TransferCalculator, WeightRingRace
    from zorplex_rl.learning.learner import response_logprobs
    from zorplex_rl.learning.losses import mismatch
    from zorplex_rl.policy.load import load_policy
    from zorplex_rl.policy.rollout import RolloutRequest, Sampling, rollout
    from zorplex_rl.services.replica import spawn
    from zorplex_rl.services.runtime import (
        Actor,
        concurrent_endpoint,
        quiet_stderr,
        start_runtime,
    )
    from zorplex_rl.task.environment import Zorplex
    from zorplex_rl.timeline import SpanRecorder, Timeline
    from zorplex_rl.training.transports import Publisher, connect, subscribe
    from zorplex_rl.weights.fence import fence
    from zorplex_rl.weights.layout import Layout
    from zorplex_rl.weights.ring import WeightPullError, WeightRing, newest_slot, read_ring
    from zorplex_rl.weights.shared_memory import allocate

    CONTENTS = 3  # different versions that the race on this page has at hand


@app.cell(hide_code=True)
def _():
    lesson.header(
        __file__,
        minutes=42,
        hardware="two CPU cores, no network; RDMA hardware and a GPU are used where there are any",
        goals=[
            "keep commands and bulk data apart, and say what a handle is",
            "show who has to take part in a transfer, and who waits for whom",
            "measure what a transport reaches, and compute from it how long a model will take",
            "write publish and read, tear a copy, and mend it with a seqlock",
            "decide between pushing and pulling by a measurement",
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Two kinds of traffic

    After every training step the generators need the new weights. Notebook 05 ended with what travels in a step: tasks and episodes are
    kilobytes, weights are everything else. So a distributed RL system treats two kinds of traffic differently.

    | what | **control plane** | **data plane** |
    |---|---|---|
    | carries | calls, versions, handles, errors | parameters |
    | a message | hundreds of bytes | megabytes to terabytes |
    | what counts | latency, order, noticed failures | bandwidth, and that nobody is interrupted |
    | here | Monarch actor messages | one-sided reads of registered memory |

    A read is **one-sided** if the owner of the memory runs no code for it. The owner registers the memory once and gives out a **handle**.
    Anybody with the handle can read those bytes later. This is the idea of **RDMA**, remote direct memory access: there the network card
    reads the memory, and not even the owner's processor takes part.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.vstack(
        [
            lesson.figure(
                loop_drawing("trainer", "weights", "generator"),
                "This page: how a new version gets from the trainer to the generators.",
            ),
            lesson.figure(
                planes_drawing(),
                "A message needs the owner's Python. A one-sided read does not.",
            ),
        ]
    )
    return


@app.cell
def settings():
    _name = mo.cli_args().get("policy") or "embedded"
    config = SimpleNamespace(
        policy=_name,  # or the folder of a model, for example a copy of Qwen2.5-0.5B-Instruct
        device="cuda" if torch.cuda.is_available() else "cpu",
        threads=1,  # in every process: there are more processes than cores
        megabytes=32,  # what the bandwidth ladder moves
        repeats=5,
        busy_seconds=2.0,  # for which the owner is kept busy
        stopped_seconds=1.5,  # for which its process is stopped
        late_seconds=0.5,  # by which one side of a broadcast is late
        race_megabytes=32,  # what the race on this page moves
        ring_megabytes=16,  # what is read from another process
        careless_reads=200,  # in the first race on this page: few are torn
        reads=60,  # of each kind, in the races after it
        ring_slots=(2, 3, 4, 6),
        far_reads=8,  # of each kind and number of slots, from another process
        mismatch_episodes=48,
        steps=8,  # of the trainer, pushing and pulling
        batches=(8, 64),  # episodes in a batch, of the fast and the slow generator
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
    ## A handle is small

    `RDMABuffer(tensor)` registers a tensor's memory and is itself the handle. Below, buffers of four sizes: what a message with the *handle*
    would carry, against a message with the *bytes*.
    """)
    return


@app.cell(hide_code=True)
def _():
    ask_handle = lesson.predict(
        "From 1 kB of memory to 100 MB: how does the size of the handle grow?",
        "hardly at all",
        "to some kB, for a table of memory pages",
        "to a thousandth of the memory, 100 kB",
    )
    ask_handle
    return (ask_handle,)


@app.cell
def _():
    from monarch.rdma import RDMABuffer, get_rdma_backend

    start_runtime()
    handle_rows = []
    for _size in (10**3, 10**5, 10**7, 10**8):
        _memory = torch.zeros(_size, dtype=torch.uint8)
        with quiet_stderr():
            _handle = RDMABuffer(_memory)
        handle_rows.append((_size, len(pickle.dumps(_handle)), len(pickle.dumps(_memory))))
        del _handle
    backend = get_rdma_backend()
    return backend, handle_rows


@app.cell(hide_code=True)
def _(ask_handle, backend, handle_rows):
    _handles = [handle for _, handle, _ in handle_rows]
    _backend = (
        "This machine has RDMA hardware (ibverbs), and `RDMABuffer` uses it."
        if backend == "ibverbs"
        else f"This machine has no RDMA hardware. So `RDMABuffer` works over sockets here, with the same handles and calls; Monarch calls that backend `{backend}`."
    )
    lesson.reveal(
        ask_handle,
        right=0 if _handles[-1] < 2 * _handles[0] else 1 if _handles[-1] < 50_000 else 2,
        why=f"""
        {_handles[-1]:,} bytes, where 1 kB takes {_handles[0]:,}. A handle says whose memory it is, where it begins and how long it is. Everybody
        who may read gets it once, through the control plane. {_backend}
        """,
        shows=[
            lesson.table(
                "What a message carries, in bytes",
                [
                    {
                        "memory": f"{size:,}",
                        "its handle": f"{handle:,}",
                        "the memory itself": f"{payload:,}",
                    }
                    for size, handle, payload in handle_rows
                ],
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Both ends

    Two actors stand for trainer and generator. `Writer` owns a model and makes new versions readable: it can **publish** them in memory, save them
    to a file, or broadcast them. `Puller` can **pull** the newest version in each of these ways. A way to move the bytes is a **transport**.

    `Publisher` keeps a **ring**, a few host buffers that are written in turn; the section on torn reads says why several. All parameters stand
    in one buffer, one after the other, so that one large read replaces hundreds of small ones. `open_ring` returns the layout and the handles.
    """)
    return


@app.class_definition
class Writer(Actor):
    """A trainer that only makes versions readable."""

    def __init__(self, make_model, *args):
        torch.set_num_threads(1)
        self.model, self.version = make_model(*args), 0

    @concurrent_endpoint
    async def open_ring(self, slots=3, dtype=None):
        self.publisher = Publisher(self.model, slots, dtype)
        return self.publisher.source()

    @concurrent_endpoint
    async def publish(self):
        self.version += 1
        self.publisher.publish(self.model, self.version)

    @concurrent_endpoint
    async def ring_headers(self):  # for messages only: the bytes come with the reply
        return self.publisher.read_headers()

    @concurrent_endpoint
    async def ring_slot(self, slot):
        return self.publisher.read_slot(slot)

    @concurrent_endpoint
    async def save(self, path):
        torch.save(self.model.state_dict(), path)

    @concurrent_endpoint
    async def join(self, path, rank):
        await asyncio.to_thread(join_group, path, rank)

    @concurrent_endpoint
    async def broadcast(self):
        await asyncio.to_thread(broadcast_all, self.model)

    @concurrent_endpoint
    async def be_busy(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:  # in Python, without a pause
            pass

    @concurrent_endpoint
    async def process(self):
        """Its id, and the processor time that its threads have used."""
        return os.getpid(), time.process_time()


@app.class_definition
class Puller(Actor):
    """A generator that only pulls. Every way returns the seconds until it has the bytes."""

    def __init__(self, make_model, *args):
        torch.set_num_threads(1)
        self.model, self.subscribers = make_model(*args), {}

    @concurrent_endpoint
    async def subscribe(self, source, transport):
        self.subscribers[transport] = await subscribe(source, transport, self.model)

    @concurrent_endpoint
    async def pull(self, transport):
        began = time.perf_counter()
        await self.subscribers[transport].fetch()  # into a staging buffer, verified
        fetched = time.perf_counter()
        self.subscribers[transport].swap()  # from there into the model
        return fetched - began, time.perf_counter() - fetched

    @concurrent_endpoint
    async def load(self, path):
        began = time.perf_counter()
        state = torch.load(path, weights_only=True)
        loaded = time.perf_counter()
        self.model.load_state_dict(state)
        return loaded - began, time.perf_counter() - loaded

    @concurrent_endpoint
    async def join(self, path, rank):
        await asyncio.to_thread(join_group, path, rank)

    @concurrent_endpoint
    async def receive(self):
        began = time.perf_counter()
        await asyncio.to_thread(broadcast_all, self.model)
        return time.perf_counter() - began, 0.0


@app.function
def broadcast_all(model):
    """Both sides call it: rank 0 sends, rank 1 receives into its model."""
    for parameter in model.parameters():
        torch.distributed.broadcast(parameter.data, src=0)


@app.function(hide_code=True)
def join_group(path, rank):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{path}", rank=rank, world_size=2
    )


@app.function(hide_code=True)
def layers(megabytes, per_layer=4):
    """A model of float32 layers, 4 MB each."""
    return nn.ParameterList(
        torch.zeros(250_000 * per_layer) for _ in range(megabytes // per_layer)
    )


@app.function(hide_code=True)
@asynccontextmanager
async def processes(**wanted):
    """An actor for each name, in a process of its own, until the block ends."""
    started = []
    try:
        for name, (actor_class, *args) in wanted.items():
            started.append(await spawn(name, actor_class, *args))
        yield [replica.actor for replica in started]
    finally:
        await asyncio.gather(*(replica.stop() for replica in started))


@app.cell(hide_code=True)
def _(config):
    # On a GPU the ring is pinned memory, which processes cannot share; elsewhere than on Linux there is no memfd.
    shares_memory = config.device == "cpu" and allocate(64)[0] is not None
    read_transports = {"message": "message", "RDMABuffer": "rdma"}
    if shares_memory:
        read_transports["shared memory"] = "shm"
    return read_transports, shares_memory


@app.cell(hide_code=True)
def _(config):
    lesson.md(f"""
    ## The owner is busy

    Is a read really one-sided? We ask for {config.ring_megabytes} MB three times over each transport. First the owner is free. Then its Python computes
    for {config.busy_seconds:g} seconds without a pause, as in a training step. Then its whole *process* is stopped by `SIGSTOP` for {config.stopped_seconds:g} seconds: no thread of it runs.
    With shared memory both processes map the same pages.
    """)
    return


@app.cell(hide_code=True)
def _(config):
    ask_busy = lesson.predict(
        f"The owner's Python is busy for {config.busy_seconds:g} s. Who waits until it is free again?",
        "everybody who reads",
        "only the reader that sent a message",
        "nobody",
    )
    ask_busy
    return (ask_busy,)


@app.cell(hide_code=True)
def _(config):
    ask_stopped = lesson.predict(
        f"The owner's process is stopped for {config.stopped_seconds:g} s. Which reads come back before it runs again?",
        "none",
        "those of shared memory only",
        "those of shared memory and of `RDMABuffer`",
    )
    ask_stopped
    return (ask_stopped,)


@app.cell(hide_code=True)
def _():
    start_busy = lesson.start_button("Keep the owner busy", seconds=14)
    start_busy
    return (start_busy,)


@app.function
async def seconds_to_read(reader, staging):
    began = time.perf_counter()
    await reader.read_slot(0, staging)
    return time.perf_counter() - began


@app.function(hide_code=True)
async def disturbed_reads(writer, reader, staging, config):
    """Seconds of a read while its owner is free, busy, and stopped."""
    await seconds_to_read(
        reader, staging
    )  # the first one meets memory that was never touched
    found = {"free": await seconds_to_read(reader, staging)}

    head_start = 0.2  # by then it is certainly busy
    busy = asyncio.ensure_future(
        writer.be_busy.call_one(head_start + config.busy_seconds).as_asyncio()
    )
    await asyncio.sleep(head_start)
    found["busy"] = await seconds_to_read(reader, staging)
    await busy

    pid, _ = await writer.process.call_one()
    os.kill(pid, signal.SIGSTOP)
    waking = threading.Timer(config.stopped_seconds, os.kill, (pid, signal.SIGCONT))
    waking.start()
    try:
        found["stopped"] = await seconds_to_read(reader, staging)
    finally:
        await asyncio.to_thread(waking.join)
    return found


@app.cell(hide_code=True)
async def _(config, read_transports, start_busy):
    lesson.wait_for(start_busy)
    waits = {}
    async with processes(writer=(Writer, layers, config.ring_megabytes)) as (_writer,):
        _source = replace(await _writer.open_ring.call_one(), owner=_writer)
        await _writer.publish.call_one()
        _staging = torch.zeros(_source.layout.size, dtype=torch.uint8)
        for _name, _road in mo.status.progress_bar(
            [*read_transports.items()], title="Transports", remove_on_exit=True
        ):
            waits[_name] = await disturbed_reads(
                _writer, await connect(_source, _road), _staging, config
            )
    return (waits,)


@app.cell(hide_code=True)
def _(ask_busy, backend, config, waits):
    waited_for_busy = [
        name for name, found in waits.items() if found["busy"] > 0.9 * config.busy_seconds
    ]
    _rdma = waits["RDMABuffer"]
    lesson.reveal(
        ask_busy,
        right={len(waits): 0, 0: 2}.get(
            len(waited_for_busy), 1 if waited_for_busy == ["message"] else []
        ),
        why=f"""
        Behind the busy owner waited: {", ".join(waited_for_busy) or "nobody"}. The message took {waits["message"]["busy"]:.2f} s, because its answer is an
        endpoint, and that endpoint had to wait for its turn. `RDMABuffer` took {_rdma["busy"]:.2f} s, and {_rdma["free"]:.2f} s from a free owner{": nobody asked the owner's Python" if "RDMABuffer" not in waited_for_busy else ""}.
        {"The network card read the memory." if backend == "ibverbs" else "The bytes were sent by Monarch's own threads in the owner's process."}
        """,
        shows=[
            lesson.figure(
                waits_chart(
                    {
                        name: {
                            state: seconds
                            for state, seconds in found.items()
                            if state != "stopped"
                        }
                        for name, found in waits.items()
                    },
                    config.busy_seconds,
                ),
                "The dashed line: the owner is free again.",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _(ask_stopped, backend, config, waits):
    _came = {
        name
        for name, found in waits.items()
        if found["stopped"] < 0.9 * config.stopped_seconds
    }
    lesson.reveal(
        ask_stopped,
        right={
            frozenset(): 0,
            frozenset({"shared memory"}): 1,
            frozenset({"shared memory", "RDMABuffer"}): 2,
        }.get(frozenset(_came), []),
        why=f"""
        While the process was stopped, these came: {", ".join(sorted(_came)) or "none"}. {"Here the card does the work, so a stopped owner disturbs nobody." if backend == "ibverbs" else "Without RDMA hardware `RDMABuffer` needs somebody in the owner's process to send, so it is one-sided for Python only."}
        Shared memory needs nobody: the reader copies pages that are its own as well.
        """,
        shows=[
            lesson.figure(
                waits_chart(
                    {
                        name: {
                            state: seconds
                            for state, seconds in found.items()
                            if state != "busy"
                        }
                        for name, found in waits.items()
                    },
                    config.stopped_seconds,
                ),
                "The dashed line: the process runs again.",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _(config, shares_memory):
    lesson.md(f"""
    ## The bandwidth ladder

    The same {config.megabytes} MB, in every way that this machine has:

    - *message*: the bytes are the reply to a call. They are serialised, sent, received and copied out.
    - *file*: the trainer saves its state dict with `torch.save`, and the generator loads it. The file stays in the page cache.
    - *broadcast*: `torch.distributed` with gloo. Both sides must call it.
    - *RDMABuffer over TCP*: once as Monarch comes, and once with other settings: chunks of 4 MB instead of 64, two streams instead of one, an acknowledgement for every message.
    - *shared memory*: one copy, on one host only{"" if shares_memory else "; not on this machine, so it is left out"}.
    - *memcpy*: a copy inside one process, as a yardstick.
    """)
    return


@app.cell(hide_code=True)
def _():
    ask_ladder = lesson.predict(
        "How many times faster than a message is a plain memcpy of the same bytes?",
        "about twice",
        "about ten times",
        "thirty times or more",
    )
    ask_ladder
    return (ask_ladder,)


@app.cell(hide_code=True)
def _(config):
    ask_late = lesson.predict(
        f"In a broadcast the generator is {config.late_seconds:g} s late. What does the trainer do meanwhile?",
        "it has sent its bytes and goes on",
        "it waits in its own call",
    )
    ask_late
    return (ask_late,)


@app.cell(hide_code=True)
def _():
    start_ladder = lesson.start_button("Climb the ladder", seconds=15)
    start_ladder
    return (start_ladder,)


@app.cell(hide_code=True)
def _(backend, shares_memory):
    tcp = {"rdma_disable_ibverbs": True}
    untuned = {
        "rdma_max_chunk_size_mb": 64,
        "rdma_tcp_fallback_parallelism": 1,
        "message_ack_every_n_messages": 1000,
    }
    tuned = {
        "rdma_max_chunk_size_mb": 4,
        "rdma_tcp_fallback_parallelism": 2,
        "message_ack_every_n_messages": 1,
    }
    settings_of = {"as it comes": untuned | tcp, "this course's": tuned | tcp}
    rungs = {
        "message": ("this course's", "message"),
        "file": ("this course's", "file"),
        "broadcast (gloo)": ("this course's", "broadcast"),
        "TCP, as it comes": ("as it comes", "rdma"),
        "TCP, our settings": ("this course's", "rdma"),
    }
    if shares_memory:
        rungs["shared memory"] = ("this course's", "shm")
    if backend == "ibverbs":
        settings_of["hardware"] = tuned | {"rdma_disable_ibverbs": False}
        rungs["RDMA (ibverbs)"] = ("hardware", "rdma")
    return rungs, settings_of, tuned


@app.function(hide_code=True)
async def open_pair(stack, settings, roads, megabytes, group):
    """Writer and puller in processes that start with these settings of Monarch's."""
    import monarch

    monarch.configure(**settings)
    make = (layers, megabytes)
    writer, puller = await stack.enter_async_context(
        processes(writer=(Writer, *make), puller=(Puller, *make))
    )
    source = replace(await writer.open_ring.call_one(), owner=writer)
    for road in roads:
        if road == "broadcast":
            await asyncio.gather(
                writer.join.call_one(group, 0).as_asyncio(),
                puller.join.call_one(group, 1).as_asyncio(),
            )
        elif road != "file":
            await puller.subscribe.call_one(source, road)
    return writer, puller


@app.function(hide_code=True)
async def move(writer, puller, road, path, late=0.0):
    """Make a version readable and move it; seconds of the trainer's own code, of the transfer, and of the copy into the model."""

    async def timed(call):
        began = time.perf_counter()
        await call
        return time.perf_counter() - began

    if road == "broadcast":
        sending = asyncio.ensure_future(timed(writer.broadcast.call_one().as_asyncio()))
        await asyncio.sleep(late)
        fetch, swap = await puller.receive.call_one()
        return await sending, fetch, swap
    if road == "file":
        own = await timed(writer.save.call_one(path))
        return own, *await puller.load.call_one(path)
    own = await timed(writer.publish.call_one())
    return own, *await puller.pull.call_one(road)


@app.cell(hide_code=True)
async def _(config, rungs, settings_of, start_ladder, tuned):
    import monarch

    lesson.wait_for(start_ladder)
    moves, owner_seconds, _pairs = {r: [] for r in rungs}, {r: [] for r in rungs}, {}
    try:
        async with AsyncExitStack() as _stack:
            _folder = Path(_stack.enter_context(tempfile.TemporaryDirectory()))
            for _name, _settings in settings_of.items():
                _roads = [road for name, road in rungs.values() if name == _name]
                _pairs[_name] = await open_pair(
                    _stack, _settings, _roads, config.megabytes, str(_folder / "group")
                )
            # In turns: whatever else this machine does meets all rungs alike.
            for _rung in mo.status.progress_bar(
                [*rungs] * (config.repeats + 1), title="Rungs", remove_on_exit=True
            ):
                _name, _road = rungs[_rung]
                _writer, _puller = _pairs[_name]
                _, _used = await _writer.process.call_one()
                moves[_rung].append(
                    await move(_writer, _puller, _road, _folder / "weights")
                )
                owner_seconds[_rung].append((await _writer.process.call_one())[1] - _used)
            _writer, _puller = _pairs["this course's"]
            late_move = await move(
                _writer, _puller, "broadcast", None, late=config.late_seconds
            )
    finally:
        monarch.configure(**tuned, rdma_disable_ibverbs=False)
    return late_move, moves, owner_seconds


@app.cell(hide_code=True)
def _(config, moves):
    _source = torch.ones(config.megabytes * 10**6, dtype=torch.uint8)
    _target = torch.zeros_like(_source)

    def copy_seconds():
        began = time.perf_counter()
        _target.copy_(_source)
        return time.perf_counter() - began

    # The first of each warms up: it meets memory that was never touched.
    fetch_seconds = {
        rung: median(fetch for _, fetch, _ in found[1:]) for rung, found in moves.items()
    }
    fetch_seconds["memcpy"] = median(
        [copy_seconds() for _ in range(config.repeats + 1)][1:]
    )
    rates = {name: config.megabytes / 1e3 / took for name, took in fetch_seconds.items()}
    line_rates = {"a card of 400 Gb/s": 400 / 8}
    return fetch_seconds, line_rates, rates


@app.cell(hide_code=True)
def _(ask_ladder, config, fetch_seconds, line_rates, moves, owner_seconds, rates):
    def _ms(found, name):
        return f"{1e3 * median(found[name][1:]):.1f}"

    _times = rates["memcpy"] / rates["message"]
    _gain = rates["TCP, our settings"] / rates["TCP, as it comes"]
    _helped = (
        f"made the fallback {_gain:.1f} times as fast"
        if _gain > 1.1
        else f"made the fallback slower here, {_gain:.2f} times the rate"
        if _gain < 0.9
        else "made no difference here"
    )
    _own = {name: [own for own, *_ in found] for name, found in moves.items()}
    lesson.reveal(
        ask_ladder,
        right=0 if _times < 4.5 else 1 if _times < 17 else 2,
        why=f"""
        {_times:.0f} times. From slow to fast in this run: {"; ".join(sorted(rates, key=rates.get))}. Both ends are on this machine. So a message loses its time to
        serialising, to several copies, and to waking programs up. Our three settings {_helped}: a number for "RDMABuffer" means little
        without its settings.

        The last two columns belong to the trainer. They say how long its own code was held up to make a version readable, and what processor time its process used.
        """,
        shows=[
            lesson.figure(
                ladder_chart(rates, line_rates),
                f"Orange: measured here, {config.megabytes} MB, the median of {config.repeats} transfers. Grey: the line rate of a network card "
                "as RL clusters have them (NVIDIA ConnectX-7 user manual).",
            ),
            lesson.table(
                "The rungs",
                [
                    {
                        "transport": name,
                        "ms": f"{1e3 * fetch_seconds[name]:.1f}",
                        "GB/s": f"{rate:.2f}",
                        "÷ message": f"{rate / rates['message']:.1f}",
                        "trainer's code, ms": _ms(_own, name),
                        "its processor, ms": _ms(owner_seconds, name),
                    }
                    for name, rate in rates.items()
                    if name in moves
                ],
            ),
        ],
    )
    return


@app.cell(hide_code=True)
def _(ask_late, config, late_move):
    _held = late_move[0]
    lesson.reveal(
        ask_late,
        right=1 if _held > 0.9 * config.late_seconds else 0,
        why=f"""
        Its call took {_held:.2f} s, and the generator's {late_move[1]:.2f} s. A broadcast is a *collective*: {"both sides block until both are there" if _held > 0.9 * config.late_seconds else "here the bytes left before the other side was there"}. That is
        no loss where everybody stops at a common point anyway. Where generators run on their own, it makes the trainer wait for the slowest.
        """,
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### What other hardware adds

    Three rungs are missing here, because they need GPUs. With *GPUDirect RDMA* the card reads or writes GPU memory itself, so the copies in host
    memory vanish. *NCCL* does collectives between GPUs. *CUDA IPC* hands a process on the same GPU a handle to memory; nothing is copied
    ([vLLM's documentation](https://docs.vllm.ai/en/stable/training/weight_transfer/ipc/)). None of the figures below was measured here.
    """)
    return


@app.cell(hide_code=True)
def _():
    def _least(parameters, bytes_each, seconds):
        return f"{parameters * bytes_each / seconds / 1e9:,.0f}"

    _engine = "[checkpoint-engine 0.2.0](https://github.com/MoonshotAI/checkpoint-engine/releases/tag/v0.2.0)"
    lesson.table(
        "Published; the last column is arithmetic: the bytes of one copy, divided by the seconds",
        [
            {
                "how": "RDMA writes from GPU to GPU",
                "what": "Kimi-K2, 10¹² parameters, from 256 to 128 GPUs (FP8)",
                "seconds": "1.3",
                "source": "[Perplexity, 2025](https://research.perplexity.ai/articles/weight-transfer-for-rl-post-training-in-under-2-seconds)",
                "GB/s, at least": _least(1e12, 1, 1.3),
            },
            {
                "how": "copy to GPUs, broadcast, CUDA IPC",
                "what": "Kimi-K2 (FP8), to 256 H20 GPUs",
                "seconds": "16.0",
                "source": _engine,
                "GB/s, at least": _least(1e12, 1, 16.04),
            },
            {
                "how": "the same",
                "what": "Qwen3-235B (bfloat16), to 8 H800 GPUs",
                "seconds": "6.2",
                "source": _engine,
                "GB/s, at least": _least(235e9, 2, 6.22),
            },
        ],
    )
    return


@app.cell(hide_code=True)
def _(line_rates):
    (_card,) = line_rates.values()
    lesson.md(f"""
    The first figure is that of {1e12 / 1.3 / 1e9 / _card:.0f} cards of {_card:.0f} GB/s or more. So nobody gathers that model on one
    rank: every training GPU sends its own part to those who need it. Notebook 07b builds that.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## How long would a model take?

    Bytes over bandwidth, with one reader and one link. Move the sliders to your own model. Orange points use the rates measured above.
    """)
    return


@app.cell(hide_code=True)
def _(line_rates, rates):
    TransferCalculator(rates, line_rates, static="execute" in mo.cli_args())
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 1: without the widget

    A model of `parameters` parameters travels with `bytes_each` bytes for each, over a link of `gigabits` gigabits a second. Network cards are sold in that unit.
    Complete `seconds_to_move`.
    """)
    return


@app.function
def seconds_to_move(parameters, bytes_each, gigabits):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: seconds_to_move,
        check_seconds_to_move,
        seconds_to_move_solution,
        level="warm-up",
        minutes=2,
        hints=(
            "A gigabit is 10⁹ bits, and a byte has eight of them.",
            "Bits to move, divided by bits a second: `8 * parameters * bytes_each / …`.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## What stops generation and what does not

    Why not read straight into the model? During the read it would be half old and half new while it generates. So the bytes go to a **staging buffer** in
    host memory first, and generation goes on. Only a whole, verified version is copied into the model, between two decode steps.
    """)
    return


@app.cell(hide_code=True)
def _():
    ask_staging = lesson.predict(
        "`RDMABuffer` with our settings: for which share of a pull does generation have to stand still?",
        "all of it",
        "about a half",
        "a third or less",
    )
    ask_staging
    return (ask_staging,)


@app.cell(hide_code=True)
def _(ask_staging, config, moves):
    _own, _fetch, _swap = map(median, zip(*moves["TCP, our settings"][1:], strict=True))
    _share = _swap / (_swap + _fetch)
    _gpu = (
        "The ring and the staging buffer are **pinned** here, so that the GPU copies from them by itself."
        if torch.cuda.is_available()
        else "With a GPU they would be **pinned**, so that the GPU copies from them by itself; this machine has none."
    )
    lesson.reveal(
        ask_staging,
        right=0 if _share > 0.8 else 1 if _share > 0.36 else 2,
        why=f"""
        {_share:.0%}: the swap, a local copy. The slower the network, the larger the share that happens beside generation. The price is memory: one more copy
        of the weights on the generator's host. {_gpu}
        """,
        shows=[
            lesson.table(
                f"The phases of moving {config.megabytes} MB, medians",
                [
                    {
                        "phase": phase,
                        "copies": copies,
                        "stops": stops,
                        "ms": f"{1e3 * took:.1f}",
                    }
                    for phase, copies, stops, took in (
                        ("publish", "trainer: model → ring", "training", _own),
                        ("fetch", "ring → staging buffer", "nobody", _fetch),
                        ("swap", "staging buffer → model", "generation", _swap),
                    )
                ],
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A torn read

    Nobody notices a one-sided reader, so the writer cannot wait for it. A **torn read** is a copy whose parts belong to different versions. Drag the tick, or
    press *Play*: the writer goes round the buffers, each of which is a **slot**, and the reader follows. Find a copy with two colours. Then switch the check on.
    """)
    return


@app.cell(hide_code=True)
def _():
    WeightRingRace(static="execute" in mo.cli_args())
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Publish and read, torn

    Now as code. A ring has a header of two numbers for each slot; for now only the second counts, the version. The writer takes the slot
    with the oldest version, and the reader the one with the newest.
    """)
    return


@app.function
def publish_carelessly(ring, weights, version):
    slot = ring.headers[:, 1].argmin()
    ring.slots[slot].copy_(weights)
    ring.headers[slot, 1] = version


@app.function
def read_carelessly(ring, staging):
    slot = ring.headers[:, 1].argmax()
    version = int(ring.headers[slot, 1])
    staging.copy_(ring.slots[slot])
    return version


@app.cell(hide_code=True)
def _(config):
    ask_torn = lesson.predict(
        f"Two slots of {config.race_megabytes} MB. A second thread publishes again and again and never rests, while {config.careless_reads} careless reads are made. How many copies are torn?",
        "none: two slots keep writer and reader apart",
        "some",
        "more than half",
    )
    ask_torn
    return (ask_torn,)


@app.cell(hide_code=True)
def _():
    start_race = lesson.start_button("Let them race", seconds=5)
    start_race
    return (start_race,)


@app.function(hide_code=True)
def new_ring(megabytes, slots=2):
    """The package's ring, whose memory the functions of this page use as well: headers [slots, 2], and slots of bytes."""
    return WeightRing({"w": torch.zeros(megabytes * 250_000)}, slots)


@app.function(hide_code=True)
def race(publish, read, megabytes, reads, slots=2, rest=0.002):
    """``reads`` copies, taken while a thread publishes with rests of up to ``rest`` seconds; what became of them, and the seconds of a version.

    Of every version all numbers are the same: version 7 is 7.0, and after ``CONTENTS`` versions they begin again.
    """
    ring, stop, published = new_ring(megabytes, slots), threading.Event(), 0
    # Filled beforehand: a writer that also fills would rest longer than it writes.
    contents = [
        torch.full((megabytes * 250_000,), float(n)).view(torch.uint8)
        for n in range(1, CONTENTS + 1)
    ]

    def keep_writing():
        nonlocal published
        for version in itertools.count(1):
            publish(ring, contents[(version - 1) % CONTENTS], version)
            published = version
            if stop.wait(rest * random.random()):
                return

    writer = threading.Thread(target=keep_writing, daemon=True)
    staging = torch.zeros(ring.layout.size, dtype=torch.uint8)
    found = SimpleNamespace(verdicts=[], copies=[], seconds=[])
    writer.start()
    began = time.perf_counter()
    while not published:
        time.sleep(0.001)
    try:
        for _ in range(reads):
            asked = time.perf_counter()
            try:
                version = 1 + (read(ring, staging) - 1) % CONTENTS
            except WeightPullError:
                version = None
            found.seconds.append(time.perf_counter() - asked)
            numbers = staging.view(torch.float32)
            found.verdicts.append(verdict(numbers, version))
            found.copies.append(numbers[:: len(numbers) // 256].long().tolist())
            # So that it comes at any moment of the writer's round.
            time.sleep(rest * random.random())
    finally:
        stop.set()
        writer.join()
    found.period = (time.perf_counter() - began) / published
    return found


@app.function(hide_code=True)
def verdict(numbers, version):
    """What a copy is that its header called ``version``."""
    if version is None:
        return "given up"
    if bool((numbers != numbers[0]).any()):
        return "torn"
    return "whole" if numbers[0] == version else "another version"


@app.cell(hide_code=True)
def _(config, start_race):
    lesson.wait_for(start_race)
    with mo.status.spinner("Racing", remove_on_exit=True):
        careless = race(
            publish_carelessly,
            read_carelessly,
            config.race_megabytes,
            config.careless_reads,
            rest=0,
        )
    return (careless,)


@app.cell(hide_code=True)
def _(ask_torn, careless):
    _torn = [copy for copy in careless.copies if len(set(copy)) > 1]
    _backwards = sum(
        any(later < sooner for sooner, later in pairwise(copy)) for copy in _torn
    )
    _order = (
        f" In {_backwards} torn copies an older part stands behind a newer one, so no place in the payload tells whether the rest is good."
        if _backwards
        else ""
    )
    _count, _all = careless.verdicts.count("torn"), len(careless.verdicts)
    lesson.reveal(
        ask_torn,
        right=0 if not _count else 1 if _count <= _all / 2 else 2,
        why=f"""
        {_count} of {_all} copies were torn, and {careless.verdicts.count("another version")} more were whole, but not of the version that the header had said. A version takes the
        writer {1e3 * careless.period:.1f} ms here, and a read {1e3 * median(careless.seconds):.1f} ms.{_order} And nothing raises an error: a model with torn weights computes something.
        """,
        shows=[
            lesson.figure(
                copies_chart((_torn or careless.copies)[:4]),
                f"{'Some torn copies' if _torn else 'No copy was torn; these are whole'}: a colour, and where there is room a number, for each version.",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Mended

    The cure is to look twice. Each slot gets a *sequence number*, the first number of its header. The writer makes it odd before the copy and even after it.
    The reader compares it before and after its own copy. Even and unchanged: nobody began to write in between. Otherwise it starts over. This is a
    **seqlock**. It does not prevent a torn read, it reveals it. `fence` keeps the processor from reordering the accesses around it.
    """)
    return


@app.function
def publish(ring, weights, version):
    slot, newest = ring.headers[:, 0].argmin(), ring.headers[:, 0].max()
    ring.headers[slot, 0] = newest = newest + 1  # odd: being written
    fence()
    ring.slots[slot].copy_(weights)
    ring.headers[slot, 1] = version
    fence()
    ring.headers[slot, 0] = newest + 1


@app.function
def read(ring, staging):
    while True:
        headers = ring.headers.clone()
        whole = [slot for slot, (n, _) in enumerate(headers) if n and n % 2 == 0]
        if whole:
            slot = max(whole, key=lambda slot: headers[slot, 1])
            fence()
            staging.copy_(ring.slots[slot])
            fence()
            if ring.headers[slot].equal(headers[slot]):
                return int(headers[slot, 1])


@app.cell(hide_code=True)
def _():
    mo.md("""
    The package's ring has the same memory: headers of two numbers, and slots. So both can be mixed. Below, the same race four times: this page's `publish` or the
    package's `WeightRing.publish`, read by this page's `read` or by the package's `read_ring`.
    """)
    return


@app.cell(hide_code=True)
def _():
    ask_mended = lesson.predict(
        "The same race with both mended. How many copies are not exactly the version that was said?",
        "fewer than before, but some",
        "none",
    )
    ask_mended
    return (ask_mended,)


@app.function(hide_code=True)
def publish_by_package(ring, weights, version):
    ring.publish({"w": weights.view(torch.float32)}, version)


@app.function(hide_code=True)
def read_by_package(ring, staging):
    async def headers():
        return ring.headers.clone()

    async def slot(number):
        staging.copy_(ring.slots[number])

    def in_a_loop_of_its_own(found):
        try:
            found.append(asyncio.run(read_ring(headers, slot)))
        except WeightPullError as error:
            found.append(error)

    # A cell may run inside an event loop; a thread never does.
    found = []
    thread = threading.Thread(target=in_a_loop_of_its_own, args=(found,))
    thread.start()
    thread.join()
    if isinstance(found[0], WeightPullError):
        raise found[0]
    return found[0]


@app.cell(hide_code=True)
def _(careless, config, start_race):
    careless  # one after the other: they would share the processor
    lesson.wait_for(start_race)
    _writers = {"this page": publish, "package": publish_by_package}
    _readers = {"this page": read, "package": read_by_package}
    mended = {}
    for _pair in mo.status.progress_bar(
        [*itertools.product(_writers, _readers)], title="Races", remove_on_exit=True
    ):
        mended[_pair] = race(
            _writers[_pair[0]], _readers[_pair[1]], config.race_megabytes, config.reads
        )
    rings = [new_ring(1), new_ring(1)]
    for _version in range(1, 6):
        _weights = torch.full((250_000,), float(_version)).view(torch.uint8)
        publish(rings[0], _weights, _version)
        publish_by_package(rings[1], _weights, _version)
    same_memory = rings[0].headers.equal(rings[1].headers) and all(
        mine.equal(theirs)
        for mine, theirs in zip(rings[0].slots, rings[1].slots, strict=True)
    )
    return mended, same_memory


@app.cell(hide_code=True)
def _(ask_mended, mended, same_memory):
    _all = [verdict for found in mended.values() for verdict in found.verdicts]
    _bad = len(_all) - _all.count("whole") - _all.count("given up")
    lesson.reveal(
        ask_mended,
        right=1 if _bad == 0 else 0,
        why=f"""
        {_bad} of {len(_all)}. After the same five versions, headers and slots of this page's ring and of the package's are {"the same, bit for bit" if same_memory else "different, which is a fault"}.
        The seqlock is strict: it also throws away a whole copy if a write *began* before the second look. It makes reading safe. Whether anything
        arrives soon is a question of the number of slots.
        """,
        shows=[
            lesson.table(
                "Two slots, a writer that rests up to 2 ms",
                [
                    {
                        "published by": writer,
                        "read by": reader,
                        "whole": found.verdicts.count("whole"),
                        "wrong": len(found.verdicts)
                        - found.verdicts.count("whole")
                        - found.verdicts.count("given up"),
                    }
                    for (writer, reader), found in mended.items()
                ],
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 2: your reader on the real ring

    One slot only. `read_header()` returns `(sequence, version)`; `read_payload()` returns a list. Either can be called at any time, and the writer may do
    anything between two calls, or *during* `read_payload`. Complete `read_whole`: return `(version, payload)`, where the payload is certain to be that
    version, whole. Try again as long as it takes. The check plays a writer that comes at the worst moments.

    Yours is plugged in: as soon as it answers at all, it races below against a writer in another process, right or wrong.
    """)
    return


@app.function
def read_whole(read_header, read_payload):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: read_whole,
        check_read_whole,
        read_whole_solution,
        level="core",
        minutes=7,
        hints=(
            "Take the header twice, before and after the payload. Which of the first one's values say that somebody is writing?",
            "Start over if the first sequence is odd. Return only if the second header equals the first.",
        ),
    )
    return


@app.class_definition(hide_code=True)
class RestlessWriter(Writer):
    """Publishes as fast as it can; every number of version 7 is 7.0."""

    @concurrent_endpoint
    async def begin(self, pause=0.0):
        self.stop = threading.Event()
        self.began, self.first, self.pause = time.perf_counter(), self.version, pause
        self.write()
        self.thread = threading.Thread(target=self.keep_writing, daemon=True)
        self.thread.start()

    @concurrent_endpoint
    async def rest(self):
        """Stop; the seconds that a version took."""
        self.stop.set()
        await asyncio.to_thread(self.thread.join)
        return (time.perf_counter() - self.began) / (self.version - self.first)

    def keep_writing(self):
        while not self.stop.wait(self.pause):
            self.write()

    @torch.no_grad()
    def write(self):
        self.version += 1
        for layer in self.model:
            layer.fill_(float(self.version))
        self.publisher.publish(self.model, self.version)


@app.function(hide_code=True)
def answers_at_all(read_whole):
    """Whether a reader returns a version and a payload from a slot at rest."""
    version, payload = read_whole(lambda: (2, 1), lambda: [1, 1])
    return version == 1 and list(payload) == [1, 1]


@app.function(hide_code=True)
async def race_from_afar(read_whole, writer, reads, transport="auto", attempts=400):
    """``reads`` calls of ``read_whole`` on slot 0 of a ring in another process, whose writer goes on all the time."""
    source = await writer.open_ring.call_one(2)
    reader, loop = await connect(source, transport), asyncio.get_running_loop()
    staging = torch.zeros(source.layout.size, dtype=torch.uint8)
    numbers = staging.view(torch.float32)
    found = SimpleNamespace(verdicts=[], copies=0)

    def wait_for(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(timeout=30)

    def read_header():
        sequence, version = wait_for(reader.read_headers())[0].tolist()
        return sequence, version

    def read_payload():
        nonlocal left
        left -= 1
        if left < 0:
            raise WeightPullError(f"no whole copy in {attempts} attempts")
        found.copies += 1
        wait_for(reader.read_slot(0, staging))
        return numbers[:: len(numbers) // 256].long().tolist()

    await writer.begin.call_one(0.004)
    try:
        for _ in range(reads):
            left = attempts
            try:
                version, payload = await asyncio.to_thread(
                    read_whole, read_header, read_payload
                )
            except WeightPullError:
                found.verdicts.append("given up")
                continue
            found.verdicts.append(
                verdict(torch.tensor([float(number) for number in payload]), version)
            )
    finally:
        await writer.rest.call_one()
    return found


@app.cell(hide_code=True)
def _():
    start_far = lesson.start_button("Race with another process", seconds=8)
    start_far
    return (start_far,)


@app.function(hide_code=True)
async def far_slots(writer, slots, reads):
    """Careless reads through ``RDMABuffer`` of a ring with so many slots, and careful ones."""
    reader = await connect(await writer.open_ring.call_one(slots), "rdma")
    staging = torch.zeros(reader.layout.size, dtype=torch.uint8)
    numbers = staging.view(torch.float32)
    found = SimpleNamespace(careless=[], careful=[], seconds=[])

    async def into_staging(slot):
        began = time.perf_counter()
        await reader.read_slot(slot, staging)
        found.seconds.append(time.perf_counter() - began)

    await writer.begin.call_one()
    for _ in range(reads):
        while (header := newest_slot(await reader.read_headers())) is None:
            pass
        await into_staging(header.slot)
        found.careless.append(verdict(numbers, header.version))
        try:
            version = await read_ring(reader.read_headers, into_staging, attempts=8)
        except WeightPullError:
            version = None
        found.careful.append(verdict(numbers, version))
    found.period = await writer.rest.call_one()
    return found


@app.cell(hide_code=True)
async def _(config, mended, start_far):
    mended  # one after the other
    lesson.wait_for(start_far)
    _reader, whose_reader = plug_in(read_whole, read_whole_solution, answers_at_all)
    far_races = {}
    with mo.status.spinner("Starting a writer", remove_on_exit=True) as _spinner:
        async with processes(writer=(RestlessWriter, layers, config.ring_megabytes)) as (
            _writer,
        ):
            _spinner.update("Your reader, or the course's")
            plugged = await race_from_afar(_reader, _writer, config.reads // 2)
            for _slots in config.ring_slots:
                _spinner.update(f"{_slots} slots")
                far_races[_slots] = await far_slots(_writer, _slots, config.far_reads)
    return far_races, plugged, whose_reader


@app.cell(hide_code=True)
def _(plugged, whose_reader):
    _whole, _all = plugged.verdicts.count("whole"), len(plugged.verdicts)
    _wrong = _all - _whole - plugged.verdicts.count("given up")
    lesson.md(f"""
    Read by {whose_reader}: {_whole} of {_all} answers were whole and of the right version, {_wrong} were not, and {plugged.verdicts.count("given up")} were given up. It took
    {plugged.copies} copies. {"A reader that checks both headers makes no mistake here; another one may be lucky." if not _wrong else "So this reader lets torn copies through: look at what the check says."}
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 3: how many slots?

    The writer starts a new version every `period` seconds, always into the oldest slot, and writes for `write` seconds (`write` ≤ `period`).
    A reader looks at the headers at any moment, picks the newest complete slot, and needs `read` seconds until its copy is done. Complete
    `slots_needed`: the fewest slots, 2 or more, with which no read is ever torn.
    """)
    return


@app.function
def slots_needed(read, write, period):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: slots_needed,
        check_slots_needed,
        slots_needed_solution,
        level="stretch",
        minutes=7,
        hints=(
            "Follow one slot from the moment at which it is complete. How long can it be the newest? When is it overwritten?",
            "Complete at 0, it is the newest until `period`. With K slots it is overwritten from `K * period - write` on.",
        ),
    )
    return


@app.cell(hide_code=True)
def _(far_races, fetch_seconds, moves):
    _read = max(max(found.seconds) for found in far_races.values())
    _period = median(found.period for found in far_races.values())
    _needed = slots_needed_solution(_read, _period, _period)
    _publish = median(own for own, *_ in moves["TCP, our settings"][1:])
    _real = slots_needed_solution(
        fetch_seconds["TCP, our settings"], min(_publish, 1.0), 1.0
    )
    mo.vstack(
        [
            lesson.table(
                "From another process through `RDMABuffer`, while the writer never rests",
                [
                    {
                        "slots": slots,
                        "careless: whole": found.careless.count("whole"),
                        "torn": found.careless.count("torn"),
                        "other version": found.careless.count("another version"),
                        "careful: whole": found.careful.count("whole"),
                        "given up": found.careful.count("given up"),
                        "slowest read": f"{1e3 * max(found.seconds):.0f} ms",
                    }
                    for slots, found in far_races.items()
                ],
            ),
            lesson.md(f"""
            The slowest read took {1e3 * _read:.0f} ms, and a version {1e3 * _period:.0f} ms. For a writer that never rests (`write` = `period`) the formula asks for {_needed} slots.
            A real trainer rests: with a step of one second and the times of the ladder, {_real} are enough. The package uses 3, *and* the seqlock: the
            slowest read that was seen need not be the slowest possible.
            """),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Half the bytes, and a mismatch

    Trainers keep float32 weights, because updates are too small for fewer digits. Generators do well with bfloat16. Rounding for
    the journey halves the bytes. But then the generator samples from a slightly different policy than the one that is trained.
    """)
    return


@app.function
def deliver(masters, generator, dtype):
    """What Publisher and Subscriber do, in one process; the bytes that travelled."""
    layout = Layout.of(masters.model, dtype)
    buffer = torch.zeros(layout.size, dtype=torch.uint8)
    layout.pack(masters.model, buffer)
    layout.unpack(buffer, generator.model)
    return layout.size


@app.cell(hide_code=True)
def _():
    ask_rounding = lesson.predict(
        "bfloat16 keeps 8 significant bits, so a weight is off by up to 0.4%. By how much does the probability of a sampled token change, at worst, in some dozen episodes?",
        "by less than 1%",
        "by a few per cent",
        "by more than 20%",
    )
    ask_rounding
    return (ask_rounding,)


@app.cell(hide_code=True)
def _(config, policy):
    _environment = Zorplex(0, config.policy != "embedded")
    _tasks = _environment.tasks(("compositional",), config.mismatch_episodes, "held_out")
    _requests = [RolloutRequest(task, seed) for seed, task in enumerate(_tasks)]

    def sample_and_compare(dtype, compute):
        generator = load_policy(config.policy, config.device, compute)
        size = deliver(policy, generator, dtype)
        episodes = rollout(generator, _requests, _environment.execute, Sampling())
        trainer = [p for row in response_logprobs(policy, episodes) for p in row]
        sampler = [p for episode in episodes for p in episode.logprobs]
        own = [float(token) for episode in episodes for token in episode.sampled]
        return size, mismatch(*map(torch.tensor, (trainer, sampler, own)))

    with mo.status.spinner(title="Sampling three times", remove_on_exit=True):
        deliveries = {
            "float32": sample_and_compare(None, "float32"),
            "bfloat16": sample_and_compare(torch.bfloat16, "float32"),
            "bfloat16, decoded in bfloat16": sample_and_compare(torch.bfloat16, "bfloat16"),
        }
    return (deliveries,)


@app.cell(hide_code=True)
def _(ask_rounding, config, deliveries):
    (_size, _full), (_half, _rounded), (_, _both) = deliveries.values()
    _change = math.expm1(_rounded["max_logp_difference"])
    lesson.reveal(
        ask_rounding,
        right=0 if _change < 0.01 else 1 if _change < 0.2 else 2,
        why=f"""
        By {_change:.1%}, for the token that it hit hardest. The bytes fall to {_half / _size:.0%}. On average little happens: the effective sample size is
        {_rounded["effective_sample_size"]:.2%}, and {_both["effective_sample_size"]:.2%} if the generator also computes in bfloat16. Old weights cause the same kind of mismatch, so the same correction handles it:
        record the log-probs with which a token *was* sampled. `transfer_dtype` is the setting in the course's configuration.
        """,
        shows=[
            lesson.table(
                f"Sampler against trainer, the tokens of {config.mismatch_episodes} episodes at lag 0",
                [
                    {
                        "weights travel as": name,
                        "bytes": f"{size:,}",
                        "largest change of a log-prob": f"{found['max_logp_difference']:.6f}",
                        "effective sample size": f"{found['effective_sample_size']:.3%}",
                    }
                    for name, (size, found) in deliveries.items()
                ],
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Push or pull?

    So far the reader pulls. A trainer can also *push*: after a step it hands the new version to every generator and waits until all have
    taken it. A generator takes it between two batches, so that no batch has two versions. The difference is one line.
    """)
    return


@app.function
async def pulling(trainer, generators, versions):
    for version in versions:
        await trainer.step.call_one(version)  # trains, and publishes


@app.function
async def pushing(trainer, generators, versions):
    for version in versions:
        await trainer.step.call_one(version)
        await asyncio.gather(*(each.take.call_one().as_asyncio() for each in generators))


@app.cell(hide_code=True)
def _(config):
    lesson.md(f"""
    Three processes do real work. The trainer takes steps of supervised training. Two generators decode episodes with the weights that they have: batches of
    {config.batches[0]} episodes, and of {config.batches[1]}. With pulling, a generator pulls the newest version before each batch.
    """)
    return


@app.cell(hide_code=True)
def _(config):
    ask_push = lesson.predict(
        f"{config.steps} steps of the trainer, once pulled and once pushed. How does the time of a step change when it pushes?",
        "hardly: moving the weights is quick",
        "up to twice as long",
        "more than twice as long",
    )
    ask_push
    return (ask_push,)


@app.class_definition(hide_code=True)
class Stepper(Writer):
    """A trainer: it takes real steps on one batch of tokens, and publishes."""

    def __init__(self, policy, device):
        super().__init__(lambda: load_policy(policy, device).model)
        self.device, self.recorder = device, SpanRecorder("trainer")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)
        self.tokens = torch.arange(16 * 96, device=device).view(16, 96) % 200

    @concurrent_endpoint
    async def step(self, version):
        with self.recorder.span("train", version=version):
            await asyncio.to_thread(self.train)
        with self.recorder.span("publish"):
            self.publisher.publish(self.model, version)

    def train(self):
        self.model(input_ids=self.tokens, labels=self.tokens).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    @concurrent_endpoint
    async def drain(self):
        return self.recorder.drain()


@app.class_definition(hide_code=True)
class Decoder(Actor):
    """A generator: it decodes batch after batch, and takes new weights only between two of them."""

    def __init__(self, name, policy, device, batch):
        torch.set_num_threads(1)
        self.policy, self.environment = (
            load_policy(policy, device),
            Zorplex(0, policy != "embedded"),
        )
        tasks = self.environment.tasks(tuple(TASK_SPECS), batch)
        self.requests = [RolloutRequest(task, seed) for seed, task in enumerate(tasks)]
        self.recorder, self.offers, self.running = SpanRecorder(name), [], None

    @concurrent_endpoint
    async def subscribe(self, source):
        self.subscriber = await subscribe(source, "auto", self.policy.model)
        await self.subscriber.pull()
        self.decode()  # the first batch is slower: it is not measured

    def decode(self):
        rollout(self.policy, self.requests, self.environment.execute, Sampling())

    @concurrent_endpoint
    async def start(self, pulls):
        self.go_on, self.running = True, asyncio.create_task(self.work(pulls))

    async def work(self, pulls):
        while self.go_on:
            offers, self.offers = self.offers, []
            if pulls or offers:
                with self.recorder.span("pull"):
                    await self.subscriber.pull()
            for offer in offers:
                offer.set_result(None)
            with self.recorder.span("generate", version=self.subscriber.version):
                await asyncio.to_thread(self.decode)

    @concurrent_endpoint
    async def take(self):
        """Return when this generator has pulled what there is now."""
        self.offers.append(offer := asyncio.get_running_loop().create_future())
        await offer

    @concurrent_endpoint
    async def finish(self):
        self.go_on = False
        await self.running
        return self.recorder.drain()


@app.function(hide_code=True)
async def run_protocol(protocol, trainer, generators, versions):
    """Run the trainer by ``protocol`` beside working generators; its timeline, seconds a step, the share that it waits, and the ages of weights."""
    await asyncio.gather(
        *(each.start.call_one(protocol is pulling).as_asyncio() for each in generators)
    )
    await trainer.drain.call_one()
    await protocol(trainer, generators, versions)
    own = await trainer.drain.call_one()
    others = await asyncio.gather(
        *(each.finish.call_one().as_asyncio() for each in generators)
    )
    began, ended = min(span.start for span in own), max(span.end for span in own)
    if protocol is pushing:  # the last hand-over is part of the last step
        ended = max(
            [ended] + [s.end for spans in others for s in spans if s.kind == "pull"]
        )
    trained = [(s.end, s.args["version"]) for s in own if s.kind == "train"]
    ages = []
    for spans in others:
        ages.append(
            [
                max([v for end, v in trained if end <= s.end], default=versions[0] - 1)
                - s.args["version"]
                for s in spans
                if s.kind == "generate" and began < s.end
            ]
        )
    timeline = Timeline([*own])
    for spans in others:
        timeline.add(span for span in spans if span.end > began)
    busy = sum(span.end - span.start for span in own)
    return SimpleNamespace(
        timeline=timeline.between(began, ended),
        step=(ended - began) / len(versions),
        waits=1 - busy / (ended - began),
        ages=ages,
        seconds=ended - began,
    )


@app.cell(hide_code=True)
def _():
    start_protocols = lesson.start_button("Push, then pull", seconds=20)
    start_protocols
    return (start_protocols,)


@app.cell(hide_code=True)
async def _(config, start_protocols):
    lesson.wait_for(start_protocols)
    _names, _shared = ("fast", "slow"), (config.policy, config.device)
    with mo.status.spinner("Starting three processes", remove_on_exit=True) as _spinner:
        async with processes(
            trainer=(Stepper, *_shared),
            **{
                name: (Decoder, name, *_shared, batch)
                for name, batch in zip(_names, config.batches, strict=True)
            },
        ) as (_trainer, *_generators):
            _source = await _trainer.open_ring.call_one()
            await _trainer.step.call_one(0)  # the first step is slower: it is not measured
            for _each in _generators:
                await _each.subscribe.call_one(_source)
            protocols = {}
            for _number, _protocol in enumerate((pushing, pulling)):
                _spinner.update(_protocol.__name__.capitalize())
                _first = 1 + _number * config.steps
                protocols[_protocol.__name__] = await run_protocol(
                    _protocol, _trainer, _generators, range(_first, _first + config.steps)
                )
    return (protocols,)


@app.cell(hide_code=True)
def _(ask_push, config, protocols):
    _push, _pull = protocols["pushing"], protocols["pulling"]
    _times = _push.step / _pull.step

    def _age(ages):
        return f"{fmean(ages):.1f}" if ages else "–"

    _old = {name: fmean(run.ages[1]) for name, run in protocols.items() if run.ages[1]}
    _staler = (
        "Pulling pays with age"
        if len(_old) == 2 and _old["pulling"] > _old["pushing"]
        else "In this run pulled weights were not older"
    )
    lesson.reveal(
        ask_push,
        right=0 if _times < 1.15 else 1 if _times <= 2 else 2,
        why=f"""
        A step took {_push.step:.2f} s with pushing and {_pull.step:.2f} s with pulling: {_times:.1f} times as long. When it pushed, the trainer waited for {_push.waits:.0%} of the time, because
        a generator takes weights only between batches, and the slow one has long batches. {_staler}: see the last columns, counted in versions at a batch's end. That is
        staleness, and `max_lag` bounds it.

        So choose who waits. Where generators stop at a common point anyway, pushing costs nothing. Where they run on their own, with batches of different length,
        crashes and newcomers, pulling keeps one slow reader from stopping everybody. This course pulls.
        """,
        shows=[
            lesson.figure(
                paired_timelines(
                    {name: run.timeline for name, run in protocols.items()},
                    min(run.seconds for run in protocols.values()),
                    ("trainer", "fast", "slow"),
                ),
                "The same number of seconds of each run, on one axis.",
            ),
            lesson.table(
                f"{config.steps} steps",
                [
                    {
                        "protocol": name,
                        "a step, s": f"{run.step:.2f}",
                        "trainer waits": f"{run.waits:.0%}",
                        "age, fast generator": _age(run.ages[0]),
                        "age, slow generator": _age(run.ages[1]),
                    }
                    for name, run in protocols.items()
                ],
            ),
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.predicted(10)
    return


@app.cell(hide_code=True)
def _():
    lesson.recap(
        "Control messages carry handles, whose size does not grow with the memory. Bulk data are read through them.",
        "One-sided means that the owner's code does not run. Whether its process must run depends on the transport: measure it.",
        "Every copy and every setting shows in the bandwidth. In a broadcast both sides wait for each other.",
        "Fetch into a staging buffer beside generation, verify, then swap between two decode steps: only the swap stops anything.",
        "A one-sided read can be torn, silently. A seqlock reveals it; slots and a resting writer make it rare.",
        "Weights rounded to bfloat16 halve the bytes and shift the log-probs: a mismatch to correct, like staleness.",
        "Pushing makes the trainer wait for the slowest reader, pulling makes readers late: choose who waits.",
    )
    return


@app.cell(hide_code=True)
def _(careless, mended):
    lesson.headline(
        f"{careless.verdicts.count('torn')} of {len(careless.verdicts)} careless copies were torn; with a sequence number {sum(found.verdicts.count('torn') for found in mended.values())} of {sum(len(found.verdicts) for found in mended.values())}."
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.links(__file__)
    return


@app.function(hide_code=True)
def check_seconds_to_move(seconds_to_move):
    exercise.expect(seconds_to_move, 10**9, 1, 8, result=1.0)
    exercise.expect(seconds_to_move, 7 * 10**9, 2, 400, result=0.28)
    exercise.expect(seconds_to_move, 70 * 10**9, 2, 100, result=11.2)
    exercise.expect(seconds_to_move, 10**12, 4, 3200, result=10.0)


@app.function(hide_code=True)
def seconds_to_move_solution(parameters, bytes_each, gigabits):
    return 8 * parameters * bytes_each / (1e9 * gigabits)


@app.function(hide_code=True)
def check_read_whole(read_whole):
    """A slot with a writer that takes its steps at given moments, tried at all of them."""

    class Slot:
        def __init__(self, moments, version_first):
            self.version_first = version_first
            self.sequence, self.version, self.payload = 2, 1, [1] * 4
            self.moments, self.actions, self.writing = [*moments], 0, self.write()

        def write(self):
            """One version after another, each in four steps."""
            for version in itertools.count(2):
                self.sequence += 1
                if self.version_first:
                    self.version = version
                yield
                self.payload[:2] = [version] * 2
                yield
                self.payload[2:] = [version] * 2
                self.version = version
                yield
                self.sequence += 1
                yield

        def moment(self):
            self.actions += 1
            assert self.actions < 200, (
                "read_whole goes on reading although the writer rests"
            )
            if self.moments:
                for _ in range(self.moments.pop(0)):
                    next(self.writing)
            elif self.sequence % 2:
                next(self.writing)

        def read_header(self):
            self.moment()
            return self.sequence, self.version

        def read_payload(self):
            self.moment()
            first_half = self.payload[:2]
            self.moment()
            return first_half + self.payload[2:]

    def tried(moments, when, version_first=False):
        slot = Slot(moments, version_first)
        found = read_whole(slot.read_header, slot.read_payload)
        assert isinstance(found, tuple) and len(found) == 2, (
            f"read_whole should return (version, payload), and returns {found!r}"
        )
        version, payload = found
        assert list(payload) == [version] * 4, (
            f"when {when}, read_whole returns version {version} with the payload {payload!r}"
        )

    # How many of its steps the writer takes before a header, in front of and in the middle of
    # a payload's copy, before the next header, and so on.
    tried((), "nobody writes")
    tried((2, 0, 0, 0, 0, 0, 1, 1), "a write is under way from before to after the copy")
    tried((0, 2, 0, 0, 2), "a write begins before the copy and ends after it")
    tried((0, 0, 2, 0, 2), "a write begins during the copy")
    tried((0, 0, 4), "a whole write happens during the copy")
    tried((0, 0, 0, 4), "a whole write happens after the copy")
    for moments in itertools.product((0, 1, 2, 4), repeat=5):
        when = f"the writer takes {moments} of its steps before your reads"
        tried(moments, when)
        tried(moments, f"{when} and writes the version first", version_first=True)


@app.function(hide_code=True)
def read_whole_solution(read_header, read_payload):
    while True:
        before = read_header()
        if before[0] % 2:
            continue
        payload = read_payload()
        if read_header() == before:
            return before[1], payload


@app.function(hide_code=True)
def check_slots_needed(slots_needed):
    exercise.expect(slots_needed, 0.1, 0.1, 1.0, result=2)
    exercise.expect(slots_needed, 0.75, 0.25, 1.0, result=2)
    exercise.expect(slots_needed, 1.0, 0.25, 1.0, result=3)
    exercise.expect(slots_needed, 1.0, 1.0, 1.0, result=3)
    exercise.expect(slots_needed, 2.5, 1.0, 1.0, result=5)
    exercise.expect(slots_needed, 2.5, 0.5, 1.0, result=4)
    exercise.expect(slots_needed, 0.0, 0.0, 1.0, result=2)


@app.function(hide_code=True)
def slots_needed_solution(read, write, period):
    # Complete at 0, a slot is the newest until period; with K slots it is overwritten from K * period - write on.
    return max(2, 1 + math.ceil((read + write) / period))


if __name__ == "__main__":
    app.run()
