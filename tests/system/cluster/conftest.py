"""The bench and the tally of the crash tests."""

from tests.system.crash.conftest import bench, tally

__all__ = ["bench", "tally"]
