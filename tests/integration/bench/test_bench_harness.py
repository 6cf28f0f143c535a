"""The harness end to end on few events: nothing is timed, only the outputs are judged."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from bench import java_program, report
from bench.case import AT_LEAST_ONCE, CONSUMER, PEER, QUIX, SPARK, Case
from bench.cases import CASES
from bench.events import base_ms
from bench.machine import machine
from bench.measure import Progress, measure
from bench.pages import publish
from bench.plots import plot
from bench.python_sides import PlainSparkSide, QuixSide
from bench.sides import Side, StreamsSide, TidemarkSide, at_least_once, raw_consumer

from tidemark.settings import Settings


@pytest.mark.broker
@pytest.mark.parametrize(
    ("name", "instances", "results"), [("hot", 2, 20_000), ("wide", 1, 20_000), ("skewed", 1, 4_754)]
)
def test_should_verify_and_report_the_output_of_the_compared_system(
    name: str, instances: int, results: int, tmp_path: Path
) -> None:
    if java_program.compiler() is None:
        pytest.skip("there is no javac")
    settings = Settings.load()
    case = CASES[name].sized(20_000).with_instances(instances)
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


def _short(case: Case) -> Case:
    """Return a case in several batches, with few patients, so that their windows and sessions end within few events."""
    return replace(case, keys=100, events=10_000, commit_interval_ms=200, max_batch_records=3_000)


@pytest.mark.broker
def test_the_floor_should_read_and_commit_the_whole_input_and_have_no_output_to_verify(tmp_path: Path) -> None:
    if java_program.compiler() is None:
        pytest.skip("there is no javac")
    settings = Settings.load()
    case = CASES["floor"].sized(20_000)
    seen: list[int] = []
    progress = Progress(phase=lambda _: None, committed=seen.append)
    side, start_ms = raw_consumer(settings, "256m"), base_ms(int(time.time() * 1000), case)
    result = measure(side, case, start_ms, 0, tmp_path / "run", settings, progress)
    assert (result.side, result.verdict, seen[-1]) == (CONSUMER, None, case.events)
    assert result.restart_s > 0
    assert not (tmp_path / "run").exists()


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "name", ["large", "suppress", "sessions", "join", "exactly_once", "processor", "arrow_processor", "plain_spark"]
)
def test_should_find_the_same_results_of_both_sides(name: str, tmp_path: Path, spark_jars: None) -> None:
    settings = Settings.load()
    case = _short(CASES[name])
    if case.against == PEER and java_program.compiler() is None:
        pytest.skip("there is no javac")
    start_ms = base_ms(int(time.time() * 1000), case)
    quiet = Progress(phase=lambda _: None, committed=lambda _: None)
    others: dict[str, Side] = {
        PEER: StreamsSide(settings, heap="256m"),
        AT_LEAST_ONCE: at_least_once(settings, "512m", {}),
        QUIX: QuixSide(),
        SPARK: PlainSparkSide(settings, heap="512m"),
    }
    sides = [others[case.against], TidemarkSide(settings, heap="512m")]
    results = [measure(side, case, start_ms, 0, tmp_path / side.name, settings, quiet) for side in sides]
    assert [result.verdict.right for result in results] == [True, True]
    assert report.agree(results, case.name)
    assert results[0].verdict.results >= case.keys
