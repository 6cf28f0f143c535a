"""The skew check: how records and keys spread over partitions and tasks, and whether one key takes too many.

A pure function of samples. A key is in one partition, so its share of a topic is its share of the records that were read there,
times the partition's share of the topic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidemark.store_rows import printable
from tidemark.verdict import MESSAGE_WITHOUT_RECORDS, Finding, Verdict

_SHOWN_KEY = 60


@dataclass(frozen=True)
class SkewRules:
    """Below `least_records` nothing is judged. A part is skewed if it has `ratio` times an even share.

    `named_keys` are named per topic. A key with less than `least_key_share` is never too large.
    """

    least_records: int = 1_000
    ratio: float = 2.0
    least_key_share: float = 0.05
    named_keys: int = 3


@dataclass(frozen=True)
class PartitionSample:
    """One partition: the offsets that it holds, the records that were read at its end, and the most frequent keys of them.

    `keys` counts the distinct keys of those records. Records without a key have the key None.
    """

    number: int
    held_offsets: int
    read_records: int
    keys: int
    frequent: Mapping[bytes | None, int]


def sample_of(number: int, held_offsets: int, keys: Iterable[bytes | None], rules: SkewRules) -> PartitionSample:
    """Return the sample of a partition from the keys of the records that were read."""
    counts = Counter(keys)
    return PartitionSample(
        number, held_offsets, counts.total(), len(counts), dict(counts.most_common(rules.named_keys))
    )


def topic_finding(topic: str, samples: Sequence[PartitionSample], rules: SkewRules) -> Finding:
    """Return the verdict on one topic."""
    held, read = sum(s.held_offsets for s in samples), sum(s.read_records for s in samples)
    if read < rules.least_records:
        message = f"{read} records could be read, too few to judge: check again when more have arrived"
        return Finding(topic, Verdict.NOT_ENOUGH_EVIDENCE, message, {"partitions": len(samples), "read_records": read})
    shares = {s.number: s.held_offsets / held for s in samples}
    keys = _key_shares(samples, shares, rules)
    top_key, top_share = next(iter(keys.items()))
    fullest = max(shares, key=shares.__getitem__)
    evidence = {
        "partitions": {
            str(s.number): {
                "held_offsets": s.held_offsets, "share": round(shares[s.number], 4), "read_records": s.read_records,
                "keys": s.keys,
            }
            for s in samples
        },
        "frequent_keys": {shown_key(key): round(share, 4) for key, share in keys.items()},
        "read_records": read,
    }  # fmt: skip
    spread = f"{len(samples)} partitions with {_least_and_most(list(shares.values()))} of the offsets"
    part = f"has {top_share:.0%} of the newest {read:,} records"

    def found(verdict: Verdict, say: Callable[[str], str]) -> Finding:
        without_records = say("no key" if top_key is None else "one key (`tidemark check skew NAME` names it)")
        return Finding(topic, verdict, say(_named(top_key)), {**evidence, MESSAGE_WITHOUT_RECORDS: without_records})

    is_skewed = len(samples) > 1 and shares[fullest] * len(samples) >= rules.ratio
    if len(samples) > 1 and top_share >= max(rules.least_key_share, 1 / len(samples)):
        remedy = (
            "more partitions do not help, as a key is in one of them: give these records a key"
            if top_key is None
            else "more partitions do not help, as a key is in one of them: add a part to the key and aggregate in two steps, "
            "or filter it"
        )
        return found(Verdict.WARNING, lambda key: f"{spread}; {key} {part}, more than an even partition; {remedy}")
    if is_skewed:
        remedy = "look at the partitioner of its producers, or take a key that spreads better"
        message = f"{spread}; partition {fullest} has {shares[fullest]:.0%}, and no single key explains that; {remedy}"
        return found(Verdict.WARNING, lambda _: message)
    return found(Verdict.OK, lambda key: f"{spread}; {key} {part}")


def store_finding(store: str, keys: Mapping[str, int], rules: SkewRules) -> Finding:
    """Return the verdict on the keys of one store, by task. Tasks whose number of keys is not known are left out."""
    total = sum(keys.values())
    if len(keys) < 2 or total < rules.least_records:
        message = f"{total:,} keys in {len(keys)} tasks are known here, too few to judge"
        return Finding(f"store {store}", Verdict.NOT_ENOUGH_EVIDENCE, message, {"keys": dict(keys)})
    shares = {task: count / total for task, count in keys.items()}
    fullest = max(shares, key=shares.__getitem__)
    evidence = {"keys": dict(keys), "shares": {task: round(share, 4) for task, share in shares.items()}}
    spread = f"{len(keys)} tasks with {_least_and_most(list(shares.values()))} of about {total:,} keys"
    if shares[fullest] * len(keys) >= rules.ratio:
        remedy = "task sizes decide how long a restore takes: take a key that spreads better"
        message = f"{spread}; task {fullest} has {shares[fullest]:.0%}; {remedy}"
        return Finding(f"store {store}", Verdict.WARNING, message, evidence)
    return Finding(f"store {store}", Verdict.OK, spread, evidence)


def _key_shares(
    samples: Sequence[PartitionSample], shares: Mapping[int, float], rules: SkewRules
) -> dict[bytes | None, float]:
    """Return the keys with the largest shares of the topic, the largest first."""
    found: Counter[bytes | None] = Counter()
    for sample in samples:
        for key, count in sample.frequent.items():
            # A key without a partitioner, or none at all, may be in several partitions.
            found[key] += shares[sample.number] * count / sample.read_records  # type: ignore[assignment]
    return dict(found.most_common(rules.named_keys))


def shown_key(key: bytes | None) -> str:
    """Return a key as text; bytes that are no text as escapes, and a long key cut."""
    if key is None:
        return ""
    return printable(key, _SHOWN_KEY)


def _named(key: bytes | None) -> str:
    return "no key" if key is None else f"key '{shown_key(key)}'"


def _least_and_most(shares: Sequence[float]) -> str:
    least, most = min(shares), max(shares)
    return f"{least:.0%} to {most:.0%}" if len(shares) > 1 else "all"
