"""Like rate.py, but near the end the scale of the logits has a learning rate of its own, because most late mistakes
come from the draw: the likeliest token is already right.
"""

import math

from rate import Rate


class Temperature(Rate):
    sharpening = 0.2
    sharpen_from = 32

    def __init__(self, policy, tasks, seed):
        super().__init__(policy, tasks, seed)
        # The logits are linear in the gain of the last norm, so its scale is theirs.
        self.gain = policy.model.base_model.norm.weight
        self.mean = 0.0
        self.square = 0.0

    def update_weights(self, step):
        """Take the optimizer's step, and at the end one of Adam on the logarithm of the scale."""
        # The gradient of log(scale) is Σ gain · gradient.
        gain = self.gain.detach()
        slope = float((gain * self.gain.grad).sum())
        self.mean = 0.9 * self.mean + 0.1 * slope
        self.square = 0.95 * self.square + 0.05 * slope**2
        super().update_weights(step)
        if step >= self.sharpen_from:
            steps = step + 1
            mean = self.mean / (1 - 0.9**steps)
            square = self.square / (1 - 0.95**steps)
            move = mean / (math.sqrt(square) + 1e-12)
            scale = math.exp(-self.sharpening * move)
            gain.mul_(scale)


def train(policy, tasks, seed):
    return Temperature(policy, tasks, seed).train()
