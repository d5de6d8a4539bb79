"""Signing in to servers behind a URL: tokens, their store, and the requests that get them."""
