"""What the tests of `operator_acls` share."""

from __future__ import annotations

from tests.support.changes import version

from tidemark.topology.builder import Topology


def version_two(name: str) -> Topology:
    """Return another version, whose store has another name."""
    return version(name, "2", "total", n="count(*)")
