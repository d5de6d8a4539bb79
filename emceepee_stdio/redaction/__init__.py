"""Redaction: what secrets look like, and hiding them in text and data."""
