"""Parameters of reads: how they are described, in which order a request is refused, and how bodies are read."""

from __future__ import annotations

import json

import pytest
from tests.support.queries import body_of, counts_host
from tests.unit.queries.test_query_api import client, problem

from tidemark.queries.parameters import RangeInUrl, SessionsInUrl, WindowsInUrl

JSON = {"Content-Type": "application/json"}
BODY = b'{"keys": ["a"]}'


@pytest.mark.parametrize(
    ("path", "model"),
    [("range", RangeInUrl), ("windows", WindowsInUrl), ("sessions", SessionsInUrl)],
)
def test_should_describe_each_parameter_of_a_page_by_its_own_name(path, model):
    described = body_of(client(counts_host({})).get("/v1/openapi.json"))["paths"][f"/v1/stores/{{store}}/{path}"]
    in_url = {each["name"]: each["required"] for each in described["get"]["parameters"]}
    assert in_url == {"store": True, **dict.fromkeys(model.model_fields, False)}
    in_url = {each["name"] for each in described["post"]["parameters"]}
    assert in_url == {"store", "max_lag_records", "max_lag_ms", "at_least", "task"}


def test_should_take_the_last_of_several_values_and_ignore_unknown_names():
    asked = client(counts_host({b"a": 1, b"b": 2, b"c": 3}, tasks=1))
    found = body_of(asked.get("/v1/stores/n/range?limit=zero&more=1&limit=2&task=0_0"))
    assert len(found["entries"]) == 2
    assert "limit" in problem(asked.get("/v1/stores/n/range?limit=2&limit=zero"), 422)["detail"]
    assert "limit" in problem(asked.get("/v1/stores/n/range?limit="), 422)["detail"]


@pytest.mark.parametrize("query", ["task=zero", "task=", "at_least=zero"])
def test_should_refuse_parameters_that_a_route_between_processes_does_not_need(query):
    read = {"kind": "count", "query": {"is_approximate": True}, "after": None, "limit": 1}
    read |= {"max_lag_records": None, "max_lag_ms": None, "at_least": ""}
    asked = client(counts_host({}))
    assert asked.post("/v1/stores/n/tasks/0_0", json=read).status_code == 200
    problem(asked.post(f"/v1/stores/n/tasks/0_0?{query}", json=read), 422)
    problem(asked.get(f"/v1/stores/n/tasks/0_0/export?{query}"), 422)


@pytest.mark.parametrize("path", ["n/range?limit=0", "n/range?max_lag_ms=-1", "n/watch?max_lag_ms=-1", "other/key"])
def test_should_refuse_who_may_not_read_before_it_looks_at_parameters(path):
    for token, status in ((None, 401), ("wrong", 401), ("nothing", 403)):
        problem(client(counts_host({}), token=token).get(f"/v1/stores/{path}"), status)


@pytest.mark.parametrize("body", [b"{", b"\xff", b'{"keys": 1}'])
def test_should_read_no_body_of_a_stranger(body):
    host = counts_host({})
    for token, status in (("wrong", 401), ("nothing", 403)):
        problem(client(host, token=token).post("/v1/stores/n/keys", content=body, headers=JSON), status)


@pytest.mark.parametrize(
    ("kind", "is_read"),
    [
        ("application/json", True),
        ("Application/JSON; charset=utf-8", True),
        ("application/problem+json", True),
        ("text/json", False),
        ("application/jsonx", False),
        ("application/x-www-form-urlencoded", False),
        (None, False),
    ],
)
def test_should_read_a_body_only_if_it_says_that_it_is_json(kind, is_read):
    headers = {} if kind is None else {"Content-Type": kind}
    answer = client(counts_host({b"a": 1})).post("/v1/stores/n/keys", content=BODY, headers=headers)
    if is_read:
        assert body_of(answer)["entries"] == [{"key": "a", "value": {"n": 1}}]
    else:
        assert "Content-Type: application/json" in problem(answer, 422)["remedy"]


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"", 422, "not JSON"),
        (b"{", 422, "not JSON"),
        (b"null", 422, "the body"),
        (b"[]", 422, "the body"),
        (b'{"limit": 0}', 422, "limit: "),
        (b'{"cursor": [1]}', 422, "cursor: "),
        (b"\xff", 400, "cannot be read"),
        (b"[" * 100_000, 400, "cannot be read"),
        (json.dumps({"limit": 1}).encode() * 2, 422, "not JSON"),
    ],
)
def test_should_say_why_a_body_is_not_one(body, status, says):
    answer = client(counts_host({})).post("/v1/stores/n/range", content=body, headers=JSON)
    assert says in problem(answer, status)["detail"]
