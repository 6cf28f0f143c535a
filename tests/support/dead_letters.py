"""What the tests of `dead_letters` share."""

from __future__ import annotations

LIMIT = 20_000
