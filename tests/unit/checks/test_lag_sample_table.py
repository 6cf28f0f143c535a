"""Samples of lag, kept in the database of facts."""

from __future__ import annotations

from tidemark.checks.lag import LagSample
from tidemark.checks.lag_sample_table import forget_lag_samples, lag_samples, write_lag_samples
from tidemark.database import FactsDatabase
from tidemark.names import TopicPartition
from tidemark.settings import Settings


def sample(time_ms, committed):
    return LagSample(time_ms, TopicPartition("in", 1), 2, 7, 9, committed)


def test_should_return_samples_unchanged_and_forget_old_ones(tmp_path):
    facts = FactsDatabase(Settings.load(var_dir=tmp_path))
    write_lag_samples(facts, "app", [sample(20, 5), sample(30, None)])
    write_lag_samples(facts, "app", [sample(10, 3)])
    write_lag_samples(facts, "other", [sample(10, 4)])
    write_lag_samples(facts, "app", [])
    assert lag_samples(facts, "app", 0) == [sample(10, 3), sample(20, 5), sample(30, None)]
    assert lag_samples(facts, "app", 20) == [sample(20, 5), sample(30, None)]
    forget_lag_samples(facts, "app", 20)
    assert lag_samples(facts, "app", 0) == [sample(20, 5), sample(30, None)]
    assert lag_samples(facts, "other", 0) == [sample(10, 4)]
