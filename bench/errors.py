"""The error of a benchmark."""

from __future__ import annotations

from tidemark.errors import TidemarkError


class BenchFailed(TidemarkError):
    """A side did not start, did not finish, or wrote wrong output, so there is no result to report."""
