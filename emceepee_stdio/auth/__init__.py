"""Signing in to servers behind a URL: tokens, where they are kept, and how they are got."""
