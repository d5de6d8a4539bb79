"""`emceepee doctor`: its checks, its findings, and the report."""
