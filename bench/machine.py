"""Describes the machine and the versions, which a reader needs to judge the results."""

from __future__ import annotations

import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from tidemark.kafka import jars
from tidemark.settings import Settings

ROOT = Path(__file__).resolve().parents[1]


def machine(settings: Settings) -> dict[str, Any]:
    """Return the date, the processor, the memory and the versions that ran."""
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    streams = next((jar.stem for jar in jars.ensure("bench", settings) if "kafka-streams-" in jar.name), "")
    cpuinfo = Path("/proc/cpuinfo")
    models = (
        [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")] if cpuinfo.exists() else []
    )
    return {
        "when": datetime.now(UTC).strftime("%Y-%m-%d"),
        "cores": psutil.cpu_count(),
        "cpu": models[0].split(":", 1)[1].strip() if models else platform.processor(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
        "java": java.splitlines()[0] if java else "unknown",
        "kafka": streams.rsplit("-", 1)[-1],
        "pyspark": version("pyspark"),
    }
