"""From when on a changelog certainly has all its records and tombstones, although its compaction settings may have changed.

A raised `min.compaction.lag.ms` or `delete.retention.ms` brings nothing back that the smaller value has removed. Kafka does
not say since when a topic has a setting. So each start of an instance compares the settings with those of the start before,
and the application's description keeps them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

_LAG, _DELETIONS = "min.compaction.lag.ms", "delete.retention.ms"
_SPREAD_MS = 60_000
"""The time within which all brokers compact by a new setting."""


@dataclass(frozen=True)
class KeptHistory:
    """The settings that a changelog had at the last start of an instance. Times are epoch milliseconds.

    Values that were superseded before `compacted_before_ms` may have been removed under a smaller setting; it is 0 if the
    setting was never seen to be raised. Deletions from before `deletions_raised_ms` may have been kept only for
    `smaller_delete_retention_ms`, also after the raise: Kafka decides how long it keeps a tombstone when it first cleans it.
    """

    min_compaction_lag_ms: int
    delete_retention_ms: int
    compacted_before_ms: int = 0
    deletions_raised_ms: int = 0
    smaller_delete_retention_ms: int = 0

    def observed(self, config: Mapping[str, str], now_ms: int) -> KeptHistory:
        """Return what is known once the topic was seen with this configuration at `now_ms`.

        A setting that is larger than before may have been raised a moment ago.
        """
        found = replace(self, min_compaction_lag_ms=int(config[_LAG]), delete_retention_ms=int(config[_DELETIONS]))
        if found.min_compaction_lag_ms > self.min_compaction_lag_ms:
            left_ms = now_ms + _SPREAD_MS - self.min_compaction_lag_ms
            found = replace(found, compacted_before_ms=max(self.compacted_before_ms, left_ms))
        if found.delete_retention_ms > self.delete_retention_ms:
            smaller_ms = self.delete_retention_ms
            if self.deletions_raised_ms:
                smaller_ms = min(smaller_ms, self.smaller_delete_retention_ms)
            found = replace(found, deletions_raised_ms=now_ms + _SPREAD_MS, smaller_delete_retention_ms=smaller_ms)
        return found


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
