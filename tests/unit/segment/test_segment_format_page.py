"""The page that documents the format shows what is really written."""

from __future__ import annotations

import re
from pathlib import Path

from spark_log.segment.batch_index import TAIL, VERSION
from spark_log.segment.compression import Compression
from spark_log.segment.reader import parse_index
from tests.unit.segment.builders import START_US, records, write

PAGE = Path(__file__).parents[3] / "docs" / "format" / "segment.md"
_LINE = re.compile(r"^([0-9a-f]{8})  ((?:[0-9a-f]{2} ?)+) +\|", re.MULTILINE)


def shown() -> dict[int, int]:
    """Position and value of every byte in the page's dump."""
    dump = PAGE.read_text(encoding="utf-8").split("```hexdump\n")[1]
    return {
        int(start, 16) + number: byte
        for start, line in _LINE.findall(dump)
        for number, byte in enumerate(bytes.fromhex(line))
    }


# Promise: format/segment.md#an-object-byte-by-byte, format/segment.md#tail, storage.md#what-is-where
def test_the_dump_is_what_the_writer_writes() -> None:
    """Every byte shown is written there; the run and the tail are shown whole."""
    data, written = write([("topic-id", 0, records([(b"k", b"v", START_US)]))], compression=Compression("none"))

    found = shown()

    assert {position: data[position] for position in found} == found
    assert set(range(written.index_position)) | set(range(len(data) - TAIL.size, len(data))) <= set(found)
    assert f"{written.size:,} bytes" in PAGE.read_text(encoding="utf-8")


# Promise: format/segment.md#index
def test_the_page_names_the_version_and_every_column_of_the_index() -> None:
    """A column of the writer that is missing on the page is noticed here."""
    page = PAGE.read_text(encoding="utf-8")
    index = parse_index(write([])[0], name="x")

    assert f"format version {VERSION}\n" in page
    assert [name for name in index.table.column_names if f"`{name}`" not in page] == []
