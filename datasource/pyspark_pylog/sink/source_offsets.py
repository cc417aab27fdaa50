"""The source offsets at the end of a micro-batch, from the query's checkpoint.

Spark writes `<checkpoint>/offsets/<batch id>` before it runs a batch: a line for the version, one of JSON with the time
of the batch, and one line for each source, which begins with the source's name if it has one.  A replayed batch has the
same file.  If the file was lost, the batch is planned again and has the same lines for the same records.  Spark's file
source is an exception: its offset counts lists of files, which are planned again as well, with the files of that time.
"""

from __future__ import annotations

import json
import logging
import re
from hashlib import blake2b

from pyspark_pylog.driver_log import notice
from pyspark_pylog.options.parse import Location
from pyspark_pylog.progress.offset_format import HISTORY, LOG, STARTS, TOPICS
from spark_log.errors import SparkLogError
from spark_log.store.base import ObjectStore
from spark_log.store.open import open_store

HEADER_LINES = 2
NAME = re.compile(r"\w+:(?=\{)", re.ASCII)
"""The name at the start of a line, for a source with `readStream.name("orders")`."""
KEPT = (TOPICS, LOG, HISTORY, STARTS)
"""Keys of pylog's sources that say which records the offsets mean."""
FILE_COUNTER = '"logOffset"'
"""In the line of a file source."""
_unreadable: set[str] = set()
"""Checkpoints that this process does not read again: each attempt may take as long as the storage's retries."""


def checkpoint_store(checkpoint: str, location: Location) -> ObjectStore:
    """The store of a query's checkpoint, with the storage options of its log if it is not a folder.

    Raises SparkLogError, OSError, ImportError and ValueError if it cannot be used here.
    """
    storage = location.storage if ":" in checkpoint and not checkpoint.startswith("file:") else {}
    return open_store(checkpoint, storage)


def source_fingerprint(checkpoint: str | None, batch_id: int, location: Location) -> str:
    """A fingerprint of the source offsets of a batch; empty if the checkpoint is unknown or unreadable here."""
    if checkpoint is None or checkpoint in _unreadable:
        return ""
    try:
        text = checkpoint_store(checkpoint, location).get(f"offsets/{batch_id}").decode()
    except (SparkLogError, OSError, ImportError, ValueError) as error:
        if not (isinstance(error, SparkLogError) and error.retriable):
            _unreadable.add(checkpoint)
        notice(
            logging.INFO,
            f"the checkpoint {checkpoint} cannot be read ({error}): a repeated batch is recognised by its rows alone",
        )
        return ""
    return fingerprint_of(text)


def fingerprint_of(text: str) -> str:
    """Fingerprint of a file of offsets; empty for a file without offsets.  With a file source, also of the whole file,
    which has the time of the plan."""
    lines = text.splitlines()[HEADER_LINES:]
    if not lines:
        return ""
    offsets = _digest("\n".join(map(_position, lines)))
    return f"{offsets}@{_digest(text)}" if any(FILE_COUNTER in line for line in lines) else offsets


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=8).hexdigest()


def _position(line: str) -> str:
    """The record offsets in a source's line, without pylog's extra keys, which change if a batch is planned again."""
    named = NAME.match(line)
    prefix = named[0] if named else ""
    try:
        found = json.loads(line.removeprefix(prefix))
    except ValueError:
        return line
    if isinstance(found, dict):
        found = {name: value for name, value in found.items() if not name.startswith("@") or name in KEPT}
    return prefix + json.dumps(found, sort_keys=True)
