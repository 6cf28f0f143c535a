"""The expectation that the audit's own checks use: no row meets a condition. All of one suite are counted in one pass.

Great Expectations takes seconds to import, so this module is imported only when suites are built.
"""

from __future__ import annotations

from typing import Any, ClassVar

from great_expectations.expectations.core.unexpected_rows_expectation import UnexpectedRowsExpectation

COUNT = "tidemark.rows_where"
"""The metric: how many rows meet `condition`. The program that runs the suites must have a provider of both metrics."""
JUDGED = "tidemark.rows_judged"
"""The metric: how many rows meet `judged`."""


class RowsWhere(UnexpectedRowsExpectation):
    """No row meets `condition`, in the SQL of the engine; Data Docs show it as a query.

    Only rows that meet `judged` count as checked: in the others, what the condition compares with is not known.
    The expectation of Great Expectations runs each query twice, once to fetch rows; this one fetches none.
    """

    condition: str
    judged: str
    metric_dependencies: ClassVar[tuple[str, ...]] = (COUNT, JUDGED)
    success_keys: ClassVar[tuple[str, ...]] = ("unexpected_rows_query", "condition", "judged")

    def _validate(
        self, metrics: dict[str, Any], runtime_configuration: Any = None, execution_engine: Any = None
    ) -> dict[str, Any]:
        unexpected = metrics[COUNT]
        return {
            "success": unexpected == 0,
            "result": {"observed_value": unexpected, "element_count": metrics[JUDGED]},
        }
