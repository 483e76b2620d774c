"""The command line: one file a command, and what they share: flags, output, log, failures."""
