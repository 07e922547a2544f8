"""The pure shapes that pass between an endpoint, a recipe and a transport.

Rules
- A ``Request`` is complete and final: path percent-encoded, parameters in order, body in bytes. It holds no
  token and no address; the transport adds those.
- A ``Call`` pairs a request with the pure function that reads its reply, so that one definition serves every
  driver.
- ``Retry`` says what a lost reply means for this request, never how often or how fast to repeat it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from consul_coord.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")


class Retry(enum.Enum):
    """Whether a request may be repeated that may or may not have been applied."""

    READ = "read"
    """Changes nothing: repeat at will."""
    IDEMPOTENT = "idempotent"
    """Applied twice is the same as once: repeat until answered."""
    NEVER = "never"
    """CAS, general transactions, session create.

    A repeat could give a wrong answer. The caller settles it.
    """


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Request(Value):
    """One HTTP request to an agent."""

    method: str
    path: str
    """Path below the agent's root, percent-encoded, e.g. ``/v1/kv/jobs/nightly``."""
    params: tuple[tuple[str, str], ...] = ()
    """Query parameters, not encoded yet."""
    body: bytes | None = None
    retry: Retry = Retry.NEVER
    needed: tuple[str, ...] = ()
    """The ACL rules it needs, for the error when the agent says 403."""
    hold_open: float = 0.0
    """How long the agent may hold the reply back, in seconds: the ``wait`` of a blocking query."""
    urgent: bool = False
    """Whether it may not wait for others' turns: a lease depends on it."""
    keep: float | None = None
    """How long its connection is kept for the next request, in seconds; None is the transport's choice."""
    begins: Callable[[], bool] | None = None
    """Returns whether its client has nothing to lose yet: where there is no room, others may go first."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Response(Value):
    """One whole HTTP reply. Header names are in lower case."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Call(Value, Generic[T]):
    """A request and how its reply is read: ``decode`` returns the answer or raises a typed error."""

    request: Request
    decode: Callable[[Response], T]
