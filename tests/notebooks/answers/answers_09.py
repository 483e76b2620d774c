"""What learners write in notebook 09: plausible wrong answers, each named by what is wrong with it,
and unusual right ones."""

import math

import numpy as np
import torch

# The effective sample size.


def sample_size_takes_logarithms_for_ratios(log_ratios):
    return sum(log_ratios) ** 2 / (len(log_ratios) * sum(log**2 for log in log_ratios))


def sample_size_is_no_share(log_ratios):
    ratios = [math.exp(log) for log in log_ratios]
    return sum(ratios) ** 2 / sum(ratio**2 for ratio in ratios)


def sample_size_is_upside_down(log_ratios):
    ratios = [math.exp(log) for log in log_ratios]
    return len(ratios) * sum(ratio**2 for ratio in ratios) / sum(ratios) ** 2


def sample_size_squares_below_and_not_above(log_ratios):
    ratios = [math.exp(log) for log in log_ratios]
    return sum(ratio**2 for ratio in ratios) / (len(ratios) * sum(ratios) ** 2)


def sample_size_is_the_mean_ratio(log_ratios):
    return sum(math.exp(log) for log in log_ratios) / len(log_ratios)


def sample_size_with_arrays(log_ratios):
    ratios = np.exp(np.array(log_ratios))
    return ratios.mean() ** 2 / (ratios**2).mean()


def sample_size_with_tensors(log_ratios):
    weights = torch.softmax(torch.tensor(log_ratios, dtype=torch.float64), 0)
    return 1 / (len(weights) * weights.square().sum())


# The clipped loss.


def bounded(ratio, advantage):
    weight = advantage[:, None]
    return torch.minimum(ratio * weight, ratio.clamp(0.8, 1.2) * weight)


def clipped_forgets_the_minus(logp, start_logp, behaviour_logp, advantage, mask, tokens):
    return (bounded((logp - behaviour_logp).exp(), advantage) * mask).sum() / tokens


def clipped_is_detached(logp, start_logp, behaviour_logp, advantage, mask, tokens):
    return -(bounded((logp.detach() - behaviour_logp).exp(), advantage) * mask).sum() / tokens


def clipped_divides_by_the_mask(logp, start_logp, behaviour_logp, advantage, mask, tokens):
    return -(bounded((logp - behaviour_logp).exp(), advantage) * mask).sum() / mask.sum()


def clipped_ignores_the_mask(logp, start_logp, behaviour_logp, advantage, mask, tokens):
    return -bounded((logp - behaviour_logp).exp(), advantage).sum() / tokens


def clipped_is_a_mean_over_the_batch(logp, start_logp, behaviour_logp, advantage, mask, tokens):
    return -(bounded((logp - behaviour_logp).exp(), advantage) * mask).mean()


def clipped_around_the_start_of_the_step(logp, start_logp, behaviour_logp, advantage, mask, tokens):
    return -(bounded((logp - start_logp).exp(), advantage) * mask).sum() / tokens


def clipped_only_good_tokens(logp, start_logp, behaviour_logp, advantage, mask, tokens):
    ratio, weight = (logp - behaviour_logp).exp(), advantage[:, None]
    found = torch.where(weight > 0, bounded(ratio, advantage), ratio * weight)
    return -(found * mask).sum() / tokens


def clipped_without_the_minimum(logp, start_logp, behaviour_logp, advantage, mask, tokens):
    ratio = (logp - behaviour_logp).exp().clamp(0.8, 1.2)
    return -(ratio * advantage[:, None] * mask).sum() / tokens


def clipped_with_the_maximum(logp, start_logp, behaviour_logp, advantage, mask, tokens):
    ratio, weight = (logp - behaviour_logp).exp(), advantage[:, None]
    found = torch.maximum(ratio * weight, ratio.clamp(0.8, 1.2) * weight)
    return -(found * mask).sum() / tokens


def clipped_with_the_ratio_upside_down(logp, start_logp, behaviour_logp, advantage, mask, tokens):
    return -(bounded((behaviour_logp - logp).exp(), advantage) * mask).sum() / tokens


def clipped_without_exp(logp, start_logp, behaviour_logp, advantage, mask, tokens):
    return -(bounded(logp - behaviour_logp, advantage) * mask).sum() / tokens


def clipped_with_the_sign_of_the_advantage(
    logp, start_logp, behaviour_logp, advantage, mask, tokens
):
    return -(bounded((logp - behaviour_logp).exp(), advantage.sign()) * mask).sum() / tokens


def clipped_without_the_second_axis(logp, start_logp, behaviour_logp, advantage, mask, tokens):
    ratio = (logp - behaviour_logp).exp()
    found = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    return -(found * mask).sum() / tokens


def clipped_with_one_ratio_for_an_episode(
    logp, start_logp, behaviour_logp, advantage, mask, tokens
):
    mean = ((logp - behaviour_logp) * mask).sum(1) / mask.sum(1)
    return -(bounded(mean.exp()[:, None], advantage) * mask).sum() / tokens


def clipped_by_where(logp, start_logp, behaviour_logp, advantage, mask, tokens):
    weight = advantage.unsqueeze(1).expand_as(logp)
    ratio = torch.exp(logp) / torch.exp(behaviour_logp)
    stopped = ((weight > 0) & (ratio > 1.2)) | ((weight < 0) & (ratio < 0.8))
    bound = torch.where(weight > 0, 1.2, 0.8)
    return (torch.where(stopped, bound, ratio) * -weight * mask / tokens).sum()


def clipped_one_token_at_a_time(logp, start_logp, behaviour_logp, advantage, mask, tokens):
    total = torch.zeros(())
    for row in range(len(logp)):
        for column in range(logp.shape[1]):
            if mask[row, column]:
                ratio = (logp[row, column] - behaviour_logp[row, column]).exp()
                pair = [ratio * advantage[row], torch.clip(ratio, 0.8, 1.2) * advantage[row]]
                total = total - torch.stack(pair).min()
    return (total / tokens).reshape(())


def clipped_by_the_log_prob(logp, start_logp, behaviour_logp, advantage, mask, tokens):
    """Its value is another one, and its gradient the right one."""
    ratio, weight = (logp - behaviour_logp).exp().detach(), advantage[:, None]
    free = ~(((weight > 0) & (ratio > 1.2)) | ((weight < 0) & (ratio < 0.8)))
    return -(free * ratio * weight * logp * mask).sum() / tokens


# The corrected loss.


def corrected_forgets_the_minus(logp, start_logp, behaviour_logp, advantage, mask, tokens):
    weight = (start_logp - behaviour_logp).exp().clamp(max=2.0)
    return (weight * bounded((logp - start_logp).exp(), advantage) * mask).sum() / tokens


def corrected_without_the_weight(logp, start_logp, behaviour_logp, advantage, mask, tokens):
    return -(bounded((logp - start_logp).exp(), advantage) * mask).sum() / tokens


def corrected_around_mu(logp, start_logp, behaviour_logp, advantage, mask, tokens):
    weight = (start_logp - behaviour_logp).exp().clamp(max=2.0)
    return -(weight * bounded((logp - behaviour_logp).exp(), advantage) * mask).sum() / tokens


def corrected_is_the_clipped_loss(logp, start_logp, behaviour_logp, advantage, mask, tokens):
    return -(bounded((logp - behaviour_logp).exp(), advantage) * mask).sum() / tokens


def corrected_does_not_cut_the_weight(logp, start_logp, behaviour_logp, advantage, mask, tokens):
    weight = (start_logp - behaviour_logp).exp()
    return -(weight * bounded((logp - start_logp).exp(), advantage) * mask).sum() / tokens


def corrected_cuts_the_weight_below_too(logp, start_logp, behaviour_logp, advantage, mask, tokens):
    weight = (start_logp - behaviour_logp).exp().clamp(0.5, 2.0)
    return -(weight * bounded((logp - start_logp).exp(), advantage) * mask).sum() / tokens


def corrected_weights_by_the_policy_in_training(
    logp, start_logp, behaviour_logp, advantage, mask, tokens
):
    weight = (logp - behaviour_logp).detach().exp().clamp(max=2.0)
    return -(weight * bounded((logp - start_logp).exp(), advantage) * mask).sum() / tokens


def corrected_lets_a_gradient_through_the_weight(
    logp, start_logp, behaviour_logp, advantage, mask, tokens
):
    weight = (logp - behaviour_logp).exp().clamp(max=2.0)
    return -(weight * bounded((logp - start_logp).exp(), advantage) * mask).sum() / tokens


def corrected_clips_the_product(logp, start_logp, behaviour_logp, advantage, mask, tokens):
    weight = (start_logp - behaviour_logp).exp().clamp(max=2.0)
    return -(bounded(weight * (logp - start_logp).exp(), advantage) * mask).sum() / tokens


def corrected_ignores_the_mask(logp, start_logp, behaviour_logp, advantage, mask, tokens):
    weight = (start_logp - behaviour_logp).exp().clamp(max=2.0)
    return -(weight * bounded((logp - start_logp).exp(), advantage)).sum() / tokens


def corrected_with_the_weight_inside(logp, start_logp, behaviour_logp, advantage, mask, tokens):
    weight = torch.clamp(torch.exp(start_logp - behaviour_logp), max=2.0)
    ratio, reward = torch.exp(logp - start_logp), advantage.unsqueeze(-1)
    one, other = weight * ratio * reward, weight * torch.clip(ratio, 0.8, 1.2) * reward
    return (-torch.min(one, other) * mask / tokens).sum()


def corrected_by_the_log_prob(logp, start_logp, behaviour_logp, advantage, mask, tokens):
    weight = torch.minimum((start_logp - behaviour_logp).exp(), torch.tensor(2.0))
    ratio, reward = (logp - start_logp).exp().detach(), advantage[:, None]
    free = ~(((reward > 0) & (ratio > 1.2)) | ((reward < 0) & (ratio < 0.8)))
    return -(weight * free * ratio * reward * logp * mask).sum() / tokens


def _wrong(name, right):
    return [
        found
        for key, found in globals().items()
        if key.startswith(f"{name}_") and callable(found) and found not in right
    ]


RIGHT = {
    "sample_size": [sample_size_with_arrays, sample_size_with_tensors],
    "clipped": [clipped_by_where, clipped_one_token_at_a_time, clipped_by_the_log_prob],
    "corrected": [corrected_with_the_weight_inside, corrected_by_the_log_prob],
}
WRONG = {name: _wrong(name, right) for name, right in RIGHT.items()}
