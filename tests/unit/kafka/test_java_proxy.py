"""The proxies of the environment as a JVM gets them."""

from __future__ import annotations

import pytest

from tidemark.kafka.java_proxy import JavaProxy, java_proxy


@pytest.mark.parametrize(
    ("environment", "options"),
    [
        ({}, ()),
        ({"HTTPS_PROXY": ""}, ()),
        ({"NO_PROXY": "example.com"}, ()),
        ({"HTTPS_PROXY": "http://proxy:3128"}, ("-Dhttps.proxyHost=proxy", "-Dhttps.proxyPort=3128")),
        ({"HTTPS_PROXY": "proxy:3128/"}, ("-Dhttps.proxyHost=proxy", "-Dhttps.proxyPort=3128")),
        ({"HTTP_PROXY": "http://proxy"}, ("-Dhttp.proxyHost=proxy", "-Dhttp.proxyPort=80")),
        (
            {"HTTPS_PROXY": "http://upper:1", "https_proxy": "http://lower:2"},
            ("-Dhttps.proxyHost=lower", "-Dhttps.proxyPort=2"),
        ),
    ],
)
def test_should_give_a_jvm_the_proxies_of_the_environment(
    environment: dict[str, str], options: tuple[str, ...]
) -> None:
    assert java_proxy(environment) == JavaProxy(options, ())


@pytest.mark.parametrize(
    ("no_proxy", "patterns"),
    [
        ("example.com", "example.com|*.example.com"),
        (".example.com, *.other.org", "example.com|*.example.com|other.org|*.other.org"),
        ("example.com:8443,10.0.0.7", "example.com|*.example.com|10.0.0.7"),
        ("10.0.0.0/8,::1,,localhost", "localhost|*.localhost"),
        ("*", "*"),
    ],
)
def test_should_give_a_jvm_the_hosts_that_are_reached_without_a_proxy(no_proxy: str, patterns: str) -> None:
    found = java_proxy({"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": no_proxy})
    assert found.options[2:] == (f"-Dhttp.nonProxyHosts=localhost|127.*|[::1]|{patterns}",)


def test_should_leave_out_the_password_of_a_proxy_and_report_it() -> None:
    found = java_proxy({"HTTPS_PROXY": "http://alice:s3cret@proxy:3128"})
    assert found.options == ("-Dhttps.proxyHost=proxy", "-Dhttps.proxyPort=3128")
    assert "s3cret" not in str(found)
    assert "password in HTTPS_PROXY" in found.left_out[0]


@pytest.mark.parametrize("address", ["socks5://proxy:1080", "https://proxy:443", "http://proxy:port", "http://"])
def test_should_report_a_proxy_that_a_jvm_cannot_use(address: str) -> None:
    found = java_proxy({"HTTPS_PROXY": address, "NO_PROXY": "example.com"})
    assert found.options == ()
    assert "HTTPS_PROXY is not used" in found.left_out[0]
