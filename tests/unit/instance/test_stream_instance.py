"""How the process of an instance ends."""

from __future__ import annotations

import sys

import pytest
from spark_jobs import stream_instance


@pytest.mark.parametrize("code", [None, 0, 3])
def test_should_not_end_as_stopped_on_request_when_code_in_it_calls_sys_exit(monkeypatch, code):
    monkeypatch.setattr(stream_instance.signal, "signal", lambda *_: None)
    monkeypatch.setattr(stream_instance, "_run", lambda *_: sys.exit(code))
    with pytest.raises(RuntimeError, match=f"called sys.exit\\({code}\\)"):
        stream_instance.main(["--topology", "made"])
