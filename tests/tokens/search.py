"""Look for tokens where none may be, over the whole test run: a pytest plugin.

Every secret that a `Credentials` object gets in the test process is noted, whoever made it: ACL tokens and
passwords alike. From then on it must not turn up in

- a log record of any logger: its message, arguments, and traceback,
- an error of this package: its message and fields, when it is made and when it is told,
- a span given to OpenTelemetry's exporter in memory,
- the ``repr`` of a client and of every object of this package that can be reached from it, as a test that
  used a secret leaves them,
- what a test writes to its standard output and error, itself or by processes that it started.

Rules
- Only what is recognisable is searched for: six characters or more, with a digit among them. A token called
  ``root`` would be found in every path.
- A leak fails the test in which it was found.
- Secrets of tests marked ``arbitrary_secrets`` are not searched for: they are any text, perhaps an address in
  the next example.
- Nothing is asked of the garbage collector: it would hand out objects that other threads are just making.
"""

from __future__ import annotations

import base64
import logging
import re
import sys
import weakref
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

import pytest

from consul_coord.base_client import BaseClient
from consul_coord.config import Credentials
from consul_coord.errors import ConsulCoordError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

_RECOGNISABLE: Final = re.compile(r"(?=.*[0-9]).{6,}", re.DOTALL)
_SPANS: Final = "opentelemetry.sdk.trace.export.in_memory_span_exporter"
_REACH: Final = 2_000
"""How many objects are looked at from one test's clients at most."""


class Search:
    """What is looked for, and what was found since the last test."""

    def __init__(self) -> None:
        self.secrets: set[str] = set()
        self.leaks: list[str] = []
        self.used = False
        self.noting = True
        """Whether the secrets of the test that runs are searched for."""
        self._clients: list[weakref.ref[object]] = []
        self._spans = False
        self._undo: list[Callable[[], None]] = []

    # -- looking

    def note(self, secret: str | None) -> None:
        """Look for a secret from now on."""
        if self.noting and secret and _RECOGNISABLE.fullmatch(secret):
            self.secrets.add(secret)
            self.used = True

    def look(self, where: str, what: object) -> None:
        """Look for secrets in a text, or in that of an object."""
        if not self.secrets:
            return
        text = what if isinstance(what, str) else repr(what)
        for secret in self.secrets:
            if secret in text:
                # Told without the secret: this very report is searched, too.
                self.leaks.append(f"a token of {len(secret)} characters is in {where}")

    def look_at_objects(self) -> None:
        """Look at the clients that a test made, and at what of the package can be reached from them."""
        todo: list[object] = [client for each in self._clients if (client := each()) is not None]
        self._clients.clear()
        seen: dict[int, object] = {}
        while todo and len(seen) < _REACH:
            found = todo.pop()
            if id(found) in seen:
                continue
            seen[id(found)] = found
            if type(found).__module__.startswith("consul_coord"):
                with suppress(Exception):  # half made, or in another thread's hands
                    self.look(f"the repr of {type(found).__qualname__}", repr(found))
                    todo.extend(_parts(found))
            elif isinstance(found, list | tuple | set | frozenset | dict):
                with suppress(RuntimeError):  # changed by another thread meanwhile
                    todo.extend(found.values() if isinstance(found, dict) else found)

    def look_at_spans(self) -> None:
        """Look at the spans that are exported from now on, once there is anything to export them."""
        module = sys.modules.get(_SPANS)
        if module is not None and not self._spans:
            self._spans = True
            self._wrap(module.InMemorySpanExporter, "export", self._exported)

    def settle(self) -> None:
        """Fail if anything was found since the last time."""
        if self.used:
            self.look_at_objects()
        self.used = False
        leaks, self.leaks = sorted(set(self.leaks)), []
        if leaks:
            pytest.fail("; ".join(leaks), pytrace=False)

    # -- listening

    def begin(self) -> None:
        """Listen to everything that says something."""
        self._wrap(Credentials, "_made_headers", self._credentials)
        self._wrap(BaseClient, "__init__", self._client)
        for kind in _with_own_constructor(ConsulCoordError):
            self._wrap(kind, "__init__", self._error)
        factory = logging.getLogRecordFactory()

        def record(*args: Any, **kwargs: Any) -> logging.LogRecord:
            made = factory(*args, **kwargs)
            self._record(made)
            return made

        logging.setLogRecordFactory(record)
        self._undo.append(lambda: logging.setLogRecordFactory(factory))

    def end(self) -> None:
        """Listen no more."""
        while self._undo:
            self._undo.pop()()

    def _wrap(self, owner: type, name: str, listen: Callable[..., None]) -> None:
        real = getattr(owner, name)

        @wraps(real)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = real(*args, **kwargs)
            listen(*args, result=result, **kwargs)
            return result

        setattr(owner, name, wrapped)
        self._undo.append(lambda: setattr(owner, name, real))

    def _credentials(self, _self: object, token: str | None, *, result: dict[str, str]) -> None:
        self.note(token)
        basic = result.get("Authorization", "").removeprefix("Basic ")
        self.note(basic)
        self.note(base64.b64decode(basic).decode().partition(":")[2])

    def _client(self, client: object, _runner: object, *, result: object) -> None:
        self._clients.append(weakref.ref(client))

    def _exported(self, _self: object, spans: Iterable[Any], *, result: object) -> None:
        self.look("a span", " ".join(span.to_json() for span in spans))

    def _error(self, error: ConsulCoordError, *_: object, **_fields: object) -> None:
        self.look(f"{type(error).__name__}, made", f"{error} {error.args!r} {vars(error)!r}")

    def _record(self, record: logging.LogRecord) -> None:
        if not self.secrets:
            return
        with suppress(Exception):  # a record that can't be formatted is somebody else's failure
            self.look(f"a record of the logger {record.name}", record.getMessage())
        self.look(f"the arguments of a record of {record.name}", f"{record.args!r} {record.exc_info!r}")
        if record.exc_info:
            told = logging.Formatter().formatException(record.exc_info)
            self.look(f"a traceback logged by {record.name}", told)


def _parts(found: object) -> Iterator[object]:
    """Yield the values of an object's attributes."""
    yield from vars(found).values() if hasattr(found, "__dict__") else ()
    for kind in type(found).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(found, name):
                yield getattr(found, name)


def _with_own_constructor(kind: type[ConsulCoordError]) -> Iterator[type[ConsulCoordError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from (each for each in _with_own_constructor(below) if "__init__" in vars(each))


_SEARCH: Final = pytest.StashKey[Search]()


def pytest_configure(config: pytest.Config) -> None:
    search = config.stash[_SEARCH] = Search()
    search.begin()


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[_SEARCH].end()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    search = item.config.stash[_SEARCH]
    search.look_at_spans()
    search.noting = item.get_closest_marker("arbitrary_secrets") is None
    result = yield
    search.settle()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    search = item.config.stash[_SEARCH]
    for title, text in report.sections:
        if title.endswith(call.when):  # those of earlier phases are repeated
            search.look(title, text)
    if call.excinfo is not None:
        search.look("the error that ended the test", str(call.excinfo.value))
    leaks, search.leaks = sorted(set(search.leaks)), []
    if leaks:
        report.outcome = "failed"
        report.longrepr = "\n".join((report.longreprtext, *leaks))
    return report
