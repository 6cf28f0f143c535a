"""Expectations as Great Expectations sees them: bad data, a broken check, nothing to look at."""

from __future__ import annotations

import sqlite3

import pytest

from tidemark.audit.expectations import ASSETS, BY_NAME, CHECKS, Check, checks_of
from tidemark.audit.suites import ExpectationOutcome, finding, outcomes, overall, suite
from tidemark.redaction import redacted
from tidemark.topology.plan import Expected
from tidemark.verdict import Verdict

GAP = BY_NAME["ranges_leave_no_gap"]
CLOCK = BY_NAME["commits_follow_the_clock"]


def result(success=True, exception_info=None, rows=0):
    return {
        "results": [
            {
                "success": success,
                "expectation_config": {"meta": {"check": GAP.name}},
                "result": {"observed_value": rows, "element_count": 5},
                "exception_info": exception_info or {"raised_exception": False, "exception_message": None},
            }
        ]
    }


def test_should_declare_a_suite_per_asset_with_every_check_in_it():
    declared = [
        e.meta["check"] for asset in ASSETS for e in suite(asset, checks_of(asset, exactly_once=True)).expectations
    ]
    assert sorted(declared) == sorted(BY_NAME)
    assert len(BY_NAME) == len(CHECKS)


def test_should_claim_less_under_at_least_once():
    claimed = {check.name for asset in ASSETS for check in checks_of(asset, exactly_once=False)}
    assert {"outputs_are_not_lost", "no_transaction_hangs", "ranges_leave_no_gap"} <= claimed
    assert not claimed & {"outputs_are_not_doubled", "ranges_do_not_overlap", "no_update_comes_twice"}


@pytest.mark.parametrize(
    "info",
    [
        {"raised_exception": True, "exception_message": "no such\ncolumn", "exception_traceback": "…"},
        {
            "('unexpected_rows_query.table', 'a', 'b')": {
                "raised_exception": True,
                "exception_message": "no such\ncolumn",
            }
        },
    ],
)
def test_should_distinguish_a_broken_check_from_bad_data(info):
    (broken,) = outcomes(result(success=False, exception_info=info))
    assert broken == ExpectationOutcome(GAP.name, passed=False, unexpected_rows=0, rows=5, broken="no such column")
    summary = finding(GAP, broken, [])
    assert summary.verdict is Verdict.NOT_ENOUGH_EVIDENCE
    assert "the check itself failed" in summary.message
    assert summary.evidence["broken"] is True
    (bad,) = outcomes(result(success=False, rows=3))
    assert bad == ExpectationOutcome(GAP.name, passed=False, unexpected_rows=3, rows=5, broken=None)
    assert finding(GAP, bad, [{"task": "0_1", "batch": 7}]).verdict is Verdict.FAILED


SPARK_FAILED = """Traceback (most recent call last):
  File "great_expectations/execution_engine.py", line 5, in run
    return fn(**arguments)
pyspark.errors.exceptions.captured.NumberFormatException: [CAST_INVALID_INPUT] the value 'Jane Doe' cannot be cast
JVM stacktrace:
"""


@pytest.mark.parametrize(
    ("traceback", "named"),
    [(SPARK_FAILED, "pyspark.errors.exceptions.captured.NumberFormatException"), ("…", "an error")],
)
def test_should_name_the_class_of_an_error_where_its_text_may_show_records(traceback, named):
    info = {"raised_exception": True, "exception_message": "the value 'Jane Doe'", "exception_traceback": traceback}
    (broken,) = outcomes(result(success=False, exception_info=info))
    full = finding(GAP, broken, [])
    assert "Jane Doe" in full.message
    assert redacted(full).message == (
        f"the check itself failed, so nothing is known of the data: {named}, whose text is on the page of the audit; run the "
        "audit again"
    )
    assert redacted(full).evidence == {"expectation": GAP.name, "rows": 5}


def test_should_say_what_is_wrong_where_and_what_to_do():
    message = finding(GAP, ExpectationOutcome(GAP.name, False, 3, 5, None), [{"task": "0_1", "batch": 7}]).message
    assert message.startswith(
        "3 rows break this expectation: each batch begins where the one before it ended; first task=0_1, batch=7; "
    )
    assert message.endswith(GAP.remedy)


def test_should_name_the_place_of_a_record_that_breaks_a_contract_and_show_no_column_of_it():
    """Though its columns have the names of coordinates."""
    rule = Expected("v", True, None, None, None, None)
    check = Check("mid: v is not null", "contract of mid", "`v` IS NULL", "of mid, v is not null", "ask", rule=rule)
    place = {"__topic": "mid", "__partition": 0, "__offset": 17}
    own = dict.fromkeys(("task", "batch", "topic", "partition", "offset"), "Jane Doe")
    shown = redacted(finding(check, ExpectationOutcome(check.name, False, 1, 5, None), [{**place, **own}]))
    assert "; first topic=mid, partition=0, offset=17; " in shown.message
    assert "Jane Doe" not in str(shown)


def test_should_give_not_enough_evidence_when_nothing_was_checked():
    assert finding(GAP, ExpectationOutcome(GAP.name, True, 0, 1, None), []).verdict is Verdict.OK
    nothing = finding(GAP, ExpectationOutcome(GAP.name, True, 0, 0, None), [])
    assert (nothing.verdict, overall([nothing])) == (Verdict.NOT_ENOUGH_EVIDENCE, Verdict.NOT_ENOUGH_EVIDENCE)


def test_should_not_count_an_expectation_of_which_the_batches_had_nothing_to_check():
    """A stream without a bad record or a final result is not at fault, but that is no proof either."""
    nothing = finding(
        BY_NAME["finals_are_there_with_their_value"],
        ExpectationOutcome("finals", True, 0, 0, None),
        [],
        may_be_empty=True,
    )
    fine = finding(GAP, ExpectationOutcome(GAP.name, True, 0, 1, None), [])
    assert nothing.verdict is Verdict.NOT_ENOUGH_EVIDENCE
    assert overall([nothing, fine]) is Verdict.OK
    assert overall([nothing]) is Verdict.NOT_ENOUGH_EVIDENCE


def test_should_warn_when_nothing_is_lost():
    assert finding(CLOCK, ExpectationOutcome(CLOCK.name, False, 1, 5, None), []).verdict is Verdict.WARNING


@pytest.mark.parametrize(
    ("offset", "is_expected", "is_equal", "is_compacted", "is_unexpected"),
    [
        (None, True, False, False, True),
        (None, True, False, True, False),
        (5, True, False, False, True),
        (5, True, False, True, True),
        (5, True, True, False, False),
        (5, False, False, False, False),
    ],
)
def test_should_not_expect_a_final_result_that_may_have_been_deleted(
    offset, is_expected, is_equal, is_compacted, is_unexpected
):
    check = BY_NAME["finals_are_there_with_their_value"]
    query = (
        f"SELECT {check.unexpected} FROM (SELECT 'final' AS role, ? AS offset, ? AS is_expected, ? AS is_equal, "
        "? AS is_compacted)"
    )
    (found,) = sqlite3.connect(":memory:").execute(query, (offset, is_expected, is_equal, is_compacted)).fetchone()
    assert bool(found) is is_unexpected


FIRST = {"previous_end": None, "previous_batch": None, "previous_stream_time_ms": None, "previous_commit_ms": None}
LATER = dict.fromkeys(FIRST, 1)
COMMIT = {"kind": "batch", "start_offset": 1, "batch": 2, "stream_time_ms": 1, "commit_time_ms": 1}
UPDATE = {"role": "update", "is_copy": False, "is_expected": True, "is_equal": True, "is_compacted": False, "offset": 5}
GONE = {**UPDATE, "offset": None, "is_equal": False, "is_compacted": True}
SURPLUS = {**UPDATE, "is_expected": False, "is_equal": False}
COUNT = {"role": "sink", "found": 1, "keyless": 0, "claimed": 1, "is_compacted": False}
LETTER = {"letter_offset": 3, "copies": 1, "is_bad": True}
ROWS = {
    "commits": [{**COMMIT, **FIRST}, {**COMMIT, **LATER}],
    "results": [
        {**row, "role": role}
        for role in ("update", "final")
        for row in (UPDATE, GONE, SURPLUS, {**UPDATE, "is_compacted": True}, {**GONE, "is_compacted": False})
    ],
    "counts": [{**COUNT, "role": r, "is_compacted": old} for r in ("sink", "changelog") for old in (False, True)],
    "letters": [LETTER, {**LETTER, "letter_offset": None}, {**LETTER, "is_bad": False}],
    "placement": [{"role": role, "home": 0, "partition": 0} for role in ("source", "sink", "changelog")],
}
JUDGED = {
    "ranges_leave_no_gap": [1],
    "ranges_do_not_overlap": [1],
    "batches_are_numbered_without_gap": [1],
    "stream_time_never_goes_back": [1],
    "commits_follow_the_clock": [1],
    "every_update_is_there": [0, 4],
    "no_update_comes_twice": [0, 2, 3],
    "every_update_has_its_value": [0, 3],
    "one_final_per_window_and_key": [5, 7, 8],
    "finals_are_there_with_their_value": [5, 8, 9],
    "outputs_are_not_lost": [0],
    "outputs_are_not_doubled": [0, 1],
    "changelogs_are_not_lost": [2],
    "changelogs_are_not_doubled": [2, 3],
    "dead_letters_are_not_lost": [0, 1],
    "dead_letters_are_not_doubled": [0, 2],
    "records_are_in_the_partition_of_their_key": [1, 2],
    "sources_are_partitioned_by_key": [0],
}


def meets(condition, row):
    columns = ", ".join(f"? AS {name}" for name in row)
    query = f"SELECT {condition} FROM (SELECT {columns})"
    return bool(sqlite3.connect(":memory:").execute(query, tuple(row.values())).fetchone()[0])


@pytest.mark.parametrize("name", JUDGED)
def test_should_count_only_the_rows_that_an_expectation_can_judge(name):
    check = BY_NAME[name]
    rows = ROWS[check.asset]
    assert [number for number, row in enumerate(rows) if meets(check.judged, row)] == JUDGED[name]
    # What is not expected was judged.
    assert not any(meets(check.unexpected, row) and not meets(check.judged, row) for row in rows)


def test_should_know_the_rows_that_each_expectation_on_several_kinds_of_rows_can_judge():
    assert {check.name for check in CHECKS if check.asset in ROWS} == JUDGED.keys()
