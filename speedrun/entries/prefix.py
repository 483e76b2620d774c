"""As temperature.py, and a token is compared with the samples that are the same up to it: who shares a beginning shares its luck."""

import math
from statistics import pstdev

from zorplex_rl.learning.entry import Entry


class Prefix(Entry):
    learning_rate, warmup_steps, decay_steps, most_steps, enough = 5e-4, 3, 40, 40, 2.0
    sharpening, sharpen_from, first, second = 0.2, 32, 0.0, 0.0

    def advantages(self, group):
        # Reward minus the mean reward of the *others* that share the prefix: unbiased, and 0 wherever no sample turns off.
        rewards = [episode.scored.reward for episode in group]
        spread, baseline = pstdev(rewards) + 0.1, list(rewards)
        found = [[0.0] * len(episode.token_ids) for episode in group]
        together, at = [list(range(len(group)))], 0
        while together:
            next_together = []
            for rows in together:
                branches = {}
                for row in rows:
                    if len(rows) > 1:
                        baseline[row] = (sum(rewards[other] for other in rows) - rewards[row]) / (len(rows) - 1)
                    if at < len(found[row]):
                        found[row][at] = (rewards[row] - baseline[row]) / spread
                        branches.setdefault(group[row].token_ids[at], []).append(row)
                next_together += branches.values()
            together, at = next_together, at + 1
        return found

    def update(self, optimizer, model, tokens, step):
        # The logits are linear in the gain of the last norm. So the gradient of log(scale) is Σ gain · gradient; Adam on it.
        gain = model.model.norm.weight
        slope = float((gain.detach() * gain.grad).sum()) / tokens
        self.first, self.second = 0.9 * self.first + 0.1 * slope, 0.95 * self.second + 0.05 * slope**2
        mean, square = self.first / (1 - 0.9 ** (step + 1)), self.second / (1 - 0.95 ** (step + 1))
        super().update(optimizer, model, tokens, step)
        if step >= self.sharpen_from:
            gain.data.mul_(math.exp(-self.sharpening * mean / (square**0.5 + 1e-12)))
