"""The cells of the reports' tables."""

import pytest
from bench.pages import median_and_runs


@pytest.mark.parametrize(
    ("runs", "cell"), [([], "–"), ([1.26], "1.3"), ([3.0, 1.0], "2.0 (3.0, 1.0)"), ([9, 1, 2], "2.0 (9.0, 1.0, 2.0)")]
)
def test_should_show_the_median_and_each_run_if_there_are_several(runs, cell):
    assert median_and_runs(runs, "{:.1f}".format) == cell
