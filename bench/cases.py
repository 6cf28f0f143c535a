"""The cases of the benchmark."""

from __future__ import annotations

from dataclasses import replace

from bench.case import AT_LEAST_ONCE, CONSUMER, GOAL, QUIX, SPARK, WINDOW_MS, Case
from bench.programs import (
    COUNTING,
    FINAL_COUNTS,
    JOINING,
    PASSING,
    PROCESSING,
    PROCESSING_BATCHES,
    READING,
    SESSIONS,
)
from bench.sessions import shifts
from bench.skew import zipf

_HOT = Case(
    name="hot",
    about="windowed count, 50 000 keys at 1 Hz, commit per 1 M events or 2 s",
    keys=50_000,
    interval_ms=1_000,
    events=12_000_000,
    commit_interval_ms=2_000,
    max_batch_records=1_000_000,
    program=COUNTING,
    goal=2.0,
)
"""The input and the commits of most cases."""

_PROCESSOR = replace(
    _HOT,
    name="processor",
    about="a Python processor that is called for each record, 50 000 keys at 1 Hz, commit per 200 k events or 2 s",
    events=3_000_000,
    max_batch_records=200_000,
    program=PROCESSING,
    goal=15.0,
    against=QUIX,
)

CASES = {
    case.name: case
    for case in (
        _HOT,
        replace(
            _HOT,
            name="wide",
            about="windowed count, 3.3 M window-keys with one event each, commit per 3 s",
            interval_ms=WINDOW_MS,
            events=3_300_000,
            commit_interval_ms=3_000,
        ),
        replace(
            _HOT,
            name="skewed",
            about="windowed count, 50 000 keys by Zipf's law with exponent 1.1, commit per 1 M events or 2 s",
            patient=zipf,
            goal=GOAL,
        ),
        replace(
            _HOT,
            name="large",
            about="values of 1 KiB passed through a filter, commit per 200 k events or 2 s",
            events=3_000_000,
            max_batch_records=200_000,
            program=PASSING,
            goal=GOAL,
        ),
        replace(
            _HOT,
            name="suppress",
            about="final counts of windows only, 50 000 keys at 1 Hz, commit per 1 M events or 2 s",
            program=FINAL_COUNTS,
            goal=GOAL,
        ),
        replace(
            _HOT,
            name="sessions",
            about="counts of sessions, 50 000 keys with 2 Hz for 60 s and 60 s of silence, commit per 1 M events or 2 s",
            program=SESSIONS,
            patient=shifts,
            goal=GOAL,
        ),
        replace(
            _HOT,
            name="join",
            about="pairs of two streams, 50 000 keys with an event per 60 s in each, commit per 500 k events or 2 s",
            interval_ms=30_000,
            events=6_000_000,
            max_batch_records=500_000,
            program=JOINING,
            goal=GOAL,
        ),
        replace(
            _HOT,
            name="exactly_once",
            about="the case hot, exactly once against at least once",
            goal=0.95,
            against=AT_LEAST_ONCE,
        ),
        _PROCESSOR,
        replace(
            _PROCESSOR,
            name="arrow_processor",
            about="a Python processor that is called for each batch, 50 000 keys at 1 Hz, commit per 200 k events or 2 s",
            program=PROCESSING_BATCHES,
        ),
        replace(
            _HOT,
            name="plain_spark",
            about="the case hot against Spark with its own state, commit per 1 M events or 2 s",
            goal=1.5,
            against=SPARK,
        ),
        replace(
            _HOT,
            name="floor",
            about="the case hot, three times as long, beside a consumer that does nothing with the records",
            events=36_000_000,
            program=READING,
            goal=None,
            against=CONSUMER,
        ),
    )
}
