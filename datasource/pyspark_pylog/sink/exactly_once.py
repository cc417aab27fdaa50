"""Commits that are applied once: versions of an application, and micro-batches of a streaming query.

Spark replays only a query's newest batch, with the same source offsets.  A batch with a lower number, or with the last
number and other content, comes from a checkpoint that is behind the log.  Treating it as a replay would lose its rows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pyspark_pylog.driver_log import notice
from pyspark_pylog.options.parse import WriteOptions
from pyspark_pylog.sink.log_of_query import check_restored
from pyspark_pylog.sink.source_offsets import source_fingerprint
from spark_log.client.producer.append import txn_identity, version_conflict, warning_of_version
from spark_log.client.producer.commit import Identity, commit_uploads
from spark_log.client.producer.upload import Uploaded
from spark_log.errors import InvalidRequest, ProducerFenced, SequenceConflict
from spark_log.journal.journal import Journal
from spark_log.metadata.commits.decide_commits import Committed
from spark_log.metadata.commits.decide_transactional_ids import epoch_of_holder
from spark_log.metadata.state import State
from spark_log.text import counted


@dataclass(frozen=True, slots=True)
class OnceOnly:
    """Uploads, which are committed once."""

    journal: Journal
    options: WriteOptions
    epoch: int
    """The upload epoch."""
    uploads: Sequence[Uploaded]

    def commit_version(self, batch_id: int | None) -> Committed:
        """Commit a batch write with txnAppId and txnVersion.  A version at or below the last one adds nothing, with a
        warning.

        batch_id:  of the micro-batch in which it is written, if there is one.
        Raises SequenceConflict for the last version with other content, and if the last version is not the one that
        this write is to follow.
        """
        options = self.options
        assert options.txn_version is not None
        identity = txn_identity(options.txn_app_id or "", options.txn_version, options.topic)
        identity = replace(identity, after=options.txn_after)
        if batch_id is not None:
            identity = replace(identity, source=source_fingerprint(options.checkpoint, batch_id, options.location))
        try:
            committed = self._commit_once(identity)
        except SequenceConflict as error:
            raise version_conflict(identity, error) from None
        if said := warning_of_version(identity, committed, self.uploads):
            notice(logging.WARNING, said)
        return committed

    def commit_sink_batch(self, query_id: str | None) -> Committed | None:
        """A micro-batch of `spark_log.sink`; None if it was skipped.  Raises as `commit_stream_batch`."""
        options = self.options
        assert options.txn_version is not None
        if query_id is None:
            raise InvalidRequest("spark_log.sink() is for foreachBatch; in a batch job use txnAppId and txnVersion")
        identity = txn_identity(f"{query_id}/{options.txn_app_id}", options.txn_version, options.topic)
        again = "give the sink another name, spark_log.sink(URL, name=…)"
        return self._commit(replace(identity, skip_older=False), query_id, again)

    def commit_stream_batch(self, query_id: str | None, batch_id: int) -> Committed | None:
        """Commit a micro-batch of a stream into `format("pylog")`.  Returns None if the batch was skipped.

        Raises SequenceConflict for a batch older than the last committed one, unless onOlderBatch is skip.
        """
        if not query_id:
            raise InvalidRequest(
                "this Spark does not tell its tasks the query id: writing a stream exactly once needs 4.0 or later"
            )
        producer_id, again = self.options.producer_id, "set producerId to a new name"
        if producer_id is not None:
            again = f"start the query with a new checkpoint, which takes over producerId {producer_id!r}; or {again}"
        return self._commit(_stream_identity(self.journal, producer_id, query_id, batch_id), query_id, again)

    def _commit(self, identity: Identity, query_id: str, again: str) -> Committed | None:
        """again:  in words, how to have the batch written."""
        batch, options = identity.sequence, self.options
        rows = counted(sum(run.rows for upload in self.uploads for _, run in upload.slices), "row")
        identity = replace(identity, source=source_fingerprint(options.checkpoint, batch, options.location))
        check_restored(options, self.journal, identity)
        try:
            committed = self._commit_once(identity)
        except SequenceConflict as error:
            if not options.skip_older_batches:
                raise _refusal(error, query_id, batch, again) from None
            last = f"the last batch in the log is {error.last} (version {error.version})"
            notice(logging.WARNING, f"query {query_id}: batch {batch} is skipped, {rows} not written: {last}")
            return None
        if committed.repeated:
            done = f"batch {batch} is in the log since version {committed.version}"
            notice(logging.INFO, f"query {query_id}: {done}; its {rows} are not written again")
        return committed

    def _commit_once(self, identity: Identity) -> Committed:
        """Commit, and compare a replay with the commit in the log.  Raises SequenceConflict for other content."""
        committed = commit_uploads(self.journal, identity, self.epoch, self.uploads)
        if committed.repeated and self.options.dead_letters is None:
            self._check_topics(identity, committed)
        return committed

    def _check_topics(self, identity: Identity, committed: Committed) -> None:
        """Raises SequenceConflict for a replay without a common topic with the commit in the log, if those topics all
        exist.

        Without a dead-letter topic it is another write whose rows name their topics: a second sink of the query with
        the same name, or another job with the same version.
        """
        state = self.journal.state
        then = {topic_id for topic_id, _ in committed.ranges}
        now = {run.topic_id for upload in self.uploads for _, run in upload.slices}
        if then and not then & now and then <= set(state.names.values()):
            raise SequenceConflict(
                f"commit {identity.sequence} has rows of {_names(state, now)}, and in the log it has rows of "
                f"{_names(state, then)}: each sink of a query and each application needs a separate name",
                last=identity.sequence,
                version=committed.version,
            )


def _stream_identity(journal: Journal, producer_id: str | None, query_id: str, batch_id: int) -> Identity:
    """(query id, batch id); with a producerId, that is the name, and a new query id under it is a new epoch."""
    if producer_id is None:
        return Identity(producer=f"query:{query_id}", sequence=batch_id, dense=False)
    name = f"sink:{producer_id}"
    try:
        epoch = epoch_of_holder(journal.newest, name, query_id)
    except ProducerFenced:  # which only a confirmed state can say
        epoch = epoch_of_holder(journal.refresh(), name, query_id)
    return Identity(producer=name, sequence=batch_id, epoch=epoch, holder=query_id, dense=False)


def _names(state: State, topic_ids: Iterable[str]) -> str:
    return ", ".join(sorted(repr(state.topics[topic_id].name) for topic_id in topic_ids if topic_id in state.topics))


def _refusal(error: SequenceConflict, query_id: str, batch: int, again: str) -> SequenceConflict:
    why = "The checkpoint is behind the log: it lost files, or an older copy was restored"
    if batch < error.last:
        what = f"this is batch {batch}, and the last batch of the query in the log is {error.last} (version {error.version})"
    else:
        what = f"batch {batch} is in the log (version {error.version}) with other content ({error})"
        why += "; or the query gives other rows for the same input"
    refusal = SequenceConflict(
        f"query {query_id}: {what}. {why}. Rows that are not in the log yet would be lost. Restore "
        f"the newer checkpoint; or {again}: batches from {batch} on are written, and rows that are "
        f"in the log may then be there twice; or set onOlderBatch=skip: batches up to {error.last} "
        "are skipped, and rows of them that are not in the log are lost",
        last=error.last,
        version=error.version,
    )
    refusal.maybe_applied = error.maybe_applied
    return refusal
