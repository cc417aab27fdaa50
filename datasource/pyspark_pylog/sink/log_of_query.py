"""The log of a streaming query: the file `pylog/<hash of its root's URL>` in its checkpoint has the id of the log.

Spark's own files name no log.  A query begins a log for its first batch only, and writes to no other log later: the
batches that are done by its checkpoint would be missing there.  It may be that the disk of its log is not mounted, and
that the folder is empty or has another log; or that the log was restored from a backup.

Behind the id there is the log's history, if it was restored from a copy before.  In another history, the last batches
of the query may be missing: `check_restored` compares them before the next one is committed, and notes the history in
another file of the same kind: a query may have several sinks, and each of them is compared.
"""

from __future__ import annotations

import logging
from hashlib import blake2b

from pyspark_pylog.driver_log import notice
from pyspark_pylog.log.open_log import kept_journal, root_of
from pyspark_pylog.options.parse import WriteOptions
from pyspark_pylog.sink.source_offsets import checkpoint_store
from spark_log.client.open_journal import identity_of
from spark_log.client.producer.commit import Identity
from spark_log.errors import NoLog, ObjectNotFound, SequenceConflict, SparkLogError, WrongRoot
from spark_log.journal.journal import Journal
from spark_log.metadata.restores import history_of

_known: dict[tuple[str, str], str] = {}
"""By checkpoint and file, the texts that this process has read or written."""


def journal_to_write(options: WriteOptions, *, create: bool = True) -> Journal:
    """The log of a write, as `kept_journal` returns it.

    create:  create the log if there is none and the options allow it, unless it is that of a query which has written
             to it before.
    Raises NoLog, and WrongRoot if there is another log than that of the query.
    """
    create = create and options.create
    if options.checkpoint is None:
        return kept_journal(options.location, create=create)
    url, checkpoint = options.location.url, options.checkpoint
    name = _name(options)
    try:
        journal = kept_journal(options.location)
    except NoLog as error:
        if known := _read(options, checkpoint, name):
            reason = str(error).partition(", or create a log")[0]  # the query could not write to a new one
            raise NoLog(
                f"{reason}. {_had_batches(checkpoint, _id_in(known))}, which is not there any more: bring its disk back, or start the "
                "query with a new checkpoint"
            ) from None
        if not create:
            raise
        journal = kept_journal(options.location, create=True)
    if _id_in(_known.get((checkpoint, name), "")) != journal.cluster_id:
        known = _read(options, checkpoint, name)
        if known and _id_in(known) != journal.cluster_id:
            raise WrongRoot(
                f"{_had_batches(checkpoint, _id_in(known))}, and {url} has the log {journal.cluster_id}: another disk is in its "
                "place, or its disk is not mounted, and a new log was begun in the folder; or it was restored from a backup. "
                "Start the query with a new checkpoint if it is to write to this log. If this log has its earlier batches, "
                f"delete {checkpoint}/{name}"
            )
        _known[checkpoint, name] = known or _text_of(journal)
        if known == "":
            _note(options, checkpoint, name, _text_of(journal))
    return journal


def check_restored(options: WriteOptions, journal: Journal, identity: Identity) -> None:
    """Compare the batches of a sink with the log, if that was restored from a copy since the query began, or since the
    last comparison.

    Raises SequenceConflict if batches before this one are not in the log: it lost them, or they had no rows.  Not if
    older batches are to be skipped.
    """
    if options.checkpoint is None:
        return
    batch, now = identity.sequence, _text_of(journal)
    begun = _known.get((options.checkpoint, _name(options)), now)
    if begun == now:
        return
    place = options.checkpoint, _name(options, identity.producer)
    if (_known.get(place) or _read(options, *place)) == now:
        return
    name = identity_of(identity.producer, journal.state, options.location.url, options.location.token)
    known = journal.state.producers.get(name)
    last = -1 if known is None or known.holder != identity.holder else known.last
    if last < batch - 1 and not options.skip_older_batches:
        raise SequenceConflict(
            f"{options.location.url} was restored from an older copy since the query with the checkpoint "
            f"{options.checkpoint} has written to it. This is batch {batch}, and the last one in the log is "
            f"{'none' if last < 0 else last}: the rows of the batches in between are lost. To write "
            f"them again, start the query with a new checkpoint, at the source offsets of the last batch in the log; or "
            "set onOlderBatch=skip for one run, which continues without them",
            last=last,
            version=-1 if known is None else known.version,
        )
    _known[place] = now
    _note(options, *place, now)


def _name(options: WriteOptions, producer: str = "") -> str:
    return f"pylog/{blake2b((root_of(options.location) + producer).encode(), digest_size=8).hexdigest()}"


def _text_of(journal: Journal) -> str:
    return " ".join(filter(None, (journal.cluster_id, history_of(journal.state))))


def _id_in(text: str) -> str:
    return text.partition(" ")[0]


def _had_batches(checkpoint: str, known: str) -> str:
    return f"The query with the checkpoint {checkpoint} has written to the log {known}"


def _read(options: WriteOptions, checkpoint: str, name: str) -> str | None:
    """The id in the file; empty if there is none, None if it cannot be read here."""
    try:
        return checkpoint_store(checkpoint, options.location).get(name).decode()
    except ObjectNotFound:
        return ""
    except (SparkLogError, OSError, ImportError, ValueError) as error:
        notice(logging.INFO, f"{checkpoint}/{name} cannot be read ({error}): it is not known which log the query had")
        return None


def _note(options: WriteOptions, checkpoint: str, name: str, text: str) -> None:
    """Write the file."""
    try:
        store = checkpoint_store(checkpoint, options.location)
        if store.size("metadata") is not None:  # otherwise Spark's path is of another file system
            store.put(name, (text.encode(),))
    except (SparkLogError, OSError, ImportError, ValueError) as error:
        notice(logging.INFO, f"{checkpoint}/{name} cannot be written ({error}): the query may begin another log later")
