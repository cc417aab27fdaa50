"""The token of one tenant does nothing to the names and the requests of another one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

import spark_log
from spark_log import Log
from spark_log.client.producer.append import upload_rows
from spark_log.client.producer.commit import Identity, commit_uploads
from spark_log.client.producer.upload import Uploaded
from spark_log.errors import AuthorizationFailed, CorruptObject, InvalidRequest
from spark_log.metadata.commands import CreateTopic, Single
from spark_log.metadata.commits.decide_commits import Committed
from spark_log.metadata.formats.slice_index import IndexPart, decode_piece, encode_index
from spark_log.metadata.object_tags import tag_of_token, tagged
from spark_log.metadata.records import Copy
from spark_log.metadata.replay import next_version, replay_records
from spark_log.metadata.replicas.replica_commands import AddPendingCopies
from spark_log.metadata.state import State
from spark_log.model import DataObject, Slice
from spark_log.serve.serve import Running
from spark_log.server.claimed_copies import ClaimedCopy
from spark_log.server.shared_replicas import check_written
from spark_log.server.tokens import Grant, check_allowed, parse_tokens
from tests.server.asking import raw
from tests.services import Services
from tests.unit.metadata.test_commands import EXAMPLES

OWNER, THIEF, ADMIN = (f"{name}-token-of-the-tests" for name in ("owner", "thief", "admin"))
TOKENS = parse_tokens(
    {
        "owner": f"write {OWNER} own. shared group:own. producer:own.",
        "thief": f"write {THIEF} evil. shared group:evil. producer:evil.",
        "boss": f"admin {ADMIN}",
    }
)
QUERY = "01234567-89ab-cdef-0123-456789abcdef"
DRAWN = ["0123456789abcdef", f"query:{QUERY}", f"app:{QUERY}/totals:", f"app:{QUERY}/totals:shared"]


@pytest.fixture
def served(services: Services, tmp_path: Path) -> Running:
    running = services.start(tmp_path / "log", tokens=TOKENS)
    with connect(running, ADMIN) as log:
        for topic in ("own.x", "evil.x", "shared"):
            log.append(topic, [{"value": b"first"}])
    return running


def connect(running: Running, token: str | None) -> Log:
    return spark_log.connect(f"pylog://{running.coordinator.address}", token=token)


def write(log: Log, producer: str, sequence: int, topic: str, value: bytes = b"x") -> Committed:
    """Commit a row under an identity, as a query does."""
    epoch = log.journal.recent().version
    uploads = [upload_rows(log.journal, topic, [{"value": value}], epoch)]
    birth = epoch if ":" not in producer else -1
    return commit_uploads(
        log.journal, Identity(producer=producer, sequence=sequence, birth=birth, dense=False), epoch, uploads
    )


# Promise: security.md#who-may-use-a-name
@pytest.mark.parametrize("producer", DRAWN)
@pytest.mark.parametrize("topic", ["own.x", "shared"])
def test_an_identity_is_not_taken_before_or_after_its_first_commit(served: Running, producer: str, topic: str) -> None:
    """Its owner's batches are neither refused nor taken for repeats, and its own repeats are."""
    with connect(served, OWNER) as owner, connect(served, THIEF) as thief:
        theirs = "shared" if producer.endswith("shared") else "evil.x"
        write(thief, producer, 0, theirs)
        write(thief, producer, 7, theirs)
        first = write(owner, producer, 0, topic)
        write(thief, producer, 8, "shared" if topic == "shared" else theirs)
        assert not first.repeated and write(owner, producer, 0, topic).ranges == first.ranges
        write(thief, producer, 10**9, theirs)
        again = write(owner, producer, 1, topic)
        assert not again.repeated and write(owner, producer, 1, topic).repeated
        assert sum(name.endswith(producer) for name in owner.journal.refresh().producers) == 2


# Promise: security.md#who-may-use-a-name
def test_an_identity_with_a_topic_of_others_is_refused(served: Running) -> None:
    with connect(served, THIEF) as thief, pytest.raises(AuthorizationFailed, match=r"not 'own\.x'"):
        write(thief, f"app:{QUERY}/totals:own.x", 0, "evil.x")


# Promise: security.md#who-may-use-a-name
def test_an_owner_cannot_be_named(served: Running) -> None:
    """The name of the token is put before whatever a client sends."""
    with connect(served, OWNER) as owner, connect(served, THIEF) as thief:
        write(thief, f"@owner:query:{QUERY}", 5, "evil.x")
        assert not write(owner, f"query:{QUERY}", 0, "own.x").repeated
        assert f"@thief:@owner:query:{QUERY}" in owner.journal.refresh().producers


# Promise: security.md#who-may-use-a-name
def test_a_query_that_is_older_than_the_tokens_goes_on(services: Services, tmp_path: Path) -> None:
    """Its last batch is a repeat, for a token that may write its topics, and for no other one."""
    running = services.start(tmp_path / "log")
    with connect(running, None) as log:
        log.append("own.x", [{"value": b"x"}])
        before = write(log, f"query:{QUERY}", 3, "own.x")
        log.append("evil.x", [{"value": b"x"}])
    services.stop(running)
    running = services.start(tmp_path / "log", tokens=TOKENS)
    with connect(running, OWNER) as owner, connect(running, THIEF) as thief:
        write(thief, f"query:{QUERY}", 10**9, "evil.x")
        again = write(owner, f"query:{QUERY}", 3, "own.x")
        assert again.repeated and again.ranges == before.ranges
        assert not write(owner, f"query:{QUERY}", 4, "own.x").repeated


def test_a_producer_and_its_query_are_found_again_by_a_client_with_the_whole_state(served: Running) -> None:
    """A plain writer keeps its identity from commit to commit."""
    with connect(served, OWNER) as log:
        log.admin.list_topics()
        before = len(log.journal.refresh().producers)
        for _ in range(3):
            log.append("own.x", [{"value": b"x"}])
        assert len(log.journal.refresh().producers) == before + 1


# ---------------------------------------------------------------------------------------------------------------- objects


# Promise: security.md#who-may-use-a-name
def test_an_object_belongs_to_the_token_that_uploaded_it(served: Running) -> None:
    """Everybody who lists the bucket sees the objects of others before they are committed."""
    with connect(served, OWNER) as owner, connect(served, THIEF) as thief:
        epoch = owner.journal.recent().version
        upload = upload_rows(owner.journal, "shared", [{"value": b"secret"}], epoch)
        stolen = Identity(producer="evil", sequence=0, birth=epoch, dense=False)
        with pytest.raises(AuthorizationFailed, match="was not uploaded with the token 'thief'"):
            commit_uploads(thief.journal, stolen, epoch, [upload])
        done = commit_uploads(
            owner.journal, Identity(producer="own", sequence=0, birth=epoch, dense=False), epoch, [upload]
        )
        assert not done.repeated and owner.read("shared").column("value").to_pylist() == [b"first", b"secret"]


# Promise: security.md#who-may-use-a-name
def test_objects_of_maintenance_and_of_no_token_are_nobodys_either(served: Running) -> None:
    """A merge whose object was in the log already would be void."""
    with connect(served, THIEF) as thief:
        epoch = thief.journal.recent().version
        upload = upload_rows(thief.journal, "evil.x", [{"value": b"x"}], epoch)
        for name in ("0123456789abcdef.seg", f"x-{tag_of_token(OWNER)}.seg", f"x-{tag_of_token(THIEF)}.seg.seg"):
            objects = (DataObject(f"data/{epoch:016x}/{name}", *upload.objects[0][1:]),)
            other = Uploaded(objects, upload.slices)
            with pytest.raises(AuthorizationFailed, match="was not uploaded with"):
                commit_uploads(
                    thief.journal, Identity(producer=name, sequence=0, birth=epoch, dense=False), epoch, [other]
                )


def index_part(*names: str) -> IndexPart:
    """One slice of a record in each object."""
    slices = [Slice(number, number + 1, name, 0, 100, 7, 1, 0, 0) for number, name in enumerate(names)]
    return IndexPart("topic", 0, slices)


# Promise: security.md#who-may-use-a-name
def test_an_index_names_objects_of_its_own_token() -> None:
    """Entries for objects of others are not counted: maintenance would drop these with the last entry in the index."""
    own, other = (f"data/{0:016x}/{tagged('x', 'seg', tag_of_token(one))}" for one in (THIEF, OWNER))
    index = f"data/{0:016x}/{tagged('i', 'idx', tag_of_token(THIEF))}"
    data, (piece,) = encode_index(index, [index_part(own, own)])
    assert decode_piece(piece, data).num_rows == 2
    for name in (other, f"data/{0:016x}/0123456789abcdef.seg"):
        data, (piece,) = encode_index(index, [index_part(own, name)])
        with pytest.raises(CorruptObject, match="which another client has uploaded"):
            decode_piece(piece, data)
    merged = f"data/{0:016x}/0123456789abcdef.idx"  # maintenance has written it
    data, (piece,) = encode_index(merged, [index_part(own, other)])
    assert decode_piece(piece, data).num_rows == 2


# ------------------------------------------------------------------------------------------------------- large requests


def post(running: Running, token: str, body: bytes) -> tuple[int, bytes]:
    connection = HTTPConnection(running.coordinator.address, timeout=60)
    try:
        connection.request("POST", "/v1/commands", body, {"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def asked(running: Running, *commands: Any) -> bytes:
    return json.dumps({"cluster_id": running.coordinator.cluster_id, "since": 0, "commands": commands}).encode()


@pytest.fixture
def offsets(served: Running) -> bytes:
    """A commit of 150,000 positions, of 7 MB."""
    topic_id = served.coordinator.state.names["evil.x"]
    entries = [[topic_id, 0, number] for number in range(150_000)]
    return asked(served, {"type": "commit_offsets", "commit": ["evil.g", -1, entries]})


# Promise: service.md#as-a-service
def test_others_wait_for_one_large_request_at_most(served: Running, offsets: bytes) -> None:
    """However many are sent at the same time.  One after another, eight take several seconds."""
    with connect(served, OWNER) as log, ThreadPoolExecutor(8) as pool:
        began = time.monotonic()
        post(served, THIEF, offsets)
        one_s = time.monotonic() - began
        sent = [pool.submit(post, served, THIEF, offsets) for _ in range(8)]
        slowest_s, count = 0.0, 0
        while not all(one.done() for one in sent):
            began = time.monotonic()
            log.append("own.x", [{"value": b"x"}])
            slowest_s, count = max(slowest_s, time.monotonic() - began), count + 1
        assert all(one.result()[0] == 200 for one in sent)
        assert count > 8 and slowest_s < 4 * one_s + 0.5


# Promise: service.md#as-a-service
def test_a_commit_has_few_slices_and_a_request_few_commands(served: Running) -> None:
    """More slices are in an index object: all processes that open the log would read them otherwise."""
    topic_id, name = (
        served.coordinator.state.names["evil.x"],
        f"data/{0:016x}/{tagged('x', 'seg', tag_of_token(THIEF))}",
    )
    commit = {
        "type": "commit",
        "producer": "p",
        "sequence": 0,
        "upload_epoch": 0,
        "objects": [[name, 1000, 900]],
        "slices": [[0, [topic_id, 0, 0, 1, 1, 1, 1, 0, 0]]] * 1001,
    }
    status, body = post(served, THIEF, asked(served, {"type": "append", "commit": commit}))
    assert status == 200 and b"a commit has 1,001 slices, more than 1,000" in body
    beat = {"type": "sign_of_life", "group": "evil.g", "generation": 1}
    for commands in ([beat] * 10_001, [{"type": "several", "commands": [beat] * 10_001}]):
        status, body = post(served, THIEF, asked(served, *commands))
        assert status == 400 and b"10,001 in one request, more than 10,000" in body


# Promise: security.md#who-may-use-a-name
@pytest.mark.parametrize("topic_id", ["", "../../../meta/log/x", "a/b", "\x1b[31m", "x" * 65, ".", "ä"])
def test_an_id_of_a_topic_is_a_plain_word(served: Running, topic_id: str) -> None:
    """Names of objects that maintenance writes contain it; an empty one would have the log's configs."""
    create = {"type": "create_topic", "name": "evil.y", "partitions": 1, "topic_id": topic_id}
    status, body = post(served, THIEF, asked(served, create))
    assert status == 200 and b"is not an id" in body
    assert "evil.y" not in served.coordinator.state.names


# Promise: service.md#as-a-service
@pytest.mark.parametrize(
    "command",
    [
        {"type": "init_producer", "producer": "txn:evil." + 40_000 * "x"},
        {"type": "commit_offsets", "commit": ["evil." + 40_000 * "x", -1, []]},
        {"type": "join_group", "group": "evil.g", "member": 40_000 * "x"},
        {"type": "append", "commit": {"type": "commit", "producer": 40_000 * "x", "sequence": 0, "upload_epoch": 0}},
        {
            "type": "append",
            "commit": {"type": "commit", "producer": "p", "source": 40_000 * "x", "sequence": 0, "upload_epoch": 0},
        },
    ],
    ids=lambda command: str(command["type"]),
)
def test_names_have_a_length(served: Running, command: dict[str, Any]) -> None:
    """All clients that open the log have them in memory."""
    before = served.coordinator.state.version
    status, body = post(served, THIEF, asked(served, command))
    assert status == 400 and b"Expected `str` of length <= 32767" in body
    assert served.coordinator.state.version == before


# Promise: security.md#who-may-use-a-name
@pytest.mark.parametrize("command", EXAMPLES, ids=lambda command: type(command).__name__)
def test_a_limited_token_changes_nothing_of_others(command: Single) -> None:
    """Of whatever role, with any command: names of others, and what is about the whole log."""
    grant = Grant("evil", "admin", ("evil.",), ("evil.",), ("evil.",), tag_of_token(THIEF))
    state = replay_records(
        next_version(State(), 1), CreateTopic(name="t", partitions=2, topic_id="id")(State(), 1).records
    )
    if isinstance(command, AddPendingCopies):  # of no topic: it is checked where it is decided
        command = AddPendingCopies(copies=(Copy("data/0000000000000000/x.seg", 1, 1),))
        gone = frozenset({ClaimedCopy("data/0000000000000000/x.seg", 100, 1)})
        with pytest.raises(InvalidRequest, match="does not have"):
            check_written(grant, gone, command, state)
        return
    with pytest.raises(AuthorizationFailed):
        check_allowed(grant, command, state)


# Promise: security.md#who-may-use-a-name
def test_a_token_of_the_environment_names_pins_too() -> None:
    """Tasks may be on machines without the variable, and names without a token are known to all."""
    code = (
        "from pyspark_pylog.options.parse import write_options\n"
        "for url in ('pylog://127.0.0.1:1', '/tmp/x'):\n"
        "    print(write_options({'path': url, 'topic': 't'}, streaming=False).location.token)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYLOG_TOKEN": OWNER},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.split() == [OWNER, "None"]


# Promise: service.md#as-a-service
@pytest.mark.parametrize(("token", "status"), [("", b" 401 "), (THIEF, b" 400 ")])
def test_a_body_in_chunks_is_refused(served: Running, token: str, status: bytes) -> None:
    """No client of pylog sends one: 100 connections with chunks of five bytes held the appends of others for 3 s."""
    address = served.coordinator.address
    head = (
        f"POST /v1/commands HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    answer = raw(address, head.encode() + b"2\r\n{}\r\n", ended=False)
    assert status in answer.splitlines()[0] and (not token or b"Content-Length" in answer)
