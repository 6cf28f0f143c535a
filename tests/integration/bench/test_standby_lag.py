"""The lag of a standby in its shortest form: it is asked, and answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from bench.cases import CASES
from bench.standby_lag import measure

from tidemark.settings import Settings


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.timeout(400)
def test_should_measure_the_age_of_the_copies_while_a_stream_runs(tmp_path: Path, spark_jars: None) -> None:
    case = replace(CASES["hot"], keys=100, events=20_000, commit_interval_ms=200, max_batch_records=2_000)
    ages, _ = measure(case, tmp_path / "run", Settings.load())
    assert ages
    assert min(ages) >= 0
    assert not (tmp_path / "run").exists()
