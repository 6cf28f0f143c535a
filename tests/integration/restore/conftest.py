"""Applications whose changelogs tests write by hand."""

from __future__ import annotations

from tests.integration.standby.conftest import counting, windowed

__all__ = ["counting", "windowed"]
