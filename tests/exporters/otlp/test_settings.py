"""The environment is read as OpenTelemetry says, and what it cannot mean is said in one line."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

pytest.importorskip("grpc")

from tests.exporters.otlp.certificates import Certificates
from tracekit.errors import MissingDependency, UsageError
from tracekit.exporters._otlp.settings import (
    Settings,
    Signal,
    asked_for,
    exporter_of,
    read_settings,
)

GRPC = {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}


def read(signal: Signal = "traces", /, **settings: str) -> Settings:
    """Read ``OTEL_EXPORTER_OTLP_<name>`` alone."""
    return read_settings(signal, variables(settings))


def variables(settings: Mapping[str, str]) -> dict[str, str]:
    return {f"OTEL_EXPORTER_OTLP_{name}": text for name, text in settings.items()}


def refusal(environ: Mapping[str, str], **arguments: str) -> str:
    """The one line that refuses an environment."""
    with pytest.raises(UsageError) as caught:
        read_settings("traces", environ, **arguments)  # type: ignore[arg-type]
    text = str(caught.value)
    assert text.isprintable()
    return text


def test_nothing_said_is_the_collector_on_this_machine() -> None:
    settings = read_settings("traces", {})
    assert settings == Settings("http://localhost:4318/v1/traces")
    assert (settings.protocol, settings.secure) == ("http/protobuf", False)
    assert (settings.timeout_s, settings.compression) == (10.0, "none")
    assert read_settings("metrics", {}).endpoint == "http://localhost:4318/v1/metrics"


def test_grpc_has_a_default_of_its_own() -> None:
    settings = read_settings("traces", GRPC)
    assert (settings.endpoint, settings.protocol, settings.secure) == (
        "localhost:4317",
        "grpc",
        False,
    )


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://c:4318", "http://c:4318/v1/traces"),
        ("http://c:4318/", "http://c:4318/v1/traces"),
        ("http://c/otlp", "http://c/otlp/v1/traces"),
        ("http://c/otlp/", "http://c/otlp/v1/traces"),
        ("HTTPS://c/a?key=1", "https://c/a/v1/traces?key=1"),
        ("http://[::1]:4318", "http://[::1]:4318/v1/traces"),
        ("http://c/v1/traces", "http://c/v1/traces/v1/traces"),
    ],
)
def test_the_general_endpoint_gets_the_path_of_the_signal(endpoint: str, url: str) -> None:
    assert read(ENDPOINT=endpoint).endpoint == url


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://c:4318", "http://c:4318/"),
        ("http://c:4318/", "http://c:4318/"),
        ("http://c/otlp", "http://c/otlp"),
        ("https://c/a/?key=1", "https://c/a/?key=1"),
    ],
)
def test_the_endpoint_of_a_signal_is_used_as_it_is(endpoint: str, url: str) -> None:
    settings = read(TRACES_ENDPOINT=endpoint, ENDPOINT="http://other")
    assert settings.endpoint == url
    assert settings.secure == endpoint.startswith("https")


def test_the_variables_of_another_signal_do_not_count() -> None:
    assert read("metrics", TRACES_ENDPOINT="http://c:1").endpoint.startswith("http://localhost")


def test_an_endpoint_given_by_hand_wins_and_gets_the_path_once() -> None:
    env = variables({"TRACES_ENDPOINT": "http://other/x", "ENDPOINT": "http://other"})
    for given in ("http://c:1", "http://c:1/v1/traces", "http://c:1/v1/traces/"):
        assert read_settings("traces", env, endpoint=given).endpoint == "http://c:1/v1/traces"
    assert read_settings("metrics", env, endpoint="http://c:1").endpoint == "http://c:1/v1/metrics"


def test_arguments_win_over_the_environment() -> None:
    env = variables({"TRACES_PROTOCOL": "http/json", "TRACES_HEADERS": "a=1,b=2"})
    settings = read_settings("traces", env, protocol="grpc", headers={"C": "3"})
    assert (settings.protocol, settings.headers) == ("grpc", {"c": "3"})


def test_empty_arguments_are_as_good_as_none() -> None:
    env = variables({"ENDPOINT": "http://c", "HEADERS": "a=1"})
    settings = read_settings("traces", env, endpoint="", protocol="", headers={})
    assert settings == read_settings("traces", env)


def test_the_variable_of_the_signal_wins_over_the_general_one() -> None:
    general = {"HEADERS": "a=1", "TIMEOUT": "1", "COMPRESSION": "gzip", "PROTOCOL": "grpc"}
    special = {
        "TRACES_HEADERS": "b=2",
        "TRACES_TIMEOUT": "2500",
        "TRACES_COMPRESSION": "none",
        "TRACES_PROTOCOL": "http/protobuf",
    }
    settings = read(**general, **special)
    assert (settings.headers, settings.timeout_s) == ({"b": "2"}, 2.5)
    assert (settings.compression, settings.protocol) == ("none", "http/protobuf")


def test_an_empty_variable_is_as_good_as_none() -> None:
    names = ("ENDPOINT", "PROTOCOL", "HEADERS", "TIMEOUT", "COMPRESSION", "INSECURE")
    files = ("CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE")
    empty = {
        prefix + name: blank
        for name in (*names, *files)
        for prefix, blank in (("TRACES_", ""), ("", " "))
    }
    assert read(**empty) == read_settings("traces", {})
    assert read(TRACES_ENDPOINT="", ENDPOINT="http://c").endpoint == "http://c/v1/traces"


@pytest.mark.parametrize(
    ("environ", "endpoint", "secure"),
    [
        ({"ENDPOINT": "http://c:4317"}, "c:4317", False),
        ({"ENDPOINT": "https://c:4317/"}, "c:4317", True),
        ({"ENDPOINT": "https://c:4317", "INSECURE": "true"}, "c:4317", True),
        ({"ENDPOINT": "http://c:4317", "INSECURE": "false"}, "c:4317", False),
        ({"ENDPOINT": "c:4317"}, "c:4317", True),
        ({"ENDPOINT": "c:4317", "INSECURE": "TRUE"}, "c:4317", False),
        ({"ENDPOINT": "c:4317", "INSECURE": "1"}, "c:4317", True),
        ({"ENDPOINT": "c:4317", "INSECURE": "true", "TRACES_INSECURE": "no"}, "c:4317", True),
        ({"ENDPOINT": "c"}, "c:4317", True),
        ({"ENDPOINT": "http://c"}, "c:80", False),
        ({"ENDPOINT": "https://c"}, "c:443", True),
        ({"TRACES_ENDPOINT": "http://[::1]:4317"}, "[::1]:4317", False),
    ],
)
def test_where_grpc_goes_and_whether_it_speaks_tls(
    environ: dict[str, str], endpoint: str, secure: bool
) -> None:
    settings = read(PROTOCOL="grpc", **environ)
    assert (settings.endpoint, settings.secure) == (endpoint, secure)


@pytest.mark.parametrize(
    ("endpoint", "reason"),
    [
        ("localhost:4318", "'localhost:4318' has no scheme"),
        ("collector", "'collector' has no scheme"),
        ("ftp://c", "its scheme is 'ftp', not http or https"),
        ("http://c:port", "'http://c:port' has no valid host and port"),
        ("http://c:99999", "'http://c:99999' has no valid host and port"),
        ("http://c:0", "'http://c:0' has no valid host and port"),
        ("http://c:", "'http://c:' has no valid host and port"),
        ("http://", "'http://' has no valid host and port"),
        ("http://[::1", "'http://[::1' has no valid host and port"),
        ("http://a\\b", "'http://a\\\\b' has no valid host and port"),
        ("http://a%20b", "'http://a%20b' has no valid host and port"),
        ("http://c/a b", "has a character that a URL cannot have"),
        ("http://c\n.evil", "has a character that a URL cannot have"),
        ("http://ü", "has a character that a URL cannot have"),
        ("http://me:hunter2@c", "has a user or a password; they belong into a header"),
    ],
)
def test_an_impossible_endpoint_is_refused_by_its_variable(endpoint: str, reason: str) -> None:
    for name in ("ENDPOINT", "TRACES_ENDPOINT"):
        text = refusal(variables({name: endpoint}))
        assert text.startswith(f"OTEL_EXPORTER_OTLP_{name}: {reason}")
    assert refusal({}, endpoint=endpoint).startswith(f"endpoint: {reason}")


@pytest.mark.parametrize(
    ("endpoint", "reason"),
    [
        ("http://c:4317/otlp", "'http://c:4317/otlp' has a path, and gRPC has none"),
        ("unix://c", "its scheme is 'unix', not http or https"),
        ("c:port", "'c:port' has no valid host and port"),
    ],
)
def test_an_impossible_endpoint_of_grpc_is_refused(endpoint: str, reason: str) -> None:
    text = refusal({**GRPC, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint})
    assert text == f"OTEL_EXPORTER_OTLP_ENDPOINT: {reason}"


def test_what_an_endpoint_hides_is_never_said() -> None:
    assert "hunter2" not in refusal(variables({"ENDPOINT": "me:hunter2@c:4318"}))
    for endpoint in ("http://me:hunter2/x@c", "http://me:hunter2?x@c", "http://me:hunter2#x@c"):
        assert "hunter2" not in refusal(variables({"ENDPOINT": endpoint}))
    assert "hunter2" not in refusal(variables({"ENDPOINT": "http://c:x?key=hunter2"}))
    assert "hunter2" not in read(ENDPOINT="http://c?key=hunter2").target


@pytest.mark.parametrize("protocol", ["http/json", "http", "thrift"])
def test_other_protocols_are_refused(protocol: str) -> None:
    text = refusal(variables({"TRACES_PROTOCOL": protocol}))
    assert text == (
        f"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL: {protocol!r} is not supported,"
        " only http/protobuf or grpc"
    )


def test_other_compressions_are_refused() -> None:
    assert read(COMPRESSION="gzip").compression == "gzip"
    text = refusal(variables({"COMPRESSION": "zstd"}))
    assert text == "OTEL_EXPORTER_OTLP_COMPRESSION: 'zstd' is not supported, only gzip or none"


def test_headers_are_decoded() -> None:
    settings = read(HEADERS="Authorization=Basic%20YTpi=, x-b = a%20b%2Cc ,,empty=,A=1;m=2")
    assert settings.headers == {
        "authorization": "Basic YTpi=",
        "x-b": "a b,c",
        "empty": "",
        "a": "1;m=2",
    }


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ("a=1,hunter2", "header 2 has no equals sign: name=value"),
        ("key=hunter2%0d%0aX: y", "the value of 'key' has a character no header can have"),
        ("key=hunter2%00", "the value of 'key' has a character no header can have"),
        ("key=hunter2%C3%BC", "the value of 'key' has a character no header can have"),
        ("Authorization: Bearer hunter2==", "the name of a header cannot be sent with"),
        ("=hunter2", "the name of a header cannot be sent with"),
        ("a%0Ab=hunter2", "the name of a header cannot be sent with"),
    ],
)
def test_an_impossible_header_is_refused_without_saying_its_value(
    headers: str, reason: str
) -> None:
    text = refusal(variables({"HEADERS": headers}))
    assert text.startswith(f"OTEL_EXPORTER_OTLP_HEADERS: {reason}")
    assert "hunter2" not in text


def test_headers_that_describe_the_request_are_ours() -> None:
    """Some vendors tell their users to set them, for other senders that read the variable."""
    text = "Content-Type=application/json,Content-Length=1,User-Agent=x,a=1"
    assert read(HEADERS=text).headers == {"a": "1"}


def test_an_impossible_header_given_by_hand_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^headers: the value of 'a' has a character"):
        read_settings("traces", {}, headers={"a": "hunter2\n"})


@pytest.mark.parametrize("name", ["grpc-timeout", "key-bin", "a~b"])
def test_grpc_refuses_names_that_it_cannot_send(name: str) -> None:
    env = variables({"HEADERS": f"{name}=1"})
    assert name in read_settings("traces", env).headers
    assert "cannot be sent with grpc" in refusal({**GRPC, **env})


def test_values_of_headers_are_not_in_the_text_of_the_settings() -> None:
    assert "hunter2" not in repr(read(HEADERS="a=hunter2"))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1", 0.001), ("10000", 10.0), ("+2500", 2.5), ("9" * 5000, 86_400.0)],
)
def test_a_timeout_is_in_milliseconds(text: str, seconds: float) -> None:
    assert read(TIMEOUT=text).timeout_s == seconds


@pytest.mark.parametrize("text", ["0", "-1", "10s", "nan", "inf", "1e3", "1_000", "1.5", "\u0661"])
def test_an_impossible_timeout_is_refused(text: str) -> None:
    reason = f"{text!r} is not a number of milliseconds above 0"
    assert refusal(variables({"TIMEOUT": text})) == f"OTEL_EXPORTER_OTLP_TIMEOUT: {reason}"


def test_certificates_are_read(certificates: Certificates) -> None:
    pem, key = certificates.certificate("client"), certificates.key("client")
    settings = read(
        TRACES_CERTIFICATE=str(certificates.authority),
        CERTIFICATE="/nowhere",
        CLIENT_KEY=str(key),
        CLIENT_CERTIFICATE=str(pem),
    )
    assert settings.certificate == certificates.authority
    assert (settings.client_key, settings.client_certificate) == (key, pem)


def test_a_certificate_may_hold_its_key(certificates: Certificates, tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(
        certificates.certificate("client").read_bytes() + certificates.key("client").read_bytes()
    )
    assert read(CLIENT_CERTIFICATE=str(both)).client_key is None


def test_an_unusable_certificate_is_refused_by_its_variable(
    certificates: Certificates, tmp_path: Path
) -> None:
    pem, key = str(certificates.certificate("client")), str(certificates.key("client"))
    other, locked = str(certificates.key("server")), str(certificates.key("locked"))
    text = tmp_path / "text"
    text.write_text("no certificate\n")
    missing = str(tmp_path / "missing")

    def reason(**settings: str) -> str:
        return refusal(variables(settings)).removeprefix("OTEL_EXPORTER_OTLP_")

    assert reason(CERTIFICATE=missing) == f"CERTIFICATE: '{missing}': No such file or directory"
    assert reason(CERTIFICATE=str(tmp_path)) == f"CERTIFICATE: '{tmp_path}': Is a directory"
    assert reason(CERTIFICATE="a\0b") == "CERTIFICATE: 'a\\x00b': not a path"
    assert reason(CERTIFICATE=str(text)) == f"CERTIFICATE: '{text}' holds no certificate"
    assert reason(CLIENT_KEY=key) == ("CLIENT_KEY: needs OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE too")
    assert reason(CLIENT_CERTIFICATE=pem) == (
        f"CLIENT_CERTIFICATE: '{pem}' holds no key, or one with a password"
    )
    assert reason(CLIENT_CERTIFICATE=str(text), CLIENT_KEY=key) == (
        f"CLIENT_KEY: OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE '{text}' holds no certificate"
    )
    assert reason(CLIENT_CERTIFICATE=pem, CLIENT_KEY=missing).startswith("CLIENT_KEY: '")
    assert reason(CLIENT_CERTIFICATE=pem, CLIENT_KEY=other) == (
        f"CLIENT_KEY: the key does not belong to the certificate '{pem}'"
    )
    assert reason(CLIENT_CERTIFICATE=pem, CLIENT_KEY=locked) == (
        f"CLIENT_KEY: '{locked}' holds no key, or one with a password"
    )


@pytest.mark.parametrize(
    ("environ", "proxy"),
    [
        ({}, None),
        ({"http_proxy": "http://p:1"}, "http://p:1"),
        ({"HTTP_PROXY": "p:1"}, "http://p:1"),
        ({"http_proxy": "http://p:1", "HTTP_PROXY": "http://q:1"}, "http://p:1"),
        ({"HTTPS_PROXY": "http://p:1"}, None),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "*"}, None),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "x, .example.org"}, None),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "EXAMPLE.org"}, None),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "c.example.org:4318"}, None),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "c.example.org:80"}, "http://p:1"),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "ample.org,,10.0.0.0/8"}, "http://p:1"),
    ],
)
def test_a_proxy_is_found_as_curl_finds_it(environ: dict[str, str], proxy: str | None) -> None:
    settings = read_settings("traces", environ, endpoint="http://c.example.org:4318")
    assert settings.proxy == proxy


def test_networks_can_go_without_a_proxy() -> None:
    environ = {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "10.0.0.0/8,::1"}
    for endpoint, straight in (("10.1.2.3", True), ("11.1.2.3", False), ("[::1]:4318", True)):
        settings = read_settings("traces", environ, endpoint=f"https://{endpoint}")
        assert (settings.proxy is None) == straight


@pytest.mark.parametrize("host", ["localhost", "LocalHost:4318", "127.0.0.1", "[::1]:4318"])
def test_this_machine_is_reached_without_a_proxy(host: str) -> None:
    settings = read_settings("traces", {"http_proxy": "http://p:1"}, endpoint=f"http://{host}")
    assert settings.proxy is None


def test_an_impossible_proxy_is_refused_without_its_password() -> None:
    for proxy, reason in (
        ("socks5://me:hunter2@p", "its scheme is 'socks5', not http or https"),
        ("http://me:hunter2@p:port", "has no valid host and port"),
        ("http://", "has no valid host and port"),
    ):
        assert refusal({"HTTP_PROXY": proxy}, endpoint="http://c") == f"HTTP_PROXY: {reason}"
    environ = {"http_proxy": "http://me:hunter2@p:1"}
    settings = read_settings("traces", environ, endpoint="http://c")
    assert settings.proxy
    assert "hunter2" not in repr(settings)


@pytest.mark.parametrize(
    ("environ", "exporter"),
    [
        ({}, "otlp"),
        ({"OTEL_TRACES_EXPORTER": ""}, "otlp"),
        ({"OTEL_TRACES_EXPORTER": "console, OTLP"}, "otlp"),
        ({"OTEL_TRACES_EXPORTER": "none"}, "none"),
        ({"OTEL_TRACES_EXPORTER": "console"}, "none"),
        ({"OTEL_METRICS_EXPORTER": "none"}, "otlp"),
        ({"OTEL_SDK_DISABLED": "True"}, "none"),
        ({"OTEL_SDK_DISABLED": "1"}, "otlp"),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "otlp"}, "none"),
    ],
)
def test_the_environment_can_turn_a_signal_off(environ: dict[str, str], exporter: str) -> None:
    assert exporter_of("traces", environ) == exporter


@pytest.mark.parametrize(
    ("environ", "asked"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c"}, True),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "console"}, False),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c", "OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_HEADERS": "a=1"}, False),
    ],
)
def test_otlp_is_asked_for_by_an_endpoint_or_by_name(environ: dict[str, str], asked: bool) -> None:
    assert asked_for(environ) == asked


@pytest.mark.parametrize(
    ("module", "environ", "package"),
    [
        ("urllib3", {}, "urllib3"),
        ("opentelemetry.proto", {}, "opentelemetry-proto"),
        ("grpc", GRPC, "grpcio"),
    ],
)
def test_a_protocol_that_is_not_installed_says_what_to_type(
    module: str, environ: dict[str, str], package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingDependency, match=f"^{package} is not installed: pip install"):
        read_settings("traces", environ)
