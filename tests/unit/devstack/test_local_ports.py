"""Ports that a service could take."""

from __future__ import annotations

import socket

from tidemark.devstack import ports


def test_should_skip_a_port_that_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind((ports.LOOPBACK, 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert not ports.is_free(port)
        assert ports.choose(port) != port


def test_should_keep_a_free_port() -> None:
    port = ports.free_port()
    assert ports.choose(port) == port
    assert ports.choose(port, taken={port}) != port


def test_should_treat_a_port_as_taken_when_a_service_listens_on_all_addresses() -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        assert not ports.is_free(taken.getsockname()[1])
