"""The table of metrics: its names, its documentation, and the dashboard and rules that use it."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.support.prometheus import RULES, tool

from tidemark.metrics.metric import Metric, MetricType
from tidemark.metrics.table import METRICS, ROCKSDB
from tidemark.settings import project_root
from tidemark.stores.rocksdb import MEASURED_PROPERTIES

DASHBOARD = project_root() / "include" / "tidemark" / "metrics" / "grafana_dashboard.json"
_BY_NAME = {metric.name: metric for metric in METRICS}
_NAME = re.compile(r"\btidemark_[a-z_]+\b")
_MATCHERS = re.compile(r"(tidemark_[a-z_]+)\{([^}]*)\}")
_LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")


def row_of(metric: Metric) -> tuple[str, ...]:
    """The cells of a metric's row in the documentation."""
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"`{metric.name}`", metric.type.value, metric.unit, labels, metric.meaning


def test_the_documentation_should_have_the_table_of_the_code():
    text = (project_root() / "docs" / "metrics.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| `tidemark_")]
    found = [tuple(cell.strip() for cell in row.strip("|").split("|")) for row in rows]
    assert sorted(found) == sorted(map(row_of, METRICS))


def test_names_should_follow_prometheus():
    assert len(_BY_NAME) == len(METRICS)
    for metric in METRICS:
        assert metric.name.endswith("_total") == (metric.type is MetricType.COUNTER), metric.name
        for unit in ("seconds", "bytes"):
            assert (metric.unit == unit) == metric.name.removesuffix("_total").endswith(f"_{unit}"), metric.name
        assert "__" not in metric.name
        assert len(set(metric.labels)) == len(metric.labels)


def test_every_property_that_stores_measure_should_be_a_metric():
    assert tuple(ROCKSDB) == MEASURED_PROPERTIES


def _dashboard_expressions() -> Iterator[str]:
    dashboard = json.loads(DASHBOARD.read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]
    for variable in dashboard["templating"]["list"]:
        yield variable["query"]


def _rule_expressions() -> Iterator[str]:
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["expr"]


@pytest.mark.parametrize("expressions", [_dashboard_expressions, _rule_expressions])
def test_everything_that_uses_metrics_should_name_known_ones_with_their_labels(expressions):
    used = set()
    for expression in expressions():
        names = set(_NAME.findall(expression))
        assert names <= _BY_NAME.keys(), expression
        used |= names
        for name, matchers in _MATCHERS.findall(expression):
            assert set(_LABEL.findall(matchers)) <= set(_BY_NAME[name].labels), expression
    assert len(used) > 10


def test_every_rule_should_say_what_to_do():
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            assert rule["annotations"].keys() == {"summary", "action"}, rule["alert"]
            assert rule["labels"]["severity"] in {"critical", "warning"}
            assert f"`{rule['alert']}`" in (project_root() / "docs" / "metrics.md").read_text()


def test_prometheus_should_accept_the_rules_and_fire_each_when_it_should():
    promtool = tool("promtool")
    tests = Path(__file__).with_name("alert_rules_test.yaml")
    assert {rule["alert"] for g in yaml.safe_load(RULES.read_text())["groups"] for rule in g["rules"]} <= set(
        re.findall(r"Tidemark\w+", tests.read_text())
    )
    for command in (["check", "rules", str(RULES)], ["test", "rules", str(tests)]):
        done = subprocess.run([promtool, *command], capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
