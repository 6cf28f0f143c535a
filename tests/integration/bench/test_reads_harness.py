"""The reads in their shortest form, of the Kafka Streams peer: nothing is judged but the answers."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench import java_program
from bench.read_clients import Clients
from bench.read_run import Load
from bench.read_sides import StreamsReads
from bench.reads import measure

from tidemark.settings import Settings


@pytest.mark.broker
def test_should_compare_the_answers_of_a_store_that_is_read_while_its_stream_runs(tmp_path: Path) -> None:
    if java_program.compiler() is None:
        pytest.skip("there is no javac")
    settings = Settings.load()
    load = Load(keys=100, rate=500, history=1, seconds=5.0, warm_up_s=0.5, commit_interval_ms=100)
    with Clients(1, 2) as clients:
        result = measure(StreamsReads.of(settings, 1), 1, 0, load, clients, tmp_path / "run", settings)
    assert result.wrong == []
    assert result.checked > 300
    assert result.reads_per_s > 0
    assert result.p50 <= result.p99
    assert result.stream_kept > 0
    assert not (tmp_path / "run").exists()
