"""Where each setting comes from, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consul_coord.config import Settings, TLSConfig
from consul_coord.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def resolve(environ: dict[str, str] | None = None, **arguments: Any) -> Settings:
    return Settings.resolve(environ=environ or {}, **arguments)


# --- address

PLACES = {
    "127.0.0.1:8500": ("http", "127.0.0.1", 8500, "", None),
    "localhost:1": ("http", "localhost", 1, "", None),
    "my_host.dc1-x.consul:8500": ("http", "my_host.dc1-x.consul", 8500, "", None),
    "http://consul": ("http", "consul", 80, "", None),
    "https://consul": ("https", "consul", 443, "", None),
    "HTTPS://consul:8501/": ("https", "consul", 8501, "", None),
    "https://gate/way/": ("https", "gate", 443, "/way", None),
    "gate:80/a b/é": ("http", "gate", 80, "/a%20b/%C3%A9", None),
    "gate:80/a%20b": ("http", "gate", 80, "/a%20b", None),
    "[::1]:8500": ("http", "::1", 8500, "", None),
    "https://[2001:db8::1]": ("https", "2001:db8::1", 443, "", None),
    "[fe80::1%25eth0]:8500": ("http", "fe80::1%eth0", 8500, "", None),
    "http://bücher:8500": ("http", "xn--bcher-kva", 8500, "", None),
    f"{'x' * 63}.{'y' * 63}:1": ("http", f"{'x' * 63}.{'y' * 63}", 1, "", None),
    "consul.:8500": ("http", "consul.", 8500, "", None),
    "unix:///run/consul.sock": ("http", "localhost", 80, "", "/run/consul.sock"),
}


@pytest.mark.parametrize("text", PLACES)
@pytest.mark.parametrize("by", ["argument", "variable"])
def test_addresses(text: str, by: str) -> None:
    settings = resolve(address=text) if by == "argument" else resolve({"CONSUL_HTTP_ADDR": text})
    found = (settings.scheme, settings.host, settings.port, settings.prefix, settings.uds)
    assert found == PLACES[text]


BAD_ADDRESSES = [
    "",
    ":8500",
    "http://",
    "host:",
    "host:0",
    "host:65536",
    "host:http",
    "host:+1",
    "host:\u0661",
    "::1",
    "[::1",
    "[::1]8500",
    "[127.0.0.1]:1",
    "[::1%a b]:1",
    "ftp://host",
    "http//host:8500",
    "http://host:8500//v1",
    "httpx://host",
    "ho st:1",
    "-host:1",
    "two..dots:1",
    f"{'x' * 64}.example:1",
    "host\\x:1",
    "unix://relative.sock",
    "unix://",
]


@pytest.mark.parametrize("address", ["host:8500/v1", "https://host/consul/v1/"])
def test_the_path_of_the_api_is_not_part_of_an_address(address: str) -> None:
    """An agent answers 404 to /v1/v1/kv/k, as for a key that is not there."""
    with pytest.raises(ConfigError, match="without the /v1"):
        resolve(address=address)


def test_a_missing_port_is_noted_for_messages() -> None:
    note = "no port was given; agents listen on 850"
    assert resolve(address="consul").origin == f"{note}0"
    assert resolve(address="https://consul/a").origin == f"{note}1"
    assert resolve({"CONSUL_HTTP_ADDR": "[::1]"}).origin == f"CONSUL_HTTP_ADDR, {note}0"
    assert resolve(address=["http://consul:80", "consul"]).others == ()


@pytest.mark.parametrize("text", BAD_ADDRESSES)
def test_bad_addresses_name_their_source(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^address"):
        resolve(address=text)
    if text:
        with pytest.raises(ConfigError, match=r"^CONSUL_HTTP_ADDR"):
            resolve({"CONSUL_HTTP_ADDR": text})


@pytest.mark.parametrize(
    "text",
    [
        "http://ann:s3cret@host:8500",
        "ann:s3cret@host",
        "unix://s3cret@/run/a.sock",
        "http://host?token=s3cret",
        "http://host/#s3cret",
        "host:8500\r\nX-Consul-Token: s3cret",
        "s3cret\x00",
        "s3cret\x85",
    ],
)
def test_an_address_with_more_in_it_is_refused_unseen(text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        resolve(address=text)
    assert "s3cret" not in str(raised.value)


@given(st.text(max_size=30))
def test_any_text_is_an_address_or_a_config_error(text: str) -> None:
    try:
        settings = resolve(address=text)
    except ConfigError:
        return
    assert 0 < settings.port < 65536
    assert settings.authority.isascii()
    assert settings.prefix.isascii()
    assert settings.prefix.isprintable()
    assert " " not in settings.authority + settings.prefix


@pytest.mark.parametrize("text", PLACES)
def test_the_shown_address_means_the_same(text: str) -> None:
    once = resolve(address=text)
    again = resolve(address=once.address.replace("%eth0", "%25eth0"))
    assert (again.address, again.host, again.prefix) == (once.address, once.host, once.prefix)


AUTHORITIES = {
    "127.0.0.1:8500": "127.0.0.1:8500",
    "http://consul:80": "consul",
    "https://consul:443": "consul",
    "https://consul:80": "consul:80",
    "[::1]:8500": "[::1]:8500",
    "[fe80::1%25eth0]:8500": "[fe80::1]:8500",
    "unix:///run/a.sock": "localhost",
}


@pytest.mark.parametrize("text", AUTHORITIES)
def test_the_host_header(text: str) -> None:
    assert resolve(address=text).authority == AUTHORITIES[text]


def test_the_default_address() -> None:
    assert resolve().address == "http://127.0.0.1:8500"
    assert resolve({"CONSUL_HTTP_ADDR": ""}).address == "http://127.0.0.1:8500"


def test_an_explicit_address_beats_the_environment() -> None:
    assert resolve({"CONSUL_HTTP_ADDR": "nonsense://x"}, address="a:1").address == "http://a:1"


# --- https

SCHEMES = [
    # explicit address, environment, tls given, scheme
    (None, {}, False, "http"),
    ("a:1", {}, False, "http"),
    ("a:1", {}, True, "https"),
    ("a:1", {"CONSUL_HTTP_SSL": "true"}, False, "https"),
    ("a:1", {"CONSUL_HTTP_SSL": "0"}, False, "http"),
    ("a:1", {"CONSUL_HTTP_SSL": "0"}, True, "https"),
    ("https://a:1", {"CONSUL_HTTP_SSL": "false"}, False, "https"),
    ("http://a:1", {"CONSUL_HTTP_SSL": "true"}, False, "http"),
    (None, {"CONSUL_HTTP_ADDR": "http://a:1", "CONSUL_HTTP_SSL": "true"}, False, "https"),
    (None, {"CONSUL_HTTP_ADDR": "http://a:1"}, True, "https"),
    (None, {"CONSUL_HTTP_ADDR": "https://a:1", "CONSUL_HTTP_SSL": "F"}, False, "https"),
    ("unix:///a", {}, False, "http"),
    ("unix:///a", {"CONSUL_HTTP_SSL": "1"}, False, "https"),
]


@pytest.mark.parametrize(("address", "environ", "with_tls", "scheme"), SCHEMES)
def test_when_tls_is_used(address: str | None, environ: dict[str, str], with_tls: bool, scheme: str) -> None:
    assert resolve(environ, address=address, tls=TLSConfig() if with_tls else None).scheme == scheme


def test_tls_settings_for_a_plain_address_are_a_contradiction() -> None:
    with pytest.raises(ConfigError, match="http://"):
        resolve(address="http://a:1", tls=TLSConfig())


@pytest.mark.parametrize("name", ["CONSUL_HTTP_SSL", "CONSUL_HTTP_SSL_VERIFY"])
@pytest.mark.parametrize("text", ["yes", "no", "off", "TrUe", " true", "2", "flase"])
def test_a_misspelt_boolean_is_refused(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=name):
        resolve({name: text})


@pytest.mark.parametrize(
    ("text", "verify"), [("", True), ("1", True), ("T", True), ("false", False), ("0", False)]
)
def test_verification_by_the_environment(text: str, verify: bool) -> None:
    assert resolve({"CONSUL_HTTP_SSL_VERIFY": text}).tls.verify is verify


def test_a_given_tls_config_settles_verification() -> None:
    assert resolve({"CONSUL_HTTP_SSL_VERIFY": "false"}, tls=TLSConfig()).tls.verify is True
    assert resolve({"CONSUL_HTTP_SSL_VERIFY": "true"}, tls=TLSConfig(verify=False)).tls.verify is False


@pytest.mark.parametrize("verify", ["/ca.pem", "false", "", None, 0, 1, 0.0, [], b""])
def test_verification_takes_nothing_but_a_boolean(verify: Any) -> None:
    """False alone turns verification off, and no other value, such as that of a missing setting."""
    with pytest.raises(ConfigError, match="verify"):
        resolve(tls=TLSConfig(verify=verify))


TLS_VARIABLES = {
    "ca_cert": "CONSUL_CACERT",
    "ca_path": "CONSUL_CAPATH",
    "server_name": "CONSUL_TLS_SERVER_NAME",
}
PAIR = {"CONSUL_CLIENT_CERT": "/env/cert", "CONSUL_CLIENT_KEY": "/env/key"}


@pytest.mark.parametrize("name", TLS_VARIABLES)
def test_tls_fields_come_one_by_one(name: str) -> None:
    environ = {TLS_VARIABLES[name]: "from-env"}
    changes: dict[str, Any] = {name: "explicit"}
    assert getattr(resolve(environ).tls, name) == "from-env"
    assert getattr(resolve(environ, tls=TLSConfig()).tls, name) == "from-env"
    assert getattr(resolve(environ, tls=TLSConfig(**changes)).tls, name) == "explicit"


def test_a_certificate_and_its_key_go_together(tmp_path: Path) -> None:
    assert resolve(PAIR).tls.client_cert == "/env/cert"
    assert (
        resolve(PAIR, tls=TLSConfig(client_cert="/my/cert", client_key="/my/key")).tls.client_key == "/my/key"
    )
    both = tmp_path / "both.pem"
    assert resolve(tls=TLSConfig(client_cert=both, client_key=both)).tls.client_cert == str(both)
    for name, path in PAIR.items():
        with pytest.raises(ConfigError, match=name):
            resolve({name: path})
    with pytest.raises(ConfigError, match="client_key"):
        resolve(tls=TLSConfig(client_cert="/my/cert"))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("srv.consul:8501", "srv.consul"),
        ("srv", "srv"),
        ("[::1]:8501", "::1"),
        ("[::1]", "::1"),
        ("::1", "::1"),
    ],
)
def test_a_server_name_has_no_port(text: str, name: str) -> None:
    assert resolve({"CONSUL_TLS_SERVER_NAME": text}).tls.server_name == name


@pytest.mark.parametrize("name", ["a" * 64, "srv..it", ".srv", "\u00fc" * 64, "srv it", "[::1", "1::2::3"])
def test_a_server_name_that_tls_can_not_send_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match="server_name"):
        resolve(tls=TLSConfig(server_name=name))
    with pytest.raises(ConfigError, match="CONSUL_TLS_SERVER_NAME"):
        resolve({"CONSUL_TLS_SERVER_NAME": name})


# --- the rest


@pytest.mark.parametrize(
    ("argument", "variable", "parameter"),
    [("namespace", "CONSUL_NAMESPACE", "ns"), ("partition", "CONSUL_PARTITION", "partition")],
)
def test_namespace_and_partition(argument: str, variable: str, parameter: str) -> None:
    environ = {variable: "from-env"}
    assert resolve(environ).default_params == ((parameter, "from-env"),)
    assert resolve(environ, **{argument: "explicit"}).default_params == ((parameter, "explicit"),)
    assert resolve(environ, **{argument: ""}).default_params == ()
    with pytest.raises(ConfigError, match=f"^{argument}"):
        resolve({}, **{argument: "a\nb"})
    with pytest.raises(ConfigError, match=f"^{variable}"):
        resolve({variable: "a\nb"})


def test_the_datacenter_has_no_variable() -> None:
    assert resolve({"CONSUL_DATACENTER": "dc9"}).default_params == ()
    assert resolve(datacenter="dc1").default_params == (("dc", "dc1"),)


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), float("nan")])
def test_a_timeout_is_a_time(timeout: float) -> None:
    with pytest.raises(ConfigError, match="timeout"):
        resolve(timeout=timeout)


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONSUL_HTTP_ADDR", "from-env:1")
    assert Settings.resolve().address == "http://from-env:1"


def test_no_repr_shows_a_secret() -> None:
    settings = resolve(token="s3cret-token", http_auth=("ann", "s3cret-password"))
    assert "s3cret" not in f"{settings!r} {settings} {settings.credentials!r}"
    assert "ann" not in repr(settings.credentials)


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("CONSUL_HTTP_ADDR", "consul:80/\udcff"),
        ("CONSUL_HTTP_ADDR", "unix:///run/\udcff"),
        ("CONSUL_HTTP_AUTH", "operator:s3cr\udcff"),
        ("CONSUL_HTTP_TOKEN", "t\udcff"),
        ("CONSUL_NAMESPACE", "n\udcff"),
    ],
)
def test_a_variable_that_is_not_utf8_is_refused(variable: str, text: str) -> None:
    with pytest.raises(ConfigError, match=variable) as caught:
        resolve({variable: text})
    assert "s3cr" not in repr(caught.value)
    assert caught.value.__cause__ is caught.value.__context__ is None
