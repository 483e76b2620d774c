"""A run on disk: its folder, its timeline, its figures."""
