"""The TLS context that the settings ask for. ``ssl`` is not imported before TLS is used.

Rules
- Given authorities replace the system's. A directory's files are all read, under any name.
- A file that can't be loaded is a ``ConfigError``; there is no falling back to less.
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from consul_coord.errors import ConfigError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Generator

    from consul_coord.config import TLSConfig


def client_context(tls: TLSConfig) -> ssl.SSLContext:
    """Return the context for connections to the agent. Reads the named files. Raises ``ConfigError``."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["http/1.1"])
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    _add_authorities(context, tls)
    if tls.client_cert is not None:
        with _loading(f"client certificate {tls.client_cert} with key {tls.client_key}"):
            # An encrypted key is an error: without an answer given here, OpenSSL would ask on the terminal.
            context.load_cert_chain(tls.client_cert, tls.client_key, password=lambda: b"")
    return context


def _add_authorities(context: ssl.SSLContext, tls: TLSConfig) -> None:
    if tls.ca_cert is None and tls.ca_path is None:
        context.load_default_certs()
    if tls.ca_cert is not None:
        with _loading(f"CA certificates {tls.ca_cert}"):
            context.load_verify_locations(cafile=tls.ca_cert)
    if tls.ca_path is not None:
        with _loading(f"directory of CA certificates {tls.ca_path}"):
            files = [file for file in sorted(Path(tls.ca_path).iterdir()) if file.is_file()]
            for file in files:
                context.load_verify_locations(cafile=file)
        if not files:
            raise ConfigError(f"no files in the directory of CA certificates {tls.ca_path}")


@contextmanager
def _loading(what: str) -> Generator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"can't load the {what}: {reason}") from error
