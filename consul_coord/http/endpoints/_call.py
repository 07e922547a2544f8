"""How requests are put together and replies taken apart, the same for every endpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from consul_coord.errors import DecodeError
from consul_coord.http import failures
from consul_coord.http.endpoints import _durations, _json
from consul_coord.http.messages import Call, Request, Response, Retry
from consul_coord.models import ReadOptions, Result, WriteOptions, _validate
from consul_coord.models._validate import UINT64_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from consul_coord.models import Consistency

T = TypeVar("T")
Params = tuple[tuple[str, str], ...]

DEFAULT_WAIT = 30.0
"""How long a blocking query waits unless told otherwise, in seconds."""
BODY_LIMIT = 512 * 1024
"""The largest body of a request that an agent takes unless configured otherwise, in bytes."""
_OK = 200
_ABSENT = 404
_INDEX = "x-consul-index"
_LONGEST_NUMBER = len(str(UINT64_MAX))
_MODES: dict[Consistency, Params] = {
    "default": (),
    "consistent": (("consistent", ""),),
    "stale": (("stale", ""),),
}


def call(request: Request, read: Callable[[Response], T], *, accept: Collection[int] = (_OK,)) -> Call[T]:
    """Pair a request with how a reply of an accepted status is read; any other status becomes its error."""

    def decode(response: Response) -> T:
        if response.status not in accept:
            raise failures.failure(request, response)
        try:
            return read(response)
        except _json.ShapeError as error:
            message = (
                f"{request.method} {request.path}: {response.status}, but {error}. "
                "Is this a Consul agent, and nothing in between that changes its replies?"
            )
            body = response.body.decode(errors="replace")
            raise DecodeError(message, method=request.method, path=request.path, body=body) from error

    return Call(request, decode)


def read_request(
    path: str, options: ReadOptions | None, *, params: Params = (), needed: tuple[str, ...] = ()
) -> Request:
    """Return a GET with its options; with an index it is a blocking query."""
    if options is None:
        return Request("GET", path, params, retry=Retry.READ, needed=needed)
    _validate.instance("options", options, ReadOptions)
    params, wait = (*params, *where(options), *how(options)), 0.0
    if options.index:
        wait = DEFAULT_WAIT if options.wait is None else options.wait
        params = (*params, ("index", str(options.index)), ("wait", _durations.to_text(wait)))
    return Request("GET", path, params, retry=Retry.READ, needed=needed, hold_open=wait)


def get(
    path: str,
    options: ReadOptions | None,
    read: Callable[[str, object], T],
    *,
    params: Params = (),
    needed: tuple[str, ...] = (),
) -> Call[Result[T]]:
    """Return a GET whose answer is JSON, with what its headers tell."""
    request = read_request(path, options, params=params, needed=needed)
    return call(request, lambda response: result(response, read("the reply", _json.parse(response.body))))


def find(
    path: str,
    options: ReadOptions | None,
    read: Callable[[Response], T],
    nothing: T,
    *,
    params: Params = (),
    needed: tuple[str, ...],
    told_by: bytes = b"",
) -> Call[Result[T]]:
    """Return a GET of what may be absent: the value is ``nothing`` then."""

    def decode(response: Response) -> Result[T]:
        return result(response, nothing if absent(response, told_by=told_by) else read(response))

    return call(read_request(path, options, params=params, needed=needed), decode, accept=(_OK, _ABSENT))


def write(
    method: str,
    path: str,
    options: WriteOptions | None,
    read: Callable[[Response], T],
    *,
    params: Params = (),
    body: bytes | None = None,
    retry: Retry,
    needed: tuple[str, ...],
    urgent: bool = False,
    keep: float | None = None,
) -> Call[T]:
    """Return a request that changes something."""
    if options is not None:
        _validate.instance("options", options, WriteOptions)
        params = (*params, *where(options))
    request = Request(method, path, params, body, retry, needed, urgent=urgent, keep=keep)
    return call(request, read)


def where(options: ReadOptions | WriteOptions) -> Params:
    """Return the parameters that say where to read or write."""
    places = (("dc", options.datacenter), ("ns", options.namespace), ("partition", options.partition))
    return tuple((name, value) for name, value in places if value is not None)


def how(options: ReadOptions) -> Params:
    """Return the parameters that say how fresh and in which order."""
    near: Params = () if options.near is None else (("near", options.near),)
    stale: Params = (
        () if options.max_stale is None else (("max_stale", _durations.to_text(options.max_stale)),)
    )
    return (*near, *_MODES[options.consistency], *stale)


def blocking(options: ReadOptions | None, *, index: int, wait: float) -> ReadOptions:
    """Return the options of a blocking query that waits for something newer than ``index``."""
    return replace(options or ReadOptions(), index=index, wait=wait)


def result(response: Response, value: T) -> Result[T]:
    """Add to a value what the headers tell; a missing or unreadable one says nothing: 0 or None."""
    contact = _number(response.headers.get("x-consul-lastcontact", ""))
    leader = response.headers.get("x-consul-knownleader", "").lower()
    return Result(
        value,
        index=_number(response.headers.get(_INDEX, "")) or 0,
        known_leader={"true": True, "false": False}.get(leader),
        last_contact=None if contact is None else contact / 1000,
    )


def _number(text: str) -> int | None:
    if not (text.isascii() and text.isdecimal() and len(text) <= _LONGEST_NUMBER):
        return None
    number = int(text)
    return number if number <= UINT64_MAX else None


def answer(read: Callable[[str, object], T]) -> Callable[[Response], T]:
    """Return a reader of the whole reply from a reader of its JSON value."""
    return lambda response: read("the reply", _json.parse(response.body))


boolean = answer(_json.boolean)
new_id = answer(_json.new_id)


def nothing(response: Response) -> None:
    """Read a reply whose status says all; its body is empty, or some JSON of a later release."""
    if response.body.strip():
        _json.parse(response.body)


def absent(response: Response, *, told_by: bytes = b"") -> bool:
    """Return whether a reply says that there is no such thing.

    An agent's 404 has an index, an empty body or just these words. Raises ShapeError for any other 404: that
    of something in between, which knows nothing about it.
    """
    if response.status != _ABSENT:
        return False
    if response.body not in {b"", told_by} and _INDEX not in response.headers:
        raise _json.ShapeError("this 404 is not an agent's")
    return True


def with_index(response: Response) -> Response:
    """Return the reply; raise ShapeError when it has no index, which an agent always sends."""
    if _INDEX not in response.headers:
        raise _json.ShapeError("it has no X-Consul-Index")
    return response
