"""Measurements: what the promises cost, always as a ratio within one run."""
