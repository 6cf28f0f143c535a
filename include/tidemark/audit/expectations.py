"""Every expectation of the audit: its name, its table, and the condition of rows that it does not expect.

Each asset is a table that the audit builds from one cut; its columns are in docs/audit.md. `unexpected` is a Spark SQL
condition over them.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.topology.plan import Expected


@dataclass(frozen=True)
class Check:
    """`says` is what holds if the check passes, `remedy` what to do if it does not.

    `exactly_once`: not checked under at_least_once, where a batch may be written twice (see invariant: order of
    at_least_once). `is_warning`: the fault loses nothing. `rule`: the rule of a contract that it checks. `judged`: the
    condition of the rows that it can judge; the others do not count as checked.
    """

    name: str
    asset: str
    unexpected: str
    says: str
    remedy: str
    exactly_once: bool = False
    is_warning: bool = False
    rule: Expected | None = None
    judged: str = "true"


_COMMITS = "another writer may use this group or this transactional id: stop it, then `tidemark restore plan NAME`"
_WRITER = (
    "look at the quarantined coordinates: another program wrote there, or the instance that wrote the batch has a fault"
)
_STATE = (
    "the store may be wrong too: `tidemark restore plan NAME`, then `run`, rebuilds it; `tidemark rewind plan NAME`, then "
    "`run`, takes it back in time"
)

LATE_RECORDS = "late_records_are_accounted_for"
"""The one expectation on batches that not every topology with a source allows."""

CHECKS: tuple[Check, ...] = (
    Check(
        "ranges_leave_no_gap",
        "commits",
        "previous_end IS NOT NULL AND start_offset > previous_end",
        "each batch begins where the one before it ended",
        _COMMITS,
        judged="previous_end IS NOT NULL",
    ),
    Check(
        "ranges_do_not_overlap",
        "commits",
        "previous_end IS NOT NULL AND start_offset < previous_end",
        "no record of a source is in two batches",
        _COMMITS,
        exactly_once=True,
        judged="previous_end IS NOT NULL",
    ),
    Check(
        "batches_are_numbered_without_gap",
        "commits",
        "previous_batch IS NOT NULL AND batch <> previous_batch + 1",
        "no commit record is missing, and none is there twice",
        _COMMITS,
        exactly_once=True,
        judged="previous_batch IS NOT NULL",
    ),
    Check(
        "stream_time_never_goes_back",
        "commits",
        "kind IN ('start', 'batch', 'tick') AND previous_stream_time_ms IS NOT NULL "
        "AND stream_time_ms < previous_stream_time_ms",
        "the stream time of a task never goes back",
        _COMMITS,
        exactly_once=True,
        judged="kind IN ('start', 'batch', 'tick') AND previous_stream_time_ms IS NOT NULL",
    ),
    Check(
        "commits_follow_the_clock",
        "commits",
        "previous_commit_ms IS NOT NULL AND commit_time_ms < previous_commit_ms - 1000",
        "the clocks of the machines that commit agree",
        "set the clocks of the instances' machines by NTP; retention and points in time depend on them",
        is_warning=True,
        judged="previous_commit_ms IS NOT NULL",
    ),
    Check(
        "stream_time_is_that_of_the_records",
        "accounts",
        "stream_time_ms <> truth_stream_time_ms OR wrong_node_times <> ''",
        "the stream time of a task, and of a node, is the newest timestamp among the records that it processed",
        _STATE,
        exactly_once=True,
        judged="truth_stream_time_ms IS NOT NULL",
    ),
    Check(
        "every_record_is_accounted_for",
        "accounts",
        "rows <> truth_rows OR filtered_rows <> truth_filtered_rows OR bad_rows <> truth_bad_rows",
        "every record of the source came in, was filtered out, or is a dead letter",
        "compare the batch's records with its commit record; the missing ones were read and then lost",
        exactly_once=True,
        judged="truth_records IS NOT NULL",
    ),
    Check(
        LATE_RECORDS,
        "accounts",
        "late_rows <> truth_late_rows",
        "the records that were dropped as late were late, and no others",
        _STATE,
        exactly_once=True,
        judged="truth_late_rows IS NOT NULL",
    ),
    Check(
        "outputs_are_not_lost",
        "counts",
        "role = 'sink' AND found + keyless < claimed AND NOT is_compacted",
        "every output that a commit record counts is in its topic",
        "the topic was truncated, or the batch was written only in part: rewind to before it",
        judged="role = 'sink' AND NOT is_compacted",
    ),
    Check(
        "outputs_are_not_doubled",
        "counts",
        "role = 'sink' AND found > claimed",
        "every output in its topic is counted by a commit record",
        _WRITER,
        exactly_once=True,
        judged="role = 'sink'",
    ),
    Check(
        "changelogs_are_not_lost",
        "counts",
        "role = 'changelog' AND found < claimed AND NOT is_compacted",
        "every changelog record that a commit record counts is in its topic",
        _STATE,
        judged="role = 'changelog' AND NOT is_compacted",
    ),
    Check(
        "changelogs_are_not_doubled",
        "counts",
        "role = 'changelog' AND found > claimed",
        "every changelog record in its topic is counted by a commit record",
        _STATE,
        exactly_once=True,
        judged="role = 'changelog'",
    ),
    Check(
        "dead_letters_are_not_lost",
        "letters",
        "letter_offset IS NULL",
        "every bad record is among the dead letters",
        "read the record at its coordinates; its offset was committed without a dead letter",
        judged="is_bad",
    ),
    Check(
        "dead_letters_are_not_doubled",
        "letters",
        "copies > 1 OR NOT is_bad",
        "every dead letter is of a bad record, and is there once",
        _WRITER,
        exactly_once=True,
        judged="letter_offset IS NOT NULL",
    ),
    Check(
        "every_update_is_there",
        "results",
        "role <> 'final' AND offset IS NULL AND NOT is_compacted",
        "each batch emitted and logged every result that it changed",
        _STATE,
        exactly_once=True,
        judged="role <> 'final' AND is_expected AND NOT is_compacted",
    ),
    Check(
        "no_update_comes_twice",
        "results",
        "role <> 'final' AND (is_copy OR NOT is_expected)",
        "every result that was emitted or logged was changed by its batch, and none comes twice",
        _WRITER,
        exactly_once=True,
        judged="role <> 'final' AND offset IS NOT NULL",
    ),
    Check(
        "every_update_has_its_value",
        "results",
        "role <> 'final' AND offset IS NOT NULL AND is_expected AND NOT is_equal",
        "every result is what the source's records give",
        _STATE,
        exactly_once=True,
        judged="role <> 'final' AND offset IS NOT NULL AND is_expected",
    ),
    Check(
        "the_last_value_is_the_truth",
        "lasts",
        "NOT is_equal",
        "the last value per key and window is what the source's records give",
        _STATE,
        exactly_once=True,
    ),
    Check(
        "a_savepoint_is_the_changelog_folded",
        "savepoints",
        "NOT is_equal",
        "a savepoint's stores hold the last value that the changelogs have of each key",
        "run `tidemark savepoint verify NAME` and take another; if it fails again, rebuild the stores (`tidemark restore "
        "plan NAME`)",
        exactly_once=True,
    ),
    Check(
        "updates_never_go_back",
        "updates",
        "is_back",
        "a count or maximum of a key never becomes smaller, a minimum never larger",
        _WRITER,
        exactly_once=True,
    ),
    Check(
        "one_final_per_window_and_key",
        "results",
        "role = 'final' AND (is_copy OR NOT is_expected)",
        "each window gives one final result, when it closes",
        _WRITER,
        exactly_once=True,
        judged="role = 'final' AND offset IS NOT NULL",
    ),
    Check(
        "finals_are_there_with_their_value",
        "results",
        "role = 'final' AND ((offset IS NULL AND NOT is_compacted) "
        "OR (offset IS NOT NULL AND is_expected AND NOT is_equal))",
        "every window that closed gave its final result, and the right one",
        _STATE,
        exactly_once=True,
        judged="role = 'final' AND is_expected AND (offset IS NOT NULL OR NOT is_compacted)",
    ),
    Check(
        "records_are_in_the_partition_of_their_key",
        "placement",
        "role <> 'source' AND home <> partition",
        "every record is in the partition that murmur2 of its key gives",
        "the writer uses another partitioner: joins and queries by key will miss these records",
        judged="role <> 'source'",
    ),
    Check(
        "sources_are_partitioned_by_key",
        "placement",
        "role = 'source' AND home <> partition",
        "producers of the sources place records by murmur2 of the key",
        "set partitioner=murmur2_random in producers on librdkafka; outputs of such keys cannot be assigned to a task",
        is_warning=True,
        judged="role = 'source'",
    ),
    Check(
        "no_transaction_hangs",
        "ends",
        "committed_end < end",
        "the read_committed end of every topic is its read_uncommitted end",
        "`tidemark check lag NAME` prints the command that aborts it: until then read_committed readers wait",
    ),
)

BY_NAME = {check.name: check for check in CHECKS}
ASSETS = tuple(dict.fromkeys(check.asset for check in CHECKS))


def checks_of(asset: str, *, exactly_once: bool) -> tuple[Check, ...]:
    """Return the checks of one asset, without those that only exactly-once promises unless `exactly_once` is set."""
    return tuple(check for check in CHECKS if check.asset == asset and (exactly_once or not check.exactly_once))
