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
    app_title="Distributed tensors: one tensor on several processes",
    css_file="../zorplex_rl/course/lesson/lesson.css",
)

with app.setup(hide_code=True):
    import math
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

    from zorplex_rl.course import nb04
    from zorplex_rl.course.figures import drawing_of
    from zorplex_rl.course.lesson import exercise, keep_open, lesson
    from zorplex_rl.course.nb04 import counted
    from zorplex_rl.services.runtime import Actor, ActorError, endpoint

    # Every torch process on this page has one thread: two cores are shared by all of them.
    torch.set_num_threads(1)


@app.cell(hide_code=True)
def _():
    lesson.header(
        __file__,
        minutes=50,
        hardware="two CPU cores, no network; bytes are counted on Linux",
        goals=[
            "say what each process holds of a tensor, given its placement",
            "name the collective that turns one placement into another, and what it costs in bytes",
            "write the forward pass of two tensor-parallel layers, with its one collective",
            "read an FSDP step written by hand, and check it against torch",
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Too big for one

    A model of 8 billion parameters needs 128 GB to be trained with Adam in float32: weights,
    gradients and two running means, 4 bytes each. That is more than most accelerators have. So
    tensors are cut up, and every process holds a part.

    Two questions remain. *Who holds what?* That is a tensor's **placement**. *What must be sent,
    and when?* Those are the **collectives**: operations in which all processes of a group take
    part. Below, two real processes do both, and bytes are counted.
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

    A `Rank` is an actor that runs whatever function it is sent. `on_all` sends one function to all
    ranks at once and returns their answers, by rank. So every function below that mentions `dist.`
    runs in *both* processes at the same time: the same program on different data. `dist` is
    `torch.distributed`, with gloo as its backend for CPUs; notebook 02 showed how the processes
    find each other.
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


@app.cell(hide_code=True)
def _():
    open_ranks = lesson.start_button("Start two processes", seconds=8)
    open_ranks
    return (open_ranks,)


@app.cell(hide_code=True)
async def _(config, open_ranks):
    await keep_open.leave("04")  # what an earlier run of this cell has left open
    lesson.wait_for(open_ranks)
    with mo.status.spinner("Two processes import torch", remove_on_exit=True):
        ranks = await keep_open.enter("04", nb04.process_group("ranks", config.ranks, Rank))
    return (ranks,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Who holds what

    A placement is a word for each dimension of the group of processes. Here the group has one
    dimension, so one word is enough. The drawing shows four placements on two ranks. `Partial`
    looks odd at first: every rank holds a tensor of full size, and the true value is their *sum*.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.figure(
        drawing_of("placements.svg"),
        "What two ranks hold of a 4 × 4 tensor. Each arrow is a collective; replicated data become a shard without any message.",
    )
    return


@app.cell(hide_code=True)
def _(config):
    ask_uneven = lesson.predict(
        "5 rows are split over 4 ranks. How many rows does each rank get?",
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
    return four_by_hand, held


@app.cell(hide_code=True)
def _(ask_uneven, four_by_hand, held):
    _same = all(same for _, same in held.values())
    lesson.reveal(
        ask_uneven,
        right={(2, 1, 1, 1): 0, (2, 2, 1, 0): 1}.get(tuple(four_by_hand), []),
        why=f"""
        By the rule in `cut` the ranks get {", ".join(map(str, four_by_hand))} rows: sizes are rounded *up*, so
        the last ranks get less, or nothing. Code must cope with an empty shard. A **DTensor** is torch's
        tensor with a placement: each process holds its part and knows the whole shape. On the two real ranks
        its parts {"are those" if _same else "are *not* those"} of `cut`.
        """,
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## What a collective costs

    The cheapest ways to do these operations are known. Let the whole tensor have `size` bytes on
    `ranks` ranks, of which each holds or wants a share of `size / ranks`.

    - `all_gather`: each share must reach every other rank. In a ring each rank passes on one share
      at a time, `ranks − 1` times.
    - `reduce_scatter`: the same ring the other way round: a share travels and collects a summand at
      every rank.
    - `all_reduce`: a reduce_scatter, and then an all_gather of the sums.
    - `all_to_all`: each rank has a share, and keeps one part of it; every other part goes straight
      to the rank that wants it.

    ### Exercise 1: bytes by the formula

    Complete `bytes_sent`: the bytes that *one* rank sends for a `collective` (one of these four
    names) on a tensor of `size` bytes in all.
    """)
    return


@app.function
def bytes_sent(collective, size, ranks):
    """Return the bytes that one rank sends; bytes_sent("all_gather", 800, 4) is 600."""
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: bytes_sent,
        Solutions,
        level="warm-up",
        minutes=6,
        lines=6,
        hints=(
            "A share has `size / ranks` bytes. How many shares does a rank send in an all_gather?",
            "In an all_to_all a rank cuts its own share into `ranks` parts, and sends all but one.",
        ),
    )
    return


@app.cell(hide_code=True)
def _(config):
    ask_scatter = lesson.predict(
        f"By the formula, a reduce_scatter of {config.megabytes} MB on two ranks sends half as much as an all_reduce. What will the operating system count here, with gloo?",
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
    lesson.needs(lambda: held)  # one after the other: bytes are counted per process
    by_the_book, whose_book = exercise.running(lambda: bytes_sent, Solutions)

    collectives = {}
    for _name in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all"):
        _sent = await on_all(ranks, count_collective, _name, config.megabytes * 250_000)
        collectives[_name] = (
            by_the_book(_name, config.megabytes * 1_000_000, config.ranks),
            max(_sent),
        )
    return by_the_book, collectives, whose_book


@app.cell(hide_code=True)
def _(ask_scatter, collectives, config, whose_book):
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
        The other three are within {_extra:,.0f} bytes of the formula: headers. The formula says how little an operation *can* cost. What it does cost
        depends on how it was written, so count. NCCL, the usual backend on NVIDIA GPUs, has a reduce_scatter of its own.
        """,
        shows=[
            lesson.figure(
                nb04.sent_chart(collectives),
                f"{config.megabytes} MB on two ranks. Formula: {whose_book}. Sent: from Linux's count of each TCP connection.",
            )
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A layer cut in columns

    Tensor parallelism cuts the *weights*, and every rank sees all data. Take a block of two layers:
    `up` widens, `down` narrows. In `x @ up.T` every row of `up` makes one output, so a rank with
    half of its rows makes half of the outputs, all by itself. Books write the layer as *x · A* and
    cut columns of *A = upᵀ*; hence the name **column-parallel**. ReLU works on each number alone.
    `down` then gets half of its *inputs* on each rank, so it is cut the other way. The two results add
    up to the answer.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.figure(
        drawing_of("parallel_layers.svg"),
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


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 2: the forward pass

    Complete `two_layers`, which runs on *every* rank: `relu(x @ up.T + up_bias)`, and then `@
    down.T + down_bias`. Use only this rank's part, cut as by `cut` above. `add_up(tensor)` is the
    one collective: it returns the sum over the ranks. Call it exactly once. Mind the two biases.
    """)
    return


@app.function
def two_layers(x, up, up_bias, down, down_bias, rank, ranks, add_up):
    """Return the output of both layers, the same on all ranks.

    x [batch, narrow], up [wide, narrow], up_bias [wide], down [narrow, wide], down_bias [narrow]
    With wide 5 on 2 ranks, rank 1 computes the last 2 of the 5 hidden numbers:
    two_layers(x, up, up_bias, down, down_bias, 1, 2, add_up)
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: two_layers,
        Solutions,
        level="core",
        minutes=7,
        lines=5,
        hints=(
            "Which rows of `up` make the hidden numbers of this rank, and which columns of `down` read "
            "them? How often may `down_bias` be added?",
            "`up[mine]`, `up_bias[mine]` and `down[:, mine]` for one slice `mine`; ReLU between; `add_up` of "
            "the product; then `+ down_bias`.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    Two rules of the backward pass are missing. The gradient of a sum goes to every summand unchanged. And every
    rank used `x`, so the ranks' gradients for it are added up. `by_hand` runs `two_layers` with both rules.
    """)
    return


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
def by_hand(two_layers, *tensors):
    """Run forward and backward on this rank; the output, and all gradients."""
    x, *weights = [tensor.clone().requires_grad_() for tensor in tensors]
    rank, ranks = dist.get_rank(), dist.get_world_size()
    y = two_layers(CopyIn.apply(x), *weights, rank, ranks, SumOut.apply)
    y.square().mean().backward()
    return [y.detach(), x.grad, *(weight.grad for weight in weights)]


@app.function
def by_library(x, up, up_bias, down, down_bias):
    """The same by torch: name the style of each layer, and write the model as usual."""
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    wide, narrow = up.shape
    model = nn.Sequential(nn.Linear(narrow, wide), nn.ReLU(), nn.Linear(wide, narrow))
    names = ("0.weight", "0.bias", "2.weight", "2.bias")
    model.load_state_dict(dict(zip(names, (up, up_bias, down, down_bias), strict=True)))
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})

    def forward_and_backward():
        mine = x.clone().requires_grad_()
        y = model(mine)
        y.square().mean().backward()
        return y.detach(), mine.grad

    forward_and_backward()  # the first call prepares things
    model.zero_grad()
    (y, gradient), sent = counted(forward_and_backward)
    return [y, gradient, *(p.grad.full_tensor() for p in model.parameters())], sent


@app.function(hide_code=True)
def count_by_hand(two_layers, tensors):
    return counted(by_hand, two_layers, *tensors)


@app.cell
async def _(collectives, config, ranks):
    lesson.needs(lambda: collectives)  # one after the other: bytes are counted per process
    used_layers, whose_layers = exercise.running(lambda: two_layers, Solutions)
    torch.manual_seed(config.seed)
    _narrow, _wide = config.width, 4 * config.width
    _sizes = (
        (config.batch, _narrow),
        (_wide, _narrow),
        (_wide,),
        (_narrow, _wide),
        (_narrow,),
    )
    layers = [torch.randn(size) / math.sqrt(size[-1]) for size in _sizes]
    hand = await on_all(ranks, count_by_hand, used_layers, layers)
    library = await on_all(ranks, by_library, *layers)
    return hand, layers, library, whose_layers


@app.cell(hide_code=True)
def _(ask_talks, by_the_book, config, hand, layers, library, whose_layers):
    _one_sum = by_the_book("all_reduce", layers[0].nbytes, config.ranks)
    _talks = hand[0][1] / _one_sum

    # Each rank has gradients for its own part of up, up_bias and down, and zeros elsewhere.
    def _whole(index):
        parts = [answer[index] for answer, _ in hand]
        return sum(parts) if index in (2, 3, 4) else parts[0]

    parallel_apart = max(
        float((_whole(index) - theirs).abs().max() / theirs.abs().max())
        for index, theirs in enumerate(library[0][0])
    )
    lesson.reveal(
        ask_talks,
        right={1: 0, 2: 1, 4: 2}.get(round(_talks), []),
        why=f"""
        Each rank sent {hand[0][1]:,} bytes with {whose_layers}, and {library[0][1]:,} with torch. One all_reduce of the
        output is {_one_sum:,.0f} by formula, so there were {round(_talks)}. Forward, the summands of the result are
        added; backward, the gradients for `x`. The gradients of the weights need no message: each
        rank has what it needs for its own part. Output and five gradients differ from torch's by
        {lesson.tiny(parallel_apart)} of the largest number at most.
        """,
    )
    return (parallel_apart,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## The placement of a result

    Why does *columns, then rows* work? Cut the other way, the output of `up` would be `Partial` in
    front of the ReLU. The summands add up to the true value. But do the ReLUs of the summands add
    up to the ReLU of the sum?
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
async def _(config, hand, ranks):
    lesson.needs(lambda: hand)  # one after the other: bytes are counted per process
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
        summand would have been wrong by up to {relu_wrong_by:.1f}. The automatic change is convenient, and a trap:
        a collective hides in a line that looks like arithmetic. This is why `up` is cut in columns.
        """,
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## FSDP by hand

    Tensor parallelism needs all data on every rank, and a message inside every block. The other way
    is to give each rank *its own data*, as in data parallelism, and still not to keep the whole
    model: **FSDP**, fully sharded data parallelism. Each rank keeps a share of the weights, and of
    the optimizer's state. It borrows the rest for the moment in which it is needed:

    1. all_gather the weights, compute loss and gradients on its own data, forget the borrowed weights;
    2. reduce_scatter the gradients: each rank gets the sum for its share, and nothing else;
    3. update the share. Nobody else has it, so nobody else must be told.

    ### Exercise 3: a share for each

    All weights are laid out in one flat tensor first. A collective wants shares of equal size, so
    the flat tensor is padded. Complete `share_of`: pad the 1-D tensor `flat` with zeros until
    `ranks` divides its length, with as few zeros as possible. Return the share of `rank`, in a
    tensor of its own.
    """)
    return


@app.function
def share_of(flat, rank, ranks):
    """Return the share of ``rank``; share_of(torch.ones(3), 1, 2) is tensor([1., 0.])."""
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: share_of,
        Solutions,
        level="stretch",
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
        "Data parallelism sends one all_reduce of the gradients in a step. FSDP by hand keeps half as much on each of two ranks. What does it send on *these* two "
        "ranks, compared with data parallelism? Remember what gloo does.",
        "half as much",
        "the same",
        "half as much again",
        "twice as much",
    )
    ask_fsdp
    return (ask_fsdp,)


@app.cell(hide_code=True)
async def _(config, ranks, relu_sent):
    lesson.needs(lambda: relu_sent)  # one after the other: bytes are counted per process
    _share_of, whose_share = exercise.running(lambda: share_of, Solutions)

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
    return fsdp, fsdp_held, fsdp_numbers, whose_share


@app.cell(hide_code=True)
def _(ask_fsdp, by_the_book, config, fsdp, fsdp_held, fsdp_numbers, whose_share):
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
        It sent {_times:.2f} times as much. By the formula it would be {(_gather + _scatter) / _reduce:g}: an all_reduce *is* a reduce_scatter and an all_gather, and FSDP puts its
        update between the two. {"The rest is gloo's reduce_scatter, which you have met above. " if _times > 1.2 else ""}So
        a rank keeps {fsdp_held / 1e6:.2f} MB of weights and momentum instead of {2 * _size / 1e6:.2f}
        MB. With a good backend it sends no more bytes for that. `fully_shard` usually gathers twice, to forget the weights between forward and backward: {(2 * _gather + _scatter) / _reduce:g} times, by the formula.
        """,
        shows=[
            lesson.figure(
                nb04.sent_chart(
                    {name: (_formula[name], sent) for name, (_, sent) in fsdp.items()}
                ),
                f"A step of {fsdp_numbers:,} parameters. By hand with {whose_share}.",
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
async def _(fsdp):
    lesson.needs(lambda: fsdp)  # the last use of the two processes
    await keep_open.done("04")
    return


@app.cell(hide_code=True)
def _():
    lesson.predicted(5)
    return


@app.cell(hide_code=True)
def _():
    lesson.recap(
        "A placement says what each rank holds: a shard, all of it, or a summand. Shards may be uneven, or empty.",
        "Collectives turn placements into each other. Formulas give their least cost in bytes; what a backend sends may be more, so count.",
        "Column-parallel and then row-parallel: two layers, one all_reduce forward, one backward, and the same numbers as torch.",
        "FSDP keeps a share, borrows the rest, and sends by formula what data parallelism sends; gathering twice costs half as much again.",
        "Trainers and generators are different groups, and no collective connects them. Notebook 07b plans that transfer.",
    )
    return


@app.cell(hide_code=True)
def _(hand, library):
    lesson.headline(
        f"for a pair of layers on two ranks, each rank sent {hand[0][1]:,} bytes with the code by hand, and {library[0][1]:,} with torch's own."
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.links(__file__)
    return


@app.class_definition(hide_code=True)
class Solutions:
    """Check the exercises of this page, and solve them."""

    def check_bytes_sent(bytes_sent):
        for name in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all"):
            exercise.agree(
                bytes_sent,
                Solutions.bytes_sent,
                lambda draw, name=name: (
                    name,
                    100 * draw.randint(1, 99),
                    draw.randint(1, 8),
                ),
            )

    def bytes_sent(collective, size, ranks):
        others = (ranks - 1) * size / ranks
        if collective == "all_reduce":
            return 2 * others
        if collective == "all_to_all":
            return others / ranks
        return others

    def check_two_layers(two_layers):
        exercise.agree(
            nb04.on_ranks(two_layers),
            nb04.on_ranks(Solutions.two_layers),
            nb04.draw_layers,
            gradients=True,
            tolerance=1e-4,
        )

    def two_layers(x, up, up_bias, down, down_bias, rank, ranks, add_up):
        size = math.ceil(len(up) / ranks)
        mine = slice(rank * size, (rank + 1) * size)
        hidden = torch.relu(x @ up[mine].T + up_bias[mine])
        summand = hidden @ down[:, mine].T
        return add_up(summand) + down_bias

    def check_share_of(share_of):
        exercise.agree(share_of, Solutions.share_of, nb04.draw_share, times=60)
        flat = torch.arange(4.0)
        share_of(flat, 1, 2).add_(1)
        assert flat.tolist() == [0, 1, 2, 3], (
            "`share_of(tensor([0., 1., 2., 3.]), 1, 2)` is a view: writing to it changes `flat`"
        )
        share = share_of(torch.arange(3.0), 0, 2)
        assert share.untyped_storage().nbytes() == share.nbytes, (
            "`share_of(tensor([0., 1., 2.]), 0, 2)` is a view of the padded tensor, and keeps all of that in memory"
        )

    def share_of(flat, rank, ranks):
        size = math.ceil(len(flat) / ranks)
        padded = nn.functional.pad(flat, (0, ranks * size - len(flat)))
        return padded[rank * size : (rank + 1) * size].clone()


if __name__ == "__main__":
    app.run()
