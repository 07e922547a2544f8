"""Fixtures for jobs that run once: those of ``tests/lock``."""

from __future__ import annotations

from tests.lock.conftest import anyio_backend, client, make_client, proxy, reference_server, site

__all__ = ["anyio_backend", "client", "make_client", "proxy", "reference_server", "site"]
