"""The harness end to end with the Kafka Streams peer on 20 000 events: nothing is timed, only the output is judged."""

import json
import time
from pathlib import Path

import pytest
from bench import java_program, report
from bench.cases import CASES
from bench.events import base_ms
from bench.machine import machine
from bench.measure import Progress, measure
from bench.pages import publish
from bench.plots import plot
from bench.sides import StreamsSide

from tidemark.settings import Settings


@pytest.mark.broker
@pytest.mark.parametrize(("name", "results"), [("hot", 20_000), ("wide", 20_000), ("skewed", 4_754)])
def test_should_verify_and_report_the_output_of_the_compared_system(name: str, results: int, tmp_path: Path) -> None:
    if java_program.compiler() is None:
        pytest.skip("there is no javac")
    settings = Settings.load()
    case = CASES[name].sized(20_000)
    seen: list[int] = []
    progress = Progress(phase=lambda _: None, committed=seen.append)
    # Of now, as the benchmark's: a broker deletes what its timestamps say is older than a week.
    start_ms = base_ms(int(time.time() * 1000), case)
    result = measure(StreamsSide(settings, heap="256m"), case, start_ms, 0, tmp_path / "run", settings, progress)
    assert result.verdict.right
    assert result.verdict.results == results
    assert result.restart_s > 0
    assert seen[-1] == case.events
    assert not (tmp_path / "run").exists()

    facts = machine(settings)
    report.write_json(tmp_path / "results.json", [result], [case], facts)
    assert json.loads((tmp_path / "results.json").read_text())["runs"][0]["verdict"]["missing"] == 0
    (tmp_path / "summary.md").write_text(report.markdown([result], [case], facts))
    plot(tmp_path / "bench.png", [result], [case])
    (tmp_path / "benchmarks.md").write_text("a\n<!-- results: begin -->\nold\n<!-- results: end -->\nb\n")
    publish(tmp_path / "benchmarks.md", tmp_path / "summary.md", tmp_path / "bench.png", "medians")
    page = (tmp_path / "benchmarks.md").read_text()
    assert page.startswith("a\n")
    assert page.endswith("b\n")
    assert "![medians](images/benchmarks.png)" in page
    assert (tmp_path / "images" / "benchmarks.png").exists()
    assert "old" not in page
    assert "20,000 events; output of all runs: correct and equal" in page
