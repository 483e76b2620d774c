"""The Zorplex tasks, their parser, their rewards, and the record of one episode. Needs only the
standard library."""
