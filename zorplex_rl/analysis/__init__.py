"""What happened in a run, what would happen in another, and what it would cost. Standard library only."""
