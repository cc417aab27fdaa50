"""Opening the journal at a URL: on storage, or through a coordinator."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from functools import lru_cache
from os import PathLike
from typing import Any

from spark_log.client.validate import url_text
from spark_log.errors import InvalidRequest, NoLog, StorageError, StorageUnavailable
from spark_log.http.address import Target, is_coordinator, parse_target
from spark_log.journal.context import Context
from spark_log.journal.journal import Journal
from spark_log.journal.served_log import ServedLog, ServedMetadata
from spark_log.journal.storage.claims import claimed
from spark_log.journal.storage.log_format import in_quorum_error
from spark_log.journal.store_operations import Stores, run
from spark_log.log_lines import logger
from spark_log.metadata.commits.identities import identity_in
from spark_log.metadata.decide_coordinators import closed_error, moved_to
from spark_log.metadata.object_tags import tag_of_token
from spark_log.metadata.state import State
from spark_log.roots.root_options import DEFAULT_OPTIONS, RootOptions
from spark_log.rpc.client import HttpLink, check_cluster
from spark_log.rpc.messages import SERVED, ClusterInfo
from spark_log.runtime.clock import Clock, SystemClock
from spark_log.store.base import ObjectStore
from spark_log.store.open import open_store
from spark_log.store.retry import with_retries

TOKEN_VARIABLE = "PYLOG_TOKEN"


def open_journal(
    url: str | PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    token: str | None = None,
    *,
    create: bool,
    durability: str = "disk",
    client_rack: str = "",
    partial: bool = False,
) -> Journal:
    """Open the journal of the log at a URL.

    A coordinator's reply names the storage of its log, and this process opens that storage.  If a log was moved, its
    former URL leads to the new one.

    client_rack:  the rack of this process; "": unknown.
    partial:      with a coordinator, hold only the topics that callers have asked for by `Journal.require`.
    """
    url, roots = url_text(url), RootOptions.of(storage_options, durability, client_rack)
    if is_coordinator(url):
        return _served(url, roots, given_token(token), partial)
    if token is not None:
        raise InvalidRequest(
            "token: a log on storage is guarded by the storage's own permissions and takes no token; give the "
            "coordinator's address, pylog://host:9550, as the URL"
        )
    journal, former = _embedded(url, roots, create=create), set[str]()
    while (moved := moved_to(journal.state.coordinator)) and journal.link is not None:
        former.add(journal.metadata.url)
        if is_coordinator(moved):
            raise in_quorum_error(journal.metadata.url, moved)
        if moved in former:
            raise InvalidRequest(f"{url} leads to {', '.join(sorted(former))} and back: which of them has the log?")
        logger.info("%s was moved to %s", journal.metadata.url, moved)
        journal = _followed(journal, moved, roots.at(moved))
    return journal


def _followed(former: Journal, url: str, roots: RootOptions) -> Journal:
    """The journal of a log in the place to which it was moved."""
    try:
        journal = _embedded(url, roots, create=False)
    except NoLog as error:
        where = former.metadata.url
        raise NoLog(
            f"the log was moved from {where} to {url}, and nothing is there: is its disk mounted? If it is lost there, make a log "
            f"of its mirror or a backup, or open it again with what it had before the move: `pylog move --cancel --force -u {where}`"
        ) from error
    except StorageError as error:
        kind = StorageUnavailable if error.retriable else StorageError
        raise kind(
            f"the log was moved from {former.metadata.url} to {url}, which cannot be opened with the options that were "
            f"given: {error}. Give the new URL, and storage options for it"
        ) from error
    check_cluster(
        journal.cluster_id, former.cluster_id, f"the log was moved from {former.metadata.url} to {url}, which"
    )
    if journal.link is None:  # a mirror until the last write of the move
        raise closed_error(url)
    return journal


def _embedded(url: str, roots: RootOptions, *, create: bool) -> Journal:
    store = open_store(url, roots.own(), roots.durability)
    link = HttpLink(Target(()), storage=store.url)
    journal = Journal.open(store, create=create, link=link, root_options=roots)
    link.cluster_id = journal.cluster_id
    return journal


def reopen_journal(
    url: str,
    store: ObjectStore,
    cluster_id: str,
    token: str | None = None,
    roots: RootOptions = DEFAULT_OPTIONS,
    *,
    served: bool = False,
) -> Journal:
    """The journal of a known log on a known storage.  No coordinator is asked for them.

    served:  the coordinator serves the metadata.
    """
    if not is_coordinator(url):
        link = HttpLink(Target(()), cluster_id=cluster_id, storage=store.url)
        return Journal.open(store, create=False, link=link, root_options=roots)
    token = given_token(token)
    link = HttpLink(parse_target(url), token, cluster_id)
    return journal_through(link, store, roots, served=served, tag=tag_of_token(token))


def find_claim(
    url: str, store: ObjectStore, cluster_id: str, name: str, token: str | None = None, *, served: bool = False
) -> bytes | None:
    """The value that was claimed under a name in a known log, without opening the log.

    Returns None if there is no claim; the caller can then make it.
    """
    clock = SystemClock()
    if not served:
        return run(claimed(name), Stores.of(store), clock)
    link = HttpLink(parse_target(url), given_token(token), cluster_id)
    try:
        return run(ServedLog(_context(clock), cluster_id).claimed(name), _served_stores(store), clock, link)
    finally:
        link.close()


def storage_url(url: str, token: str | None = None) -> str:
    """The storage URL of the log at a URL; a coordinator is asked once per process."""
    return cluster_info(url, token).storage if is_coordinator(url) else url


def identity_of(identity: str, state: State, url: str, token: str | None = None) -> str:
    """The identity under which the log at a URL has the batches of a query: with the name of the token, if there is
    one."""
    return identity_in(state, cluster_info(url, token).principal, identity) if is_coordinator(url) else identity


@lru_cache(maxsize=64)
def cluster_info(url: str, token: str | None = None) -> ClusterInfo:
    """The reply of a coordinator about its log; it is asked once per process."""
    link = HttpLink(parse_target(url), given_token(token))
    try:
        return link.info()
    finally:
        link.close()


def given_token(token: str | None) -> str | None:
    """The token that was given, or that of the environment."""
    return token or os.environ.get(TOKEN_VARIABLE)


def _served(url: str, roots: RootOptions, token: str | None, partial: bool) -> Journal:
    link, tag = HttpLink(parse_target(url), token), tag_of_token(token)
    info = link.info()
    link.cluster_id = info.cluster_id
    try:
        store = open_store(info.storage, roots.own(), roots.durability, has_begun=True)
        journal = journal_through(link, store, roots, served=info.metadata == SERVED, tag=tag, partial=partial)
    except NoLog as error:
        raise NoLog(
            f"the coordinator at {url} has its log at {info.storage}, which this machine cannot read: clients read "
            "and write the storage themselves, so it has to be shared"
        ) from error
    check_cluster(journal.cluster_id, info.cluster_id, info.storage)
    return journal


def journal_through(
    link: HttpLink, store: ObjectStore, roots: RootOptions, *, served: bool, tag: str = "", partial: bool = False
) -> Journal:
    """The journal of a log whose changes go through a coordinator; its metadata is read there too if it is `served`.

    tag:  as in `Context`.
    """
    if not served:
        return Journal.open(store, create=False, link=link, served=True, tag=tag, partial=partial, root_options=roots)
    log = ServedLog(_context(SystemClock(), tag), link.cluster_id)
    return Journal(log, _served_stores(store), link, partial=partial, root_options=roots)


def _context(clock: Clock, tag: str = "") -> Context:
    return Context(clock, random.SystemRandom(), served=True, tag=tag)


def _served_stores(store: ObjectStore) -> Stores:
    """The stores of a process that does not use the metadata on storage."""
    metadata = ServedMetadata(store.url, local=store.local)
    return Stores.of(metadata, with_retries(store, SystemClock(), random.SystemRandom()))
