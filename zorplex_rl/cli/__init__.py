"""The command line: one file a command, and what they share: flags, output, the log file, sentences
for failures."""
