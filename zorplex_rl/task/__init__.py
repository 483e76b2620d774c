"""What is to be learned: the Zorplex tasks, their parser, their rewards, and the record of one attempt. Standard library only."""
