"""Tokens: where they come from, what they allow, and that they are never shown."""

from __future__ import annotations

import json
import threading

import pytest

from tidemark.errors import InvalidSettings
from tidemark.queries.access import Caller, RateLimit, Tokens, read_token_file, token_file
from tidemark.queries.errors import CallerUnknown, ScopeMissing, TooManyRequests
from tidemark.settings import Settings


def load(tmp_path, given: str = "", app: str = "app") -> Tokens:
    return Tokens.load(Settings(var_dir=tmp_path, query_tokens=given), app)


def test_should_make_a_token_for_the_owner_alone(tmp_path):
    tokens = load(tmp_path)
    path = token_file(tmp_path, "app")
    assert path.stat().st_mode & 0o777 == 0o600
    (token,) = json.loads(path.read_text())
    assert len(token) >= 40
    tokens.caller(token).require("any")
    load(tmp_path).caller(token)
    assert list(path.parent.iterdir()) == [path]
    with pytest.raises(CallerUnknown):
        load(tmp_path, app="other").caller(token)


def test_should_make_one_file_when_processes_start_together(tmp_path):
    found, start = [], threading.Barrier(8)

    def read() -> None:
        start.wait()
        found.append(tuple(read_token_file(token_file(tmp_path, "app"), creates=True)))

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_should_refuse_a_file_that_others_can_read(tmp_path, mode):
    load(tmp_path)
    path = token_file(tmp_path, "app")
    path.chmod(mode)
    with pytest.raises(InvalidSettings, match=f"chmod 600 {path}"):
        load(tmp_path)


def test_should_prefer_the_environment_and_keep_applications_apart(tmp_path):
    given = json.dumps({"app": {"s3cret": ["read:n"]}, "other": {"0ther": ["read"]}})
    tokens = load(tmp_path, given)
    caller = tokens.caller("s3cret")
    caller.require("n")
    with pytest.raises(ScopeMissing, match="store w"):
        caller.require("w")
    for wrong in ("0ther", "", None, "s3cre", "s3cret "):
        with pytest.raises(CallerUnknown):
            tokens.caller(wrong)
    assert not token_file(tmp_path, "app").exists()


@pytest.mark.parametrize(
    "given",
    [
        "s3cret",
        "[]",
        '{"app": ["s3cret"]}',
        '{"app": {"s3cret": "read"}}',
        '{"app": {"s3cret": ["write"]}}',
        '{"app": {"": ["read"]}}',
    ],
)
def test_should_not_show_a_token_that_it_refuses(tmp_path, given):
    with pytest.raises(InvalidSettings) as refused:
        load(tmp_path, given)
    assert "s3cret" not in str(refused.value)


def test_should_show_no_token_in_its_settings_and_callers(tmp_path):
    settings = Settings(var_dir=tmp_path, query_tokens='{"app": {"s3cret": ["read"]}}', query_token="s3cret")
    assert "s3cret" not in repr(settings)
    assert "s3cret" not in repr(Tokens.load(settings, "app").caller("s3cret"))


def test_should_allow_a_rate_and_as_many_at_once():
    now = [0.0]
    limit, one, other = RateLimit(2, lambda: now[0]), Caller(b"1", frozenset()), Caller(b"2", frozenset())

    def allowed(caller) -> bool:
        try:
            limit.require(caller)
        except TooManyRequests:
            return False
        return True

    assert [allowed(one) for _ in range(3)] == [True, True, False]
    assert allowed(other)
    now[0] = 0.49
    assert not allowed(one)
    now[0] = 0.51
    assert [allowed(one), allowed(one)] == [True, False]
    now[0] = 100.0
    assert [allowed(one) for _ in range(3)] == [True, True, False]
