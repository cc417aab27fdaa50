"""`pylog cluster …`: the log as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import click

from spark_log.cli.base import Failed, Noun, confirmed, guarded, pass_session, verb
from spark_log.cli.output import emit_fields, emit_line, emit_rows, emit_value
from spark_log.cli.quorum_admin import Access, node_options
from spark_log.cli.session import CommandSession
from spark_log.cli.units import duration_text
from spark_log.errors import (
    AccessDenied,
    CoordinatorNotAvailable,
    InvalidRequest,
    NotCoordinator,
    SparkLogError,
    StorageError,
)
from spark_log.net.address import is_coordinator
from spark_log.text import counted

if TYPE_CHECKING:
    from spark_log.client.log import Log
    from spark_log.metadata.state import Leadership

NAMED_MAX = 3
"""Objects that a check names."""
LATE = 10
"""A checkpoint is late after this many intervals."""


@click.group(cls=Noun)
def cluster() -> None:
    """Show, check and release the log as a whole."""


@verb(cluster)
@pass_session
def info(session: CommandSession) -> None:
    """Show the log's id, version and level, its coordinator, and how many topics, records, objects and groups it has.

    \b
    Example:
      pylog cluster info
    """
    emit_fields(session, info_fields(session.connect()))


def info_fields(log: Log) -> dict[str, Any]:
    """The log in numbers."""
    from spark_log.metadata.column_map import stored_bytes
    from spark_log.metadata.features import METADATA_VERSION

    state = log.journal.refresh()
    return {
        "url": log.url,
        "cluster_id": log.cluster_id,
        "version": state.version,
        "metadata_level": state.levels[METADATA_VERSION],
        "checkpoint": log.journal.run(log.journal.metadata_log.status()).checkpoint,
        "fence": state.fence,
        "coordinator": state.coordinator.address,
        "coordinator_epoch": state.coordinator.epoch,
        "topics": len(state.names),
        "partitions": len(state.partitions),
        "records": sum(part.readable_end - part.start for part in state.partitions.values()),
        "objects": len(state.objects),
        "bytes": stored_bytes(state.objects),
        "groups": len(state.groups),
        "producers": len(state.producers),
    }


@verb(cluster)
@click.option("--force", is_flag=True, help="Release the log from a coordinator that crashed.")
@pass_session
def release(session: CommandSession, force: bool) -> None:
    """Let clients write directly again after a coordinator crash.

    The URL is the storage's.  A coordinator that stops in order releases the log itself.  Stop a coordinator that
    still runs before you release its log: it commits nothing more under its old epoch, but it takes over a log that
    no other coordinator has.

    \b
    Example:
      pylog cluster release --force
    """
    if is_coordinator(session.url or ""):
        raise click.UsageError("give the URL of the log's storage: a coordinator that is gone cannot release it")
    from spark_log.metadata.decide.coordinators import check_is_here

    journal = session.journal()
    held = journal.refresh().coordinator
    if not held.address:
        emit_line(session, "no coordinator has this log", {"released": False})
        return
    check_is_here(held)
    if not force:
        raise Failed(
            f"the coordinator at {held.address} has this log: stop it to release the log; if it crashed, give --force"
        )
    released = journal.release(held.epoch + 1)
    emit_line(session, f"released: {held.address} no longer has the log", {"released": released})


@verb(cluster)
@click.option("--force", is_flag=True, help="Reset although commits at several times are later than the clock.")
@guarded
@pass_session
def reset_clock(session: CommandSession, force: bool, dry_run: bool, yes: bool) -> None:
    """Put the log's time back to the present, after a machine whose clock was ahead has written to the log.

    While the log's time is ahead, nothing expires and no garbage is collected.  Timestamps of records stay as they
    are.  Check this machine's clock first: if it is behind, groups and producers expire when a machine with the right
    time writes again.  If commits at several times are later than this machine's clock, the reset is refused without
    --force.

    \b
    Example:
      pylog cluster reset-clock --yes
    """
    from spark_log.journal.clock_check import time_text

    log = session.connect()
    time, now = log.journal.refresh().time, log.journal.context.clock.now_ms()
    if time <= now:
        emit_line(session, "the log's time is not ahead of this machine's clock: nothing to reset", {"ahead_ms": 0})
    elif confirmed(f"put the log's time back from {time_text(time)} to {time_text(now)}", dry_run=dry_run, yes=yes):
        ahead = log.admin.reset_clock(force=force)
        emit_line(session, f"the log's time was put back by {duration_text(ahead)}", {"ahead_ms": ahead})


@verb(cluster)
@guarded
@pass_session
def upgrade(session: CommandSession, dry_run: bool, yes: bool) -> None:
    """Raise a log that an older pylog created to the newest level of its metadata that this pylog supports.

    A new log begins at the newest level of the pylog that creates it.  Update every pylog that uses the log first: one
    that does not support the level cannot open the log afterwards.  A level is never lowered.

    \b
    Example:
      pylog cluster upgrade --yes
    """
    from spark_log.metadata.features import METADATA_VERSION, SUPPORTED

    log = session.connect()
    level, newest = log.journal.refresh().levels[METADATA_VERSION], SUPPORTED[METADATA_VERSION]
    if level == newest:
        emit_line(session, f"the log is at level {level} of {METADATA_VERSION}: nothing to raise", {"level": level})
    elif confirmed(f"raise {METADATA_VERSION} from {level} to {newest}", dry_run=dry_run, yes=yes):
        log.admin.update_features({METADATA_VERSION: newest})
        emit_line(session, f"the log is at level {newest} of {METADATA_VERSION}", {"level": newest})


# --------------------------------------------------------------------------------------------------------------- health


class Check(NamedTuple):
    """The result of one check."""

    check: str
    healthy: bool
    says: str


@verb(cluster)
@click.option("--read-only", is_flag=True, help="Do not check whether this user can write.")
@node_options
@pass_session
def health(session: CommandSession, access: Access, read_only: bool) -> None:
    """Check that the log can be read and written, and that its coordinators, brokers, checkpoints and clock are well.

    Without a coordinator, this writes a small object and deletes it. A user who may not write gives --read-only. A
    coordinator checks its own storage. With --nodes or --conf, the nodes of a quorum are checked as well, or alone
    without a URL.

    The exit status is 1 if a check fails.

    \b
    Example:
      pylog cluster health -u pylog://127.0.0.1:9550
      pylog cluster health --conf coordinator.ini
    """
    checks = _coordinators(session.url) if session.url else []
    checks += _quorum(access) if access.is_given else []
    if session.url or not access.is_given:
        checks += _of_log(session, [check.check for check in checks], writes=not read_only)
    wrong = [check for check in checks if not check.healthy]
    if session.structured:
        emit_value(session, {"healthy": not wrong, "checks": [check._asdict() for check in checks]})
    else:
        emit_rows(session, Check._fields, [check._asdict() for check in checks])
    if wrong:
        raise Failed(f"not healthy: {', '.join(check.check for check in wrong)}")


def _quorum(access: Access) -> list[Check]:
    from spark_log.quorum_node.quorum_health import quorum_findings

    return [Check(*finding) for finding in quorum_findings(access.admin().answers())]


def _of_log(session: CommandSession, asked: list[str], *, writes: bool) -> list[Check]:
    """
    asked:   the checks that were made before.
    writes:  whether this user is to write.
    """
    try:
        log = session.connect()
        return log_checks(log, session.url or "", asked, writes=writes)
    except SparkLogError as error:
        return [Check("log", False, str(error))]


def log_checks(log: Log, url: str, asked: list[str], *, writes: bool) -> list[Check]:
    """The checks of an open log.

    asked:   checks of coordinators that were done before, by name.
    writes:  check by a write whether embedded writers can write.
    """
    holder = holder_checks(log, url, asked)
    storage = _storage(log) if writes else []
    of_state = [*_brokers(log), *_set_aside(log), _upkeep(log)]
    return [_log(log), *holder, *storage, *of_state, *_quorum_copy(log, asked), _clock(log)]


def _coordinators(url: str) -> list[Check]:
    """Checks of every coordinator in the URL.  A standby is healthy."""
    from spark_log.net.address import is_coordinator, parse_target

    if not is_coordinator(url):
        return []
    target = parse_target(url)
    asked = [_coordinator(address, (target.ca is not None,), ca=target.ca) for address in target.addresses]
    return [check for checks in asked for check in checks]


def _coordinator(
    address: str, ways: tuple[bool, ...], holder: Leadership | None = None, *, ca: str | None = None
) -> list[Check]:
    """A check of a coordinator, and one of the objects that its upkeep has set aside.

    ways:    whether to connect with TLS; several values are tried in order.
    holder:  if set, the coordinator is expected to lead under this epoch.
    ca:      from the URL.
    """
    from spark_log.net.health_check import health_of

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
    says = f"upkeep could not read {counted(count, 'object')}{listed} and has set them aside"
    return Check("set aside", False, f"{says}: `pylog verify --deep` says what is lost")


def _log(log: Log) -> Check:
    state = log.journal.state
    return Check("log", True, f"{log.url}, version {state.version}, {counted(len(state.names), 'topic')}")


def holder_checks(log: Log, url: str, asked: list[str]) -> list[Check]:
    """The coordinator that leads, unless it was checked before.  With `ca` in the URL it is checked by TLS only."""
    from spark_log.metadata.decide.coordinators import closed_error, moving_to
    from spark_log.net.address import is_coordinator, is_loopback, parse_target, this_host

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
    from spark_log.net.address import this_host
    from spark_log.node.storage_health import in_the_way, mark_key, write_probe

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
    from spark_log.client.administering.erasure_nodes import quorum_to_erase
    from spark_log.client.administering.erasure_status import problems_of
    from spark_log.node.health_findings import broker_findings
    from spark_log.node.root_space import free_where_behind

    state = log.journal.state
    found = [Check(*finding) for finding in broker_findings(state, free_where_behind(log.journal.roots, state))]
    quorum, served = quorum_to_erase(log.journal, state), log.journal.metadata_log.is_served
    problems = problems_of(state, log.journal.context.clock.now_ms(), quorum, served=served)
    return [*found, *(Check(what, False, says) for what, says in problems)]


def _set_aside(log: Log) -> list[Check]:
    """The objects that the last `pylog maintain` has set aside.  A coordinator counts those of its upkeep."""
    from spark_log.node.upkeep_memory_file import load_memory

    state = log.journal.state
    if state.coordinator.address or log.journal.metadata_log.is_served:
        return []
    memory = log.journal.run(load_memory(state))
    if memory is None or not memory.aside.objects:
        return []
    return [_aside(len(memory.aside.objects), memory.aside.objects)]


def _clock(log: Log) -> Check:
    from spark_log.settings import cluster_config

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
    from spark_log.client.administering.quorum_view import describe_quorum
    from spark_log.quorum_node.quorum_health import COPY

    if COPY in asked:
        return []
    try:
        problem = describe_quorum(log.journal).copy_problem
    except (InvalidRequest, CoordinatorNotAvailable, NotCoordinator):
        return []  # there is no quorum, or another check says that no node leads
    return [Check(COPY, not problem, problem or "beside the records, not late")]


def _upkeep(log: Log) -> Check:
    from spark_log.journal.checkpointing import damaged_checkpoints
    from spark_log.settings import cluster_config

    state, metadata_log = log.journal.state, log.journal.metadata_log
    if not metadata_log.is_served:  # otherwise this user may have no rights on the files
        for why in log.journal.run(damaged_checkpoints()).values():
            return Check("checkpoint", False, f"{why}; `pylog maintain` writes a new one")
    behind = max(0, state.version - log.journal.run(metadata_log.status()).checkpoint)  # others commit meanwhile
    says = f"the newest one is {counted(behind, 'version')} old"
    if behind > LATE * cluster_config(state.configs, "metadata.checkpoint.interval"):
        return Check(
            "checkpoint", False, f"{says}: run `pylog checkpoint`; writers do so too, and log why they could not"
        )
    return Check("checkpoint", True, says)
