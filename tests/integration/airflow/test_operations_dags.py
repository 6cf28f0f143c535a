"""The DAGs of operations, run as a whole by Airflow on a real broker: tasks end as the verdicts say."""

from __future__ import annotations

import importlib.util
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ClientPartition
from tests.support.airflow.approving import answer, approve, ask
from tests.support.alert_notes import noted
from tests.support.counting import CountingApp, counting

from tidemark.checks.store_growth import history_path, read
from tidemark.checks.verdict_table import past_verdicts
from tidemark.clock import wall_clock_ms
from tidemark.database import FactsDatabase
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.preflight import preflight
from tidemark.kafka.topics import ensure_user_topics, partition_counts, task_ids
from tidemark.operations.savepoint import SavepointCommand
from tidemark.operations.topic_changes import TopicChange, apply_changes
from tidemark.savepoints.repository import SavepointRepository
from tidemark.settings import project_root

pytestmark = [pytest.mark.broker, pytest.mark.airflow]


def a_group(name, committed, operations, admin):
    """Three records, and a group that stands at `committed`, None for nowhere."""
    plan = counting(name).plan()
    ensure_user_topics(plan, operations.settings, admin)
    preflight(plan, operations.settings, admin)
    producer = Producer(librdkafka_config(operations.settings))
    for _ in range(3):
        producer.produce(f"{name}-in", b"{}", b"k")
    assert producer.flush(60) == 0
    if committed is not None:
        consumer = Consumer({**librdkafka_config(operations.settings), "group.id": name})
        consumer.commit(offsets=[ClientPartition(f"{name}-in", 0, committed)], asynchronous=False)
        consumer.close()
    return operations.topology(name)


def test_should_end_each_task_of_a_check_as_its_verdict_says(operations, admin, unique):
    level, lost, unknown = (
        a_group(unique(name), committed, operations, admin)
        for name, committed in (("level", 3), ("lost", 9), ("unknown", None))
    )
    told_before = len(noted(operations.notes))
    ended, log = operations.airflow.run("lag_check", {"topologies": [level, lost, unknown]})
    assert ended == {
        "run": "failed",
        "tasks": {"topologies": "success", "lag[0]": "success", "lag[1]": "failed", "lag[2]": "skipped"},
    }
    assert "beyond the end 3: the topic was created again, or it was truncated" in log
    alerts = noted(operations.notes)[told_before:]
    assert [(alert["what"], alert["application_id"]) for alert in alerts] == [("check failed", unique("lost"))]
    assert alerts[0]["message"].startswith(f"lag_check.lag: lag of {lost}: {unique('lost')}-in[0]: ")
    kept = list(past_verdicts(FactsDatabase(operations.settings), unique("lost"), "lag"))
    assert [(row.finding.subject, str(row.finding.verdict)) for row in kept] == [
        ("transactions", "ok"),
        (f"{unique('lost')}-in[0]", "failed"),
    ]


def test_a_run_that_cannot_be_made_should_fail_its_test_with_what_it_wrote(operations):
    with pytest.raises(AssertionError, match="KeyError: 'no_such_dag'"):
        operations.airflow.run("no_such_dag", {})


def test_should_take_a_savepoint_verify_it_and_expire_old_ones(operations, admin, unique):
    app = CountingApp(operations.settings, admin, unique("saved"))
    app.feed(300)
    app.run()
    module = operations.topology(app.name)
    never = operations.topology(unique("never"))
    repository = SavepointRepository(operations.settings.savepoint_location, app.name)
    tasks = task_ids(app.plan, partition_counts(admin, app.settings))
    old = SavepointCommand(app.plan, app.settings, app.admin, tasks, lambda _copied: None, wall_clock_ms).take()
    ended, _ = operations.airflow.run("savepoint", {"topologies": [module, never], "keep": 1})
    steps = [f"saved.{step}" for step in ("take", "verify", "expire")]
    assert ended["tasks"] == {
        "topologies": "success",
        **{f"{step}[0]": "success" for step in steps},
        **{f"{step}[1]": "skipped" for step in steps},
    }
    (left,) = repository.savepoints()
    (said,) = past_verdicts(FactsDatabase(operations.settings), app.name, "savepoint")
    assert left.is_complete
    assert said.finding.subject == left.savepoint_id != old.manifest.savepoint_id
    assert said.finding.evidence["tasks"] == len(tasks)


def test_should_keep_a_sample_of_store_sizes_when_retention_is_checked(operations, admin, unique):
    app = CountingApp(operations.settings, admin, unique("grown"))
    app.feed(100)
    app.run()
    modules = [operations.topology(app.name), operations.topology(unique("never-ran"))]
    ended, _ = operations.airflow.run("retention_check", {"topologies": modules})
    assert ended["tasks"] == {"topologies": "success", "retention[0]": "success", "retention[1]": "skipped"}
    kept = read(history_path(operations.settings.var_dir, app.name))
    assert {(sample.task, sample.store) for sample in kept} == {("0_0", "n"), ("0_1", "n")}
    assert all(sample.bytes_disk and sample.offsets_topic for sample in kept)
    assert not history_path(operations.settings.var_dir, unique("never-ran")).exists()


def compaction_dag():
    file = importlib.util.spec_from_file_location("compaction_check", project_root() / "dags" / "compaction_check.py")
    dag_file = importlib.util.module_from_spec(file)
    file.loader.exec_module(dag_file)
    return dag_file.dag


def test_should_fail_the_run_of_a_failed_check_even_when_there_is_nothing_to_set(operations, admin, unique):
    fine, never_compacted = (CountingApp(operations.settings, admin, unique(name)) for name in ("fine", "dirty"))
    for app in (fine, never_compacted):
        app.feed(10)
        app.run()
    wrong = TopicChange(f"{never_compacted.name}-n-changelog", "cleanup.policy", "", "delete")
    apply_changes([wrong], operations.settings, admin)
    modules = [operations.topology(app.name) for app in (fine, never_compacted)]
    skipped = dict.fromkeys(("differences", "approval", "set_topics"), "skipped")

    ended, log = operations.airflow.run("compaction_check", {"topologies": modules})
    checks = {"topologies": "success", "compaction[0]": "success", "compaction[1]": "failed"}
    assert ended == {"run": "failed", "tasks": {**checks, **skipped, "done": "upstream_failed"}}
    assert "cleanup.policy=delete, so it is never compacted" in log

    ended, _ = operations.airflow.run("compaction_check", {"topologies": modules[:1]})
    checks = {"topologies": "success", "compaction[0]": "success"}
    assert ended == {"run": "success", "tasks": {**checks, **skipped, "done": "skipped"}}


@pytest.mark.parametrize(("named", "asked"), [('["ada", "grace"]', ["ada", "grace"]), ("[]", [])])
def test_should_ask_only_the_approvers_when_the_settings_name_them(named, asked, monkeypatch):
    monkeypatch.setenv("TIDEMARK_ONCALL_APPROVERS", named)
    assert [user["id"] for user in compaction_dag().get_task("approval").assigned_users or []] == asked


@pytest.fixture
def altered(operations, admin, unique, monkeypatch):
    """`found(context)` and `set_topics(context)`, the topics that differ, and what alters them; a run that is to set them."""
    app = CountingApp(operations.settings, admin, unique("altered"))
    app.feed(10)
    app.run()
    module = operations.topology(app.name)
    for name, value in operations.settings.as_environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("topologies.__path__", [str(operations.folder)])
    topics = [f"{app.name}-n-changelog", f"{app.name}-commits"]
    minutes = iter(range(60))

    def alter(topic, value="1"):
        apply_changes([TopicChange(topic, "min.compaction.lag.ms", "", value)], operations.settings, admin)

    def run(apply=True):
        when = datetime.now(UTC) + timedelta(minutes=next(minutes))
        asked_by = SimpleNamespace(dag_id="compaction_check", run_id="run", run_after=when, triggering_user_name="ada")
        return {"params": {"topologies": [module], "apply": apply}, "dag_run": asked_by}

    for topic in topics:
        alter(topic)
    task = compaction_dag().get_task
    return SimpleNamespace(
        found=lambda context: task("differences").python_callable(**context),
        set_topics=lambda context: task("set_topics").python_callable(**context),
        topics=topics, alter=alter, run=run,
    )  # fmt: skip


def test_should_set_once_what_was_approved_and_nothing_else(altered):
    with pytest.raises(AirflowSkipException, match="the parameter apply is off"):
        altered.found(altered.run(apply=False))
    first = altered.run()
    differences = altered.found(first)
    assert {(d["topic"], d["setting"], d["found"]) for d in differences} == {
        (topic, "min.compaction.lag.ms", "1") for topic in altered.topics
    }
    body = ask(first, is_about_topics=True)["body"]
    assert all(f"`{topic}`: min.compaction.lag.ms from 1 to " in body for topic in altered.topics)
    answer(first, is_about_topics=True)
    assert altered.set_topics(first) == 2
    with pytest.raises(AirflowSkipException, match="every topic has the settings that its topology asks for"):
        altered.found(altered.run())
    # Cleared, it sets nothing again that somebody has altered since.
    altered.alter(altered.topics[0])
    assert altered.set_topics(first) == 0
    assert {d["topic"] for d in altered.found(altered.run())} == {altered.topics[0]}


def test_should_not_set_topic_settings_when_nobody_has_approved_them(altered, monkeypatch):
    run = altered.run()
    found = altered.found(run)

    def is_refused(summary):
        with pytest.raises(AirflowFailException, match=summary):
            altered.set_topics(run)
        assert altered.found(altered.run()) == found

    is_refused("marking the task as successful is not an answer")
    ask(run, is_about_topics=True)
    answer(run, "Reject", is_about_topics=True)
    is_refused("grace answered Reject")
    monkeypatch.setenv("TIDEMARK_ONCALL_APPROVERS", '["ada"]')
    ask(run, is_about_topics=True)
    with pytest.raises(AirflowFailException, match=r"grace .* is not in the setting oncall_approvers"):
        answer(run, is_about_topics=True)
    is_refused(r"grace .* is not in the setting oncall_approvers")
    monkeypatch.delenv("TIDEMARK_ONCALL_APPROVERS")
    approve(run, is_about_topics=True)
    altered.alter(altered.topics[0], "2")
    found = altered.found(altered.run())
    is_refused(r'found is "2" now and was "1" when the plan was made')
