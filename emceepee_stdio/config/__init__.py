"""The configuration: the servers, and the settings of the proxy.

Owns the file's keys, defaults, bounds and spellings. A mistake in one entry costs that entry, a
mistake in one setting falls back to its default; neither ever shows a value that may be a secret.
"""
