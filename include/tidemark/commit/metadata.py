"""The metadata string of a committed offset: what a task must know beyond its stores' contents."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class OffsetMetadata:
    """Stream time is epoch milliseconds, or `NO_STREAM_TIME`."""

    batch: int
    stream_time_ms: int
    topology_version: str

    def encode(self) -> str:
        """Compact JSON; Kafka allows 4096 bytes by default."""
        return json.dumps({"v": 1, **asdict(self)}, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str | None) -> OffsetMetadata | None:
        """None for offsets that another tool committed."""
        try:
            body = json.loads(text or "")
            if body.pop("v", None) != 1:
                return None
            return cls(**body)
        except (ValueError, TypeError, AttributeError):
            return None
