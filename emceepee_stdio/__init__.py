"""emceepee: a stdio MCP proxy. This module owns the version and nothing else."""

__all__ = ["__version__"]

__version__ = "0.1.0.dev0"
