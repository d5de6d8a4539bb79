"""The command line: one file per command, one terminal that does all output."""
