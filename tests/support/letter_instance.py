"""One instance without Spark in a process of its own, which runs until it is killed: `letter_instance.py NAME`.

It counts by key as `counting(NAME)` does, and a record whose value is not `{}` becomes a dead letter.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import replace

import pyarrow as pa
from tests.support.counting import NO_PROBE, StreamingSource, counting
from tests.support.partials import PARTIAL_HEAD

from tidemark.instance.assembly import make_instance
from tidemark.instance.source import SourceBatch
from tidemark.settings import Settings
from tidemark.tasks.partials import Partial, Status
from tidemark.tasks.update import UNPARSABLE, DeadLetter

GOOD = b"{}"


class LetterSource(StreamingSource):
    """Counts the good records of a batch, and hands the others over as dead letters."""

    def next(self, timeout_s: float) -> SourceBatch | None:
        self._letters: list[DeadLetter] = []
        batch = super().next(timeout_s)
        return None if batch is None else replace(batch, dead_letters=tuple(self._letters))

    def counted(self, messages) -> pa.Table:
        good = [message for message in messages if message.value() == GOOD]
        bad = [message for message in messages if message.value() != GOOD]
        self._letters = [
            DeadLetter(UNPARSABLE, m.topic(), m.partition(), m.offset(), m.key(), m.value(), ()) for m in bad
        ]
        values = {Partial.PARTITION: [m.partition() for m in bad], Partial.STATUS: [Status.BAD] * len(bad)}
        values[Partial.ROWS] = [1] * len(bad)
        columns = {
            name: pa.array(values.get(name, [None] * len(bad)), pa.string() if name == Partial.KEY else pa.int64())
            for name in (*PARTIAL_HEAD, "n")
        }
        return pa.concat_tables([pa.table(columns), *([super().counted(good)] if good else [])])


if __name__ == "__main__":
    settings, name = Settings.load(), sys.argv[1]
    source = LetterSource(settings.bootstrap_servers, f"{name}-in", threading.Event())
    make_instance(counting(name).plan(), settings, 0, "counting", NO_PROBE).run(source, threading.Event())
