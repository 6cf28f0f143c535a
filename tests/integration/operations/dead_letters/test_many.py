"""More unreadable records than one batch may have: a small form of `make letters`."""

from __future__ import annotations

import pytest
from spark_jobs.bounded_read import LETTERS_AT_ONCE
from tests.system.dead_letters.many import MOST_COLLECTING, ManyLetters, get_through, wrong_letters


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.timeout(400)
def test_should_get_through_more_bad_records_than_a_batch_may_have(broker, spark_jars, tmp_path):
    bench = ManyLetters(broker.bootstrap, tmp_path / "bench", seed=1)
    bench.heap = "512m"
    bench.fill(2 * LETTERS_AT_ONCE + 1)
    try:
        passed = get_through(bench, lambda _committed: None)
        assert passed.collecting < MOST_COLLECTING, passed
        assert wrong_letters(bench) == []
    finally:
        bench.end_all()
