"""The run file and the log lines that an instance's listeners write."""

from __future__ import annotations

import logging

from tests.support.events import progress

from tidemark.events.event import Rebalance
from tidemark.events.listeners import LoggingListener
from tidemark.instance.listeners import RunFileListener
from tidemark.names import TopicPartition
from tidemark.supervision.run_file import RunFile, read_run_file
from tidemark.supervision.state import InstanceState

A, B = TopicPartition("in", 0), TopicPartition("in", 1)


def test_should_write_state_partitions_and_the_running_restore_into_the_run_file(tmp_path):
    run_file = RunFile(tmp_path / "app-0.json", {})
    listener = RunFileListener(run_file, lambda: 77)

    def said(name):
        run_file.update({}, now=True)
        return (read_run_file(tmp_path / "app-0.json") or {}).get(name)

    listener.on_change(InstanceState.RESTORING, InstanceState.REBALANCING)
    assert (said("state"), said("since_ms")) == ("RESTORING", 77)
    for after in (listener.on_restore_end, listener.on_restore_suspended):
        listener.on_batch_restored(progress(60, 2.0, 40))
        assert said("restoring") == {
            "store": "n",
            "changelog": "app-n-changelog[3]",
            "start_offset": 10,
            "next_offset": 60,
            "end_offset": 110,
            "records": 40,
            "records_per_second": 20,
            "remaining_s": 2.0,
        }
        after(progress(60, 2.0, 40))
        assert said("restoring") is None
    listener.on_rebalance(Rebalance((A, B), (A,), (), 4))
    assert (said("partitions"), said("generation")) == (["in[0]", "in[1]"], 4)


def test_should_log_what_a_rebalance_changed(caplog):
    with caplog.at_level(logging.INFO):
        LoggingListener().on_rebalance(Rebalance((A,), (A,), (B,), 5))
    assert "rebalance: held=1 gained=in[0] lost=in[1] generation=5" in caplog.text


def test_should_log_batches_once_a_second_even_for_a_restarted_restore(caplog):
    listener = LoggingListener()
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            listener.on_restore_start(progress())
            for elapsed_s in (0.5, 1.0, 1.5):
                listener.on_batch_restored(progress(60, elapsed_s))
    assert caplog.text.count("restore batch") == 2
