"""The contract, on every store that tests can have; and what stores refuse."""

from __future__ import annotations

import os
import random
import subprocess
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path

import boto3
import pytest
import s3fs
from fsspec.implementations.local import LocalFileSystem

import spark_log
from simulation.harness.store_contract import ObjectStoreContract
from simulation.harness.stores import Faults, FaultyStore, MeteredStore, NotExclusiveStore, Wrapper
from spark_log.errors import InvalidRequest, NoCredentials, ObjectNotFound, StorageError, StoreNotExclusive
from spark_log.store.base import ObjectStore
from spark_log.store.fsspec_options import typed_options
from spark_log.store.local import LocalStore
from spark_log.store.memory import MemoryStore
from spark_log.store.object_names import log_key
from spark_log.store.open import open_store
from spark_log.store.probe import probe, probe_once
from spark_log.store.remote import FsspecStore, check_deleted
from spark_log.store.retry import RetryingStore
from tests.conftest import Bucket


class TestMemory(ObjectStoreContract):
    shared_by_processes = False

    @pytest.fixture
    def store(self) -> ObjectStore:
        return MemoryStore(uuid.uuid4().hex)


class TestMetered(TestMemory):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return MeteredStore(MemoryStore(uuid.uuid4().hex))


def test_a_meter_counts_as_an_object_store_bills() -> None:
    """A listing is a request for each 1,000 names; a put over an existing name is one too, and writes nothing."""
    store = MeteredStore(MemoryStore(uuid.uuid4().hex))
    names = [f"data/0/{number}" for number in range(1500)]
    for name in names:
        store.put(name, [b"12", b"3"])
    assert store.put_new("meta/format", b"12345") and not store.put_new("meta/format", b"12345")
    assert store.list("data/") == sorted(names) and store.list("none/") == []
    assert (store.get(names[0]), store.size(names[0]), store.written_ms(names[0])) == (b"123", 3, None)
    store.delete(names)
    assert store.requests == {"put": 1500, "put_new": 2, "list": 3, "get": 1, "size": 2, "delete": 2}
    assert store.written == {"data/0/": 4500, "meta/": 5}


class TestLocalDisk(ObjectStoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        return LocalStore(str(tmp_path))

    def raw_get(self, store: ObjectStore, key: str) -> bytes:
        assert isinstance(store, LocalStore)
        return (Path(store.root) / key).read_bytes()

    def test_no_temporary_file_is_left(self, store: ObjectStore) -> None:
        """Neither by a put, nor by a lost race, nor by a source that breaks."""
        store.put("a", [b"x"])
        store.put_new("b", b"x")
        store.put_new("b", b"y")
        assert isinstance(store, LocalStore)
        assert sorted(os.listdir(store.root)) == ["a", "b"]

    def test_folders_that_a_delete_empties_go(self, store: ObjectStore) -> None:
        """There is one for each upload epoch; the root stays."""
        store.put("data/0/a", [b"x"])
        store.put("data/1/a", [b"x"])
        store.delete(["data/0/a"])
        assert isinstance(store, LocalStore)
        assert os.listdir(f"{store.root}/data") == ["1"]
        store.delete(["data/1/a"])
        assert os.listdir(store.root) == []


class TestLocalWithoutSync(TestLocalDisk):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        return LocalStore(str(tmp_path), durability="os")


class TestS3(ObjectStoreContract):
    @pytest.fixture
    def store(self, s3: Callable[[], Bucket]) -> ObjectStore:
        self.bucket = s3()
        return FsspecStore(f"{self.bucket.url}/some/prefix", self.bucket.options)

    def raw_get(self, store: ObjectStore, key: str) -> bytes:
        client = boto3.client(
            "s3",
            endpoint_url=self.bucket.options["endpoint_url"],
            aws_access_key_id="key",
            aws_secret_access_key="secret",
            region_name="us-east-1",
        )
        bucket, _, folder = self.bucket.url.removeprefix("s3://").partition("/")
        answer = client.get_object(Bucket=bucket, Key=f"{folder}/some/prefix/{key}")
        data: bytes = answer["Body"].read()
        return data


# Promise: storage.md#storage
def test_a_store_that_looks_before_it_puts_is_refused() -> None:
    """The probe finds two winners."""
    store = NotExclusiveStore(MemoryStore(uuid.uuid4().hex))
    with pytest.raises(StoreNotExclusive, match="concurrent writers got the answer that they created one name"):
        probe(store, nonce="n")


class FsspecLocalStore(Wrapper):
    """The part that this library lacks: fsspec's own exclusive create, on a disk."""

    def put_new(self, key: str, data: bytes) -> bool:
        fs = LocalFileSystem(auto_mkdir=True)
        try:
            fs.pipe_file(f"{self.url}/{key}", data, mode="create")
        except FileExistsError:
            return False
        return True


def test_fsspec_s_create_on_a_disk_is_refused(tmp_path: Path) -> None:
    """It looks before it writes, in microseconds: only writers that meet find that out."""
    with pytest.raises(StoreNotExclusive):
        probe(FsspecLocalStore(LocalStore(str(tmp_path))), nonce="n")
    assert list(tmp_path.rglob("*")) == []


def test_a_process_runs_the_races_once_for_a_file_system(tmp_path: Path, mount: Callable[[str], Path]) -> None:
    """Another file system, and a store that is not the disk's own, have theirs."""
    disk = mount("size=1m")
    assert probe_once(RetryingStore(LocalStore(str(disk / "a" / "log"))), nonce="n")
    assert not probe_once(LocalStore(str(disk / "b"), durability="os"), nonce="n")
    assert probe_once(LocalStore(str(mount("size=1m"))), nonce="n")
    with pytest.raises(StoreNotExclusive):
        probe_once(FsspecLocalStore(LocalStore(str(disk))), nonce="n")
    assert not list(disk.rglob("probe"))


def test_a_process_runs_the_races_once_for_a_bucket(s3: Callable[[], Bucket]) -> None:
    first, second = s3(), s3()
    probe_once(FsspecStore(first.url, first.options), nonce="n")
    assert not probe_once(FsspecStore(second.url, second.options), nonce="n")
    with pytest.raises(StorageError, match="no such bucket"):
        probe_once(FsspecStore("s3://other/log", second.options), nonce="n")


class IgnoringStore(Wrapper):
    """As clients that drop a condition which they do not know."""

    def put_new(self, key: str, data: bytes) -> bool:
        self.inner.put(key, [data])
        return True


# Promise: storage.md#storage
def test_a_store_that_ignores_the_condition_is_refused() -> None:
    """No race is needed to see it."""
    with pytest.raises(StoreNotExclusive, match="a second create of a name succeeded"):
        probe(IgnoringStore(MemoryStore(uuid.uuid4().hex)), nonce="n")


def test_a_probe_that_cannot_go_on_says_why() -> None:
    """The writers that wait for the one that failed do not hang, and nothing stays behind."""
    inner = MemoryStore(uuid.uuid4().hex)
    denied = StorageError("access denied")
    with pytest.raises(StorageError, match="access denied"):
        probe(FailsLater(inner, random.Random(1), Faults(errors={"meta/probe/n/005": denied})), nonce="n")
    assert inner.list("meta/") == []


class FailsLater(FaultyStore):
    """May delete what it may not put."""

    def delete(self, keys: Iterable[str]) -> None:
        self.inner.delete(keys)


def test_a_folder_that_cannot_be_written_is_named_and_no_object_in_it() -> None:
    missing = StorageError("/x/meta/probe/n/000: No such file or directory")
    inner = MemoryStore(uuid.uuid4().hex)
    with pytest.raises(StorageError, match=f"^{inner.url} cannot be written: No such file or directory$"):
        probe(FaultyStore(inner, random.Random(1), Faults(errors={"meta/probe/n/000": missing})), nonce="n")


def test_the_probe_lives_with_lost_answers() -> None:
    """An unknown outcome does not count as a win."""
    inner = MemoryStore(uuid.uuid4().hex)
    probe(_Unsure(inner, random.Random(1), Faults(lost_answer=0.0)), nonce="n")
    assert inner.list("meta/") == []


class _Unsure(FaultyStore):
    """Loses answers of races only: the first create is not repeated by anybody."""

    def put_new(self, key: str, data: bytes) -> bool:
        if not key.endswith("000") and self._rng.random() < 0.2:
            self.inner.put_new(key, data)
            self._faults = Faults(lost_answer=1.0)
        try:
            self._answer(key)
        finally:
            self._faults = Faults()
        return self.inner.put_new(key, data)


def test_faults_hit_the_keys_that_they_name() -> None:
    """And no others."""
    denied = StorageError("access denied")
    store = FaultyStore(MemoryStore(uuid.uuid4().hex), random.Random(1), Faults(errors={"meta/": denied}))
    store.put("data/0/a", [b"x"])
    with pytest.raises(StorageError, match="access denied"):
        store.put_new("meta/log/1", b"x")


# Promise: storage.md#storage, storage.md#what-is-refused
@pytest.mark.parametrize(
    ("url", "said"),
    [
        (
            "kafka://host:9092",
            "url: kafka://host:9092 cannot have a log, because the scheme is unknown; give a path, or ",
        ),
        ("hdfs://host/log", "clients overwrite names, or hang in forked processes; give a path, or "),
        ("http://host/log", "cannot create a name exclusively"),
        ("pylog://host:9550", "coordinator"),
        ("s3://", "names no bucket"),
        ("s3:/bucket/log", "names no bucket"),
        ("s3://bucket/a/../log", "relative path"),
        ("webhdfs://host/log", "cannot create a name exclusively"),
        ("dbfs:/mnt/log", "cannot create a name exclusively"),
        ("file://data/log", "file:///data/log"),
        ("file://", "has no path"),
        ("file:rel/log", "a relative path without a scheme, as in rel/log"),
        ("127.0.0.1:9550", "a coordinator is pylog://127.0.0.1:9550, and a folder ./127.0.0.1:9550"),
        ("", "has no path"),
    ],
)
def test_a_url_that_cannot_carry_a_log_is_refused_with_the_reason(url: str, said: str) -> None:
    """Before anything is written."""
    with pytest.raises(InvalidRequest, match=said):
        open_store(url)


@pytest.mark.parametrize(
    ("url", "root"),
    [
        ("/data/log", "/data/log"),
        ("file:///data/log", "/data/log"),
        ("file://localhost/data/log", "/data/log"),
        ("file:/data/log", "/data/log"),
        ("file:///data/a%20b", "/data/a b"),
        ("file:///data/a#b", "/data/a#b"),
        ("log", f"{os.getcwd()}/log"),
        ("~/log", os.path.expanduser("~/log")),
    ],
)
def test_a_path_may_be_written_as_people_do(url: str, root: str) -> None:
    """Hadoop writes one slash; the store's own URL leads back to it."""
    store = open_store(url)
    assert isinstance(store, LocalStore) and store.root == root
    again = open_store(store.url)
    assert isinstance(again, LocalStore) and again.root == root


def test_an_azure_url_may_name_its_account() -> None:
    """As Spark's users write it."""
    store = FsspecStore("abfss://logs@acme.dfs.core.windows.net/a/b", {})
    assert store.url == "abfs://logs@acme.dfs.core.windows.net/a/b"
    assert store._path("meta/format") == "logs/a/b/meta/format"


def test_s3a_is_s3(s3: Callable[[], Bucket]) -> None:
    """Spark's users write s3a."""
    bucket = s3()
    open_store(bucket.url.replace("s3://", "s3a://") + "/x", bucket.options).put("a", [b"x"])
    assert open_store(f"{bucket.url}/x", bucket.options).get("a") == b"x"


def test_storage_options_may_be_text(s3: Callable[[], Bucket]) -> None:
    """Spark's options are: JSON, true and false are taken for what they are."""
    bucket = s3()
    options = {
        "key": "key",
        "secret": "secret",
        "client_kwargs": f'{{"endpoint_url": "{bucket.options["endpoint_url"]}"}}',
        "anon": "false",
    }
    store = open_store(bucket.url, options)
    store.put("a", [b"x"])
    assert store.get("a") == b"x"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"anon": "perhaps"}, "anon: 'perhaps' is neither true nor false"),
        ({"max_concurrency": "many"}, "max_concurrency: 'many' is not a whole number"),
        ({"client_kwargs": "{region"}, "client_kwargs is not JSON"),
        ({"config_kwargs": "5"}, "config_kwargs: '5' is not a JSON object"),
        ({"endpiont_url": "http://localhost"}, "endpiont_url"),
    ],
)
def test_a_wrong_storage_option_is_told_by_its_name(options: dict[str, str], said: str) -> None:
    """Immediately: the storage is not just unavailable."""
    with pytest.raises(InvalidRequest, match=said):
        open_store("s3://bucket/log", {"key": "key", "secret": "secret", **options}).get("a")


# Promise: storage.md#credentials-and-endpoints
def test_text_is_taken_for_what_its_parameter_is() -> None:
    """A key of digits is a text, a number of requests is none."""
    given = {"key": "123", "anon": "0", "max_concurrency": "4", "default_block_size": "8", "use_ssl": True}
    assert typed_options(s3fs.S3FileSystem, given) == {
        "key": "123",
        "anon": False,
        "max_concurrency": 4,
        "default_block_size": 8,
        "use_ssl": True,
    }


def test_a_bucket_that_is_not_there_is_told(s3: Callable[[], Bucket]) -> None:
    """With its URL."""
    with pytest.raises(StorageError, match="s3://not-there/log: no such bucket"):
        spark_log.connect("s3://not-there/log", s3().options)


# Promise: storage.md#credentials-and-endpoints
def test_missing_credentials_are_told_with_the_cure(s3: Callable[[], Bucket]) -> None:
    """As a task sees it whose driver alone had them in its environment."""
    bucket = s3()
    with pytest.raises(NoCredentials, match="no credentials .* storage.key"):
        spark_log.connect(f"{bucket.url}/log", {"endpoint_url": bucket.options["endpoint_url"]})


def test_a_delete_that_the_bucket_refuses_for_one_key_is_told() -> None:
    """S3 answers with success then."""
    check_deleted({})
    with pytest.raises(PermissionError, match="delete of a/b: AccessDenied no"):
        check_deleted({"Errors": [{"Key": "a/b", "Code": "AccessDenied", "Message": "no"}]})
    with pytest.raises(OSError, match="delete of c: SlowDown"):
        check_deleted({"Errors": [{"Key": "c", "Code": "SlowDown"}]})


def test_storage_options_of_a_local_path_are_refused(tmp_path: Path) -> None:
    """Otherwise they would be ignored without notice."""
    with pytest.raises(InvalidRequest, match=r"storage options \(key\) are for buckets, and .* is a local path"):
        spark_log.connect(str(tmp_path), {"key": "k"})


def test_a_file_in_the_way_is_told(tmp_path: Path) -> None:
    """The path and what to do."""
    (tmp_path / "log").write_text("a file")
    with pytest.raises(StorageError, match="a file is in the way of a directory"):
        spark_log.connect(str(tmp_path / "log"))


def test_a_full_disk_is_told_and_leaves_nothing_half_written(mount: Callable[[str], Path]) -> None:
    """Existing data is read as before, and nothing temporary stays."""
    root = mount("size=1m")
    log = spark_log.connect(str(root))
    log.append("t", [{"value": "fits"}])
    with pytest.raises(StorageError, match="No space left on device; free some space"):
        log.append("t", [{"value": os.urandom(900_000)}, {"value": os.urandom(900_000)}])
    assert log.read("t")["value"].to_pylist() == [b"fits"]
    assert list(root.rglob(".tmp-*")) == []
    assert log.append("t", [{"value": "fits again"}])


def test_a_read_only_disk_can_be_read_and_says_why_it_cannot_be_written(mount: Callable[[str], Path]) -> None:
    """Reading needs no write."""
    root = mount("size=4m")
    spark_log.connect(str(root)).append("t", [{"value": "x"}])
    subprocess.run(["mount", "-o", "remount,ro", str(root)], check=True)
    log = spark_log.connect(str(root))
    assert log.read("t").num_rows == 1
    with pytest.raises(StorageError, match="Read-only file system; mount it for writing"):
        log.append("t", [{"value": "y"}])


IN_THE_WAY = "a file of the log has this name: see what is there, and remove it or move it elsewhere"


@pytest.mark.parametrize("later", [1, 2])
def test_a_directory_with_the_name_of_a_record_is_told(tmp_path: Path, later: int) -> None:
    """A commit there is certainly not applied, and the log continues when the directory is gone."""
    log = spark_log.connect(str(tmp_path), durability="os")
    log.append("t", [{"value": b"a"}])
    folder = tmp_path / log_key(log.journal.refresh().version + later)
    folder.mkdir()
    for _ in range(later - 1):
        log.append("t", [{"value": b"b"}])
    with pytest.raises(StorageError, match=IN_THE_WAY) as error:
        log.append("t", [{"value": b"lost"}])
    assert not error.value.maybe_applied
    other = spark_log.connect(str(tmp_path))
    assert other.read("t").num_rows == later  # its readers do not need that name
    with pytest.raises(StorageError, match=IN_THE_WAY):
        other.append("t", [{"value": b"c"}])
    folder.rmdir()
    log.append("t", [{"value": b"d"}])
    assert [row["value"] for row in log.read("t").to_pylist()] == [b"a", *[b"b"] * (later - 1), b"d"]


@pytest.mark.parametrize("key", ["meta/format", "meta/broker"])
def test_a_directory_in_place_of_a_file_is_told(tmp_path: Path, key: str) -> None:
    store = LocalStore(str(tmp_path))
    (tmp_path / key).mkdir(parents=True)
    for call in (lambda name: store.put(name, [b"x"]), lambda name: store.put_new(name, b"x")):
        with pytest.raises(StorageError, match=IN_THE_WAY):
            call(key)
    with pytest.raises(ObjectNotFound, match=f"{key} is not a file"):
        store.get(key)
    assert store.size(key) is None
    assert store.list("meta/") == []


def test_a_pipe_or_a_broken_link_is_not_an_object(tmp_path: Path) -> None:
    """Nobody waits for the writer of the pipe, and a new object does not take a name that it cannot have."""
    store = LocalStore(str(tmp_path))
    (tmp_path / "meta").mkdir()
    os.mkfifo(tmp_path / "meta" / "pipe")
    (tmp_path / "meta" / "link").symlink_to(tmp_path / "nowhere")
    for key in ("meta/pipe", "meta/link"):
        with pytest.raises(ObjectNotFound):
            store.get(key)
        with pytest.raises(StorageError, match=IN_THE_WAY):
            store.put_new(key, b"x")


def test_a_marker_with_the_name_of_a_record_is_not_in_the_way_in_a_bucket(s3: Callable[[], Bucket]) -> None:
    """There a key with a slash at its end is another key."""
    bucket = s3()
    log = spark_log.connect(f"{bucket.url}/log", bucket.options)
    log.append("t", [{"value": b"a"}])
    fs = s3fs.S3FileSystem(**bucket.options)
    for later in (1, 2):
        key = log_key(log.journal.refresh().version + later)
        fs.pipe_file(f"{bucket.url}/log/{key}/", b"")
    log.append("t", [{"value": b"b"}])
    again = spark_log.connect(f"{bucket.url}/log", bucket.options)
    assert [row["value"] for row in again.read("t").to_pylist()] == [b"a", b"b"]
