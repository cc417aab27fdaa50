"""`jobs/admin.py`: topics become what a file says, and nothing changes if anything in the file is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark_pylog.jobs import admin as job
from pyspark_pylog.jobs.admin_changes import plan_changes
from pyspark_pylog.jobs.admin_file import Declared, DeclaredGroup, Problems

from spark_log import Log, NewTopic, TopicPartition, connect
from spark_log.errors import ConcurrentChange, InvalidRequest, NoLog, SparkLogError
from spark_log.metadata.groups.group_commands import JoinGroup
from spark_log.positions import Earliest
from tests.replication.replicated_logs import put, replicated_log
from tests.spark.builders import environment
from tests.spark.submitted import JOBS, finished, submitted

DECLARED = """
topics:
  orders:
    partitions: 3
    configs:
      retention.ms: 86400000
      cleanup.policy: [compact, delete]
      min.cleanable.dirty.ratio: 0.25
  payments:
    partitions: 2
  audit:
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "topics.yaml"
    found.write_text(DECLARED)
    return found


def run(log: Log, verb: str, file: Path, *more: str) -> tuple[dict[str, Any], int]:
    """Summary and exit status."""
    return job.administer(job.parse_args(["--url", log.url, verb, str(file), *more]))


def topics(log: Log) -> dict[str, tuple[int, dict[str, str]]]:
    return {name: (len(found.partitions), found.configs) for name, found in log.admin.describe_topics().items()}


WANTED = {
    "orders": (
        3,
        {"retention.ms": "86400000", "cleanup.policy": "delete,compact", "min.cleanable.dirty.ratio": "0.25"},
    ),
    "payments": (2, {}),
    "audit": (1, {}),
}


# Promise: tasks/topics.md#what-changes
def test_the_first_topics_of_a_new_log(tmp_path: Path, file: Path) -> None:
    """With --create only, and not for a file that is refused."""
    url, root = f"file://{tmp_path}/new", tmp_path / "new"

    def applied(verb: str, *more: str) -> tuple[dict[str, Any], int]:
        return job.administer(job.parse_args(["--url", url, verb, str(file), *more]))

    with pytest.raises(NoLog, match="there is no log at"):
        applied("apply")
    summary, status = applied("plan", "--create")
    assert (status, summary["create"], root.exists()) == (3, ["audit", "orders", "payments"], False)
    file.write_text(f"{DECLARED}    partition: 3\n")
    with pytest.raises(InvalidRequest, match="audit"):
        applied("apply", "--create")
    assert not root.exists()
    file.write_text(DECLARED)
    assert applied("apply", "--create") == ({**summary, "verb": "apply"}, 0)
    assert topics(connect(url, create=False)) == WANTED
    assert applied("apply", "--create")[0]["changes"] == 0


# Promise: tasks/topics.md#describe-topics-in-a-file
def test_a_plan_names_all_changes_and_makes_none(log: Log, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 3; afterwards `apply` makes them, and there is nothing left."""
    summary, status = run(log, "plan", file)
    assert (status, summary["changes"], summary["create"]) == (3, 3, ["audit", "orders", "payments"])
    assert "+ payments: create with 2 partitions\n" in capsys.readouterr().out
    assert topics(log) == {}
    assert run(log, "apply", file)[1] == 0
    assert topics(log) == WANTED
    for verb in ("plan", "apply"):
        summary, status = run(log, verb, file)
        assert (status, summary["changes"]) == (0, 0)


# Promise: tasks/topics.md#what-changes
def test_a_topic_that_differs_is_altered(log: Log, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Partitions are added; configs are set and unset; what the file leaves out stays."""
    log.admin.create_topics(
        [
            NewTopic("orders", 1, {"retention.ms": "5000", "retention.bytes": "9"}),
            NewTopic("payments", 2, {"retention.ms": "7000"}),
            NewTopic("other", 4),
        ]
    )
    assert run(log, "plan", file)[1] == 3
    said = capsys.readouterr().out.splitlines()
    assert "~ orders: partitions 1 -> 3" in said
    assert "~ orders: retention.bytes 9 -> (default)" in said
    assert "~ orders: retention.ms 5000 -> 86400000" in said
    run(log, "apply", file)
    assert topics(log) == {**WANTED, "payments": (2, {"retention.ms": "7000"}), "other": (4, {})}


# Promise: tasks/topics.md#what-changes
def test_a_topic_is_deleted_only_if_file_and_command_say_so(
    log: Log, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plan has the number of its records; a topic that does not exist needs no deletion."""
    log.append("old", [{"value": "v"}] * 3)
    file.write_text("topics: {old: {delete: true}, older: {delete: true}, new: {}}")
    assert run(log, "plan", file)[1] == 3
    assert "- old: delete with 3 records" in capsys.readouterr().out
    with pytest.raises(InvalidRequest, match="nothing was changed: .* --allow-delete is not given"):
        run(log, "apply", file)
    assert set(topics(log)) == {"old"}
    run(log, "apply", file, "--allow-delete")
    assert set(topics(log)) == {"new"}


# Promise: operations.md#jobs, tasks/topics.md#what-changes
def test_all_changes_are_one_commit(log: Log, file: Path) -> None:
    """So a job that is killed has made all of them, or none."""
    log.admin.create_topics([NewTopic("orders", 1, {"retention.bytes": "9"}), NewTopic("old", 1)])
    file.write_text(f"{DECLARED}\n  old: {{delete: true}}\ngroups: {{g: {{positions: {{payments: 0}}}}}}\n")
    before = log.journal.refresh().version
    run(log, "apply", file, "--allow-delete")
    assert topics(log) == WANTED and len(log.admin.list_consumer_group_offsets("g")) == 2
    assert log.journal.refresh().version == before + 1


def positions(log: Log, group: str) -> dict[str, int]:
    found = log.admin.list_consumer_group_offsets(group)
    return {f"{tp.topic}-{tp.partition}": at.offset for tp, at in found.items()}


# Promise: tasks/topics.md#what-changes
def test_groups_begin_where_the_file_says(log: Log, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In partitions where they have no position, also in new ones; --reset-groups moves them in the others, too."""
    log.append("t", [{"value": "v"}] * 5)
    log.admin.alter_consumer_group_offsets("moved", {TopicPartition("t", 0): 4})
    declared = {
        "begins": {"positions": {"t": "latest-2", "new": {1: "latest"}}},
        "moved": {"positions": {"t": 1, "new": "earliest"}},
    }
    file.write_text(json.dumps({"topics": {"new": {"partitions": 2}}, "groups": declared}))
    summary, status = run(log, "plan", file)
    assert (status, summary["positions"]["moved"]) == (3, {"new-0": 0, "new-1": 0})
    assert "+ group begins: t-0 -> 3" in capsys.readouterr().out.splitlines()
    run(log, "apply", file)
    assert positions(log, "begins") == {"t-0": 3, "new-1": 0}
    assert positions(log, "moved") == {"t-0": 4, "new-0": 0, "new-1": 0}
    capsys.readouterr()
    summary, status = run(log, "plan", file)
    assert (status, summary["kept"]) == (0, {"moved": {"t-0": {"offset": 4, "file": "1"}}})
    said = "nothing to change\ngroup moved keeps t-0 at 4 (file: 1); --reset-groups sets it\n"
    assert capsys.readouterr().out == said
    assert run(log, "plan", file, "--reset-groups")[1] == 3
    assert "~ group moved: t-0 4 -> 1" in capsys.readouterr().out.splitlines()
    run(log, "apply", file, "--reset-groups")
    assert positions(log, "moved")["t-0"] == 1 and run(log, "plan", file, "--reset-groups")[1] == 0


# Promise: tasks/topics.md#what-changes
def test_a_group_that_commits_after_the_plan_keeps_its_position(log: Log) -> None:
    """Also if the changes were made, the answer was lost, and they are sent again."""
    log.append("t", [{"value": "v"}] * 5)
    declared = Declared({}, {"g": DeclaredGroup({"t": {None: Earliest()}})}, {}, Problems(Path("topics.yaml")))
    plan = plan_changes(log.journal, declared)
    plan.commit()
    plan.commit()
    log.admin.alter_consumer_group_offsets("g", {TopicPartition("t", 0): 4})
    with pytest.raises(ConcurrentChange, match="group 'g': another run has committed since this one began"):
        plan.commit()
    assert positions(log, "g") == {"t-0": 4} and plan_changes(log.journal, declared).changes.positions == {}


# Promise: tasks/topics.md#what-changes
def test_a_group_is_deleted_only_if_file_and_command_say_so(log: Log, file: Path) -> None:
    """A group that does not exist needs no deletion.  One that is in use is refused, and nothing is changed."""
    log.append("t", [{"value": "v"}])
    log.admin.alter_consumer_group_offsets("old", {TopicPartition("t", 0): 1})
    file.write_text("topics: {u: {}}\ngroups: {old: {delete: true}, older: {delete: true}}")
    assert run(log, "plan", file)[0]["delete_groups"] == ["old"]
    with pytest.raises(InvalidRequest, match="--allow-delete is not given"):
        run(log, "apply", file)
    log.journal.propose(JoinGroup(group="old", member="m", token="x", owner="a query", timeout_ms=60_000))
    with pytest.raises(InvalidRequest, match="group old is held by a query"):
        run(log, "apply", file, "--allow-delete")
    assert topics(log).keys() == {"t"}
    log.admin.remove_members_from_consumer_group("old")
    run(log, "apply", file, "--allow-delete")
    assert log.admin.list_consumer_groups() == [] and topics(log).keys() == {"t", "u"}


def replicas(log: Log, topic: str) -> list[tuple[int, ...]]:
    return [part.replicas for part in log.admin.describe_topics([topic])[topic].partitions]


# Promise: tasks/topics.md#what-changes
def test_replicas_are_moved(tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By a factor or by hand, of topics old and new, also if min.insync.replicas changes with them.  A second run has
    nothing to do while the records move."""
    log = replicated_log(tmp_path, brokers=3)
    put(log, [0, 1, 2, 3])
    log.admin.create_topics([NewTopic("u", 2), NewTopic("v", 1)])
    declared = {
        "t": {"replication_factor": 1},
        "u": {"replication_factor": 2, "partitions": 3, "configs": {"min.insync.replicas": 2}},
        "v": {"replicas": [[1, 2], [2, 1]]},
        "w": {"replicas": [[3, 1], [2, 3]]},
        "x": {"replication_factor": 3},
    }
    file.write_text(json.dumps({"topics": declared}))
    assert run(log, "plan", file)[1] == 3
    said = capsys.readouterr().out.splitlines()
    assert {"~ v-0: replicas 0 -> 1,2", "+ w: create with 2 partitions, replicas 3,1 2,3"} <= {*said}
    summary, _ = run(log, "apply", file)
    assert [summary["moving"], len(summary["replicas"])] == [1, 5], "only t has records"
    assert [len(one) for topic in "ux" for one in replicas(log, topic)] == [2, 2, 2, 3]
    assert replicas(log, "v") == [(1, 2), (2, 1)] and replicas(log, "w") == [(3, 1), (2, 3)]
    summary, status = run(log, "plan", file)
    assert (status, summary["changes"]) == (0, 0)
    file.write_text(json.dumps({"topics": {"u": {"replication_factor": 1, "configs": {}}}}))
    run(log, "apply", file)
    assert [len(one) for one in replicas(log, "u")] == [1, 1, 1]


# Promise: tasks/topics.md#kafkas-reassignments
def test_a_file_of_kafkas_reassignments(tmp_path: Path, file: Path) -> None:
    """As of kafka-reassign-partitions, and of `pylog reassign generate`; an error names the entry."""
    log = replicated_log(tmp_path)
    entries = [{"topic": "t", "partition": 0, "replicas": [2, 1]}]
    file.write_text(json.dumps({"version": 1, "partitions": entries}))
    summary, status = run(log, "plan", file)
    assert (status, summary["replicas"]) == (3, {"t-0": (2, 1)})
    run(log, "apply", file)
    assert replicas(log, "t") == [(2, 1)] and run(log, "plan", file)[1] == 0
    file.write_text(json.dumps({"partitions": [*entries, {"topic": "t", "partition": 7, "replicas": [2]}]}))
    with pytest.raises(SparkLogError, match=r"partitions\[1\]: topic 't' has no partition 7"):
        run(log, "apply", file)


# Promise: tasks/topics.md#kafkas-reassignments
def test_all_faults_of_a_file_of_kafkas_are_named_together(tmp_path: Path, file: Path) -> None:
    """Those of the file, of the log, and of entries that the log refuses for a reason of their topic; nothing moves."""
    log = replicated_log(tmp_path)
    log.admin.create_topics([NewTopic("u", 2, {"min.insync.replicas": "2"}, replication_factor=2)])
    before = [*replicas(log, "t"), *replicas(log, "u")]
    entries = [
        {"topic": "t", "partition": 0, "replicas": [2, 1]},
        {"topic": "t", "partition": 7, "replicas": [2]},
        {"topic": "t", "partition": 1, "replicas": []},
        {"topic": "gone", "partition": 0, "replicas": [1]},
        {"topic": "u", "partition": 0, "replicas": [1, 9]},
        {"topic": "t", "partition": 0, "replicas": [1]},
        {"topic": "u", "partition": 1, "replicas": [1]},
    ]
    file.write_text(json.dumps({"partitions": entries}))
    with pytest.raises(InvalidRequest) as raised:
        run(log, "apply", file)
    found = str(raised.value).splitlines()
    expected = [
        f"{file} has 6 errors:",
        'partitions[2]: "replicas" is []',
        "partitions[5]: partition t-0 is in the file twice",
        "partitions[1]: topic 't' has no partition 7",
        "partitions[3]: topic 'gone' does not exist",
        "partitions[4]: unknown broker 9: ",
        "partition u-1: ",
    ]
    assert len(found) == len(expected)
    assert all(line.strip().startswith(one) for line, one in zip(found, expected, strict=True))
    assert [*replicas(log, "t"), *replicas(log, "u")] == before


# Promise: tasks/topics.md#what-changes
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("topics: [a]", "expected `topics` to be a mapping"),
        ("topic: {a: {}}", "expected the keys `topics` and `groups`"),
        ("topics: {a: {replication_factor: 0}}", "replication_factor: expected a number of 1 or more"),
        ("topics: {a: {replicas: [1, 2]}}", "expected a list of broker ids for each partition"),
        ("topics: {a: {replicas: [[1]], replication_factor: 1}}", "leave out `replication_factor`"),
        ("topics: {a: {replicas: [[1]], partitions: 2}}", "`replicas` has 1 partition, and `partitions` is 2"),
        ("topics: {a: {replicas: [[7]]}}", "topic a: "),
        ("topics: {known: {replication_factor: 3}}", "topic known: "),
        ("groups: {g: {}}", "group g: expected `positions`"),
        ("groups: {g: {positions: {known: soon}}}", "the position in known: 'soon' is not a position"),
        ("groups: {g: {positions: {known: {x: 1}}}}", "expected the number of a partition, and found 'x'"),
        ("groups: {g: {positions: {known: {2: 1}}}}", "topic 'known' has no partition 2"),
        ("groups: {g: {positions: {known: 9}}}", "group g: offset 9 of known-0 is out of range"),
        ("topics: {a: {}}\ngroups: {g: {positions: {a: 1}}}", "offset 1 of a-0 is out of range: the partition is new"),
        ("topics: {a: {}, a: {}}", "topics.yaml, line 1, column 27: 'a' is there twice"),
        ("topics: {a: {", "topics.yaml, line 1, column 24: expected the node content, but found '<stream end>'"),
        ("topics: {a: {}}\n# \x07", "topics.yaml, line 2, column 3: the character '\\x07' is not allowed"),
        ("topics: {a: {partition: 3}}", "topic a: unknown key 'partition': did you mean partitions?"),
        ("topics: {a: {partitions: 0}}", "partitions: expected a number of 1 or more, and found 0"),
        ("topics: {a: {partitions: true}}", "partitions: expected a number of 1 or more, and found True"),
        ("topics: {a: {configs: {retention.msec: 5}}}", "did you mean retention.ms?"),
        ("topics: {a: {configs: {retention.ms: soon}}}", "soon"),
        ("topics: {a: {configs: {retention.ms: {}}}}", "expected a text, a number, true, false or a list"),
        ("topics: {a: {configs: [x]}}", "configs: expected a mapping"),
        ("topics: {a: {delete: maybe}}", "delete: expected true or false, and found 'maybe'"),
        ("topics: {a: {delete: true, partitions: 1}}", "has no other keys"),
        ("topics: {5: {}}", "the name is an int: put it into quotes"),
        ("topics: {a b: {}}", "has a space"),
        ("topics: {known: {partitions: 1}}", "it has 2 partitions, and they cannot become 1"),
    ],
)
def test_a_wrong_file_changes_nothing(log: Log, file: Path, text: str, said: str) -> None:
    """Even if its other topics are fine; the error names the topic and what was expected."""
    log.admin.create_topics([NewTopic("known", 2)])
    file.write_text(text.replace("topics: {", "topics: {fine: {}, ", 1))
    with pytest.raises(SparkLogError, match=".*") as raised:
        run(log, "apply", file)
    assert said in str(raised.value)
    assert topics(log) == {"known": (2, {})}


FAULTY = """
topics:
  orders: {partitions: 1, replication_factor: 9, configs: {retention.mss: 5, segment.ms: soon, segment.bytes: 2000000}}
  new1: {replicas: [[7], [1, 1], [7, 8]], partitons: 3, configs: {min.insync.replicas: 3}}
  new2: {partitions: 0, replication_factor: 9}
  new3: {partitions: 2, configs: {min.insync.replicas: 3}}
  fine: {partitions: 2}
groups:
  a: {positions: {orders: soon, nowhere: earliest, new1: earliest, new2: {5: earliest}, new3: {1: 7}}}
  b: {positions: {orders: {0: 99, 1: 98, 2: 0}, fine: {2: 0}}, x: 1}
  c: {}
"""


# Promise: tasks/topics.md#what-changes
def test_all_faults_are_named_together(log: Log, file: Path) -> None:
    """Those of the file and those of the log, each in its line, and no others that follow from them."""
    log.admin.create_topics([NewTopic("orders", 3)])
    file.write_text(FAULTY)
    with pytest.raises(InvalidRequest) as raised:
        run(log, "plan", file)
    found = str(raised.value).splitlines()
    expected = [
        f"{file} has 19 errors:",
        "topic orders: unknown topic config 'retention.mss'; did you mean retention.ms?",
        "topic orders: ",
        "topic orders: it has 3 partitions, and they cannot become 1",
        "topic orders: replication factor 9, and 1 broker can hold replicas",
        "topic new1: unknown key 'partitons': did you mean partitions?",
        "topic new1: partition 0: unknown broker 7: ",
        "topic new1: partition 1: broker 1 is listed twice",
        "topic new1: partition 2: unknown brokers 7, 8: ",
        "topic new2: partitions: expected a number of 1 or more, and found 0",
        "topic new2: replication factor 9",
        "topic new3: min.insync.replicas=3, and its partitions have 1 replica",
        "group a: the position in orders: 'soon' is not a position",
        "group a: topic 'nowhere' does not exist",
        "group a: offset 7 of new3-1 is out of range: the partition is new",
        "group b: unknown key 'x': expected positions, delete",
        "group b: topic 'fine' has no partition 2",
        "group b: offset 99 of orders-0 is out of range",
        "group b: offset 98 of orders-1 is out of range",
        "group c: expected `positions`, or `delete: true`",
    ]
    assert len(found) == len(expected)
    assert all(line.strip().startswith(one) for line, one in zip(found, expected, strict=True))


# Promise: operations.md#jobs, tasks/topics.md#describe-topics-in-a-file
def test_the_job_under_spark_submit(log: Log, file: Path) -> None:
    """The last line is the summary."""
    status, out, _ = finished(submitted("admin.py", "--url", log.url, "plan", str(file)))
    assert status == 3
    assert json.loads(out.splitlines()[-1])["create"] == ["audit", "orders", "payments"]


# Promise: tasks/topics.md#describe-topics-in-a-file
def test_the_job_without_spark(tmp_path: Path) -> None:
    """Also on a machine without Java."""
    command = [sys.executable, str(JOBS / "admin.py"), "--url", f"{tmp_path}/log", "plan", "nofile.yaml"]
    env = environment(JAVA_HOME="/nowhere")
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "admin: nofile.yaml: No such file or directory\n"


@pytest.mark.parametrize("args", [[], ["plan"], ["undo", "topics.yaml"]])
def test_wrong_arguments(args: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2 and the usage."""
    with pytest.raises(SystemExit) as ended:
        job.parse_args(["--url", "file:///x", *args])
    assert ended.value.code == 2
    assert "usage" in capsys.readouterr().err
