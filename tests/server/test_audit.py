"""The audit of a coordinator: a line for each change, with who asked for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import spark_log
from spark_log.errors import AuthorizationFailed, TopicAlreadyExists
from tests.processes import Process, free_port
from tests.server.asking import ADMIN, BILLING, connect, eventually

CONF = f"""
[audit]
file = {{}}
[tokens]
boss = admin {ADMIN}
billing = write {BILLING} billing. group:billing.
"""
SECRET = b"not for the audit"


class Audited:
    """A process that writes an audit."""

    def __init__(self, folder: Path, destination: str) -> None:
        self.file, self.said = folder / "audit.log", folder / "said"
        conf = folder / "coordinator.ini"
        conf.write_text(CONF.format(destination))
        self.process = Process(folder / "log", free_port(), "--conf", str(conf), stderr=self.said)
        self.address = self.process.address

    def lines(self, file: Path | None = None) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (file or self.file).read_text().splitlines() if line.startswith("{")]

    def last(self, change: str) -> dict[str, Any]:
        return [line for line in self.lines() if line["change"] == change][-1]


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Audited]:
    folder = tmp_path_factory.mktemp("audited")
    found = Audited(folder, str(folder / "audit.log"))
    yield found
    assert found.process.terminate() == 0


# Promise: security.md#audit
def test_a_commit_of_records_has_a_line_without_their_data(audited: Audited) -> None:
    """Time, token, address, kind, topics, producer, outcome, and the version of the log that has it."""
    with connect(audited.address, BILLING) as log:
        log.append("billing.invoices", [{"key": SECRET, "value": SECRET}])
        with log.transaction("billing.t") as txn:
            txn.send("billing.invoices", SECRET)
    line = audited.last("append")
    assert set(line) == {
        *("time", "principal", "address", "change", "topics", "groups", "producers", "outcome", "version")
    }
    assert line["time"].endswith("+00:00") and line["version"] > 0
    assert (line["principal"], line["address"], line["outcome"]) == ("billing", "127.0.0.1", "done")
    assert (line["topics"], line["producers"]) == (["billing.invoices"], ["txn:billing.t"])
    assert audited.last("create_topic")["topics"] == ["billing.invoices"]
    assert SECRET.decode() not in audited.file.read_text()


# Promise: security.md#audit
def test_what_was_refused_has_a_line_with_the_reason(audited: Audited) -> None:
    """By the token, or by the log itself."""
    with connect(audited.address, BILLING) as log:
        with pytest.raises(AuthorizationFailed):
            log.admin.create_topics([spark_log.NewTopic("orders")])
        line = audited.last("create_topic")
        assert (line["outcome"], line["error"], line["topics"]) == ("refused", "AuthorizationFailed", ["orders"])
        assert "begin with billing., not 'orders'" in line["reason"] and "version" not in line
        log.admin.create_topics([spark_log.NewTopic("billing.twice")])
        with pytest.raises(TopicAlreadyExists):
            log.admin.create_topics([spark_log.NewTopic("billing.twice")])
        assert audited.last("create_topic")["error"] == "TopicAlreadyExists"


# Promise: security.md#audit
def test_members_have_lines_and_heartbeats_have_none(audited: Audited) -> None:
    """Joining, leaving, and commits of positions."""
    with connect(audited.address, BILLING) as log:
        log.append("billing.read", [{"value": SECRET}])
        consumer = log.consumer("billing.read", group_id="billing.g", heartbeat_interval_ms=100)
        consumer.poll(5000)
        consumer.commit()
        eventually(lambda: not consumer.poll(500))
        consumer.close()
        with pytest.raises(AuthorizationFailed):
            log.consumer("billing.read", group_id="others").poll(5000)
    lines = [line for line in audited.lines() if line["groups"]]
    assert {line["change"] for line in lines} == {"join_group", "commit_offsets", "leave_group"}
    assert {(line["outcome"], *line["groups"]) for line in lines} == {("done", "billing.g"), ("refused", "others")}
    refused = next(line for line in lines if line["outcome"] == "refused")
    assert (refused["change"], refused["topics"]) == ("join_group", ["billing.read"])


# Promise: security.md#audit
def test_the_file_can_be_rotated(audited: Audited) -> None:
    """Renamed, and reopened on SIGHUP; no line is lost."""
    with connect(audited.address, ADMIN) as log:
        log.append("rotated", [{"value": b"1"}])
        old = audited.file.rename(audited.file.with_suffix(".1"))
        log.append("rotated", [{"value": b"2"}])
        assert audited.lines(old)[-1]["topics"] == ["rotated"] and not audited.file.exists()
        count = len(audited.lines(old))
        audited.process.reload()
        eventually(audited.file.exists)
        log.append("rotated", [{"value": b"3"}])
    assert len(audited.lines(old)) == count
    assert [line["principal"] for line in audited.lines()] == ["boss"]


# Promise: security.md#audit
def test_it_may_go_to_standard_error(tmp_path: Path) -> None:
    """Beside what the coordinator says."""
    audited = Audited(tmp_path, "stderr")
    with connect(audited.address, ADMIN) as log:
        log.append("t", [{"value": b"1"}])
    assert audited.process.terminate() == 0
    assert [line["change"] for line in audited.lines(audited.said)] == ["create_topic", "append"]
    assert " leads file:" in audited.said.read_text()
