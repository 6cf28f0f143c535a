"""What the tests of `broker_timestamps` share."""

from __future__ import annotations

MINUTE = 60_000
