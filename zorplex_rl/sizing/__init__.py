"""What a run takes in memory and time: computed before, and measured in a real process."""
