"""Rates that are changed for a while: earlier records are sent before the new rates apply."""

from __future__ import annotations

import threading

from tests.system.chaos.feeding import Feeding

from tidemark.processes import wait_until


def test_should_send_everything_at_the_old_rates_before_new_rates_apply():
    feeding, sent = Feeding("nowhere", 1), []

    def send(_seconds):
        rate = feeding.rates.events
        threading.Event().wait(0.1)
        sent.append(rate)

    thread = threading.Thread(target=feeding._beat, args=(send,), daemon=True)
    thread.start()
    usual = feeding.rates.events
    assert wait_until(lambda: usual in sent, 60)
    with feeding.at(events=0):
        before = len(sent)
        assert wait_until(lambda: len(sent) > before + 2, 60)
        assert set(sent[before:]) == {0}
        assert feeding.rates.queue
    assert wait_until(lambda: sent[-1] == usual, 60)
    feeding.stop()
    thread.join(60)
