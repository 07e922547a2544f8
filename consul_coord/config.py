"""Settings: from arguments, then CONSUL_* variables, then defaults.

Rules
- An explicit argument beats the environment, field by field. An empty variable counts as unset; an explicit
  empty token, datacenter, namespace or partition means none, whatever the environment says.
- An explicit token or token file beats both of the environment's; of those the file wins.
- ``https`` is used when the address says so, when a ``TLSConfig`` is given, or when CONSUL_HTTP_SSL asks for
  it, which only an explicit ``http://`` address overrules. A given ``TLSConfig`` settles ``verify``; what
  else it leaves out comes from the environment.
- A setting that can't be parsed is an error that names the argument or variable, and its form. No misspelt
  value turns a check off.
- Secrets are never shown: not in a repr, an error or a log. An address with credentials in it is refused.
"""

from __future__ import annotations

import base64
import ipaddress
import logging
import math
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, unquote

from consul_coord.errors import ConfigError
from consul_coord.value import Value

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike

DEFAULT_ADDRESS = "127.0.0.1:8500"
TOKEN_FILE_LIMIT = 64 * 1024
"""How many bytes of a token file are read."""
TOKEN_FILE_INTERVAL = 1.0
"""How often a token file is looked at, at most: seconds."""

_API = "/v1"
"""The path that each request adds to the address."""
_ADDRESS_FORMS = (
    "host:port, http://host:port, https://host:port or unix:///path (a port is 1 to 65535, and an IPv6 "
    "address has brackets)"
)
_DEFAULT_PORTS = {"http": 80, "https": 443}
_AGENT_PORTS = {"http": 8500, "https": 8501}
_BOOLEANS = dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True) | dict.fromkeys(
    ("0", "f", "F", "false", "FALSE", "False"), False
)
_WORD_FORM = "a token of printable ASCII characters without spaces or line ends"
_HIGHEST_PORT = 65535
# A byte of a variable that is not UTF-8 arrives as a lone surrogate.
_UNFIT = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_TOKEN = re.compile(r"[!-~]+")
_LONGEST_LABEL = 63
_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?")
_PORT = re.compile(r"[0-9]{1,5}")
_PREFIX_SAFE = "/%:@!$&'()*+,;=~"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class TLSConfig(Value):
    """How TLS is spoken.

    Paths name PEM files (``ca_path`` a directory of them). Authorities given here replace the system's.
    ``client_cert`` and ``client_key`` go together. ``server_name`` is sent and verified in place of the host.
    """

    verify: bool = True
    ca_cert: str | PathLike[str] | None = None
    ca_path: str | PathLike[str] | None = None
    client_cert: str | PathLike[str] | None = None
    client_key: str | PathLike[str] | None = None
    server_name: str | None = None


class Credentials:
    """The headers that say who asks: an ACL token, static or from a file, and basic auth.

    A token file is looked at once a second at most, and read again when it has changed. When it can't be
    read later on, or holds no token, the last token stays in use, with a warning. Threads may share one
    object.
    """

    __slots__ = ("_authorization", "_file", "_first", "_given", "_looked_at", "_stamp", "_trouble", "watched")

    def __init__(
        self,
        *,
        token: str | None = None,
        token_file: str | PathLike[str] | None = None,
        http_auth: tuple[str, str] | None = None,
    ) -> None:
        """Check the token and auth, or read the file. Raises ``ConfigError``."""
        if token and token_file is not None:
            raise ConfigError("token and token_file exclude each other")
        self._authorization = _basic_auth(http_auth, "http_auth") if http_auth is not None else None
        self._file = _as_path(token_file, "token_file")
        self._stamp: tuple[int, int, int] | None = None
        self._looked_at = -math.inf
        self._trouble = False
        self.watched: str | None = None
        """The file that is looked at; None when the headers stay the same."""
        if self._file is not None:
            self._stamp = _file_stamp(self._file)
            token = _read_token(self._file)
            # A pipe or a process substitution can be read once only.
            self.watched = self._file if self._stamp is not None else None
        elif token:
            token = _checked_token(token, "token")
        self._first = self._made_headers(token)
        """Those of the token at first, or of the file as it was last read."""
        self._given: dict[str, str] | None = None
        """Those of a token that was given later: a thread that reads the file meanwhile leaves them alone."""

    @property
    def latest(self) -> dict[str, str]:
        """The headers as they were last made. Another token makes another dict."""
        given = self._given
        return self._first if given is None else given

    def headers(self, now: float) -> dict[str, str]:
        """Return the headers to send. ``now`` is any monotonic time in seconds.

        It is the same dict, which must not be changed, as long as the token is the same.
        """
        watched = self.watched
        if watched is not None and not 0 <= now - self._looked_at < TOKEN_FILE_INTERVAL:
            self._looked_at = now
            stamp = _file_stamp(watched)
            if stamp != self._stamp or self._trouble:
                self._stamp = stamp
                self.reload()
        return self.latest

    def reload(self) -> bool:
        """Read the token file now, and return whether the token is another one than before."""
        if (watched := self.watched) is None:
            return False
        try:
            token = _read_token(watched)
        except ConfigError as error:
            if not self._trouble:
                _log.warning("the last token stays in use: %s", error)
            self._trouble = True
            return False
        self._trouble = False
        headers = self._made_headers(token)
        if headers == self._first or self._given is not None:  # replaced meanwhile
            return False
        self._first = headers
        return True

    def replace(self, token: str | None) -> None:
        """Send another token from now on, or none, in place of a token file too. Raises ``ConfigError``."""
        self._given = self._made_headers(_checked_token(token, "token") if token else None)
        self.watched = self._file = None

    def _made_headers(self, token: str | None) -> dict[str, str]:
        pairs = (("X-Consul-Token", token), ("Authorization", self._authorization))
        return {name: value for name, value in pairs if value}

    def __repr__(self) -> str:
        source = f"from {self._file!r}" if self._file is not None else "set" if self._has_token else "none"
        auth = "set" if self._authorization else "none"
        return f"<Credentials: token {source}, basic auth {auth}>"

    @property
    def _has_token(self) -> bool:
        return "X-Consul-Token" in self.latest


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Settings(Value):
    """Where the agent is, how to speak to it, and what is added to each request. ``resolve`` makes one."""

    address: str
    """Normalised, for messages: ``https://host:port/prefix`` or ``unix:///path``."""
    scheme: str
    host: str
    port: int
    origin: str = ""
    """For messages: where the address comes from, unless it was an argument, and whether it lacks a port."""
    prefix: str = ""
    """The prefix of every path, percent-encoded, without a slash at its end."""
    uds: str | None = None
    """The unix socket's path; host and port then only fill the Host header."""
    dial: str | None = None
    """The one of the host's IP addresses that connections go to; None for any of them."""
    others: tuple[Settings, ...] = ()
    """The settings for further agents of the same cluster, which differ in the address only."""
    tls: TLSConfig = field(default_factory=TLSConfig)
    credentials: Credentials = field(default_factory=Credentials)
    datacenter: str | None = None
    namespace: str | None = None
    partition: str | None = None
    timeout: float = 10.0

    @property
    def agents(self) -> tuple[Settings, ...]:
        """The settings for each agent, in the order in which they are tried."""
        return (self, *self.others)

    @property
    def label(self) -> str:
        """The addresses of all agents, for messages."""
        return ", ".join(agent.address for agent in self.agents)

    @property
    def authority(self) -> str:
        """The Host header's value."""
        host = f"[{self.host.partition('%')[0]}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def default_params(self) -> tuple[tuple[str, str], ...]:
        """The query parameters that a request gets unless it names its own."""
        pairs = (("dc", self.datacenter), ("ns", self.namespace), ("partition", self.partition))
        return tuple((name, value) for name, value in pairs if value)

    @classmethod
    def resolve(
        cls,
        *,
        address: str | Sequence[str] | None = None,
        token: str | None = None,
        token_file: str | PathLike[str] | None = None,
        http_auth: tuple[str, str] | None = None,
        datacenter: str | None = None,
        namespace: str | None = None,
        partition: str | None = None,
        tls: TLSConfig | None = None,
        timeout: float = 10.0,
        environ: Mapping[str, str] | None = None,
    ) -> Settings:
        """Return the settings that arguments, the environment and the defaults make, in this order.

        ``timeout`` is in seconds. Reads the token file, if one is named; does no other I/O. Raises
        ``ConfigError``.
        """
        env = _Environment(os.environ if environ is None else environ)
        first, *rest = _places(address, tls, env)
        found = cls(
            **first.fields,
            tls=_resolve_tls(tls, env),
            credentials=_resolve_credentials(token, token_file, http_auth, env),
            datacenter=_plain(datacenter, "datacenter"),
            namespace=_first_plain(namespace, "namespace", env, "CONSUL_NAMESPACE"),
            partition=_first_plain(partition, "partition", env, "CONSUL_PARTITION"),
            timeout=_checked_timeout(timeout),
        )
        return replace(found, others=tuple(replace(found, **each.fields) for each in rest))


class _Environment:
    """Variables, of which the empty ones are unset."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables

    def get(self, name: str) -> str | None:
        return self._variables.get(name) or None

    def boolean(self, name: str) -> bool | None:
        text = self.get(name)
        if text is None:
            return None
        if text not in _BOOLEANS:
            raise ConfigError(f"{name} takes true or false (also 1, t, 0, f), not {text!r}")
        return _BOOLEANS[text]


# --- address


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Place(Value):
    scheme: str
    host: str
    port: int
    prefix: str = ""
    uds: str | None = None
    origin: str = ""

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of ``Settings`` that it makes."""
        return {
            "address": self.text,
            "scheme": self.scheme,
            "host": self.host,
            "port": self.port,
            "prefix": self.prefix,
            "uds": self.uds,
            "origin": self.origin,
        }

    @property
    def text(self) -> str:
        if self.uds is not None:
            return f"unix://{self.uds}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.prefix}"


def _places(explicit: str | Sequence[str] | None, tls: TLSConfig | None, env: _Environment) -> list[_Place]:
    """Return where the agents are, each named once."""
    if explicit is None or isinstance(explicit, str):
        return [_resolve_address(explicit, tls, env)]
    if not _is_words(explicit):
        raise ConfigError("address takes one address, or a list of at least one, each of them text")
    places = (_resolve_address(each, tls, env) for each in explicit)
    return list({place.text: place for place in places}.values())


def _is_words(value: object) -> bool:
    """Return whether it is a list of texts, one at least."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        return False
    words = cast("Sequence[object]", value)
    return bool(words) and all(isinstance(each, str) for each in words)


def _resolve_address(explicit: str | None, tls: TLSConfig | None, env: _Environment) -> _Place:
    source = "address" if explicit is not None else "CONSUL_HTTP_ADDR"
    text = explicit if explicit is not None else env.get("CONSUL_HTTP_ADDR") or DEFAULT_ADDRESS
    origin = "" if explicit is not None else source if env.get(source) else "the default address"
    said, rest = _split_scheme(text, source)
    plain_by_argument = said == "http" and explicit is not None
    if plain_by_argument and tls is not None:
        raise ConfigError("tls is given, but address says http://")
    wants_tls = tls is not None or (env.boolean("CONSUL_HTTP_SSL") is True and not plain_by_argument)
    scheme = "https" if said == "https" or wants_tls else "http"
    if said == "unix":
        return replace(_socket_place(scheme, rest, source), origin=origin)
    place = _network_place(scheme, rest, text, source)
    return replace(place, origin=", ".join(filter(None, (origin, place.origin))))


def _split_scheme(text: str, source: str) -> tuple[str, str]:
    if _UNFIT.search(text) or any(sign in text for sign in "@?#"):
        raise ConfigError(
            f"{source} must be {_ADDRESS_FORMS}, in UTF-8, without credentials, query, fragment or control "
            "characters (it is not shown here, since it may hold credentials)"
        )
    said, mark, rest = text.partition("://")
    if not mark:
        return "", text
    if said.lower() not in {"http", "https", "unix"}:
        raise _bad_address(text, source)
    return said.lower(), rest


def _socket_place(scheme: str, path: str, source: str) -> _Place:
    if not path.startswith("/"):
        raise ConfigError(f"{source}: a unix socket is named by an absolute path, unix:///path")
    return _Place(scheme, "localhost", _DEFAULT_PORTS[scheme], uds=path)


def _network_place(scheme: str, rest: str, text: str, source: str) -> _Place:
    authority, slash, path = rest.partition("/")
    if authority.startswith("["):
        name, bracket, tail = authority[1:].partition("]")
        host = _ip_v6(name) if bracket else None
        colon, port = tail[:1], tail[1:]
        good_tail = colon in {"", ":"}
    else:
        name, colon, port = authority.partition(":")
        host, good_tail = _host_name(name), True
    number = _port(port) if colon else _DEFAULT_PORTS[scheme]
    mistyped = path.startswith("/") and path.strip("/")  # the scheme, as in http//host
    if host is None or number is None or not good_tail or mistyped:
        raise _bad_address(text, source)
    prefix = quote(slash + path, safe=_PREFIX_SAFE).rstrip("/")
    if prefix.endswith(_API):  # an agent answers a wrong path as it answers for a key that is not there
        message = f"{source} must be without the {_API} at its end, which each request adds: {text!r}"
        raise ConfigError(message)
    note = "" if colon else f"no port was given; agents listen on {_AGENT_PORTS[scheme]}"
    return _Place(scheme, host, number, prefix, origin=note)


def _host_name(name: str) -> str | None:
    try:
        # An ASCII name is its own form: loading the codec would cost each start of a process 2 ms.
        ascii_name = name if name.isascii() else name.encode("idna").decode("ascii")
    except UnicodeError:
        return None
    *labels, last = ascii_name.split(".")
    fits = all(0 < len(label) <= _LONGEST_LABEL for label in labels) and len(last) <= _LONGEST_LABEL
    return ascii_name if fits and _HOST_NAME.fullmatch(ascii_name) else None


def _ip_v6(text: str) -> str | None:
    address = unquote(text)
    try:
        ipaddress.IPv6Address(address)
    except ValueError:
        return None
    return address if re.fullmatch(r"[0-9A-Za-z:.%_-]+", address) else None


def _port(text: str) -> int | None:
    return int(text) if _PORT.fullmatch(text) and 0 < int(text) <= _HIGHEST_PORT else None


def _bad_address(text: str, source: str) -> ConfigError:
    return ConfigError(f"{source} must be {_ADDRESS_FORMS}, not {text!r}")


# --- TLS


def _resolve_tls(given: TLSConfig | None, env: _Environment) -> TLSConfig:
    if given is not None and not isinstance(cast("object", given), TLSConfig):
        raise ConfigError(f"tls takes a TLSConfig, not {type(given).__name__}")
    verify = given.verify if given is not None else env.boolean("CONSUL_HTTP_SSL_VERIFY") is not False
    own = given if given is not None else TLSConfig()
    client_cert = _path(own.client_cert, "client_cert", env, "CONSUL_CLIENT_CERT")
    client_key = _path(own.client_key, "client_key", env, "CONSUL_CLIENT_KEY")
    if (client_cert is None) != (client_key is None):
        raise ConfigError(
            "client_cert and client_key (CONSUL_CLIENT_CERT, CONSUL_CLIENT_KEY) go together; "
            "name a file that holds both twice"
        )
    server_name = _first_plain(own.server_name, "server_name", env, "CONSUL_TLS_SERVER_NAME")
    return TLSConfig(
        verify=_checked_verify(verify),
        ca_cert=_path(own.ca_cert, "ca_cert", env, "CONSUL_CACERT"),
        ca_path=_path(own.ca_path, "ca_path", env, "CONSUL_CAPATH"),
        client_cert=client_cert,
        client_key=client_key,
        server_name=_checked_server_name(server_name) if server_name else None,
    )


def _checked_verify(verify: object) -> bool:
    if not isinstance(verify, bool):
        raise ConfigError("verify takes True or False; name an authority's file by ca_cert")
    return verify


def _path(explicit: str | PathLike[str] | None, name: str, env: _Environment, variable: str) -> str | None:
    return _first_plain(_as_path(explicit, name), name, env, variable)


def _as_path(path: str | PathLike[str] | None, name: str) -> str | None:
    try:
        found = None if path is None else os.fspath(path)
    except TypeError:
        raise ConfigError(f"{name} takes a path, not {type(path).__name__}") from None
    return found


def _checked_server_name(text: str) -> str:
    """Return a name as TLS can send it, without its port: another would fail within each handshake."""
    bare = re.sub(r"^\[(.*)\](:\d+)?$|^([^:]*):\d+$", lambda found: found[1] or found[3], text)
    name = _ip_v6(bare) or _host_name(bare)
    if name is None:
        raise ConfigError(
            f"server_name (CONSUL_TLS_SERVER_NAME) takes "
            f"the name or IP address in the agent's certificate, not {text!r}"
        )
    return name


# --- credentials


def _resolve_credentials(
    token: str | None,
    token_file: str | PathLike[str] | None,
    http_auth: tuple[str, str] | None,
    env: _Environment,
) -> Credentials:
    if http_auth is None and (pair := env.get("CONSUL_HTTP_AUTH")) is not None:
        user, _, password = pair.partition(":")
        http_auth = (user, password)
        _basic_auth(http_auth, "CONSUL_HTTP_AUTH")
    if token is None and token_file is None:
        token_file = env.get("CONSUL_HTTP_TOKEN_FILE")
        if token_file is None and (token := env.get("CONSUL_HTTP_TOKEN")) is not None:
            _checked_token(token, "CONSUL_HTTP_TOKEN")
    return Credentials(token=token, token_file=token_file, http_auth=http_auth)


def _checked_token(token: str, source: str) -> str:
    if not isinstance(cast("object", token), str) or not _TOKEN.fullmatch(token):
        raise ConfigError(f"{source} takes {_WORD_FORM} (it is not shown here)")
    return token


def _basic_auth(pair: tuple[str, str], source: str) -> str:
    if not _is_words(pair) or len(pair) != len(("user", "password")):
        raise ConfigError(f"{source} takes a pair of texts, (user, password) (they are not shown here)")
    user, password = pair
    if not user or ":" in user or _UNFIT.search(user + password):
        raise ConfigError(
            f"{source} takes a user without a colon, and a password, both in UTF-8 without control "
            "characters (they are not shown here)"
        )
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode("ascii")


def _file_stamp(path: str) -> tuple[int, int, int] | None:
    """Return what changes when a file is written or replaced; None when it is missing, or no plain file."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return (found.st_ino, found.st_mtime_ns, found.st_size) if stat.S_ISREG(found.st_mode) else None


def _read_token(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            content = file.read(TOKEN_FILE_LIMIT + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise ConfigError(f"the token file {path!r} can't be read: {reason}") from error
    token = content.decode("ascii", "replace").strip()
    if len(content) > TOKEN_FILE_LIMIT or not _TOKEN.fullmatch(token):
        raise ConfigError(f"the token file {path!r} must hold {_WORD_FORM}, and nothing else")
    return token


# --- plain values


def _plain(value: str | None, source: str) -> str | None:
    if value is not None and not isinstance(cast("object", value), str):
        raise ConfigError(f"{source} takes text, not {type(value).__name__}")
    if value and _UNFIT.search(value):
        raise ConfigError(f"{source} takes text in UTF-8 without control characters")
    return value or None


def _first_plain(explicit: str | None, name: str, env: _Environment, variable: str) -> str | None:
    return _plain(explicit, name) if explicit is not None else _plain(env.get(variable), variable)


def _checked_timeout(timeout: object) -> float:
    form = "timeout must be a number of seconds, more than 0 and finite"
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < math.inf:
        raise ConfigError(f"{form}, not {timeout!r}")
    try:
        return float(timeout)
    except OverflowError:
        raise ConfigError(f"{form}, not an integer of {int(timeout).bit_length()} bits") from None
