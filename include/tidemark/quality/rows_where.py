"""The expectation of the audit's own checks: no row is so. All of one suite are counted in one pass over its table.

Great Expectations takes seconds to import, so whoever builds suites imports this module then.
"""

from __future__ import annotations

from typing import Any, ClassVar

from great_expectations.expectations.core.unexpected_rows_expectation import UnexpectedRowsExpectation

COUNT = "tidemark.rows_where"
"""The metric: how many rows meet `condition`. Where the suites run there must be a provider of it."""
ROWS = "table.row_count"


class RowsWhere(UnexpectedRowsExpectation):
    """No row meets `condition`, in the SQL of the engine; Data Docs show it as a query.

    Great Expectations' own runs each query twice, once to fetch rows; this one fetches none.
    """

    condition: str
    metric_dependencies: ClassVar[tuple[str, ...]] = (COUNT, ROWS)
    success_keys: ClassVar[tuple[str, ...]] = ("unexpected_rows_query", "condition")

    def _validate(
        self, metrics: dict[str, Any], runtime_configuration: Any = None, execution_engine: Any = None
    ) -> dict[str, Any]:
        unexpected = metrics[COUNT]
        return {
            "success": unexpected == 0,
            "result": {"observed_value": unexpected, "element_count": metrics[ROWS]},
        }
