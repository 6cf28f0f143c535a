"""Ports that a service could take."""

from __future__ import annotations

import socket

from tidemark.devstack import ports


def test_a_port_that_is_taken_should_be_passed_over() -> None:
    with socket.socket() as taken:
        taken.bind((ports.LOOPBACK, 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert not ports.is_free(port)
        assert ports.choose(port) != port


def test_a_port_that_is_free_should_be_kept() -> None:
    port = ports.free_port()
    assert ports.choose(port) == port
    assert ports.choose(port, taken={port}) != port


def test_a_service_on_all_addresses_should_count_as_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        assert not ports.is_free(taken.getsockname()[1])
