"""Stop the stack."""

from __future__ import annotations

from tidemark.cli.arguments import AsJson, examples

EPILOG = examples("tidemark down")


def down(as_json: AsJson = False) -> None:
    """Stop everything that `tidemark up` started, and all processes that these started. Data stays in `var/`."""
    from tidemark.cli.down import stop_stack
    from tidemark.cli.output import Output

    stop_stack(Output(as_json=as_json))
