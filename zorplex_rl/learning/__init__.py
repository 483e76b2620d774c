"""How the policy improves: advantages and losses, the learner that takes steps, and the buffer that bounds staleness."""
