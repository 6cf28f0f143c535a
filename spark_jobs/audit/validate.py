"""Runs the suites with Great Expectations on Spark, and fetches the unexpected rows."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from tidemark.audit.expectations import Check
from tidemark.audit.suites import finding, outcomes, suite
from tidemark.verdict import Finding

_SHOWN = 3
_QUARANTINED = 10_000


@dataclass(frozen=True)
class Validated:
    """The result of one asset's suite. `quarantined` has the unexpected rows by check; `result` is Great Expectations' own.

    `rows` is the number of rows that were checked, or None if it is unknown.
    """

    rows: int | None
    findings: Sequence[Finding]
    quarantined: Mapping[str, Sequence[Mapping[str, Any]]]
    result: Mapping[str, Any]


class Validator:
    """A Great Expectations context. With a folder `docs`, it stores validations there and builds Data Docs."""

    def __init__(self, run_name: str, docs: Path | None = None) -> None:
        os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
        import great_expectations as gx
        from great_expectations.data_context.types.base import ProgressBarsConfig

        import spark_jobs.audit.metrics  # noqa: F401

        self._context = gx.get_context(mode="ephemeral")
        self._context.variables.progress_bars = ProgressBarsConfig(globally=False)
        self._source = self._context.data_sources.add_spark("audit", persist=False)
        self._docs = docs
        self._run_name = run_name
        if docs is not None:
            self._context.add_data_docs_site("local", _site(docs))

    def validate(self, asset: str, frame: DataFrame, checks: Sequence[Check], may_be_empty: bool) -> Validated:
        """Evaluate the checks of one asset. Blocks. A check that breaks is a finding and raises no exception."""
        import great_expectations as gx

        definition = self._source.add_dataframe_asset(asset).add_batch_definition_whole_dataframe("cut")
        kept = self._context.suites.add(suite(asset, checks))
        validation = self._context.validation_definitions.add(
            gx.ValidationDefinition(name=asset, data=definition, suite=kept)
        )
        ran = validation.run(
            batch_parameters={"dataframe": frame},
            result_format="SUMMARY",
            run_id=gx.RunIdentifier(run_name=self._run_name),
        )
        result = ran.to_json_dict()
        by_name = {outcome.name: outcome for outcome in outcomes(result)}
        findings, quarantined = [], {}
        for check in checks:
            outcome = by_name[check.name]
            unexpected: list[dict[str, Any]] = []
            if not outcome.passed and outcome.broken is None:
                found = frame.where(check.unexpected).limit(_QUARANTINED).selectExpr("to_json(struct(*)) AS row")
                unexpected = [json.loads(row["row"]) for row in found.collect()]
                quarantined[check.name] = unexpected
            findings.append(finding(check, outcome, unexpected[:_SHOWN], may_be_empty=may_be_empty))
        rows = max((outcome.rows for outcome in by_name.values() if outcome.broken is None), default=None)
        return Validated(rows, findings, quarantined, result)

    def build_docs(self) -> None:
        """Build Great Expectations' own pages about the validations."""
        if self._docs is not None:
            self._context.build_data_docs()


def _site(folder: Path) -> Any:
    return {
        "class_name": "SiteBuilder",
        "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
        "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(folder)},
    }
