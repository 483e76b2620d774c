"""The distributed system: actors, loops that drive them, hosts, and what a run writes down."""
