"""The tools of emceepee, a module for each family."""
