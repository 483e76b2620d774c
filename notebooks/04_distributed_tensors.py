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

    from zorplex_rl.course import nb04
    from zorplex_rl.course.figures import drawing_of
    from zorplex_rl.course.lesson import exercise, keep_open, lesson
    from zorplex_rl.course.nb04 import counted, on_all


@app.cell(hide_code=True)
def _():
    lesson.header(
        __file__,
        minutes=41,
        hardware="two CPU cores, no network; bytes are counted on Linux",
        goals=[
            "say what each process holds of a tensor, given its placement",
            "name the collective that turns one placement into another",
            "write the ring in which numbers travel, and say how many bytes that costs",
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Too big for one

    You want to train a model of 8 billion parameters. Training with Adam needs four numbers for each: the weight, its
    gradient, a running mean of the gradient, and one of the gradient's square. In float32 that is 4 · 4 · 8 = 128 GB,
    and what the layers compute comes on top. Your GPU has 80 GB. So the tensors have to be cut, and every process
    holds a share.

    Now each process lacks what the others hold, and has to fetch it, in every step. That is what makes a large training
    slow or fast. In RL it meets you twice: the trainer cuts its weights in one way, the generators cut the same weights in
    another.

    Two questions remain. *Who holds what?* That is a tensor's **placement**. *What must be sent, and how
    does it travel?* Those are the **collectives**: operations in which all processes of a group take part.

    ## Who holds what

    The processes of a group are numbered; a process's number is its **rank**. One word says what the
    ranks hold of a tensor:

    - `Shard(0)`: cut by rows into *shares*, one for each rank. Rank *i* has share *i*. `Shard(1)`: cut by columns.
    - `Replicate()`: each rank has a copy of the whole.
    - `Partial()`: each rank has a tensor of full size, and the true value is their *sum*. It looks odd, and is
      what comes out when every rank has worked on its own examples.

    torch has a tensor with a placement, too. It is called **DTensor**: each process holds its share, and knows the shape
    of the whole.
    """)
    return


@app.cell(hide_code=True)
def _():
    ask_uneven = lesson.predict(
        "5 rows are split over 4 ranks. How many rows does each rank get?",
        "2, 1, 1, 1",
        "2, 2, 1, 0",
        "it is an error: 4 does not divide 5",
    )
    ask_uneven
    return (ask_uneven,)


@app.cell(hide_code=True)
def _(ask_uneven):
    _rows = [len(cut(torch.zeros(5), 0, rank, 4)) for rank in range(4)]
    lesson.reveal(
        ask_uneven,
        right=_rows[1] - 1,
        why=f"""
        By the rule in `cut`, below, which is torch's, too, the ranks get {", ".join(map(str, _rows))} rows: sizes are rounded *up*, so
        the last ranks get less, or nothing. Code must cope with an empty share.
        """,
    )
    return


@app.function
def cut(tensor, dim, rank, ranks):
    """The share of `tensor` that `rank` holds if it is sharded along `dim`."""
    length = tensor.shape[dim]
    size = math.ceil(length / ranks)
    first = min(rank * size, length)
    last = min(first + size, length)
    return tensor.narrow(dim, first, last - first)


@app.cell(hide_code=True)
def _():
    lesson.figure(
        drawing_of("placements.svg"),
        "What two ranks hold of a 4 × 4 tensor; a colour is a rank. Each solid arrow is a collective, explained in the next section. From Replicate to Shard nothing is sent: a rank throws away its other half.",
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Four collectives

    Each turns one placement into another. The solid arrows above are such collectives.

    - `all_gather`: each rank has a share; afterwards each has all of them. FSDP, training with cut weights (notebook 04b), fetches a layer's
      weights in this way.
    - `reduce_scatter`: each rank has a summand of *everything*; afterwards it has the finished sum of *its* share. FSDP
      adds its gradients like this.
    - `all_reduce`: the same summands, and afterwards each rank has all finished sums. DDP, training with a copy on each rank (notebook 02), adds its gradients like this.
    - `all_to_all`: each rank cuts its share once more, and sends piece *i* to rank *i*. A tensor cut by rows is cut by columns
      afterwards.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.figure(
        drawing_of("collectives.html"),
        "Three ranks, before and after. Colour i is the share that rank i has at the start, or is to keep at the end. a₁ is what rank 1 adds to the sum A. In all_to_all rank 0 gets the first column.",
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## The ring

    How does a share reach everybody? Each rank could send its own to each of the others. Then every rank talks
    with every other, over the same switches at the same moment. In a ring each rank sends to one neighbour only: first its own share, then
    always the share that has just arrived. So a wire between neighbours carries one share at a time. After `ranks − 1` steps all have all.

    Sending to everybody, or passing on: both send the same number of bytes, and fewer are impossible. Each rank has to receive `ranks − 1` shares. Everything that is received was
    sent by somebody, so on average each rank sends `ranks − 1` shares, too.

    A reduce_scatter is the same ring, in which the numbers grow on the way. Each share travels round, and
    every rank adds its own summand. At the end each rank has one finished share. An `all_reduce` is a reduce_scatter, and then an all_gather of
    the finished shares.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.figure(
        drawing_of("ring.html"),
        "Above: an all_gather of four ranks; each strip of four cells is a rank, and shows which shares it has. Below: the reduce_scatter, for the share that ends at rank 0.",
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 1: the price

    The whole tensor has `size` bytes, and a share of it `size / ranks`. Where it is Partial, each rank holds `size` bytes. Complete `bytes_sent`: the bytes that
    *one* rank sends. Count in the figures what leaves one rank. An all_reduce is a reduce_scatter and then an all_gather. For all_to_all count the cells that change their row.
    """)
    return


@app.function
def bytes_sent(collective, size, ranks):
    """Return the bytes that one rank sends.

    `collective` is "all_gather", "reduce_scatter", "all_reduce" or
    "all_to_all". `bytes_sent("all_gather", 800, 4)` is 600.
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: bytes_sent,
        Solutions,
        level="warm-up",
        minutes=5,
        lines=6,
        hints=(
            "A share has `size / ranks` bytes. How many shares does a rank send in an all_gather?",
            "In an all_to_all a rank cuts its own share into `ranks` parts, and sends all but one.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    ask_more = lesson.predict(
        "You double the ranks from 8 to 16, and gather the same tensor. What happens to the bytes that each rank sends?",
        "they are halved",
        "they stay nearly the same",
        "they double",
    )
    ask_more
    return (ask_more,)


@app.cell(hide_code=True)
def _(ask_more):
    by_the_book, whose_book = exercise.running(lambda: bytes_sent, Solutions)
    _times = by_the_book("all_gather", 800, 16) / by_the_book("all_gather", 800, 8)
    lesson.reveal(
        ask_more,
        right=round(_times),
        why=f"""
        By {whose_book}, {_times:.2f} times as many. There are twice as many steps, with shares half as large. Bytes
        do not limit how large a ring can be. Its many small steps do, because each waits for the one before.
        """,
    )
    return by_the_book, whose_book


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 2: gather

    Now write the ring. `ring_all_gather` runs on every rank at the same time. `exchange(tensor)` sends a tensor to
    the next rank, and returns what the rank before has sent. The check says what all ranks hold, and what all of them return, rank
    by rank.
    """)
    return


@app.function
def ring_all_gather(mine, rank, ranks, exchange):
    """Return the shares of all ranks in a list, that of rank i at place i.

    Call `exchange` `ranks - 1` times.
    On 2 ranks which hold 1 and 2, both return [1, 2].
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: ring_all_gather,
        Solutions,
        level="core",
        minutes=7,
        lines=6,
        hints=(
            "In step 1 you get the share of rank − 1. Whose do you get in step 2, from the same neighbour?",
            "Begin with `shares = [None] * ranks`, your own in place. In step k what arrives belongs to rank `(rank - k) % ranks`; pass it on in the next step.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 3: add on the way

    Here each rank begins with a list: `summands[i]` is its own summand of share *i*. Follow one share in the figure. Which one
    do you send first, so that yours is finished when it arrives?
    """)
    return


@app.function
def ring_reduce_scatter(summands, rank, ranks, exchange):
    """Return the finished share of `rank`: the sum of `summands[rank]`
    over all ranks.

    Call `exchange` `ranks - 1` times.
    On 2 ranks which hold [1, 2] and [10, 20], they return 11 and 22.
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: ring_reduce_scatter,
        Solutions,
        level="stretch",
        minutes=8,
        lines=4,
        hints=(
            "Share 0 begins at rank 1 and ends at rank 0. Where does your share begin? Which share begins at you?",
            "Begin with `summands[(rank - 1) % ranks]`. In step k add `summands[(rank - 1 - k) % ranks]` to what arrives.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## What is really sent

    A library may build its collectives in another way. A reduce_scatter, for example, can be a ring, as yours is. Or everything is
    added up everywhere by an all_reduce, and each rank keeps its share. What would each way send?

    To find out which way it is, count: Linux knows how many bytes went over each connection. Two real processes now run your
    rings, and torch's own collectives. Each process holds an actor that runs whatever function it is sent, and both get the same one.
    So `exchange` below runs in *both* at the same time, on different data. `dist` is `torch.distributed`. Its
    backend, which moves the bytes, is gloo, the usual one on CPUs.
    """)
    return


@app.cell(hide_code=True)
def settings():
    config = SimpleNamespace(
        ranks=2,
        megabytes=8,  # of the tensor on which collectives are counted
    )
    return (config,)


@app.cell(hide_code=True)
def _():
    open_ranks = lesson.start_button(
        "Start two processes, and run what needs them", seconds=8
    )
    open_ranks
    return (open_ranks,)


@app.cell(hide_code=True)
async def _(config, open_ranks):
    lesson.wait_for(open_ranks)
    with lesson.counting(None, "two processes import torch"):
        ranks = await keep_open.enter("04", nb04.process_group("ranks", config.ranks))
    return (ranks,)


@app.function
def exchange(tensor):
    """Send `tensor` to the next rank; return what the rank before has sent."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    received = torch.empty_like(tensor)
    # isend does not wait: if all ranks waited until they have sent, nobody would receive.
    sending = dist.isend(tensor, (rank + 1) % ranks)
    dist.recv(received, (rank - 1) % ranks)
    sending.wait()
    return received


@app.function(hide_code=True)
def count_ring(step, whole):
    """Run a ring; the bytes that this rank has sent."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    shares = list(whole.chunk(ranks))
    held = shares[rank] if step.__name__ == "ring_all_gather" else shares
    return counted(step, held, rank, ranks, exchange)


@app.cell(hide_code=True)
def _(config):
    ask_scatter = lesson.predict(
        f"In your ring a reduce_scatter sends half as much as an all_reduce. And in gloo: what does its reduce_scatter of {config.megabytes} MB send on two ranks, compared with its all_reduce?",
        "half as much, too",
        "as much as its all_reduce",
        "twice as much as its all_reduce",
    )
    ask_scatter
    return (ask_scatter,)


@app.cell(hide_code=True)
async def _(by_the_book, config, ranks):
    lesson.needs(lambda: ranks)
    _gather, whose_gather = exercise.running(lambda: ring_all_gather, Solutions)
    _scatter, whose_scatter = exercise.running(lambda: ring_reduce_scatter, Solutions)
    _whole = torch.ones(config.megabytes * 250_000)
    _share = cut(_whole, 0, 0, config.ranks).clone()
    collectives = {}
    for _name, *_call in (
        ("all_reduce", counted, dist.all_reduce, _whole),
        ("all_gather, ring", count_ring, _gather, _whole),
        ("reduce_scatter", counted, dist.reduce_scatter_single, _share, _whole),
        ("reduce_scatter, ring", count_ring, _scatter, _whole),
    ):
        _sent = max(sent for _, sent in await on_all(ranks, *_call))
        _formula = by_the_book(_name.split(",")[0], _whole.nbytes, config.ranks)
        collectives[_name] = _formula, _sent
    return collectives, whose_gather, whose_scatter


@app.cell(hide_code=True)
def _(ask_scatter, collectives, config, whose_book, whose_gather, whose_scatter):
    _reduce, _ring, _library = (
        collectives[name][1]
        for name in ("all_reduce", "reduce_scatter, ring", "reduce_scatter")
    )
    # 1, 2 or 4 halves of what its all_reduce sends; nothing is counted where there is no Linux.
    _halves = round(2 * _library / _reduce) if _reduce else 0
    _why = "It adds everything up everywhere, and each rank keeps its share."
    lesson.reveal(
        ask_scatter,
        right={1: 0, 2: 1, 4: 2}.get(_halves, []),
        why=f"""
        gloo's sent {_library / 1e6:.2f} MB, and its all_reduce {_reduce / 1e6:.2f} MB. {_why if _halves == 2 else ""} The ring sent {_ring / 1e6:.2f} MB.
        With two ranks a ring is one exchange, because the next rank is also the one before. By the formulas a reduce_scatter sends half as much as an all_reduce for more ranks, too.

        NCCL, the usual backend on NVIDIA GPUs, has a reduce_scatter of its own. Small differences from the formula are headers.
        """,
        shows=[
            lesson.figure(
                nb04.sent_chart(collectives),
                f"{config.megabytes} MB on two ranks. Formula: {whose_book}. Rings: {whose_gather} and {whose_scatter}. Sent: from Linux's count of each TCP connection.",
            )
        ],
    )
    return


@app.cell(hide_code=True)
async def _(collectives):
    lesson.needs(lambda: collectives)
    await keep_open.done("04")
    return


@app.cell(hide_code=True)
def _():
    lesson.recap(
        3,
        "A placement says what each rank holds: a share, all of it, or a summand. Shares may be uneven, or empty.",
        "Collectives turn placements into each other; from Replicate to Shard nothing is sent.",
        "In a ring each rank passes on what has just arrived. An all_reduce is a reduce_scatter and an all_gather; a backend may send more than the formula, so count.",
        "Trainers and generators of an RL run are different groups, with different cuts. Notebook 07b plans the transfer between them.",
    )
    return


@app.cell(hide_code=True)
def _(collectives):
    lesson.headline(
        f"a reduce_scatter on two ranks sent {collectives['reduce_scatter, ring'][1] / 1e6:.1f} MB in the ring, and {collectives['reduce_scatter'][1] / 1e6:.1f} MB in gloo."
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.links(__file__, machine=True)
    return


@app.class_definition(hide_code=True)
class Solutions:
    """Check the exercises of this page, and solve them."""

    def check_bytes_sent(bytes_sent):
        names = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")

        def as_a_gather(wrong):
            return lambda name, *given: Solutions.bytes_sent(
                "all_gather" if name == wrong else name, *given
            )

        exercise.agree(
            bytes_sent,
            Solutions.bytes_sent,
            lambda draw: (
                draw.choice(names),
                100 * draw.randint(1, 99),
                draw.randint(1, 8),
            ),
            times=40,
            examples=[(name, 800, 4) for name in names],
            mistakes={
                "you count what a rank would send to itself, too": lambda name, size, ranks: (
                    {"all_reduce": 2, "all_to_all": 1 / ranks}.get(name, 1) * size
                ),
                "an all_reduce goes round the ring twice": as_a_gather("all_reduce"),
                "in an all_to_all a rank cuts its own *share* in parts, not the tensor": as_a_gather(
                    "all_to_all"
                ),
            },
        )

    def bytes_sent(collective, size, ranks):
        others = (ranks - 1) * size / ranks
        if collective == "all_reduce":
            return 2 * others
        if collective == "all_to_all":
            return others / ranks
        return others

    def check_ring_all_gather(ring_all_gather):
        exercise.agree(
            nb04.in_a_ring(ring_all_gather),
            nb04.in_a_ring(Solutions.ring_all_gather),
            lambda draw: (nb04.draw_ring(draw)[0],),
            examples=[(nb04.THREE_RANKS[0],)],
            mistakes=nb04.GATHER_MISTAKES,
        )

    def ring_all_gather(mine, rank, ranks, exchange):
        shares = [None] * ranks
        shares[rank] = mine
        for step in range(1, ranks):
            mine = exchange(mine)
            shares[(rank - step) % ranks] = mine
        return shares

    def check_ring_reduce_scatter(ring_reduce_scatter):
        ring = nb04.in_a_ring(ring_reduce_scatter)
        exercise.agree(
            ring,
            nb04.in_a_ring(Solutions.ring_reduce_scatter),
            lambda draw: (nb04.draw_ring(draw),),
            examples=[(nb04.THREE_RANKS,)],
            mistakes={nb04.wrong_sums(ring(nb04.THREE_RANKS)): ring},
        )

    def ring_reduce_scatter(summands, rank, ranks, exchange):
        travelling = summands[(rank - 1) % ranks]
        for step in range(1, ranks):
            travelling = exchange(travelling) + summands[(rank - 1 - step) % ranks]
        return travelling


if __name__ == "__main__":
    app.run()
