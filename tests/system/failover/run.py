"""`make failover` measures how long the tasks of a lost instance neither run nor commit, and which queries are answered.

    python -m tests.system.failover.run [--records N] [--seed N] [--only TEXT …] [--peer none] [--report FILE]

Each case is played with and without a standby, with another instance and with none, and ends with a comparison of topics,
offsets and stores with a recomputation. Then an instance of Kafka Streams ends in the same way. Last line
`failover: cases=… exact=… worst_ms=…`, of Tidemark alone; exit code 1 if anything differs, or if a query was not answered
although a standby was there, or not within `session_timeout_ms` and 2 s when another instance takes over.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import uuid
from dataclasses import replace
from pathlib import Path

from bench.peer import compile_peer
from rich.console import Console
from tests.support.log_ends import ends_of_logs
from tests.system.failover.cases import CASES, Case, Outcome, summary, table
from tests.system.failover.streams import StreamsPeer
from tests.system.failover.ward import Ward, play

from tidemark import processes
from tidemark.devstack.broker import EmbeddedBroker
from tidemark.errors import TidemarkError
from tidemark.kafka import jars
from tidemark.settings import Settings

_CHUNK = 50_000


def run(
    ward: Ward, cases: list[Case], records: int, console: Console, peer: StreamsPeer | None = None
) -> list[Outcome]:
    """Play one case after the other on a state of `records` records, those of the peer as well."""
    for fed in range(0, records, _CHUNK):
        ward.feeder.feed(min(_CHUNK, records - fed))
        console.print(f"fed {min(fed + _CHUNK, records)} of {records} records")
    outcomes: list[Outcome] = []
    for number, case in enumerate(cases, 1):
        began = time.monotonic()
        console.print(f"[{number}/{len(cases)}] {case} …", markup=False)
        with ends_of_logs(console, ward.folder):
            outcome = play(ward, case)
            if peer is not None and case.has_peer:
                outcome = replace(outcome, peer_commit_s=peer.play(case))
        outcomes.append(outcome)
        beside = "" if outcome.peer_commit_s is None else f" (Kafka Streams {outcome.peer_commit_s:.1f} s)"
        console.print(
            f"[{number}/{len(cases)}] {case}: RUNNING after {outcome.running_s:.1f} s, committed after "
            f"{outcome.commit_s:.1f} s{beside}, queries answered: {outcome.queries}; "
            f"{'exact' if outcome.is_exact else 'WRONG'}, {time.monotonic() - began:.0f} s",
            markup=False, soft_wrap=True,
        )  # fmt: skip
        for fault in outcome.faults[:20]:
            console.print(f"    {fault}", markup=False, soft_wrap=True)
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=100_000, help="how many records the state has counted")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", nargs="*", help="cases whose names contain one of these")
    parser.add_argument("--peer", choices=["kafka-streams", "none"], default="kafka-streams", help="what is compared")
    parser.add_argument("--report", type=Path, help="a file for the table")
    options = parser.parse_args()
    console = Console(highlight=False)
    console.print(f"failover: seed={options.seed}")
    cases = [case for case in CASES if not options.only or any(part in str(case) for part in options.only)]
    if not cases:
        parser.error(f"--only {' '.join(options.only)}: no case has one of these in its name")
    settings, has_peer = Settings.load(), options.peer != "none"
    if has_peer:
        compile_peer(jars.ensure("bench", settings))
    mark = f"failover-{uuid.uuid4()}"
    with processes.guarded(mark), tempfile.TemporaryDirectory(prefix="tidemark-failover-") as folder:
        os.environ[processes.MARK] = mark
        with EmbeddedBroker(Path(folder) / "broker", jars.ensure("kafka", settings)) as broker:
            ward = Ward(broker.bootstrap, Path(folder) / "ward", options.seed)
            try:
                peer = StreamsPeer(ward, settings) if has_peer else None
                outcomes = run(ward, cases, options.records, console, peer)
            finally:
                ward.close()
    lines = table(outcomes, has_peer=has_peer)
    print("\n".join(lines))
    if options.report:
        options.report.parent.mkdir(parents=True, exist_ok=True)
        options.report.write_text("\n".join(lines) + "\n")
    print(summary(outcomes))
    return 0 if all(outcome.is_exact for outcome in outcomes) else 1


if __name__ == "__main__":
    try:
        code = main()
    except TidemarkError as error:
        print(f"failover: {error}", file=sys.stderr)
        code = int(error.exit_code)
    sys.exit(code)
