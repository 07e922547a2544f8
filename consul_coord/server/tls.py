"""The TLS context of a server whose settings name files."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl

    from consul_coord.server.config import ServerConfig


def context_of(config: ServerConfig) -> ssl.SSLContext | None:
    """Return the context that the settings ask for, or None; ``OSError`` when a file is missing or no PEM."""
    if not config.tls_cert:
        return None
    import ssl

    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=config.tls_client_ca or None)
        context.load_cert_chain(config.tls_cert, config.tls_key or None)
    except OSError as error:
        files = ", ".join(filter(None, (config.tls_cert, config.tls_key, config.tls_client_ca)))
        raise OSError(error.errno, f"no TLS with {files}: {error.strerror}") from error
    if config.tls_client_ca:
        context.verify_mode = ssl.CERT_REQUIRED
    return context
