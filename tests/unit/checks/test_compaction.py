"""Verdicts on compaction, and how a scan is counted."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tidemark.checks.changelog_scan import Scan
from tidemark.checks.compaction import (
    CleanerPosition,
    CompactionRules,
    CompactionSample,
    CompactionSettings,
    Dirt,
    compaction_finding,
    dirt_of,
    proposal,
)
from tidemark.checks.compaction_sampling import cleaner_offsets, cleaner_position
from tidemark.errors import PreflightFailed
from tidemark.names import TopicPartition
from tidemark.verdict import Verdict

OK, WARNING, FAILED, UNKNOWN = Verdict.OK, Verdict.WARNING, Verdict.FAILED, Verdict.NOT_ENOUGH_EVIDENCE
MINUTE, HOUR = 60_000, 3_600_000
NOW = 100_000 * HOUR
PLACE = TopicPartition("log", 0)
RULES = CompactionRules(offsets_per_s=1000, least_superseded=100, slack_ms=MINUTE)
SETTINGS = CompactionSettings(frozenset({"compact"}), 0.5, 10 * MINUTE, None, 168 * HOUR, 1 << 30, 24 * HOUR, {})
DIRT = Dirt(1000, 200, 800, 0, 50_000, 40_000, 200, NOW - HOUR, NOW - HOUR // 2)
SAMPLE = CompactionSample(PLACE, 0, 2000, 1000, None, 100_000, DIRT)
POSITION = CleanerPosition(500, 40, 60, 10)


def dirt(**changes):
    return replace(SAMPLE, dirt=replace(DIRT, **changes))


CASES = [
    (SETTINGS, SAMPLE, WARNING, "800 of 1000 records scanned are superseded, the first for 60m"),
    (SETTINGS, SAMPLE, WARNING, "a restore takes about 2 s, after compaction 0.4 s"),
    (replace(SETTINGS, cleanup_policy=frozenset({"delete"})), SAMPLE, FAILED, "compacted; `tidemark topics run counts`"),
    (replace(SETTINGS, cleanup_policy=frozenset({"compact", "delete"}), retention_bytes=0), dirt(superseded=1), FAILED,
     "retention.bytes=0, so the broker deletes its oldest records"),
    (replace(SETTINGS, cleanup_policy=frozenset({"compact", "delete"})), dirt(superseded=1), OK, "1 of 1000"),
    (replace(SETTINGS, retention_bytes=1), dirt(superseded=1), OK, "1 of 1000"),
    (SETTINGS, replace(SAMPLE, hidden_from=1500), UNKNOWN, "reading stopped at 1500 of 2000"),
    # Half and no more, and not worth the while.
    (SETTINGS, dirt(superseded=500), OK, "500 of 1000 records scanned are superseded"),
    (SETTINGS, dirt(superseded=501), WARNING, "501 of 1000"),
    (SETTINGS, dirt(records=120, superseded=99), OK, "99 of 120"),
    (SETTINGS, dirt(records=120, superseded=100), WARNING, "100 of 120"),
    # The last minutes stay whole on purpose.
    (SETTINGS, dirt(superseded_since_ms=NOW - 10 * MINUTE + 1), OK, "800 of 1000"),
    (SETTINGS, dirt(superseded_since_ms=NOW - 10 * MINUTE), WARNING, "800 of 1000"),
    (SETTINGS, dirt(records=0, superseded=0, superseded_since_ms=None), OK, "holds no records"),
    # The broker is late by its own settings.
    (replace(SETTINGS, max_lag_ms=49 * MINUTE), SAMPLE, WARNING, "800 of 1000"),
    (replace(SETTINGS, max_lag_ms=49 * MINUTE - 1), SAMPLE, FAILED, "max.compaction.lag.ms is 49m: look for the cleaner"),
    (replace(SETTINGS, segment_ms=49 * MINUTE), replace(SAMPLE, position=POSITION), WARNING, "800 of 1000"),
    (replace(SETTINGS, segment_ms=49 * MINUTE - 1), replace(SAMPLE, position=POSITION), FAILED, "60% of the rolled segments"),
    (replace(SETTINGS, segment_ms=1, min_cleanable_ratio=0.61), replace(SAMPLE, position=POSITION), WARNING, "800 of 1000"),
    # Nothing was appended that could have rolled the segment of the record that supersedes, or only just now.
    (replace(SETTINGS, max_lag_ms=1), dirt(rolled_ms=None), WARNING, "800 of 1000"),
    (replace(SETTINGS, max_lag_ms=1), dirt(rolled_ms=NOW - MINUTE), WARNING, "800 of 1000"),
    (replace(SETTINGS, max_lag_ms=1), dirt(rolled_ms=NOW - MINUTE - 1), FAILED, "superseded for 60m"),
    (replace(SETTINGS, segment_ms=1), replace(dirt(rolled_ms=None), position=POSITION), WARNING, "800 of 1000"),
    # What was seen from outside is no proof against the cleaner.
    (replace(SETTINGS, segment_ms=1), SAMPLE, WARNING, "800 of 1000"),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(CASES)))
def test_should_judge_a_changelog(case):
    found, sample, verdict, said = CASES[case]
    finding = compaction_finding("n", found, [sample], "counts", NOW, RULES)
    assert finding.verdict is verdict, finding.message
    assert said in finding.message
    assert json.dumps(dict(finding.evidence))


def test_should_report_the_worst_verdict_of_its_partitions():
    other = replace(SAMPLE, partition=TopicPartition("log", 1), dirt=replace(DIRT, superseded=0))
    finding = compaction_finding("n", SETTINGS, [other, SAMPLE], "counts", NOW, RULES)
    assert (finding.verdict, finding.message[:7]) == (WARNING, "log[0]:")
    assert list(finding.evidence["partitions"]) == ["log[1]", "log[0]"]
    assert compaction_finding("n", SETTINGS, [], "counts", NOW, RULES).verdict is UNKNOWN


PROPOSALS = [
    # What the topology asks for already.
    (replace(SETTINGS, min_cleanable_ratio=0.99, wanted={"min.cleanable.dirty.ratio": "0.1"}), SAMPLE,
     {"min.cleanable.dirty.ratio": "0.1"}),
    (replace(SETTINGS, min_cleanable_ratio=0.99, segment_ms=MINUTE), SAMPLE, {"min.cleanable.dirty.ratio": "0.5"}),
    # It lies in the active segment, which rolls after a week.
    (SETTINGS, SAMPLE, {"segment.ms": "600000"}),
    (SETTINGS, replace(SAMPLE, topic_bytes=1 << 30), {"min.cleanable.dirty.ratio": "0.1"}),
    (replace(SETTINGS, segment_ms=HOUR), SAMPLE, {"min.cleanable.dirty.ratio": "0.1"}),
    (replace(SETTINGS, segment_ms=HOUR, min_cleanable_ratio=0.11), SAMPLE, {"min.cleanable.dirty.ratio": "0.1"}),
    # What is set already, or lower than what would be proposed, is no proposal.
    (replace(SETTINGS, segment_ms=HOUR, min_cleanable_ratio=0.1), SAMPLE, {}),
    (replace(SETTINGS, segment_ms=HOUR, min_cleanable_ratio=0.05), SAMPLE, {}),
    (replace(SETTINGS, segment_ms=10 * MINUTE, min_cleanable_ratio=0.1), dirt(superseded_since_ms=NOW - MINUTE), {}),
    (replace(SETTINGS, segment_ms=10 * MINUTE + 1, min_cleanable_ratio=0.1), dirt(superseded_since_ms=NOW - MINUTE),
     {"segment.ms": "600000"}),
    (replace(SETTINGS, min_cleanable_ratio=0.1, segment_ms=HOUR, wanted={"min.cleanable.dirty.ratio": "0.10"}), SAMPLE, {}),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(PROPOSALS)))
def test_should_propose_the_setting_that_delays_compaction(case):
    found, sample, wanted = PROPOSALS[case]
    assert proposal(found, NOW, [sample]) == wanted


def test_should_say_that_no_setting_delays_the_cleaner():
    found = replace(SETTINGS, segment_ms=HOUR, min_cleanable_ratio=0.1, wanted={"min.cleanable.dirty.ratio": "0.1"})
    finding = compaction_finding("n", found, [SAMPLE], "counts", NOW, RULES)
    assert finding.verdict is WARNING
    assert "No setting delays the cleaner: `tidemark check compaction counts --log-dir" in finding.message
    assert finding.evidence["proposal"] == {}


@pytest.mark.parametrize(
    ("wanted", "said"), [({}, "Give the store topic_config"), ({"segment.ms": "600000"}, "The topology asks for")]
)
def test_should_distinguish_a_changed_topic_from_a_topology_that_must_change(wanted, said):
    finding = compaction_finding("n", replace(SETTINGS, wanted=wanted), [SAMPLE], "counts", NOW, RULES)
    assert f"{said}" in finding.message
    assert (
        "(segment.ms=600000)" in finding.message
        or "asks for segment.ms=600000: `tidemark topics run counts`" in finding.message
    )


def scan(*keys, deleted=(), at_ms=None):
    count = len(keys)
    offsets = [10 * index for index in range(count)]
    tombstones = [index in deleted for index in range(count)]
    keys = [key.encode() for key in keys]
    return Scan(PLACE, 0, 10 * count, 10 * count, offsets, at_ms or offsets, keys, [7] * count, tombstones)


def test_should_treat_a_part_of_the_log_without_a_repeated_key_as_clean():
    found = dirt_of(scan("a", "b", "c", "a", "d", "a"), 1)
    assert (found.records, found.keys, found.superseded) == (6, 4, 2)
    # The cleaner has certainly not been at the second `a`.
    assert (found.first_repeat_offset, found.dirty_bytes) == (30, 21)
    clean = dirt_of(scan("a", "b"), 1)
    assert (clean.first_repeat_offset, clean.dirty_bytes) == (None, 0)
    assert (clean.superseded_since_ms, clean.rolled_ms) == (None, None)


def test_should_count_a_records_age_from_the_one_that_superseded_it():
    assert dirt_of(scan("a", "b", "c", "a", "d", "a"), 1).superseded_since_ms == 30
    # Written five hours ago and cleaned as far as it could be, updated just now.
    young = replace(SAMPLE, dirt=dirt_of(scan("a", "b", "a", at_ms=[NOW - 5 * HOUR, NOW - HOUR, NOW]), HOUR))
    aggressive = replace(SETTINGS, max_lag_ms=HOUR, segment_ms=HOUR)
    assert compaction_finding("n", aggressive, [young], "counts", NOW, RULES).verdict is OK


@pytest.mark.parametrize(
    ("later_ms", "rolled_ms"),
    [((), None), ((HOUR,), None), ((HOUR + 1,), HOUR + 1), ((9, 2 * HOUR, 3 * HOUR), 2 * HOUR)],
)
def test_should_treat_a_segment_as_rolled_once_a_record_was_appended_late_enough(later_ms, rolled_ms):
    keys = "abcdef"[: len(later_ms)]
    found = dirt_of(scan("x", "x", *keys, at_ms=[0, 0, *later_ms]), HOUR)
    assert found.rolled_ms == rolled_ms


@pytest.mark.parametrize(("max_lag_ms", "rolls_after_ms"), [(None, 168 * HOUR), (HOUR, HOUR), (200 * HOUR, 168 * HOUR)])
def test_should_roll_a_segment_by_whichever_setting_is_the_shorter(max_lag_ms, rolls_after_ms):
    assert replace(SETTINGS, max_lag_ms=max_lag_ms).rolls_after_ms == rolls_after_ms


def test_should_count_the_keys_whose_last_record_deletes_them():
    assert dirt_of(scan("a", "a", "b", "b", deleted=(1, 2)), 1).waiting_tombstones == 1


@pytest.mark.parametrize(
    ("sample", "ratio"),
    [
        # Half of the offsets were scanned, 4 of 5 bytes of them are dirty: two fifths at least.
        (SAMPLE, 0.4),
        (replace(SAMPLE, scanned_offsets=2000), 0.8),
        (replace(SAMPLE, position=POSITION), 0.6),
        (replace(SAMPLE, position=replace(POSITION, clean_bytes=0, dirty_bytes=0)), 0.0),
    ],
)
def test_should_label_the_dirty_ratio_as_exact_or_estimated(sample, ratio):
    finding = compaction_finding("n", SETTINGS, [sample], "counts", NOW, RULES)
    evidence = finding.evidence["partitions"]["log[0]"]
    assert evidence["dirty_ratio"] == pytest.approx(ratio)
    assert evidence["dirty_ratio_is"].startswith("exact" if sample.position else "at least, estimated")


def test_should_read_the_cleaners_position_from_a_brokers_log_folder(tmp_path):
    create_checkpoint = tmp_path / "cleaner-offset-checkpoint"
    with pytest.raises(PreflightFailed, match="is not a broker's log folder"):
        cleaner_offsets(tmp_path)
    create_checkpoint.touch()
    assert cleaner_offsets(tmp_path) == {}
    create_checkpoint.write_text("0\n2\nlog 0 500\n")
    with pytest.raises(PreflightFailed, match="try again"):
        cleaner_offsets(tmp_path)
    create_checkpoint.write_text("0\n1\nlog 0 30\n")
    assert cleaner_offsets(tmp_path) == {PLACE: 30}

    (tmp_path / "log-0").mkdir()
    found = scan("a", "b", "c", "a", "d", "a")
    assert cleaner_position(tmp_path, PLACE, 30, found) is None
    for base, size in ((0, 7), (20, 11), (30, 13), (40, 17), (50, 19)):
        (tmp_path / "log-0" / f"{base:020}.log").write_bytes(b"." * size)
    assert cleaner_position(tmp_path, PLACE, 30, found) == CleanerPosition(30, 18, 30, 19, 50)
    # Never cleaned: all that has rolled is dirty.
    assert cleaner_position(tmp_path, PLACE, None, found) == CleanerPosition(0, 0, 48, 19, 50)
