"""Stop the stack."""

from __future__ import annotations


def down() -> None:
    """Stop everything that `tidemark up` started, and all processes that these started. Data stays in `var/`."""
    from tidemark.cli.down import stop_stack

    stop_stack()
