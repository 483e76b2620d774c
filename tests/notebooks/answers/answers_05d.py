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


WRONG = {
    "adapted": [
        the_path_alone,
        without_the_path,
        without_the_scale,
        scales_the_layer_too,
        forgets_to_transpose,
        forgets_to_transpose_b,
    ],
}
RIGHT = {
    "adapted": [lambda x, W, A, B, scale: x @ (W + scale * B @ A).T],
}
