"""The folder with the records of a log whose metadata is in a quorum: it has a file that names the quorum.

Another log must not use the folder: its maintenance would delete the objects of this one.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from random import Random, SystemRandom

from spark_log.errors import CorruptObject, InconsistentClusterId, InvalidRequest, LogMoved, WrongRoot
from spark_log.http.address import SCHEME
from spark_log.journal.context import Context
from spark_log.journal.journal import Journal
from spark_log.journal.storage.log_format import FORMAT_VERSION, QUORUM_VERSION, Format, parse_format, put_format
from spark_log.journal.storage.log_remains import find_remains, has_metadata, is_broker_root, remains_error
from spark_log.journal.storage.storage_log import StorageLog, check_mounted
from spark_log.journal.store_operations import Get, Steps, Stores, run
from spark_log.log_lines import logger
from spark_log.metadata.decide_coordinators import moved_to
from spark_log.metadata.restores import is_former
from spark_log.metadata.state import State
from spark_log.roots.broker_roots import not_there
from spark_log.runtime.clock import Clock, SystemClock
from spark_log.runtime.threads import SYSTEM_THREADS, Threads
from spark_log.server.quorum.founding import check_is_adopted, end_adoption, name_again, not_continued_error
from spark_log.server.quorum.root_snapshots import newest_epoch, newest_snapshot
from spark_log.store.base import ObjectStore
from spark_log.store.object_names import CHECKPOINTS, DATA, FORMAT_KEY, LOG, SNAPSHOTS
from spark_log.store.probe import probe_once
from spark_log.store.retry import with_retries


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimant:
    """A leader of the quorum."""

    state: State
    """The final one.  At version 0 the quorum has no log yet."""
    founding: str
    """The id of the quorum, as in a snapshot."""
    address: str
    """For clients."""


class QuorumRoot:
    """The folder, for one quorum."""

    def __init__(
        self,
        store: ObjectStore,
        cluster_id: str,
        *,
        clock: Clock | None = None,
        rng: Random | None = None,
        threads: Threads = SYSTEM_THREADS,
    ) -> None:
        """
        clock, rng:  None: the system's.
        """
        self.store = store
        self._cluster_id = cluster_id
        self._clock, self._rng, self._threads = clock or SystemClock(), rng or SystemRandom(), threads
        self._stores = Stores.of(with_retries(store, self._clock, self._rng))
        self._is_claimed = False

    def check(self) -> None:
        """Raise InconsistentClusterId if the storage has another log.

        Raises InvalidRequest if the storage has a log with metadata that no quorum is adopting, and UnsupportedVersion
        for the root of a broker.
        """
        form = self._format()
        self._check_storage(form)
        if form is not None:
            self._check_cluster(form)

    def claim(self, leader: Claimant, nonce: str) -> None:
        """Write the file that names the quorum, if it is missing.  A leader calls this before it begins to lead.

        nonce:  a unique name for a probe of put-if-absent, on which the claims of clients depend.
        Raises the errors of `check`, LogMoved if another quorum has replaced this one, WrongRoot if nothing is there
        although the quorum has a log, NoLog if the disk is not mounted, StoreNotExclusive, and the errors of the
        storage.
        """
        if not leader.state.version:
            self._check_begins()
        if self._is_claimed:
            return
        form = self._format() or self._written_again(leader)
        if form is None and leader.state.version:  # a leader has written it before the first version
            raise self._is_empty(leader)
        if form is None:
            form = self._put_format(leader, SCHEME + leader.address, nonce)
        self._check_cluster(form)
        if not form.quorum:
            journal = self._journal()
            form = name_again(journal, form, leader.founding)
            if not form.quorum:
                form = end_adoption(journal, leader.state, form, leader.founding)
        self._check_is_ours(form, leader)
        with suppress(CorruptObject):
            self._check_not_replaced(leader)
        self._is_claimed = True

    def keep(self, leader: Claimant) -> None:
        """Write the file again, if it is lost.  A leader calls this now and then.

        Raises LogMoved if another quorum has replaced this one, InvalidRequest or InconsistentClusterId if another log
        has the folder: then it must not lead.  Raises WrongRoot if nothing is there, as without its disk.
        """
        was_claimed, self._is_claimed = self._is_claimed, False
        form = self._format() or self._written_again(leader)
        if form is None:
            self._is_claimed = was_claimed
            raise not_there(self.store.url)
        self._check_cluster(form)
        is_named = bool(form.quorum) and form.founding == leader.founding
        if not form.quorum:
            form = name_again(journal := self._journal(), form, leader.founding)
            if not form.quorum:
                raise not_continued_error(journal, has_led=True)
        self._check_is_ours(form, leader)
        if not is_named:
            with suppress(CorruptObject):
                self._check_not_replaced(leader)
        self._is_claimed = was_claimed

    def _format(self) -> Format | None:
        data: bytes | None = run(_read_format(), self._stores, self._clock)
        return None if data is None else parse_format(data, self.store.url)

    def _remains(self) -> list[str]:
        return run(find_remains(), self._stores, self._clock)

    def _journal(self) -> Journal:
        """The journal of the log that is on the storage itself, which may have lost its format."""
        context = Context(self._clock, self._rng, threads=self._threads)
        form = self._format() or Format(
            pylog=FORMAT_VERSION, cluster_id=self._cluster_id, created_ms=self._clock.now_ms(), probed=""
        )
        return Journal(StorageLog(context, form, self._stores.metadata), self._stores)

    def _check_cluster(self, form: Format) -> None:
        if form.cluster_id != self._cluster_id:
            raise InconsistentClusterId(
                f"{self.store.url} has the records of the log {form.cluster_id}, and this quorum has the log "
                f"{self._cluster_id}: give its nodes another folder, or format their directories with that id. If that "
                "log was begun by mistake in the folder of this quorum, its maintenance deletes the records of this quorum: "
                f"stop its processes, and delete {FORMAT_KEY}, {LOG} and {CHECKPOINTS} there"
            )

    def _check_storage(self, form: Format | None) -> None:
        """Raises as `check` does, for a log on storage and for the root of a broker."""
        names = self._remains() if form is None else []
        if is_broker_root(names):
            raise remains_error(self.store.url, names)
        if has_metadata(names) or (form is not None and not form.quorum):
            check_is_adopted(self._journal())

    def _check_begins(self) -> None:
        self._check_storage(self._format())
        if found := next((name for name in self._remains() if name.startswith((DATA, SNAPSHOTS))), ""):
            raise InvalidRequest(
                f"{self.store.url} has records ({found}), and this quorum has no log: were its nodes formatted again? "
                "Maintenance of a new log would delete the records. Start the nodes with their former directories, or run "
                "`pylog quorum adopt` or `restore`, or give them another, empty folder"
            )

    def _written_again(self, leader: Claimant) -> Format | None:
        """The file, which was lost.  None if nothing of a log is there: the folder is new, or its disk is away.

        Raises LogMoved if the newest copy of the metadata is that of a later quorum, InvalidRequest for records of
        another log, and UnsupportedVersion for a log on storage that no quorum has.
        """
        names, url = self._remains(), SCHEME + leader.address
        if not names:
            return None
        copies = [name for name in names if name.startswith(SNAPSHOTS)]
        self._check_not_replaced(leader)
        if has_metadata(names):
            url = moved_to(self._journal().state.coordinator)
        elif not copies and not any(name in leader.state.objects or name in leader.state.dropped for name in names):
            raise InvalidRequest(
                f"{self.store.url} has {names[0]}, which this quorum does not know: the folder has the records of "
                "another log, which maintenance would delete; give the nodes the folder of this log"
            )
        if is_broker_root(names) or not url.startswith(SCHEME):
            raise remains_error(self.store.url, names)
        logger.warning("%s/%s was lost, and is written again", self.store.url, FORMAT_KEY)
        return self._put(leader, url)

    def _check_is_ours(self, form: Format, leader: Claimant) -> None:
        """Write the file again if it names a quorum that this one has replaced, whose leader hung before it wrote it.

        Raises LogMoved if another quorum has replaced this one.
        """
        if form.founding == leader.founding:
            return
        if not is_former(leader.state, form.founding):
            raise replaced_error(self.store.url)
        logger.warning("%s/%s named a quorum that was replaced, and is written again", self.store.url, FORMAT_KEY)
        self._stores.metadata.put(FORMAT_KEY, (form.of_quorum(form.quorum, leader.founding).encode(),))

    def _check_not_replaced(self, leader: Claimant) -> None:
        """Raise LogMoved if the newest copy of the metadata is that of a later quorum: it may have begun while this
        process slept, before it wrote the file.  Raises CorruptObject if no copy can be read.
        """
        if newest_epoch(self.store) > leader.state.coordinator.epoch:
            newest = newest_snapshot(self.store)
            if newest is not None and is_former(newest.state, leader.founding):
                raise replaced_error(self.store.url)

    def _put_format(self, leader: Claimant, url: str, nonce: str) -> Format:
        check_mounted(self.store.url)
        probe_once(self.store, nonce=nonce)
        return self._put(leader, url)

    def _is_empty(self, leader: Claimant) -> WrongRoot:
        line = self._new_format(leader, SCHEME + leader.address).encode().decode().strip()
        return WrongRoot(
            f"{self.store.url} is empty, and the records of this quorum's log, which has version {leader.state.version}, "
            "were there: is its disk mounted? If the disk is lost, and an empty one is in its place, put this line into "
            f"{FORMAT_KEY} there, and a node leads: {line}"
        )

    def _new_format(self, leader: Claimant, url: str) -> Format:
        return Format(
            pylog=QUORUM_VERSION,
            cluster_id=self._cluster_id,
            created_ms=self._clock.now_ms(),
            probed="",
            quorum=url,
            founding=leader.founding,
        )

    def _put(self, leader: Claimant, url: str) -> Format:
        form = self._new_format(leader, url)
        return parse_format(run(put_format(form, self.store.url), self._stores, self._clock), self.store.url)


def replaced_error(url: str) -> LogMoved:
    """For the clients of a quorum that does not lead any more, and its operators.

    url:  of the folder with the records.
    """
    return LogMoved(
        f"{url} belongs to a quorum that has replaced this one, by `pylog quorum restore` or `adopt`: open the log by the "
        "addresses of that, and format the directory of this node again, without voters, to join it",
        url=url,
    )


def _read_format() -> Steps[bytes | None]:
    data: bytes | None = yield Get(FORMAT_KEY)
    return data
