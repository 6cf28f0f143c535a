"""Show what runs."""

from __future__ import annotations

from tidemark.cli.arguments import AsJson, examples

EPILOG = examples("tidemark status", "tidemark status --json | jq '.instances[] | {application, instance, state}'")


def status(as_json: AsJson = False) -> None:
    """Show the stack, the stream instances, outages, holds, and leftovers of killed commands and of other instances.

    Ends with 1 if a part is dead or no stack is recorded.
    """
    from tidemark.cli.output import Output
    from tidemark.cli.status import show_status

    show_status(Output(as_json=as_json))
