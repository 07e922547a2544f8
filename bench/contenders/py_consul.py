"""py-consul, the endpoint client for Python, with a lock as its users write one."""

from __future__ import annotations

from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING

from bench.bed import Unavailable
from bench.contenders.pairs import timed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.bed import Bed
    from bench.contenders.pairs import Pairs


class PyConsul:
    """``kv.put`` with ``acquire``, then with ``release``. Without fence, renewal or knowledge of a loss."""

    name = "py-consul"

    @contextmanager
    def open(self, bed: Bed) -> Iterator[Pairs]:
        """Make the client and its session."""
        try:
            # By name: it comes without types, and only with the group ``bench``.
            consul = import_module("consul")
        except ImportError:
            message = "py-consul is not installed (extra: bench)"
            raise Unavailable(message) from None
        client = consul.Consul(host=bed.host, port=bed.port)
        session: str = client.session.create(ttl=600, behavior="release", lock_delay=0)
        key = bed.key()

        def pair() -> None:
            if not (client.kv.put(key, "", acquire=session) and client.kv.put(key, "", release=session)):
                message = "py-consul was refused"
                raise RuntimeError(message)

        try:
            yield timed(pair)
        finally:
            client.session.destroy(session)
            client.http.session.close()
