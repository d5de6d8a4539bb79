"""The HTTP front: many clients over HTTP, each with a proxy process of its own."""
