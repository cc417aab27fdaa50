"""Erasures that are not done: the roots that may still have copies of the records, with the way back.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain

from spark_log.client.admin.erasure_nodes import nodes_with_statistics
from spark_log.client.representations import described
from spark_log.configs.settings import cluster_config
from spark_log.metadata.erasures import METADATA, Root
from spark_log.metadata.replicas.replica_state import OWN_BROKER
from spark_log.metadata.state import ErasedTopic, OpenErasure, State
from spark_log.positions import format_timestamp_ms
from spark_log.rpc.messages import QuorumInfo
from spark_log.store.object_names import DATA

OF_A_COPY = "if records were erased after this copy was made, they are there again: erase them again"
"""About a copy of a log that is restored, of which nobody may know what was erased since."""
_METADATA = "the metadata"


@described
@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureListing:
    """An erasure that is not done."""

    topic: str
    topic_id: str
    version: int
    """The version of the log at which it ended, or began if it has not ended."""
    time_ms: int
    """When it ended, or began."""
    gone_by_ms: int
    """Maintenance deletes the last copy on the roots that it reaches by this time."""
    waits_for: tuple[str, ...]
    """Sentences: the roots that may have copies, and what to do if maintenance cannot reach them."""
    unreached: tuple[str, ...]
    """The roots of `waits_for` that maintenance cannot reach."""
    incomplete: bool
    """It had problems or has not ended, so records may be left: run it again."""
    running: bool
    """It has not ended: a process runs it, or was killed."""
    deleted: bool = False
    """The topic is deleted: an erasure takes its id in place of the name."""
    served: bool = False
    """A coordinator has the metadata: its own maintenance deletes what that has, and no client can."""

    @property
    def left(self) -> str:
        """A sentence about an incomplete erasure: records may be left."""
        if self.running:
            told = (
                "it has begun and not ended: if no process runs it any more, run the erasure again with the same keys, "
                "which erases the rest"
            )
            return f"{told}{self._by_id}"
        when = (
            ", when the roots that cannot be reached are back"
            if self.unreached
            else ": its report says what it waits for"
        )
        return f"not all records were erased: run the erasure again{when}{self._by_id}"

    @property
    def _by_id(self) -> str:
        if not self.deleted:
            return ""
        return (
            "; the topic is deleted, and objects of other topics may have its records: give its id as the topic, "
            f"`pylog topic erase {self.topic_id}`"
        )

    def problems(self, now_ms: int) -> Iterator[str]:
        """The tasks of an operator; none while the erasure only waits for maintenance."""
        if self.incomplete:
            yield self.left
        yield from self.unreached
        if now_ms > self.gone_by_ms:
            late = [one for one in self.waits_for if one not in self.unreached]
            yield from (f"{one} still has the copies: {self._way(one)}" for one in late)

    def _way(self, late: str) -> str:
        if self.served and late.startswith(_METADATA):
            return (
                "the coordinator deletes them with its maintenance; its `maintain.every` must not be `never`, and its log and "
                "`pylog cluster health` say what fails"
            )
        return "run `pylog maintain`"


def open_erasures(state: State, quorum: QuorumInfo | None = None, *, served: bool = False) -> list[ErasureListing]:
    """The erasures that are not done, the oldest first.

    quorum:  that has the metadata, if there is one.
    served:  a coordinator has the metadata, as in `ErasureListing`.
    """
    found = [
        replace(_listing(state, topic_id, one, quorum), served=served)
        for topic_id, row in state.erasures.items()
        for one in row.unfinished
    ]
    return sorted(found, key=lambda one: one.version)


def erasures_waiting_for(state: State, broker: int) -> list[str]:
    """Names of the topics with an erasure that is not done, and that waits for the root of a broker."""
    known = state.brokers.get(broker)
    root = (broker, "" if known is None else known.directory)
    return sorted(row.name for row in state.erasures.values() if any(root in one.roots for one in row.unfinished))


def is_deleted(state: State, topic_id: str) -> bool:
    """Whether a topic that the log has known is deleted."""
    topic = state.topics.get(topic_id)
    return topic is None or topic.deleted


def _listing(state: State, topic_id: str, one: OpenErasure, quorum: QuorumInfo | None) -> ErasureListing:
    unreached = unreached_roots(state, one.roots)
    waits_for: dict[Root, tuple[str, ...]] = {root: (unreached.get(root) or _name(state, root),) for root in one.roots}
    nodes, silent = nodes_with_statistics(quorum, one.version) if quorum and METADATA in one.roots else ((), ())
    if nodes:
        waits_for[METADATA] = nodes
    return ErasureListing(
        topic=state.erasures[topic_id].name,
        topic_id=topic_id,
        version=one.version,
        time_ms=one.time,
        gone_by_ms=gone_by(state, one.time),
        waits_for=tuple(chain.from_iterable(waits_for.values())),
        unreached=(*unreached.values(), *silent),
        incomplete=one.incomplete,
        running=bool(one.running),
        deleted=is_deleted(state, topic_id),
    )


def gone_by(state: State, time_ms: int) -> int:
    """When maintenance has deleted what was dropped at a time.

    The fence passes the drop one age later, or two if nobody writes meanwhile.
    """
    return time_ms + 2 * int(cluster_config(state.configs, "gc.fence.age.ms"))


def problems_of(
    state: State, now_ms: int, quorum: QuorumInfo | None = None, *, served: bool = False
) -> list[tuple[str, str]]:
    """The problems of erasures that are not done, as (topic and time, sentence)."""
    return [
        (f"erasure from {one.topic} at {format_timestamp_ms(one.time_ms)}", f"it is not done: {problem}")
        for one in open_erasures(state, quorum, served=served)
        for problem in one.problems(now_ms)
    ]


def to_repeat_texts(rows: Mapping[str, ErasedTopic]) -> tuple[str, ...]:
    """Sentences about erasures that were later than a copy of the log, and have to be repeated in it."""
    return tuple(
        f"an erasure from {row.name} ended at {format_timestamp_ms(row.time)}, after this copy was made, which may have "
        f"the records: erase them again with `pylog topic erase {row.name}`"
        for row in sorted(rows.values(), key=lambda row: (row.version, row.name))
    )


def ended_texts(row: ErasedTopic) -> tuple[str, ...]:
    """Sentences about the incomplete erasures of a topic, which are no longer listed after a complete one."""
    return tuple(
        f"an earlier erasure from {row.name} (at {format_timestamp_ms(one.time)}) was not complete. The list no longer has it, "
        "because this one is complete: if it was for other keys, run it again"
        for one in row.unfinished
        if one.incomplete
    )


def unreached_roots(state: State, roots: Iterable[Root], silent: Iterable[int] = ()) -> dict[Root, str]:
    """The roots that maintenance cannot reach, of the given ones, each with a sentence.

    silent:  active brokers whose roots do not answer.
    """
    found = {}
    for root in roots:
        broker, directory = root
        known, named = state.brokers.get(broker), _name(state, root)
        if directory in state.former_roots:
            found[root] = former_root(state, directory)
        elif known is not None and known.fenced:
            back = f"`pylog broker unfence {broker}` takes it back, and deletes those that are due"
            found[root] = f"{named} may have copies; it is fenced: {known.reason}; {back}"
        elif broker in silent:
            found[root] = f"{named} may have copies, and does not answer: bring its disk or bucket back"
    return found


def former_roots(state: State) -> tuple[str, ...]:
    """Sentences about the roots of removed and replaced brokers, of which nobody has said that their files are gone."""
    rows = sorted(state.former_roots.items(), key=lambda row: (row[1].version, row[0]))
    return tuple(former_root(state, directory) for directory, _ in rows)


def former_root(state: State, directory: str) -> str:
    """A sentence about a former root."""
    known = state.former_roots[directory]
    is_own = known.broker == OWN_BROKER
    what = "the log's own root" if is_own else f"the root of broker {known.broker}"
    said = f"{known.url}, which was {what} until version {known.version}, may have copies in "
    said += f"{DATA if is_own else directory + '/'}"
    if known.is_copied:
        way = "it belongs to the log of which this one is a copy: if that is in use, erase there, too, and leave the files "
        way += "alone; otherwise delete them, or destroy the disk. Then"
    elif known.url in {other.url for other in state.brokers.values()}:
        way = "delete that folder, and"
    else:
        way = "delete its files, or destroy the disk, and"
    return f"{said}: {way} run `pylog broker forget-root {directory}`"


def _name(state: State, root: Root) -> str:
    broker, directory = root
    if root == METADATA:
        return f"{_METADATA}, which has statistics of columns,"
    if broker == OWN_BROKER:
        return "the log's own root"
    known = state.brokers.get(broker)
    url = known.url if known is not None and known.directory == directory else f"directory {directory}"
    return f"the root of broker {broker} ({url})"
