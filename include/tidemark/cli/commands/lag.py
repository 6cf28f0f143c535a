"""`tidemark lag`: how far an application is behind its sources."""

from __future__ import annotations

from tidemark.cli.arguments import DEMO, TopologyName


def lag(topology: TopologyName = DEMO) -> None:
    """Show the committed offset, end offset, lag and owner of each source partition."""
    from tidemark.cli.lag import show_lag

    show_lag(topology)
