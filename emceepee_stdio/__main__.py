"""Where the command `emceepee` and `python -m emceepee_stdio` begin."""

import sys

__all__ = ["main"]


def main() -> None:
    """Hand over to the command line."""
    from emceepee_stdio.cli.app import run  # noqa: PLC0415 - nothing is loaded before it is needed

    sys.exit(run())


if __name__ == "__main__":
    main()
