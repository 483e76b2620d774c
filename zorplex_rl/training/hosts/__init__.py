"""The machines of a run: what ``--hosts`` asks for, how to reach it, which role lives where."""
