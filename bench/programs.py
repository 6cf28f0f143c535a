"""The programs of the benchmark, each written for both sides in `bench/topologies` and `bench/peers`."""

from __future__ import annotations

from dataclasses import replace

from bench.case import BREATH_TOPIC, INPUT_TOPIC, Program
from bench.counts import final_counts, last_counts
from bench.events import large_pulses, pulses
from bench.pairs import Pairs, beats_and_breaths
from bench.passed import Passed
from bench.sessions import Sessions
from bench.totals import Totals

COUNTING = Program("pulse_counting", "pulse-counting", "WindowedCount", pulses, last_counts)
PASSING = Program("large_values", "large-values", "LargeValues", large_pulses, Passed, sink="long-intervals")
READING = replace(COUNTING, peer="RawConsumer")
"""On the other side nothing is counted and nothing is written."""
FINAL_COUNTS = Program("pulse_final_counts", "pulse-final-counts", "FinalCount", pulses, final_counts)
SESSIONS = Program("pulse_sessions", "pulse-sessions", "SessionCount", pulses, Sessions)
JOINING = Program(
    "pulse_breaths",
    "pulse-breaths",
    "StreamJoin",
    beats_and_breaths,
    Pairs,
    sources=(INPUT_TOPIC, BREATH_TOPIC),
    sink="pulse-breath-pairs",
)
PROCESSING = Program("pulse_totals", "pulse-totals", None, pulses, Totals, sink="pulse-totals")
PROCESSING_BATCHES = replace(PROCESSING, topology="pulse_totals_by_batch")
