"""The expectations as Great Expectations suites, one per asset, and the findings from their validation results.

Great Expectations takes seconds to import, so this module imports it when a suite is built.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemark.audit.contracts import expectation
from tidemark.audit.expectations import Check
from tidemark.verdict import MESSAGE_WITHOUT_RECORDS, Finding, Verdict, worst

if TYPE_CHECKING:
    from great_expectations import ExpectationSuite
    from great_expectations.expectations.expectation import Expectation

# Otherwise it reports every validation to its makers.
_NO_ANALYTICS = "GX_ANALYTICS_ENABLED"
_COORDINATES = ("task", "batch", "topic", "partition", "offset")
# In a contract's rows, the plain names are those of the record's own columns.
_CONTRACT_COORDINATES = tuple(f"__{name}" for name in _COORDINATES)
# After the frames of a traceback, which are indented, comes a line that begins with the class of the error.
_ERROR_CLASS = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n)+([\w.]+)", re.MULTILINE)


@dataclass(frozen=True)
class ExpectationOutcome:
    """The result of validating one expectation. `rows` is how many rows were checked.

    `broken` is the exception's text if the expectation could not be evaluated; Spark shows values of records in some of its
    texts. `broken_by` is the name of its class, if it is known.
    """

    name: str
    passed: bool
    unexpected_rows: int
    rows: int
    broken: str | None
    broken_by: str | None = None


def suite(asset: str, checks: Sequence[Check]) -> ExpectationSuite:
    """Return the suite of one asset. Each expectation's `meta` holds the check's name."""
    os.environ.setdefault(_NO_ANALYTICS, "false")
    from great_expectations import ExpectationSuite

    return ExpectationSuite(name=asset, expectations=[_expectation(check) for check in checks])


def _expectation(check: Check) -> Expectation:
    from great_expectations.expectations.metadata_types import FailureSeverity

    from tidemark.audit.rows_where import RowsWhere

    if check.rule is not None:
        return expectation(check, check.rule)
    return RowsWhere(
        unexpected_rows_query=f"SELECT * FROM {{batch}} WHERE {check.unexpected}",
        condition=check.unexpected,
        judged=check.judged,
        description=check.says,
        severity=FailureSeverity.WARNING if check.is_warning else FailureSeverity.CRITICAL,
        meta={"check": check.name},
    )


def outcomes(result: Mapping[str, Any]) -> list[ExpectationOutcome]:
    """Read an `ExpectationSuiteValidationResult` as JSON; unexpected rows and a check that failed to run are kept apart."""
    found = []
    for one in result["results"]:
        broken, broken_by = _exception(one.get("exception_info") or {})
        said = one.get("result") or {}
        observed = said.get("observed_value")
        unexpected = observed if isinstance(observed, int) else said.get("unexpected_count") or 0
        name, rows = one["expectation_config"]["meta"]["check"], said.get("element_count") or 0
        found.append(
            ExpectationOutcome(
                name, bool(one["success"]) and broken is None, int(unexpected), int(rows), broken, broken_by
            )
        )
    return found


def _exception(info: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return the message of an exception and the name of its class, each if it is known.

    Great Expectations gives one, or one per metric that failed.
    """
    given = [info] if "raised_exception" in info else [each for each in info.values() if isinstance(each, Mapping)]
    for each in given:
        if each.get("raised_exception"):
            text = str(each.get("exception_message") or each.get("exception_traceback") or "no message")
            error_class = _ERROR_CLASS.search(str(each.get("exception_traceback") or ""))
            return " ".join(text.split())[:500], None if error_class is None else error_class[1]
    return None, None


def finding(
    check: Check,
    outcome: ExpectationOutcome,
    examples: Sequence[Mapping[str, Any]],
    *,
    may_be_empty: bool = False,
) -> Finding:
    """Return the finding on one expectation. `examples` are some unexpected rows, as JSON types.

    `may_be_empty`: if it could judge no row, the batches gave nothing to judge, and that does not count in the verdict.
    """
    evidence: dict[str, Any] = {"expectation": check.name, "rows": outcome.rows}
    if outcome.broken is not None:
        where = f"{outcome.broken_by or 'an error'}, whose text is on the page of the audit"
        message, without_records = (
            f"the check itself failed, so nothing is known of the data: {why}; run the audit again"
            for why in (outcome.broken, where)
        )
        broken = {"broken": True, MESSAGE_WITHOUT_RECORDS: without_records}
        return Finding(check.name, Verdict.NOT_ENOUGH_EVIDENCE, message, evidence | broken)
    if outcome.passed:
        if not outcome.rows:
            evidence |= {NOT_COMPUTED: True} if may_be_empty else {}
            return Finding(check.name, Verdict.NOT_ENOUGH_EVIDENCE, f"no rows to check: {check.says}", evidence)
        return Finding(check.name, Verdict.OK, check.says, evidence)
    verdict = Verdict.WARNING if check.is_warning else Verdict.FAILED
    begin = f"{outcome.unexpected_rows} rows break this expectation: {check.says}; "
    found = {
        "unexpected": outcome.unexpected_rows,
        "examples": list(examples),
        MESSAGE_WITHOUT_RECORDS: (
            f"{begin}{_first(_coordinates(check, examples))}{check.remedy}; the rows are on the page of the audit, and in its "
            "folder `quarantine`"
        ),
    }
    return Finding(check.name, verdict, f"{begin}{_first(examples)}{check.remedy}", evidence | found)


NOT_COMPUTED = "not_computed"
"""Marks, in its evidence, a finding on what this audit had nothing to check of; it does not count in the verdict.

No audit of this topology can check it, or the batches gave nothing of the kind.
"""

NOTHING_NEW = "nothing_new"
"""Marks, in its evidence, the finding that there was no new batch to audit: what earlier audits found still holds."""


def overall(findings: Sequence[Finding]) -> Verdict:
    """Return the verdict of an audit."""
    return worst([found for found in findings if not found.evidence.get(NOT_COMPUTED)])


def _coordinates(check: Check, examples: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the part of each row that says where it is, and nothing of a record."""
    names = _COORDINATES if check.rule is None else _CONTRACT_COORDINATES
    where = ({name.lstrip("_"): example[name] for name in names if name in example} for example in examples)
    return [place for place in where if place]


def _first(examples: Sequence[Mapping[str, Any]]) -> str:
    if not examples:
        return ""
    shown = ", ".join(f"{name}={value}" for name, value in examples[0].items() if value is not None)
    return f"first {shown}; "
