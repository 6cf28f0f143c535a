"""The newest time of a source up to the last record of each partial result."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from tidemark.tasks.partials import PARTIAL_TYPES, Partial, with_newest


def a_table(columns: dict[str, list[int | None]]) -> pa.Table:
    return pa.table({name: pa.array(values, PARTIAL_TYPES[name]) for name, values in columns.items()})


def partials(*given: tuple[int, int, int | None]) -> pa.Table:
    """(partition, last offset, newest timestamp of its own)."""
    partitions, offsets, times = zip(*given, strict=True)
    return a_table({Partial.PARTITION: partitions, Partial.LAST_OFFSET: offsets, Partial.MAX_TS: times})


def times(*given: tuple[int, int, int]) -> pa.Table:
    """(partition, offset, timestamp) of each record."""
    partitions, offsets, times_ms = zip(*given, strict=True) if given else ((), (), ())
    return a_table({Partial.PARTITION: partitions, Partial.RECORD_OFFSET: offsets, Partial.MAX_TS: times_ms})


def newest(*given: object) -> list[int | None]:
    return with_newest(*given).column(Partial.NEWEST).to_pylist()


def test_should_count_an_earlier_record_of_a_key_whose_last_record_comes_later():
    # The records of x have the offsets 0 and 2, that of y has 1.
    assert newest(partials((0, 2, 100), (0, 1, 10)), times((0, 0, 100), (0, 1, 10), (0, 2, 20))) == [100, 100]


def test_should_give_no_time_where_a_result_has_none():
    assert newest(partials((0, 0, None), (0, 1, 5)), times((0, 1, 5))) == [None, 5]


def test_should_give_a_results_own_time_if_its_records_are_compacted_meanwhile():
    assert newest(partials((0, 3, 7)), times()) == [7]
    assert newest(partials((0, 3, 7)), times((0, 1, 5), (0, 4, 9))) == [7]


@pytest.mark.parametrize("seed", range(20))
def test_should_find_the_newest_of_all_records_of_the_partition_up_to_the_last_one(seed):
    chance = random.Random(seed)
    records = [
        (p, o, chance.randint(0, 9), chance.choice("xyz")) for p in range(3) for o in range(chance.randint(0, 9))
    ]
    chance.shuffle(records)
    groups = sorted({(p, key) for p, _, _, key in records})
    own = [[(o, t) for p, o, t, key in records if (p, key) == group] for group in groups]
    given = partials(
        *((p, max(o for o, _ in of), max(t for _, t in of)) for (p, _), of in zip(groups, own, strict=True))
    )
    expected = [
        max(t for p, o, t, _ in records if p == partition and o <= max(o for o, _ in of))
        for (partition, _), of in zip(groups, own, strict=True)
    ]
    assert newest(given, times(*((p, o, t) for p, o, t, _ in records))) == expected
