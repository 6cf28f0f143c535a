"""The metadata string of a committed offset: what a task must know besides the contents of its stores."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass

from tidemark.errors import PreflightFailed
from tidemark.kafka.cluster import OFFSET_METADATA_BYTES
from tidemark.stream_times import StreamTimes
from tidemark.topology.plan import StreamStreamJoin, SubTopology, TopologyPlan

log = logging.getLogger(__name__)

_VERSION = 2
_LARGEST_TIME_MS = 9_999_999_999_999
"""The largest time with as many digits as times of today have; it is in the year 2286."""
_LARGEST_BATCH = 10**12
_LARGEST_MARK = 2**63 - 1
"""The mark of a join in which no row waits for its partner."""


@dataclass(frozen=True)
class OffsetMetadata:
    """Batch, stream times and topology version of a commit."""

    batch: int
    stream_times: StreamTimes
    topology_version: str

    def encode(self) -> str:
        """Return compact JSON, which is ASCII. Brokers limit its length (`verify_metadata_fits`)."""
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


def verify_metadata_fits(plan: TopologyPlan, ask_limit: Callable[[], int | None]) -> None:
    """Raise `PreflightFailed` if the metadata of a sub-topology's offsets can become longer than brokers accept.

    `ask_limit` returns `offset.metadata.max.bytes` of the brokers. It is called only if the default would not be enough. It
    returns None if this user may not see the setting: then the application is not refused, and a warning is logged.
    """
    longest, index = max((_largest_bytes(each, plan.version), each.index) for each in plan.subtopologies)
    if longest <= OFFSET_METADATA_BYTES:
        return
    limit = ask_limit()
    if limit is None:
        log.warning(
            "the offsets of sub-topology %d can have %d bytes of metadata, and this user may not see how many the brokers "
            "accept (offset.metadata.max.bytes, 4096 by default): if commits are refused, set it to %d on every broker",
            index, longest, longest,
        )  # fmt: skip
    elif longest > limit:
        count = len(plan.subtopologies[index].stores)
        raise PreflightFailed(
            f"sub-topology {index} of {plan.application_id} has {count} stores, whose names and stream times are committed "
            f"with its offsets: that can be {longest} bytes, but the brokers accept {limit}; give the stores shorter names, "
            f"split the sub-topology with `repartition`, or set offset.metadata.max.bytes={longest} on every broker"
        )


def _largest_bytes(subtopology: SubTopology, version: str) -> int:
    marks: dict[str, int] = {}
    for node in subtopology.nodes:
        if isinstance(node, StreamStreamJoin):
            left, right, *waiting = (store.name for store in node.stores)
            marks |= {left: _LARGEST_TIME_MS, right: _LARGEST_TIME_MS, **dict.fromkeys(waiting, _LARGEST_MARK)}
    times = StreamTimes(_LARGEST_TIME_MS, {store.name: _LARGEST_TIME_MS for store in subtopology.stores}, marks)
    return len(OffsetMetadata(_LARGEST_BATCH, times, version).encode())
