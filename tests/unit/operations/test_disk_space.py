"""The disk space that a restore needs is that of what it builds, even if no folder exists there any more."""

from __future__ import annotations

import pytest

from tidemark.names import TopicPartition
from tidemark.operations.disk_space import (
    ASSUMED_BYTES_PER_OFFSET,
    Changelog,
    StoreRoom,
    bytes_needed,
    bytes_to_drill,
    bytes_to_upgrade,
    existing_part,
    room_of,
    room_of_both_states,
)
from tidemark.recovery.restore_plan import StoreRestore
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.store_sizes import TopicBytes

PARTITION = TopicPartition("app-n-changelog", 1)
LOG = Changelog(PARTITION, 1000, 2000)
KNOWN = TopicBytes({PARTITION: 50_000})


def store(source, location="", from_offset=1000, to_copy=0):
    return StoreRestore("0_1", "n", source, location, from_offset, 2000, to_copy, 0.0, ())


@pytest.mark.parametrize(
    ("source", "from_offset", "to_copy", "built"),
    [
        (SourceOfState.CHANGELOG, 1000, 0, 50_000),
        (SourceOfState.SOURCE, 0, 0, 50_000),
        (SourceOfState.SAVEPOINT, 1500, 7_000, 7_000 + 25_000),
        (SourceOfState.SAVEPOINT, 2000, 7_000, 7_000),
        (SourceOfState.SAVEPOINT, 2001, 7_000, 7_000),
    ],
)
def test_should_count_the_built_store_and_what_it_is_compared_with(source, from_offset, to_copy, built):
    found = room_of(store(source, from_offset=from_offset, to_copy=to_copy), LOG, KNOWN)
    assert found == StoreRoom("0_1/n", built, 50_000 + built)


def test_should_count_the_folder_that_is_copied_locally(tmp_path):
    (tmp_path / "1.sst").write_bytes(b"x" * 3000)
    for source in (SourceOfState.LOCAL, SourceOfState.STANDBY):
        assert room_of(store(source, str(tmp_path), 1900), LOG, KNOWN).to_build == 3000 + 5000


def test_should_assume_a_size_when_no_broker_reports_it():
    found = room_of(store(SourceOfState.CHANGELOG), LOG, TopicBytes({}, "no kafka-log-dirs"))
    assert found.to_build == 1000 * ASSUMED_BYTES_PER_OFFSET
    assert room_of(store(SourceOfState.CHANGELOG), Changelog(PARTITION, 5, 5), TopicBytes({})).to_build == 0


def test_should_count_both_states_of_a_rewind():
    assert room_of_both_states("0_1/n", LOG, KNOWN).to_build == 100_000


@pytest.mark.parametrize(
    ("changelog", "known", "needed"),
    [
        (LOG, KNOWN, 50_000 + 14_000),
        (LOG, TopicBytes({}), 1000 * ASSUMED_BYTES_PER_OFFSET + 14_000),
        (Changelog(PARTITION, 5, 5), KNOWN, 14_000),
    ],
)
def test_should_count_the_whole_changelog_and_twice_the_savepoint_for_a_drill(changelog, known, needed):
    assert bytes_to_drill(7_000, changelog, known) == needed


@pytest.mark.parametrize(("threads", "needed"), [(0, 60 + 30), (1, 60 + 30), (2, 60 + 50), (3, 60 + 60), (9, 60 + 60)])
def test_should_add_the_largest_comparisons_that_run_in_parallel(threads, needed):
    stores = [StoreRoom("a", 10, 10), StoreRoom("b", 20, 20), StoreRoom("c", 30, 30)]
    assert bytes_needed(stores, threads) == needed


def test_should_check_the_file_system_on_which_a_folder_will_be_created(tmp_path):
    assert existing_part(tmp_path / "not" / "yet") == tmp_path
    assert existing_part(tmp_path) == tmp_path


LARGE, SMALL = StoreRoom("a", 10, 30), StoreRoom("b", 5, 12)


@pytest.mark.parametrize(
    ("copied", "emptied", "needed"),
    [
        ([], [], 0),
        # One at a time, and each is removed before the next.
        ([], [LARGE], 40),
        ([], [LARGE] * 4, 40),
        ([], [SMALL, LARGE], 40),
        # Built and written in its new form; both stay.
        ([LARGE], [], 20 + 30),
        ([LARGE, SMALL], [], 20 + 10 + 30),
        ([SMALL], [LARGE], 10 + 40),
        ([LARGE], [SMALL], 20 + 30),
    ],
)
def test_should_count_what_an_upgrade_has_on_the_disk_at_one_time(copied, emptied, needed):
    assert bytes_to_upgrade(copied, emptied) == needed
