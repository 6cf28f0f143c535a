"""Finds the Java that brokers and Spark run on, and refuses one that is too old."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tidemark.errors import PreflightFailed

OLDEST = 17
_REMEDY = (
    f"install Java {OLDEST} or 21 (Debian: `apt-get install openjdk-17-jre-headless`; "
    "macOS: `brew install openjdk@17`) and set JAVA_HOME if it is not the first on the PATH"
)


@dataclass(frozen=True)
class Java:
    """One Java runtime that is new enough."""

    home: Path
    version: int

    @property
    def executable(self) -> Path:
        """Return the path of the launcher."""
        return self.home / "bin" / "java"


def find() -> Java:
    """Return the Java of `JAVA_HOME`, else the first on the PATH, as Spark itself chooses.

    Raises `PreflightFailed`, with the remedy, if there is none or it is older than what Spark 4 runs on. Starts a
    process only if the runtime has no `release` file.
    """
    return _find(os.environ.get("JAVA_HOME", ""), os.environ.get("PATH", ""))


@cache
def _find(java_home: str, path: str) -> Java:
    if java_home:
        executable: Path | None = Path(java_home) / "bin" / "java"
        where = f"JAVA_HOME={java_home}"
    else:
        found = shutil.which("java", path=path)
        executable, where = (Path(found) if found else None), "the PATH"
    if executable is None or not os.access(executable, os.X_OK):
        raise PreflightFailed(f"no Java found in {where}: {_REMEDY}")
    # A launcher on the PATH is a link into the runtime; JAVA_HOME must name the runtime.
    home = executable.resolve().parent.parent
    version = _version_of(home, executable)
    if version < OLDEST:
        raise PreflightFailed(f"Java {version} in {home} is too old, {OLDEST} is the oldest that works: {_REMEDY}")
    return Java(home, version)


def parse_version(text: str) -> int | None:
    """Return the feature release in `17.0.15`, `1.8.0_392` (8) or `21-ea`; None if there is none."""
    found = re.match(r"(?:1\.(?=\d))?(\d+)", text)
    return int(found.group(1)) if found else None


def _version_of(home: Path, executable: Path) -> int:
    try:
        released = re.search(r'^JAVA_VERSION="([^"]+)"', (home / "release").read_text(), re.MULTILINE)
    except (OSError, UnicodeDecodeError):
        released = None
    if released is None:
        try:
            said = subprocess.run([executable, "-version"], capture_output=True, text=True, check=True, timeout=60)
        except (OSError, subprocess.SubprocessError) as error:
            raise PreflightFailed(f"{executable} does not run ({error}): {_REMEDY}") from error
        released = re.search(r'version "([^"]+)"', said.stderr + said.stdout)
    version = parse_version(released.group(1)) if released else None
    if version is None:
        raise PreflightFailed(f"cannot find out the version of {executable}: {_REMEDY}")
    return version


if __name__ == "__main__":
    # `make setup` runs this, so that a Java that is too old is found before anything is started.
    try:
        find()
    except PreflightFailed as error:
        sys.exit(f"tidemark: {error}")
