"""Training: advantages and losses, the learner that takes steps, and the replay buffer that bounds
staleness."""
