"""How the buffers of record batches are compressed: Arrow's codecs with their levels.  Readers need to know neither."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pyarrow as pa

from spark_log.configs.settings import topic_config

COMPRESSIONS = ("zstd", "lz4", "none")
DEFAULT_COMPRESSION = COMPRESSIONS[0]
"""Half the bytes of lz4 for a twentieth more CPU (docs/decisions/0019-zstd.md)."""


class Compression(NamedTuple):
    """A codec and its level."""

    codec: str
    """One of `COMPRESSIONS`."""
    level: int = 0
    """`none` has no levels."""

    def arrow_codec(self) -> pa.Codec | None:
        """The codec as Arrow takes it; None for `none`."""
        return None if self.codec == "none" else pa.Codec(self.codec, compression_level=self.level)


class TopicCompression(NamedTuple):
    """The compression of the new segments of a topic."""

    type: str
    """`compression.type`: a codec, or `producer`."""
    zstd_level: int
    lz4_level: int

    def of_writer(self, codec: str) -> Compression:
        """The compression by a writer that prefers `codec`, one of `COMPRESSIONS`."""
        codec = codec if self.type == "producer" else self.type
        return Compression(codec, {"zstd": self.zstd_level, "lz4": self.lz4_level}.get(codec, 0))


def topic_compression(configs: Mapping[str, str]) -> TopicCompression:
    """The compression of a topic with these configs."""
    return TopicCompression(
        topic_config(configs, "compression.type"),
        topic_config(configs, "compression.zstd.level"),
        topic_config(configs, "compression.lz4.level"),
    )


UNSET = topic_compression({}).of_writer(DEFAULT_COMPRESSION)
"""The compression without settings of the topic or the writer."""
