"""Looks for the copies that a client with a token for some topics says are on the roots of brokers.

Copies that are not there would harm others: a check of roots takes a broker without them for one that was set back, and
a replica without them leaves the ISR of all topics that it is of.  So the coordinator believes what it has seen, and,
of a root that does not answer, what the client says: such a root is fenced before long.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

from spark_log.errors import SparkLogError
from spark_log.log_lines import logger
from spark_log.metadata.command_base import Command
from spark_log.metadata.commands import Append
from spark_log.metadata.replicas.replica_commands import AddPendingCopies
from spark_log.metadata.replicas.replica_state import OWN_GROUP
from spark_log.metadata.replicas.replicas import is_active, is_current
from spark_log.metadata.state import State
from spark_log.roots.broker_roots import Roots
from spark_log.roots.replica_puts import check_broker_root, size_on

LOOK_S = 2.0
"""A root that answers nothing for so long is not waited for."""
PARALLEL = 4
"""Looks at a root at the same time, for one request."""


class ClaimedCopy(NamedTuple):
    """A copy that a command says is there."""

    name: str
    size: int
    broker: int


def claimed_copies(command: Command, state: State) -> Iterator[ClaimedCopy]:
    """The copies that a command would add to the state."""
    for part in command.parts():
        if isinstance(part, Append):
            for made, where in zip(part.commit.objects, part.commit.placed, strict=False):
                held = where.held if where.group != OWN_GROUP else ()
                yield from (ClaimedCopy(made.name, made.size, one) for one, epoch in held if _counts(state, one, epoch))
        elif isinstance(part, AddPendingCopies):
            for name, broker, epoch in part.copies:
                if (row := state.objects.get(name)) is not None and _counts(state, broker, epoch):
                    yield ClaimedCopy(name, row.size, broker)


def _counts(state: State, broker: int, epoch: int) -> bool:
    return is_active(state, broker) and is_current(state, broker, epoch)


async def absent_copies(roots: Roots, claimed: Iterable[ClaimedCopy]) -> frozenset[ClaimedCopy]:
    """The claimed copies that are not on their roots, or have another size."""
    by_broker = dict[int, dict[ClaimedCopy, None]]()
    for one in claimed:
        by_broker.setdefault(one.broker, {})[one] = None
    looks = [_Look(roots, broker, tuple(some)) for broker, some in by_broker.items()]
    found = await asyncio.gather(*(look.absent() for look in looks))
    return frozenset(one for some in found for one in some)


class _Look:
    """The looks at one root, in threads of that root: one that hangs delays no other."""

    def __init__(self, roots: Roots, broker: int, claimed: Sequence[ClaimedCopy]) -> None:
        self._roots, self._broker, self._left = roots, broker, iter(claimed)
        self._count = min(PARALLEL, len(claimed))
        self._lock = threading.Lock()
        self._done = 0
        self._absent: list[ClaimedCopy] = []

    async def absent(self) -> Collection[ClaimedCopy]:
        """Nothing is absent from a root that fails."""
        try:
            waiting = {asyncio.wrap_future(self._begin()) for _ in range(self._count)}
            while waiting:
                before = self._done
                done, waiting = await asyncio.wait(waiting, timeout=LOOK_S)
                for one in done:
                    one.result()
                if not done and self._done == before:
                    logger.warning(
                        "the root of broker %d does not answer: the copies of a commit there were not checked",
                        self._broker,
                    )
                    return ()
            return self._absent
        except (SparkLogError, OSError) as error:
            logger.warning(
                "the copies of a commit on broker %d were not checked, because its root fails: %s", self._broker, error
            )
            return ()
        finally:
            self._left = iter(())

    def _begin(self) -> Future[None]:
        future: Future[None] = Future()
        self._roots.start(self._broker, partial(self._run, future))
        return future

    def _run(self, future: Future[None]) -> None:
        try:
            while (one := self._next()) is not None:
                if not self._is_there(one):
                    self._absent.append(one)
                self._done += 1
        except Exception as error:  # noqa: BLE001  raised by the future
            future.set_exception(error)
        else:
            future.set_result(None)

    def _next(self) -> ClaimedCopy | None:
        with self._lock:
            return next(self._left, None)

    def _is_there(self, one: ClaimedCopy) -> bool:
        if size_on(self._roots, self._broker, one.name) == one.size:
            return True
        check_broker_root(self._roots, self._broker, again=True)  # nothing is known of a disk that is not mounted
        return False
