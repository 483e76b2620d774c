"""What learners write in notebook 09: plausible wrong answers, each named by what is wrong with it,
and unusual right ones."""

import math

import torch


def ratio_of(logp, behaviour_logp):
    return (logp - behaviour_logp).exp()


# The clipped loss.


def clipped_forgets_the_minus(logp, behaviour_logp, advantage, mask, tokens):
    ratio, weight = ratio_of(logp, behaviour_logp), advantage[:, None]
    return (torch.minimum(ratio * weight, ratio.clamp(0.8, 1.2) * weight) * mask).sum() / tokens


def clipped_is_detached(logp, behaviour_logp, advantage, mask, tokens):
    ratio, weight = ratio_of(logp.detach(), behaviour_logp), advantage[:, None]
    return -(torch.minimum(ratio * weight, ratio.clamp(0.8, 1.2) * weight) * mask).sum() / tokens


def clipped_divides_by_the_mask_and_ignores_tokens(logp, behaviour_logp, advantage, mask, tokens):
    ratio, weight = ratio_of(logp, behaviour_logp), advantage[:, None]
    return (
        -(torch.minimum(ratio * weight, ratio.clamp(0.8, 1.2) * weight) * mask).sum() / mask.sum()
    )


def clipped_ignores_the_mask(logp, behaviour_logp, advantage, mask, tokens):
    ratio, weight = ratio_of(logp, behaviour_logp), advantage[:, None]
    return -torch.minimum(ratio * weight, ratio.clamp(0.8, 1.2) * weight).sum() / tokens


def clipped_is_a_mean_over_the_batch(logp, behaviour_logp, advantage, mask, tokens):
    ratio, weight = ratio_of(logp, behaviour_logp), advantage[:, None]
    return -(torch.minimum(ratio * weight, ratio.clamp(0.8, 1.2) * weight) * mask).mean()


def clipped_only_where_the_advantage_is_positive(logp, behaviour_logp, advantage, mask, tokens):
    ratio, weight = ratio_of(logp, behaviour_logp), advantage[:, None]
    bounded = torch.minimum(ratio * weight, ratio.clamp(0.8, 1.2) * weight)
    return -(torch.where(weight > 0, bounded, ratio * weight) * mask).sum() / tokens


def clipped_without_the_minimum(logp, behaviour_logp, advantage, mask, tokens):
    return (
        -(ratio_of(logp, behaviour_logp).clamp(0.8, 1.2) * advantage[:, None] * mask).sum() / tokens
    )


def clipped_with_the_maximum(logp, behaviour_logp, advantage, mask, tokens):
    ratio, weight = ratio_of(logp, behaviour_logp), advantage[:, None]
    return -(torch.maximum(ratio * weight, ratio.clamp(0.8, 1.2) * weight) * mask).sum() / tokens


def clipped_with_the_ratio_upside_down(logp, behaviour_logp, advantage, mask, tokens):
    ratio, weight = ratio_of(behaviour_logp, logp), advantage[:, None]
    return -(torch.minimum(ratio * weight, ratio.clamp(0.8, 1.2) * weight) * mask).sum() / tokens


def clipped_with_the_sign_of_the_advantage(logp, behaviour_logp, advantage, mask, tokens):
    ratio, weight = ratio_of(logp, behaviour_logp), advantage.sign()[:, None]
    return -(torch.minimum(ratio * weight, ratio.clamp(0.8, 1.2) * weight) * mask).sum() / tokens


def clipped_by_where(logp, behaviour_logp, advantage, mask, tokens):
    weight = advantage.unsqueeze(1).expand_as(logp)
    ratio = torch.exp(logp) / torch.exp(behaviour_logp)
    stopped = ((weight > 0) & (ratio > 1.2)) | ((weight < 0) & (ratio < 0.8))
    bound = torch.where(weight > 0, 1.2, 0.8)
    return (torch.where(stopped, bound, ratio) * -weight * mask / tokens).sum()


def clipped_one_token_at_a_time(logp, behaviour_logp, advantage, mask, tokens):
    total = torch.zeros(())
    for row in range(len(logp)):
        for column in range(logp.shape[1]):
            if mask[row, column]:
                ratio = (logp[row, column] - behaviour_logp[row, column]).exp()
                pair = torch.stack(
                    [ratio * advantage[row], torch.clip(ratio, 0.8, 1.2) * advantage[row]]
                )
                total = total - pair.min()
    return (total / tokens).reshape(())


# The masked loss.


def masked_forgets_the_minus(logp, behaviour_logp, advantage, mask, tokens):
    ratio = ratio_of(logp, behaviour_logp)
    return (ratio * advantage[:, None] * mask * (ratio >= 0.5) * (ratio <= 2.0)).sum() / tokens


def masked_with_the_bounds_of_clipping(logp, behaviour_logp, advantage, mask, tokens):
    ratio = ratio_of(logp, behaviour_logp)
    return -(ratio * advantage[:, None] * mask * (ratio >= 0.8) * (ratio <= 1.2)).sum() / tokens


def masked_by_clamping(logp, behaviour_logp, advantage, mask, tokens):
    return (
        -(ratio_of(logp, behaviour_logp).clamp(0.5, 2.0) * advantage[:, None] * mask).sum() / tokens
    )


def masked_divides_by_what_is_left(logp, behaviour_logp, advantage, mask, tokens):
    ratio = ratio_of(logp, behaviour_logp)
    trusted = mask * (ratio >= 0.5) * (ratio <= 2.0)
    return -(ratio * advantage[:, None] * trusted).sum() / trusted.sum().clamp(min=1)


def masked_ignores_the_mask(logp, behaviour_logp, advantage, mask, tokens):
    ratio = ratio_of(logp, behaviour_logp)
    return -(ratio * advantage[:, None] * (ratio >= 0.5) * (ratio <= 2.0)).sum() / tokens


def masked_drops_the_ratio(logp, behaviour_logp, advantage, mask, tokens):
    ratio = ratio_of(logp, behaviour_logp)
    return -(logp * advantage[:, None] * mask * (ratio >= 0.5) * (ratio <= 2.0)).sum() / tokens


def masked_is_detached(logp, behaviour_logp, advantage, mask, tokens):
    ratio = ratio_of(logp, behaviour_logp).detach()
    return -(ratio * advantage[:, None] * mask * (ratio >= 0.5) * (ratio <= 2.0)).sum() / tokens


def masked_by_indexing(logp, behaviour_logp, advantage, mask, tokens):
    ratio = ratio_of(logp, behaviour_logp)
    near = (mask == 1) & ((ratio - 1.25).abs() <= 0.75)
    return -(ratio[near] * advantage[:, None].expand_as(ratio)[near]).sum() / torch.tensor(tokens)


def masked_by_the_log_prob(logp, behaviour_logp, advantage, mask, tokens):
    ratio = ratio_of(logp, behaviour_logp).detach()
    return (
        -(ratio * logp * advantage[:, None] * mask * (ratio >= 0.5) * (ratio <= 2.0)).sum() / tokens
    )


def masked_by_where(logp, behaviour_logp, advantage, mask, tokens):
    apart = logp - behaviour_logp
    inside = apart.abs() <= math.log(2.0)
    return (
        torch.where(inside, apart.exp() * -advantage[:, None] * mask, torch.zeros_like(apart)).sum()
        / tokens
    )


# Which loss a run needs.


def share(logs, low=0.8, high=1.2):
    return sum(not low <= math.exp(log) <= high for log in logs) / len(logs)


def loss_for_ignores_the_fresh_batch(fresh, old):
    return "clipped" if share(old) > 0.01 else "plain"


def loss_for_ignores_the_old_batch(fresh, old):
    return "masked" if share(fresh) > 0.01 else "plain"


def loss_for_asks_the_old_batch_first(fresh, old):
    return "clipped" if share(old) > 0.01 else "masked" if share(fresh) > 0.01 else "plain"


def loss_for_takes_logarithms_for_ratios(fresh, old):
    def outside(logs):
        return sum(not 0.8 <= log <= 1.2 for log in logs) / len(logs)

    return "masked" if outside(fresh) > 0.01 else "clipped" if outside(old) > 0.01 else "plain"


def loss_for_bounds_the_logarithm(fresh, old):
    def outside(logs):
        return sum(abs(log) > 0.2 for log in logs) / len(logs)

    return "masked" if outside(fresh) > 0.01 else "clipped" if outside(old) > 0.01 else "plain"


def loss_for_counts_only_large_ratios(fresh, old):
    found = [share(logs, low=0.0) for logs in (fresh, old)]
    return "masked" if found[0] > 0.01 else "clipped" if found[1] > 0.01 else "plain"


def loss_for_by_a_mean_ratio(fresh, old):
    found = [abs(sum(map(math.exp, logs)) / len(logs) - 1) for logs in (fresh, old)]
    return "masked" if found[0] > 0.2 else "clipped" if found[1] > 0.2 else "plain"


def loss_for_with_tensors(fresh, old):
    far = [
        ((torch.tensor(logs).exp() - 1).abs() > 0.2).float().mean() > 0.0101
        for logs in (fresh, old)
    ]
    return "masked" if far[0] else "clipped" if far[1] else "plain"


def loss_for_in_logarithms(fresh, old):
    low, high = math.log(0.8), math.log(1.2)
    for logs, name in ((fresh, "masked"), (old, "clipped")):
        if 100 * sum(log < low or log > high for log in logs) > len(logs):
            return name
    return "plain"


def _wrong(name, right):
    return [
        found
        for key, found in globals().items()
        if key.startswith(f"{name}_") and callable(found) and found not in right
    ]


RIGHT = {
    "clipped": [clipped_by_where, clipped_one_token_at_a_time],
    "masked": [masked_by_indexing, masked_by_where, masked_by_clamping, masked_by_the_log_prob],
    "loss_for": [loss_for_with_tensors, loss_for_in_logarithms],
}
WRONG = {name: _wrong(name, right) for name, right in RIGHT.items()}
