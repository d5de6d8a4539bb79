"""The command line: a module for each command or family, and one terminal for all output."""
