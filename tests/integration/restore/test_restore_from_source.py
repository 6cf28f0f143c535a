"""Recomputation of state from the start of the source topic, by a real Spark job: `restore run --from source`."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
import tempfile

import pytest
from confluent_kafka import Producer
from tests.integration.restore.test_restore_run import counts_of, planned, restore
from tests.support.counting import PARTITIONS, CountingApp, Crash, crash_at
from tests.support.purging import purge

from tidemark.errors import ExitCode, OutcomeUnknown, StartRefused
from tidemark.names import TaskId, TopicPartition
from tidemark.operations.restore.run import RestoreRun
from tidemark.operations.workspace import RestoreState
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.restore import recompute
from tidemark.restore.listener import LoggingRestoreListener
from tidemark.restore.recompute import Recomputation
from tidemark.restore.restorer import RestoreSuspended
from tidemark.settings import project_root
from tidemark.stores.directory import folder_of
from tidemark.stores.protocol import WHOLE
from tidemark.stores.rocksdb import opened
from tidemark.tasks.values import value_layouts
from tidemark.temporary_folder import TEMPORARY_FOLDER
from tidemark.topology.builder import Topology

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(480)]
NO_PROBE = lambda _point: None  # noqa: E731


@pytest.fixture
def app(settings, admin, unique, spark_jars):
    """Everything committed, then the state folder is gone. Batches are so small that the job needs several."""
    small = settings.model_copy(update={"max_batch_records": 600})
    made = CountingApp(small, admin, unique("counting"))
    made.feed(2000)
    made.run()
    shutil.rmtree(made.settings.state_dir)
    return made


class Told(LoggingRestoreListener):
    """Remembers how far each source partition was said to be, and the ends."""

    def __init__(self):
        super().__init__()
        self.batches: dict[TopicPartition, list[int]] = {}
        self.ends: dict[TopicPartition, int] = {}

    def on_batch_restored(self, progress):
        self.batches.setdefault(progress.changelog, []).append(progress.next_offset)

    def on_restore_end(self, progress):
        self.ends[progress.changelog] = progress.end_offset


def test_should_recompute_a_lost_state_verify_it_and_continue(app):
    listener = Told()
    done, workspace, _ = restore(app, SourceOfState.SOURCE, listener=listener)
    assert done.state is RestoreState.DONE
    assert [verdict.different for verdict in done.verdicts.values()] == [0, 0]
    assert counts_of(app) == app.expected
    assert not (workspace.folder / "recomputed").exists()
    assert not [path for path in (app.settings.state_dir / TEMPORARY_FOLDER).glob("*/*") if path.is_dir()]
    for partition in range(PARTITIONS):
        place = TopicPartition(f"{app.name}-in", partition)
        assert listener.batches[place] == sorted(set(listener.batches[place]))
        assert len(listener.batches[place]) > 1
        assert listener.batches[place][-1] == listener.ends[place]
    app.feed(300)
    app.run()
    assert counts_of(app) == app.expected


def test_should_recompute_what_the_changelog_has_lost(app):
    purge(app.admin, app.settings, {TopicPartition(f"{app.name}-n-changelog", p): -1 for p in range(PARTITIONS)})
    with pytest.raises(StartRefused, match="has lost its beginning"):
        planned(app)
    restore(app, SourceOfState.SOURCE)
    assert counts_of(app) == app.expected


def test_should_begin_again_after_a_crash_and_end_when_asked_to(app):
    def ask_to_end(at):
        raise AssertionError(f"not to be reached: {at}")

    context, workspace = planned(app, SourceOfState.SOURCE)
    with pytest.raises(Crash):
        RestoreRun(context, workspace, LoggingRestoreListener(), crash_at("restore-recomputed"), [].append).run()

    class Asking(LoggingRestoreListener):
        def on_batch_restored(self, progress):
            workspace.abort()

    with pytest.raises(RestoreSuspended):
        RestoreRun(context, workspace, Asking(), ask_to_end, [].append).run()
    assert workspace.progress().state is RestoreState.ABORTED


def test_should_leave_out_the_records_for_which_the_sql_of_another_path_raises(
    settings, create_topic, unique, spark_jars, tmp_path
):
    """The application has processed nothing of them: they are dead letters."""
    topic = create_topic(unique("in"), partitions=1)
    topology = Topology(unique("two-paths"))
    stream = topology.stream(topic, schema="id STRING, words STRING, n INT")
    stream.select("id", word="element_at(split(words, ' '), n)").to("words")
    stream.group_by_key().count(name="n", store="n")
    producer = Producer({"bootstrap.servers": settings.bootstrap_servers})
    for number in (1, 0, 1, 2, 0):
        producer.produce(topic, json.dumps({"id": "a", "words": "x y", "n": number}).encode(), b"a", partition=0)
    assert producer.flush(60) == 0
    asked = Recomputation(topology.plan(), frozenset({"n"}), {TaskId(0, 0): {topic: 5}}, tmp_path / "recomputed")
    recompute.recompute(asked, settings, LoggingRestoreListener(), lambda: True)
    (layout,) = value_layouts(asked.plan.subtopologies[0]).values()
    with opened(folder_of(asked.folder, TaskId(0, 0), "n")) as store:
        ((_, value),) = store.items(WHOLE)
    decoded = layout.decode([value])
    assert decoded[decoded.dtype.names[-1]].tolist() == [3]


def test_should_report_the_message_of_a_job_that_fails(app, tmp_path, monkeypatch):
    script = tmp_path / "job.py"
    script.write_text("import sys\nprint('tidemark: no broker', file=sys.stderr)\nsys.exit(10)\n")
    monkeypatch.setattr(recompute, "_SCRIPT", script)
    with pytest.raises(OutcomeUnknown, match="ended with exit code 10: no broker"):
        restore(app, SourceOfState.SOURCE)


def test_should_end_the_job_when_its_caller_ends(app, tmp_path):
    script = project_root() / "spark_jobs" / "recompute.py"
    # With the caller its end of the pipe is gone; a job that did not notice would have nothing to do, and end with 0.
    with tempfile.TemporaryFile() as request:
        request.write(pickle.dumps(Recomputation(app.plan, frozenset(), {}, tmp_path)))
        request.seek(0)
        handed = request.fileno()
        command = [sys.executable, script, str(handed)]
        ended = subprocess.run(command, input=b"", timeout=180, check=False, pass_fds=[handed])
    assert ended.returncode == ExitCode.RETRY
