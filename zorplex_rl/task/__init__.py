"""The Zorplex tasks, their parser, rewards, and record of an episode. Standard library only."""
