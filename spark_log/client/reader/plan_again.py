"""Reads planned slices, and plans the rest again if objects were replaced, or records were erased, since the plan.

Clients and tasks of Spark read through here; they differ in where they find the newest state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from msgspec.structs import replace
from typing_extensions import Self

from spark_log.client.reader.erased_since import view_was_erased_from
from spark_log.client.reader.fetch import Fetched
from spark_log.client.reader.plan import REPLAN_TRIES, SliceRead
from spark_log.client.reader.request_ahead import Coming
from spark_log.errors import ObjectNotFound
from spark_log.roots.read_failover import NOT_READ, CopiesAway

NotRead = ObjectNotFound | CopiesAway
"""An error of `NOT_READ`."""


class ReadSource(Protocol):
    """The log as one plan sees it."""

    @property
    def latest(self) -> bool:
        """Whether the reads are of a view of the latest records: after an erasure, no part of it is planned again."""

    def fetch(self, read: SliceRead, coming: Coming | None) -> Iterator[Fetched]:
        """The records of a read, as `fetch.fetch` yields them."""

    def was_erased(self, topic_id: str) -> bool:
        """Whether records of a topic were erased since the plan."""

    def plan_again(self, rest: SliceRead, error: NotRead | None) -> tuple[Self, Iterable[SliceRead]]:
        """The log as the newest state has it, and the reads in it of the offsets of `rest`.

        error:  why it was not read; None: records were erased.
        Raises ConcurrentChange if the log has other records at these offsets by now.  It may raise `error`.
        """


def read_planned(
    source: ReadSource, read: SliceRead, coming: Coming | None = None, tries: int = REPLAN_TRIES
) -> Iterator[Fetched]:
    """The records of one planned read, in offset order.

    tries:  how often the rest is planned again because an object cannot be read; then its error is raised.  Erasures
            do not count: each of them is a change that somebody has made.
    """
    at, error = read.start, None
    try:
        for part in source.fetch(read, coming):
            if source.was_erased(read.topic_id):
                break
            yield part
            at = part.end
        else:
            return
    except NOT_READ as failed:
        if not tries:
            raise
        # With a root away, the newest state may name another object; each further try could wait for hung roots.
        error, tries = failed, 0 if isinstance(failed, CopiesAway) else tries - 1
    if error is None and source.latest:
        raise view_was_erased_from(read.topic)
    later, reads = source.plan_again(replace(read, start=at), error)
    for again in reads:
        yield from read_planned(later, again, tries=tries)
