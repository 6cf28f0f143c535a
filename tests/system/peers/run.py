"""`make peers`: every case on Kafka Streams, on Tidemark, and in plain Python, compared value by value.

    python tests/system/peers/run.py [--cases tumbling,session] [--sides java,tidemark] [--records 20000] [--seed 1]

Each side must give what `model` gives, and so what the other one gives. Last line
`peers: cases=… equal=… different=0`; exit 1 when a value differs, a case has none, or a side fails.
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
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from rich.console import Console
from rich.table import Table
from tests.system.peers.cases import CASES, Case
from tests.system.peers.harness import SideFailed, run_side
from tests.system.peers.inputs import Size, late_records, stages
from tests.system.peers.model import expected
from tests.system.peers.outputs import Verdict, compare
from tests.system.peers.sides import JavaSide, Side, TidemarkSide

from tidemark import processes
from tidemark.devstack.broker import EmbeddedBroker
from tidemark.errors import TidemarkError
from tidemark.kafka import jars
from tidemark.settings import Settings

RECORDS = 20_000
MAX_BATCH_RECORDS = 2_000
_LATE_MS = 60_000
_HOURS_BACK = 6
console = Console(highlight=False)


def main() -> int:
    """Exit code 0 when everything is equal, else 1."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    settings = Settings.load()
    sides = {"java": JavaSide(settings), "tidemark": TidemarkSide(settings, options.max_batch_records)}
    start_ms = (int(time.time()) // 60 - 60 * _HOURS_BACK) * 60_000
    size = Size(options.records, options.max_batch_records, start_ms, options.seed)
    folder = Path(tempfile.mkdtemp(prefix="tidemark-peers-"))
    table = Table("case", "records", "late", *(f"{name}: outputs, s" for name in options.sides), "equal", "different")
    verdicts: list[Verdict] = []
    os.environ[processes.MARK] = mark = f"peers-{uuid.uuid4()}"
    console.print(f"peers: seed={options.seed}")
    with processes.guarded(mark), EmbeddedBroker(folder / "broker", jars.ensure("kafka", settings)) as broker:
        for name in options.cases:
            chosen = [sides[side] for side in options.sides]
            verdicts.append(_run(CASES[name], chosen, size, broker.bootstrap, folder / name, table))
    console.print(table)
    different = sum(verdict.different for verdict in verdicts)
    passed = not different and all(verdict.equal for verdict in verdicts)
    if passed and not options.keep:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        console.print(f"logs are in {folder}", soft_wrap=True)
    # The last line is read by scripts.
    print(f"peers: cases={len(verdicts)} equal={sum(verdict.equal for verdict in verdicts)} different={different}")
    return 0 if passed else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=_names(CASES), default=list(CASES), help="names with commas")
    parser.add_argument("--sides", type=_names(("java", "tidemark")), default=["java", "tidemark"])
    parser.add_argument("--records", type=int, default=RECORDS, help="of each case")
    parser.add_argument("--max-batch-records", type=int, default=MAX_BATCH_RECORDS)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--keep", action="store_true", help="keep logs and state")
    return parser.parse_args()


def _names(known):  # type: ignore[no-untyped-def]
    def parse(text: str) -> list[str]:
        names = list(dict.fromkeys(text.split(",")))
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(known)}")
        return names

    return parse


def _run(case: Case, sides: list[Side], size: Size, bootstrap: str, folder: Path, table: Table) -> Verdict:
    """One case on its sides; a row of the table."""
    made = stages(case, size)
    results = {"model": expected(case, made)}
    cells = []
    failure = ""
    for side in sides:
        console.print(f"{case.name}: {side.name} …")
        try:
            ran = run_side(side, case, made, bootstrap, folder / side.name)
        except (SideFailed, TidemarkError) as error:
            failure = f"{case.name}: {side.name} failed: {error}"
            cells.append("failed")
            results[side.name] = {}
        else:
            cells.append(f"{ran.outputs}, {ran.seconds:.0f}")
            results[side.name] = ran.reduced
    verdict = compare(results)
    for line in [failure] if failure else verdict.examples:
        console.print(line, markup=False, soft_wrap=True)
    records = sum(len(of_role) for stage in made for of_role in stage.values())
    late = sum(late_records(stage, role, _LATE_MS) for stage in made for role in stage)
    table.add_row(case.name, str(records), str(late), *cells, str(verdict.equal), str(verdict.different))
    return verdict


if __name__ == "__main__":
    try:
        code = main()
    except TidemarkError as error:
        print(f"peers: {error}", file=sys.stderr)
        code = int(error.exit_code)
    sys.exit(code)
