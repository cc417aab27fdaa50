"""The health of a log: named checks of its coordinators, its storage, its brokers, its checkpoints and its clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from spark_log.errors import (
    AccessDenied,
    CoordinatorNotAvailable,
    CorruptObject,
    InvalidRequest,
    NotCoordinator,
    SparkLogError,
    StorageError,
)
from spark_log.text import counted, duration_text

if TYPE_CHECKING:
    from spark_log.client.log import Log
    from spark_log.metadata.state import Leadership

NAMED_MAX = 3
"""Objects that a check names."""
ROOT_ANSWER_S = 2.0
"""How long the roots of all brokers may take to answer."""
LATE = 10
"""A checkpoint is late after this many intervals."""


class Check(NamedTuple):
    """The result of one check."""

    check: str
    healthy: bool
    says: str


def log_checks(log: Log, url: str, asked: list[str], *, writes: bool) -> list[Check]:
    """The checks of an open log.

    url:     the URL that was given; empty: the caller asks often, so former places of the log are looked at now and
             then.
    asked:   checks of coordinators that were done before, by name.
    writes:  check by a write whether embedded writers can write.
    """
    holder = holder_checks(log, url, asked)
    storage = _storage(log) if writes else []
    of_state = [*_brokers(log), *_set_aside(log), *_lost_versions(log), _maintenance(log)]
    of_state += _second_logs(log, is_asked_often=not url)
    return [_log(log), *holder, *storage, *of_state, *_quorum_copy(log, asked), _clock(log)]


def coordinator_checks(url: str) -> list[Check]:
    """Checks of every coordinator in the URL.  A standby is healthy."""
    from spark_log.http.address import is_coordinator, parse_target

    if not is_coordinator(url):
        return []
    target = parse_target(url)
    asked = [_coordinator(address, (target.ca is not None,), ca=target.ca) for address in target.addresses]
    return [check for checks in asked for check in checks]


def _coordinator(
    address: str, ways: tuple[bool, ...], holder: Leadership | None = None, *, ca: str | None = None
) -> list[Check]:
    """A check of a coordinator, and one of the objects that its maintenance has set aside.

    ways:    whether to connect with TLS; several values are tried in order.
    holder:  if set, the coordinator is expected to lead under this epoch.
    ca:      from the URL.
    """
    from spark_log.rpc.health_check import health_of

    what = f"coordinator {address}"
    found = next((found for tls in ways if (found := health_of(address, tls=tls, ca=ca)) is not None), None)
    if found is None:
        return [Check(what, False, "does not answer")]
    if not found.healthy:
        return [Check(what, False, found.reason)]
    if holder is not None and (not found.leading or found.epoch != holder.epoch):
        return [Check(what, False, f"does not lead, but the log names it as the leader of epoch {holder.epoch}")]
    doing = "leads" if found.leading else "stands by"
    aside = [_aside(found.set_aside)] if found.leading and found.set_aside else []
    return [Check(what, True, f"{doing}, epoch {found.epoch}, version {found.version}"), *aside]


def _aside(count: int, names: tuple[str, ...] = ()) -> Check:
    listed = f" ({', '.join(names[:NAMED_MAX])}{', …' if len(names) > NAMED_MAX else ''})" if names else ""
    says = f"maintenance could not read {counted(count, 'object')}{listed} and has set them aside"
    return Check("set aside", False, f"{says}: `pylog verify --deep` says what is lost, and what to do")


def _log(log: Log) -> Check:
    state = log.journal.state
    return Check("log", True, f"{log.url}, version {state.version}, {counted(len(state.names), 'topic')}")


def holder_checks(log: Log, url: str, asked: list[str]) -> list[Check]:
    """The coordinator that leads, unless it was checked before.  With `ca` in the URL it is checked by TLS only."""
    from spark_log.http.address import is_coordinator, is_loopback, parse_target, this_host
    from spark_log.metadata.decide_coordinators import closed_error, moving_to

    held = log.journal.state.coordinator
    if not held.address:
        return [Check("coordinator", True, "none: clients write to the storage themselves")]
    if target := moving_to(held):
        return [Check("coordinator", False, str(closed_error(target)))]
    if is_loopback(held.address) and held.host != this_host():
        says = f"has the log; it listens on {held.host} for that machine only and cannot be asked from here"
        return [Check(f"coordinator {held.address}", False, says)]
    if f"coordinator {held.address}" in asked:
        return []
    ca = parse_target(url).ca if is_coordinator(url) else None
    return _coordinator(held.address, (False, True) if ca is None else (True,), held, ca=ca)


def _storage(log: Log) -> list[Check]:
    """Whether this process can write to the storage, as clients without a coordinator do."""
    from spark_log.http.address import this_host
    from spark_log.journal.storage.storage_health import in_the_way, mark_key, write_probe

    if log.journal.state.coordinator.address:
        return []
    try:
        write_probe(log.journal.metadata, mark_key(this_host(), "health"))
    except StorageError as error:
        cure = "; give --read-only if this user is only to read" if isinstance(error, AccessDenied) else ""
        return [Check("storage", False, f"{error}{cure}")]
    blocked = [f"{key}: {why}" for key, why in in_the_way(log.journal.metadata, log.journal.state.version)]
    return [Check("storage", not blocked, "; ".join(blocked) or "accepts writes")]


def _brokers(log: Log) -> list[Check]:
    from spark_log.client.admin.erasure_nodes import quorum_to_erase
    from spark_log.client.admin.erasure_status import problems_of
    from spark_log.monitoring.health_findings import broker_findings
    from spark_log.replication.root_space import free_where_behind

    state = log.journal.state
    free, silent = free_where_behind(log.journal.roots, state), _silent(log)
    found = [Check(*finding) for finding in broker_findings(state, free, silent)]
    quorum, served = quorum_to_erase(log.journal, state), log.journal.metadata_log.is_served
    problems = problems_of(state, log.journal.context.clock.now_ms(), quorum, served=served)
    return [*found, *(Check(what, False, says) for what, says in problems)]


def _silent(log: Log) -> dict[int, bool]:
    """The active brokers whose roots do not answer here.  A defect, unless a coordinator checks the roots, or this
    process has no access."""
    from spark_log.client.admin.answering_roots import RootAnswers
    from spark_log.metadata.replicas.replicas import is_active

    journal = log.journal
    active = {broker for broker in journal.state.brokers if is_active(journal.state, broker)}
    answers = RootAnswers(journal)
    is_checked = journal.metadata_log.is_served or bool(journal.state.coordinator.address)
    silent = active - answers.among(active, ROOT_ANSWER_S)
    return {broker: not (is_checked or answers.was_denied(broker)) for broker in silent}


def _set_aside(log: Log) -> list[Check]:
    """The objects that the last `pylog maintain` has set aside.  A coordinator counts those of its maintenance."""
    from spark_log.maintenance.memory_file import load_memory

    state = log.journal.state
    if state.coordinator.address or log.journal.metadata_log.is_served:
        return []
    memory = log.journal.run(load_memory(state))
    if memory is None or not memory.aside.objects:
        return []
    return [_aside(len(memory.aside.objects), memory.aside.objects)]


def _lost_versions(log: Log) -> list[Check]:
    """Versions that the log has lost at its end, as far as maintenance has noticed, or objects show."""
    from spark_log.recovery.lost_ends import lost_text

    try:
        text = lost_text(log.journal)
    except CorruptObject as error:
        text = str(error)
    except SparkLogError:  # this user may have no rights on the objects; a root that is away is reported by others
        return []
    return [Check("lost versions", False, text)] if text else []


def _second_logs(log: Log, *, is_asked_often: bool) -> list[Check]:
    """Whether clients with a former URL of the log write to another one there."""
    from spark_log.client.admin.second_logs import OFTEN_MS, second_logs

    found = second_logs(log.journal, OFTEN_MS if is_asked_often else 0)
    return [
        Check("former place", not one.is_defect, one.text if one.is_defect else f"warning: {one.text}") for one in found
    ]


def _clock(log: Log) -> Check:
    from spark_log.configs.settings import cluster_config

    state = log.journal.state
    bound = cluster_config(state.configs, "log.clock.skew.max.ms")
    if bound < 0:  # no clock is rejected, but a time that is far ahead still prevents expiry
        bound = cluster_config({}, "log.clock.skew.max.ms")
    ahead = state.time - log.journal.context.clock.now_ms()
    if ahead <= 0:
        return Check("clock", True, f"the last commit was {duration_text(-ahead)} ago")
    says = f"the log's time is {duration_text(ahead)} ahead of this machine's clock"
    if ahead > bound:
        return Check("clock", False, f"{says}: `pylog cluster reset-clock`")
    if ahead >= bound / 2:
        says = f"warning: {says}, and only {duration_text(bound)} are tolerated: synchronize the clocks of all writers"
    return Check("clock", True, says)


def _quorum_copy(log: Log, asked: list[str]) -> list[Check]:
    """Whether the copy beside the records is late, of a log whose metadata is in a quorum that can be asked."""
    from spark_log.client.admin.descriptions import describe_quorum
    from spark_log.quorum.node.health import COPY

    if COPY in asked:
        return []
    try:
        problem = describe_quorum(log.journal).copy_problem
    except (InvalidRequest, CoordinatorNotAvailable, NotCoordinator):
        return []  # no quorum, or another check reports that no node leads
    return [Check(COPY, not problem, problem or "not late")]


def _maintenance(log: Log) -> Check:
    from spark_log.configs.settings import cluster_config
    from spark_log.journal.storage.checkpointing import damaged_checkpoints, lost_checkpoint

    state, metadata_log = log.journal.state, log.journal.metadata_log
    if not metadata_log.is_served:  # otherwise this user may have no rights on the files
        for why in log.journal.run(damaged_checkpoints()).values():
            return Check("checkpoint", False, f"{why}; `pylog checkpoint` writes a new one")
        if why := log.journal.run(lost_checkpoint()):
            return Check("checkpoint", False, f"{why}; `pylog checkpoint` writes a new one")
    behind = max(0, state.version - log.journal.run(metadata_log.status()).checkpoint)  # others commit meanwhile
    says = f"the newest one is {counted(behind, 'version')} old"
    if behind > LATE * cluster_config(state.configs, "metadata.checkpoint.interval"):
        return Check(
            "checkpoint", False, f"{says}: run `pylog checkpoint`; writers do so too, and log why they could not"
        )
    return Check("checkpoint", True, says)
