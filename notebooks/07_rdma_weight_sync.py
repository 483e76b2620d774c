# /// script
# [tool.marimo.display]
# theme = "system"
# ///

import marimo

__generated_with = "0.25.2"
app = marimo.App(
    width="medium",
    app_title="Moving weights",
    css_file="../zorplex_rl/viz/lesson.css",
)

with app.setup(hide_code=True):
    import asyncio
    import itertools
    import math
    import pickle
    import threading
    import time
    from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
    from dataclasses import replace
    from functools import partial
    from itertools import pairwise
    from statistics import fmean, median
    from types import SimpleNamespace

    import marimo as mo
    import torch
    from torch import nn
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard as StridedShard

    from zorplex_rl import TASK_SPECS
    from zorplex_rl.analysis.timeline import SpanRecorder, Timeline
    from zorplex_rl.learning.learner import response_logprobs
    from zorplex_rl.learning.losses import mismatch
    from zorplex_rl.policy.load import load_policy
    from zorplex_rl.policy.rollout import RolloutEngine, RolloutRequest, Sampling, rollout
    from zorplex_rl.policy.stream import RolloutStream
    from zorplex_rl.services.replica import spawn
    from zorplex_rl.services.runtime import (
        Actor,
        concurrent_endpoint,
        endpoint,
        quiet_stderr,
        start_runtime,
    )
    from zorplex_rl.task.environment import Zorplex
    from zorplex_rl.training import shard_transports
    from zorplex_rl.training.transports import Publisher, connect, subscribe
    from zorplex_rl.viz import exercise, lesson
    from zorplex_rl.viz.plots import timeline_chart
    from zorplex_rl.viz.transfer import copies_chart, ladder_chart
    from zorplex_rl.viz.widgets import ReshardMap, WeightRingRace
    from zorplex_rl.weights.layout import Layout, LayoutMismatch, named_weights
    from zorplex_rl.weights.reshard.sharded_model import (
        ShardedWeight,
        describe,
        plan_model,
        rank_in,
    )
    from zorplex_rl.weights.reshard.sharding import Sharding
    from zorplex_rl.weights.reshard.transfer import (
        LocalReader,
        ShardPublisher,
        pull_together,
    )
    from zorplex_rl.weights.ring import WeightPullError, WeightRing, newest_slot, read_ring
    from zorplex_rl.weights.shared_memory import allocate


@app.cell(hide_code=True)
def _():
    lesson.header(
        __file__,
        minutes=75,
        hardware="two CPU cores, no network; RDMA hardware and a GPU are used where there are any",
        goals=[
            "keep commands and bulk data on different roads, and say what a handle is",
            "measure what a transport reaches, and compute from it how long a model will take",
            "provoke a torn read, and make it harmless with a seqlock",
            "say which part of a pull stops generation and which does not",
            "plan a transfer between two ways of sharding, and check it bit for bit",
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Two kinds of traffic

    After every training step the generators need the new weights. Notebook 05 ended with what travels in a step: tasks and episodes are
    kilobytes, weights are everything else. So a distributed RL system has two kinds of traffic, and treats them differently.

    | what | control plane | data plane |
    |---|---|---|
    | carries | calls, versions, handles, errors | parameters |
    | size of a message | hundreds of bytes | megabytes to terabytes |
    | what counts | latency, order, that failures are noticed | bandwidth, and that nobody's program is interrupted |
    | here | Monarch actor messages | one-sided reads of registered memory |

    *One-sided* is the idea of remote direct memory access, RDMA. The owner of some memory registers it once and gives out a **handle**.
    Whoever has the handle can read those bytes later. No endpoint of the owner runs and no line of its Python: the owner's code is not asked
    and does not learn of it. With RDMA hardware not even its processor is involved: the network card reads the memory. Without such hardware
    somebody on the owner's side has to send the bytes, and below you measure who. This notebook measures what one-sided reads gain, and then
    deals with what they cost: a reader that nobody notices can read while somebody writes.
    """)
    return


@app.cell
def settings():
    _name = mo.cli_args().get("policy") or "embedded"
    config = SimpleNamespace(
        policy=_name,  # or the folder of a model, for example a copy of Qwen2.5-0.5B-Instruct
        device="cuda" if torch.cuda.is_available() else "cpu",
        threads=1,  # in every process: there are more processes than cores
        megabytes=32,  # what the bandwidth ladder moves
        repeats=7,
        ring_megabytes=16,  # what the race for the ring moves
        ring_slots=(2, 3, 4, 6, 8),
        reads=16,  # of each kind, for each number of slots
        episodes=96,  # decoded in each run while weights arrive
        rounds=5,
        ballast_megabytes=32,  # travels with the policy there, so that a pull takes a while
        pull_every=0.1,  # seconds
        mismatch_episodes=64,
        width=256,  # of the model that is sharded
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
    lesson.predict(
        "From 1 kB of memory to 100 MB: how does the size of the handle grow?",
        "hardly at all",
        "to some kB, for a table of memory pages",
        "to a thousandth of the memory, 100 kB",
    )
    return


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
def _(handle_rows):
    lesson.table(
        "What a message carries, in bytes",
        [
            {
                "memory": f"{size:,}",
                "its handle": f"{handle:,}",
                "the memory itself": f"{payload:,}",
                "memory ÷ handle": f"{size / handle:,.1f}",
            }
            for size, handle, payload in handle_rows
        ],
    )
    return


@app.cell(hide_code=True)
def _(handle_rows):
    _handles = [handle for _, handle, _ in handle_rows]
    _grown = handle_rows[-1][0] // handle_rows[0][0]
    lesson.reveal(f"""
    {_handles[-1]:,} bytes, where 1 kB takes {_handles[0]:,}: the memory has grown by a factor of {_grown:,}, the handle by one of
    {_handles[-1] / _handles[0]:.2f}. A handle says whose memory it is, where it begins and how long it is. Everybody who may read gets it once,
    through the control plane; from then on the control plane has nothing to do with the bytes.
    """)
    return


@app.cell(hide_code=True)
def _(backend):
    lesson.md(
        "This machine has RDMA hardware (ibverbs): `RDMABuffer` uses it."
        if backend == "ibverbs"
        else "This machine has no RDMA hardware (ibverbs), so `RDMABuffer` works over its fallback here: the same handles and the "
        f"same calls, carried by sockets. Monarch calls this backend `{backend}`. The rung of real RDMA is therefore missing from what is "
        "measured below."
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A trainer that only publishes

    To measure roads, traffic is enough. `Writer` below is a trainer without the training: it owns a model and publishes it. `Publisher`
    keeps a **ring** of a few host buffers, each large enough for one whole version of the weights; the section on torn reads says
    why several. All parameters stand in one buffer, one after the other, so that one large read replaces hundreds of small ones.

    `open_ring` returns the *source*: the layout of the parameters and a handle for each buffer. `ring_headers` and `ring_slot` exist for
    the message road only, on which the bytes travel in the reply to a call. `processor_seconds` tells what a read has cost the owner.
    """)
    return


@app.class_definition
class Writer(Actor):
    """A trainer that only publishes."""

    def __init__(self, make_model, *args):
        torch.set_num_threads(1)
        self.model, self.version = make_model(*args), 0

    @concurrent_endpoint
    async def open_ring(self, slots=3, dtype=None):
        self.publisher = Publisher(self.model, slots, dtype)
        return self.publisher.source()

    @concurrent_endpoint
    async def publish(self):
        began = time.perf_counter()
        self.version += 1
        self.publisher.publish(self.model, self.version)
        return time.perf_counter() - began

    @concurrent_endpoint
    async def ring_headers(self):
        return self.publisher.read_headers()

    @concurrent_endpoint
    async def ring_slot(self, slot):
        return self.publisher.read_slot(slot)

    @concurrent_endpoint
    async def processor_seconds(self):
        """What all threads of this process have used so far."""
        return time.process_time()


@app.cell(hide_code=True)
def _():
    mo.md("""
    The other side is `Puller`: a generator without the generating. `subscribe` compares the layouts once. A pull then has two halves.
    `fetch` reads the newest version into a **staging buffer** and verifies it; `swap` copies the staging buffer into the model.
    """)
    return


@app.class_definition
class Puller(Actor):
    """A generator that only pulls."""

    def __init__(self, make_model, *args):
        torch.set_num_threads(1)
        self.model, self.subscribers = make_model(*args), {}

    @concurrent_endpoint
    async def subscribe(self, source, transport):
        self.subscribers[transport] = await subscribe(source, transport, self.model)

    @concurrent_endpoint
    async def pull(self, transport):
        """Seconds of its two halves."""
        began = time.perf_counter()
        await self.subscribers[transport].fetch()
        fetched = time.perf_counter()
        self.subscribers[transport].swap()
        return fetched - began, time.perf_counter() - fetched


@app.function
def layers(megabytes):
    """A model of as many layers, 1 MB of float32 each."""
    return nn.ParameterList(torch.zeros(250_000) for _ in range(megabytes))


@app.function
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
    lesson.md(f"""
    ## The bandwidth ladder

    The same {config.megabytes} MB, by every road that this machine has. From the bottom up:

    - **message**: the bytes are the reply to an actor's call. They are serialised, copied into a message, sent, received and copied out.
    - **RDMABuffer over TCP**: the fallback without hardware. Once as Monarch comes, and once tuned: chunks of 4 MB instead of 64, two streams
      instead of one, and an acknowledgement for every message. Whether that helps on this machine, the measurement says.
    - **shared memory**: both processes map the same pages, so the read is one copy. On one host only{"" if shares_memory else ", and not on this machine: it is left out here"}.
    - **memcpy**: a copy inside one process. No road at all, but the yardstick: what one core can copy.
    """)
    return (shares_memory,)


@app.cell(hide_code=True)
def _():
    lesson.predict(
        "How many times faster than a message is a plain memcpy of the same bytes?",
        "about twice",
        "about ten times",
        "fifty times or more",
    )
    return


@app.cell(hide_code=True)
def _():
    start_ladder = lesson.start_button("Climb the ladder", seconds=15)
    start_ladder
    return (start_ladder,)


@app.cell
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
    settings_of = {"as it comes": untuned | tcp, "tuned": tuned | tcp}
    rungs = {
        "message": ("tuned", "message"),
        "TCP, as it comes": ("as it comes", "rdma"),
        "TCP, tuned": ("tuned", "rdma"),
    }
    if shares_memory:
        rungs["shared memory"] = ("tuned", "shm")
    if backend == "ibverbs":
        settings_of["hardware"] = tuned | {"rdma_disable_ibverbs": False}
        rungs["RDMA (ibverbs)"] = ("hardware", "rdma")
    return rungs, settings_of, tuned


@app.function
async def open_pair(stack, settings, transports, megabytes):
    """Writer and puller in processes that start with these settings of Monarch's."""
    import monarch

    monarch.configure(**settings)
    make = (layers, megabytes)
    writer, puller = await stack.enter_async_context(
        processes(writer=(Writer, *make), puller=(Puller, *make))
    )
    source = replace(await writer.open_ring.call_one(), owner=writer)
    for transport in transports:
        await puller.subscribe.call_one(source, transport)
    return writer, puller


@app.cell
async def _(config, rungs, settings_of, start_ladder, tuned):
    import monarch

    lesson.wait_for(start_ladder)
    pulls, publish_seconds, _pairs = {name: [] for name in rungs}, [], {}
    owner_seconds = {name: [] for name in rungs}
    try:
        async with AsyncExitStack() as _stack:
            for _name, _settings in settings_of.items():
                _roads = [road for name, road in rungs.values() if name == _name]
                _pairs[_name] = await open_pair(_stack, _settings, _roads, config.megabytes)
            # In turns: whatever else this machine does meets all rungs alike.
            for _rung in mo.status.progress_bar(
                [*rungs] * (config.repeats + 1), title="Rungs", remove_on_exit=True
            ):
                _name, _road = rungs[_rung]
                _writer, _puller = _pairs[_name]
                publish_seconds.append(await _writer.publish.call_one())
                _used = await _writer.processor_seconds.call_one()
                pulls[_rung].append(await _puller.pull.call_one(_road))
                owner_seconds[_rung].append(
                    await _writer.processor_seconds.call_one() - _used
                )
    finally:
        monarch.configure(**tuned, rdma_disable_ibverbs=False)
    return owner_seconds, publish_seconds, pulls


@app.cell
def _(config, pulls):
    _source = torch.ones(config.megabytes * 10**6, dtype=torch.uint8)
    _target = torch.zeros_like(_source)

    def copy_seconds():
        began = time.perf_counter()
        _target.copy_(_source)
        return time.perf_counter() - began

    # The first of each warms up: it meets memory that was never touched.
    seconds_of = {rung: [fetch for fetch, _ in found] for rung, found in pulls.items()}
    seconds_of["memcpy"] = [copy_seconds() for _ in range(config.repeats + 1)]
    fetch_seconds = {name: median(times[1:]) for name, times in seconds_of.items()}
    rates = {name: config.megabytes / 1e3 / took for name, took in fetch_seconds.items()}
    return fetch_seconds, rates


@app.cell(hide_code=True)
def _():
    line_rates = {"network card, 400 Gb/s": 400 / 8}
    return (line_rates,)


@app.cell(hide_code=True)
def _(config, line_rates, rates):
    lesson.figure(
        ladder_chart(rates, line_rates),
        f"Blue: measured here, {config.megabytes} MB, the median of {config.repeats} verified reads. Grey: the line rate of a network card "
        "as RL clusters have them, 400 Gb/s (NVIDIA ConnectX-7 user manual), which is 50 GB/s.",
    )
    return


@app.cell(hide_code=True)
def _(fetch_seconds, owner_seconds, rates):
    owner_ms = {rung: 1e3 * median(used[1:]) for rung, used in owner_seconds.items()}
    lesson.table(
        "The rungs",
        [
            {
                "road": name,
                "ms": f"{1e3 * fetch_seconds[name]:.1f}",
                "GB/s": f"{rate:.2f}",
                "÷ message": f"{rate / rates['message']:.1f}",
                "÷ memcpy": f"{rate / rates['memcpy']:.2f}",
                "owner's processor, ms": f"{owner_ms[name]:.1f}"
                if name in owner_ms
                else "–",
            }
            for name, rate in rates.items()
        ],
    )
    return (owner_ms,)


@app.cell(hide_code=True)
def _(owner_ms, rates):
    _tuning = rates["TCP, tuned"] / rates["TCP, as it comes"]
    _helped = "they help here" if _tuning > 1.1 else "they do not help here"
    _shared = (
        f"Over shared memory it is {owner_ms['shared memory']:.1f} ms, about what the two questions after the time cost: the reader copies. "
        if "shared memory" in owner_ms
        else ""
    )
    _ranked = sorted(rates, key=rates.get)
    lesson.reveal(f"""
    {rates["memcpy"] / rates["message"]:.0f} times. In this run the order from slow to fast is: {"; ".join(_ranked)}. The distance between
    a message and a memcpy is not the cost of *sending*; both ends are on this machine. It is the cost of serialising, of copying several
    times and of waking programs up. With the three settings the TCP fallback reached {_tuning:.1f} times its rate without them
    ({_helped}), so a number for "RDMABuffer" means little without its settings.

    The last column is the processor time that the *owner's* process used while somebody read from it. Over the TCP fallback that is
    {owner_ms["TCP, tuned"]:.0f} ms for a read. No endpoint ran and no line of Python, but Monarch's own threads in that process
    copied the bytes into a socket. {_shared}From another machine, only hardware reads without the owner's processor.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### What published systems reach

    None of these was measured here. The column of GB/s is arithmetic on the published figures: each weight of the model must arrive at
    least once, so the bytes of one copy over the seconds are a lower bound on what all links moved together.
    """)
    return


@app.cell(hide_code=True)
def _():
    def least_gigabytes_a_second(parameters, bytes_each, seconds):
        return parameters * bytes_each / seconds / 1e9

    published = [
        {
            "system": "Perplexity: Kimi-K2, 10¹² parameters, from 256 training GPUs (bfloat16) to 128 inference GPUs (FP8)",
            "seconds": "1.3",
            "GB/s, at least": f"{least_gigabytes_a_second(1e12, 1, 1.3):,.0f}",
            "source": "[Weight transfer for RL post-training, 2025](https://research.perplexity.ai/articles/weight-transfer-for-rl-post-training-in-under-2-seconds)",
        },
        {
            "system": "Moonshot's checkpoint-engine: Kimi-K2, 10¹² parameters, across thousands of GPUs (FP8 assumed)",
            "seconds": "about 20",
            "GB/s, at least": f"{least_gigabytes_a_second(1e12, 1, 20):,.0f}",
            "source": "[its README](https://pypi.org/project/checkpoint-engine/)",
        },
    ]
    lesson.table("Published", published)
    return


@app.cell(hide_code=True)
def _(line_rates):
    (_card,) = line_rates.values()
    lesson.md(f"""
    The first figure is that of {1e12 / 1.3 / 1e9 / _card:.0f} cards of {_card:.0f} GB/s or more, so the bytes cannot have passed through one
    rank's card. At this scale *nobody gathers the model*: every training GPU sends its own part straight to the GPUs that need it. The section on
    resharding builds that.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## How long would a model take?

    Bytes over bandwidth, with one reader and one link. The policy of this notebook travels as float32, as it does in the course's runs; the
    others as bfloat16, 2 bytes a parameter. This table is computed from the rates above, not measured.
    """)
    return


@app.cell
def _(line_rates, policy, rates):
    payloads = {"this policy, float32": Layout.of(policy.model).size} | {
        f"{billions:g} billion, bfloat16": int(2e9 * billions) for billions in (0.5, 7, 70)
    }

    def in_words(seconds):
        return f"{1e3 * seconds:,.1f} ms" if seconds < 1 else f"{seconds:,.1f} s"

    lesson.table(
        "One pull, computed",
        [
            {"road": road}
            | {model: in_words(size / 1e9 / rate) for model, size in payloads.items()}
            for road, rate in (rates | line_rates).items()
        ],
    )
    return in_words, payloads


@app.cell(hide_code=True)
def _(in_words, line_rates, payloads, rates):
    _size = payloads["70 billion, bfloat16"] / 1e9
    (_card,) = line_rates.values()
    lesson.md(f"""
    For a policy as small as the embedded one, any road will do. For 70 billion parameters a message takes {in_words(_size / rates["message"])},
    the tuned fallback {in_words(_size / rates["TCP, tuned"])} and one 400 Gb/s card {in_words(_size / _card)}. Compare that
    with your own training step: the road decides whether weights are fresh, and whether anybody waits for them.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Staging: what stops generation and what does not

    Why not read straight into the model? A read takes long, and during it the model would be half old and half new, while it generates.
    And if the owner dies in the middle, it would stay that way. So the bytes go to a staging buffer in host memory first. Generation goes
    on meanwhile. Only when a whole version has arrived and was verified is it copied into the model, between two decode steps.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.predict(
        "Over the tuned TCP road: which share of a pull does generation have to stand still for?",
        "all of it",
        "about a half",
        "a quarter or less",
    )
    return


@app.cell(hide_code=True)
def _(config, in_words, publish_seconds, pulls):
    _fetch, _swap = map(median, zip(*pulls["TCP, tuned"][1:], strict=True))
    _phases = {
        "publish": (median(publish_seconds), "trainer: model → ring", "training"),
        "fetch": (_fetch, "generator: ring → staging buffer", "nobody"),
        "swap": (_swap, "generator: staging buffer → model", "generation"),
    }
    standstill = _swap / (_swap + _fetch)
    lesson.table(
        f"The phases of moving {config.megabytes} MB, medians, TCP tuned",
        [
            {"phase": phase, "copies": copies, "stops": stops, "takes": in_words(seconds)}
            for phase, (seconds, copies, stops) in _phases.items()
        ],
    )
    return (standstill,)


@app.cell(hide_code=True)
def _(standstill):
    lesson.reveal(f"""
    {standstill:.0%}: the swap, which is a local copy. The rest of the pull is the fetch, and the slower the network, the larger the share
    that happens beside generation. The price of staging is memory: one more copy of the weights on the generator's host.
    """)
    return


@app.cell(hide_code=True)
def _(config):
    def staging_speed(megabytes, pinned, repeats=5):
        host = torch.zeros(megabytes * 10**6, dtype=torch.uint8, pin_memory=pinned)
        seconds = []
        for _ in range(repeats + 1):
            torch.cuda.synchronize()
            began = time.perf_counter()
            host.to("cuda", non_blocking=True)
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
        return megabytes / 1000 / median(seconds[1:])

    _about = """
    With GPUs there are two more hops: device → ring on the trainer's side, staging buffer → device on the generator's. A GPU copies host
    memory by itself, at full speed and beside its kernels, only if the pages are *pinned*, so that the operating system cannot move them;
    otherwise the driver copies everything once more. The ring is therefore pinned where there is CUDA. """
    if torch.cuda.is_available():
        _pageable, _pinned = (
            staging_speed(config.megabytes, pinned) for pinned in (False, True)
        )
        _about += f"Measured here, host to device: {_pageable:.1f} GB/s pageable, {_pinned:.1f} GB/s pinned."
    else:
        _about += "This machine has no GPU, so that difference is not measured here."
    lesson.md(_about)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A torn read

    The reader is not noticed, so the writer cannot wait for it. Suppose there were no protection at all: the writer goes round its ring,
    publishing as fast as it can, and a reader takes the newest slot that *was* complete when it looked. `RestlessWriter` writes version 7 as
    7.0 in every single number. A copy that holds two different numbers is **torn**: part of one version and part of another.
    """)
    return


@app.class_definition
class RestlessWriter(Writer):
    """Publishes as fast as it can; every number of version 7 is 7.0."""

    @concurrent_endpoint
    async def begin(self):
        self.stop = threading.Event()
        self.began, self.first = time.perf_counter(), self.version
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
        while not self.stop.is_set():
            self.write()

    @torch.no_grad()
    def write(self):
        self.version += 1
        for layer in self.model:
            layer.fill_(float(self.version))
        self.publisher.publish(self.model, self.version)


@app.function
async def read_carelessly(reader, staging):
    """Whatever stands in the slot that was the newest complete one a moment ago."""
    while (header := newest_slot(await reader.read_headers())) is None:
        pass
    await reader.read_slot(header.slot, staging)
    return header.version


@app.cell(hide_code=True)
def _():
    mo.md("""
    The cure is to look twice. Each slot has a header with a *sequence number*, odd while the slot is being written. Whoever reads takes the
    header, the payload, and the header again. If the sequence number was even and is still the same, nobody has begun to write in between.
    Otherwise the copy is thrown away and the reader starts over. This is a *seqlock*: it does not prevent a torn read, it reveals it. In the
    package it is `read_ring`, and all transports go through it.
    """)
    return


@app.function
async def read_carefully(reader, staging, attempts=10):
    """(version, bulk reads that it took); WeightPullError if all of them were torn."""
    reads = 0

    async def read_slot(slot):
        nonlocal reads
        reads += 1
        await reader.read_slot(slot, staging)

    return await read_ring(reader.read_headers, read_slot, attempts=attempts), reads


@app.cell(hide_code=True)
def _(config):
    lesson.predict(
        f"A ring of two slots of {config.ring_megabytes} MB, read over the TCP road while the writer never rests. How many careless copies are torn?",
        "hardly any: two slots keep them apart",
        "about half",
        "nearly all",
    )
    return


@app.cell(hide_code=True)
def _():
    start_storm = lesson.start_button("Let them race", seconds=12)
    start_storm
    return (start_storm,)


@app.function
async def race_for(slots, writer, megabytes, reads):
    """Careless and careful reads of a ring, while the writer never rests."""
    reader = await connect(await writer.open_ring.call_one(slots), "rdma")
    staging = torch.zeros(megabytes * 10**6, dtype=torch.uint8)
    numbers = staging.view(torch.float32)
    found = SimpleNamespace(slots=slots, careless=[], careful=[], copies=[], seconds=[])
    await writer.begin.call_one()
    for _ in range(reads):
        began = time.perf_counter()
        version = await read_carelessly(reader, staging)
        found.seconds.append(time.perf_counter() - began)
        found.careless.append(verdict(numbers, version))
        found.copies.append(numbers[:: len(numbers) // 256].long().tolist())
        try:
            version, bulk_reads = await read_carefully(reader, staging)
            found.careful.append((verdict(numbers, version), bulk_reads - 1))
        except WeightPullError:
            found.careful.append(("given up", None))
    found.period = await writer.rest.call_one()
    return found


@app.function
def verdict(numbers, version):
    """What a copy is that its header called ``version``."""
    if bool((numbers != numbers[0]).any()):
        return "torn"
    return "whole" if numbers[0] == version else "another version"


@app.cell
async def _(config, start_storm):
    lesson.wait_for(start_storm)
    races = {}
    _make = (layers, config.ring_megabytes)
    async with processes(writer=(RestlessWriter, *_make)) as (_writer,):
        for _slots in mo.status.progress_bar(
            config.ring_slots, title="Rings", remove_on_exit=True
        ):
            races[_slots] = await race_for(_slots, _writer, _make[1], config.reads)
    return (races,)


@app.cell(hide_code=True)
def _(races):
    fewest = races[min(races)]
    _torn = [copy for copy in fewest.copies if len(set(copy)) > 1]
    torn_copies = (_torn or fewest.copies)[:4]
    lesson.figure(
        copies_chart(torn_copies),
        f"Copies read carelessly from the ring of {fewest.slots} slots; a colour, and where there is room a number, for each version. "
        f"{min(len(_torn), 4)} of these {len(torn_copies)} are torn.",
    )
    return (fewest,)


@app.cell(hide_code=True)
def _(fewest):
    _reads, _torn = len(fewest.careless), fewest.careless.count("torn")
    _other = fewest.careless.count("another version")
    _jumps = sum(
        any(later < sooner for sooner, later in pairwise(copy)) for copy in fewest.copies
    )
    lesson.reveal(f"""
    {_torn} of {_reads} careless copies were torn, and {_other} more were whole, but of a later version than their header had said: the writer had
    passed before the read began. Two slots keep writer and reader apart only until the writer comes round again, and here a version takes it
    {1e3 * fewest.period:.0f} ms while a read takes {1e3 * median(fewest.seconds):.0f} ms. In {_jumps} copies a newer part stands
    *before* an older one. Which comes first depends on who overtakes whom, and on the order in which the chunks of a read are taken. So no place in
    the payload, not even its last byte, would tell whether the rest is good.

    Torn weights raise no error. The model computes something, and the trainer would learn from it.
    """)
    return


@app.cell(hide_code=True)
def _(fewest, races):
    _careful = [kind for found in races.values() for kind, _ in found.careful]
    _bad = len(_careful) - _careful.count("whole") - _careful.count("given up")
    _here = [kind for kind, _ in fewest.careful]
    _retries = sum(retries or 0 for _, retries in fewest.careful)
    lesson.md(f"""
    The careful reader, under the same load and over all rings: of {len(_careful)} pulls, **{_bad}** returned a copy that was not exactly the version it
    said{"" if _bad == 0 else " (a bug: please report it)"}. In the ring of {fewest.slots} slots {_here.count("whole")} of {len(_here)} pulls succeeded, after {_retries} retries in all,
    and {_here.count("given up")} gave up because ten reads in a row were thrown away. The seqlock is strict: it also throws away a copy that is whole, if a
    write *began* before the second look. It makes reading *safe*. Whether anything *arrives* is another question, and one of the number of slots.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### In slow motion

    The same protocol, a chunk at a time. Step through it without the seqlock until a torn copy is used. Then switch the seqlock on. Then find
    the fewest slots with which nothing is torn any more, and see what a pause of the writer does.
    """)
    return


@app.cell
def _():
    WeightRingRace(static="execute" in mo.cli_args())
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 1: the reader of a seqlock (8 minutes)

    One slot only. `read_header()` returns `(sequence, version)`, the sequence odd while somebody writes; `read_payload()` returns a list.
    Either can be called at any time, and the writer may do anything between two calls, or *during* `read_payload`. Complete `read_whole`: return
    `(version, payload)` where the payload is certain to be that version, whole. Try again as long as it takes. The check plays a writer that
    comes at the worst moments.
    """)
    return


@app.function
def read_whole(read_header, read_payload):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(lambda: read_whole, check_read_whole, read_whole_solution)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 2: how many slots? (8 minutes)

    The writer starts a new version every `period` seconds, always into the oldest slot, and writes for `write` seconds (`write` ≤ `period`).
    A reader looks at the headers at any moment, picks the newest complete slot, and needs `read` seconds until its bulk read is done. Complete
    `slots_needed`: the fewest slots, 2 or more, with which no read is ever torn.

    A hint: follow one slot from the moment at which it is complete. How long can it be the newest? When is it overwritten?
    """)
    return


@app.function
def slots_needed(read, write, period):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(lambda: slots_needed, check_slots_needed, slots_needed_solution)
    return


@app.cell(hide_code=True)
def _(races):
    lesson.table(
        "The race above, for every number of slots",
        [
            {
                "slots": slots,
                "careless: torn": found.careless.count("torn"),
                "other version": found.careless.count("another version"),
                "careful: whole": sum(kind == "whole" for kind, _ in found.careful),
                "retries": sum(retries or 0 for _, retries in found.careful),
                "given up": sum(kind == "given up" for kind, _ in found.careful),
                "slowest read": f"{1e3 * max(found.seconds):.0f} ms",
            }
            for slots, found in races.items()
        ],
    )
    return


@app.cell(hide_code=True)
def _(fetch_seconds, publish_seconds, races):
    _read, _period = (
        max(max(found.seconds) for found in races.values()),
        median(found.period for found in races.values()),
    )
    _needed = slots_needed_solution(_read, _period, _period)
    _clean = [slots for slots, found in races.items() if {*found.careless} == {"whole"}]
    _real = slots_needed_solution(fetch_seconds["TCP, tuned"], median(publish_seconds), 1.0)
    lesson.md(f"""
    With the slowest read of the table and a writer that never rests (`write` = `period`), the formula asks for **{_needed}** slots. In this run
    {f"even the careless reader got nothing but whole and right copies with {', '.join(map(str, _clean))} slots" if _clean else "the careless reader had bad copies with every number of slots"}.
    The formula is about the worst moment, and a run of this length need not meet it; nor is the slowest read seen the slowest possible. That is
    why the package keeps the seqlock *and* has slots to spare. A real trainer rests: with a step of one second and the times of the ladder above,
    {_real} slots are enough. The package uses 3.
    """)
    return


@app.cell(hide_code=True)
def _(config):
    lesson.md(f"""
    ## Pulling while generating

    Now with a policy that really decodes. A writer in another process publishes it several times a second, far more often than a trainer would.
    So that a pull takes long enough to be seen, a ballast of {config.ballast_megabytes} MB travels with the policy. Three ways to live with the pulls:

    - **none**: decode only.
    - **beside**: fetch while decoding goes on; take the turn only for the swap. This is what the course's generators do.
    - **instead**: hold the turn for the whole pull, as if the read went straight into the model.
    """)
    return


@app.function(hide_code=True)
def with_ballast(model, megabytes):
    return nn.ModuleDict({"policy": model, "ballast": layers(megabytes)})


@app.function(hide_code=True)
def load_with_ballast(policy, device, megabytes):
    return with_ballast(load_policy(policy, device).model, megabytes)


@app.function
async def keep_pulling(writer, subscriber, every, way, log, stream, turn):
    """Publish and pull again and again; who holds ``turn`` may use the model."""
    while True:
        await asyncio.sleep(every)
        await writer.publish.call_one()
        async with turn if way == "instead" else nullcontext():
            began = time.perf_counter()
            await subscriber.fetch()
            fetched = time.perf_counter()
            async with turn if way == "beside" else nullcontext():
                swapping = time.perf_counter()
                stream.use_version(subscriber.swap())
        log.versions.append(subscriber.version)
        log.fetches.append(fetched - began)
        stopped_from = began if way == "instead" else swapping
        log.stopped.append(time.perf_counter() - stopped_from)


@app.cell(hide_code=True)
def _():
    lesson.predict(
        "Which of the two ways to pull costs more decoding speed on two cores, where the reading itself needs a processor, too?",
        "beside: reading and decoding compete",
        "instead: decoding stands still for the whole read",
        "no difference: the work is the same",
    )
    return


@app.cell(hide_code=True)
def _():
    start_decoding = lesson.start_button("Decode and pull", seconds=15)
    start_decoding
    return (start_decoding,)


@app.function
async def decode(policy, requests, execute, pulling):
    """Episodes and seconds; ``pulling(stream, turn)`` runs beside it."""
    turn = asyncio.Lock()
    stream = RolloutStream(lambda: RolloutEngine(policy, execute, Sampling(slots=32)), turn)
    task = asyncio.create_task(pulling(stream, turn))
    began = time.perf_counter()
    try:
        episodes = await stream.sample(requests)
        return episodes, time.perf_counter() - began
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@app.cell
async def _(config, policy, start_decoding):
    lesson.wait_for(start_decoding)
    _environment = Zorplex(0, config.policy != "embedded")
    _tasks = _environment.tasks(tuple(TASK_SPECS), config.episodes, "held_out")
    _requests = [RolloutRequest(task, seed) for seed, task in enumerate(_tasks)]
    ways = {
        way: SimpleNamespace(speed=[], versions=[], stopped=[], fetches=[], episodes=[])
        for way in ("none", "beside", "instead")
    }
    _make = (load_with_ballast, config.policy, config.device, config.ballast_megabytes)
    async with processes(writer=(Writer, *_make)) as (_writer,):
        _model = with_ballast(policy.model, config.ballast_megabytes)
        _subscriber = await subscribe(await _writer.open_ring.call_one(), "rdma", _model)
        for _way, _log in mo.status.progress_bar(
            [*ways.items()] * config.rounds, title="Decoding", remove_on_exit=True
        ):
            _every = math.inf if _way == "none" else config.pull_every
            _pulling = partial(keep_pulling, _writer, _subscriber, _every, _way, _log)
            _found, _took = await decode(policy, _requests, _environment.execute, _pulling)
            _log.speed.append(sum(len(episode.token_ids) for episode in _found) / _took)
            _log.episodes += _found
    return (ways,)


@app.cell(hide_code=True)
def _(in_words, ways):
    _alone = median(ways["none"].speed)
    lesson.table(
        f"Decoding under pulls, the median of {len(ways['none'].speed)} runs each, in turns",
        [
            {
                "pulls": way,
                "tokens/s": f"{median(log.speed):,.0f}",
                "of undisturbed": f"{median(log.speed) / _alone:.0%}",
                "number of pulls": len(log.versions),
                "a fetch": in_words(median(log.fetches)) if log.fetches else "–",
                "decoding stood still, each": in_words(median(log.stopped))
                if log.stopped
                else "–",
            }
            for way, log in ways.items()
        ],
    )
    return


@app.cell(hide_code=True)
def _(in_words, ways):
    _beside, _instead, _none = (
        median(ways[way].speed) for way in ("beside", "instead", "none")
    )
    _stood = {way: median(ways[way].stopped or [0.0]) for way in ("beside", "instead")}
    _verdict = (
        "no clear difference: the two are within 5 % of each other"
        if abs(_beside / _instead - 1) < 0.05
        else f"{'instead' if _beside > _instead else 'beside'} costs more"
    )
    _monotone = all(
        later >= sooner for log in ways.values() for sooner, later in pairwise(log.versions)
    )
    _mixed = sum(e.first_version != e.last_version for e in ways["beside"].episodes)
    lesson.reveal(f"""
    In this run: {_verdict}. Beside decoding left {_beside / _none:.0%} of the undisturbed speed, instead of it {_instead / _none:.0%}. What
    differs for certain is for how long nothing is decoded: {in_words(_stood["beside"])} a pull against {in_words(_stood["instead"])}. On two cores
    the fallback's reading also takes processor time from decoding; a network card takes none, and then only the standstill is left.

    The versions that arrived {"never went backwards" if _monotone else "WENT BACKWARDS, which is a bug"}. {_mixed} of {len(ways["beside"].episodes)} episodes in the
    middle row began with one version and ended with another. Each episode records both, and its log-probs are those it was sampled with.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Another model is refused

    A handle says nothing about what the bytes mean. If one side had been started with another vocabulary, every parameter after the first
    would be read from the wrong place, without an error. So the source carries the layout, names, shapes and types, and `subscribe` compares
    it with the model's own before a byte is copied.
    """)
    return


@app.cell
async def _(policy):
    _publisher = Publisher(policy.model)
    _name, _embedding = next(iter(named_weights(policy.model).items()))
    _rows, _columns = _embedding.shape
    _larger = named_weights(policy.model) | {_name: torch.zeros(_rows + 8, _columns)}
    try:
        await subscribe(_publisher.source(), "auto", _larger)
        refusal = "Nothing was refused."
    except LayoutMismatch as _error:
        refusal = f"`LayoutMismatch`: {_error}"
    lesson.md(refusal)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Half the bytes, and a mismatch

    Trainers keep float32 *master* weights, because the updates are too small for fewer digits. Generators do well with bfloat16. Rounding for
    the journey halves the bytes. But then the generator samples from a slightly different policy than the one that is trained: its log-probs
    are not those that the trainer computes for the same tokens. How different they are can be measured on real episodes.
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
    lesson.predict(
        "bfloat16 keeps 8 significant bits, so each weight is off by up to 0.4 %. By how much does the probability of a sampled token change, at worst, in some dozen episodes?",
        "by less than 0.1 %",
        "by a few per cent",
        "by more than 20 %",
    )
    return


@app.cell
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
def _(config, deliveries):
    lesson.table(
        f"Sampler against trainer, the tokens of {config.mismatch_episodes} episodes at lag 0",
        [
            {
                "weights travel as": name,
                "bytes": f"{size:,}",
                "largest change of a log-prob": f"{found['max_logp_difference']:.2g}",
                "mismatch KL": f"{found['mismatch_kl']:.2g}",
                "effective sample size": f"{found['effective_sample_size']:.4%}",
            }
            for name, (size, found) in deliveries.items()
        ],
    )
    return


@app.cell(hide_code=True)
def _(deliveries):
    (_size, _full), (_half, _rounded), (_, _both) = deliveries.values()
    _factor = math.exp(_rounded["max_logp_difference"])
    lesson.reveal(f"""
    By a factor of {_factor:.2f}, for the token that it hit hardest. With float32 the largest change of a log-prob is {_full["max_logp_difference"]:.0e}, which is rounding
    in the arithmetic; with bfloat16 weights it is {_rounded["max_logp_difference"]:.2g}, and with bfloat16 arithmetic on top {_both["max_logp_difference"]:.2g}. The bytes fall to
    {_half / _size:.0%}. On average little happens: the effective sample size is still {min(_rounded["effective_sample_size"], _both["effective_sample_size"]):.3%} or more. It is the same mismatch that old weights cause, so the same correction handles it: record the log-probs with which
    a token *was* sampled, and put the ratio into the loss. `transfer_dtype` is the setting in the course's configuration.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Resharding

    A large model lies in pieces on both sides, and the pieces differ. FSDP cuts every parameter by rows over the trainer's ranks. Tensor
    parallelism cuts some parameters by rows and others by columns over the generator's ranks, and replicates the rest. Who has to send
    what to whom? A shard is a box cut out of the whole tensor. A transfer is the overlap of two boxes. Everything follows from that.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 3: the overlap of two shards (8 minutes)

    In one dimension. A source rank holds `source = (first, count)`: the elements `first`, `first + 1`, … of the whole tensor, `count` of them. A
    destination rank wants `destination`, given in the same way. Complete `overlap`: return `(source_offset, destination_offset, size)` **in
    bytes**, where the offsets count from the beginning of *each rank's own shard*, or `None` if they have nothing in common.
    """)
    return


@app.function
def overlap(source, destination, itemsize):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(lambda: overlap, check_overlap, overlap_solution)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### The map

    `plan_model` does the same in any number of dimensions, for every parameter and every pair of ranks. The function below describes the policy
    of this notebook on a mesh: `tp` ranks of tensor parallelism and `dp` of FSDP. Tensor parallelism deals out whole attention heads. A model
    with grouped queries has fewer heads for keys and values than for queries, and they run out first. vLLM then puts each of them on
    several ranks; Megatron-Core refuses such a mesh. The function does as vLLM does. Only the vocabulary is cut as `DTensor` would, in almost
    equal parts, where vLLM pads it first. Choose both sides, and read off how many bytes each pair exchanges.
    """)
    return


@app.function
def describe_on(policy, **mesh):
    """Every parameter on a mesh such as dp=2, tp=2; dp cuts what tp leaves."""
    rows = "q_proj k_proj v_proj gate_proj up_proj embed_tokens lm_head".split()
    columns = ("o_proj.weight", "down_proj.weight")
    heads = policy.model.config.num_key_value_heads
    description = {}
    for name, tensor in named_weights(policy.model).items():
        axes = dict(mesh)
        along = {"copies": Replicate(), "dp": Shard(0), "tp": Replicate()}
        if name.endswith(columns):
            along["tp"] = Shard(1)
        elif any(part in name for part in rows):
            along["tp"] = Shard(0)
            if "tp" in mesh:
                along["dp"] = StridedShard(0, split_factor=mesh["tp"])
        if mesh.get("tp", 1) > heads and ("k_proj" in name or "v_proj" in name):
            # More ranks than heads: neighbours hold the same head.
            axes |= {"tp": heads, "same head": mesh["tp"] // heads}
            along["same head"] = Replicate()
        sharding = Sharding(tuple(axes.values()), tuple(along[axis] for axis in axes))
        description[name] = ShardedWeight(tuple(tensor.shape), tensor.dtype, sharding)
    return description


@app.cell
def _(policy):
    trainers = {
        "FSDP 2": {"dp": 2},
        "FSDP 4": {"dp": 4},
        "FSDP 2 × TP 2": {"dp": 2, "tp": 2},
    }
    # Ranks get whole heads, so both libraries want as many queries' heads on each.
    generators = {
        f"TP {tp}": {"tp": tp}
        for tp in (2, 4)
        if policy.model.config.num_attention_heads % tp == 0
    } | {"2 whole copies": {"copies": 2}}
    plans = {
        (trainer, generator): plan_model(describe_on(policy, **t), describe_on(policy, **g))
        for trainer, t in trainers.items()
        for generator, g in generators.items()
    }
    ReshardMap(
        {names: plan.traffic() for names, plan in plans.items()},
        sources="trainer",
        destinations="generator",
        axes=("Trainers hold", "Generators want"),
        notes={
            names: f"Gather, then scatter would move {plan.gather_then_scatter_bytes / 1e6:.2f} MB, "
            f"{plan.gather_then_scatter_bytes / plan.bytes_moved:.2f} times as much."
            for names, plan in plans.items()
        },
    )
    return (plans,)


@app.cell(hide_code=True)
def _(plans):
    _busiest = {names: max(map(sum, plan.traffic())) for names, plan in plans.items()}
    _plan = plans["FSDP 4", "TP 2"]
    lesson.md(f"""
    The obvious alternative is to *gather* the whole model on trainer rank 0 and to *scatter* it from there. It moves more bytes, but that is
    not the worst of it: they all pass through one rank. From FSDP 4 to TP 2, rank 0 receives what it has not, and sends everything:
    {_plan.gather_then_scatter_bytes / 1e6:.2f} MB go through its link. With the plan the busiest trainer rank sends {_busiest["FSDP 4", "TP 2"] / 1e6:.2f} MB, and no
    trainer rank needs room for the whole model.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 4: gather, then scatter, against the plan (5 minutes)

    A tensor of `size` bytes lies in equal parts on `sources` trainer ranks. Each of `destinations` generator ranks wants an equal part of it, or,
    if `whole` is true, all of it. No two ranks share a process. Complete `bytes_to_move`: return `(plan, gathered)`, the bytes that travel with the
    plan, and those that travel if trainer rank 0 first gathers what it does not hold and then sends every generator rank what it wants.
    """)
    return


@app.function
def bytes_to_move(size, sources, destinations, whole):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(lambda: bytes_to_move, check_bytes_to_move, bytes_to_move_solution)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A real transfer

    Four processes: two trainer ranks with FSDP, two generator ranks with tensor parallelism, each side with a gloo process group of its own. The
    trainer takes a real step and publishes. Each generator rank reads its pieces, and nothing else, from both trainer ranks. The model is small: an
    embedding, four blocks of two matrices, and an output layer.

    Here two things must not be mixed: two versions within a shard, and two versions across the shards. `fetch` fills staging buffers
    only; `pull_together` repeats it until *all* generator ranks hold the same version, and only then lets each `install` it.
    """)
    return


@app.class_definition(hide_code=True)
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


@app.class_definition(hide_code=True)
class SmallModel(nn.Module):
    def __init__(self, width, tokens=512, blocks=4):
        super().__init__()
        self.embed, self.head = nn.Embedding(tokens, width), nn.Linear(width, tokens)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@app.function
def cut(model, mesh):
    """FSDP along a mesh called dp, tensor parallelism along one called tp."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import parallel

    if mesh.mesh_dim_names == ("dp",):
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    styles = {
        "embed": parallel.RowwiseParallel(input_layouts=Replicate()),
        "blocks.*.up": parallel.ColwiseParallel(),
        "blocks.*.down": parallel.RowwiseParallel(),
        "head": parallel.ColwiseParallel(output_layouts=Replicate()),
    }
    return parallel.parallelize_module(model, mesh, styles)


@app.class_definition
class Rank(Actor):
    """A rank of either side. Plain endpoints: collectives need all ranks in step."""

    @endpoint
    def join(self, side, width, seed):
        import torch.distributed as dist

        torch.set_num_threads(1)
        torch.manual_seed(seed)
        dist.init_process_group("gloo")
        self.mesh = dist.init_device_mesh(
            "cpu", (dist.get_world_size(),), mesh_dim_names=(side,)
        )
        self.model = cut(SmallModel(width), self.mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        return describe(self.model, self.mesh)

    @endpoint
    def loss(self, train=False):
        tokens = torch.arange(512)
        loss = nn.functional.cross_entropy(self.model(tokens[:-1]), tokens[1:])
        if train:
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss.item()

    @endpoint
    def whole(self):
        """All weights, gathered by torch itself."""
        return {
            name: p.full_tensor().detach().clone()
            for name, p in self.model.named_parameters()
        }

    @endpoint
    def offer(self, plan):
        self.publisher = ShardPublisher(self.model, plan, rank_in(self.mesh))
        return shard_transports.offer(self.publisher)

    @endpoint
    def publish(self, version):
        self.publisher.publish(self.model, version)

    @endpoint
    def subscribe(self, offers, plan):
        subscribing = shard_transports.subscribe(
            offers, self.model, plan, rank_in(self.mesh)
        )
        self.subscriber = asyncio.run(subscribing)
        return self.subscriber.transfer_bytes

    @endpoint
    def fetch(self):
        return asyncio.run(self.subscriber.fetch())

    @endpoint
    def install(self, version):
        self.subscriber.install(version)


@app.function(hide_code=True)
@asynccontextmanager
async def two_meshes(ranks):
    """Trainer and generator ranks, each side ready for a process group of its own; they end with the block."""
    from monarch.actor import this_host
    from monarch.spmd import setup_torch_elastic_env_async

    start_runtime()
    meshes = []
    try:
        for name in ("trainer", "generator"):
            meshes.append(this_host().spawn_procs(per_host={"procs": ranks}, name=name))
        await asyncio.gather(*map(setup_torch_elastic_env_async, meshes))
        yield [
            mesh.spawn(name, Rank)
            for mesh, name in zip(meshes, ("trainer", "generator"), strict=True)
        ]
    finally:
        await asyncio.gather(
            *(mesh.stop().as_asyncio() for mesh in meshes), return_exceptions=True
        )


@app.function
async def on_all(endpoint, *args):
    """The answers of all ranks, which work at the same time."""
    return [value for _, value in (await endpoint.call(*args)).items()]


@app.cell(hide_code=True)
def _():
    start_transfer = lesson.start_button("Train, reshard, compare", seconds=20)
    start_transfer
    return (start_transfer,)


@app.cell
async def _(config, start_transfer):
    lesson.wait_for(start_transfer)
    transfer = SimpleNamespace(equal=0, compared=0, seconds=[], losses=[])
    with mo.status.spinner(title="Four processes", remove_on_exit=True):
        async with two_meshes(ranks=2) as (_trainer, _generator):
            _held, _wanted = await asyncio.gather(
                on_all(_trainer.join, "dp", config.width, 0),
                on_all(_generator.join, "tp", config.width, 1),
            )
            transfer.plan = plan_model(_held[0], _wanted[0])
            _offers = await on_all(_trainer.offer, transfer.plan)
            transfer.read = await on_all(_generator.subscribe, _offers, transfer.plan)
            for _version in (1, 2, 3):
                await on_all(_trainer.loss, True)
                _began = time.perf_counter()
                await on_all(_trainer.publish, _version)
                await pull_together(
                    lambda: on_all(_generator.fetch),
                    lambda v: on_all(_generator.install, v),
                )
                transfer.seconds.append(time.perf_counter() - _began)
                (_theirs, _), (_ours, _) = (
                    await on_all(_trainer.whole),
                    await on_all(_generator.whole),
                )
                transfer.compared += len(_theirs)
                transfer.equal += sum(
                    torch.equal(_theirs[name], _ours[name]) for name in _theirs
                )
                transfer.losses.append(
                    ((await on_all(_trainer.loss))[0], (await on_all(_generator.loss))[0])
                )
    return (transfer,)


@app.cell(hide_code=True)
def _(transfer):
    lesson.table(
        "After each version: the loss, computed by FSDP and by tensor parallelism",
        [
            {
                "version": version,
                "trainers": f"{theirs:.6f}",
                "generators": f"{ours:.6f}",
                "publish to install, ms": f"{1e3 * seconds:.0f}",
            }
            for version, ((theirs, ours), seconds) in enumerate(
                zip(transfer.losses, transfer.seconds, strict=True), start=1
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _(transfer):
    _plan = transfer.plan
    _sent = " ".join(
        f"Trainer rank {rank} sent {to_0 / 1e6:.2f} MB to generator rank 0 and {to_1 / 1e6:.2f} MB to rank 1."
        for rank, (to_0, to_1) in enumerate(_plan.traffic())
    )
    lesson.md(f"""
    **{transfer.equal} of {transfer.compared}** parameters were equal bit for bit, compared whole, as torch itself gathers them on either side, after each of
    {len(transfer.losses)} steps. The losses differ by {max(abs(a - b) for a, b in transfer.losses):.0e} at most, because the two sides add up in different orders.

    Each version: {sum(transfer.read) / 1e6:.2f} MB were read in all, {"exactly what the plan says" if sum(transfer.read) == _plan.bytes_moved else f"the plan says {_plan.bytes_moved / 1e6:.2f} MB"}{" and the minimum possible" if _plan.bytes_moved == _plan.minimum_bytes else ""}. Gather, then scatter
    would have moved {_plan.gather_then_scatter_bytes / 1e6:.2f} MB, {_plan.gather_then_scatter_bytes / _plan.bytes_moved:.2f} times as much. {_sent}
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Push or pull?

    In everything so far the reader pulls. A system can also *push*: the trainer writes new weights into its generators. Pushing needs no ring
    and no retry, but the trainer must know when it may write: not while a generator is in the middle of a batch with the old weights, unless
    that keeps a second buffer. So somebody waits.

    Below, the two protocols side by side. What is studied is *who waits for whom*, so trainer and generators are coroutines of this notebook, and
    decoding and training are sleeps; the ring and its reader are the real ones. Two generators take 0.1 s for a batch. The third takes 0.5 s,
    and then, in a second pair of runs, 0.1 s as well. The trainer takes 0.1 s for a step. So the sizes of the effects are set by these sleeps: this is a simulation of the
    order of events. What the transport itself costs was measured above, and is next to nothing here.
    """)
    return


@app.function
async def pushing(train, handoffs):
    """A step, then hand its version to all, and wait until all have taken it."""
    for version in range(1, train.steps + 1):
        await train.step(version)
        with train.recorder.span("idle"):
            for handoff in handoffs:
                handoff.put_nowait(version)
            await asyncio.gather(*(handoff.join() for handoff in handoffs))


@app.function
async def pulling(train, ring, model):
    """A step, then publish. Whoever wants the version will come."""
    for version in range(1, train.steps + 1):
        await train.step(version)
        with train.recorder.span("publish"):
            ring.publish(model, version)


@app.cell(hide_code=True)
def _():
    lesson.predict(
        "By how much does the one slow generator hold up the trainer in the pushing system, where a step takes 0.1 s?",
        "not at all",
        "it makes a step about twice as long",
        "it makes a step about five times as long",
    )
    return


@app.cell(hide_code=True)
def _():
    class Trainer:
        """Its steps are sleeps; ``trained`` is the newest version."""

        def __init__(self, steps, seconds):
            self.steps, self.seconds, self.trained = steps, seconds, 0
            self.recorder = SpanRecorder("trainer")

        async def step(self, version):
            with self.recorder.span("train"):
                await asyncio.sleep(self.seconds)
            self.trained = version

    async def generate(name, seconds, take, trainer):
        """Take new weights, decode a batch, again and again; its spans, and how old the weights were at each batch's end."""
        recorder, ages, version = SpanRecorder(name), [], 0
        try:
            while True:
                with recorder.span("pull"):
                    version = await take(version)
                with recorder.span("generate"):
                    await asyncio.sleep(seconds)
                ages.append(trainer.trained - version)
        except asyncio.CancelledError:
            return recorder.drain(), ages

    async def compare(mode, steps=10, train_seconds=0.1, paces=(0.1, 0.1, 0.5)):
        trainer, model = Trainer(steps, train_seconds), layers(1)
        ring, staging = WeightRing(model), torch.zeros(10**6, dtype=torch.uint8)
        ring.publish(model, 0)
        reader, handoffs = LocalReader(ring), [asyncio.Queue() for _ in paces]

        async def from_ring(version):
            return await read_ring(
                reader.read_headers, lambda slot: reader.read_slot(slot, staging), version
            )

        def from_handoff(handoff):
            async def take(version):
                if not handoff.empty():
                    version = handoff.get_nowait()
                    handoff.task_done()
                return version

            return take

        takes = [
            from_ring if mode == "pull" else from_handoff(handoff) for handoff in handoffs
        ]
        names = ("fast", "fast too", "slow")
        running = [
            asyncio.create_task(generate(*pace, trainer))
            for pace in zip(names, paces, takes, strict=True)
        ]
        await asyncio.sleep(0)
        await (
            pulling(trainer, ring, model) if mode == "pull" else pushing(trainer, handoffs)
        )
        for task in running:
            task.cancel()
        found = await asyncio.gather(*running)
        timeline = Timeline(trainer.recorder.drain())
        for spans, _ in found:
            timeline.add(spans)
        return SimpleNamespace(
            timeline=timeline, ages={n: a for n, (_, a) in zip(names, found, strict=True)}
        )

    return (compare,)


@app.cell
async def _(compare):
    pushed, pulled = await compare("push"), await compare("pull")
    even = {mode: await compare(mode, paces=(0.1, 0.1, 0.1)) for mode in ("push", "pull")}
    return even, pulled, pushed


@app.cell(hide_code=True)
def _(pulled, pushed):
    mo.vstack(
        [
            lesson.figure(
                timeline_chart(pushed.timeline),
                "Push: the trainer goes on when the slowest has taken the weights.",
            ),
            lesson.figure(
                timeline_chart(pulled.timeline),
                f"Pull: the same number of steps, in {pulled.timeline.end - pulled.timeline.start:.1f} s instead of {pushed.timeline.end - pushed.timeline.start:.1f} s.",
            ),
        ]
    )
    return


@app.cell(hide_code=True)
def _(even, pulled, pushed):
    def _row(mode, third, run):
        spans = [span for span in run.timeline.spans if span.actor == "trainer"]
        steps = sum(span.kind == "train" for span in spans)
        took = max(span.end for span in spans) - min(span.start for span in spans)
        slow = run.ages["slow"] or [0]
        return {
            "protocol": mode,
            "third generator": third,
            "seconds a step": f"{took / steps:.2f}",
            "trainer waits": f"{sum(s.end - s.start for s in spans if s.kind == 'idle') / took:.0%}",
            "age at a batch's end, first": f"{fmean(run.ages['fast']):.1f}",
            "third": f"{fmean(slow):.1f}",
            "third, at most": max(slow),
        }

    protocols = [_row("push", "0.5 s", pushed), _row("pull", "0.5 s", pulled)]
    protocols += [_row(mode, "0.1 s", run) for mode, run in even.items()]
    lesson.table("Ten steps; ages in versions", protocols)
    return (protocols,)


@app.cell(hide_code=True)
def _(protocols):
    _push, _pull, _even_push, _even_pull = protocols
    _times = float(_push["seconds a step"]) / float(_pull["seconds a step"])
    lesson.reveal(f"""
    A step takes {_push["seconds a step"]} s instead of {_pull["seconds a step"]}, {_times:.1f} times as long, and the trainer waits for {_push["trainer waits"]} of the time. That is our choice of
    sleeps: whoever pushes waits for the slowest generator, and we made it five times as slow as a step. With three equal generators a step takes
    {_even_push["seconds a step"]} s with pushing and {_even_pull["seconds a step"]} s with pulling. What does not depend on the sleeps is the order: pushing waits for the slowest, pulling for nobody.

    Pulling has its own price: the slow generator's weights are {_pull["third"]} versions old on average when its batch is done, against {_push["third"]} with pushing. That is
    staleness, and `max_lag` has to bound it. It skips the versions between, which costs nothing: only the newest is worth having.

    Neither is right as such. Where generators stop at a common point anyway, as in synchronous training, pushing saves a round trip; the first
    of the published systems above writes into its inference GPUs, between barriers. Where they run on their own, with batches of different
    length, with crashes and newcomers, pulling keeps one slow or dead reader from stopping everybody. This course pulls.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.recap(
        "Control messages carry handles, whose size does not grow with the memory. Bulk data are read through them, without any call of the owner's code.",
        "Every copy, every serialisation and every setting of a transport shows in its bandwidth: measure the ladder on your machine before you plan.",
        "Fetch into a staging buffer beside generation, verify, then swap between two decode steps: only the swap stops anything.",
        "A one-sided read can be torn, silently. A seqlock reveals it; slots and a resting writer make it rare.",
        "Weights rounded to bfloat16 halve the bytes and shift the log-probs: a mismatch to correct, like staleness.",
        "With sharded models every rank fetches the overlaps of its own boxes; nobody gathers the whole.",
        "Pushing makes the trainer wait for the slowest reader, pulling makes readers late: choose who waits.",
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.links(__file__)
    return


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


@app.function(hide_code=True)
def check_overlap(overlap):
    exercise.expect(overlap, (0, 4), (0, 4), 2, result=(0, 0, 8))
    exercise.expect(overlap, (0, 4), (2, 4), 4, result=(8, 0, 8))
    exercise.expect(overlap, (4, 4), (2, 4), 4, result=(0, 8, 8))
    exercise.expect(overlap, (6, 2), (0, 10), 1, result=(0, 6, 2))
    exercise.expect(overlap, (0, 10), (6, 2), 1, result=(6, 0, 2))
    exercise.expect(overlap, (0, 4), (4, 4), 4, result=None)
    exercise.expect(overlap, (8, 4), (0, 4), 4, result=None)


@app.function(hide_code=True)
def overlap_solution(source, destination, itemsize):
    first = max(source[0], destination[0])
    end = min(source[0] + source[1], destination[0] + destination[1])
    if first >= end:
        return None
    return tuple(
        itemsize * count
        for count in (first - source[0], first - destination[0], end - first)
    )


@app.function(hide_code=True)
def check_bytes_to_move(bytes_to_move):
    exercise.expect(bytes_to_move, 1200, 2, 2, False, result=(1200, 1800))
    exercise.expect(bytes_to_move, 1200, 4, 2, False, result=(1200, 2100))
    exercise.expect(bytes_to_move, 1200, 1, 3, False, result=(1200, 1200))
    exercise.expect(bytes_to_move, 1200, 2, 2, True, result=(2400, 3000))
    exercise.expect(bytes_to_move, 1200, 4, 3, True, result=(3600, 4500))


@app.function(hide_code=True)
def bytes_to_move_solution(size, sources, destinations, whole):
    wanted = size * destinations if whole else size
    missing_on_rank_0 = size - size // sources
    return wanted, missing_on_rank_0 + wanted


if __name__ == "__main__":
    app.run()
