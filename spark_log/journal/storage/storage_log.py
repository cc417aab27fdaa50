"""The metadata log on shared storage: implements `MetadataLog` with the protocol in `commit_protocol.py`.

`meta/format` identifies the folder: one line of JSON with the format's version, the log's id, and the store library
with which put-if-absent was probed.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from spark_log.configs.settings import cluster_config
from spark_log.errors import InvalidRequest, NoLog, StorageUnavailable
from spark_log.journal.context import Context, Proposal, is_led_elsewhere
from spark_log.journal.metadata_log import LogStatus
from spark_log.journal.other_lines import in_line
from spark_log.journal.record_wait import is_quick
from spark_log.journal.storage import checkpointing, clock_check, commit_protocol, opening
from spark_log.journal.storage.claims import claim, claimed, drop_claims
from spark_log.journal.storage.disk_reserve import has_reserve, keep_reserve
from spark_log.journal.storage.log_format import FORMAT_VERSION, Format, find_format, parse_format, put_format
from spark_log.journal.storage.log_format import check_is_here as check_is_stored_here
from spark_log.journal.storage.log_identity import LogIdentity, check_is_there
from spark_log.journal.storage.opening import View
from spark_log.journal.store_operations import (
    Answered,
    Changes,
    Get,
    List,
    Put,
    Steps,
    Stores,
    run,
)
from spark_log.log_lines import logger
from spark_log.metadata.decide_coordinators import check_is_here
from spark_log.metadata.formats.checkpoint_format import rebased
from spark_log.metadata.state import State
from spark_log.store.base import ObjectStore
from spark_log.store.mounts import is_mounted
from spark_log.store.object_names import CHECKPOINTS, FORMAT_KEY, checkpoint_version
from spark_log.store.open import log_around, mount_point_of_url, unmounted_point_of_url
from spark_log.store.probe import probe_once

RELIST_MS = 60_000
"""A waiting reader lists the checkpoints at least this often: its clock may stop while the machine sleeps."""
IDLE_MS, IDLE_MS_ON_BUCKETS = 1000, 600_000
"""A process that has written nothing for so long compares the last records with its state before it writes."""
_points: dict[str, str] = {}
"""Where the disks of the logs that this process has opened were mounted, by the URLs of the logs."""
READ_AHEAD = 32
"""Versions that are read together with the checkpoint when a log on an object store is opened."""


class StorageLog:
    """The metadata log on a store that all processes share.  A view has a state and the newest checkpoint's name."""

    is_served = False
    reads_newest = True

    def __init__(
        self,
        context: Context,
        form: Format,
        store: ObjectStore,
        listed: Sequence[str] | None = None,
        *,
        opens_later: bool = False,
        is_mirror: bool = False,
    ) -> None:
        """
        listed:       the checkpoints, if they were just listed.
        opens_later:  `open` may be called long after this, or never.
        is_mirror:    this process makes a log of a mirror: `meta/format` says still that it is one.
        """
        self.context = context
        self.form, self._store, self._listed = form, store, listed
        self._identity = LogIdentity(form.cluster_id, store.url, is_mirror, store.local)
        self._probed, self._is_format_old = False, opens_later
        """The second: whether `form` may have been read long ago."""

    @property
    def cluster_id(self) -> str:
        return self.form.cluster_id

    # ------------------------------------------------------------------------------------------------------------- reading

    def open(self) -> Steps[View]:
        """Reads ahead on a bucket, where requests are slow and cheap.

        Raises WrongRoot as `check_is_there` does, unless the format was just read.
        """
        now, ahead = self.context.clock.monotonic_ms(), 0 if self._store.local else READ_AHEAD
        listed, self._listed = self._listed, None
        if self._is_format_old:
            yield from check_is_there(self._identity)
        view = yield from opening.open_view(listed, ahead)
        self._is_format_old = True
        return view._replace(listed_ms=now, log=self._identity, in_line_ms=now)

    def refresh(self, view: View) -> Steps[View]:
        now, together = self.context.clock.monotonic_ms(), self._reads_together(view)
        after = yield from opening.refresh(view, together=together)
        return (yield from self._to_the_end(view, after, together))._replace(listed_ms=now)

    def peek(self, view: View) -> Steps[View]:
        if not self._reads_together(view):
            return (yield from self.refresh(view))
        now = self.context.clock.monotonic_ms()
        after = yield from opening.peek(view)
        if not self._is_young(view):
            return (yield from self.refresh(after))
        return after if after.unconfirmed is not None else after._replace(listed_ms=now)

    def look(self, view: View) -> Steps[View]:
        now, together = self.context.clock.monotonic_ms(), self._reads_together(view)
        relist = now - view.listed_ms > RELIST_MS or not self._is_young(view)
        after = yield from opening.poll(view, relist, together, self._store.local)
        after = yield from self._to_the_end(view, after, together)
        return view if after is view else after._replace(listed_ms=now)

    def follow(self, view: View, told: Answered | Changes) -> Steps[View]:
        after = yield from opening.follow(view, told)
        return after._replace(listed_ms=view.listed_ms)

    def newer(self, one: View, other: View) -> View:
        """The newer state, with the newest checkpoint that neither view found damaged."""
        newer, damaged = max(one, other, key=lambda view: view.state.version), one.damaged | other.damaged
        checkpoint = max((name for name in (one.checkpoint, other.checkpoint) if name not in damaged), default="")
        listed_ms = max(one.listed_ms, other.listed_ms)
        return newer._replace(checkpoint=checkpoint, damaged=damaged, listed_ms=listed_ms, unconfirmed=None)

    def rebased(self, view: View, before: View, kept: View) -> View:
        """`view`, which follows from `before`, with the columns of `kept`, which is `before` after its checkpoint."""
        unconfirmed = view.unconfirmed
        if unconfirmed is not None:
            unconfirmed = unconfirmed._replace(state=rebased(unconfirmed.state, before.state, kept.state))
        return view._replace(state=rebased(view.state, before.state, kept.state), unconfirmed=unconfirmed)

    def state_at(self, version: int) -> Steps[State | None]:
        return (yield from opening.state_at(version))

    def _reads_together(self, view: View) -> bool:
        """Whether fewer round trips matter, and the view is far too young for records after it to have been deleted."""
        return not self._store.local and self._is_young(view)

    def _is_young(self, view: View) -> bool:
        """Whether the checkpoints were listed far too recently for a record after the view to have been deleted."""
        age = self.context.clock.monotonic_ms() - view.listed_ms
        return age < cluster_config(view.state.configs, "gc.fence.age.ms") // 4

    def _to_the_end(self, before: View, after: View, together: bool) -> Steps[View]:
        """Read on from `after` if its reads took so long that records may have been deleted meanwhile."""
        return (yield from opening.refresh(after)) if together and not self._is_young(before) else after

    # ------------------------------------------------------------------------------------------------------------- writing

    def propose(self, view: View, commands: Sequence[Proposal]) -> Steps[View]:
        if self.form.mirrors and (data := (yield Get(FORMAT_KEY))) is not None:
            self.form = parse_format(data, self._store.url)  # it may have been recovered
        if self.form.mirrors:
            self.form.check_restored(self._store.url)
            check_is_here(view.state.coordinator)
            raise InvalidRequest(
                f"{self._store.url} is a mirror of {self.form.mirrors}, and `pylog mirror run` alone changes it: change "
                f"that log, or, if it is lost, run `pylog recover -u {self._store.url}`"
            )
        if not is_led_elsewhere(view.state, self.context):
            yield from self._check_store()
            view = yield from self._in_line(view, IDLE_MS if self._store.local else IDLE_MS_ON_BUCKETS)
            if is_quick(self._store):  # another put would be lost if others have written
                with suppress(StorageUnavailable):  # the commit itself says what its errors mean
                    view = yield from opening.poll(view, relist=False)
        after = yield from commit_protocol.propose(view, commands, self.context)
        return after._replace(listed_ms=view.listed_ms, in_line_ms=self.context.clock.monotonic_ms())

    def _in_line(self, view: View, idle_ms: int = IDLE_MS) -> Steps[View]:
        """The view, or the log opened again if it has other records by now, which this process has not noticed."""
        now = self.context.clock.monotonic_ms()
        if now - view.in_line_ms > idle_ms:
            view = (yield from in_line(view))._replace(in_line_ms=now)
        return view

    def claim(self, name: str, value: bytes) -> Steps[bytes]:
        return (yield from claim(name, value))

    def claimed(self, name: str) -> Steps[bytes | None]:
        return (yield from claimed(name))

    def expire_claims(self, state: State) -> Steps[int]:
        age_ms = cluster_config(state.configs, "gc.fence.age.ms")
        return (yield from drop_claims(state.fence, self.context.clock.now_ms() - age_ms))

    def check_clock(self, state: State) -> Steps[None]:
        context, clock = self.context, self.context.clock
        stamp = clock_check.stamp_of(clock)
        yield from clock_check.check_clock(state, stamp, clock, context.watch, context.unique)

    def _check_store(self) -> Steps[None]:
        """Probe put-if-absent again, before a change, if the store's library differs from the probed one.

        Raises SyncFailed for a disk that is not trusted any more: a repeat of an earlier change would be acknowledged.
        """
        fingerprint = self._store.fingerprint()
        if self._probed:
            return
        if fingerprint != self.form.probed:
            probe_once(self._store, nonce=self.context.unique())
            self.form = msgspec.structs.replace(self.form, probed=fingerprint)
            if (yield from self.is_still_there()):  # otherwise another log would get the id of this one
                yield Put(FORMAT_KEY, (self.form.encode(),))
        self._probed = True

    # -------------------------------------------------------------------------------------------------------- checkpoints

    def is_due(self, view: View) -> bool:
        return checkpointing.is_due(view)

    def look_again(self, view: View) -> Steps[View]:
        return (yield from self._in_line((yield from checkpointing.look_again(view))))

    def checkpoint(self, view: View) -> Steps[View]:
        view = yield from checkpointing.look_again(view)
        is_new = checkpoint_version(view.checkpoint) >= view.state.version and not checkpointing.is_due(view)
        if is_new and not (yield from checkpointing.lost_checkpoint()):
            return view
        view, _ = yield from checkpointing.checkpoint((yield from self._in_line(view)), self.context)
        return view

    def checkpoint_from(self, view: View, version: int) -> Steps[View]:
        for _ in range(opening.KEPT_CHECKPOINTS):
            kept = (yield List(CHECKPOINTS))[-opening.KEPT_CHECKPOINTS :]
            oldest = checkpoint_version(kept[0]) if len(kept) == opening.KEPT_CHECKPOINTS else 0
            if oldest >= version:
                break
            view, _ = yield from checkpointing.checkpoint((yield from self._in_line(view)), self.context)
        return view

    def truncate(self, view: View) -> Steps[int]:
        return (yield from checkpointing.truncate(view, self.context))

    def forget(self, view: View, upto: int) -> Steps[tuple[View, bool]]:
        return (yield from checkpointing.forget((yield from self._in_line(view)), self.context, upto))

    def checkpoint_and_truncate(self, view: View, fence_before: int) -> Steps[View]:
        return (yield from checkpointing.checkpoint_and_truncate(view, self.context, fence_before))

    def status(self) -> Steps[LogStatus]:
        return LogStatus(checkpoint_version(opening.newest_checkpoint((yield List(CHECKPOINTS)))))

    def is_still_there(self) -> Steps[bool]:
        data: bytes | None = yield Get(FORMAT_KEY)
        return data is not None and parse_format(data, self._store.url).cluster_id == self.cluster_id


def open_storage_log(stores: Stores, context: Context, *, create: bool, opens_later: bool = False) -> StorageLog:
    """The metadata log in a store; if there is none and `create`, a new one.

    opens_later:  as of `StorageLog`.
    Raises NoLog, also for a mirror that has nothing yet; UnsupportedVersion, StoreNotExclusive.
    """
    url = stores.metadata.url
    data, listed = run(_look_in(), stores, context.clock)
    if data is None:
        data = run(find_format(url), stores, context.clock)
    if data is None:
        if not create:
            check = "the URL, and whether its disk is mounted" if url.startswith("file:") else "the URL"
            raise NoLog(
                f"there is no log at {url}: check {check}, or create a log with `pylog -u {url} topic create NAME`"
            )
        cluster_id = context.unique() + context.unique()
        data = begin_log(stores, context, cluster_id)
        if not url.startswith("memory:") and parse_format(data, url).cluster_id == cluster_id:
            logger.warning("created a new log at %s, because there was none%s", url, _inside(url))
    form = parse_format(data, url)
    check_is_stored_here(form, url)
    if point := mount_point_of_url(url):
        _points[url] = point
    if form.mirrors and not listed:
        form.check_restored(url)
        raise NoLog(f"the mirror at {url} has nothing of {form.mirrors} yet: wait for `pylog mirror run`")
    return StorageLog(context, form, stores.metadata, None if opens_later else listed, opens_later=opens_later)


def _inside(url: str) -> str:
    """The end of a warning about a new log in the folder of another one, if a user takes a folder for a topic."""
    around = log_around(url)
    return f"; it is in the folder of the log at {around}, whose topics are not folders" if around else ""


def check_mounted(url: str) -> None:
    """Raises NoLog for a folder on a disk that is not mounted, as `begin_log` does."""
    if point := unmounted_point_of_url(url):
        raise NoLog(
            f"there is no log at {url}: {point} is in /etc/fstab, and is not mounted on {platform.node()}: mount it"
        )
    if (point := _points.get(url, "")) and not is_mounted(point):
        raise NoLog(
            f"there is no log at {url}: nothing is mounted at {point} on {platform.node()} any more: mount the disk "
            "that was there when this process opened the log"
        )


def begin_log(stores: Stores, context: Context, cluster_id: str, mirrors: str = "") -> bytes:
    """Probe the store of the metadata and write `meta/format`; returns its bytes, ours or another process's.

    Raises NoLog if the folder is on a disk that is not mounted, as far as `/etc/fstab` tells, or was when this process
    opened the log there: the log is on that disk.
    """
    store = stores.metadata
    check_mounted(store.url)
    probe_once(store, nonce=context.unique())
    form = Format(
        pylog=FORMAT_VERSION,
        cluster_id=cluster_id,
        created_ms=context.clock.now_ms(),
        probed=store.fingerprint(),
    )
    data = run(put_format(form.of_mirror(mirrors), store.url), stores, context.clock)
    if has_reserve(store):
        run(keep_reserve(), stores, context.clock)
    return data


def _look_in() -> Steps[tuple[bytes | None, Sequence[str]]]:
    """The bytes of `meta/format`, and the checkpoints."""
    found: tuple[bytes | None, Sequence[str]] = tuple((yield [Get(FORMAT_KEY), List(CHECKPOINTS)]))
    return found
