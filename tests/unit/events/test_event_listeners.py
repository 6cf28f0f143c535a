"""Notifying all listeners, among them a user's listener that raises, blocks or cannot be loaded."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from types import ModuleType

import pytest
from tests.support.events import progress
from tests.support.logged import logged_by

from tidemark.errors import ExitCode, InvalidSettings
from tidemark.events.event import Rebalance, Waiting
from tidemark.events.listeners import Listeners
from tidemark.events.user_listener import METHODS, UserListener, load_listeners
from tidemark.names import TopicPartition
from tidemark.supervision.state import InstanceState

NEW, OLD = InstanceState.RUNNING, InstanceState.REBALANCING
A, B, C = (TopicPartition("in", number) for number in range(3))
BOUND_S = 30.0


heard_by_raising = []


class Recording:
    """Keeps every call of a listener."""

    def __init__(self, *_: object) -> None:
        self.calls = []

    def __getattr__(self, name):
        if name not in METHODS:
            raise AttributeError(name)
        return lambda *arguments: self.calls.append((name, *arguments))


class Blocking:
    """A user's listener that blocks in its first call until it is let go."""

    let_go: threading.Event
    entered: threading.Event
    heard: list

    def __init__(self, application_id, instance):
        self.of = (application_id, instance)

    def on_change(self, new, old):
        type(self).entered.set()
        assert type(self).let_go.wait(60)
        self.heard.append((self.of, "on_change"))

    def on_batch_restored(self, summary):
        self.heard.append((self.of, "on_batch_restored"))

    def on_restore_end(self, summary):
        self.heard.append((self.of, "on_restore_end"))


@pytest.fixture
def waiting():
    """A class of its own for each test; nothing is left blocked."""
    made = type("Blocking", (Blocking,), {"let_go": threading.Event(), "entered": threading.Event(), "heard": []})
    yield made
    made.let_go.set()


class Raising:
    """A user's listener that fails in every call but the last."""

    def __init__(self, application_id, instance): ...

    def on_change(self, new, old):
        raise RuntimeError("no chat today")

    def on_restore_end(self, summary):
        heard_by_raising.append(summary)


def tell_all(listeners):
    listeners.on_change(NEW, OLD)
    listeners.on_failure(RuntimeError())
    listeners.on_rebalance(Rebalance((A,), (A,), (), 3))
    listeners.on_waiting(Waiting("no broker leads out[0]"))
    listeners.on_restore_start(progress())
    listeners.on_batch_restored(progress(60))
    listeners.on_restore_end(progress(110))
    listeners.on_restore_suspended(progress(60))


def test_should_notify_each_listener_of_everything_in_order():
    first, second = Recording(), Recording()
    tell_all(Listeners((first, second), ()))
    assert [call[0] for call in first.calls] == list(METHODS)
    assert first.calls == second.calls
    assert first.calls[0] == ("on_change", NEW, OLD)


def test_should_report_what_a_rebalance_assigned_and_revoked():
    listener = Recording()
    listeners = Listeners((listener,), ())
    for generation, held in enumerate(([B, A], [B, C], [B, C], [])):
        listeners.rebalanced(held, generation)
    assert [call[1] for call in listener.calls] == [
        Rebalance((A, B), (A, B), (), 0),
        Rebalance((B, C), (C,), (A,), 1),
        Rebalance((B, C), (), (), 2),
        Rebalance((), (), (B, C), 3),
    ]


def test_should_close_all_listeners_in_parallel_within_the_bound():
    closed = []

    class Slow:
        def close(self, timeout_s):
            assert all_in.wait(timeout=timeout_s) is not None
            closed.append(timeout_s)

    all_in = threading.Barrier(3)
    Listeners((), (Slow(), Slow(), Slow())).close(BOUND_S)
    assert closed == [BOUND_S] * 3, "each waited for the others to be closed as well"


def test_should_abandon_a_listener_that_does_not_close():
    forever = threading.Event()

    class Stuck:
        def close(self, timeout_s):
            forever.wait(60)

    started = time.monotonic()
    Listeners((), (Stuck(),)).close(0.1)
    assert time.monotonic() - started < BOUND_S
    forever.set()


def test_should_call_the_methods_that_a_users_listener_has(waiting):
    waiting.let_go.set()
    user = UserListener("own:Waiting", waiting, "app", 4)
    tell_all(user)
    user.close(BOUND_S)
    assert waiting.heard == [(("app", 4), name) for name in ("on_change", "on_batch_restored", "on_restore_end")]
    assert (user.dropped, user.failed) == (0, 0)


def test_should_name_a_users_listener_that_raises_once_and_keep_calling_it(caplog):
    heard_by_raising.clear()
    user = UserListener("own:Raising", Raising, "app", 0)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            user.on_change(NEW, OLD)
        user.on_restore_end(progress(110))
        user.close(BOUND_S)
    assert heard_by_raising == [progress(110)]
    assert user.failed == 5
    summary = [record.getMessage() for record in logged_by(caplog, "tidemark.events")]
    assert len(summary) == 2
    assert "own:Raising: on_change: RuntimeError: no chat today" in summary[0]
    assert "0 calls dropped, 5 failed" in summary[1]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError("no such host"), "OSError: no such host"),
        (SystemExit(3), "SystemExit: 3"),
        (asyncio.CancelledError("cut"), "CancelledError: cut"),
    ],
)
def test_should_continue_when_a_users_listener_cannot_be_created(caplog, error, said):
    class NotMade(Raising):
        def __init__(self, application_id, instance):
            raise error

    user = UserListener("own:NotMade", NotMade, "app", 0)
    with caplog.at_level(logging.WARNING):
        user.on_restore_end(progress(110))
        user.close(BOUND_S)
    assert f"own:NotMade: on_restore_end: {said}" in caplog.text


def test_should_neither_block_the_stream_nor_queue_without_bound_when_a_users_listener_blocks(waiting, caplog):
    user = UserListener("own:Waiting", waiting, "app", 0, queued_calls=10)
    user.on_change(NEW, OLD)
    assert waiting.entered.wait(BOUND_S)
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            user.on_batch_restored(progress(60))
        for _ in range(7):
            user.on_restore_end(progress(110))
    assert user.dropped == 97, "batches fill half of the queue, five ends the rest"
    assert caplog.text.count("slower than the stream") == 1
    waiting.let_go.set()
    user.close(BOUND_S)
    assert [name for _, name in waiting.heard].count("on_batch_restored") == 5
    assert [name for _, name in waiting.heard].count("on_restore_end") == 5


@pytest.mark.parametrize("queued_calls", [1, 10])
def test_should_abandon_a_users_listener_that_does_not_return(waiting, queued_calls):
    user = UserListener("own:Waiting", waiting, "app", 0, queued_calls=queued_calls)
    user.on_change(NEW, OLD)
    assert waiting.entered.wait(BOUND_S)
    user.on_restore_end(progress(110))
    started = time.monotonic()
    user.close(0.1)
    assert time.monotonic() - started < BOUND_S
    assert waiting.heard == []


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("own_listeners", "not an import path"),
        ("no.such.module:Own", "cannot be imported"),
        ("own_listeners:Missing", "has no such name"),
        ("own_listeners:function", "is not a class; name a class with on_change"),
        ("own_listeners:Nothing", "has none of on_change, on_failure"),
    ],
)
def test_should_refuse_an_unusable_import_path_at_the_start(monkeypatch, path, says):
    module = ModuleType("own_listeners")
    module.function, module.Nothing = (lambda: None), type("Nothing", (), {})
    monkeypatch.setitem(sys.modules, "own_listeners", module)
    with pytest.raises(InvalidSettings) as refused:
        load_listeners([path], "app", 0)
    assert str(refused.value).startswith("setting listeners: ")
    assert path in str(refused.value)
    assert says in str(refused.value)
    assert refused.value.exit_code is ExitCode.USAGE
