"""`make smoke`: recorded heartbeats through the whole stack, compared with an independent count.

A stack of its own, beside any that runs: broker, Airflow, the DAG, the instance that the DAG launches. 300 000 events,
some bad, late or out of order, go in; every count, changelog record, dead letter and commit record is then compared
with `tests.support.truth`. The stack is taken down whatever happens. Its folder stays when something was off.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from confluent_kafka.admin import AdminClient
from tests.support.truth.compare import Comparison, compare
from tests.support.truth.recompute import PATIENT_MONITORING, Truth, recompute
from tests.support.truth.topics import Place, committed_offsets, end_offsets, partitions

from demo.heartbeats.disorder import Disorder
from demo.heartbeats.producer import ReplayProducer
from demo.heartbeats.replay import Replay, ReplayOptions
from tidemark import processes
from tidemark.devstack import record, stack
from tidemark.devstack.airflow import AirflowApi, AirflowRefused
from tidemark.errors import TidemarkError
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.topics import ensure_user_topics
from tidemark.settings import Settings
from tidemark.topology_loader import load

DAG_ID = "stream__patient_monitoring"
RULES = PATIENT_MONITORING
EVENTS = 300_000
PATIENTS = 400
EVENTS_PER_SECOND = 20_000.0
"""So that the events come in many batches, and late ones after the batch that made them late."""
MAX_BATCH_RECORDS = 50_000
DISORDER = Disorder(seed=7, late=0.01, out_of_order=0.05, bad=0.01)
STALLED_AFTER_S = 180.0
_SAY_EVERY_S = 2.0


class SmokeFailed(Exception):
    """The stream did not get to the end."""


def report(text: str) -> None:
    """Print progress to stderr, because stdout has only the result."""
    print(f"smoke: {text}", file=sys.stderr, flush=True)


@contextmanager
def own_stack(folder: Path) -> Iterator[tuple[Settings, AirflowApi]]:
    """A stack in `folder`, up; down at the end, also when this process is killed."""
    kept = {"TIDEMARK_CACHE_DIR", "TIDEMARK_HOME"}
    for name in [name for name in os.environ if name.startswith("TIDEMARK_") and name not in kept]:
        del os.environ[name]
    (folder / "tidemark.toml").touch()
    os.environ |= {
        "TIDEMARK_VAR_DIR": str(folder / "var"),
        "TIDEMARK_STATE_DIR": str(folder / "state"),
        "TIDEMARK_CONFIG": str(folder / "tidemark.toml"),
        "TIDEMARK_MAX_BATCH_RECORDS": str(MAX_BATCH_RECORDS),
    }
    settings = Settings.load()
    stack_id = f"smoke-{uuid.uuid4()}"
    record.save(record.StackRecord(stack_id=stack_id, started_at=time.time()), settings.var_dir)
    with processes.guarded(stack_id):
        try:
            access = stack.up(settings).record.airflow
            if access is None:
                raise SmokeFailed("the stack came up without Airflow")
            yield Settings.load(), AirflowApi.of(access)
        finally:
            stack.down(settings, report)


def launch(settings: Settings, api: AirflowApi) -> None:
    """Create the user's topics and let the DAG launch the instance."""
    admin = AdminClient(librdkafka_config(settings))
    ensure_user_topics(load("patient_monitoring").plan(), settings, admin)
    api.wait_for_dag(DAG_ID)
    api.unpause(DAG_ID)
    report(f"{DAG_ID} unpaused")


def send(settings: Settings, events: int) -> None:
    """Replay the events."""
    options = ReplayOptions(
        topic=RULES.source_topic, patients=PATIENTS, rate=EVENTS_PER_SECOND, events=events, disorder=DISORDER
    )
    producer = ReplayProducer(options.topic, librdkafka_config(settings), settings.broker_timeout_ms / 1000)
    Replay(options, producer).run(_every_so_often(lambda sent: report(f"sent {sent} of {events} events")))


def wait_until_read(settings: Settings, api: AirflowApi) -> None:
    """Wait until the group has committed the source's end. Raises `SmokeFailed` when it stalls or its run fails."""
    places = partitions(settings.bootstrap_servers, [RULES.source_topic])
    ends = end_offsets(settings.bootstrap_servers, places, "read_committed")
    progress = _Progress(ends)

    def is_read() -> bool:
        committed = committed_offsets(settings.bootstrap_servers, RULES.application_id, places)
        if progress.is_stalled(committed):
            raise SmokeFailed(f"no commit for {STALLED_AFTER_S:.0f} s, {progress.left(committed)} events unread")
        with suppress(AirflowRefused):
            # On a busy machine it is silent for a while; the stream goes on without it.
            if any(run["state"] == "failed" for run in api.runs(DAG_ID)):
                raise SmokeFailed(f"a run of {DAG_ID} failed")
        return progress.left(committed) == 0

    processes.wait_until(is_read, 10 * STALLED_AFTER_S, every_s=0.5)


class _Progress:
    """Says how far the group is, and notices when it does not get further."""

    def __init__(self, ends: dict[Place, int]) -> None:
        self._ends = ends
        self._last = -1
        self._moved_at = time.monotonic()
        self._say = _every_so_often(lambda left: report(f"{left} events to go"))

    def left(self, committed: dict[Place, int]) -> int:
        """Events after the committed offsets."""
        return sum(end - max(0, committed[place]) for place, end in self._ends.items())

    def is_stalled(self, committed: dict[Place, int]) -> bool:
        """Whether nothing has been committed for a long time."""
        left = self.left(committed)
        self._say(left)
        if left != self._last:
            self._last, self._moved_at = left, time.monotonic()
        return time.monotonic() - self._moved_at > STALLED_AFTER_S


def _every_so_often(tell: Callable[[int], None]) -> Callable[[int], None]:
    last = [0.0]

    def maybe(number: int) -> None:
        if time.monotonic() - last[0] >= _SAY_EVERY_S:
            last[0] = time.monotonic()
            tell(number)

    return maybe


def result(truth: Truth, found: Comparison) -> str:
    """The last line."""
    return (
        f"smoke: events={truth.events} windows={len(truth.counts)} missing={found.missing} "
        f"duplicated={found.duplicated} wrong={found.wrong} dlq={found.dlq} expected_dlq={found.expected_dlq}"
    )


def run(folder: Path, events: int) -> bool:
    """The whole test; whether all was exact."""
    with own_stack(folder) as (settings, api):
        launch(settings, api)
        send(settings, events)
        wait_until_read(settings, api)
        report("all read, counting again in plain Python")
        truth = recompute(settings.bootstrap_servers, RULES)
        found = compare(settings.bootstrap_servers, truth, RULES)
    report(f"batches={truth.batches} outputs={truth.outputs} late_rows={truth.late_rows}")
    for line in found.report():
        report(line)
    exact = found.exact and truth.events == events and found.dlq == found.expected_dlq
    # A test that had nothing to find has shown nothing.
    vacuous = truth.late_rows == 0 or not truth.dead or truth.batches < 2
    if vacuous and events == EVENTS:
        report("no late records, no bad records or one batch only: nothing was tested")
    print(result(truth, found), flush=True)
    return exact and not (vacuous and events == EVENTS)


def main() -> int:
    """Exit code 0 when everything is exact, else 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=EVENTS)
    events = parser.parse_args().events
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    folder = Path(tempfile.mkdtemp(prefix="tidemark-smoke-"))
    passed = False
    try:
        passed = run(folder, events)
    except (SmokeFailed, TidemarkError) as error:
        report(f"failed: {error}")
    finally:
        if passed:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            report(f"logs are in {folder}/var")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
