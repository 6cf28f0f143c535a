"""The topology `pulse_counting` at least once. The case `exactly_once` measures what exactly-once costs against this."""

from __future__ import annotations

from bench.topologies.pulse_counting import counting

from tidemark.topology.builder import Topology
from tidemark.topology.plan import Guarantee


def topology() -> Topology:
    """Count as `pulse_counting` does."""
    return counting(Guarantee.AT_LEAST_ONCE)
