"""`meta/format` of a mirror that takes the place of its lost log, also if the mirror has lost the file.

Then a record of a coordinator and the roots of the log's brokers have the id, and these roots also the URL of the log.
Otherwise the operator gives the id.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import SystemRandom
from typing import Any

import msgspec

from spark_log.errors import InvalidRequest, NoLog
from spark_log.journal.context import Context
from spark_log.journal.journal import Journal
from spark_log.journal.storage.log_format import FORMAT_VERSION, Format, put_format
from spark_log.journal.storage.log_remains import find_remains, has_metadata, is_broker_root, remains_error
from spark_log.journal.storage.opening import open_view
from spark_log.journal.storage.storage_log import StorageLog
from spark_log.journal.store_operations import OWN_ROOT, Stores, run
from spark_log.recovery.log_id import (
    RECORD,
    choose_id,
    id_in_records,
    ids_in_checkpoints,
    ids_of_brokers,
    log_of_brokers,
)
from spark_log.roots.broker_roots import Roots
from spark_log.roots.root_options import RootOptions
from spark_log.runtime.clock import SystemClock
from spark_log.store.base import ObjectStore
from spark_log.store.object_names import CHECKPOINTS, FORMAT_KEY, LOG, listed
from spark_log.store.probe import probe_once
from spark_log.store.retry import with_retries

UNKNOWN = "its lost log"
"""In place of the URL of the log, if nothing has it."""


def open_mirror(
    store: ObjectStore, options: Mapping[str, Any] | None, cluster_id: str, *, force: bool, dry_run: bool
) -> Journal:
    """Open a mirror.  If it has lost the file, that is written again, unless `dry_run`.

    options, force:  as for `recover`.
    cluster_id:      given by the operator; empty: nothing.
    Raises NoLog if nothing is there; UnsupportedVersion for the folder of a broker or a quorum, and for a log without
    metadata; InvalidRequest if the id is not certain, if this is the log itself, or if the log is to be looked for, and
    nothing has its URL.
    """
    if store.size(FORMAT_KEY) is not None:
        return Journal.open(store, create=False)
    clock = SystemClock()
    store = with_retries(store, clock)
    stores = Stores.of(store)
    names = run(find_remains(), stores, clock)
    if not names:
        raise NoLog(f"there is no mirror at {store.url}: it has no {FORMAT_KEY}")
    if is_broker_root(names) or not has_metadata(names):
        raise remains_error(store.url, names)
    brokers = run(open_view(), stores, clock).state.brokers
    roots = Roots(store, "", lambda: brokers, lambda name: (OWN_ROOT,), RootOptions.of(options or {}, "disk"), clock)
    lost = log_of_brokers(roots)
    if lost == store.url:
        raise InvalidRequest(f"{store.url} is the log of its brokers, not a mirror: run `pylog repair -u {store.url}`")
    if not lost and not force:
        raise InvalidRequest(
            f"{store.url}/{FORMAT_KEY} is missing, and nothing says of which log this is a mirror, so that log cannot be "
            f"looked for: if it is there, run `pylog mirror set {store.url} -u LOG` with its URL; if it is lost, run `pylog "
            f"recover --force -u {store.url}`"
        )
    known = ids_of_brokers(roots)
    if recorded := run(id_in_records(listed(store, LOG)), stores, clock):
        known[RECORD] = recorded
    known |= run(ids_in_checkpoints(listed(store, CHECKPOINTS)), stores, clock)
    context = Context(clock, SystemRandom())
    command = "pylog recover --force" if force else "pylog recover"
    _, found = choose_id(store.url, known, cluster_id, "", command)
    found = found or context.unique() + context.unique()
    form = Format(pylog=FORMAT_VERSION, cluster_id=found, created_ms=clock.now_ms(), probed="")
    form = form.of_mirror(lost or UNKNOWN)
    if not dry_run:
        run(put_format(form, store.url), stores, clock)
    return Journal(StorageLog(context, form, store), stores, one_root=True)


def format_of_own(mirror: Journal, log: StorageLog) -> Format:
    """The format of a mirror that becomes a separate log.  `meta/format` still says that it is a mirror."""
    fingerprint = mirror.metadata.fingerprint()
    if fingerprint != log.form.probed:  # here, so that the records do not change `meta/format`
        probe_once(mirror.metadata, nonce=log.context.unique())
    return msgspec.structs.replace(log.form.of_mirror(""), probed=fingerprint)
