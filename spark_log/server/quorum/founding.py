"""The first state of a quorum that continues a log: one whose metadata is on storage, or whose nodes are lost.

One directory gets the state, as a snapshot with the voters.  The other voters are empty, and fetch it.

`adopt_log` closes the log on storage by the first record of a move (`log_move.py`), whose host is the one directory
that may continue it.  The quorum writes the second one, `end_adoption`, when a majority has the state: then nobody can
cancel any more.  Then `meta/format` names the quorum.

A quorum that is founded has an id, in its snapshots and in `meta/format`.  A leader with another one does not lead: it
belongs to a quorum that was given up.  The id begins with a time, as that of a history: a leader that hung may write
that of its quorum late, and a quorum that has replaced it knows that it is the later one.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from spark_log.errors import CorruptObject, InconsistentClusterId, InvalidRequest, NoLog
from spark_log.http.address import SCHEME, parse_target
from spark_log.journal.journal import Journal
from spark_log.journal.storage.log_format import QUORUM_VERSION, Format
from spark_log.journal.storage.log_remains import find_remains
from spark_log.journal.store_operations import Stores, run
from spark_log.metadata.decide_coordinators import QUORUM, check_can_move, moved_to, moving_to
from spark_log.metadata.formats.batch_format import decode_batch, first_line
from spark_log.metadata.formats.checkpoint_format import folded
from spark_log.metadata.replay import replay
from spark_log.metadata.restores import is_former, new_history, with_restore
from spark_log.metadata.state import Leadership, State
from spark_log.positions import format_timestamp_ms
from spark_log.quorum.messages import EMPTY, Kind, Position, ReplicaKey
from spark_log.quorum.node.directory import DataDirectory
from spark_log.quorum.ready import Restored
from spark_log.quorum.voters import Voters, key_text, voters_text
from spark_log.recovery.log_move import check_is_one_line, check_on_its_way
from spark_log.recovery.mirror import format_of
from spark_log.runtime.clock import SystemClock
from spark_log.runtime.collector_pause import collector_paused
from spark_log.server.quorum.root_snapshots import named_snapshot, newest_epoch, newest_snapshot, put_snapshot
from spark_log.server.quorum.state import Content, parse_snapshot
from spark_log.store.base import ObjectStore
from spark_log.store.object_names import (
    CHECKPOINTS,
    DATA,
    FORMAT_KEY,
    LOG,
    SNAPSHOTS,
    listed,
    snapshot_epoch,
    snapshot_version,
)

EPOCHS_APART = 1_000_000
"""More elections than the former quorum had after its last copy: the epochs of a restored log are above all others."""

_SET_BACK = (
    "an older copy of the folder was put there, and processes that open it by that URL write to a second log. Stop them, and "
    f"delete {FORMAT_KEY}, {LOG} and {CHECKPOINTS} there: then a node leads again, and `pylog verify` lists what is missing. "
    "Do not format the directories of the nodes: they have the newest metadata"
)


@dataclass(frozen=True, slots=True)
class Founded:
    """A directory with the state of a log."""

    version: int
    time_ms: int
    """Time of the last change that it has."""
    missing: int = 0
    """Objects that the state names, and that are not in the log's own root."""


# --------------------------------------------------------------------------------------------------------------- adopting


def adopt_log(journal: Journal, directory: DataDirectory, voters: Voters, url: str) -> Founded:
    """Close a log on storage, and give its state to the directory of one node.  If this is killed, run it again.

    journal:    the log's, opened without a link to a coordinator.
    directory:  formatted without voters, and empty.
    voters:     all voters of the quorum, including the node with this directory.
    url:        the quorum's URL for clients.
    Raises InvalidRequest if the log or the directory cannot be used.
    """
    restored = check_adopt(journal, directory, voters, url)
    held = journal.state.coordinator
    if _continues(directory, restored, held):
        return Founded(journal.state.version, journal.state.time)
    if not moving_to(held):
        journal.take_over(held.epoch, url, host=key_text(directory.meta.key), purpose="moving")
    state = journal.state
    founding = new_history(state, journal.context.clock.now_ms(), journal.context.unique())
    content = Content(state, journal.view.head, founding)
    _begin(directory, voters, content, state.coordinator.epoch)
    if journal.refresh().coordinator != state.coordinator:
        raise InvalidRequest(
            f"the adoption was cancelled while it ran: format the directory {key_text(directory.meta.key)} again before "
            "another one"
        )
    return Founded(state.version, state.time)


def check_adopt(journal: Journal, directory: DataDirectory, voters: Voters, url: str) -> Restored:
    """The content of the directory.  Raises as `adopt_log` does, and changes nothing."""
    where, meta = journal.metadata.url, directory.meta
    if not url.startswith(QUORUM):
        raise InvalidRequest(f"{url} is not the URL of the nodes for clients, as in {QUORUM}host:9550,host2:9550")
    parse_target(url)
    _check_cluster(meta.cluster_id, journal.cluster_id, where)
    _check_voters(meta.key, voters)
    restored, held = directory.disk.load(), journal.refresh().coordinator
    if check_on_its_way(journal, url):
        if held.host != key_text(meta.key):
            raise InvalidRequest(
                f"the directory {held.host} adopts {where} already: run the command there again; if it is lost, run "
                "`pylog move --cancel` first"
            )
        if _continues(directory, restored, held):
            return restored
        if moved_to(held):
            raise InvalidRequest(f"{where} is in the quorum at {url} already")
    else:
        check_can_move(journal.state, url)
        check_is_one_line(journal)
    check_empty(directory, restored)
    return restored


def _continues(directory: DataDirectory, restored: Restored, held: Leadership) -> bool:
    """Whether the directory has the state of this adoption already, or has a later one."""
    if moved_to(held):
        return restored.snapshot != EMPTY
    if not moving_to(held) or restored.snapshot == EMPTY:
        return False
    return stored_content(directory, restored).state.coordinator == held


def end_adoption(journal: Journal, state: State, form: Format, founding: str) -> Format:
    """End the adoption of a log: from now on, it can be opened only in the quorum.

    The leader calls this when a majority has the state.

    journal:   of the log on storage.
    state:     the quorum's state before its first batch.
    founding:  the id of the quorum, as in a snapshot.
    Raises InvalidRequest if the adoption was cancelled, if another adoption has begun, or if the folder was set back
    after the adoption.
    """
    held, ours = journal.refresh().coordinator, state.coordinator
    url = moving_to(ours)
    if held == ours and url:
        journal.take_over(held.epoch, url, host=held.host, purpose="moved")
    elif not url or held.epoch != ours.epoch + 1 or moved_to(held) != url:
        raise not_continued_error(journal, has_led=not url)
    ended = form.of_quorum(url, founding)
    journal.metadata.put(FORMAT_KEY, (ended.encode(),))
    return ended


def not_continued_error(journal: Journal, *, has_led: bool) -> InvalidRequest:
    """The error for a quorum in a folder that has a log with its metadata.

    has_led:  the quorum has continued a log there, which was closed for it.
    """
    url, held = journal.metadata.url, journal.state.coordinator
    if has_led and not (moving_to(held) or moved_to(held)):
        return InvalidRequest(f"{url} has a log with its metadata, which this quorum has continued since: {_SET_BACK}")
    return InvalidRequest(
        f"{url} has a log with its metadata, and this quorum does not continue it: was its adoption cancelled? Format the "
        "directories again, and run `pylog quorum adopt`, or serve that log without --quorum"
    )


def name_again(journal: Journal, form: Format, founding: str) -> Format:
    """The format, which names the quorum with this id again if that was overwritten.

    A `pylog move` to this place that was stopped before its last write, and wakes up now, makes a log of it that is on
    storage.  The records say that it is in a quorum, and the newest copy of the state says in which.
    """
    url = moved_to(journal.state.coordinator)
    copy = newest_snapshot(journal.metadata) if url.startswith(QUORUM) else None
    if copy is None or copy.founding != founding:
        return form
    named = form.of_quorum(url, founding)
    journal.metadata.put(FORMAT_KEY, (named.encode(),))
    return named


def check_is_adopted(journal: Journal) -> None:
    """Raises InvalidRequest for a log on storage that no quorum is adopting."""
    held = journal.state.coordinator
    if not (moving_to(held) or moved_to(held)).startswith(QUORUM):
        raise InvalidRequest(
            f"{journal.metadata.url} has a log with its metadata: `pylog quorum adopt` moves that into a quorum; or give "
            f"the nodes another, empty folder, or serve that log without --quorum. If this quorum has led in it: {_SET_BACK}"
        )


# -------------------------------------------------------------------------------------------------------------- restoring


def restore_log(
    store: ObjectStore,
    directory: DataDirectory,
    voters: Voters,
    unique: str,
    source: DataDirectory | None = None,
    *,
    now_ms: int,
) -> Founded:
    """Begin another quorum for a log that has lost its nodes.  If this is killed, run it again.

    store:      the storage of the records.
    directory:  as for `adopt_log`.
    unique:     a random text for the id of the quorum.
    source:     the directory of a lost node, if one can still be read; None: use the newest copy on the storage.
    Raises InvalidRequest if the directory cannot be used, NoLog if the storage has no copy, CorruptObject.
    """
    restored, form = check_restore(store, directory, voters, source)
    content = content_to_restore(store, directory, restored, form, source)
    if restored.snapshot == EMPTY:
        founding = new_history(content.state, now_ms, unique, after=form.founding)
        state = with_restore(content.state, founding, content.state.version)
        # A client that knows the record of this version loads the state again, because its first line differs.
        content = content._replace(state=state, head=f"restored {founding}".encode(), founding=founding)
        epoch = max(content.state.coordinator.epoch, newest_epoch(store)) + EPOCHS_APART
        store.put(FORMAT_KEY, (form.of_quorum(form.quorum, founding).encode(),))
        name = "".join(one for one in unique.lower() if one.isalnum())
        put_snapshot(store, content, name, epoch)  # it shows that the former quorum is replaced
        _begin(directory, voters, content, epoch)
    state = content.state
    return Founded(state.version, state.time, _missing(store, state))


def content_to_restore(
    store: ObjectStore, directory: DataDirectory, restored: Restored, form: Format, source: DataDirectory | None
) -> Content:
    """The metadata that the other quorum begins with.  After a restoration that was killed, the directory may have it.

    restored, form:  of `check_restore`.
    Raises as `restore_log` does, and changes nothing.
    """
    if source is not None and source.meta.cluster_id != form.cluster_id:
        raise InconsistentClusterId(
            f"{store.url} has the log {form.cluster_id}, and {key_text(source.meta.key)} has the metadata of the log "
            f"{source.meta.cluster_id}, with which maintenance would delete all records: give a directory of this log"
        )
    if restored.snapshot != EMPTY:
        return stored_content(directory, restored)
    if source is None:
        return _copy_of(store)
    content = stored_content(source, source.disk.load())
    _check_is_newest(store, content.state, source)
    return content


def _check_is_newest(store: ObjectStore, state: State, source: DataDirectory) -> None:
    """Raises InvalidRequest if the newest copy on the storage is newer than the directory of a node.

    A node that was away for long names objects that maintenance has deleted since, and lacks commits that the copy has.
    Of a damaged copy, the name says how new it is.
    """
    name, copy = "", None
    with suppress(CorruptObject):
        name, copy = named_snapshot(store)
    has = f"{key_text(source.meta.key)} has version {state.version}, of {format_timestamp_ms(state.time)}, and"
    newest = listed(store, SNAPSHOTS)[-1:]
    if newest > [name] and (snapshot_epoch(newest[0]), snapshot_version(newest[0])) > _reached(state):
        raise InvalidRequest(
            f"{has} {store.url}/{newest[0]}, which is damaged, was newer: version {snapshot_version(newest[0])}. Put that "
            "file back from a backup, or give the directory of a node that has more. To lose the changes after version "
            f"{state.version}, delete the damaged file"
        )
    if copy is not None and _reached(copy.state) > _reached(state):
        raise InvalidRequest(
            f"{has} the copy at {store.url} is newer: version {copy.state.version}, of "
            f"{format_timestamp_ms(copy.state.time)}. Restore from the copy, without --from"
        )


def _reached(state: State) -> tuple[int, int]:
    """The order of states of quorums that follow each other; logs in Raft have the same."""
    return state.coordinator.epoch, state.version


def check_restore(
    store: ObjectStore, directory: DataDirectory, voters: Voters, source: DataDirectory | None
) -> tuple[Restored, Format]:
    """The content of the directory, and of `meta/format`.

    source:  as for `restore_log`.
    Raises InvalidRequest, and changes nothing.
    """
    form = format_of(store) or _lost_format(store, directory, source)
    if not form.quorum:
        raise InvalidRequest(f"{store.url} has a log with its metadata: no quorum of it was lost")
    _check_cluster(directory.meta.cluster_id, form.cluster_id, store.url)
    _check_voters(directory.meta.key, voters)
    restored = directory.disk.load()
    if restored.snapshot == EMPTY:
        check_empty(directory, restored)
    elif _is_replaced(stored_content(directory, restored), form):
        raise InvalidRequest(f"{key_text(directory.meta.key)} belongs to a quorum that was replaced: format it again")
    return restored, form


def _is_replaced(content: Content, form: Format) -> bool:
    return content.founding != form.founding and not is_former(content.state, form.founding)


def _lost_format(store: ObjectStore, directory: DataDirectory, source: DataDirectory | None) -> Format:
    """The format of a folder that has lost it, and has the records of a quorum.

    Neither a copy of the metadata nor a node's state has the id of the log: it is that of the directory.
    Raises NoLog if neither a copy nor another directory exists, or if the folder has no file of a log.
    """
    if source is None:
        content = _copy_of(store)
    elif run(find_remains(), Stores.of(store), SystemClock()):
        content = stored_content(source, source.disk.load())
    else:
        raise NoLog(f"{store.url} is empty, and the records of the log were there: is its disk mounted?")
    form = Format(pylog=QUORUM_VERSION, cluster_id=directory.meta.cluster_id, created_ms=content.state.time, probed="")
    return form.of_quorum(SCHEME + content.state.coordinator.address, content.founding)


def former_addresses(store: ObjectStore, form: Format) -> list[str]:
    """The addresses at which nodes of the former quorum served clients.

    `meta/format` has the addresses of an adoption; otherwise only the address of the first leader.  So the leader in
    the newest copy is included, too.
    """
    found = parse_target(form.quorum).addresses
    with suppress(CorruptObject):
        newest = newest_snapshot(store)
        found += () if newest is None else (newest.state.coordinator.address,)
    return [one for one in dict.fromkeys(found) if one]


def _copy_of(store: ObjectStore) -> Content:
    name, found = named_snapshot(store)
    if found is None:
        raise NoLog(
            f"{store.url} has no copy of the metadata: give the directory of a lost node that can still be read"
        )
    state, newest = found.state, listed(store, SNAPSHOTS)[-1:]
    if newest > [name]:
        raise CorruptObject(
            f"{store.url}/{newest[0]} is damaged, and the copy before it has version {state.version}, of "
            f"{format_timestamp_ms(state.time)}: put the damaged file back from a backup, or give the directory of a lost "
            f"node that can still be read. To lose the changes after version {state.version}, delete the damaged file"
        )
    return found


def _missing(store: ObjectStore, state: State) -> int:
    """Objects that were deleted after the copy, or are on the roots of other brokers."""
    there = set(listed(store, DATA))
    return sum(name not in there for name in state.objects)


# ---------------------------------------------------------------------------------------------------------------- for both


def check_empty(directory: DataDirectory, restored: Restored) -> None:
    """Raises InvalidRequest for a directory with a state, entries or voters."""
    if restored.snapshot != EMPTY or restored.entries or restored.voters:
        raise InvalidRequest(
            f"the directory {key_text(directory.meta.key)} is used by a quorum already: format an empty one, by `pylog quorum "
            "init` without voters"
        )


def _check_cluster(own: str, cluster_id: str, where: str) -> None:
    if own != cluster_id:
        raise InconsistentClusterId(
            f"{where} has the log {cluster_id}, and the directory belongs to the cluster {own}: format it with "
            f"--cluster-id {cluster_id}"
        )


def _check_voters(own: ReplicaKey, voters: Voters) -> None:
    if len({voter.id for voter in voters}) < len(voters) or own not in voters:
        raise InvalidRequest(
            f"voters: {voters_text(voters)} is not one directory for each node, {key_text(own)} among them"
        )


def _begin(directory: DataDirectory, voters: Voters, content: Content, epoch: int) -> None:
    """
    epoch:  of the snapshot: the quorum's leaders have higher ones.
    """
    with collector_paused():
        compact = content._replace(state=folded(content.state))
    directory.disk.begin_with(Position(epoch=epoch, offset=compact.state.version), voters, compact.pieces())


def stored_content(directory: DataDirectory, restored: Restored) -> Content:
    """The state after everything that a directory has, committed or not: its replies may have been sent."""
    where = f"the directory {key_text(directory.meta.key)}"
    if restored.snapshot == EMPTY and not restored.entries:
        raise CorruptObject(f"{where} has no state")
    content = Content(State())
    if restored.snapshot != EMPTY:
        content = parse_snapshot(directory.disk.read_state(restored.snapshot), where)
    for data in _batches(restored):
        content = content._replace(state=replay(content.state, decode_batch(data, where)), head=first_line(data))
    return content


def _batches(restored: Restored) -> Iterable[bytes]:
    return (one.data for one in restored.entries if one.kind is Kind.DATA and one.offset >= restored.snapshot.offset)
