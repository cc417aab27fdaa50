"""The id of a log that has lost `meta/format`.

Brokers, mirrors, backups, exports and the checkpoints of streaming queries have the id, and belong to no log with
another one.  The log's own checkpoints and the roots of its brokers can be asked; otherwise, the operator gives it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial

from spark_log.errors import CorruptObject, InvalidRequest, SparkLogError, WrongRoot
from spark_log.journal.store_operations import Get, Steps
from spark_log.log_lines import logger
from spark_log.metadata.formats.batch_format import decode_batch
from spark_log.metadata.formats.checkpoint_format import log_of_checkpoint
from spark_log.metadata.records import Batch, TakeOverRecord
from spark_log.roots.broker_roots import BrokerFile, Roots, read_broker_file
from spark_log.roots.root_owner import owner_of, refuse_copy
from spark_log.store.bounded_waits import Slot, Unfinished
from spark_log.store.object_names import FORMAT_KEY

RECORD = "a record of a coordinator"
"""It may have the id of the log, as the roots of brokers do."""
NEW_ID = "new"
"""Given in place of an id: the log gets another one."""
ANSWER_S = 10.0
"""How long a root may take to answer."""
_ID = re.compile("[0-9a-f]{32}")


def ids_of_brokers(roots: Roots) -> dict[str, str]:
    """By broker, as `broker 1`, the id in the mark of its root.  Leaves out roots that are away or another broker's."""
    found = dict[str, str]()
    for broker, known in sorted(roots.brokers.items()):
        try:
            mark = Slot[BrokerFile | None]().answer(partial(_mark, roots, broker), ANSWER_S)
        except (SparkLogError, OSError, Unfinished) as error:
            logger.warning("the mark of broker %d cannot be read: %s", broker, error or "no answer")
            continue
        if mark is not None and (mark.broker, mark.directory) == (broker, known.directory):
            found[f"broker {broker}"] = mark.cluster_id
    return found


def log_of_brokers(roots: Roots) -> str:
    """URL of the log, as the root of a broker has it; empty if none that answers has one."""
    for broker in sorted(roots.brokers):
        try:
            if url := Slot[str]().answer(partial(_owner_of, roots, broker), ANSWER_S):
                return url
        except (SparkLogError, OSError, Unfinished) as error:
            logger.warning("the owner of the root of broker %d cannot be read: %s", broker, error or "no answer")
    return ""


def _owner_of(roots: Roots, broker: int) -> str:
    return owner_of(roots.root(broker))


def id_in_records(records: Sequence[str]) -> Steps[str]:
    """The id of the log in the newest record of a coordinator; empty if there is none.

    records:  names of the records that there are, in order.
    """
    for key in reversed(records):
        batch = yield from batch_of(key)
        for record in () if batch is None else batch.records:
            if isinstance(record, TakeOverRecord):
                return record.cluster_id
    return ""


def ids_in_checkpoints(names: Sequence[str]) -> Steps[dict[str, str]]:
    """By checkpoint, the id of the log in it."""
    found = dict[str, str]()
    for name in names:
        try:
            found[name] = log_of_checkpoint((yield Get(name)) or b"", name)
        except CorruptObject:
            continue
    return {name: one for name, one in found.items() if one}


def batch_of(key: str) -> Steps[Batch | None]:
    """The records of a version; None if unreadable."""
    try:
        return decode_batch((yield Get(key)) or b"", key)
    except CorruptObject:
        return None


def check_is_no_copy(roots: Roots) -> None:
    """Raises WrongRoot if the root of a broker belongs to another log with this id: this one is a mirror of that.

    Roots that are away are passed over.
    """
    for broker in sorted(roots.brokers):
        try:
            Slot[None]().answer(partial(_refuse_copy, roots, broker), ANSWER_S)
        except WrongRoot:
            raise
        except (SparkLogError, OSError, Unfinished) as error:
            logger.warning("the owner of the root of broker %d cannot be read: %s", broker, error or "no answer")


def _refuse_copy(roots: Roots, broker: int) -> None:
    refuse_copy(roots.root(broker), roots.own.url)


def _mark(roots: Roots, broker: int) -> BrokerFile | None:
    return read_broker_file(roots.root(broker))


def choose_id(
    url: str, known: Mapping[str, str], given: str, present: str, command: str = "pylog repair"
) -> tuple[str, str]:
    """The holder of a log's id, "" if nothing here has it, and the id, "" if it is to be new.

    known:    ids by what has them.
    given:    by the operator, or `NEW_ID`; empty: nothing.
    present:  the id in `meta/format`; empty: the file is lost.
    command:  to run again with the id.
    Raises InvalidRequest if the id is not certain.
    """
    ids = sorted(set(known.values()))
    says = "; ".join(f"{source} has {one}" for source, one in sorted(known.items()))
    if given and ids and given not in ids:
        raise InvalidRequest(f"{given!r} is not the id of the log at {url}: {says}")
    if given and given != NEW_ID and given not in ids and not _ID.fullmatch(given):
        raise InvalidRequest(
            f"invalid id of a log: {given!r}: it has 32 digits of 0-9 and a-f, and `pylog cluster info -u MIRROR` shows it"
        )
    if given == NEW_ID and present:
        raise InvalidRequest(
            f"{url} has the id {present} in {FORMAT_KEY}: a new one is only for a log that has lost it"
        )
    if given:
        source = next((source for source, one in sorted(known.items()) if one == given), "")
        return source, "" if given == NEW_ID else given
    if len(ids) > 1:
        raise InvalidRequest(
            f"{url}/{FORMAT_KEY} is missing, and the id is not certain: {says}; run `{command} --cluster-id ID -u {url}`"
        )
    if not ids:
        raise InvalidRequest(
            f"{url}/{FORMAT_KEY} is missing, and no record, no checkpoint and no root of a broker has the id of the log. Brokers, mirrors, "
            "backups, exports and streaming queries of this log work with its id only, so give it: "
            f"`{command} --cluster-id ID -u {url}`. It is in `pylog cluster info -u MIRROR`, in backups.json beside the backups, in pylog/ of a "
            "query's checkpoint, in meta/broker.json of a broker's root, and in the logs of clients. If there is none of "
            f"these, `{command} --cluster-id new -u {url}` makes another one"
        )
    return next(source for source in known), ids[0]
