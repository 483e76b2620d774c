"""The machines of a run: what ``--hosts`` asks for, how they are reached, and which role lives
where."""
