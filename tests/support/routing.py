"""What the tests of `routing` share."""

from __future__ import annotations

SCHEMA = "id STRING, page STRING, v BIGINT"
