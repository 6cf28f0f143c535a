"""The tokens of a Prometheus in a container: shared with applications, and renewed before they end."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from tidemark.devstack import scrape_tokens
from tidemark.devstack.scrape_tokens import RENEW_S, RETRY_S, keep_token, share_token
from tidemark.errors import InvalidSettings, TidemarkError
from tidemark.queries.access import METRICS, READ, Tokens, token_file
from tidemark.settings import Settings


def scopes(var_dir: Path, app: str, token: str) -> frozenset[str]:
    return Tokens.load(Settings.load(var_dir=var_dir), app).caller(token).scopes


def test_each_application_should_accept_the_same_token_for_metrics_only(tmp_path):
    shared = tmp_path / "instances"
    share_token(shared, tmp_path, ["a", "b"])
    token = shared.read_text()
    assert len(token) > 30
    assert {scopes(tmp_path, app, token) for app in ("a", "b")} == {frozenset([METRICS])}
    assert stat.S_IMODE(shared.stat().st_mode) == 0o644
    assert stat.S_IMODE(token_file(tmp_path, "a").stat().st_mode) == 0o600


def test_tokens_should_be_kept_when_it_runs_again_and_other_tokens_always(tmp_path):
    file = token_file(tmp_path, "a")
    file.parent.mkdir()
    file.write_text(json.dumps({"mine": [READ]}))
    file.chmod(0o600)
    shared = tmp_path / "instances"
    share_token(shared, tmp_path, ["a"])
    token, written = shared.read_text(), file.read_text()
    assert scopes(tmp_path, "a", "mine") == {READ}
    share_token(shared, tmp_path, ["a", "b"])
    assert (shared.read_text(), file.read_text()) == (token, written)
    assert scopes(tmp_path, "b", token) == {METRICS}


def test_a_damaged_token_file_should_be_reported_and_left_alone(tmp_path):
    file = token_file(tmp_path, "a")
    file.parent.mkdir()
    file.write_text("[")
    file.chmod(0o600)
    with pytest.raises(InvalidSettings, match="not a JSON object"):
        share_token(tmp_path / "instances", tmp_path, ["a"])
    assert file.read_text() == "["


class Enough(Exception):
    """Ends what would go on for ever."""


def test_a_token_of_airflow_should_be_asked_for_until_there_is_one_and_again_before_it_ends(tmp_path):
    file, paused = tmp_path / "airflow", []
    answers = iter(["refused", "first", "second"])

    def log_in() -> str:
        answer = next(answers)
        if answer == "refused":
            raise TidemarkError("Airflow does not answer")
        return answer

    def wait(seconds: float) -> None:
        paused.append((seconds, file.read_text() if file.exists() else None))
        if len(paused) == 3:
            raise Enough

    with pytest.raises(Enough):
        keep_token(file, log_in, wait)
    assert paused == [(RETRY_S, None), (RENEW_S, "first"), (RENEW_S, "second")]
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


def test_it_should_know_the_applications_of_all_topologies():
    assert {"patient-monitoring", "shopping", "clicks"} <= set(scrape_tokens._applications())
