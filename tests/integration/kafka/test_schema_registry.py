"""Questions to a schema registry, over HTTP.

They are asked of `FakeRegistry`, and of a real registry if `REGISTRY_UNDER_TEST` has its address (`make registry`), so that the
two answer in the same way.
"""

from __future__ import annotations

import base64
import json
import os
import uuid
from collections.abc import Iterator

import httpx
import pytest
from pydantic import SecretStr
from tests.support.schema_registry import FakeRegistry, serving

from tidemark.errors import InvalidSettings, OutcomeUnknown, PreflightFailed
from tidemark.kafka.schema_registry import SchemaRegistry
from tidemark.settings import Settings

LINE = {"type": "record", "name": "Line", "namespace": "shop", "fields": [{"name": "sku", "type": "string"}]}
ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "line", "type": "Line"},
        {"name": "next", "type": "shop.Line"},
    ],
}
PLAIN = {"type": "record", "name": "Plain", "fields": [{"name": "id", "type": "string"}]}
OTHER = {"type": "record", "name": "Plain", "fields": [{"name": "id", "type": "long"}]}


@pytest.fixture(params=["fake", "real"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "fake":
        with serving(FakeRegistry()) as address:
            yield address
    elif "REGISTRY_UNDER_TEST" in os.environ:
        yield os.environ["REGISTRY_UNDER_TEST"]
    else:
        pytest.skip("no registry runs: see `make registry`")


def registry_at(settings: Settings, url: str, **more: object) -> SchemaRegistry:
    return SchemaRegistry(settings.model_copy(update={"schema_registry_url": url, "broker_timeout_ms": 2000, **more}))


def register(url: str, subject: str, schema: object, **more: object) -> int:
    body = {"schema": json.dumps(schema), **more}
    answer = httpx.post(f"{url}/subjects/{subject}/versions", json=body)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["id"])


@pytest.fixture
def subject() -> str:
    return f"orders-{uuid.uuid4().hex[:8]}-value"


def test_should_register_a_schema_once_and_read_it_by_its_id(url, subject):
    registry = registry_at(Settings(), url)
    number = registry.register(subject, PLAIN)
    assert registry_at(Settings(), url).register(subject, PLAIN) == number
    assert registry_at(Settings(), url).avro(number) == PLAIN


def test_should_say_that_there_is_no_such_schema(url):
    with pytest.raises(ValueError, match="the registry gives no schema 1999999999"):
        registry_at(Settings(), url).avro(1_999_999_999)


def test_should_not_ask_for_an_id_that_is_no_number_of_a_registry():
    """A registry has no path with such a number, so its answer would be that for a wrong address."""
    fake = FakeRegistry()
    with serving(fake) as address:
        registry = registry_at(Settings(), address)
        with pytest.raises(ValueError, match="schema 2147483648 cannot exist"):
            registry.avro(2**31)
        assert fake.asked == []
        with pytest.raises(ValueError, match="the registry gives no schema 2147483647"):
            registry.avro(2**31 - 1)


def test_should_put_in_what_a_schema_takes_from_another(url, subject):
    register(url, f"line-{subject}", LINE)
    reference = {"name": "shop.Line", "subject": f"line-{subject}", "version": 1}
    number = register(url, subject, ORDER, references=[reference])
    found = registry_at(Settings(), url).avro(number)
    assert [field["type"] for field in found["fields"]] == ["string", LINE, "shop.Line"]


def test_should_refuse_a_schema_of_another_kind(url, subject):
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}
    number = register(url, subject, schema, schemaType="JSON")
    with pytest.raises(ValueError, match=f"schema {number} is JSON, not AVRO"):
        registry_at(Settings(), url).avro(number)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array"}, {"type": "map"}, {"type": "record", "name": "R"}, {"type": "record", "fields": []},
        {"type": "record", "name": "R", "fields": None}, {"type": "record", "name": "R", "fields": ["id"]},
        {"type": "record", "name": "R", "fields": [{"name": "id"}]},
        {"type": "record", "name": "R", "fields": [{"type": "string"}]},
        {"type": "enum"}, {"type": "record", "name": "R", "fields": [{"name": "e", "type": {"type": "fixed"}}]},
        '{"type": "array", "items": ' * 20_000 + '"long"' + "}" * 20_000,
    ],
    ids=range(11),
)  # fmt: skip
def test_should_say_of_a_malformed_schema_that_it_is_none(schema):
    """Some registries take any JSON for a schema of Avro. Its records are bad, and the stream must not end with them."""
    fake = FakeRegistry()
    number = fake.add("s", schema)
    with serving(fake) as address, pytest.raises(ValueError, match=f"schema {number} is no schema of Avro"):
        registry_at(Settings(), address).avro(number)


def test_should_say_why_a_subject_refuses_a_schema(url, subject):
    register(url, subject, PLAIN)
    config = httpx.put(f"{url}/config/{subject}", json={"compatibility": "FULL"})
    assert config.status_code == 200, config.text
    with pytest.raises(PreflightFailed, match=f"subject {subject} refuses the schema of the sink's columns"):
        registry_at(Settings(), url).register(subject, OTHER)


def test_should_say_that_nobody_answers():
    with serving(FakeRegistry()) as address:
        pass
    registry = registry_at(Settings(), address)
    registry._client._rest_client.max_retries = 0
    with pytest.raises(
        OutcomeUnknown, match=f"schema registry {address} does not answer .*TIDEMARK_SCHEMA_REGISTRY_URL"
    ):
        registry.avro(1)


def test_should_not_take_a_failure_for_an_answer():
    fake = FakeRegistry()
    fake.fails = True
    with serving(fake) as address:
        registry = registry_at(Settings(), address)
        registry._client._rest_client.max_retries = 0
        with pytest.raises(OutcomeUnknown, match="does not answer"):
            registry.avro(1)


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (404, "<html>default backend</html>"), (200, "<html>maintenance</html>"), (200, "{}"), (404, "{}"), (429, "{}"),
        # The registry itself, if the path in the address is wrong.
        (404, '{"error_code":404,"message":"HTTP 404 Not Found"}'),
    ],
)  # fmt: skip
def test_should_not_take_the_answer_of_a_proxy_for_one_of_the_registry(status, text):
    fake = FakeRegistry()
    fake.proxied = (status, text)
    with serving(fake) as address:
        registry = registry_at(Settings(), address)
        registry._client._rest_client.max_retries = 0
        with pytest.raises(OutcomeUnknown, match="does not answer"):
            registry.avro(1)
        with pytest.raises(OutcomeUnknown, match="does not answer"):
            registry.register("s", PLAIN)


def test_should_take_a_schema_that_this_user_may_not_read_for_none_only_if_he_may_read_others():
    """If he may read none, the settings are wrong, and the records are good."""
    fake = FakeRegistry()
    number = fake.add("s", PLAIN)
    denied = (403, '{"error_code": 40301, "message": "User is denied operation on subject s"}')
    fake.proxied = denied
    with serving(fake) as address:
        registry = registry_at(Settings(), address)
        for ask in (lambda: registry.avro(7), lambda: registry.register("s", PLAIN)):
            with pytest.raises(
                PreflightFailed, match=r"does not allow this to this user .*is denied.*give the user the right"
            ):
                ask()
        fake.proxied = None
        assert registry.avro(number) == PLAIN
        fake.proxied = denied
        with pytest.raises(ValueError, match="does not allow this to this user"):
            registry.avro(7)


NO_VERDICT = [
    (403, "<html>forbidden</html>"),
    (403, ""),
    (403, '{"error_code": 0, "message": "Forbidden"}'),
    (403, '{"error_code": 403, "message": "User cannot access the resource"}'),
]
"""Answers that say nothing about what was asked for: a proxy's, Apicurio's, and the one that Confluent's filters give."""


@pytest.mark.parametrize(
    ("proxied", "raised"),
    [
        ((401, '{"error_code": 401, "message": "Unauthorized"}'), PreflightFailed),
        ((401, "<html>log in</html>"), PreflightFailed),
        *((answer, OutcomeUnknown) for answer in NO_VERDICT),
    ],
    ids=range(6),
)
def test_should_take_no_schema_for_none_because_a_password_expired_or_a_gateway_refuses(proxied, raised):
    fake = FakeRegistry()
    fake.add("s", PLAIN)
    number = fake.add("s", OTHER)
    with serving(fake) as address:
        registry = registry_at(Settings(), address)
        assert registry.avro(1) == PLAIN
        fake.proxied = proxied
        with pytest.raises(raised, match=r"does not allow this to this user .*give the user the right"):
            registry.avro(number)
        with pytest.raises(PreflightFailed, match="does not allow this to this user"):
            registry.register("t", PLAIN)


@pytest.mark.parametrize(
    ("denied", "raised"),
    [((403, '{"error_code": 40301, "message": "denied"}'), ValueError), *((one, OutcomeUnknown) for one in NO_VERDICT)],
    ids=range(5),
)
def test_should_judge_a_schema_as_one_whose_reference_this_user_may_not_read(denied, raised):
    fake = FakeRegistry()
    fake.add("line", LINE)
    number = fake.add("s", ORDER, [{"name": "shop.Line", "subject": "line", "version": 1}])
    fake.denied["/subjects/line/versions/1"] = denied
    with serving(fake) as address, pytest.raises(raised, match="does not allow this to this user"):
        registry_at(Settings(), address).avro(number)


@pytest.mark.parametrize("answer", NO_VERDICT, ids=range(4))
def test_should_say_that_the_user_has_no_right_if_nothing_was_read_before(answer):
    """Another attempt would have the same answer, and no record is judged by it."""
    fake = FakeRegistry()
    fake.proxied = answer
    with serving(fake) as address:
        registry = registry_at(Settings(), address)
        for ask in (lambda: registry.avro(7), lambda: registry.register("s", PLAIN)):
            with pytest.raises(PreflightFailed, match=r"does not allow this to this user .*give the user the right"):
                ask()


def test_should_say_that_the_registry_does_not_know_the_user_and_show_no_password():
    fake = FakeRegistry()
    number = fake.add("s", PLAIN)
    fake.authorization = "Basic " + base64.b64encode(b"reader:secret").decode()
    with serving(fake) as address:
        known = registry_at(
            Settings(), address, schema_registry_user="reader", schema_registry_password=SecretStr("secret")
        )
        assert known.avro(number) == PLAIN
        other = registry_at(
            Settings(), address, schema_registry_user="reader", schema_registry_password=SecretStr("typo")
        )
        with pytest.raises(PreflightFailed, match="does not allow this to this user") as refused:
            other.avro(number)
        assert "typo" not in str(refused.value)


@pytest.mark.parametrize("address", ["http://registry:80a81", "http://registry:8081,http://other:99999"])
def test_should_refuse_an_address_with_a_port_that_is_none(address):
    with pytest.raises(InvalidSettings, match=r"the settings schema_registry_… cannot be used: Port"):
        registry_at(Settings(), address)


def test_should_take_addresses_of_ipv6(monkeypatch):
    addresses = "http://[::1]:8081,https://[2001:db8::1]:8081"
    monkeypatch.setenv("TIDEMARK_SCHEMA_REGISTRY_URL", addresses)
    settings = Settings.load()
    assert settings.schema_registry_url == addresses
    SchemaRegistry(settings)


@pytest.mark.parametrize(
    "address",
    [
        "http://reader:secret@127.0.0.1:8081", "http://[::1]:8081,http://reader:secret@[::1]:8082",
        "http://one:8081,http://reader:secret@other:8081", "https://reader:12,secret@registry:8081",
    ],
    ids=range(4),
)  # fmt: skip
def test_should_refuse_an_address_with_a_password(monkeypatch, address):
    monkeypatch.setenv("TIDEMARK_SCHEMA_REGISTRY_URL", address)
    remedy = "the URL has a password, .* set TIDEMARK_SCHEMA_REGISTRY_USER and TIDEMARK_SCHEMA_REGISTRY_PASSWORD$"
    with pytest.raises(InvalidSettings, match=f"schema_registry_url: {remedy}") as refused:
        Settings.load()
    assert "secret" not in str(refused.value)
