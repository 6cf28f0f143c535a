"""A held commit waits at its point until it is released, while the rest of its process continues."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from tests.system.chaos.held import HeldCommit
from tests.system.chaos.world import World
from tests.system.crash import probe
from tests.system.crash.bench import ROOT

from tidemark.processes import wait_until

# What an instance does: one thread commits, others say that the process lives.
_INSTANCE = """
import sys, threading
from tests.system.crash.probe import kill

def commit():
    kill("3-changelogs")
    kill("4-commit-records")
    print("committed", flush=True)

thread = threading.Thread(target=commit)
thread.start()
for line in sys.stdin:
    print("lives", flush=True)
thread.join()
"""


def test_should_hold_only_the_committing_thread_until_it_is_released(tmp_path):
    arm_file = tmp_path / "arm.json"
    probe.arm(arm_file, "4-commit-records", how=probe.HOLD)
    held = HeldCommit(0, probe.held_file(arm_file))
    with subprocess.Popen(
        [sys.executable, "-c", _INSTANCE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "TEST_CRASH_ARM": str(arm_file), "PYTHONPATH": f"{ROOT}:{ROOT / 'include'}"},
    ) as process:  # fmt: skip
        try:
            assert wait_until(held.file.exists, 60)
            assert held.file.read_text() == str(process.pid)
            assert not arm_file.exists()
            process.stdin.write("well?\n")
            process.stdin.flush()
            assert process.stdout.readline() == "lives\n"
            held.let_go()
            assert process.stdout.readline() == "committed\n"
        finally:
            held.let_go()
            process.stdin.close()


@pytest.mark.parametrize("when", [None, lambda: True])
def test_should_release_a_commit_once_the_fault_is_in_place(tmp_path, when):
    held = HeldCommit(0, tmp_path / "held")
    held.file.touch()
    World.in_place(SimpleNamespace(held=held), when)
    assert not held.file.exists()


def test_should_not_release_a_commit_before_the_fault_is_in_place(tmp_path):
    held = HeldCommit(0, tmp_path / "held")
    held.file.touch()
    seen = []

    def is_in_place():
        seen.append(held.file.exists())
        return len(seen) > 2

    World.in_place(SimpleNamespace(held=held), is_in_place)
    assert (seen, held.file.exists()) == ([True] * 3, False)
