"""Codecs and levels: which a topic's configs choose, and that Arrow takes each of them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_log.configs.config_types import Whole
from spark_log.configs.settings import TOPIC_CONFIGS
from spark_log.segment.arrays import ipc
from spark_log.segment.compression import COMPRESSIONS, Compression, topic_compression
from tests.unit.segment.builders import numbered, read, write

LEVELS = {
    "zstd": [-131072, -1, 0, 1, 3, 19, 22],
    "lz4": range(1, 18),
}


def bounds(codec: str) -> Whole:
    kind = TOPIC_CONFIGS[f"compression.{codec}.level"].kind
    assert isinstance(kind, Whole)
    return kind


def encoded(codec: str | pa.Codec) -> bytes:
    return ipc.encode_batch(numbered(5000), pa.ipc.IpcWriteOptions(compression=codec, use_threads=False))


# Promise: topic-configs.md#topics
@pytest.mark.parametrize("codec", LEVELS)
def test_arrow_takes_every_level_of_the_range(codec: str) -> None:
    """Both ends and some between: records come back as they were written."""
    assert (min(LEVELS[codec]), max(LEVELS[codec])) == (bounds(codec).minimum, bounds(codec).maximum)
    for level in LEVELS[codec]:
        data, written = write([("t", 0, numbered(200))], compression=Compression(codec, level))
        assert read(data, written)["t", 0].to_batches()[0].equals(numbered(200))


@pytest.mark.parametrize("codec", LEVELS)
def test_the_default_level_is_arrows(codec: str) -> None:
    """A topic without configs is written byte by byte as before the levels were in force."""
    level = topic_compression({}).of_writer(codec).level
    assert level == pa.Codec.default_compression_level(codec) == 1
    assert encoded(pa.Codec(codec, compression_level=level)) == encoded(codec)


def test_levels_change_the_size() -> None:
    """Negative levels of zstd are larger; higher levels are smaller, where there is something to find."""
    sizes = [len(encoded(pa.Codec("zstd", compression_level=level))) for level in (-100, -1, 1, 22)]
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == 4
    assert len(encoded(pa.Codec("lz4", compression_level=9))) < len(encoded("lz4"))


# Promise: topic-configs.md#topics
def test_the_page_says_which_levels_are_equal() -> None:
    """Level 0 of zstd is 3; levels of lz4 above 12 are 12."""
    assert encoded(pa.Codec("zstd", compression_level=0)) == encoded(pa.Codec("zstd", compression_level=3))
    assert encoded(pa.Codec("lz4", compression_level=17)) == encoded(pa.Codec("lz4", compression_level=12))


# Promise: topic-configs.md#topics
def test_the_topic_goes_before_the_writer_and_its_levels_hold_for_both() -> None:
    """`producer` leaves the codec to the writer, not its level."""
    configs = {"compression.zstd.level": "9", "compression.lz4.level": "4"}
    expected = {"zstd": Compression("zstd", 9), "lz4": Compression("lz4", 4), "none": Compression("none")}
    for codec in COMPRESSIONS:
        assert topic_compression(configs).of_writer(codec) == expected[codec]
        for writer in COMPRESSIONS:
            assert topic_compression({**configs, "compression.type": codec}).of_writer(writer) == expected[codec]
