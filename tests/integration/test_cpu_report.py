"""`pytest --cpu-report=FILE` writes where the processor time of the tests goes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.cpu_report import COLLECTION, CONTROLLER

ROOT = Path(__file__).parents[2]
_USED_S = 0.3
_FILES = {
    "conftest.py": "from tests.support.cpu_report import pytest_addoption, pytest_configure\n",
    "burn.py": f"""
import os, pathlib, sys, time
while time.process_time() < {_USED_S}: pass
pathlib.Path("burnt").touch()
while len(sys.argv) > 1 and os.path.exists(f"/proc/{{sys.argv[1]}}"): time.sleep(0.05)
""",
    "leave.py": """
import subprocess, sys, time
subprocess.Popen([sys.executable, "burn.py", sys.argv[1]])
time.sleep(float(sys.argv[2]))
""",
    "test_killed.py": """
import os, pathlib, psutil, subprocess, sys
from tidemark.processes import wait_until
def test_killed(request):
    parent = subprocess.Popen([sys.executable, "leave.py", str(os.getpid()), "60"])
    assert wait_until(pathlib.Path("burnt").exists, 30)
    request.config.pluginmanager.get_plugin("cpu-report").used.seconds()
    (child,) = psutil.Process(parent.pid).children()
    os.kill(parent.pid, 19)
    child.kill()
    parent.kill()
    parent.wait()
    pathlib.Path("burnt").unlink()
""",
    "test_child.py": """
import pathlib, subprocess, sys
def test_one(): pass
def test_two():
    subprocess.run([sys.executable, "burn.py"], check=True)
    pathlib.Path("burnt").unlink()
""",
    "test_nothing.py": "def test_nothing(): pass\n",
    "test_orphan.py": """
import os, pathlib, subprocess, sys
from tidemark.processes import wait_until
def test_orphan():
    subprocess.run([sys.executable, "leave.py", str(os.getpid()), "0"], check=True)
    assert wait_until(pathlib.Path("burnt").exists, 30)
""",
}


def test_should_charge_to_each_file_what_its_processes_use_also_without_their_parents(tmp_path: Path) -> None:
    for name, text in _FILES.items():
        (tmp_path / name).write_text(text)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "include")])}
    without = ["-p", "no:randomly", "-p", "no:schemathesis"]
    options = [*without, "--numprocesses", "1", "--rootdir", ".", "--cpu-report", "to/report"]
    subprocess.run([sys.executable, "-m", "pytest", *options], cwd=tmp_path, env=environment, check=True)
    lines = [line.split(maxsplit=2) for line in (tmp_path / "to" / "report").read_text().splitlines()[1:]]
    used_s = {file: float(cpu_s) for cpu_s, _, file in lines}
    files = {name for name in _FILES if name.startswith("test_")}
    assert set(used_s) == {*files, COLLECTION, CONTROLLER, "in all"}
    assert min(used_s[file] for file in files - {"test_nothing.py"}) >= _USED_S > used_s["test_nothing.py"]
    assert list(used_s.values())[:-1] == sorted(list(used_s.values())[:-1], reverse=True)
