"""Processors that tests name by import path."""

from __future__ import annotations

import errno
import sys
import threading
from collections.abc import Callable
from decimal import Decimal
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.processors import ArrowProcessor, Processor, Punctuate


class CountPerKey(Processor):
    """Forwards how many rows a key had; a deletion forgets it; at each 10 ms of stream time says what is held."""

    def init(self, context):
        self.context = context
        self.counts = context.store("s")
        context.schedule(10, Punctuate.STREAM_TIME, self.report)

    def process(self, record):
        if record.row is None:
            self.counts.delete(record.key)
            return self.context.forward(record.key, None)
        row = self.counts.get(record.key) or {"n": 0, "mean": 0.0}
        row = {"n": row["n"] + 1, "mean": row["mean"] + record.row["x"]}
        self.counts.put(record.key, row)
        return self.context.forward(record.key, row)

    def report(self, time_ms):
        for key, row in self.counts.range():
            self.context.forward(f"held:{key}", row)


class SumInColumns(ArrowProcessor):
    """Adds a batch's rows to the stored sums of their keys, without a loop."""

    def init(self, context):
        self.context = context
        self.sums = context.store("s")
        context.schedule(10, Punctuate.STREAM_TIME, lambda time_ms: context.forward("tick", {"n": time_ms}))

    def process(self, rows):
        new = rows.group_by("__k", use_threads=False).aggregate([("x", "count"), ("x", "sum"), ("__ts", "max")])
        old = self.sums.get_many(new["__k"])
        n = pc.add(new["x_count"], pc.fill_null(old["n"], 0))
        mean = pc.add(new["x_sum"], pc.fill_null(old["mean"], 0.0))
        self.sums.put_many(new["__k"], pa.table({"n": n, "mean": mean}))
        return pa.table({"__k": new["__k"], "__ts": new["__ts_max"], "n": n, "mean": mean, "unused": n})


class Clocked(Processor):
    def init(self, context):
        self.context = context
        context.schedule(100, Punctuate.WALL_CLOCK, lambda time_ms: context.forward("wall", {"n": time_ms}))
        context.schedule(10, Punctuate.STREAM_TIME, lambda time_ms: context.forward("stream", {"n": time_ms}))

    def process(self, record):
        self.context.forward(record.key, {"n": self.context.stream_time_ms})


class ClockedByText(Processor):
    time = "wall_clock"

    def init(self, context):
        context.schedule(100, self.time, lambda time_ms: context.forward("wall", {"n": time_ms}))

    def process(self, record):
        pass


class ClockedByAnUnknownTime(ClockedByText):
    time = "sun"


class PutsNothingForZero(Processor):
    def init(self, context):
        self.kept = context.store("s")

    def process(self, record):
        x = record.row["x"]
        self.kept.put(record.key, {"n": x} if x else None)


class TwoSchedules(Processor):
    def init(self, context):
        self.context = context
        context.schedule(10, Punctuate.STREAM_TIME, lambda time_ms: context.forward("every 10", {"n": time_ms}))
        context.schedule(15, Punctuate.STREAM_TIME, lambda time_ms: context.forward("every 15", {"n": time_ms}))

    def process(self, record):
        self.context.forward(record.key, {"n": record.row["x"]})


class SchedulesLate(Processor):
    def init(self, context):
        self.context = context

    def process(self, record):
        self.context.schedule(10, Punctuate.STREAM_TIME, print)


class PassesOn(Processor):
    def init(self, context):
        self.context = context

    def process(self, record):
        self.context.forward(record.key, {"n": record.row["x"]})


class ForwardsOneDictionaryAgain(PassesOn):
    """Forwards x rows, all from one dictionary."""

    def process(self, record):
        row = {}
        for n in range(record.row["x"]):
            row["n"] = n
            self.context.forward(record.key, row)


class RunsOutOfMemory(PassesOn):
    """The machine fails, whatever the record is."""

    def process(self, record):
        raise MemoryError


class CannotBeClosed(PassesOn):
    """Notes that it was closed, and raises."""

    closed: ClassVar[list[str]] = []

    def close(self):
        self.closed.append(type(self).__name__)
        sys.exit(3)


class IsInterruptedInClose(CannotBeClosed):
    def close(self):
        self.closed.append(type(self).__name__)
        raise KeyboardInterrupt


class CannotBeClosedEither(CannotBeClosed):
    pass


class BlocksInClose(PassesOn):
    """Does not return from `close` before the test allows it."""

    may_return = threading.Event()

    def close(self):
        self.may_return.wait(60)


class ForwardsAnotherKey(PassesOn):
    def process(self, record):
        self.context.forward("another", {"n": 1})


class PassesOnInColumns(ArrowProcessor):
    def init(self, context):
        self.context = context

    def process(self, rows):
        return pa.table({"__k": rows["__k"], "__ts": rows["__ts"], "n": rows["x"], "mean": rows["x"]})


class KeepsPositions(PassesOnInColumns):
    """Leaves out x above 8, and keeps `__seq` of the other rows."""

    def process(self, rows):
        return super().process(rows).append_column("__seq", rows["__seq"]).filter(pc.less(rows["x"], 9))


class ForwardsWithPositions(KeepsPositions):
    """Also forwards 10 times x of each row, the newest first, with the position that `at` makes of the row's own."""

    @staticmethod
    def at(sequence):
        return sequence

    def process(self, rows):
        for row in reversed(rows.to_pylist()):
            self.context.forward(row["__k"], {"n": 10 * row["x"]}, sequence=self.at(row["__seq"]))
        return super().process(rows)


class ForwardsWithoutPositions(ForwardsWithPositions):
    at = staticmethod(lambda sequence: None)


class ForwardsWithTextAsPosition(ForwardsWithPositions):
    at = staticmethod(str)


class ForwardsWithAnArrowPosition(ForwardsWithPositions):
    at = staticmethod(pa.scalar)


class ForwardsWithEarlierPositions(ForwardsWithPositions):
    at = staticmethod(lambda sequence: sequence - 100)


class ForwardsWithUnknownPositions(ForwardsWithPositions):
    at = staticmethod(lambda sequence: sequence + 100)


class ForwardsOneRecordWithPosition(PassesOn):
    def process(self, record):
        self.context.forward(record.key, {"n": record.row["x"]}, sequence=0)


class ForwardsWithPositionInACallback(PassesOnInColumns):
    def init(self, context):
        super().init(context)
        context.schedule(10, Punctuate.STREAM_TIME, lambda time_ms: context.forward("a", {"n": time_ms}, sequence=0))


class ReversesPositions(PassesOnInColumns):
    def process(self, rows):
        return super().process(rows).append_column("__seq", rows["__seq"].take(list(range(len(rows)))[::-1]))


class InventsPositions(PassesOnInColumns):
    def process(self, rows):
        return super().process(rows).append_column("__seq", pc.add(rows["__seq"], 100))


class ForgetsPositions(PassesOnInColumns):
    def process(self, rows):
        return super().process(rows).append_column("__seq", pa.nulls(len(rows), pa.int64()))


class ReturnsNothingInLists(PassesOnInColumns):
    """Arrow takes lists without values for columns of nulls."""

    def process(self, rows):
        return pa.table({name: [] for name in (*super().process(rows).column_names, "__seq")})


class DeletesZeros(PassesOnInColumns):
    """Deletes the key of each x that is 0; where x is null, so is `__deleted`."""

    def process(self, rows):
        return super().process(rows).append_column("__deleted", pc.equal(rows["x"], 0))


class DeletesZerosByNumbers(DeletesZeros):
    def process(self, rows):
        given = super().process(rows)
        return given.set_column(given.num_columns - 1, "__deleted", given["__deleted"].cast(pa.int64()))


class DeletesByStructs(PassesOnInColumns):
    def process(self, rows):
        return super().process(rows).append_column("__deleted", [[{"is": True}] * rows.num_rows])


class ForwardsAnotherKeyInColumns(PassesOnInColumns):
    def process(self, rows):
        self.context.forward("another", {"n": 1})


class GivesAnotherKey(PassesOnInColumns):
    def process(self, rows):
        return super().process(rows).set_column(0, "__k", [["another"] * rows.num_rows])


class Prefixes(Processor):
    """Key `?p` forwards what is stored under the prefix p; other keys are put; read back in the same batch."""

    def init(self, context):
        self.context = context
        self.store = context.store("s")

    def process(self, record):
        if record.key.startswith("?"):
            for key, row in self.store.range(record.key[1:]):
                self.context.forward(key, row, 1)
        else:
            self.store.put(record.key, {"n": record.row["x"]})
            self.store.get(record.key)["n"] = -1  # A copy: this changes nothing.


class PutsWrongColumn(Prefixes):
    def process(self, record):
        self.store.put(record.key, {"nn": 1})


class WantsAnotherStore(Processor):
    def init(self, context):
        context.store("another")


class UsesStoreInInit(Processor):
    def init(self, context):
        context.store("s").get("a")


class RangesInInit(Processor):
    def init(self, context):
        context.store("s").range()


class ForwardsInInit(Processor):
    def init(self, context):
        context.forward("a", {"n": 1}, 5)


class ForwardsForACaller(Processor):
    """Lets whoever holds its task forward at any time."""

    forward: ClassVar[Callable[..., None]]

    def init(self, context):
        type(self).forward = context.forward

    def process(self, record):
        self.forward(record.key, {"n": 1})


class PutsNegativeZero(Processor):
    """Forwards the row that is there before it puts one."""

    def init(self, context):
        self.context = context
        self.held = context.store("s")

    def process(self, record):
        if (row := self.held.get(record.key)) is not None:
            self.context.forward(record.key, row)
        self.held.put(record.key, {"n": 0, "mean": -0.0})


class GivesAList(ArrowProcessor):
    def process(self, rows):
        return [1]


class ForgetsColumns(ArrowProcessor):
    def process(self, rows):
        return rows.select(["__k"])


class PutsManyUnderItsKeys(ArrowProcessor):
    """Puts x under the keys of the records as they are: `GetsMany…` reads them, `…InAList` gives them as a list."""

    def init(self, context):
        self.kept = context.store("s")

    def process(self, rows):
        self.kept.put_many(rows["__k"], pa.table({"n": rows["x"], "mean": rows["x"]}))


class PutsManyUnderItsKeysInAList(PutsManyUnderItsKeys):
    def process(self, rows):
        self.kept.put_many(rows["__k"].to_pylist(), pa.table({"n": rows["x"], "mean": rows["x"]}))


class GetsManyOfItsKeys(PutsManyUnderItsKeys):
    def process(self, rows):
        self.kept.get_many(rows["__k"])
        if rows["__k"].null_count == 0:
            super().process(rows)


class GivesNoKeys(ArrowProcessor):
    def process(self, rows):
        nothing = pa.nulls(rows.num_rows, pa.string())
        return pa.table({"__k": nothing, "__ts": rows["__ts"], "n": rows["x"], "mean": rows["x"]})


class Every20(Processor):
    every_ms = 20
    time = Punctuate.STREAM_TIME

    def init(self, context):
        self.context = context
        name = f"every {self.every_ms}"
        context.schedule(self.every_ms, self.time, lambda time_ms: context.forward(name, {"n": time_ms}))

    def process(self, record):
        self.context.forward(record.key, {"n": 0})


class Every15(Every20):
    every_ms = 15


class EveryTenSeconds(Every20):
    every_ms, time = 10_000, Punctuate.WALL_CLOCK


class UnderTheWard(PassesOn):
    def process(self, record):
        if record.row is None:
            return self.context.forward("ward 3", None)
        return self.context.forward(record.row["ward"], {"id": record.key})


class RefusesOdd(Processor):
    """Puts and forwards every x under its key; of an odd one it raises afterwards. At 3 it looks at the store before."""

    def init(self, context):
        self.context = context
        self.kept = context.store("s")

    def count(self, key, x):
        n = (self.kept.get(key) or {"n": 0})["n"] + x
        self.kept.put(key, {"n": n})
        self.kept.put(f"only by {x}", {"n": x})
        return n

    def process(self, record):
        x = record.row["x"]
        n = self.count(record.key, x)
        if x % 5 == 0:
            self.kept.delete(record.key)
        self.context.forward(record.key, {"n": n})
        if x == 3:
            assert {key for key, _ in self.kept.range()} >= {record.key, "only by 3"}
            self.kept.put(record.key, {"n": -1})
            self.kept.put_many(["only by 3", "more"], pa.table({"n": [1, 2], "mean": [0.0, 0.0]}))
        if x % 2:
            raise ValueError(f"{x} is odd")


class RuinsOdd(RefusesOdd):
    """Makes something unusable of an odd x instead, of each another thing; in between it reads the store."""

    def process(self, record):
        x = record.row["x"]
        n = self.count(record.key, x)
        if x == 1:
            self.context.forward(record.key, {"n": "one"})
        elif x == 3:
            self.kept.put(record.key, {"n": "three"})
        elif x == 5:
            self.kept.put(None, {"n": x})
        elif x == 7:
            self.context.forward(record.key, {"n": n}, timestamp_ms=2**70)
        elif x == 9:
            self.context.forward(x, {"n": n})
        elif x == 11:
            self.context.forward(record.key, {"n": n}, timestamp_ms=-70_000)
        elif x % 4 == 0:
            assert all(row["n"] % 2 == 0 for _, row in self.kept.range("only"))
        self.context.forward(record.key, {"n": n})


class ErrorWithoutText(Exception):
    """Its `__str__` raises."""

    def __str__(self):
        return self.missing


class RaisesWithoutText(Processor):
    def process(self, record):
        raise ErrorWithoutText


class RaisesWithoutTextInInit(Processor):
    def init(self, context):
        raise ErrorWithoutText

    def process(self, record):
        raise AssertionError("init has failed")


class ChangesItsRow(Processor):
    """Raises after it has changed the row that it got."""

    def process(self, record):
        record.row["doubled"] = 2 * record.row.pop("x")
        raise ValueError("it is changed")


class LeavesAtOdd(RefusesOdd):
    """Calls `sys.exit` for an odd x instead, as libraries of command lines do."""

    def process(self, record):
        try:
            super().process(record)
        except ValueError:
            sys.exit(3)


class RefusesOddInColumns(ArrowProcessor):
    """The same for a whole batch: it raises if one is odd."""

    def init(self, context):
        self.context = context
        self.kept = context.store("s")

    def process(self, rows):
        for key, x in zip(rows["__k"].to_pylist(), rows["x"].to_pylist(), strict=True):
            n = (self.kept.get(key) or {"n": 0})["n"] + x
            self.kept.put(key, {"n": n})
            self.context.forward(key, {"n": n})
            if x % 2:
                raise ValueError(f"{x} is odd")
        return pa.table(
            {"__k": rows["__k"], "__ts": rows["__ts"], "n": rows["x"], "mean": pa.nulls(len(rows), pa.float64())}
        )


class LeavesAtOddInColumns(RefusesOddInColumns):
    """Calls `sys.exit` instead."""

    def process(self, rows):
        try:
            return super().process(rows)
        except ValueError:
            sys.exit(3)


class RuinsOddInColumns(RefusesOddInColumns):
    """Makes something unusable of an odd x instead: in what it puts, forwards or gives back."""

    def process(self, rows):
        keys, xs = rows["__k"].to_pylist(), rows["x"].to_pylist()
        for key, x in zip(keys, xs, strict=True):
            self.kept.put(f"{key} {x}", {"n": "three" if x == 3 else x})
            self.context.forward(key, {"n": "five" if x == 5 else x})
        if 7 in xs:
            self.kept.put_many(keys, pa.table({"n": [x / 2 for x in xs], "mean": [0.0] * len(xs)}))
        ns = pa.array([x / 2 if x == 1 else x for x in xs], pa.float64())
        times = pa.array([{9: None, 11: -70_000, 13: 2**63 - 1}.get(x, x) for x in xs], pa.int64())
        return pa.table({"__k": rows["__k"], "__ts": times, "n": ns, "mean": ns})


class KeepsTenths(Processor):
    """Keeps a tenth of x as a FLOAT, and forwards what the store held before and holds then."""

    def init(self, context):
        self.context = context
        self.kept = context.store("s")

    def process(self, record):
        before = self.kept.get(record.key) or {"f": None}
        self.kept.put(record.key, {"f": record.row["x"] / 10})
        for row in (before, self.kept.get(record.key)):
            self.context.forward(record.key, {"n": record.row["x"], "mean": row["f"]})


class WritesTheNumberBefore(PassesOn):
    """Keeps x as a number of some type, and forwards a row whose key is the text of what was there before."""

    of_x: Callable[[int], Any] = int

    def init(self, context):
        super().init(context)
        self.kept = context.store("s")

    def process(self, record):
        before = self.kept.get(record.key) or {"d": None}
        self.kept.put(record.key, {"d": type(self).of_x(record.row["x"])})
        self.context.forward(str(before["d"]), {"n": 1})


class WritesTheQuotientBefore(WritesTheNumberBefore):
    of_x = float


class WritesTheDecimalBefore(WritesTheNumberBefore):
    of_x = Decimal


class WritesTheBytesBefore(WritesTheNumberBefore):
    def of_x(x):
        return str(x).encode()


class WritesTheHalfBefore(WritesTheNumberBefore):
    def of_x(x):
        return x / 2


class ForwardsAtX(PassesOn):
    """Forwards a row with the timestamp x."""

    def process(self, record):
        self.context.forward(record.key, {"n": 1}, timestamp_ms=record.row["x"])


class GivesAtX(ArrowProcessor):
    """Gives back rows with the timestamps x."""

    def process(self, rows):
        n, mean = pa.repeat(1, len(rows)), pa.nulls(len(rows), pa.float64())
        return pa.table({"__k": rows["__k"], "__ts": rows["x"], "n": n, "mean": mean})


class ForwardsTextInACallback(Processor):
    def init(self, context):
        self.kept = context.store("s")
        context.schedule(10, Punctuate.STREAM_TIME, lambda time_ms: context.forward("tick", {"n": "half"}))

    def process(self, record):
        self.kept.put(record.key, {"n": 1})


class FailsInACallback(Processor):
    def init(self, context):
        context.schedule(10, Punctuate.STREAM_TIME, lambda time_ms: 1 / 0)

    def process(self, record):
        pass


class LeavesInACallback(FailsInACallback):
    def init(self, context):
        context.schedule(10, Punctuate.STREAM_TIME, lambda time_ms: sys.exit(3))


class FailsInInit(Processor):
    def init(self, context):
        raise FileNotFoundError("rates.csv")

    def process(self, record):
        raise AssertionError("init has failed")


class FailsInInitInColumns(ArrowProcessor):
    def init(self, context):
        raise FileNotFoundError("rates.csv")

    def process(self, rows):
        raise AssertionError("init has failed")


class LeavesInInit(FailsInInit):
    def init(self, context):
        sys.exit(3)


class FailsWhenItIsMade(Processor):
    def __init__(self):
        raise ZeroDivisionError("division by zero")

    def process(self, record):
        raise AssertionError("it was never made")


class FindsNoRoomInInit(Processor):
    def init(self, context):
        raise OSError(errno.ENOSPC, "No space left on device", "rates.csv")

    def process(self, record):
        raise AssertionError("init has failed")
