"""Runs `stream_instance.py` with the additional argument `--optimised yes|no`, which overrides the topology module."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "include")]

from spark_jobs import stream_instance
from tidemark.errors import ExitCode
from tidemark.topology.builder import OPTIMISED


def main(arguments: list[str]) -> ExitCode:
    """Run one instance of the topology, planned with or without optimisation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--optimised", choices=("yes", "no"), required=True)
    options, rest = parser.parse_known_args(arguments)
    OPTIMISED.set(options.optimised == "yes")
    return stream_instance.main(rest)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
