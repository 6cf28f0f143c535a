"""`tidemark lag`: how far an application is behind its sources."""

from __future__ import annotations

from tidemark.cli.arguments import DEMO, AsJson, TopologyName, examples

EPILOG = examples("tidemark lag clicks", "tidemark lag clicks --json | jq .lag_offsets")


def lag(topology: TopologyName = DEMO, as_json: AsJson = False) -> None:
    """Show the committed offset, end offset, lag and owner of each source partition."""
    from tidemark.cli.lag import show_lag
    from tidemark.cli.output import Output

    show_lag(topology, Output(as_json=as_json))
