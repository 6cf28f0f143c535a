"""Compares answers with counts that are known from the numbers of the events, without a stream processor."""

from __future__ import annotations

import json
from collections.abc import Iterable

import numpy as np

from bench.case import WINDOW_MS, Case, Integers
from bench.events import expected_counts, key_name
from bench.key_reads import Answer


def known_counts(case: Case, events: int, windows: int) -> Integers:
    """Return the counts per window (rows) and key (columns) of the first `events` events, in this many windows."""
    counts = expected_counts(case.sized(events))
    return np.pad(counts, ((0, windows - len(counts)), (0, 0)))


def faults(answers: Iterable[Answer], least: Integers, most: Integers, start_ms: int) -> list[str]:
    """Return what is wrong in answers that must have at least and at most these counts, shape (windows, keys)."""
    return [
        f"{key_name(answer.key)}: {fault}; answered: {answer.body.decode(errors='replace')[:500]}"
        for answer in answers
        if (fault := _fault(answer, least[:, answer.key], most[:, answer.key], start_ms))
    ]


def _fault(answer: Answer, least: Integers, most: Integers, start_ms: int) -> str | None:
    found = np.zeros_like(most)
    try:
        for entry in json.loads(answer.body)["entries"]:
            window, into_window_ms = divmod(entry["window_start_ms"] - start_ms, WINDOW_MS)
            end_ms = entry["window_start_ms"] + WINDOW_MS
            if into_window_ms or not 0 <= window < len(most) or entry["window_end_ms"] != end_ms:
                return f"there is no window from {entry['window_start_ms']} to {entry['window_end_ms']}"
            if entry["key"] != key_name(answer.key) or found[window]:
                return f"it has another key, or window {window} twice"
            found[window] = entry["value"]["pulses"]
    except (ValueError, LookupError, TypeError) as error:
        return f"it cannot be read ({error!r})"
    if ((found < least) | (found > most)).any():
        return f"it counts {found.tolist()}, and not from {least.tolist()} to {most.tolist()}"
    return None
