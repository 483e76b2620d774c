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
    app_title="Resharding: weights from one mesh to another",
    css_file="../zorplex_rl/course/lesson/lesson.css",
)

with app.setup(hide_code=True):
    import math
    from asyncio import gather
    from functools import partial
    from types import SimpleNamespace

    import marimo as mo
    import torch
    from torch.distributed.tensor import Replicate, Shard

    from zorplex_rl.course import nb07b
    from zorplex_rl.course.figures import bars, drawing_of
    from zorplex_rl.course.lesson import exercise, lesson
    from zorplex_rl.course.nb07b import on_all, two_meshes
    from zorplex_rl.course.shard_rings import pull_together
    from zorplex_rl.course.widgets import ReshardMap
    from zorplex_rl.policy.load import load_policy
    from zorplex_rl.weights.layout import named_weights
    from zorplex_rl.weights.reshard.plan import Move, Sharding
    from zorplex_rl.weights.reshard.sharded_model import ModelPlan, ShardedWeight


@app.cell(hide_code=True)
def _():
    lesson.header(
        __file__,
        minutes=43,
        hardware="two CPU cores, no network",
        goals=[
            "say which part of a tensor each rank of a mesh holds",
            "write a planner that fetches every element once, and no more",
            "say how much the busiest rank sends, with a plan and without one",
            "move real shards from FSDP to tensor parallel with your own plan, and check them bit for bit",
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## The model lies in pieces

    Your model does not fit into one process any more. Each process of the trainer holds a piece of it, and each process of the generators another. The two sides cut it
    differently, because each cuts as suits its own work. Now new weights have to go from the one to the other. The obvious way is to put the model together on one process, and
    to send the pieces from there. Then everything passes through the link of *one* machine, while all the others wait.

    But no piece has to go that way. What a generator wants lies on a few trainers, and it can fetch just that.

    First the words. The number of a process in its group is its **rank**, and its piece of a parameter is a **shard**. A trainer with **FSDP** cuts every parameter by rows. Generators
    are **tensor parallel**: the first matrix of a pair is cut by rows, the second by columns, and what is small is copied.

    Who has to send what to whom? Three steps answer it: which box of the tensor each rank holds, where two boxes overlap, and who
    sends the overlap. Then four processes do it.
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.figure(
        drawing_of("overlaps.svg"),
        "One matrix on two ranks a side. All four ranks are different processes, so every piece travels. Above: rows against columns make four pieces, and each trainer rank serves both generator ranks. Below: rows against rows, where each serves only one.",
    )
    return


@app.cell(hide_code=True)
def settings():
    _name = mo.cli_args().get("policy") or "embedded"
    config = SimpleNamespace(
        policy=_name,  # or the folder of a model, for example a copy of Qwen2.5-0.5B-Instruct
        width=256,  # of the model that really moves
        steps=3,
    )
    return (config,)


@app.cell(hide_code=True)
def _(config):
    torch.set_num_threads(1)
    policy = load_policy(config.policy, "cpu")
    lesson.ran_on(policy)
    return (policy,)


@app.cell(hide_code=True)
def _():
    _text = mo.md("""
    ## A shard is a box

    A **mesh** is the grid in which the ranks of one side stand. Plain FSDP on four ranks is a row of 4. FSDP over 2 and tensor parallel over 2 is a grid of 2 × 2, and a rank has two
    coordinates in it. A **placement** says how a tensor is divided along *one* dimension of that grid, so there is one for each. `Shard(0)` cuts rows, `Shard(1)`
    cuts columns, `Replicate()` gives every rank all of it.

    So a rank holds a box: in each dimension of the tensor a first index and an end. `box` computes it, one placement after the other.

    `Sharding(mesh_shape, placements)` holds both: the size of the grid, and one placement for each of its dimensions.
    """)
    _grid = lesson.folded(
        "Both dimensions of a grid cut the same rows: which cuts first?",
        """
Take eight rows on FSDP 2 × tensor parallel 2. Tensor parallelism cuts first: rows 0–3 and 4–7.
Then FSDP halves each piece:

| rows | tensor parallel 0 | tensor parallel 1 |
|---|---|---|
| FSDP 0 | rank (0, 0): 0–1 | rank (0, 1): 4–5 |
| FSDP 1 | rank (1, 0): 2–3 | rank (1, 1): 6–7 |

Tensor parallelism, the second dimension of the grid, cuts before FSDP, the first. torch marks the placement that has to cut afterwards: it is a `StridedShard`.
The `box` below does without it, and so does every mesh of this page. `local_box` of the package has it.
""",
    )
    mo.vstack([_text, _grid])
    return


@app.function
def box(shape, sharding, rank):
    bounds = [(0, size) for size in shape]  # in each dimension (first, end)
    places = sharding.coordinate(rank)  # in the mesh, such as (1, 0)
    cuts = zip(sharding.placements, sharding.mesh_shape, places, strict=True)
    for placement, ranks, place in cuts:
        if not placement.is_replicate():
            first, end = bounds[placement.dim]
            share = math.ceil((end - first) / ranks)
            first = min(first + place * share, end)
            bounds[placement.dim] = first, min(first + share, end)
    return tuple(bounds)


@app.cell(hide_code=True)
def _():
    ask_last = lesson.predict(
        "A tensor with 9 rows, `Shard(0)`, on 4 ranks. How many rows does the last rank hold?",
        "2 or 3: shares are as equal as possible",
        "1",
        "none",
    )
    ask_last
    return (ask_last,)


@app.cell
def _():
    rows_on_4 = Sharding((4,), (Shard(0),))
    nine_rows = [box((9, 2), rows_on_4, rank)[0] for rank in range(4)]
    chunks = [len(chunk) for chunk in torch.zeros(9, 2).chunk(4)]
    return chunks, nine_rows


@app.cell(hide_code=True)
def _(ask_last, chunks, nine_rows):
    _counts = [end - first for first, end in nine_rows]
    lesson.reveal(
        ask_last,
        right={0: 2, 1: 1}.get(_counts[-1], 0),
        why=f"""
        The ranks hold {", ".join(map(str, _counts))} rows. Nine rows on four ranks make shares of three, rounded up. So the first three ranks hold
        all of them. `torch.chunk` says the same: it returns {len(chunks)} chunks, of {", ".join(map(str, chunks))} rows. A plan must work with an empty shard.
        """,
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 1: the overlap of two boxes

    A source rank holds the box `held`, and a destination rank wants the box `wanted`: in each dimension `(first, end)`, as `box` returns them.
    Complete `overlap`: return the box of what both contain, or `None` if that is nothing. An end is the index *behind* the last one, as in a slice.
    """)
    return


@app.function
def overlap(held, wanted):
    """overlap(((4, 8),), ((2, 6),)) is ((4, 6),)."""
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: overlap,
        Solutions,
        level="warm-up",
        minutes=4,
        lines=5,
        hints=(
            "In one dimension the overlap begins at the larger of the two first indices. Where does it end?",
            "It ends at the smaller of the two ends. Make such a range for each dimension. If one of them is empty, return `None`.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 2: your planner

    Your planner calls your `overlap`, so write that first. Now there are several source ranks to choose from: `held` is a dict, for each of them its box. `wanted` is the box of one
    destination rank. Complete `pieces`: return a list of `(rank, part)`. A part is an `overlap` that the destination fetches from
    that rank. Together the parts are exactly `wanted`, each element once.

    Two ranks hold either the same box, or boxes without a common element. Of ranks with the same
    box take the one that has sent least so far. `sent` is a dict of bytes, which the page keeps up to date: do not change it.
    """)
    return


@app.function
def pieces(held, wanted, sent):
    """Return what to fetch, and from whom.

    pieces({0: ((0, 2),), 1: ((2, 4),)}, ((1, 4),), {0: 0, 1: 0})
    is [(0, ((1, 2),)), (1, ((2, 4),))]
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: pieces,
        Solutions,
        level="core",
        minutes=12,
        lines=8,
        hints=(
            "Which ranks hold copies of each other?",
            "Collect the ranks of each box: `{box: [rank, …]}`. Call `overlap` for each box. If there is one, it comes from the rank with the smallest `sent`.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## The plan

    A plan asks `pieces` for every destination rank of every tensor.
    """)
    return


@app.function(hide_code=True)
def inside(box, part):
    """A part of the whole tensor, as slices of the shard that is `box`."""
    return tuple(
        slice(a - first, b - first) for (first, _), (a, b) in zip(box, part, strict=True)
    )


@app.function(hide_code=True)
def planned(pieces, shape, source, destination, itemsize, sent):
    held = {rank: box(shape, source, rank) for rank in range(source.ranks)}
    moves = []
    for rank in range(destination.ranks):
        wanted = box(shape, destination, rank)
        for giver, part in pieces(held, wanted, sent):
            size = itemsize * math.prod(end - first for first, end in part)
            sent[giver] += size
            moves.append(
                Move(giver, rank, inside(held[giver], part), inside(wanted, part), size)
            )
    return moves


@app.function(hide_code=True)
def plan_with(pieces, source, destination):
    """The plan of a whole model, from descriptions of all its parameters on both sides."""
    ranks = max(weight.sharding.ranks for weight in source.values())
    moves, sent = {}, dict.fromkeys(range(ranks), 0)
    for name, weight in source.items():
        shardings = weight.sharding, destination[name].sharding
        found = planned(pieces, weight.shape, *shardings, weight.dtype.itemsize, sent)
        moves[name] = tuple(found)
    return ModelPlan(source, destination, moves)


@app.cell(hide_code=True)
def _():
    planner, whose = exercise.running(lambda: pieces, Solutions)
    lesson.md(f"""
    The rest of this page runs on {whose}. No plan can move less, because each rank fetches what it wants, each element once.
    """)
    return planner, whose


@app.cell(hide_code=True)
def _():
    lesson.folded(
        "Heads stay whole",
        "A real model cannot be cut just anywhere. An attention head looks at its own queries, keys and values, so tensor parallelism gives each rank whole heads. "
        "Models with grouped queries have fewer heads for keys and values than for queries. If there are more ranks than such heads, libraries differ. "
        "Here vLLM [copies heads](https://docs.vllm.ai/en/v0.15.0/api/vllm/model_executor/models/llama/) to several ranks, as this page does. "
        "But torchtitan [refuses](https://github.com/pytorch/torchtitan/pull/2577) a mesh with more ranks than key heads.",
    )
    return


@app.function(hide_code=True)
def describe_on(policy, **mesh):
    """Say of every parameter how it lies on a mesh such as FSDP=4 or TP=2."""
    rows = "q_proj k_proj v_proj gate_proj up_proj embed_tokens lm_head".split()
    columns = ("o_proj.weight", "down_proj.weight")
    heads = policy.model.config.num_key_value_heads
    description = {}
    for name, tensor in named_weights(policy.model).items():
        axes = dict(mesh)
        along = {"copies": Replicate(), "FSDP": Shard(0), "TP": Replicate()}
        if name.endswith(columns):
            along["TP"] = Shard(1)
        elif any(part in name for part in rows):
            along["TP"] = Shard(0)
        if mesh.get("TP", 1) > heads and ("k_proj" in name or "v_proj" in name):
            # More ranks than heads: neighbours hold the same head.
            axes |= {"TP": heads, "same head": mesh["TP"] // heads}
            along["same head"] = Replicate()
        sharding = Sharding(tuple(axes.values()), tuple(along[axis] for axis in axes))
        description[name] = ShardedWeight(tuple(tensor.shape), tensor.dtype, sharding)
    return description


@app.function(hide_code=True)
def named(mesh):
    return " × ".join(
        f"{ranks} whole copies" if axis == "copies" else f"{axis} {ranks}"
        for axis, ranks in mesh.items()
    )


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Who sends how much

    The obvious way needs no plan. *Gather* the whole model on trainer rank 0, and *scatter* it from there: each generator rank is sent what it wants.
    What takes time is the busiest rank. Its link carries both directions at once, so the busier direction counts: for rank 0 that is what it sends.
    (Libraries often gather and send one parameter at a time. Then rank 0 never holds the whole model, but its link still carries all of it.)
    """)
    return


@app.cell(hide_code=True)
def _():
    ask_busiest = lesson.predict(
        "From FSDP on 4 ranks to tensor parallel on 2. Rank 0, which gathers and scatters, sends how many times as much as the busiest rank by the plan?",
        "about twice",
        "about four times",
        "about eight times",
    )
    ask_busiest
    return (ask_busiest,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 3: what the busiest rank sends

    A tensor of `size` bytes lies in equal parts on `sources` trainer ranks. Each of `destinations` generator ranks wants an equal part of it, or,
    if `whole` is true, all of it. All ranks are different processes, so whatever a generator rank wants has to travel.
    Complete `busiest_sends`: return `(plan, scatter)`, the bytes that the busiest trainer rank sends to generators. With the plan all trainer ranks
    share the sending; else rank 0 sends everything.
    """)
    return


@app.function
def busiest_sends(size, sources, destinations, whole):
    """busiest_sends(1200, 3, 2, False) is (400, 1200)."""
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: busiest_sends,
        Solutions,
        level="core",
        minutes=3,
        hints=(
            "How much do all generator ranks want together?",
            "They want `size`, or `size * destinations` if `whole`. With the plan each trainer rank sends an equal share of that.",
        ),
    )
    return


@app.cell(hide_code=True)
def _(planner, policy):
    trainers = [{"FSDP": 4}, {"FSDP": 2}]
    generators = [{"TP": 2}, {"TP": 4}, {"copies": 2}]
    if policy.model.config.num_attention_heads % 4:
        generators.remove({"TP": 4})  # a rank gets whole heads
    plans = {}
    for trainer in trainers:
        for generator in generators:
            held, wanted = describe_on(policy, **trainer), describe_on(policy, **generator)
            plans[named(trainer), named(generator)] = plan_with(planner, held, wanted)
    return (plans,)


@app.cell(hide_code=True)
def _(ask_busiest, plans):
    _plan = plans["FSDP 4", "TP 2"]
    _from_0 = nb07b.minimum_bytes(_plan)
    _busiest = max(map(sum, _plan.traffic()))
    _times = _from_0 / _busiest
    lesson.reveal(
        ask_busiest,
        right=0 if _times < 2.9 else 1 if _times < 5.3 else 2,
        why=f"""
        {_times:.1f} times: rank 0 sends all that is wanted, {_from_0 / 1e6:.2f} MB, and with the plan the
        busiest rank sends {_busiest / 1e6:.2f} MB. {"The plan moves no more than that minimum" if _plan.bytes_moved == _from_0 else "The plan moves another number of bytes than that"}, and no trainer rank has to receive anything.
        The figure shows the reason: the trainer's ranks share the sending, so with the plan the busiest one sends less by about as many times as there are trainer ranks.

        When does a plan pay? When the transfer takes a share of a step that you notice, and rank 0 is what it waits for: large models, many ranks, slow links between the two sides. With
        a model of a gigabyte on one machine it does not. Choose other meshes below.
        """,
        shows=[
            lesson.figure(
                bars.grouped_bars(
                    {
                        f"{trainer} → {generator}": (
                            max(map(sum, found.traffic())),
                            nb07b.minimum_bytes(found),
                        )
                        for (trainer, generator), found in plans.items()
                    },
                    ("with the plan", "gather, then scatter"),
                    "What the busiest trainer rank sends",
                    "MB sent by the busiest trainer rank",
                    1e6,
                ),
                "What the busiest trainer rank sends, for every pair of meshes.",
            ),
            ReshardMap(
                {names: found.traffic() for names, found in plans.items()},
                sources="trainer",
                destinations="generator",
                axes=("Trainers hold", "Generators want"),
            ),
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## A real transfer

    Four processes: two trainer ranks with FSDP, two generator ranks with tensor parallelism, each side with a gloo process group of its own. The
    trainer takes a real step and publishes. Each generator rank reads its pieces, and nothing else, from both trainer ranks. The model is small: an
    embedding, four blocks of two matrices (`up` and `down`), and an output layer. With the biases these are 19 parameters: 10 matrices and 9 biases. `cut` (folded) shards it by PyTorch's own functions.
    """)
    return


@app.function(hide_code=True)
def cut(model, mesh):
    """FSDP along a mesh called dp, tensor parallelism along one called tp.

    `ColwiseParallel` is named after the columns of W in `x @ W`. torch stores W transposed, as `[out, in]`,
    so what it cuts are rows of the tensor: `Shard(0)`. An embedding is stored as `[vocabulary, width]`, so
    there `RowwiseParallel` cuts rows.
    """
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


@app.cell(hide_code=True)
def _():
    mo.md("""
    The notebook sends the plan of the whole model to all ranks, so no rank has to
    ask another one during a transfer. Versions must not mix, neither within a shard nor across the
    shards. So `fetch` fills only a **staging buffer**, and says which version it is. `pull_together` repeats it until *all*
    generator ranks hold the same version. Only then does each of them `install` it. An example, in which the trainer publishes in between:

    | when | rank 0 holds | rank 1 holds | then |
    |---|---|---|---|
    | all ranks `fetch` | version 4 | version 5 | not installed: it would be a torn model |
    | all ranks `fetch` again | version 5 | version 5 | all ranks `install` version 5 |

    `on_all(method)` calls a method on all ranks of a side, and waits for all of them.
    """)
    return


@app.function
async def move_a_version(trainer, generator, version):
    await on_all(trainer.step)
    await on_all(trainer.publish, version)
    await pull_together(
        partial(on_all, generator.fetch), partial(on_all, generator.install)
    )


@app.function(hide_code=True)
async def move_shards(config, pieces, one_more):
    """Move `config.steps` versions, and compare both sides after each. Returns what was found."""
    found = SimpleNamespace(equal=0, compared=0, losses=[])
    async with two_meshes(ranks=2) as (trainer, generator):
        held, wanted = await gather(
            on_all(trainer.join, cut, "dp", config.width, 0),
            on_all(generator.join, cut, "tp", config.width, 1),
        )
        found.plan = plan_with(pieces, held[0], wanted[0])
        offers = await on_all(trainer.offer, found.plan)
        found.read = await on_all(generator.subscribe, offers, found.plan)
        for version in range(1, config.steps + 1):
            await move_a_version(trainer, generator, version)
            theirs, ours = [(await on_all(side.whole))[0] for side in (trainer, generator)]
            found.compared += len(theirs)
            found.equal += sum(torch.equal(theirs[name], ours[name]) for name in theirs)
            found.losses.append(
                [(await on_all(side.loss))[0] for side in (trainer, generator)]
            )
            one_more()
    return found


@app.cell(hide_code=True)
def _():
    ask_losses = lesson.predict(
        "After each transfer both sides compute the loss of the same tokens: one with FSDP, one with tensor parallelism. How do the two numbers compare?",
        "equal in every bit, as the weights are",
        "equal to five digits or more, not in every bit",
        "different in the first digits",
    )
    start_transfer = lesson.start_button("Train, reshard, compare", seconds=15)
    mo.vstack([ask_losses, start_transfer])
    return ask_losses, start_transfer


@app.cell(hide_code=True)
async def _(config, planner, start_transfer):
    lesson.wait_for(start_transfer)
    with lesson.counting(config.steps, "versions") as _one_more:
        transfer = await move_shards(config, planner, _one_more)
    return (transfer,)


@app.cell(hide_code=True)
def _(ask_losses, transfer, whose):
    _plan, _read = transfer.plan, sum(transfer.read)
    _apart = max(abs(a - b) / max(a, b) for a, b in transfer.losses)
    _why = (
        "the two sides add up in different orders"
        if transfer.equal == transfer.compared
        else "the generators do not have the trainer's weights"
    )
    _losses = (
        f"The losses differ by at most {lesson.tiny(_apart)} of their size, which is the last digits of a float32: {_why}."
        if _apart
        else "So were the losses here. Nothing promises that: the two sides may add up in different orders."
    )
    _sent = " ".join(
        f"Trainer rank {rank} sent {' and '.join(f'{size / 1e6:.2f} MB' for size in row)} to the generator ranks."
        for rank, row in enumerate(_plan.traffic())
    )
    lesson.reveal(
        ask_losses,
        right=0 if _apart == 0 else 1 if _apart < 1e-5 else 2,
        why=f"""
        {len(_plan.moves)} parameters were compared after each of {len(transfer.losses)} steps, whole, as torch itself gathers them. Equal bit for bit: {transfer.equal} of these {transfer.compared}. {_losses}

        The pieces were planned by {whose}. Each version, {_read / 1e6:.2f} MB were read in all; the minimum is {nb07b.minimum_bytes(_plan) / 1e6:.2f} MB. {_sent}
        Why so unequal? All matrices but `down` are cut by rows on both sides, as in the lower half of the drawing: their shards go to the counterpart alone. Only what is cut by columns goes to both.
        """,
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.recap(
        3,
        "A shard is a box of the whole tensor, and may be empty. A transfer is the overlap of two boxes.",
        "A plan fetches each wanted element once. Copies on the trainer's side share the work, and all ranks follow the same plan.",
        "Gathering on one rank sends everything through one link. With a plan the trainer's ranks share the sending.",
        "Versions must mix neither within a shard nor across shards: fetch into staging buffers, agree, then install.",
    )
    return


@app.cell(hide_code=True)
def _(plans):
    lesson.headline(
        f"from FSDP 4 to TP 2 the busiest trainer rank sends {max(map(sum, plans['FSDP 4', 'TP 2'].traffic())) / 1e6:.2f} MB with a plan, and {nb07b.minimum_bytes(plans['FSDP 4', 'TP 2']) / 1e6:.2f} MB if it gathers and scatters."
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.links(__file__)
    return


@app.class_definition(hide_code=True)
class Solutions:
    """Check the exercises of this page, and solve them."""

    def check_overlap(overlap):
        nb07b.check_overlap(overlap, Solutions.overlap)

    def overlap(held, wanted):
        part = []
        for (first, end), (other_first, other_end) in zip(held, wanted, strict=True):
            part.append((max(first, other_first), min(end, other_end)))
            if part[-1][0] >= part[-1][1]:
                return None
        return tuple(part)

    def check_pieces(pieces):
        nb07b.check_pieces(pieces)

    def pieces(held, wanted, sent):
        holders = {}
        for rank, box in held.items():
            holders.setdefault(box, []).append(rank)
        found = []
        for box, ranks in holders.items():
            part = Solutions.overlap(box, wanted)
            if part:
                found.append((min(ranks, key=sent.get), part))
        return found

    def check_busiest_sends(busiest_sends):
        nb07b.check_busiest_sends(busiest_sends, Solutions.busiest_sends)

    def busiest_sends(size, sources, destinations, whole):
        wanted = size * destinations if whole else size
        return wanted / sources, wanted


if __name__ == "__main__":
    app.run()
