"""Which log a storage has: by `meta/format`, whose disk may not be mounted, or may have another log."""

from __future__ import annotations

from typing import NamedTuple

from spark_log.errors import LogRestored
from spark_log.journal.storage.log_format import parse_format
from spark_log.journal.store_operations import Get, Steps
from spark_log.roots.broker_roots import check_own_file
from spark_log.store.object_names import FORMAT_KEY


class LogIdentity(NamedTuple):
    """Which log a view is of."""

    cluster_id: str
    url: str
    """The URL of its storage."""
    is_mirror: bool = False
    """Whether this process copies to it, or makes a log of it: nobody else writes checkpoints there."""
    is_direct: bool = False
    """A get costs almost nothing."""


def check_is_there(log: LogIdentity | None) -> Steps[None]:
    """Raise WrongRoot if the storage has another log, or none: its disk is not mounted, or another one is there."""
    if log is not None:
        check_own_file((yield Get(FORMAT_KEY)), log.url, log.cluster_id)


def check_is_no_mirror(log: LogIdentity | None) -> Steps[None]:
    """Raise LogRestored if a mirror is in the place of the log: until it is recovered, it keeps its own checkpoints."""
    if log is None or log.is_mirror or (data := (yield Get(FORMAT_KEY))) is None:
        return
    if url := parse_format(data, log.url).mirrors:
        raise LogRestored(
            f"{log.url} is a copy of {url}, which gets no checkpoints but its own: stop this process until the copy has "
            "become a log, as by `pylog recover`; if it used the log that was there before, compare its commits"
        )


def restored_error(what: str) -> LogRestored:
    return LogRestored(
        f"{what} disappeared from the log: an older copy of the log was restored; restart this process, and compare "
        "its commits with the log"
    )
