"""Claims of clients that have no access to `meta/pin/`: the coordinator makes them, where its log keeps claims.

Hundreds of tasks of a query look for the same claim at the same time.  One of them gets the answer that there is none,
and makes it, and the others wait for it: making it takes the whole state of the log.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from spark_log.bounds import UNREADABLE
from spark_log.errors import CoordinatorNotAvailable, InvalidRequest
from spark_log.metadata.state import State
from spark_log.rpc.messages import WAIT_MS_MAX, ClaimRequest
from spark_log.runtime.clock import SystemClock
from spark_log.runtime.daemon_threads import DaemonThreads
from spark_log.server.service import Service

MAKER_S = 10.0
"""How long the others wait for the client that makes a claim, until another one makes it."""
KEPT_BYTES = 16 << 20
"""Values that are kept in memory: a claim never changes."""
VALUE_BYTES_MAX = 7 << 20
"""Less than a body has."""
MAKERS_MAX = 1000
AHEAD_MS_MAX = 86_400_000
"""How far a client's clock may be ahead: its claims expire so much later."""
_NAME = re.compile(r"meta/pin/[A-Za-z0-9_][A-Za-z0-9._-]{0,300}")


class _Claim(msgspec.Struct, frozen=True):
    """The part of a value by which it expires."""

    version: int
    made_ms: int


class _PinnedTopic(msgspec.Struct, frozen=True, array_like=True):
    """The fields of a topic in a pin that a check needs; a pin has more."""

    topic_id: str
    starts: list[int]
    ends: list[int]


class _Pinned(msgspec.Struct, frozen=True):
    """The topics of a pin, by name."""

    topics: dict[str, _PinnedTopic] = {}


class _Maker:
    """A client that makes a claim."""

    def __init__(self, until_s: float) -> None:
        self.until_s = until_s
        self.made = asyncio.Event()

    def left_s(self, until_s: float, now_s: float) -> float:
        """How long a client waits for it that waits until a time."""
        return min(self.until_s, until_s) - now_s


class SharedClaims:
    """The claims of one log.  Runs on the event loop."""

    def __init__(self, service: Service, threads: DaemonThreads, now_s: Callable[[], float]) -> None:
        self._service, self._threads, self._now_s = service, threads, now_s
        self._values: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0
        """The size of all values."""
        self._makers: dict[str, _Maker] = {}
        self._stopping = False

    async def ask(self, asked: ClaimRequest) -> bytes | None:
        """The value that was claimed first; None: there is none, and this client makes it.

        Raises InvalidRequest, and the errors of the storage.
        """
        name = asked.name
        if _NAME.fullmatch(name) is None:
            raise InvalidRequest(f"name: {name[:80]!r} is not the name of a claim, meta/pin/ and a plain name")
        if (known := self._values.get(name)) is not None:
            return known
        if asked.value is None:
            return await self._look(name, self._now_s() + min(asked.wait_ms, WAIT_MS_MAX) / 1000)
        value = asked.value.encode()
        state, now_ms = self._service.state, SystemClock().now_ms()
        check_claim(value, state.version, now_ms)
        await self._threads.submit(check_topics, value, state)
        return self._keep(name, await self._run(lambda log: log.claim(name, value)))

    def stop(self) -> None:
        """End the waits: clients ask the next coordinator."""
        self._stopping = True
        for maker in self._makers.values():
            maker.made.set()

    async def _look(self, name: str, until_s: float) -> bytes | None:
        while self._is_made(name) and (left_s := self._makers[name].left_s(until_s, self._now_s())) > 0:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._makers[name].made.wait(), left_s)
        if (known := self._values.get(name)) is not None:
            return known
        if self._stopping:
            raise CoordinatorNotAvailable("this coordinator stops")
        maker = None if self._is_made(name) else self._begin(name)
        try:
            found = await self._run(lambda log: log.claimed(name))
        except BaseException:
            self._end(name, maker)
            raise
        return None if found is None else self._keep(name, found)

    def _is_made(self, name: str) -> bool:
        """Whether a client makes the claim now."""
        maker = self._makers.get(name)
        return maker is not None and self._now_s() < maker.until_s and not self._stopping

    def _begin(self, name: str) -> _Maker:
        if len(self._makers) >= MAKERS_MAX:
            now = self._now_s()
            self._makers = {name: one for name, one in self._makers.items() if now < one.until_s}
        maker = self._makers[name] = _Maker(self._now_s() + MAKER_S)
        return maker

    def _end(self, name: str, maker: _Maker | None) -> None:
        if maker is not None and self._makers.get(name) is maker:
            del self._makers[name]
            maker.made.set()

    def _keep(self, name: str, value: bytes) -> bytes:
        self._bytes += len(value) - len(self._values.pop(name, b""))
        self._values[name] = value
        self._end(name, self._makers.get(name))
        while self._bytes > KEPT_BYTES and len(self._values) > 1:
            self._bytes -= len(self._values.popitem(last=False)[1])
        return value

    async def _run(self, steps: Callable[[Any], Any]) -> Any:
        return await self._threads.submit(self._service.ask_log, steps)


def check_topics(value: bytes, state: State) -> None:
    """Raises InvalidRequest for a pin by which topics have lost records that the log has.

    state:  the newest one: a partition's start never decreases, and its end neither.
    """
    try:
        pinned = msgspec.json.decode(value, type=_Pinned).topics
    except UNREADABLE:
        return  # another kind of claim
    for name, topic in pinned.items():
        for number, (start, end) in enumerate(zip(topic.starts, topic.ends, strict=False)):
            part = state.partitions.get((topic.topic_id, number))
            if part is not None and (start > part.start or end > part.readable_end):
                raise InvalidRequest(
                    f"value: {name!r}-{number} has the offsets {part.start} to {part.readable_end}, and the claim says "
                    f"{start} to {end}"
                )


def check_claim(value: bytes, newest: int, now_ms: int) -> None:
    """Raises InvalidRequest for a value that is too large, or would never expire."""
    if len(value) > VALUE_BYTES_MAX:
        raise InvalidRequest(f"value: {len(value):,} bytes, and a claim has {VALUE_BYTES_MAX:,} at most")
    try:
        claim = msgspec.json.decode(value, type=_Claim)
    except UNREADABLE as error:
        raise InvalidRequest(f"value: a claim is JSON with the fields `version` and `made_ms`: {error}") from error
    if claim.version > newest:
        raise InvalidRequest(f"value: the version {claim.version} is beyond {newest}, the newest one of the log")
    if not 0 < claim.made_ms <= now_ms + AHEAD_MS_MAX:
        raise InvalidRequest(
            f"value: it was made at {claim.made_ms} ms, more than a day after the coordinator's time: check the clock of "
            "this client"
        )
