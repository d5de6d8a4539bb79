"""Secrets in text and data: what they look like, and how they are hidden."""
