"""Training: advantages, losses, the learner that takes steps, the replay buffer that bounds lag."""
