"""Appending whole batches (`log.append`), and the identity with which an application writes each version once."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence, Sized
from functools import partial

from spark_log.bounds import LONG_MAX
from spark_log.client.producer.commit import Identity, PlainProducer, commit_uploads, offsets_by_name
from spark_log.client.producer.topic_rules import topic_spec
from spark_log.client.producer.typed_writes import has_other_schema, rows_of, spec_for
from spark_log.client.producer.upload import Uploaded, Uploader
from spark_log.client.topic_creation import ensure_topic, set_first_schema
from spark_log.errors import InvalidRecord, InvalidRequest, SequenceConflict, UnknownTopicOrPartition, UploadFenced
from spark_log.journal.journal import Journal
from spark_log.log_lines import logger
from spark_log.metadata.commits.decide_commits import Committed
from spark_log.metadata.replicas.replicas import Targets, targets_of
from spark_log.metadata.set_backs import BEGINNING, Lineage, lineage_of
from spark_log.model import ACKS_ALL, ACKS_LEADER, TopicPartition
from spark_log.roots.replica_puts import ReplicaPuts
from spark_log.segment.compression import DEFAULT_COMPRESSION
from spark_log.segment.frame_columns import DEFAULT_NAMES, ColumnNames
from spark_log.text import counted, is_printable


class Appender:
    """Appends to one log.  Thread-safe: appends of several threads share records of the metadata log."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._idle: deque[PlainProducer] = deque()
        """Identities that no thread uses now.  Each thread needs one, because commits of one identity go in order."""

    def append(
        self,
        topic: str,
        data: object,
        identity: Identity | None,
        *,
        partitioner: str,
        compression: str,
        acks: int = ACKS_ALL,
        names: ColumnNames = DEFAULT_NAMES,
    ) -> dict[TopicPartition, range]:
        """Append records, all or none, and return the offsets they got.

        A topic that was deleted and created again since the log was last read gets them.

        identity:  from `txn_identity`; None: an identity of the appender.
        acks:      `ACKS_LEADER` only without an identity.
        names:     for a topic with a schema: which columns of a frame have the key, the timestamp and the values.
        """
        ensure_topic(self._journal, topic)
        upload = partial(
            upload_rows,
            self._journal,
            topic,
            data,
            partitioner=partitioner,
            compression=compression,
            acks=acks,
            names=names,
        )
        before = topic_spec(self._journal.state, topic)
        try:
            return self._append(upload, identity, acks)
        except (UploadFenced, InvalidRecord, UnknownTopicOrPartition) as error:
            if not isinstance(data, Sized):  # an iterator, which may be used up
                raise
            if isinstance(error, InvalidRecord) and not has_other_schema(self._journal, before):
                raise
            if topic not in self._journal.refresh().names:
                raise
            return self._append(upload, identity, acks)

    def _append(
        self, upload: Callable[..., Uploaded], identity: Identity | None, acks: int
    ) -> dict[TopicPartition, range]:
        began = self._journal.recent()
        uploaded = upload(began.version, lineage=lineage_of(began))
        if not uploaded.slices:
            return {}
        if identity is None:
            return offsets_by_name(self._journal.state, self._commit_plain(began.version, uploaded, acks))
        try:
            committed = commit_uploads(self._journal, identity, began.version, [uploaded])
        except SequenceConflict as error:
            raise version_conflict(identity, error) from None
        if said := warning_of_version(identity, committed, [uploaded]):
            logger.warning("%s", said)
        return offsets_by_name(self._journal.state, committed)

    def _commit_plain(self, epoch: int, uploaded: Uploaded, acks: int) -> Committed:
        try:
            producer = self._idle.pop()  # the one that was used last, so that few identities are in use
        except IndexError:
            producer = PlainProducer(self._journal)
        try:
            return producer.commit(epoch, [uploaded], acks=acks)
        finally:
            self._idle.append(producer)


def upload_rows(
    journal: Journal,
    topic: str,
    data: object,
    epoch: int,
    *,
    partitioner: str = "default",
    compression: str = DEFAULT_COMPRESSION,
    acks: int = ACKS_ALL,
    names: ColumnNames = DEFAULT_NAMES,
    lineage: Lineage = BEGINNING,
) -> Uploaded:
    """Write records as objects under an upload epoch, without committing them."""
    clock = journal.context.clock
    spec, data = spec_for(journal, topic, data, names)
    uploader = Uploader(
        journal.roots.own,
        epoch,
        journal.context.random(),
        partitioner=partitioner,
        compression=compression,
        replicas=replica_puts(journal, acks=acks),
        sort=True,
        lineage=lineage,
        tag=journal.context.tag,
    )
    try:
        count = 0
        for rows in rows_of(spec, data, clock.now_ms() * 1000, names):
            uploader.append(spec, rows, clock.now_ms(), count)
            count += rows.records.num_rows
        uploaded = uploader.finish()
        if spec.sets_schema and spec.schema is not None and not uploaded.slices:  # nothing is committed
            set_first_schema(journal, topic, spec.schema.columns)
        return uploaded
    finally:
        uploader.close()


def replica_puts(
    journal: Journal, until_ms: float = math.inf, *, patient: bool = True, acks: int = ACKS_ALL
) -> ReplicaPuts:
    """Puts to the replicas that are in sync or joining when a put begins.  With acks=1, first only to the leader.

    until_ms, patient:  as for `ReplicaPuts`.
    """

    def targets(group: int) -> Targets:
        found = targets_of(journal.newest, group, acks=acks)
        return found if found.isr else newest(group)  # in an old state all of them may be fenced

    def newest(group: int) -> Targets:
        journal.refresh(None if until_ms == math.inf else round(until_ms))
        return targets_of(journal.newest, group)

    return ReplicaPuts(journal.roots, targets, newest, journal.context.clock, until_ms, patient)


def acks_of(given: str | int) -> int:
    """`acks` as a commit has it.  Raises InvalidRequest unless it is 0, 1 or all."""
    if str(given) not in ("0", "1", "-1", "all"):
        raise InvalidRequest(f"invalid value {given!r} for acks: expected 0, 1 or all")
    return ACKS_ALL if str(given) in ("-1", "all") else ACKS_LEADER


def txn_identity_if_given(app_id: str | None, version: int | None, topic: str) -> Identity | None:
    """The identity of `log.append(…, txn_app_id, txn_version)`; None without them."""
    if app_id is None and version is None:
        return None
    if app_id is None or version is None:
        raise InvalidRequest("txn_app_id and txn_version go together: give both or neither")
    return txn_identity(app_id, version, topic)


def txn_identity(app_id: str, version: int, topic: str | None) -> Identity:
    """The identity of a write that happens once per (application, version, topic).

    topic:  None: the rows name their topics.
    """
    if isinstance(version, bool) or not isinstance(version, int) or version < 0:
        raise InvalidRequest(f"txn_version: {version!r} is not a whole number, 0 or more")
    if version > LONG_MAX:
        raise InvalidRequest(f"txn_version: a number of {version.bit_length()} bits is more than {LONG_MAX}")
    if not app_id:
        raise InvalidRequest("txn_app_id is empty; give the application a name")
    if not is_printable(app_id):
        raise InvalidRequest(f"txn_app_id: {app_id!r} is not a text that can be printed; give the application a name")
    return Identity(producer=f"app:{app_id}:{topic or ''}", sequence=version, dense=False, skip_older=True)


def warning_of_version(identity: Identity, committed: Committed, uploads: Sequence[Uploaded]) -> str:
    """The log message for a version that was skipped, or before which others may be lost; empty: neither."""
    if committed.repeated:
        return _skipped_version(identity, committed, uploads)
    if committed.restored_after < 0:
        return ""
    app_id, _ = _application(identity)
    return (
        f"the log was restored from a copy, whose last txnVersion of application {app_id!r} is {committed.restored_after}. "
        f"Versions after it and before {identity.sequence}, if there were any, are lost: write their rows again with "
        f"higher versions than {identity.sequence}, as lower ones are skipped"
    )


def _skipped_version(identity: Identity, committed: Committed, uploads: Sequence[Uploaded]) -> str:
    """The log message for a write that `txn_identity` marked as a duplicate."""
    app_id, topic = _application(identity)
    to = f" to topic {topic!r}" if topic else ""
    rows = counted(sum(run.rows for upload in uploads for _, run in upload.slices), "row")
    why = (
        "that version is in the log already"
        if committed.last == identity.sequence
        else f"the last version in the log is {committed.last}, and a version must be higher"
    )
    return f"txnVersion {identity.sequence} of application {app_id!r} is skipped, {rows}{to} not written: {why}"


def version_conflict(identity: Identity, error: SequenceConflict) -> SequenceConflict:
    """The error for a write that has the last version in the log, but different content, or does not follow it."""
    app_id, _ = _application(identity)
    if error.last == identity.sequence:
        why = (
            f"is in the log (version {error.version}) with other content ({error}). These rows were not written: to "
            "append them, give them a higher txnVersion"
        )
    else:
        why = (
            f"is not written: it was to follow version {identity.after}, and the last one in the log is {error.last}: "
            "another writer has written under this name since"
        )
    refusal = SequenceConflict(
        f"txnVersion {identity.sequence} of application {app_id!r} {why}", last=error.last, version=error.version
    )
    refusal.maybe_applied = error.maybe_applied
    return refusal


def _application(identity: Identity) -> tuple[str, str]:
    """(application, topic) of an identity from `txn_identity`; the topic is empty if the rows name their topics."""
    app_id, _, topic = identity.producer.removeprefix("app:").rpartition(":")
    return app_id, topic
