"""The metadata string of a committed offset: what a task must know besides the contents of its stores."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from tidemark.stream_times import StreamTimes

_VERSION = 2


@dataclass(frozen=True)
class OffsetMetadata:
    """Batch, stream times and topology version of a commit."""

    batch: int
    stream_times: StreamTimes
    topology_version: str

    def encode(self) -> str:
        """Return compact JSON; Kafka allows 4096 bytes by default."""
        return json.dumps({"v": _VERSION, **asdict(self)}, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str | None) -> OffsetMetadata | None:
        """Read what `encode` wrote; return None for offsets that another tool committed."""
        try:
            body = json.loads(text or "")
            if body.pop("v", None) != _VERSION:
                return None
            return cls(**{**body, "stream_times": StreamTimes.from_json(body["stream_times"])})
        except (ValueError, TypeError, AttributeError, KeyError):
            return None
