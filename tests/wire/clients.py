"""The blocking and the async client behind one face, so that a test holds both to the same rules.

What is async is run to its end on an event loop in another thread; so a test reads like blocking code,
whichever client it is about. Results are the client's own, unchanged.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Protocol

from anyio.from_thread import start_blocking_portal

from consul_coord import AsyncClient, AsyncLock, Client, Lock

if TYPE_CHECKING:
    from contextlib import ExitStack

    from anyio.from_thread import BlockingPortal

_OF_LOOPS = "consul_coord.aio"


class Blocking:
    """An object that lives on an event loop, with its coroutine methods as blocking ones."""

    def __init__(self, target: object, portal: BlockingPortal) -> None:
        self.target = target
        self._portal = portal

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.target, name)
        if not inspect.ismethod(found):
            return self._wrap(found)

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._wrap(self._portal.call(functools.partial(found, *args, **kwargs)))

        return call

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        following: Any = self.target
        try:
            return self._portal.call(following.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None

    def __repr__(self) -> str:
        return repr(self.target)

    def _wrap(self, value: object) -> Any:
        return Blocking(value, self._portal) if type(value).__module__.startswith(_OF_LOOPS) else value


class Make(Protocol):
    """Makes clients and locks of one kind; all are closed when the test ends."""

    def client(self, **settings: Any) -> Any: ...

    def lock(self, client: Any, key: str, **options: Any) -> Any: ...


class MakeBlocking:
    def __init__(self, address: str, stack: ExitStack) -> None:
        self._address = address
        self._stack = stack

    def client(self, **settings: Any) -> Client:
        chosen: dict[str, Any] = {"address": self._address} | settings
        client = Client(**chosen)
        self._stack.callback(client.close)
        return client

    def lock(self, client: Client, key: str, **options: Any) -> Lock:
        return Lock(client, key, **options)


class MakeAsync:
    def __init__(self, address: str, stack: ExitStack) -> None:
        self._address = address
        self._stack = stack
        self._portal = stack.enter_context(start_blocking_portal())

    def client(self, **settings: Any) -> Blocking:
        chosen: dict[str, Any] = {"address": self._address} | settings
        client = AsyncClient(**chosen)
        self._portal.call(client.__aenter__)
        self._stack.callback(lambda: self._portal.call(client.close))
        return Blocking(client, self._portal)

    def lock(self, client: Blocking, key: str, **options: Any) -> Blocking:
        assert isinstance(client.target, AsyncClient)
        return Blocking(AsyncLock(client.target, key, **options), self._portal)


KINDS = {"blocking": MakeBlocking, "async": MakeAsync}
