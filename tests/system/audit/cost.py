"""`make audit-cost`: the cost of an audit, and its effect on the stream.

A real instance with Spark takes in so many payments, and is audited by the real job: one core, low priority, its start
included. With `--stream` input goes on meanwhile, and the rate at which the stream commits beside the audit is compared with
its rate afterwards: of so many records per second (`--rate`), or of more than the stream can take in (`--rate 0`), so that it
and the audit want both cores all the time. Last line:

    audit cost: records=N seconds=S per_million=P stream_undisturbed=R1 stream_beside=R2 share=R2/R1
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.sides import Command, Started, running
from bench.watch import CommittedOffsets
from confluent_kafka.admin import AdminClient
from tests.support.audit.application import payments
from tests.support.audit.load import Load

import topologies
from tidemark import processes
from tidemark.audit.job import AuditResult, run_audit
from tidemark.audit.suites import overall
from tidemark.devstack.broker import EmbeddedBroker
from tidemark.kafka import jars
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.topics import ensure_user_topics
from tidemark.settings import Settings, project_root

NAME = "paid"
_PARTITIONS = 2
_KEYS = 10_000
_PAST_MS = 300_000
_AHEAD = 1_000_000
_SAMPLE_S = 0.5
_STALLED_S = 180.0


@dataclass
class Progress:
    """What the group has committed of the source, sampled by a thread of its own: (seconds, records) in order."""

    bootstrap: str
    samples: list[tuple[float, int]] = field(default_factory=list)

    @property
    def committed(self) -> int:
        """Records, by the newest sample."""
        return self.samples[-1][1] if self.samples else 0

    def watch(self, stop: threading.Event) -> None:
        """Sample until stopped. Blocks."""
        with closing(CommittedOffsets(self.bootstrap, NAME, [f"{NAME}-in"], _PARTITIONS)) as offsets:
            while not stop.wait(_SAMPLE_S):
                # None is known while the coordinator moves.
                if committed := offsets.total():
                    self.samples.append((time.monotonic(), committed))

    def rate(self, since: float, until: float) -> float:
        """Records committed per second between two times."""
        inside = [sample for sample in self.samples if since <= sample[0] <= until]
        (first_s, first), (last_s, last) = inside[0], inside[-1]
        return (last - first) / (last_s - first_s)


@contextmanager
def beside(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Work in a thread, which is told to stop at the end."""
    stop = threading.Event()
    thread = threading.Thread(target=work, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def instance(settings: Settings) -> Command:
    """The command of the real instance."""
    root = project_root()
    program = [sys.executable, str(root / "spark_jobs" / "stream_instance.py"), "--topology", NAME, "--instance", "0"]
    paths = os.pathsep.join([str(root / "include"), str(root)])
    return Command(program, {**settings.as_environment(), "PYTHONPATH": paths, "SPARK_LOCAL_IP": "127.0.0.1"})


def caught_up(progress: Progress, started: Started, records: int) -> None:
    """Wait until so many records are committed. Raises when the instance ends or stands still."""
    moved, before = time.monotonic(), 0
    while progress.committed < records:
        if progress.committed > before:
            moved, before = time.monotonic(), progress.committed
        if started.process.poll() is not None or time.monotonic() - moved > _STALLED_S:
            raise RuntimeError(f"the instance stands still at {before} of {records} records")
        time.sleep(_SAMPLE_S)


def audited(settings: Settings, records: int) -> tuple[AuditResult, float]:
    """Audit, and print what it came to; seconds."""
    started = time.monotonic()
    result = run_audit(NAME, settings, tell=lambda progress: print(progress, flush=True))
    seconds = time.monotonic() - started
    failed = [found.message for found in result.findings if str(found.verdict) == "failed"]
    print(f"{overall(result.findings)}: {result.body['records']} records of all topics in {seconds:.0f} s", flush=True)
    if failed or records > result.body["records"]:
        raise RuntimeError(f"the audit of a healthy application of {records} records found {failed[:3]}")
    return result, seconds


def measure(settings: Settings, options: argparse.Namespace) -> str:
    """The last line."""
    load = Load(settings.bootstrap_servers, f"{NAME}-in", _KEYS)
    progress = Progress(settings.bootstrap_servers)
    now_ms = time.time_ns() // 1_000_000
    load.fill(options.records, now_ms - _PAST_MS, now_ms)
    print(f"{load.written} records written", flush=True)
    log = settings.var_dir.parent / "instance.log"
    with beside(progress.watch), running(instance(settings), log) as started:
        caught_up(progress, started, options.records)
        print(f"{progress.committed} records taken in", flush=True)
        if options.stream:
            return streaming(settings, options, load, progress)
    _, seconds = audited(settings, options.records)
    return line(options.records, seconds)


def streaming(settings: Settings, options: argparse.Namespace, load: Load, progress: Progress) -> str:
    """Audit while input goes on; then go on without."""
    begun, written = time.monotonic(), load.written

    def due() -> int:
        if options.rate == 0:
            return progress.committed + _AHEAD
        return written + int((time.monotonic() - begun) * options.rate)

    with beside(lambda stop: load.run(stop, due)):
        time.sleep(options.settle)
        records, since = progress.committed, time.monotonic()
        _, seconds = audited(settings, options.records)
        disturbed = progress.rate(since, since + seconds)
        behind = load.written - progress.committed
        time.sleep(options.settle)
        since = time.monotonic()
        time.sleep(options.window)
        undisturbed = progress.rate(since, since + options.window)
    print(f"{behind} records behind at the end of the audit", flush=True)
    if not undisturbed:
        raise RuntimeError(f"the stream committed nothing in {options.window:.0f} s without the audit")
    return (
        f"{line(records, seconds)} stream_undisturbed={undisturbed:.0f} stream_beside={disturbed:.0f} "
        f"share={disturbed / undisturbed:.2f}"
    )


def line(records: int, seconds: float) -> str:
    """The figures of an audit."""
    return f"audit cost: records={records} seconds={seconds:.0f} per_million={seconds / records * 1e6:.0f}"


def main() -> None:
    """Print what the module says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--stream", action="store_true", help="input goes on")
    parser.add_argument("--rate", type=int, default=0, help="records per second that come in, 0: more than it can take")
    parser.add_argument("--window", type=float, default=60, help="seconds of the undisturbed stream")
    parser.add_argument("--settle", type=float, default=15, help="seconds before each look at the stream")
    parser.add_argument(
        "--share", type=float, default=None, help="audit_time_share, the setting's default if not given"
    )
    options = parser.parse_args()
    mark = f"audit-{uuid.uuid4()}"
    os.environ[processes.MARK] = mark
    with (
        processes.guarded(mark),
        tempfile.TemporaryDirectory(prefix="tidemark-audit-") as text,
        EmbeddedBroker(Path(text) / "broker", jars.ensure("kafka", Settings.load())) as broker,
    ):
        folder = Path(text)
        shares = {} if options.share is None else {"audit_time_share": options.share}
        settings = Settings.load(
            bootstrap_servers=broker.bootstrap,
            var_dir=folder / "var",
            state_dir=folder / "state",
            num_partitions=_PARTITIONS,
            replication_factor=1,
            **shares,
        )
        (folder / "mine").mkdir()
        (folder / "mine" / f"{NAME}.py").write_text(
            f"from tests.support.audit.application import payments\n\n\ndef topology():\n    return payments({NAME!r})\n"
        )
        os.environ["TIDEMARK_TOPOLOGY_PATH"] = str(folder / "mine")
        topologies.__path__.append(str(folder / "mine"))
        ensure_user_topics(payments(NAME).plan(), settings, AdminClient(librdkafka_config(settings)))
        print(measure(settings, options))


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)
