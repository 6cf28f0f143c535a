"""Finds secrets where they should not be: in arguments of processes, in logs, in any file that a run has written."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

_EVERY_S = 0.25


@contextmanager
def arguments_watched(secrets: Iterable[str]) -> Iterator[list[str]]:
    """Look at every process's arguments until the end of the block; gives those that hold one of the secrets."""
    wanted = [*secrets]
    found: list[str] = []
    end = threading.Event()

    def look() -> None:
        while not end.wait(_EVERY_S):
            for process in psutil.process_iter(["cmdline"]):
                line = " ".join(process.info["cmdline"] or [])
                if any(secret in line for secret in wanted) and line not in found:
                    found.append(line)

    watcher = threading.Thread(target=look, name="arguments", daemon=True)
    watcher.start()
    try:
        yield found
    finally:
        end.set()
        watcher.join(60)


def files_with(secrets: Iterable[str], folders: Iterable[Path], but: Collection[Path] = ()) -> list[str]:
    """Files below the folders, compressed ones as they are, that hold one of the secrets."""
    wanted = [secret.encode() for secret in secrets]
    held = []
    for path in (path for folder in folders for path in folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and path not in but:
            content = path.read_bytes()
            held += [f"{path}: {secret.decode()[:4]}…" for secret in wanted if secret in content]
    return held
