"""Planted answers for the exercise of notebook 05d."""


def the_path_alone(x, W, A, B, scale):
    return scale * x @ A.T @ B.T


def without_the_path(x, W, A, B, scale):
    return x @ W.T


def without_the_scale(x, W, A, B, scale):
    return x @ W.T + x @ A.T @ B.T


def scales_the_layer_too(x, W, A, B, scale):
    return scale * (x @ W.T + x @ A.T @ B.T)


def forgets_to_transpose(x, W, A, B, scale):
    return x @ W + scale * (x @ A) @ B


def forgets_to_transpose_b(x, W, A, B, scale):
    return x @ W.T + scale * (x @ A.T) @ B


def turns_x_round(x, W, A, B, scale):
    turned = x.permute(*reversed(range(x.ndim)))
    found = W @ turned + scale * B @ (A @ turned)
    return found.permute(*reversed(range(x.ndim)))


def counts_the_weights(shapes, rank):
    return sum(rows * columns for rows, columns in shapes)


def forgets_b(shapes, rank):
    return sum(rank * columns for _, columns in shapes)


def forgets_a(shapes, rank):
    return sum(rank * rows for rows, _ in shapes)


def forgets_the_rank(shapes, rank):
    return sum(rows + columns for rows, columns in shapes)


def counts_the_first_layer_alone(shapes, rank):
    return rank * sum(shapes[0])


WRONG = {
    "path_size": [
        counts_the_weights,
        forgets_b,
        forgets_a,
        forgets_the_rank,
        counts_the_first_layer_alone,
    ],
    "adapted": [
        the_path_alone,
        without_the_path,
        without_the_scale,
        scales_the_layer_too,
        forgets_to_transpose,
        forgets_to_transpose_b,
        turns_x_round,
    ],
}
RIGHT = {
    "path_size": [lambda shapes, rank: rank * sum(map(sum, shapes))],
    "adapted": [lambda x, W, A, B, scale: x @ (W + scale * B @ A).T],
}
