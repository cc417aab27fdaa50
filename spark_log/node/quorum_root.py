"""The folder with the records of a log whose metadata is in a quorum: it has a file that names the quorum.

Another log must not use the folder: its upkeep would delete the objects of this one.
"""

from __future__ import annotations

from random import Random, SystemRandom

from spark_log.clock import Clock, SystemClock
from spark_log.errors import InconsistentClusterId, InvalidRequest, LogMoved
from spark_log.journal.journal import Journal
from spark_log.journal.log_format import QUORUM_VERSION, Format, find_format, parse_format, put_format
from spark_log.journal.object_names import DATA, FORMAT_KEY
from spark_log.journal.store_operations import Get, Steps, Stores, run
from spark_log.metadata.state import State
from spark_log.net.address import SCHEME
from spark_log.node.quorum_founding import check_is_adopted, end_adoption, name_again
from spark_log.store.base import ObjectStore
from spark_log.store.probe import probe
from spark_log.store.retry import with_retries
from spark_log.threads import SYSTEM_THREADS, Threads


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

        Raises InvalidRequest if the storage has a log with metadata that no quorum is adopting.
        """
        form = self._format()
        if form is None:
            return
        if not form.quorum:
            check_is_adopted(self._journal())
        self._check_cluster(form)

    def is_ours(self, founding: str) -> bool:
        """Whether no other quorum has replaced the one with this id."""
        form = self._format()
        if form is not None and not form.quorum:
            form = name_again(self._journal(), form, founding)
        is_ours = form is None or (bool(form.quorum) and form.founding == founding)
        self._is_claimed &= is_ours
        return is_ours

    def _format(self) -> Format | None:
        data = run(_read_format(self.store.url), self._stores, self._clock)
        return None if data is None else parse_format(data, self.store.url)

    def _journal(self) -> Journal:
        """Of the log that is on the storage itself."""
        return Journal.open(self.store, create=False, clock=self._clock, rng=self._rng, threads=self._threads)

    def _check_cluster(self, form: Format) -> None:
        if form.cluster_id != self._cluster_id:
            raise InconsistentClusterId(
                f"{self.store.url} has the records of the log {form.cluster_id}, and this quorum has the log "
                f"{self._cluster_id}: give its nodes another folder, or format their directories with that id"
            )

    def claim(self, state: State, founding: str, address: str, nonce: str) -> None:
        """Write the file that names the quorum, if it is missing.  A leader calls this before it begins to lead.

        state:     the final state.  At version 0 the quorum has no log yet, so there must be no records.
        founding:  the id of the quorum, as in a snapshot.
        nonce:     a unique name for a probe of put-if-absent, on which the claims of clients depend.
        Raises the errors of `check`, LogMoved if another quorum has replaced this one, StoreNotExclusive, and the
        errors of the storage.
        """
        if not state.version:
            self._check_begins()
        if self._is_claimed:
            return
        form = self._format() or self._put_format(address, nonce)
        self._check_cluster(form)
        if not form.quorum:
            journal = self._journal()
            form = name_again(journal, form, founding)
            if not form.quorum:
                form = end_adoption(journal, state, form, founding)
        if form.founding != founding:
            raise replaced_error(self.store.url)
        self._is_claimed = True

    def _check_begins(self) -> None:
        form = self._format()
        if form is not None and not form.quorum:
            check_is_adopted(self._journal())
        if self.store.list(DATA):
            raise InvalidRequest(
                f"{self.store.url} has records, and this quorum has no log: were its nodes formatted again? Upkeep of a "
                "new log would delete the records. Start the nodes with their former directories, or run `pylog quorum "
                "adopt` or `restore`, or give them another, empty folder"
            )

    def _put_format(self, address: str, nonce: str) -> Format:
        probe(self.store, nonce=nonce)
        form = Format(
            pylog=QUORUM_VERSION,
            cluster_id=self._cluster_id,
            created_ms=self._clock.now_ms(),
            probed="",
            quorum=SCHEME + address,
        )
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


def _read_format(url: str) -> Steps[bytes | None]:
    data: bytes | None = yield Get(FORMAT_KEY)
    return data if data is not None else (yield from find_format(url))
