"""The bounds of numbers, strings and bytes in commands, records and requests, as types; and of decoded bytes.  Pure.

A decoder refuses a number outside of them.  So each number of the state fits its columns and Kafka's
protocol, and sums of sizes do as well.  A plain `int` has no bounds, and is in no command, record or request.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, MsgspecError

INT16_MAX = 2**15 - 1
INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
OPAQUE_BYTES_MAX = 1 << 20
STATS_BYTES_MAX = 256
"""Bytes of the statistics of a slice (segment/statistics.py)."""
DECODED_FREE = 16 << 20
"""Bytes that a few bytes of a storage may become when they are decoded."""
DECODED_RATIO_MAX = 100
"""How many bytes each byte may become, if they are more.  Writers store what would become more without compression."""
UNREADABLE = (MsgspecError, UnicodeDecodeError, RecursionError)
"""Errors of decoding JSON that is damaged, or of another program."""

Int = Annotated[int, Meta(ge=0, le=INT_MAX)]
"""Number of a partition, broker or group; a count; a level; a timeout."""
IntOrLess = Annotated[int, Meta(ge=-INT_MAX - 1, le=INT_MAX)]
"""An int of Kafka's protocol, in which negative values have a meaning: a generation, `acks`."""
Long = Annotated[int, Meta(ge=0, le=LONG_MAX)]
"""An offset or a position; a version, epoch or sequence; milliseconds."""
LongOrNone = Annotated[int, Meta(ge=-1, le=LONG_MAX)]
"""A `Long`, or -1, which stands for none."""
AnyLong = Annotated[int, Meta(ge=-LONG_MAX - 1, le=LONG_MAX)]
"""A number that a user gives: the decision refuses it with a message that names the topic."""
Time = AnyLong
"""Microseconds since 1970 of a record, which may be earlier."""
Size = Annotated[int, Meta(ge=0, le=2**43)]
"""Bytes of an object, or of a part: 8 TiB, so that a sum over a million of them is a `Long`."""
Checksum = Annotated[int, Meta(ge=0, le=2**32 - 1)]
"""crc32c."""
TimeKind = Annotated[int, Meta(ge=0, le=2)]
"""How a slice has its times (model.py)."""
Wait = Annotated[int, Meta(ge=0, le=10**18)]
"""Milliseconds that a request waits, at most as long as the server allows."""


Text = Annotated[str, Meta(max_length=INT16_MAX)]
"""A name, an id or a value of a config: as long as a string of Kafka's protocol."""
TEXT = "text"
Known = Annotated[Text, Meta(extra={TEXT: "known"})]
"""A text that is looked up, or compared with what pylog draws: not a new name (metadata/new_names.py)."""
Free = Annotated[Text, Meta(extra={TEXT: "free"})]
"""A text of a user in which all characters are allowed.  Outputs escape it."""
Document = Annotated[str, Meta(max_length=4 << 20)]
"""A schema, which has 10,000 columns at most."""
Opaque = Annotated[bytes, Meta(max_length=OPAQUE_BYTES_MAX)]
"""Metadata or assignment of one member of a group: as much as Kafka allows for all members (`message.max.bytes`).
Those of all members have a limit, too (`GroupConfig.metadata_bytes_max`)."""
Stats = Annotated[bytes, Meta(max_length=STATS_BYTES_MAX)]
"""Statistics of the data columns of a slice; empty: it has none."""


def decoded_bytes_max(length: int) -> int:
    """The bytes that so many bytes of a storage, or of a peer, may become when they are decoded."""
    return max(DECODED_FREE, DECODED_RATIO_MAX * length)
