# Made from consul_coord/aio/group.py by `python tools/make_sync.py`: change that one.
"""Groups for blocking code: names, parameters and documentation; the logic is in ``recipes.group``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.base_client import Entered, default_member, require
from consul_coord.errors import InvalidArgument
from consul_coord.models._validate import as_bytes
from consul_coord.recipes.contend.recipe import Waiting
from consul_coord.recipes.group import membership as recipe
from consul_coord.recipes.group.follow import MembersFollower
from consul_coord.recipes.group.members import GroupPlan
from consul_coord.sync.client import Client
from consul_coord.sync.watch import Watch

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from consul_coord.models import Member, Members, ReleaseOutcome
    from consul_coord.recipes.group.membership import Membership
    from consul_coord.sync.runner import Runner


class Group(Entered):
    """A group of processes: join it, see its members, and follow each change.

    Guarantees:

    - Two members never have the same id.
    - A member whose process dies is gone after at most two TTLs, and its id is free again at that moment.
    - A member that lost its session joins again by itself, with its latest value, while its client is open.
    - A watch gives the present members, then each change once.

    Not guaranteed: that all clients have the same view at the same moment. So never decide by a view alone
    who may do something that only one process may do. Use a lock, an election or a ``Partitioner`` for that.

    A group needs no set-up. Many threads or tasks may use one object, and it may watch without joining.
    """

    def __init__(
        self,
        client: Client,
        prefix: str,
        *,
        id: str | None = None,
        value: bytes | str = b"",
        evictable: bool = False,
    ) -> None:
        """Describe the group and the member, without I/O.

        - ``client``: the client to use.
        - ``prefix``: the prefix of the group. The members are keys below ``PREFIX/members/``.
        - ``id``: the member's name, without ``/``. None makes one of host, process and a random part, which
          no other member has.
        - ``value``: text about the member for others to see, such as its address; see ``update``.
        - ``evictable``: a client that deletes the member's key ends its membership. Otherwise the member
          joins again.

        Raises InvalidKey and InvalidArgument.
        """
        self._runner = require(client, Client, type(self).__name__)
        self._plan = GroupPlan(prefix)
        self._given = id
        if id is not None:
            self._plan.key(id)
        self._value = as_bytes(value)
        self._evictable = evictable
        self._membership: Membership | None = None
        self._named: tuple[object, str] | None = None

    @property
    def prefix(self) -> str:
        """The prefix of the group's keys."""
        return self._plan.prefix

    @property
    def id(self) -> str:
        """The name of this member; in a forked child another one, unless it was given."""
        if self._given is not None:
            return self._given
        core = self._runner.core
        if self._named is None or self._named[0] is not core:
            self._named = (core, default_member(core.host))
        return self._named[1]

    @property
    def joined(self) -> bool:
        """Whether this is a member at this moment, as far as it can know; no I/O."""
        membership = self._current()
        return membership is not None and membership.is_joined(self._runner.now())

    @property
    def problem(self) -> Exception | None:
        """The reason why it is not a member again after a loss, or None; no I/O.

        For example PermissionDenied if the last attempt was refused, or an AcquireTimeout whose ``blocker``
        says that Consul does not answer, or that somebody else has the id. Attempts go on.
        """
        membership = self._current()
        return None if membership is None else membership.problem

    def _current(self) -> Membership | None:
        """Return the membership, unless it is a parent process's."""
        membership = self._membership
        return membership if membership is not None and membership.client is self._runner.core else None

    def join(self, *, timeout: float | None = None) -> None:
        """Become a member; do nothing if this is one.

        ``timeout``: the longest wait in seconds while another member has the id; None waits for ever. A
        process that was killed and started again gets its id back when its old session has ended. After a
        loss, the member joins again by itself, until ``leave``.

        Raises AcquireTimeout, whose ``blocker`` names the session in the way, and AcquireCancelled if
        ``leave`` is called meanwhile. Raises KeyConflict if another program uses the key, ValueTooLarge,
        ClientClosed, and the refusals of the server.
        """
        core = self._runner.core
        with core.mutex:
            membership = self._current()
            if membership is None or membership.is_over:
                membership = recipe.Membership(
                    core, self._plan, self.id, self._value, evictable=self._evictable, keeps=self
                )
                self._membership = membership
        self._runner.run(Waiting(membership), recipe.join, membership, timeout=timeout)

    def leave(self, *, timeout: float = 5.0) -> ReleaseOutcome:
        """Leave the group; do nothing if it has not joined. You may join again.

        Returns RELEASED, ALREADY_LOST if there was nothing to leave, or UNKNOWN if no answer came within
        ``timeout`` seconds; the client then goes on in the background.
        """
        membership = self._current()
        if membership is None:
            return recipe.NOT_JOINED
        return self._runner.finish(recipe.leave, membership, timeout=timeout)

    def update(self, value: bytes | str) -> None:
        """Change the member's value in place: watchers do not see it leave or join.

        Raises NotHeld if this is no member, LockLost if it has just lost that, ValueTooLarge, and the errors
        of the write. After a loss, it joins again with the new value.
        """
        key = self._plan.key(self.id)
        self._value = data = recipe.checked(key, as_bytes(value))
        self._runner.call(recipe.update, self._current(), key, data)

    def members(self) -> tuple[Member, ...]:
        """Return the members, the longest member first, as the servers' leader has them."""
        return self._runner.call(recipe.members, self._runner.core, self._plan)

    def watch(self) -> Watch[Members]:
        """Return an iterator over the members: first the present ones, then each change once.

        Each state says who has ``joined``, ``left`` and ``changed`` since the last one. It may skip states
        between two looks, but never the latest. Waiting costs a reply of a few bytes for each change. The
        client reads the list a moment later, up to a millisecond for each member, so that a thousand
        watchers do not ask at once. It reports the changes of that moment together.
        """
        return Watch(self._runner, MembersFollower(self._plan))

    def __reduce__(self) -> tuple[object, ...]:
        name = type(self).__name__
        message = f"{name} can't be pickled: make one in each process; that costs no I/O"
        raise TypeError(message)

    def __enter__(self) -> Self:
        self.join()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def __repr__(self) -> str:
        role = f"member {self.id!r}" if self.joined else "not joined"
        return f"<Group {self.prefix!r}: {role}>"


def parts_of(group: object, user: str) -> tuple[Runner, GroupPlan]:
    """Return what a group is made of, for this package's own use: the one door to it.

    Raises InvalidArgument when ``user``, a public name, was given something else.
    """
    if not isinstance(group, Group):
        raise InvalidArgument(f"{user} needs a group, made with {Group.__name__}, not {group!r}")
    return group._runner, group._plan  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
