"""Figures, ages and durations as text."""

from __future__ import annotations

import pytest

from tidemark.overview.format import (
    format_age,
    format_bytes,
    format_clock,
    format_count,
    format_moment,
    format_prose,
    format_span,
)


@pytest.mark.parametrize(
    ("age_s", "text"),
    [(-5, "now"), (1, "now"), (2, "2 s ago"), (119, "119 s ago"), (120, "2 min ago"), (7199, "119 min ago"),
     (7200, "2 h ago"), (172_799, "47 h ago"), (172_800, "2 days ago")],
)  # fmt: skip
def test_an_age_should_be_in_the_largest_unit_of_which_there_are_two(age_s, text):
    assert format_age(1_000_000_000, 1_000_000_000 + age_s * 1000) == text


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "0 ms"), (999, "999 ms"), (1000, "1.0 s"), (59_900, "59.9 s"), (60_000, "1 min"), (7_200_000, "2 h"),
        (172_800_000, "2 d"),
    ],
)  # fmt: skip
def test_a_duration_should_have_a_unit(milliseconds, text):
    assert format_span(milliseconds) == text


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 kB"), (1_572_864, "1.5 MB")])
def test_a_size_should_have_a_unit(size, text):
    assert format_bytes(size) == text


def test_what_is_not_known_should_be_a_dash():
    assert {format_age(None, 1), format_span(None), format_bytes(None), format_count(None)} == {"—"}
    assert format_moment(None) == ""


def test_numbers_and_times_should_be_readable():
    assert format_count(1234567.8) == "1,234,568"
    assert format_moment(1_700_000_000_123) == "2023-11-14 22:13:20 UTC"
    assert format_clock(1_700_000_000_123) == "22:13:20"


def test_commands_in_a_message_should_be_marked_up_and_everything_else_escaped():
    assert format_prose("run `tidemark <x>`, then <b>") == "Run <code>tidemark &lt;x&gt;</code>, then &lt;b&gt;"
    assert format_prose("run it", begins=False) == "run it"
    assert format_prose("") == ""
