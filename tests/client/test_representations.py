"""The API at a prompt and in a notebook: completion, lines of text, tables."""

from __future__ import annotations

import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import spark_log
from spark_log.client.admin.admin import Admin
from spark_log.client.admin.broker_views import BrokerDescription
from spark_log.client.admin.group_listing import GroupDescription
from spark_log.client.consumer.bookmark import Bookmark
from spark_log.client.consumer.consumer import Consumer
from spark_log.client.log import Log
from spark_log.client.producer.producer import Producer
from spark_log.client.producer.transaction import Transaction
from spark_log.client.representations import ROWS_MAX, HtmlDict, without_secrets
from spark_log.model import TopicPartition
from tests.client.logs import new_log

SECRETS = [
    ("s3://AKIA:hunter2@bucket/log", "s3://AKIA:***@bucket/log"),
    ("s3://AKIA:hun/ter@2@bucket/log", "s3://AKIA:***@bucket/log"),
    ("sftp://me:hunter2@host:22/log", "sftp://me:***@host:22/log"),
    ("abfs://box@account.dfs.core.windows.net/log?sig=hunter2", "abfs://box@account.dfs.core.windows.net/log?***"),
    ("pylog://host:9550", "pylog://host:9550"),
    ("/data/log", "/data/log"),
]


def broker(root: str) -> BrokerDescription:
    return BrokerDescription(1, root, "", "active", "", False, 0, 0, 0, 0, 0, 0, 1, "d", 0, 0, False)


def cells(page: str) -> list[list[str]]:
    """The rows of all tables; the page has to be well-formed."""
    return [["".join(cell.itertext()) for cell in row] for row in ET.fromstring(f"<div>{page}</div>").iter("tr")]


# Promise: clients.md#at-a-prompt-and-in-a-notebook
def test_completion_knows_all_public_names() -> None:
    """In a process that has used none of them, and each of them is there."""
    code = "import spark_log; names = dir(spark_log); print(*names); [getattr(spark_log, name) for name in names]"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == set(spark_log.__all__)


# Promise: clients.md#at-a-prompt-and-in-a-notebook
def test_completion_of_a_log_has_what_users_call(tmp_path: Path) -> None:
    """The journal, which has all of pylog's internals, is left out."""
    found = dir(new_log(tmp_path))
    assert {"append", "read", "consumer", "admin"} <= set(found) and "journal" not in found


# Promise: clients.md#at-a-prompt-and-in-a-notebook
def test_an_object_says_what_it_is_in_a_line(tmp_path: Path) -> None:
    """The URL of its log, the version, topics, and its state, before and after."""
    log = new_log(tmp_path, orders=2)
    producer, consumer = log.producer(), log.consumer("orders", group_id="billing")
    transaction, bookmark = log.transaction("etl-1"), log.bookmark("nightly", "orders")
    for one in (log, log.admin, producer, consumer, transaction, bookmark):
        text = repr(one)
        assert text.startswith(f"<{type(one).__name__} ") and text.endswith(">") and "\n" not in text
        assert f"at {log.url!r}, version {log.journal.state.version}, 1 topic" in text
    assert "no more" not in repr(producer) and "'etl-1'" in repr(transaction) and "not begun" in repr(transaction)
    assert "group 'billing', subscribed to ['orders'], 0 partitions, open" in repr(consumer)
    with transaction as txn:
        txn.append("orders", [{"value": "x"}])
        assert "open, epoch" in repr(txn)
    with bookmark:
        assert "1 record in this run" in repr(bookmark)
    consumer.poll()
    producer.close()
    assert "1 record committed" in repr(transaction)
    assert "2 partitions, open" in repr(consumer)
    consumer.close()
    assert "closed" in repr(consumer) and "takes no more records: the producer is closed" in repr(producer)


# Promise: clients.md#at-a-prompt-and-in-a-notebook
def test_a_line_needs_no_storage(tmp_path: Path) -> None:
    """The log's files are gone."""
    log = new_log(tmp_path, orders=2)
    found = [log, log.admin, log.producer(), log.consumer("orders"), log.transaction("t"), log.bookmark("b", "orders")]
    lines = list(map(repr, found))
    shutil.rmtree(tmp_path / "log")
    assert list(map(repr, found)) == lines


# Promise: clients.md#at-a-prompt-and-in-a-notebook
@pytest.mark.parametrize("kind", [Log, Admin, Producer, Consumer, Transaction, Bookmark])
def test_an_object_that_is_half_made_has_a_line(kind: type) -> None:
    """A debugger may show such an object, and so may a test that failed."""
    assert repr(kind.__new__(kind)) == f"<{kind.__name__}>"


# Promise: clients.md#at-a-prompt-and-in-a-notebook
@pytest.mark.parametrize(("url", "expected"), SECRETS)
def test_a_line_and_a_table_have_no_secret(url: str, expected: str) -> None:
    """Neither that of the log nor that of a broker."""
    assert without_secrets(url) == expected
    assert f"root={expected!r}" in repr(broker(url)) and expected in broker(url)._repr_html_()
    for text in (repr(broker(url)), broker(url)._repr_html_(), HtmlDict({"root": url})._repr_html_()):
        assert "hunter2" not in text and "ter@2" not in text


def test_a_log_with_many_topics_has_a_short_line(tmp_path: Path) -> None:
    """Eight of its names."""
    consumer = new_log(tmp_path).consumer(*(f"t{number:03}" for number in range(500)))
    assert len(repr(consumer)) < 300 and "'t007', …]" in repr(consumer)


# Promise: clients.md#at-a-prompt-and-in-a-notebook
def test_a_description_has_a_line_and_a_table(tmp_path: Path) -> None:
    """Partitions are counted in the line, and are rows of the table."""
    log = new_log(tmp_path, orders=3)
    log.append("orders", [{"value": "x", "partition": 2}])
    topics = log.admin.describe_topics()
    text = repr(topics["orders"])
    assert text.startswith("TopicDescription(name='orders', topic_id=") and "partitions=<3>" in text
    rows = cells(topics["orders"]._repr_html_())
    assert ["name", "orders"] in rows and [row[:4] for row in rows if row[0] == "2"] == [["2", "0", "1", "1"]]
    assert cells(topics._repr_html_())[1][:2] == ["orders", "orders"]
    assert "version=" in repr(log.admin.describe_cluster())


# Promise: clients.md#at-a-prompt-and-in-a-notebook
def test_lag_is_a_table(tmp_path: Path) -> None:
    """The table has topic, partition and records; the lag stays a dict."""
    log = new_log(tmp_path, orders=2)
    log.append("orders", [{"value": "x", "partition": 1}])
    lag = log.consumer("orders", auto_offset_reset="earliest").lag()
    assert lag == {("orders", 0): 0, ("orders", 1): 1} and repr(lag) == repr(dict(lag))
    assert cells(lag._repr_html_()) == [["topic", "partition", "value"], ["orders", "0", "0"], ["orders", "1", "1"]]


# Promise: clients.md#at-a-prompt-and-in-a-notebook
def test_a_table_escapes_what_it_shows() -> None:
    """Names of groups, metadata of offsets, and everything else that somebody else has chosen."""
    odd = '<script>alert("1")</script>&\u202e'
    group = GroupDescription(odd, "Stable", 1, [], protocol=odd)
    for page in (group._repr_html_(), HtmlDict({odd: odd})._repr_html_(), HtmlDict({odd: group})._repr_html_()):
        assert "<script" not in page and "\u202e" not in page
        assert [odd.replace("\u202e", "\\u202e") in "".join(row) for row in cells(page)].count(True) >= 1


# Promise: clients.md#at-a-prompt-and-in-a-notebook
def test_a_long_table_ends_with_the_number_of_the_others() -> None:
    """A notebook is not filled with a hundred thousand rows."""
    rows = cells(HtmlDict({TopicPartition("t", number): 0 for number in range(1000)})._repr_html_())
    assert len(rows) == ROWS_MAX + 2 and rows[-1] == ["… 800 more"]
