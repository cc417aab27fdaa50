"""The folder with the records of a log whose metadata is in a quorum: it has a file that names the quorum.

Another log must not use the folder: its upkeep would delete the objects of this one.
"""

from __future__ import annotations

from random import SystemRandom

from spark_log.clock import SystemClock
from spark_log.errors import InconsistentClusterId, InvalidRequest
from spark_log.journal.log_format import QUORUM_VERSION, Format, find_format, parse_format, put_format
from spark_log.journal.object_names import DATA, FORMAT_KEY
from spark_log.journal.store_operations import Get, Steps, Stores, run
from spark_log.net.address import SCHEME
from spark_log.store.base import ObjectStore
from spark_log.store.probe import probe
from spark_log.store.retry import with_retries


class QuorumRoot:
    """The folder, for one quorum."""

    def __init__(self, store: ObjectStore, cluster_id: str) -> None:
        self.store = store
        self._cluster_id = cluster_id
        self._stores = Stores.of(with_retries(store, SystemClock(), SystemRandom()))
        self._is_ours = False

    def check(self) -> None:
        """Raises InconsistentClusterId if the storage has another log, InvalidRequest if it has one with metadata."""
        data = run(_read_format(self.store.url), self._stores, SystemClock())
        if data is not None:
            self._check(data)

    def _check(self, data: bytes) -> None:
        url, form = self.store.url, parse_format(data, self.store.url)
        if not form.quorum:
            raise InvalidRequest(
                f"{url} has a log with its metadata, which a quorum cannot take over yet: give the nodes another, empty "
                "folder, or serve that log without --quorum"
            )
        if form.cluster_id != self._cluster_id:
            raise InconsistentClusterId(
                f"{url} has the records of the log {form.cluster_id}, and this quorum has the log {self._cluster_id}: "
                "give its nodes another folder"
            )
        self._is_ours = True

    def claim(self, address: str, nonce: str, *, begins: bool) -> None:
        """Write the file that names the quorum, if it is not there.

        nonce:   a unique name for the probe of put-if-absent, which claims of clients need.
        begins:  the quorum has no log yet, so it has no records either.
        Raises as `check` does, StoreNotExclusive, and the errors of the storage.
        """
        if begins and self.store.list(DATA):
            raise InvalidRequest(
                f"{self.store.url} has records, and this quorum has no log: were its nodes formatted again? Upkeep of a "
                "new log would delete the records. Start the nodes with their former directories, or give them another, "
                "empty folder"
            )
        if self._is_ours:
            return
        probe(self.store, nonce=nonce)
        form = Format(
            pylog=QUORUM_VERSION,
            cluster_id=self._cluster_id,
            created_ms=SystemClock().now_ms(),
            probed="",
            quorum=SCHEME + address,
        )
        self._check(run(put_format(form, self.store.url), self._stores, SystemClock()))


def _read_format(url: str) -> Steps[bytes | None]:
    data: bytes | None = yield Get(FORMAT_KEY)
    return data if data is not None else (yield from find_format(url))
