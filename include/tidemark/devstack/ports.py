"""Free ports on loopback."""

from __future__ import annotations

import random
import socket

LOOPBACK = "127.0.0.1"
# Below the range from which systems take the source ports of outgoing connections: a port found free here cannot be
# taken by a client that merely connects somewhere before its service listens.
_FIRST, _LAST = 20_000, 32_000


def is_free(port: int) -> bool:
    """Return whether a service could listen on the port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Otherwise a port that a service has just left would count as taken for a minute.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def free_port(taken: set[int] | None = None) -> int:
    """Return a port that is free now and not in `taken`; raises `OSError` if none is found in 1000 tries."""
    for _ in range(1000):
        port = random.randint(_FIRST, _LAST)
        if port not in (taken or set()) and is_free(port):
            return port
    raise OSError(f"no free port found between {_FIRST} and {_LAST} on {LOOPBACK}")


def choose(preferred: int, taken: set[int] | None = None) -> int:
    """Return `preferred` if it is free and not in `taken`, else another port."""
    if preferred not in (taken or set()) and is_free(preferred):
        return preferred
    return free_port(taken)
