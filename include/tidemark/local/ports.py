"""Free ports on loopback."""

from __future__ import annotations

import random
import socket

LOOPBACK = "127.0.0.1"
# Below the range from which systems take the source ports of outgoing connections: a port found free here cannot be
# taken by a client that merely connects somewhere before its service listens.
_FIRST, _LAST = 20_000, 32_000


def is_free(port: int) -> bool:
    """Whether a service could listen on the port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Without it, a port that a stopped service has just left would count as taken for a minute.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def free_port(taken: set[int] | None = None) -> int:
    """A port that is free now and not in `taken`; raises `OSError` where hundreds are taken."""
    for _ in range(1000):
        port = random.randint(_FIRST, _LAST)
        if port not in (taken or set()) and is_free(port):
            return port
    raise OSError(f"no free port found between {_FIRST} and {_LAST} on {LOOPBACK}")


def choose(preferred: int, taken: set[int] | None = None) -> int:
    """`preferred` where it is free and not in `taken`, else another one."""
    if preferred not in (taken or set()) and is_free(preferred):
        return preferred
    return free_port(taken)
