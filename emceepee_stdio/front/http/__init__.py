"""Many clients over HTTP, each with a process of its own behind it; the stdio proxy loads none."""
