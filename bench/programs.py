"""The programs of the benchmark, each written for both sides in `bench/topologies` and `bench/peers`."""

from __future__ import annotations

from bench.case import Program
from bench.counts import final_counts, last_counts
from bench.events import large_pulses, pulses
from bench.passed import Passed
from bench.sessions import Sessions

COUNTING = Program("pulse_counting", "pulse-counting", "WindowedCount", pulses, last_counts)
PASSING = Program("large_values", "large-values", "LargeValues", large_pulses, Passed, sink="long-intervals")
FINAL_COUNTS = Program("pulse_final_counts", "pulse-final-counts", "FinalCount", pulses, final_counts)
SESSIONS = Program("pulse_sessions", "pulse-sessions", "SessionCount", pulses, Sessions)
