"""Answers that learners give to the exercises of notebook 02."""

from __future__ import annotations

import heapq

import torch
import torch.nn.functional as F


def _backward(model, optimizer, mine, reduction="mean", divisor=1):
    inputs, targets = mine
    optimizer.zero_grad()
    loss = F.mse_loss(model(inputs), targets, reduction=reduction) / divisor
    loss.backward()
    return loss


def _add_up_all(model, add_up, factor=1.0):
    for parameter in model.parameters():
        parameter.grad = add_up(parameter.grad) * factor


def mean_of_means(model, optimizer, mine, total_examples, add_up):
    loss = _backward(model, optimizer, mine)
    _add_up_all(model, add_up, 0.5)
    optimizer.step()
    return add_up(loss).item() / 2


def sum_of_means(model, optimizer, mine, total_examples, add_up):
    loss = _backward(model, optimizer, mine)
    _add_up_all(model, add_up)
    optimizer.step()
    return add_up(loss).item()


def weighs_a_mean_of_nothing(model, optimizer, mine, total_examples, add_up):
    loss = _backward(
        model, optimizer, mine, divisor=total_examples / len(mine[1]) if len(mine[1]) else 1
    )
    _add_up_all(model, add_up)
    optimizer.step()
    return add_up(loss).item()


def adds_up_the_loss(model, optimizer, mine, total_examples, add_up):
    inputs, targets = mine
    optimizer.zero_grad()
    loss = add_up(F.mse_loss(model(inputs), targets, reduction="sum")) / total_examples
    loss.backward()
    optimizer.step()
    return loss.item()


def its_own_part_only(model, optimizer, mine, total_examples, add_up):
    loss = _backward(model, optimizer, mine)
    optimizer.step()
    return loss.item()


def sums_without_dividing(model, optimizer, mine, total_examples, add_up):
    loss = _backward(model, optimizer, mine, "sum")
    _add_up_all(model, add_up)
    optimizer.step()
    return add_up(loss).item() / total_examples


def keeps_old_gradients(model, optimizer, mine, total_examples, add_up):
    inputs, targets = mine
    loss = F.mse_loss(model(inputs), targets, reduction="sum") / total_examples
    loss.backward()
    _add_up_all(model, add_up)
    optimizer.step()
    return add_up(loss).item()


def never_steps(model, optimizer, mine, total_examples, add_up):
    loss = _backward(model, optimizer, mine, "sum", total_examples)
    _add_up_all(model, add_up)
    return add_up(loss).item()


def stays_away_without_examples(model, optimizer, mine, total_examples, add_up):
    if not len(mine[1]):
        return 0.0
    loss = _backward(model, optimizer, mine, "sum", total_examples)
    _add_up_all(model, add_up)
    optimizer.step()
    return add_up(loss).item()


def one_message(model, optimizer, mine, total_examples, add_up):
    loss = _backward(model, optimizer, mine, "sum", total_examples)
    parameters = list(model.parameters())
    parts = [parameter.grad.flatten() for parameter in parameters]
    *total, error = add_up(torch.cat([*parts, loss.detach()[None]])).split([*map(len, parts), 1])
    for parameter, part in zip(parameters, total, strict=True):
        parameter.grad.copy_(part.view_as(parameter))
    optimizer.step()
    return error


def weighs_and_guards(model, optimizer, mine, total_examples, add_up):
    inputs, targets = mine
    optimizer.zero_grad(set_to_none=False)
    squares = torch.zeros(())
    if len(targets):
        squares = F.mse_loss(model(inputs), targets) * len(targets)
        squares.backward()
    for parameter in model.parameters():
        own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        parameter.grad = add_up(own) / total_examples
    optimizer.step()
    return float(add_up(squares)) / total_examples


def any_shape(old, new):
    return {name: old.get(name, tensor).clone() for name, tensor in new.items()}


def all_of_the_old(old, new):
    return {name: tensor.clone() for name, tensor in (new | old).items()}


def only_the_new(old, new):
    return {name: tensor.clone() for name, tensor in new.items()}


def what_fits_only(old, new):
    return {n: old[n].clone() for n, t in new.items() if n in old and old[n].shape == t.shape}


def without_clones(old, new):
    return {n: old[n] if n in old and old[n].shape == t.shape else t for n, t in new.items()}


def writes_into_the_new(old, new):
    for name, tensor in new.items():
        if name in old and old[name].shape == tensor.shape:
            tensor.copy_(old[name])
    return {name: tensor.clone() for name, tensor in new.items()}


def copies_and_writes(old, new):
    handed = {name: tensor.clone() for name, tensor in new.items()}
    for name in old.keys() & new.keys():
        if list(old[name].size()) == list(new[name].size()):
            handed[name].copy_(old[name])
    return handed


def adds_zero(old, new):
    return {n: (old[n] if n in old and old[n].shape == t.shape else t) + 0 for n, t in new.items()}


def rank_after_rank(by_rank):
    return [(when, rank, text) for rank, lines in by_rank.items() for when, text in lines]


def as_the_dict_has_the_ranks(by_rank):
    return sorted(rank_after_rank(by_rank), key=lambda line: line[0])


def rank_first(by_rank):
    return sorted((rank, when, text) for rank, lines in by_rank.items() for when, text in lines)


def text_before_rank(by_rank):
    return [
        (when, rank, text)
        for when, text, rank in sorted((w, t, r) for r in by_rank for w, t in by_rank[r])
    ]


def without_the_rank(by_rank):
    return sorted(line for lines in by_rank.values() for line in lines)


def latest_first(by_rank):
    return sorted(rank_after_rank(by_rank), reverse=True)


def one_line_of_each(by_rank):
    return sorted((*lines[0][:1], rank, lines[0][1]) for rank, lines in by_rank.items() if lines)


def merged_as_a_heap(by_rank):
    named = [
        [(when, rank, text) for when, text in lines] for rank, lines in sorted(by_rank.items())
    ]
    return list(heapq.merge(*named))


def by_a_key(by_rank):
    return tuple(sorted(map(list, rank_after_rank(by_rank)), key=lambda line: line[:2]))


WRONG = {
    "ddp_step": [
        mean_of_means,
        sum_of_means,
        weighs_a_mean_of_nothing,
        adds_up_the_loss,
        its_own_part_only,
        sums_without_dividing,
        keeps_old_gradients,
        never_steps,
        stays_away_without_examples,
    ],
    "hand_over": [
        any_shape,
        all_of_the_old,
        only_the_new,
        what_fits_only,
        without_clones,
        writes_into_the_new,
    ],
    "merge_logs": [
        rank_after_rank,
        as_the_dict_has_the_ranks,
        rank_first,
        text_before_rank,
        without_the_rank,
        latest_first,
        one_line_of_each,
    ],
}
RIGHT = {
    "ddp_step": [one_message, weighs_and_guards],
    "hand_over": [copies_and_writes, adds_zero],
    "merge_logs": [merged_as_a_heap, by_a_key],
}
