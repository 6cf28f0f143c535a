"""The folder of the records that an audit reads is removed, at the latest by the next audit."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from spark_jobs.audit import pipeline

from tidemark.folder_lock import FolderLock, is_locked


@pytest.fixture
def audit(tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "reading_of", lambda *_: SimpleNamespace(offsets=0))
    monkeypatch.setattr(pipeline, "sized", lambda *_: nullcontext())
    return pipeline.OneAudit(*[None] * 8, "20260102T000000-000", tmp_path, None)


def test_should_remove_what_killed_audits_have_read_and_leave_what_others_read(audit, tmp_path):
    killed, running = (tmp_path / "work" / name for name in ("20260101T000000-000", "20260101T000000-001"))
    with FolderLock(running):
        FolderLock(killed).release()
        (killed / "records").mkdir()
        with audit.working():
            assert not killed.exists()
            assert running.exists()
            assert is_locked(tmp_path / "work" / audit.audit_id)
        assert sorted(path.name for path in (tmp_path / "work").iterdir() if path.is_dir()) == [running.name]


def test_should_remove_what_it_has_read_when_it_fails(audit, tmp_path):
    with pytest.raises(ValueError, match="no row"), audit.working():
        (tmp_path / "work" / audit.audit_id / "records").mkdir()
        raise ValueError("no row")
    assert not (tmp_path / "work" / audit.audit_id).exists()
