"""As rate.py, and at the end the logits' scale learns at a rate of its own: most late mistakes are drawn, not believed."""

import math

from zorplex_rl.learning.entry import Entry


class Temperature(Entry):
    learning_rate, warmup_steps, decay_steps, most_steps, enough = 5e-4, 3, 40, 40, 2.0
    sharpening, sharpen_from, first, second = 0.2, 32, 0.0, 0.0

    def update(self, optimizer, model, tokens, step):
        # The logits are linear in the gain of the last norm. So the gradient of log(scale) is Σ gain · gradient; Adam on it.
        gain = model.model.norm.weight
        slope = float((gain.detach() * gain.grad).sum()) / tokens
        self.first, self.second = 0.9 * self.first + 0.1 * slope, 0.95 * self.second + 0.05 * slope**2
        mean, square = self.first / (1 - 0.9 ** (step + 1)), self.second / (1 - 0.95 ** (step + 1))
        super().update(optimizer, model, tokens, step)
        if step >= self.sharpen_from:
            gain.data.mul_(math.exp(-self.sharpening * mean / (square**0.5 + 1e-12)))
