"""Files whose tests share an Airflow without its processes run on one worker."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.scheduling import FORKED_AIRFLOW, TOGETHER

ROOT = Path(__file__).parents[2]
_USES_IT = re.compile(r"^def \w+\((?:[^)]*\W)?operations\W", re.MULTILINE)


def test_should_run_all_files_that_share_an_airflow_on_one_worker() -> None:
    files = (path for path in (ROOT / "tests" / "integration").rglob("test_*.py"))
    sharing = {str(path.relative_to(ROOT)) for path in files if _USES_IT.search(path.read_text())}
    assert sharing == {file for file, what in TOGETHER.items() if what == FORKED_AIRFLOW}
