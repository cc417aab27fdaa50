"""A folder that has lost `meta/format`, or all of `meta/`: no log begins there, and nothing is deleted."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import spark_log
from spark_log.client.log import Log
from spark_log.errors import InvalidRequest, SparkLogError, UnsupportedVersion
from spark_log.recovery.mirror import begin_mirror
from spark_log.recovery.repair import repair
from spark_log.store.base import ObjectStore
from spark_log.store.object_names import DATA, FORMAT_KEY, META, snapshot_key
from spark_log.store.open import open_store
from tests.conftest import Bucket

ROW = [{"value": b"x"}]
OBJECT = f"{DATA}{7:016x}/0123456789abcdef.seg"
numbers = itertools.count()


class Place(NamedTuple):
    """Where a log may be."""

    url: str
    options: dict[str, Any]

    @property
    def store(self) -> ObjectStore:
        return open_store(self.url, self.options)

    @property
    def files(self) -> list[str]:
        return [name for prefix in (META, DATA) for name in self.store.list(prefix)]

    def connect(self) -> Log:
        return spark_log.connect(self.url, storage_options=self.options)

    def lose(self, *prefixes: str) -> None:
        for prefix in prefixes:
            self.store.delete(self.store.list(prefix))


@pytest.fixture(params=["folder", "bucket", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "folder":
        yield Place(f"file://{tmp_path}/log", {})
    elif request.param == "memory":
        yield Place(f"memory://lost-{next(numbers)}", {})
    else:
        s3: Callable[[], Bucket] = request.getfixturevalue("s3")
        bucket = s3()
        yield Place(f"{bucket.url}/log", bucket.options)


def refused(place: Place, *texts: str) -> None:
    """No log begins in the place, and all files of it are as before."""
    before = place.files
    for create in (True, False):
        with pytest.raises(UnsupportedVersion) as found:
            spark_log.connect(place.url, storage_options=place.options, create=create)
        assert [text for text in texts if text not in str(found.value)] == []
    assert place.files == before


# Promise: storage-failures.md#when-the-metadata-is-damaged
@pytest.mark.parametrize(
    ("lost", "ways"),
    [
        ([META], ["pylog recover -u MIRROR", "another, empty folder", "addresses of the nodes"]),
        ([FORMAT_KEY], ["pylog repair"]),
        ([FORMAT_KEY, "meta/log/"], []),
        ([FORMAT_KEY, DATA], ["pylog repair"]),
    ],
)
def test_a_log_that_has_lost_metadata_is_not_taken_for_an_empty_folder(
    place: Place, lost: Sequence[str], ways: Sequence[str]
) -> None:
    """The maintenance of a second log would delete the records of the first one for good."""
    with place.connect() as log:
        log.append("t", ROW)
    place.lose(*lost)
    refused(place, "meta/format is missing, and ", *ways)


# Promise: storage-failures.md#when-the-metadata-is-damaged
def test_the_folder_of_a_quorum_is_not_taken_for_an_empty_one(place: Place) -> None:
    """Its metadata is on the nodes: without `meta/format`, its objects or the copies of the metadata show that."""
    place.store.put(OBJECT, [b"x"])
    refused(place, f"{OBJECT} is there", "leader writes the file again")
    place.store.put(snapshot_key(3, 7, "u"), [b"x"])
    refused(place, "meta/quorum/", "the records of a quorum", "pylog quorum restore")
    place.lose(DATA)
    refused(place, "the records of a quorum")


# Promise: storage-failures.md#when-the-metadata-is-damaged
@pytest.mark.parametrize("mark", ["meta/broker.json", "meta/log.json"])
def test_the_root_of_a_broker_is_not_taken_for_an_empty_folder(place: Place, mark: str) -> None:
    """The folder in it has the records."""
    place.store.put(mark, [b"{}"])
    refused(place, "is the root of a broker", mark)
    place.store.delete([mark])
    inner = Place(f"{place.url}/0123456789abcdef", place.options)
    inner.store.put(OBJECT, [b"x"])
    refused(inner, OBJECT)


# Promise: storage-failures.md#when-the-metadata-is-damaged
def test_unrelated_files_do_not_matter(place: Place) -> None:
    """Whatever a user or a desktop has put in the folder, a log begins there."""
    names = ("README.md", ".DS_Store", f"{DATA}orders.csv", f"{DATA}0001/part-0.parquet", f"{META}notes.txt")
    left = ("meta/probe/1234/000", "meta/quorum/README")
    for name in (*names, *left):
        place.store.put(name, [b"x"])
    begin_mirror(spark_log.connect(f"memory://source-{next(numbers)}"), place.store)
    place.store.delete([FORMAT_KEY])
    with place.connect() as log:
        assert log.cluster_id and place.store.size(names[0]) == 1


# Promise: storage-failures.md#when-the-metadata-is-damaged
def test_no_mirror_and_no_broker_begin_where_a_log_was(place: Place, tmp_path: Path) -> None:
    """Each has maintenance that deletes what it does not know."""
    place.store.put(snapshot_key(3, 7, "u"), [b"x"])
    keys = {f"1.{key}": place.options[key] for key in ("key", "secret") if key in place.options}
    with spark_log.connect(tmp_path / "other", storage_options=keys) as log:
        with pytest.raises(InvalidRequest, match=r"has meta/quorum/.*: a mirror begins in an empty folder"):
            begin_mirror(log, place.store)
        if not place.url.startswith("memory"):
            options = {key: value for key, value in place.options.items() if key == "endpoint_url"}
            with pytest.raises(InvalidRequest, match=r"has meta/quorum/.*: a broker begins in an empty folder"):
                log.admin.add_broker(1, place.url, storage_options=options)


def test_a_repair_says_what_is_there(place: Place) -> None:
    """There are no records or checkpoints to rebuild the metadata from."""
    place.store.put(OBJECT, [b"x"])
    with pytest.raises(SparkLogError, match=f"{OBJECT} is there"):
        repair(place.store, is_alive=lambda holder: False)
