"""`jobs/admin.py`: topics become what a file says, and nothing changes if anything in the file is wrong."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from jobs import admin as job
from spark_log import Log, NewTopic
from spark_log.client.administering.admin import Admin
from spark_log.errors import InvalidRequest, SparkLogError
from tests.spark.submitted import finished, submitted

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
    return job.administer(None, job.parse_args(["--url", log.url, verb, str(file), *more]))


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


@pytest.mark.parametrize("step", ["create_partitions", "incremental_alter_configs", "delete_topics"])
def test_an_apply_that_was_killed_is_run_again(
    log: Log, file: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any of its commits."""
    log.admin.create_topics([NewTopic("orders", 1, {"retention.bytes": "9"}), NewTopic("old", 1)])
    file.write_text(f"{DECLARED}\n  old: {{delete: true}}\n")

    class Killed(Exception):
        pass

    def kill(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Admin, step, kill)
        with pytest.raises(Killed):
            run(log, "apply", file, "--allow-delete")
    assert topics(log) != WANTED
    run(log, "apply", file, "--allow-delete")
    assert topics(log) == WANTED


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("topics: [a]", "expected one key, `topics`"),
        ("topic: {a: {}}", "expected one key, `topics`"),
        ("topics: {a: {}, a: {}}", "'a' is there twice"),
        ("topics: {a: {", "line 1"),
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


def test_all_wrong_topics_are_named(log: Log, file: Path) -> None:
    """In one error, each in its line."""
    file.write_text("topics: {a: {partitions: 0}, b: {x: 1}, c: {}}")
    with pytest.raises(InvalidRequest) as raised:
        run(log, "plan", file)
    assert [line.split(":")[0] for line in str(raised.value).splitlines()[1:]] == ["  topic a", "  topic b"]


def test_the_job_under_spark_submit(log: Log, file: Path) -> None:
    """The last line is the summary."""
    status, out, _ = finished(submitted("admin.py", "--url", log.url, "plan", str(file)))
    assert status == 3
    assert json.loads(out.splitlines()[-1])["create"] == ["audit", "orders", "payments"]


@pytest.mark.parametrize("args", [[], ["plan"], ["undo", "topics.yaml"]])
def test_wrong_arguments(args: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2 and the usage."""
    with pytest.raises(SystemExit) as ended:
        job.parse_args(["--url", "file:///x", *args])
    assert ended.value.code == 2
    assert "usage" in capsys.readouterr().err
