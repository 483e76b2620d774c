"""What a run takes in memory and time, computed before it is started, and measured in a real
process."""
