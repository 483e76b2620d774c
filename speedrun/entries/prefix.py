"""Like temperature.py, but each token is compared only with the samples that begin alike: what they have in common is
not its merit.
"""

from statistics import pstdev

from temperature import Temperature

from zorplex_rl.learning.advantages import by_prefix


class Prefix(Temperature):
    def advantages(self, group):
        """Compare each token's reward with the mean of the samples that begin alike."""
        rewards = [episode.scored.reward for episode in group]
        spread = pstdev(rewards) + 0.1
        scaled = [reward / spread for reward in rewards]
        return by_prefix(group, scaled)


def train(policy, tasks, seed):
    return Prefix(policy, tasks, seed).train()
