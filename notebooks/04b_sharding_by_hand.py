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
    app_title="Sharding by hand: tensor parallel and FSDP",
    css_file="../zorplex_rl/course/lesson/lesson.css",
)

with app.setup(hide_code=True):
    import math
    from types import SimpleNamespace

    import marimo as mo
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, Partial
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )
    from torch.nn.utils import parameters_to_vector, vector_to_parameters

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
            "cut two layers so that a forward pass needs one all_reduce, and say why they are cut in this way",
            "write the two rules of the backward pass, and explain them",
            "write a training step of FSDP, and say what it saves and what it sends",
        ],
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Two ways to cut a model

    The model does not fit on one GPU, so its weights are cut. There are two ways.

    - **Tensor parallel** also cuts the *work*: every rank computes a part of each layer with its own weights, for the same data. A
      token is ready sooner, because several GPUs work on it. But they have to talk in each layer, so they should be in one machine.
    - **FSDP**, fully sharded data parallel, does the *whole* work on each rank, for data of its own. A rank keeps a share of the
      weights, and borrows the rest for a moment. That needs fewer, larger messages.

    In RL generators are often cut in the first way, trainers in the second. You write both by hand, and compare them with
    torch's. The collectives are those of notebook 04: all_gather, reduce_scatter, all_reduce.
    """)
    return


@app.cell(hide_code=True)
def settings():
    config = SimpleNamespace(
        ranks=2,
        seed=0,
        batch=64,  # examples of each rank
        width=256,  # of the two layers; between them four times as wide
        steps=3,  # of training
        rate=0.1,
    )
    return (config,)


@app.cell(hide_code=True)
def _(config):
    torch.manual_seed(config.seed)
    _wide = 4 * config.width
    model = nn.Sequential(
        nn.Linear(config.width, _wide), nn.ReLU(), nn.Linear(_wide, config.width)
    )
    return (model,)


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
        ranks = await keep_open.enter("04b", nb04.process_group("ranks", config.ranks))
    return (ranks,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Two matrices and their cut

    Take a block of two layers: `up` widens, ReLU sets negative numbers to 0, `down` narrows. As a formula it is
    *y = relu(x · A) · B*. Cut A in columns: a column makes one hidden number, so a rank with half of the columns makes
    half of the hidden numbers, all by itself. ReLU looks at each number alone. Cut B in rows: a rank needs only the
    hidden numbers that it has. What comes out is a summand of *y*.

    So between `x` and the sum no rank needs anything from the other. torch keeps each matrix transposed, and computes `x @ up.T`.
    With `mine` for the hidden numbers of a rank:

    | in books | in torch | of one rank |
    |---|---|---|
    | A, cut in columns: **column-parallel** | `up`, cut in rows | `up[mine]` |
    | B, cut in rows: row-parallel | `down`, cut in columns | `down[:, mine]` |
    """)
    return


@app.cell(hide_code=True)
def _():
    lesson.figure(
        drawing_of("two_matrices.svg"),
        "The forward pass on two ranks: columns, then rows. Before the product with B, each rank applies ReLU to its own h.",
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    Why not the other way round? Suppose that A is cut in rows. Then each rank has only a summand of every hidden number: the
    tensor before the ReLU is `Partial`. Now do the ReLUs of the summands add up to the ReLU of the sum?

    torch's own tensor with a placement is the DTensor of notebook 04. What does it do in this case? (`init_device_mesh`, below, names a
    group of ranks. A *device mesh* of torch has nothing to do with a mesh of Monarch.)
    """)
    return


@app.cell(hide_code=True)
def _():
    ask_partial = lesson.predict(
        "A DTensor is `Partial`, and you call `torch.relu` on it. What does torch do?",
        "it applies ReLU to each summand, and the result is wrong",
        "it raises an error",
        "it adds the summands up first, which costs a message",
    )
    ask_partial
    return (ask_partial,)


@app.function
def relu_of_partial(summands):
    """Apply ReLU to a DTensor that is `Partial`. Returns the result,
    and the bytes that this rank has sent, which `counted` counts.
    """
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    whole = DTensor.from_local(summands[dist.get_rank()], mesh, [Partial()])
    result, sent = counted(torch.relu, whole)
    return result.full_tensor(), sent


@app.cell(hide_code=True)
async def _(ask_partial, config, ranks):
    torch.manual_seed(config.seed)
    _summands = [torch.randn(config.batch, config.width) for _ in range(config.ranks)]
    _right = torch.relu(sum(_summands))
    _found, relu_sent = (await on_all(ranks, relu_of_partial, _summands))[0]
    _is_right = torch.equal(_found, _right)
    lesson.reveal(
        ask_partial,
        right=2 if _is_right else 0,
        why=f"""
        The result is {"right" if _is_right else "*not* right"}, and each rank sent {relu_sent:,} bytes for it. An all_reduce of this tensor costs {2 * (config.ranks - 1) / config.ranks * _right.nbytes:,.0f} by the formula of notebook 04; the rest are headers, and the barrier that ends the count. ReLU of each
        summand would have been wrong: relu(3 − 2) is 1, but relu(3) + relu(−2) is 3.

        A DTensor changes its placement by itself when an operation needs that. It is convenient, and a
        trap: a collective hides in a line that looks like arithmetic. Columns first, then rows: so no sum stands before the ReLU.
        """,
    )
    return (relu_sent,)


@app.cell(hide_code=True)
def _():
    mo.md("""
    ### Exercise 1: the forward pass

    Complete `two_layers`, which runs on *every* rank: `relu(x @ up.T + up_bias)`, and then `@
    down.T + down_bias`. Compute only this rank's hidden numbers: `math.ceil(wide / ranks)` of them, and as in `cut` of notebook 04 the last ranks get
    less, or nothing. `add_up(tensor)` is the one collective: it returns the sum over the ranks. Call it exactly once.

    Add `down_bias` after `add_up`, outside the sum. A share of it inside the sum would give the same output. But in the next
    section every rank needs the whole gradient of `down_bias`.
    """)
    return


@app.function
def two_layers(x, up, up_bias, down, down_bias, rank, ranks, add_up):
    """Return the output of both layers, the same on all ranks.

    x [batch, narrow], up [wide, narrow], up_bias [wide],
    down [narrow, wide], down_bias [narrow]

    With wide 5 on 2 ranks, rank 0 computes the first 3 of the hidden
    numbers, rank 1 the other 2.
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: two_layers,
        Solutions,
        level="core",
        minutes=8,
        lines=5,
        hints=(
            "Which rows of `up` make the hidden numbers of this rank, and which columns of `down` read "
            "them?",
            "`up[mine]`, `up_bias[mine]` and `down[:, mine]` for one slice `mine`; ReLU between; `add_up` of "
            "the product; then `+ down_bias`.",
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## The way back

    Training needs gradients, and autograd knows nothing of other processes. So you have to say where a backward pass needs a message.
    """)
    return


@app.cell(hide_code=True)
def _():
    ask_talks = lesson.predict(
        "Forward *and* backward through both layers, with the gradients of all weights and of `x`: how many all_reduces does that take?",
        "1: only the sum at the end",
        "2: one forward, one backward",
        "4: one for each layer in each direction",
    )
    ask_talks
    return (ask_talks,)


@app.cell(hide_code=True)
async def _(ask_talks, config, model, ranks):
    lesson.needs(lambda: ranks)
    _layers, whose_layers = exercise.running(lambda: two_layers, Solutions)
    _back, whose_back = exercise.running(lambda: way_back, Solutions)
    _x = torch.randn(config.batch, config.width)
    _tensors = [_x, *(weight.detach() for weight in model.parameters())]
    _answers = await on_all(ranks, counted, by_hand, _layers, _back, *_tensors)
    _library = (await on_all(ranks, by_library, model, _x))[0]
    # Each rank has gradients for its own part of up, up_bias and down, and zeros elsewhere.
    _hand, parallel_sent = _answers[0]
    for _place in (2, 3, 4):
        _hand[_place] = sum(tensors[_place] for tensors, _ in _answers)
    parallel_apart = max(
        float((ours - theirs).abs().max() / theirs.abs().max())
        for ours, theirs in zip(_hand, _library, strict=True)
    )
    one_sum = 2 * (config.ranks - 1) / config.ranks * _x.nbytes
    lesson.reveal(
        ask_talks,
        right={1: 0, 2: 1, 4: 2}.get(round(parallel_sent / one_sum), []),
        why=f"""
        Each rank sent {parallel_sent:,} bytes. An all_reduce of the output costs {one_sum:,.0f} by the formula of notebook 04, so there were
        {round(parallel_sent / one_sum)}. The gradients of the weights need no message: each rank has what it needs for its own part.
        """,
    )
    return one_sum, parallel_apart, parallel_sent, whose_back, whose_layers


@app.cell(hide_code=True)
def _():
    mo.md("""
    Where do they come from? Two places in the forward pass touch more than one rank: the sum at its end, and `x` at its
    beginning. Each needs a rule. Write *dL/dy* for the gradient of the loss *L* with respect to *y*.

    *The sum at the end*, *y = y₀ + y₁*: after the all_reduce both ranks hold the same *y*, so both compute the same *L*, and the same
    *dL/dy*. That is one loss, computed twice. And if *y₀* grows by a little, *y* grows by as much.

    *The x at the beginning*, *h₀ = x · A₀* and *h₁ = x · A₁*: if *x* changes, the loss changes through *h₀* on rank 0, and
    through *h₁* on rank 1. Each rank knows only its own part of *dL/dx*.

    ### Exercise 2: two rules

    Complete `way_back`. What does a rank pass on at each of the two places?
    """)
    return


@app.function
def way_back(place, gradient, add_up):
    """Return the gradient that this rank passes on.

    At place "sum", `gradient` is dL/dy. Return dL/dy of this rank's
    own summand.
    At place "x", `gradient` is this rank's part of dL/dx. Return all
    of dL/dx.

    `add_up(tensor)` returns the sum over all ranks. Call it only where
    it is needed.
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: way_back,
        Solutions,
        level="warm-up",
        minutes=4,
        lines=3,
        hints=(
            "The prediction above has one all_reduce on the way back. At which place do the ranks know different things?",
            'At "sum" all ranks have the same, and it is right: return it. At "x" each rank has a part.',
        ),
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    In torch a rule of your own is a class with a `forward` and a `backward`. What `forward` puts into `context`, `backward` finds there. `backward` returns a gradient for each argument of `forward`: `None` where none is needed. `by_hand` runs your layers with your
    rules, and `by_library` runs torch's.
    """)
    return


@app.function
def add_up(tensor):
    whole = tensor.clone()
    dist.all_reduce(whole)
    return whole


@app.class_definition
class Across(torch.autograd.Function):
    """A place where the forward pass touches all ranks."""

    @staticmethod
    def forward(context, tensor, place, way_back):
        context.rule = place, way_back
        return add_up(tensor) if place == "sum" else tensor

    @staticmethod
    def backward(context, gradient):
        place, way_back = context.rule
        return way_back(place, gradient, add_up), None, None


@app.function
def by_hand(two_layers, way_back, x, *weights):
    """Run forward and backward on this rank; the output, and all gradients."""
    x = x.clone().requires_grad_()
    weights = [weight.clone().requires_grad_() for weight in weights]
    rank, ranks = dist.get_rank(), dist.get_world_size()
    x_in = Across.apply(x, "x", way_back)
    y = two_layers(x_in, *weights, rank, ranks, lambda y: Across.apply(y, "sum", way_back))
    y.square().mean().backward()
    return [y.detach(), x.grad, *(weight.grad for weight in weights)]


@app.function
def by_library(model, x):
    """The same by torch: write the model as usual, and name the style
    of each layer.

    `model` is `nn.Sequential(up, ReLU, down)`, so layer "0" is `up`
    and layer "2" is `down`.
    `full_tensor` gathers the shares of a DTensor.
    """
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    x.requires_grad_()
    y = model(x)
    y.square().mean().backward()
    return [y.detach(), x.grad, *(p.grad.full_tensor() for p in model.parameters())]


@app.cell(hide_code=True)
def _(parallel_apart, whose_back, whose_layers):
    lesson.md(f"""
    Both have run, `by_hand` with {whose_layers} and {whose_back}. Output and gradients differ by {lesson.tiny(parallel_apart)} of the largest number at most.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## FSDP: keep a share, borrow the rest

    In data parallel training (DDP, notebook 02) every rank keeps the whole model and the whole state of the optimizer. With FSDP it
    keeps a share of both. A step has three parts:

    1. all_gather the weights, and compute the gradient on this rank's own data; then forget what was borrowed;
    2. reduce_scatter the gradients: each rank gets the sum for its share, and nothing else;
    3. update the share. Nobody else has it, so nobody else must be told.

    Ours gathers all layers at once, which is simplest; for that moment the model and its gradient are whole. Real FSDP gathers
    one layer at a time, so that never more than about one layer is whole.

    All weights are laid out in one flat tensor first. torch's all_gather wants shares of equal size, so that tensor ends with
    zeros if `ranks` does not divide its length.

    ### Exercise 3: the step

    Complete `fsdp_step`. It runs on every rank, and is plain gradient descent. The loss of all is the *mean* of the ranks' losses.
    """)
    return


@app.function
def fsdp_step(share, gradient_of, all_gather, reduce_scatter, ranks, rate):
    """Take one step. Return this rank's new share of the weights.

    `all_gather(share)` returns all weights, `gradient_of(weights)` the
    gradient of this rank's own loss, and `reduce_scatter(gradient)` the
    *sum* of all ranks' gradients, for this rank's share.
    """
    ...


@app.cell(hide_code=True)
def _():
    exercise.feedback(
        lambda: fsdp_step,
        Solutions,
        level="stretch",
        minutes=6,
        lines=4,
        hints=(
            "Which of the four things that you are given needs the whole model?",
            "Gather, compute, scatter. What comes back is a sum over the ranks: divide it, multiply it by `rate`, and subtract. "
            "(Of the numbers in a failed check: a rank's gradient is its slope times `weights - weights[0]`.)",
        ),
    )
    return


@app.function(hide_code=True)
def loss_of(model, number, config):
    """The loss of this rank in step `number`: each rank has examples of its own."""
    torch.manual_seed(1000 * number + dist.get_rank())
    x = torch.randn(config.batch, config.width)
    return nn.functional.mse_loss(model(x), x.sin())


@app.function(hide_code=True)
def fsdp_by_hand(config, model, fsdp_step):
    """Train some steps; this rank's share, and the bytes of the last step."""
    ranks = dist.get_world_size()
    flat = parameters_to_vector(model.parameters()).detach()
    padded = nn.functional.pad(flat, (0, -len(flat) % ranks))
    # A copy: a slice would keep the whole tensor in memory, and nothing would be saved.
    share = padded.chunk(ranks)[dist.get_rank()].clone()

    def all_gather(share):
        whole = torch.empty(ranks * len(share))
        dist.all_gather_single(whole, share)
        return whole

    def reduce_scatter(gradient):
        mine = torch.empty(len(gradient) // ranks)
        dist.reduce_scatter_single(mine, gradient)
        return mine

    for number in range(config.steps):

        def gradient_of(weights, number=number):
            vector_to_parameters(weights[: len(flat)], model.parameters())
            loss = loss_of(model, number, config)
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            padding = (0, len(weights) - len(flat))
            return nn.functional.pad(parameters_to_vector(gradients), padding)

        share, sent = counted(
            fsdp_step, share, gradient_of, all_gather, reduce_scatter, ranks, config.rate
        )
    return share, sent


@app.function(hide_code=True)
def fsdp_by_torch(config, model):
    """Train the same steps with `fully_shard`; all weights, and the bytes of the last step."""
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    # Else torch keeps the weights of a model's outermost part until the backward pass.
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    optimizer = torch.optim.SGD(model.parameters(), config.rate)

    def step(number):
        loss_of(model, number, config).backward()
        optimizer.step()
        optimizer.zero_grad()

    for number in range(config.steps):
        _, sent = counted(step, number)
    weights = [weight.full_tensor() for weight in model.parameters()]
    return parameters_to_vector(weights).detach(), sent


@app.cell(hide_code=True)
def _():
    ask_fsdp = lesson.predict(
        "DDP sends one all_reduce of all gradients in a step. By the formulas, what does your FSDP step send, compared with that?",
        "half as much",
        "the same",
        "1.5 times as much",
        "twice as much",
    )
    ask_fsdp
    return (ask_fsdp,)


@app.cell(hide_code=True)
async def _(config, model, ranks):
    lesson.needs(lambda: ranks)
    _step, whose_step = exercise.running(lambda: fsdp_step, Solutions)
    _hand = await on_all(ranks, fsdp_by_hand, config, model, _step)
    _library, _sent = (await on_all(ranks, fsdp_by_torch, config, model))[0]
    weights = len(_library)
    kept = _hand[0][0].nbytes
    _shares = torch.cat([share for share, _ in _hand])
    fsdp_apart = float((_shares[:weights] - _library).abs().max() / _library.abs().max())
    # DDP's message: one all_reduce of a tensor as long as all gradients.
    _ddp_sent = (await on_all(ranks, counted, add_up, _library))[0][1]
    # A pass round the ring; FSDP gathers and scatters, an all_reduce is both, and torch gathers twice.
    _pass = (config.ranks - 1) / config.ranks * _library.nbytes
    fsdp = {
        "DDP's all_reduce": (2 * _pass, _ddp_sent),
        "FSDP by hand": (2 * _pass, _hand[0][1]),
        "fully_shard": (3 * _pass, _sent),
    }
    return fsdp, fsdp_apart, kept, weights, whose_step


@app.cell(hide_code=True)
def _(ask_fsdp, config, fsdp, fsdp_apart, kept, weights, whose_step):
    (_ddp, _), (_hand, _sent), (_library, _) = fsdp.values()
    lesson.reveal(
        ask_fsdp,
        right=round(2 * _hand / _ddp) - 1,
        why=f"""
        By formula {_hand / 1e6:.2f} MB, {"the same as" if _hand == _ddp else f"{_hand / _ddp:g} times as much as"} DDP. An all_reduce *is* a reduce_scatter and an all_gather, and FSDP puts its update between the two.
        {f"By hand {_sent / 1e6:.2f} MB were sent, because gloo's reduce_scatter sends as much as an all_reduce, as notebook 04 measured." if _sent > 1.2 * _hand else ""}
        Between two steps a rank keeps {kept / 1e6:.2f} MB of weights instead of {4 * weights / 1e6:.2f} MB, and of an optimizer's state as small a part.

        `fully_shard` gathers twice here, because it forgets the weights between forward and backward: {_library / _ddp:g} times, by the formula.
        We call it once, for the whole model; usually it is called for each layer. After
        {config.steps} steps both have the same weights, up to {lesson.tiny(fsdp_apart)} of the largest.
        """,
        shows=[
            lesson.figure(
                nb04.sent_chart(fsdp),
                f"A step of {weights:,} parameters. By hand with {whose_step}.",
            ),
        ],
    )
    return


@app.cell(hide_code=True)
async def _(fsdp, parallel_sent, relu_sent):
    lesson.needs(lambda: (fsdp, parallel_sent, relu_sent))
    await keep_open.done("04b")
    return


@app.cell(hide_code=True)
def _():
    lesson.recap(
        3,
        "Tensor parallel cuts the weights, and the work on them. FSDP cuts the weights only, and does the whole work with borrowed ones.",
        "Columns, then rows: two layers need one all_reduce forward and one backward, and give the same numbers as torch.",
        "A sum passes its gradient on unchanged; what was used on every rank gets the sum of its gradients.",
        "FSDP keeps a share and borrows the rest. It sends by formula what data parallelism sends; gathering twice makes it 1.5 times as much.",
    )
    return


@app.cell(hide_code=True)
def _(config, kept, weights):
    lesson.headline(
        f"between two steps of FSDP by hand each of {config.ranks} ranks kept {kept / 1e6:.2f} MB of weights instead of {4 * weights / 1e6:.2f} MB."
    )
    return


@app.cell(hide_code=True)
def _():
    lesson.links(__file__, machine=True)
    return


@app.class_definition(hide_code=True)
class Solutions:
    """Check the exercises of this page, and solve them."""

    def check_two_layers(two_layers):
        whole = nb04.whole_layers
        exercise.agree(
            nb04.on_ranks(two_layers),
            nb04.on_ranks(Solutions.two_layers),
            nb04.draw_layers,
            mistakes={
                "the last hidden numbers are lost where `ranks` does not divide them: round up": lambda *given: (
                    whole(*given, kept=len(given[1]) // given[-1] * given[-1])
                ),
                "`down_bias` is missing": lambda *given: whole(*given[:4], 0),
                "there is no ReLU between the layers": lambda *given: whole(
                    *given, activation=torch.clone
                ),
            },
            gradients=True,
            tolerance=1e-4,
        )

    def two_layers(x, up, up_bias, down, down_bias, rank, ranks, add_up):
        size = math.ceil(len(up) / ranks)
        mine = slice(rank * size, (rank + 1) * size)
        hidden = torch.relu(x @ up[mine].T + up_bias[mine])
        summand = hidden @ down[:, mine].T
        return add_up(summand) + down_bias

    def check_way_back(way_back):
        exercise.agree(
            nb04.back_on_ranks(way_back),
            nb04.back_on_ranks(Solutions.way_back),
            nb04.draw_way_back,
            mistakes={
                "each rank knows only its own part of dL/dx: add the parts up": lambda place, gradients: (
                    gradients
                ),
            },
        )

    def way_back(place, gradient, add_up):
        if place == "x":
            return add_up(gradient)
        return gradient

    def check_fsdp_step(fsdp_step):
        right = nb04.as_ranks(Solutions.fsdp_step)
        exercise.agree(
            nb04.as_ranks(fsdp_step),
            right,
            nb04.draw_step,
            mistakes={
                "`reduce_scatter` returns a sum, and the loss is a mean: divide by `ranks`": lambda shares, slopes, rate: (
                    right(shares, slopes, rate * len(shares))
                ),
                "the step goes up the slope: subtract": lambda shares, slopes, rate: right(
                    shares, slopes, -rate
                ),
                "the step is taken without `rate`": lambda shares, slopes, rate: right(
                    shares, slopes, 1
                ),
            },
        )

    def fsdp_step(share, gradient_of, all_gather, reduce_scatter, ranks, rate):
        weights = all_gather(share)
        gradient = gradient_of(weights)
        mine = reduce_scatter(gradient)
        return share - rate * mine / ranks


if __name__ == "__main__":
    app.run()
