"""Records as the producer of Kafka takes them."""

from __future__ import annotations

from typing import Any

Message = dict[str, Any]
"""A record of a topic: `key` and `value` (bytes or None), `timestamp` (epoch milliseconds), `headers` if it has any."""
