"""How far back compaction has left the history of a changelog, whatever its settings were before.

A raised `min.compaction.lag.ms` or `delete.retention.ms` brings nothing back that the smaller value has removed. Kafka does
not say since when a topic has a setting. So each start of an instance compares the settings with those of the start before,
and the application's description keeps them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_LAG, _DELETIONS = "min.compaction.lag.ms", "delete.retention.ms"
_SPREAD_MS = 60_000
"""The time within which all brokers compact by a new setting."""


@dataclass(frozen=True)
class KeptHistory:
    """The settings that a changelog had at the last start of an instance. Times are epoch milliseconds.

    Values that were superseded before `compacted_before_ms`, and deletions from before `deletions_removed_before_ms`, may have
    been removed under a smaller setting. Each is 0 if its setting was never seen to be raised.
    """

    min_compaction_lag_ms: int
    delete_retention_ms: int
    compacted_before_ms: int = 0
    deletions_removed_before_ms: int = 0

    def observed(self, config: Mapping[str, str], now_ms: int) -> KeptHistory:
        """Return what is known once the topic was seen with this configuration at `now_ms`.

        A setting that is larger than before may have been raised a moment ago.
        """
        lag_ms, deletions_ms = int(config[_LAG]), int(config[_DELETIONS])
        compacted = _horizon(self.compacted_before_ms, self.min_compaction_lag_ms, lag_ms, now_ms)
        removed = _horizon(self.deletions_removed_before_ms, self.delete_retention_ms, deletions_ms, now_ms)
        return KeptHistory(lag_ms, deletions_ms, compacted, removed)


def compacted_until_ms(known: KeptHistory | None, config: Mapping[str, str], now_ms: int) -> int:
    """Return the time before which superseded values of a changelog with this configuration may be compacted away.

    `known` is None if no start has seen the topic yet. A setting that was raised since the last start counts from the next
    one on.
    """
    lag_ms = int(config.get(_LAG, "0"))
    if known is None:
        return now_ms - lag_ms
    return max(known.compacted_before_ms, now_ms - min(known.min_compaction_lag_ms, lag_ms))


def observed_histories(
    known: Mapping[str, KeptHistory], configs: Mapping[str, Mapping[str, str]], now_ms: int
) -> dict[str, KeptHistory]:
    """Return the history of each changelog in `configs`, by topic. One that is not `known` is new, with these settings."""
    return {
        topic: known.get(topic, KeptHistory(int(config[_LAG]), int(config[_DELETIONS]))).observed(config, now_ms)
        for topic, config in configs.items()
    }


def _horizon(before_ms: int, old_ms: int, new_ms: int, now_ms: int) -> int:
    return max(before_ms, now_ms + _SPREAD_MS - old_ms) if new_ms > old_ms else before_ms
