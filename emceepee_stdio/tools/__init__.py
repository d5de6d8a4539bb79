"""The tools: one family a module, one row each in `table`."""
