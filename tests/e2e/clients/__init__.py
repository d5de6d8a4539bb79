"""Clients of the proxy: a raw one for the tests, and one script for each third-party SDK."""
