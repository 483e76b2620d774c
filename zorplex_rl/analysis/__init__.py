"""What happened in a run, what would happen in another, and how fast one can be at best. Standard library only."""
