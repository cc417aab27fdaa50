"""The follower: fetches, appends what it gets, truncates what diverges, downloads snapshots.

It has one request under way at a time, and sends it when everything before is durable: so each fetch acknowledges what
it says.  A replica that is not a voter and knows no leader asks a voter with the same request.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_log.quorum.core import Core
from spark_log.quorum.messages import (
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    Position,
    ReplicaKey,
)
from spark_log.quorum.ready import SnapshotPart
from spark_log.quorum.roles import Download, Follower, Prospective, Unattached


def follow(core: Core, leader: ReplicaKey, answer: FetchResponse | FetchSnapshotResponse | None = None) -> None:
    """Fetch from the leader of this epoch, unless it has ended the epoch.  A download that waited for it continues.

    answer:  of the leader, which came later than the fetch timeout.  It is taken in: on a slow network, the next large
             one would come as late.
    """
    if core.ended_epoch == core.epoch:
        return
    download = core.role.download if isinstance(core.role, Prospective | Unattached) else None
    core.role = role = Follower(leader, core.now_ms + draw_fetch_timeout_ms(core), download=download)
    if answer is not None and may_fetch(core):
        take(core, role, answer)
    maybe_fetch(core, role)


def draw_fetch_timeout_ms(core: Core) -> int:
    return core.draw_ms(core.config.fetch_timeout_ms, 1.5)


def may_fetch(core: Core) -> bool:
    """Whether everything that a fetch would acknowledge is durable."""
    return core.is_durable


def maybe_fetch(core: Core, role: Follower) -> None:
    """Send the next request, if none is under way and the disk has everything."""
    if role.asked_ms is not None or not may_fetch(core):
        return
    role.asked_ms = core.now_ms
    download = role.download
    if download is None:
        core.send(fetch_request(core, role.leader, role.confirm))
    else:
        core.send(
            FetchSnapshotRequest(
                source=core.key,
                target=role.leader,
                epoch=core.epoch,
                snapshot=download.snapshot,
                start=download.end,
            )
        )


def fetch_request(core: Core, target: ReplicaKey, confirms: int = 0) -> FetchRequest:
    return FetchRequest(
        source=core.key,
        target=target,
        epoch=core.epoch,
        end=core.log.position,
        high_watermark=core.high_watermark,
        confirms=confirms,
    )


def tick(core: Core, role: Follower) -> None:
    """Repeat a request that has no answer."""
    if role.asked_ms is not None and role.asked_ms + core.config.retry_ms <= core.now_ms:
        role.asked_ms = None
        maybe_fetch(core, role)


def _answered(core: Core, role: Follower) -> None:
    role.asked_ms, role.has_fetched = None, True
    role.deadline_ms = core.now_ms + draw_fetch_timeout_ms(core)


def take(core: Core, role: Follower, answer: FetchResponse | FetchSnapshotResponse) -> None:
    """Apply an answer of the leader."""
    if isinstance(answer, FetchResponse):
        fetched(core, role, answer)
    else:
        fetched_chunk(core, role, answer)


def fetched(core: Core, role: Follower, response: FetchResponse) -> None:
    """Apply an answer.  One to another position than the log's end is late, or a copy: it is ignored.  So is one that
    comes during a download, which replaces the log.
    """
    if role.download is not None or core.received is not None or not answers(core, response):
        return
    _answered(core, role)
    role.confirm = response.confirm
    if response.snapshot is not None:
        role.download = Download(response.snapshot)
    elif response.diverging is not None:
        core.truncate(common_end(core, response.diverging))
    else:
        core.log.append(response.entries)
        core.raise_high_watermark(min(response.high_watermark, core.log.end))
    maybe_fetch(core, role)


def answers(core: Core, response: FetchResponse) -> bool:
    """Whether it is an answer to a fetch from the present end of the log."""
    return response.end == core.log.position


def common_end(core: Core, diverging: Position) -> int:
    """Where the log may still be the leader's: the end of the leader's largest epoch that is not above ours, in the log
    where it ends earlier.
    """
    return min(core.log.end_of_epoch(diverging.epoch).offset, diverging.offset)


def fetched_chunk(core: Core, role: Follower, response: FetchSnapshotResponse) -> None:
    """Write a chunk, if it is the next one of the snapshot that is being fetched."""
    download = role.download
    if download is None or not continues(download, response):
        return
    _answered(core, role)
    if response.size is None:
        role.download = None
    else:
        download.end += len(response.data)
        core.chunk = SnapshotPart(
            snapshot=response.snapshot,
            start=response.start,
            data=response.data,
            voters=response.voters,
            is_last=download.end >= response.size,
        )
        if core.chunk.is_last:
            role.download, core.received = None, core.chunk
    maybe_fetch(core, role)


def continues(download: Download, response: FetchSnapshotResponse) -> bool:
    """Whether the chunk follows those that there are."""
    return response.snapshot == download.snapshot and response.start == download.end


def persisted(core: Core, role: Follower) -> None:
    """The disk has finished.  While it was busy, the replica could not fetch: the fetch timeout begins again."""
    if role.deadline_ms <= core.now_ms:
        role.deadline_ms = core.now_ms + draw_fetch_timeout_ms(core)
    maybe_fetch(core, role)


def next_deadline(core: Core, role: Follower) -> int | None:
    """When `tick` or the fetch timeout has something to do; None while the disk is busy."""
    if not core.is_durable:
        return None
    retry = [] if role.asked_ms is None else [role.asked_ms + core.config.retry_ms]
    return min([role.deadline_ms, *retry])


def end_delay_ms(core: Core, successors: Sequence[ReplicaKey]) -> int:
    """How long to wait before standing for election after the leader has resigned: the more up to date, the shorter."""
    place = successors.index(core.key) if core.key in successors else len(successors)
    return place * core.config.election_timeout_ms // 4
