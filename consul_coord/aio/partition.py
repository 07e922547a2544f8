"""Partitioners for event loops: names, parameters, documentation; the logic is in ``recipes.partition``."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from consul_coord.aio.callbacks import AsyncCallbacks, check_callbacks
from consul_coord.aio.group import AsyncGroup, parts_of
from consul_coord.aio.hold import AsyncHold
from consul_coord.base_client import AsyncEntered
from consul_coord.recipes.partition import partitioning as recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Self

    from consul_coord.models import Holder, Member
    from consul_coord.recipes.hold.grant import Grant
    from consul_coord.recipes.partition.partitioning import Partitioning


class AsyncPartitioner(AsyncEntered):
    """Partitions shared among the members of a group: each has one owner, which is a member.

    Guarantees:

    - Two clients never both consider themselves the owner of a partition, as ``Hold`` says. Each owner's
      ``fence`` is higher than all before it.
    - The owner is notified, and may finish, before another member has the partition.
    - A new member takes partitions only for itself, and a leaving one leaves only its own.
    - The partitions of a member that dies have new owners within ``failover_bound(spec)`` and some seconds.

    Not guaranteed: equal shares (see ``bound``), and that a paused owner stops in time (use the fence, or
    ``guard()``).

    Owners follow from the members' ids alone, by rendezvous hashing, so all processes have to name the same
    partitions. Each partition is a lock below ``PREFIX/partitions/``. A process that has not joined the
    group owns nothing.
    """

    def __init__(
        self,
        group: AsyncGroup,
        partitions: int | Sequence[str],
        *,
        on_acquired: Callable[[str, AsyncHold], object] | None = None,
        on_released: Callable[[str, AsyncHold], object] | None = None,
        weight: Callable[[Member], float] | None = None,
        bound: float | None = None,
        settle: float = 0.3,
        handover: float = 10.0,
    ) -> None:
        """Describe the partitions and their callbacks, without I/O.

        - ``group``: the group whose members share the partitions.
        - ``partitions``: their number, for the names ``"0"``, ``"1"`` and so on; or their names.
        - ``on_acquired``: called with the partition and its hold when this process owns it. If it raises, the
          client reports that as ``Failed``, gives the partition up, and takes it again after a pause.
        - ``on_released``: called in the same way, once after each ``on_acquired``. When a partition goes to
          another member, ``hold.is_held`` is still true, and the other member waits until the function
          returns. After a loss ``hold.reason`` says why. An ``on_acquired`` that still awaits something is
          cancelled first.
        - ``weight``: called with a member; returns how large its share should be, from 1e-100 to 1e100, or 0
          for none. None stands for 1 each. All processes must compute the same weights. If it raises, the
          client reports that as ``Failed``, and the weight is 1.
        - ``bound``: no member owns more than this many times its fair share, rounded up. With it some more
          partitions move.
        - ``settle``: the seconds for which the group has to be quiet before partitions move. If changes go
          on, they move after four times as long.
        - ``handover``: the seconds that ``on_released`` may take before the hold ends.

        The functions run on the client's callback thread, or in its event loop, where the first two may be
        coroutine functions. Those for one partition are called in order. Raises InvalidArgument and
        InvalidKey.
        """
        self._group = group
        self._runner, plan = parts_of(group, type(self).__name__)
        self._plan = recipe.PartitionPlan(
            group=plan,
            partitions=recipe.names_of(partitions),
            settle=settle,
            handover=handover,
            bound=bound,
            weight=weight,
            on_acquired=self._with_view("on_acquired", on_acquired),
            on_released=self._with_view("on_released", on_released),
        )
        self._partitioning: Partitioning | None = None

    @property
    def group(self) -> AsyncGroup:
        """The group whose members share the partitions."""
        return self._group

    @property
    def partitions(self) -> tuple[str, ...]:
        """The partitions' names."""
        return self._plan.partitions

    @property
    def owned(self) -> dict[str, AsyncHold]:
        """The partitions that this process owns at this moment, with their holds; no I/O."""
        partitioning = self._current()
        if partitioning is None:
            return {}
        return {
            partition: self._view(hold) for partition, hold in partitioning.owned(self._runner.now()).items()
        }

    def _with_view(
        self, name: str, function: Callable[[str, AsyncHold], object] | None
    ) -> Callable[[str, Grant], object] | None:
        """Return what calls a user's function with a user's hold. Raises InvalidArgument."""
        check_callbacks(**{name: function})
        if function is None:
            return None
        return lambda partition, hold: function(partition, self._view(hold))

    def _view(self, hold: Grant) -> AsyncHold:
        return AsyncHold(self._runner, self._runner.core, hold)

    def _current(self) -> Partitioning | None:
        """Return what runs, unless it is a parent process's."""
        partitioning = self._partitioning
        ours = partitioning is not None and partitioning.client is self._runner.core
        return partitioning if ours else None

    async def start(self) -> None:
        """Begin to own partitions, in the background; do nothing if it runs already. Raises ClientClosed."""
        core = self._runner.core
        with core.mutex:
            partitioning = self._current()
            if partitioning is None or partitioning.is_over:
                calls = (
                    defaultdict[str, AsyncCallbacks](lambda: AsyncCallbacks(core))
                    if partitioning is None
                    else partitioning.calls
                )
                if partitioning is not None:
                    partitioning.stop()  # an earlier stop may have been interrupted
                partitioning = recipe.Partitioning(
                    core, self._plan, lambda: self._group.id, calls, keeps=self
                )
                self._partitioning = partitioning
            await self._runner.call(recipe.start, partitioning)

    async def stop(self, *, timeout: float = 15.0) -> None:
        """Hand all partitions over, and own none any more; do nothing if it does not run.

        It waits up to ``timeout`` seconds, and the client does the rest in the background. You may start it
        again. In a callback of its own give 0, because the callback would wait for its own return.
        """
        partitioning = self._current()
        if partitioning is not None:
            await self._runner.finish(recipe.stop, partitioning, timeout=timeout)

    async def owners(self) -> dict[str, Holder | None]:
        """Return the owner of each partition or None, as the servers' leader has them.

        The ``value`` of each is the owner's id. Raises the errors of the requests.
        """
        return await self._runner.call(recipe.holders, self._runner.core, self._plan)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def __repr__(self) -> str:
        return f"<AsyncPartitioner of {self._group.prefix!r}: {len(self.owned)} of {len(self.partitions)}>"
