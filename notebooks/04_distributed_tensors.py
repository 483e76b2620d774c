# /// script
# [tool.marimo.display]
# theme = "system"
# ///

import marimo

__generated_with = "0.25.2"
app = marimo.App(
    width="medium",
    app_title="Distributed tensors: one tensor on several processes",
    css_file="../zorplex_rl/course/lesson/lesson.css",
)

with app.setup(hide_code=True):
    import logging
    import math
    import os
    import socket
    import struct
    from contextlib import asynccontextmanager
    from types import SimpleNamespace

    import marimo as mo
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.tensor import (
        DTensor,
        Partial,
        Replicate,
        Shard,
        distribute_tensor,
    )
    from torch.nn.utils import parameters_to_vector, vector_to_parameters

    from zorplex_rl.course.figures import shard_charts
    from zorplex_rl.course.lesson import exercise, lesson, scene
    from zorplex_rl.services.runtime import (
        Actor,
        ActorError,
        endpoint,
        start_runtime,
        this_host,
    )
    from zorplex_rl.weights.reshard.plan import (
        bytes_moved,
        gather_then_scatter_bytes,
        plan,
    )
    from zorplex_rl.weights.reshard.sharding import Sharding, local_shape

    # Every torch process on this page has one thread: two cores are shared by all of them.
    torch.set_num_threads(1)


@app.cell(hide_code=True)
def _():
    lesson.header(
        __file__,
        minutes=43,
        hardware="two CPU cores, no network; bytes are counted on Linux",
        goals=[
            "say what each process holds of a tensor, given its placement",
            "name the collective that turns one placement into another, and what it costs in bytes",
            "write a tensor-parallel layer and an FSDP step by hand, and check them against torch",
            "move a tensor from one group of processes to another that cuts it differently",
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Too big for one

    A model of 8 billion parameters needs 128 GB to be trained with Adam in float32: weights, gradients and two running means, 4 bytes each. That is
    more than most accelerators have. So tensors are cut, and every process holds a part.

    Two questions remain. *Who holds what?* That is a tensor's **placement**. *What must be sent, and when?* Those are the **collectives**:
    operations in which all processes of a group take part. This notebook writes both out by hand on two real processes, and counts the bytes.
    """)
    return


@app.cell
def settings():
    config = SimpleNamespace(
        ranks=2,
        seed=0,
        megabytes=8,  # of the tensor on which collectives are counted
        batch=64,  # examples of each rank
        width=256,  # of the two layers; between them four times as wide
        steps=3,  # of training
        rate=0.1,
        momentum=0.9,
    )
    return (config,)


@app.cell(hide_code=True)
def _():
    lesson.ran_on()
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Two processes that compute together

    A `Rank` is an actor that runs whatever function it is sent. `on_all` sends one function to all ranks at once and returns their answers, by rank. So
    every function below that mentions `dist.` runs in *both* processes at the same time: the same program on different data. `dist` is
    `torch.distributed`, with gloo as its backend for CPUs; notebook 02 showed how the processes find each other.
    """)
    return


@app.class_definition
class Rank(Actor):
    """One of the processes that compute together."""

    @endpoint
    def run(self, function, *args):
        return function(*args)


@app.function
async def on_all(ranks, function, *args):
    """Run ``function`` on all ranks at the same time; their answers, by rank."""
    return [answer for _, answer in (await ranks.run.call(function, *args)).items()]


@app.function(hide_code=True)
def join():
    logging.disable(logging.WARNING)  # what gloo cannot do is told on the page
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    return os.getpid()


@app.function(hide_code=True)
@asynccontextmanager
async def process_group(name, count):
    """``count`` processes with a gloo group of their own; they end with the block."""
    from monarch.spmd import setup_torch_elastic_env_async

    start_runtime()
    procs = this_host().spawn_procs(per_host={"procs": count}, name=name)
    try:
        await setup_torch_elastic_env_async(procs)
        ranks = procs.spawn(name, Rank)
        await on_all(ranks, join)
        yield ranks
    finally:
        await procs.stop()


@app.function(hide_code=True)
def sent_so_far():
    """Bytes that this process has put on TCP connections, as Linux counts them."""
    total = 0
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []:
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            found = socket.socket(fileno=os.dup(int(name)))
        except OSError:  # closed meanwhile
            continue
        with found:
            if found.family in (socket.AF_INET, socket.AF_INET6):
                facts = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 208)
                # tcpi_bytes_sent, the 25th of the 8-byte words of struct tcp_info
                total += struct.unpack_from("Q", facts, 200)[0] if len(facts) >= 208 else 0
    return total


@app.function(hide_code=True)
def counted(function, *args):
    """What ``function`` returns, and the bytes that this rank sent meanwhile."""
    dist.barrier()
    before = sent_so_far()
    answer = function(*args)
    dist.barrier()
    return answer, sent_so_far() - before


@app.cell(hide_code=True)
def _():
    open_ranks = lesson.start_button("Start two processes", seconds=8)
    open_ranks
    return (open_ranks,)


@app.cell(hide_code=True)
async def _(config, open_ranks):
    await scene.leave("04")  # what an earlier run of this cell has left open
    lesson.wait_for(open_ranks)
    with mo.status.spinner("Two processes import torch", remove_on_exit=True):
        ranks = await scene.enter("04", process_group("ranks", config.ranks))
    return (ranks,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Who holds what

    A placement is a word for each dimension of the group of processes. Here the group has one dimension, so one word is enough. The drawing
    shows four of them on two ranks. `Partial` looks odd at first: every rank has a tensor of full size, and the *sum* over the ranks is
    meant.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.figure(
        shard_charts.placements_drawing(),
        "What two ranks hold of a 4 × 4 tensor. Each arrow is a collective; replicated data become a shard without any message.",
    )
    return


@app.cell(hide_code=True)
def _(config):
    ask_uneven = lesson.predict(
        "5 rows are cut over 4 ranks. How many rows does each rank get?",
        "2, 1, 1, 1",
        "2, 2, 1, 0",
        "it is an error: 4 does not divide 5",
    )
    ask_uneven
    return (ask_uneven,)


@app.function
def cut(tensor, dim, rank, ranks):
    """The part of ``tensor`` that ``rank`` holds if it is sharded along ``dim``."""
    length = tensor.shape[dim]
    size = math.ceil(length / ranks)
    first, last = min(rank * size, length), min((rank + 1) * size, length)
    return tensor.narrow(dim, first, last - first)


@app.function
def by_dtensor(whole, placement):
    """This rank's part of ``whole``, as torch places it."""
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    return distribute_tensor(whole, mesh, [placement]).to_local()


@app.cell(hide_code=True)
async def _(config, ranks):
    _whole = torch.arange(20.0).reshape(5, 4)
    held = {}
    for _placement in (Shard(0), Shard(1), Replicate()):
        _theirs = await on_all(ranks, by_dtensor, _whole, _placement)
        _ours = [
            cut(_whole, _placement.dim, rank, config.ranks)
            if isinstance(_placement, Shard)
            else _whole
            for rank in range(config.ranks)
        ]
        held["Replicate()" if _placement.is_replicate() else f"Shard({_placement.dim})"] = (
            [tuple(part.shape) for part in _theirs],
            all(map(torch.equal, _ours, _theirs)),
        )
    four_by_hand = [len(cut(_whole, 0, rank, 4)) for rank in range(4)]
    _rows = Sharding((4,), (Shard(0),))
    four_in_package = [local_shape((5, 4), _rows, rank)[0] for rank in range(4)]
    return four_by_hand, four_in_package, held


@app.cell(hide_code=True)
def _(ask_uneven, four_by_hand, four_in_package, held):
    _agree = "agrees" if four_by_hand == four_in_package else "does *not* agree"
    lesson.reveal(
        ask_uneven,
        right={(2, 1, 1, 1): 0, (2, 2, 1, 0): 1}.get(tuple(four_in_package), []),
        why=f"""
        By the rule in `cut` the ranks get {", ".join(map(str, four_by_hand))} rows: sizes are rounded *up*, so the last ranks get less, or nothing. The package's
        `weights/reshard`, which describes sharded models by the rules of torch's `DTensor`, {_agree}. So code must cope with an empty
        shard. A **DTensor** is torch's tensor with a placement: each process holds its part and knows the rest.
        """,
        shows=[
            lesson.table(
                "A tensor of 5 × 4 on two real ranks",
                [
                    {
                        "placement": f"`{name}`",
                        "rank 0 holds": " × ".join(map(str, shapes[0])),
                        "rank 1 holds": " × ".join(map(str, shapes[1])),
                        "`cut` gives the same numbers": "yes" if same else "no",
                    }
                    for name, (shapes, same) in held.items()
                ],
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## What a collective costs

    The cheapest ways to do these operations are known. Let the whole tensor have `size` bytes on `ranks` ranks, of which each holds or wants a
    share of `size / ranks`.

    - `all_gather`: each share must reach every other rank. In a ring each rank passes on one share at a time, `ranks − 1` times.
    - `reduce_scatter`: the same ring the other way round: a share travels and collects a summand at every rank.
    - `all_reduce`: a reduce_scatter, and then an all_gather of the sums.
    - `all_to_all`: each rank has a share, and keeps one part of it; every other part goes straight to the rank that wants it.

    ### Exercise 1: bytes by the book

    Complete `bytes_sent`: the bytes that *one* rank sends for a `collective` (one of these four names) on a tensor of `size` bytes in all.
    """)
    return


@app.function
def bytes_sent(collective, size, ranks):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: bytes_sent,
        check_bytes_sent,
        bytes_sent_solution,
        level="warm-up",
        minutes=4,
        hints=(
            "A share has `size / ranks` bytes. How many shares does a rank send in an all_gather?",
            "In an all_to_all a rank cuts its own share into `ranks` parts, and sends all but one.",
        ),
    )
    return


@app.cell(hide_code=True)
def _(config):
    ask_scatter = lesson.predict(
        f"By the book a reduce_scatter of {config.megabytes} MB on two ranks sends half as much as an all_reduce. What will the operating system count here, with gloo?",
        "half as much",
        "as much as the all_reduce",
        "twice as much",
    )
    ask_scatter
    return (ask_scatter,)


@app.function
def collective(name, whole):
    """Run one collective on this rank's part of ``whole``."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine = cut(whole, 0, rank, ranks).contiguous()
    if name == "all_gather":
        dist.all_gather_single(torch.empty_like(whole), mine)
    elif name == "reduce_scatter":
        dist.reduce_scatter_single(torch.empty_like(mine), whole)
    elif name == "all_reduce":
        dist.all_reduce(whole)
    elif name == "all_to_all":
        dist.all_to_all_single(torch.empty_like(mine), mine)


@app.function(hide_code=True)
def count_collective(name, elements):
    return counted(collective, name, torch.ones(elements))[1]


@app.cell(hide_code=True)
async def _(config, held, ranks):
    held  # one after the other: bytes are counted per process
    book_by_reader = exercise.complaint(check_bytes_sent, bytes_sent) is None
    by_the_book = bytes_sent if book_by_reader else bytes_sent_solution

    collectives = {}
    for _name in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all"):
        _sent = await on_all(ranks, count_collective, _name, config.megabytes * 250_000)
        collectives[_name] = (
            by_the_book(_name, config.megabytes * 1_000_000, config.ranks),
            max(_sent),
        )
    return book_by_reader, by_the_book, collectives


@app.cell(hide_code=True)
def _(ask_scatter, book_by_reader, collectives, config):
    _scatter, _reduce = collectives["reduce_scatter"], collectives["all_reduce"]
    _ratio = _scatter[1] / _reduce[1] if _reduce[1] else math.nan
    _others = [name for name in collectives if name != "reduce_scatter"]
    _extra = max(abs(collectives[name][1] - collectives[name][0]) for name in _others)
    lesson.reveal(
        ask_scatter,
        right=[]
        if math.isnan(_ratio)
        else 0
        if _ratio < 0.75
        else 1
        if _ratio < 1.5
        else 2,
        why=f"""
        It sent {_scatter[1] / 1e6:.2f} MB; the all_reduce sent {_reduce[1] / 1e6:.2f} MB. {"That is what an all_reduce sends: this backend adds everything up everywhere, and each rank keeps its share." if 0.95 < _ratio < 1.05 else ""}
        The other three are within {_extra:,.0f} bytes of the formula; those bytes are headers. A formula tells what an operation *can* cost. What it does cost
        depends on who wrote it, so count. NCCL, the usual backend on NVIDIA GPUs, has a reduce_scatter of its own.
        """,
        shows=[
            lesson.figure(
                shard_charts.bytes_chart(collectives),
                f"{config.megabytes} MB on two ranks. Formula: {'your bytes_sent' if book_by_reader else 'the solution of exercise 1, since yours does not pass its check yet'}. Sent: from Linux's count of each TCP connection.",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A layer cut in columns

    Tensor parallelism cuts the *weights*, and every rank sees all data. Take a block of two layers: `up` widens, `down` narrows. In `x @ up.T`
    every row of `up` makes one output, so a rank with half of its rows makes half of the outputs, all by itself. Books write the layer as
    *x · A* and cut columns of *A = upᵀ*; hence the name **column-parallel**. ReLU works on each number alone. `down` then gets half of its *inputs* on each
    rank, so cut it the other way; the two results are summands of the answer.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.figure(
        shard_charts.parallel_layers_drawing(),
        "The forward pass. Between x and the sum no rank needs anything from the other.",
    )
    return


@app.cell(hide_code=True)
def _():
    ask_talks = lesson.predict(
        "Forward *and* backward through both layers, with the gradient for `x` as well: how many all_reduces does that take?",
        "1: only the sum at the end",
        "2: one forward, one backward",
        "4: one for each layer in each direction",
    )
    ask_talks
    return (ask_talks,)


@app.class_definition
class SumOut(torch.autograd.Function):
    """Forward: add up over the ranks. Backward: everybody gets the gradient as it is."""

    @staticmethod
    def forward(context, x):
        whole = x.clone()
        dist.all_reduce(whole)
        return whole

    @staticmethod
    def backward(context, gradient):
        return gradient


@app.class_definition
class CopyIn(torch.autograd.Function):
    """Forward: as it is. Backward: x went into every rank, so add their gradients up."""

    @staticmethod
    def forward(context, x):
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        whole = gradient.clone()
        dist.all_reduce(whole)
        return whole


@app.function
def parallel_by_hand(x, up, down):
    """Two layers, half of each on this rank; the output, and the gradients of the halves."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    my_up = cut(up, 0, rank, ranks).clone().requires_grad_()
    my_down = cut(down, 1, rank, ranks).clone().requires_grad_()
    x = x.clone().requires_grad_()
    hidden = torch.relu(CopyIn.apply(x) @ my_up.T)
    y = SumOut.apply(hidden @ my_down.T)
    y.square().mean().backward()
    return y.detach(), x.grad, my_up.grad, my_down.grad


@app.function
def parallel_by_library(x, up, down):
    """The same by torch: name the style of each layer, and write the model as usual."""
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    wide, narrow = up.shape
    model = nn.Sequential(
        nn.Linear(narrow, wide, bias=False), nn.ReLU(), nn.Linear(wide, narrow, bias=False)
    )
    with torch.no_grad():
        model[0].weight.copy_(up)
        model[2].weight.copy_(down)
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    styles = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(model, mesh, styles)

    def forward_and_backward():
        mine = x.clone().requires_grad_()
        y = model(mine)
        y.square().mean().backward()
        grads = (model[index].weight.grad.to_local() for index in (0, 2))
        return y.detach(), mine.grad, *grads

    forward_and_backward()  # the first call prepares things
    model.zero_grad()
    return counted(forward_and_backward)


@app.function(hide_code=True)
def count_parallel_by_hand(x, up, down):
    return counted(parallel_by_hand, x, up, down)


@app.cell(hide_code=True)
async def _(collectives, config, ranks):
    collectives  # one after the other: bytes are counted per process
    torch.manual_seed(config.seed)
    layer_x = torch.randn(config.batch, config.width)
    layer_up = torch.randn(4 * config.width, config.width) / math.sqrt(config.width)
    layer_down = torch.randn(config.width, 4 * config.width) / math.sqrt(4 * config.width)
    by_hand = await on_all(ranks, count_parallel_by_hand, layer_x, layer_up, layer_down)
    by_library = await on_all(ranks, parallel_by_library, layer_x, layer_up, layer_down)

    # And in one process, with nothing cut:
    _x, _up, _down = (t.clone().requires_grad_() for t in (layer_x, layer_up, layer_down))
    _y = torch.relu(_x @ _up.T) @ _down.T
    _y.square().mean().backward()
    in_one = _y.detach(), _x.grad, _up.grad, _down.grad
    return by_hand, by_library, in_one, layer_down, layer_up, layer_x


@app.cell(hide_code=True)
def _(ask_talks, by_hand, by_library, by_the_book, config, in_one, layer_x):
    _names = ("output", "gradient of `x`", "gradient of `up`", "gradient of `down`")
    _cuts = (None, None, 0, 1)
    _one_sum = by_the_book("all_reduce", layer_x.nbytes, config.ranks)
    _talks = by_hand[0][1] / _one_sum

    def _apart(ours, theirs):
        if torch.equal(ours, theirs):
            return "equal bit for bit"
        return f"{lesson.tiny(float((ours - theirs).abs().max() / theirs.abs().max()))} of the largest"

    def _part(index, rank):
        whole = in_one[index]
        return (
            whole if _cuts[index] is None else cut(whole, _cuts[index], rank, config.ranks)
        )

    _rows = [
        {
            "rank 0": name,
            "by hand against torch": _apart(by_hand[0][0][index], by_library[0][0][index]),
            "by hand against one process": _apart(by_hand[0][0][index], _part(index, 0)),
        }
        for index, name in enumerate(_names)
    ]
    lesson.reveal(
        ask_talks,
        right={1: 0, 2: 1, 4: 2}.get(round(_talks), []),
        why=f"""
        Each rank sent {by_hand[0][1]:,} bytes by hand and {by_library[0][1]:,} by torch. One all_reduce of the output is {_one_sum:,.0f} by formula, so there were
        {round(_talks)}. Forward, the halves of the result are added. Backward, `x` went into both ranks, so their gradients for it are added. The
        gradients of the weights need no message at all: each rank has what it needs for its own half.
        """,
        shows=[
            lesson.table("The same numbers three times", _rows),
            "Against one process the last digits differ: floating-point sums depend on their order, and here half of each sum is made elsewhere.",
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## The placement of a result

    Why does *columns, then rows* work? There are rules for what comes out of a product, given how its factors are placed. `Partial` is
    the interesting case. The sum of summands is the true value; but is ReLU of summands a summand of ReLU?
    """)
    return


@app.cell(hide_code=True)
def _():
    ask_partial = lesson.predict(
        "`torch.relu` gets a DTensor that is `Partial`: each rank holds a summand. What does torch do?",
        "it applies ReLU to each summand, and the result is wrong",
        "it raises an error",
        "it adds the summands up first, which costs a message",
    )
    ask_partial
    return (ask_partial,)


@app.function
def relu_of_partial(summands):
    """ReLU of a ``Partial`` DTensor; the result, and the bytes."""
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    whole = DTensor.from_local(summands[dist.get_rank()], mesh, [Partial()])
    result, sent = counted(lambda: torch.relu(whole))
    return result.full_tensor(), sent


@app.cell(hide_code=True)
async def _(by_hand, config, ranks):
    by_hand  # one after the other: bytes are counted per process
    torch.manual_seed(config.seed)
    _summands = [torch.randn(config.batch, config.width) for _ in range(config.ranks)]
    try:
        _relu, relu_sent = (await on_all(ranks, relu_of_partial, _summands))[0]
        relu_right = torch.equal(_relu, torch.relu(sum(_summands)))
    except ActorError:
        relu_right, relu_sent = None, 0
    _each = sum(torch.relu(summand) for summand in _summands)
    relu_wrong_by = (_each - torch.relu(sum(_summands))).abs().max().item()
    return relu_right, relu_sent, relu_wrong_by


@app.cell(hide_code=True)
def _(ask_partial, relu_right, relu_sent, relu_wrong_by):
    lesson.reveal(
        ask_partial,
        right=1 if relu_right is None else 2 if relu_right else 0,
        why=f"""
        {"The result is right" if relu_right else "The result is not right"}, and each rank sent {relu_sent:,} bytes for it: a DTensor changes its placement by itself when an operation needs that. ReLU of each
        summand would have been wrong by up to {relu_wrong_by:.1f}. That is convenient, and a trap: the program stays correct, and a collective hides in a line that
        looks like arithmetic. This is also why `up` is cut in columns. Cut the other way, its output would be `Partial` in front of the ReLU.
        """,
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 2: what comes out

    Complete `placement_of_product`, for `x @ w`. Placements are the strings `"R"` (replicate), `"S0"`, `"S1"` (sharded along dimension 0 or 1) and
    `"P"` (partial). Return the placement of the product if each rank can compute its part *without a message*, and `None` if it cannot. `x` and
    `w` are never `"P"` here.
    """)
    return


@app.function
def placement_of_product(x, w):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: placement_of_product,
        check_placement_of_product,
        placement_of_product_solution,
        level="core",
        minutes=6,
        hints=(
            "Rows of `x` make rows of the product, columns of `w` make its columns. What if both are cut?",
            "If `x` is cut in columns and `w` in rows, each rank multiplies what it has. And a rank that has all of a factor can cut it without a message.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    Your function meets the real thing below: torch multiplies DTensors in all nine combinations on the two ranks, and the bytes are counted. Where no
    message is needed, none should be sent.
    """)
    return


@app.function
def multiply_placed(x, w, placements):
    """Multiply two DTensors that are placed so; the placement of the product, and bytes."""
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    by_name = {"R": Replicate(), "S0": Shard(0), "S1": Shard(1)}
    first, second = (
        distribute_tensor(tensor, mesh, [by_name[name]])
        for tensor, name in zip((x, w), placements, strict=True)
    )
    product, sent = counted(lambda: first @ second)
    return product.placements[0], sent


@app.cell(hide_code=True)
async def _(config, ranks, relu_sent):
    relu_sent  # one after the other: bytes are counted per process
    torch.manual_seed(config.seed)
    _x, _w = torch.randn(64, 64), torch.randn(64, 64)
    products = {}
    for _pair in [(a, b) for a in ("R", "S0", "S1") for b in ("R", "S0", "S1")]:
        _placed, _ = (await on_all(ranks, multiply_placed, _x, _w, _pair))[0]
        _, _sent = (await on_all(ranks, multiply_placed, _x, _w, _pair))[0]
        _name = (
            "P"
            if _placed.is_partial()
            else "R"
            if _placed.is_replicate()
            else f"S{_placed.dim}"
        )
        products[_pair] = _name, _sent
    return (products,)


@app.cell(hide_code=True)
def _(products):
    _mine = exercise.complaint(check_placement_of_product, placement_of_product) is None
    _rule = placement_of_product if _mine else placement_of_product_solution
    _free = [pair for pair in products if _rule(*pair)]
    _agree = sum(products[pair][0] == _rule(*pair) for pair in _free)
    mo.vstack(
        [
            lesson.table(
                "`x @ w` for two 64 × 64 tensors",
                [
                    {
                        "`x`": x,
                        "`w`": w,
                        "your rule" if _mine else "the solution": _rule(x, w) or "–",
                        "torch gives": placed,
                        "a rank sent, bytes": f"{sent:,}",
                    }
                    for (x, w), (placed, sent) in products.items()
                ],
            ),
            lesson.md(
                f"""
                {"Your rule" if _mine else "The solution of exercise 2 (yours does not pass its check yet)"} and torch agree on {_agree} of the {len(_free)} products that need no message. {min(sent for _, sent in products.values()):,} bytes are the
                counting itself. Where a message is needed, torch first moved a factor, which cost up to
                {max(sent for _, sent in products.values()):,} bytes, and then used one of the rules.
                """
            ),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## FSDP by hand

    Tensor parallelism needs all data on every rank, and a message inside every block. The other way is to give each rank *its own data*, as in
    data parallelism, and still not to keep the whole model: **FSDP**, fully sharded data parallelism. Each rank keeps a share of the weights, and of the optimizer's
    state. It borrows the rest for the moment in which it is needed:

    1. all_gather the weights, compute loss and gradients on the own data, forget the borrowed weights;
    2. reduce_scatter the gradients: each rank gets the sum for its share, and nothing else;
    3. update the share. Nobody else has it, so nobody else must be told.

    ### Exercise 3: a share for each

    All weights are laid out in one flat tensor first. A collective wants shares of equal size, so the flat tensor is padded. Complete `share_of`: pad
    the 1-D tensor `flat` with zeros until `ranks` divides its length, with as few zeros as possible. Return the share of `rank`, in a tensor of its own.
    """)
    return


@app.function
def share_of(flat, rank, ranks):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: share_of,
        check_share_of,
        share_of_solution,
        level="core",
        minutes=5,
        hints=(
            "A share has `math.ceil(len(flat) / ranks)` numbers.",
            "`torch.nn.functional.pad(flat, (0, missing))`, then a slice, then `.clone()`.",
        ),
    )
    return


@app.function
def small_model(width, seed):
    """Two layers with biases; the number of parameters is odd."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, 1))


@app.function
def batch_of(rank, step, config):
    torch.manual_seed(1000 * step + rank)
    x = torch.randn(config.batch, config.width)
    return x, x[:, :1].sin()


@app.function
def fsdp_by_hand(config, share_of):
    """Train some steps, with a share of weights and momentum on each rank."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = small_model(config.width, config.seed)
    flat = parameters_to_vector(model.parameters()).detach()
    share = share_of(flat, rank, ranks)
    momentum = torch.zeros_like(share)

    def step(number):
        whole = torch.empty(ranks * len(share))
        dist.all_gather_single(whole, share)
        vector_to_parameters(whole[: len(flat)], model.parameters())
        x, y = batch_of(rank, number, config)
        loss = nn.functional.mse_loss(model(x), y)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        spread = torch.zeros_like(whole)
        spread[: len(flat)] = parameters_to_vector(gradients)
        mine = torch.empty_like(share)
        dist.reduce_scatter_single(mine, spread)
        momentum.mul_(config.momentum).add_(mine / ranks)
        share.add_(momentum, alpha=-config.rate)

    sent = [counted(step, number)[1] for number in range(config.steps)]
    return share, sent[-1], len(flat), share.nbytes + momentum.nbytes


@app.function
def fsdp_by_library(config, reshard_after_forward):
    """The same steps with torch's ``fully_shard``."""
    from torch.distributed.fsdp import fully_shard

    rank, ranks = dist.get_rank(), dist.get_world_size()
    mesh = dist.init_device_mesh("cpu", (ranks,))
    model = small_model(config.width, config.seed)
    fully_shard(model, mesh=mesh, reshard_after_forward=reshard_after_forward)
    optimizer = torch.optim.SGD(model.parameters(), config.rate, config.momentum)

    def step(number):
        x, y = batch_of(rank, number, config)
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    sent = [counted(step, number)[1] for number in range(config.steps)]
    whole = [parameter.full_tensor().flatten() for parameter in model.parameters()]
    return torch.cat(whole).detach(), sent[-1]


@app.function(hide_code=True)
def data_parallel(config):
    """The same steps with the whole model on every rank, and an all_reduce of gradients."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = small_model(config.width, config.seed)
    optimizer = torch.optim.SGD(model.parameters(), config.rate, config.momentum)

    def step(number):
        x, y = batch_of(rank, number, config)
        nn.functional.mse_loss(model(x), y).backward()
        gradients = parameters_to_vector(p.grad for p in model.parameters())
        dist.all_reduce(gradients)
        for parameter, mean in zip(
            model.parameters(),
            torch.split(gradients / ranks, [p.numel() for p in model.parameters()]),
            strict=True,
        ):
            parameter.grad.copy_(mean.view_as(parameter))
        optimizer.step()
        optimizer.zero_grad()

    sent = [counted(step, number)[1] for number in range(config.steps)]
    return parameters_to_vector(model.parameters()).detach(), sent[-1]


@app.cell(hide_code=True)
def _():
    ask_fsdp = lesson.predict(
        "Data parallelism sends one all_reduce of the gradients in a step. FSDP by hand keeps half as much on each of two ranks. What does it send in a step on *these* two "
        "ranks, compared with data parallelism? Remember what gloo does.",
        "half as much",
        "the same",
        "half as much again",
        "twice as much",
    )
    ask_fsdp
    return (ask_fsdp,)


@app.cell(hide_code=True)
async def _(config, products, ranks):
    products  # one after the other: bytes are counted per process
    share_by_reader = exercise.complaint(check_share_of, share_of) is None
    _share_of = share_of if share_by_reader else share_of_solution

    _hand = await on_all(ranks, fsdp_by_hand, config, _share_of)
    fsdp_numbers, fsdp_held = _hand[0][2], _hand[0][3]
    fsdp = {
        "FSDP by hand": (
            torch.cat([share for share, *_ in _hand])[:fsdp_numbers],
            _hand[0][1],
        ),
        "fully_shard, gathers once": (await on_all(ranks, fsdp_by_library, config, False))[
            0
        ],
        "fully_shard, gathers twice": (await on_all(ranks, fsdp_by_library, config, True))[
            0
        ],
        "data parallel": (await on_all(ranks, data_parallel, config))[0],
    }
    return fsdp, fsdp_held, fsdp_numbers, share_by_reader


@app.cell(hide_code=True)
def _(ask_fsdp, by_the_book, config, fsdp, fsdp_held, fsdp_numbers, share_by_reader):
    _size = 4 * fsdp_numbers
    _gather, _scatter, _reduce = (
        by_the_book(name, _size, config.ranks)
        for name in ("all_gather", "reduce_scatter", "all_reduce")
    )
    _formula = {
        "FSDP by hand": _gather + _scatter,
        "fully_shard, gathers once": _gather + _scatter,
        "fully_shard, gathers twice": 2 * _gather + _scatter,
        "data parallel": _reduce,
    }
    _ours, _sent = fsdp["FSDP by hand"]
    _times = _sent / fsdp["data parallel"][1] if _sent else math.nan

    def _compared(weights):
        if torch.equal(weights, _ours):
            return "equal bit for bit"
        return f"differ by {lesson.tiny(float((weights - _ours).abs().max()))} at most"

    lesson.reveal(
        ask_fsdp,
        right={1: 0, 2: 1, 3: 2, 4: 3}.get(round(2 * _times), []) if _sent else [],
        why=f"""
        It sent {_times:.2f} times as much. By the book it would be {(_gather + _scatter) / _reduce:g}: an all_reduce *is* a reduce_scatter and an all_gather, and FSDP puts its
        update between the two. {"The rest is gloo's reduce_scatter, which you have met above. " if _times > 1.2 else ""}So a rank keeps {fsdp_held / 1e6:.2f} instead of {2 * _size / 1e6:.2f} MB of weights and momentum, for no byte more, where the backend
        is good. `fully_shard` usually gathers twice, to forget the weights between forward and backward: {(2 * _gather + _scatter) / _reduce:g} times, by the book.
        """,
        shows=[
            lesson.figure(
                shard_charts.bytes_chart(
                    {name: (_formula[name], sent) for name, (_, sent) in fsdp.items()}
                ),
                f"A step of {fsdp_numbers:,} parameters. By hand with {'your' if share_by_reader else 'the solution of'} share_of.",
            ),
            lesson.table(
                f"Weights after {config.steps} steps, compared with FSDP by hand",
                [
                    {"trained by": name, "weights": _compared(weights)}
                    for name, (weights, _) in fsdp.items()
                    if name != "FSDP by hand"
                ],
            ),
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 4: does it fit?

    Training with Adam in float32 keeps four numbers of 4 bytes for each parameter: the weight, its gradient, and two running means. The *stage* says what is
    sharded over the ranks: at 0 nothing (data parallel), at 1 the two running means, at 2 the gradients too, at 3 everything (FSDP). Complete
    `bytes_held`: what each rank keeps.
    """)
    return


@app.function
def bytes_held(parameters, ranks, stage):
    raise NotImplementedError


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: bytes_held,
        check_bytes_held,
        bytes_held_solution,
        level="stretch",
        minutes=5,
        hints=(
            "Sharded kinds cost `4 * parameters / ranks` each, the others `4 * parameters`.",
            "How many of the four kinds are sharded at each stage? 0, 2, 3, 4.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    _mine = exercise.complaint(check_bytes_held, bytes_held) is None
    _held = bytes_held if _mine else bytes_held_solution
    mo.vstack(
        [
            lesson.table(
                "GB on each rank for 8 billion parameters, without activations",
                [
                    {"sharded": sharded}
                    | {
                        f"{ranks} rank{'s' * (ranks > 1)}": f"{_held(8e9, ranks, stage) / 1e9:.0f}"
                        for ranks in (1, 2, 8, 64)
                    }
                    for stage, sharded in enumerate(
                        ("nothing", "optimizer", "and gradients", "and weights")
                    )
                ],
            ),
            lesson.md(
                f"Computed with {'*your* `bytes_held`' if _mine else 'the solution, since yours does not pass its check yet'}. The stages are those of ZeRO ([Rajbhandari et al., 2020](https://arxiv.org/abs/1910.02054))."
            ),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## From rows to columns

    A trainer cuts its weights in one way, and a generator in another. So a tensor must change its placement, from `Shard(0)` to `Shard(1)`. First
    on the same two ranks: each holds two of the four blocks of a 2 × 2 pattern, and wants two. One of them it has already.
    """)
    return


@app.cell(hide_code=True)
def _(config):
    ask_turn = lesson.predict(
        f"A tensor of {config.megabytes} MB goes from `Shard(0)` to `Shard(1)` on two ranks with torch's `redistribute`. How much does each rank send?",
        f"{config.megabytes / 4:g} MB: one block of four",
        f"{config.megabytes / 2:g} MB: all that it has",
        f"{config.megabytes:g} MB",
    )
    ask_turn
    return (ask_turn,)


@app.function
def turn_by_hand(mine):
    """From rows to columns: send every rank its columns of my rows."""
    ranks = dist.get_world_size()
    outgoing = torch.stack([cut(mine, 1, rank, ranks) for rank in range(ranks)])
    incoming = torch.empty_like(outgoing)
    dist.all_to_all_single(incoming, outgoing)
    return torch.cat(list(incoming))


@app.function
def turn_both_ways(whole):
    """Rows to columns by hand and by torch; whether both are right, and their bytes."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mesh = dist.init_device_mesh("cpu", (ranks,))
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    wanted = cut(whole, 1, rank, ranks)
    by_hand, sent_by_hand = counted(turn_by_hand, rows.to_local())
    by_torch, sent_by_torch = counted(
        lambda: rows.redistribute(placements=[Shard(1)]).to_local()
    )
    right = torch.equal(by_hand, wanted), torch.equal(by_torch, wanted)
    return right, sent_by_hand, sent_by_torch


@app.cell(hide_code=True)
async def _(config, fsdp, ranks):
    fsdp  # one after the other: bytes are counted per process
    _rows = config.megabytes * 250
    turned = await on_all(
        ranks, turn_both_ways, torch.arange(1000.0 * _rows).reshape(_rows, 1000)
    )
    return (turned,)


@app.cell(hide_code=True)
def _(ask_turn, by_the_book, config, turned):
    _size = 1e6 * config.megabytes
    _right, _hand, _torch = turned[0]
    _least = by_the_book("all_to_all", _size, config.ranks)
    _share = _torch / _size
    lesson.reveal(
        ask_turn,
        right=[] if not _torch else 0 if _share < 0.37 else 1 if _share < 0.75 else 2,
        why=f"""
        By hand each rank sent {_hand / 1e6:.2f} MB, and `redistribute` {_torch / 1e6:.2f} MB; {"both results are right" if all(_right) else "not both results are right"}. One block of four would be enough.
        {"For groups on CPUs torch 2.13 has no all_to_all here: it gathers the whole tensor on every rank, and cuts. So `turn_by_hand`, six lines, sends half of that." if _torch > 1.5 * _hand else "Both send what is needed, and no more."} Again: count.
        """,
        shows=[
            lesson.figure(
                shard_charts.bytes_chart(
                    {"by hand": (_least, _hand), "redistribute": (_least, _torch)}
                ),
                "The formula is that of all_to_all: the least that can be sent.",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## From one mesh to another

    A trainer and its generators are *different* processes, with groups of their own. A collective works within one group, so none leads across. What
    remains are plain messages, and a plan: which rectangle of whose shard goes where. The package's `plan` computes the overlaps of source and
    destination shards; notebook 07b writes it out. Below, two more processes start. Each piece of the plan travels through this page, as a
    message to and from an actor.
    """)
    return


@app.cell(hide_code=True)
def _():
    ask_move = lesson.predict(
        "The obvious way needs no plan: rank 0 of the trainer collects the tensor, and sends each generator rank its columns. How many bytes travel, "
        "compared with the plan?",
        "as many",
        "half as many again",
        "twice as many",
    )
    ask_move
    return (ask_move,)


@app.function
def give(whole, moves):
    """On the first mesh: keep my rows of ``whole``, and copy the pieces that I am to send."""
    rank = dist.get_rank()
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    rows = distribute_tensor(whole, mesh, [Shard(0)]).to_local()
    return [
        (move.destination, move.destination_slices, rows[move.source_slices].clone())
        for move in moves
        if move.source == rank
    ]


@app.function
def take(shape, pieces):
    """On the second mesh: fill my columns, and gather the whole to compare."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine = cut(torch.full(shape, math.nan), 1, rank, ranks).clone()
    for destination, slices, piece in pieces:
        if destination == rank:
            mine[slices] = piece
    mesh = dist.init_device_mesh("cpu", (ranks,))
    columns = DTensor.from_local(mine, mesh, [Shard(1)], shape=shape, stride=(shape[1], 1))
    return columns.full_tensor()


@app.cell(hide_code=True)
def _():
    start_move = lesson.start_button("Start a second mesh, and move the tensor", seconds=9)
    start_move
    return (start_move,)


@app.cell(hide_code=True)
async def _(config, ranks, start_move, turned):
    turned  # the first mesh is busy until then
    lesson.wait_for(start_move)
    _shape = (config.width, 4 * config.width)
    torch.manual_seed(config.seed)
    _whole = torch.randn(_shape)
    _rows, _columns = (Sharding((config.ranks,), (Shard(dim),)) for dim in (0, 1))
    moves = plan(_shape, _rows, _columns, itemsize=4)

    _pieces = [
        piece for given in await on_all(ranks, give, _whole, moves) for piece in given
    ]
    received = sum(piece.nbytes for *_, piece in _pieces)
    with mo.status.spinner("Two more processes import torch", remove_on_exit=True):
        async with process_group("others", config.ranks) as _others:
            _arrived = await on_all(_others, take, _shape, _pieces)
    moved_equal = [torch.equal(whole, _whole) for whole in _arrived]
    through_one = gather_then_scatter_bytes(_shape, _rows, _columns, 4)
    return moved_equal, moves, received, through_one


@app.cell(hide_code=True)
def _(ask_move, moved_equal, moves, received, through_one):
    _times = through_one / bytes_moved(moves)
    lesson.reveal(
        ask_move,
        right={2: 0, 3: 1, 4: 2}.get(round(2 * _times), []),
        why=f"""
        {through_one:,} bytes, {_times:g} times as many, and all of them through one process: what rank 1 holds travels twice. With the plan {received:,} bytes left the first mesh,
        {"exactly the" if received == bytes_moved(moves) else "not the"} {bytes_moved(moves):,} that it names. The second mesh now has the tensor as `Shard(1)`,
        {"equal bit for bit on each rank" if all(moved_equal) else "but it is *not* equal"}. Notebook 07b moves a whole model this way, without a page in the middle.
        """,
        shows=[
            lesson.table(
                "The plan",
                [
                    {
                        "from rank": move.source,
                        "to rank": move.destination,
                        "rows of its shard": f"{move.source_slices[0].start}–{move.source_slices[0].stop}",
                        "columns of its shard": f"{move.source_slices[1].start}–{move.source_slices[1].stop}",
                        "bytes": f"{move.bytes:,}",
                    }
                    for move in moves
                ],
            )
        ],
    )
    return


@app.cell(hide_code=True)
async def _(moved_equal):
    moved_equal  # the last use of the two processes
    await scene.leave("04")
    return


@app.cell(hide_code=True)
def _():
    lesson.predicted(7)
    return


@app.cell(hide_code=True)
def _():
    lesson.recap(
        "A placement says what each rank holds: a shard, all of it, or a summand. Shards may be uneven, or empty.",
        "Collectives turn placements into each other. Formulas give their least cost in bytes; what a backend sends may be more, so count.",
        "Column-parallel and then row-parallel: two layers, one all_reduce forward, one backward, and the same numbers as torch.",
        "FSDP keeps a share, borrows the rest, and sends by formula what data parallelism sends; gathering twice costs half as much again.",
        "Between meshes there are no collectives. A plan of overlaps moves each byte once.",
    )
    return


@app.cell(hide_code=True)
def _(by_hand, by_library):
    lesson.headline(
        f"for a pair of layers on two ranks, each rank sent {by_hand[0][1]:,} bytes with the code by hand, and {by_library[0][1]:,} with torch's own."
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.links(__file__)
    return


@app.function(hide_code=True)
def check_bytes_sent(bytes_sent):
    exercise.expect(bytes_sent, "all_gather", 800, 2, result=400.0)
    exercise.expect(bytes_sent, "all_gather", 800, 4, result=600.0)
    exercise.expect(bytes_sent, "reduce_scatter", 800, 4, result=600.0)
    exercise.expect(bytes_sent, "all_reduce", 800, 4, result=1200.0)
    exercise.expect(bytes_sent, "all_to_all", 800, 2, result=200.0)
    exercise.expect(bytes_sent, "all_to_all", 800, 4, result=150.0)


@app.function(hide_code=True)
def bytes_sent_solution(collective, size, ranks):
    others = (ranks - 1) * size / ranks
    if collective == "all_reduce":
        return 2 * others
    if collective == "all_to_all":
        return others / ranks
    return others


@app.function(hide_code=True)
def check_placement_of_product(placement_of_product):
    for x, w, result in (
        ("R", "R", "R"),
        ("S0", "R", "S0"),
        ("R", "S1", "S1"),
        ("S1", "S0", "P"),
        ("S0", "S1", None),
        ("S1", "R", "P"),
        ("R", "S0", "P"),
        ("S0", "S0", None),
        ("S1", "S1", None),
    ):
        exercise.expect(placement_of_product, x, w, result=result)


@app.function(hide_code=True)
def placement_of_product_solution(x, w):
    if {x, w} == {"R"}:
        return "R"
    if x == "S0":
        return "S0" if w == "R" else None
    if w == "S1":
        return "S1" if x == "R" else None
    return "P"  # x in columns and w in rows; who has all of one cuts it, for nothing


@app.function(hide_code=True)
def check_share_of(share_of):
    def as_list(numbers, rank, ranks):
        flat = torch.tensor(numbers)
        share = share_of(flat, rank, ranks)
        before = flat.tolist()
        share += 1
        assert flat.tolist() == before, "the share is a view: writing to it changes flat"
        return (share - 1).tolist()

    as_list.__name__ = "share_of"
    numbers = [1.0, 2.0, 3.0, 4.0, 5.0]
    exercise.expect(as_list, numbers, 0, 2, result=[1.0, 2.0, 3.0])
    exercise.expect(as_list, numbers, 1, 2, result=[4.0, 5.0, 0.0])
    exercise.expect(as_list, numbers[:4], 1, 2, result=[3.0, 4.0])
    exercise.expect(as_list, numbers, 3, 4, result=[0.0, 0.0])
    exercise.expect(as_list, numbers, 0, 1, result=numbers)


@app.function(hide_code=True)
def share_of_solution(flat, rank, ranks):
    size = math.ceil(len(flat) / ranks)
    padded = nn.functional.pad(flat, (0, ranks * size - len(flat)))
    return padded[rank * size : (rank + 1) * size].clone()


@app.function(hide_code=True)
def check_bytes_held(bytes_held):
    exercise.expect(bytes_held, 1000, 1, 0, result=16000.0)
    exercise.expect(bytes_held, 1000, 4, 0, result=16000.0)
    exercise.expect(bytes_held, 1000, 4, 1, result=10000.0)
    exercise.expect(bytes_held, 1000, 4, 2, result=7000.0)
    exercise.expect(bytes_held, 1000, 4, 3, result=4000.0)


@app.function(hide_code=True)
def bytes_held_solution(parameters, ranks, stage):
    sharded = (0, 2, 3, 4)[stage]
    return 4 * parameters * (4 - sharded + sharded / ranks)


if __name__ == "__main__":
    app.run()
