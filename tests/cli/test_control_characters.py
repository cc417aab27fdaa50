"""Names may have control characters, which must not reach an administrator's terminal."""

from __future__ import annotations

import io
import json
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
import pytest
from pyspark_pylog.jobs.job_support import job_parser, progress

import spark_log
from spark_log.cli.common.base import Failed
from spark_log.cli.common.output import _text, emit_line
from spark_log.cli.common.session import CommandSession
from spark_log.cli.main import pylog as root
from spark_log.errors import InvalidRequest
from spark_log.groups.group import Roster, RosterMember
from spark_log.metadata import records as r
from spark_log.metadata.formats.batch_format import encode_batch
from spark_log.metadata.records import Batch
from spark_log.monitoring.log_metrics import line
from spark_log.server.audit import AuditedChange, close_audit, open_audit, write
from spark_log.store.object_names import log_key
from spark_log.text import label_value, printable, printable_bytes, printable_lines
from tests.cli.commands import ROOT, Pylog, on_terminal

ODD = "o\x1b[2J\x9b1m\u202e\u2028\x7f\x00"
SHOWN = "o\\x1b[2J\\x9b1m\\u202e\\u2028\\x7f\\x00"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a\x1b[2Jb", "a\\x1b[2Jb"),
        ("a\nb", "a\\nb"),
        ("a\x9b31mb", "a\\x9b31mb"),
        ("a\u202eb", "a\\u202eb"),
        ("Größe 数 é", "Größe 数 é"),
    ],
)
def test_a_table_escapes_control_characters(name: str, shown: str) -> None:
    """Letters of all scripts stay."""
    assert printable(name) == _text(name) == shown
    assert _text({"x": name}) == f"x={shown}"


def test_an_error_escapes_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    """The name in it may be another tenant's; a message of several lines keeps them."""
    Failed("group 'a\x1b[2Jb' is in use:\n  wait").show()
    assert capsys.readouterr().err == "pylog: group 'a\\x1b[2Jb' is in use:\n  wait\n"
    assert printable_lines("a\r\nb") == "a\\r\nb"


def test_an_action_escapes_control_characters(capfd: pytest.CaptureFixture[str]) -> None:
    """In its sentence, and as JSON that has the same value."""
    emit_line(CommandSession(given_output="table"), f"group {ODD} is deleted", {"group": ODD})
    emit_line(CommandSession(given_output="json"), "", {"group": ODD})
    sentence, fields = capfd.readouterr().out.splitlines()
    assert sentence == f"group {SHOWN} is deleted"
    assert fields.isprintable()
    assert json.loads(fields) == {"group": ODD}


# ------------------------------------------------------------------------------------------------------- every command

PATH = f"{{tmp}}/{ODD[:-1]}"
FORMS = ("wide", "json", "yaml", "csv")
LONG = {
    "serve": "runs until it is ended",
    "console": "runs until it is ended",
    "flow": "runs until it is ended",
    "gateway": "runs until it is ended",
    "completion": "prints a script of click",
}
QUORUM = ["--nodes", f"1@{ODD}", "--secret-file", "/nowhere"]
VERBS: dict[str, list[list[str]]] = {
    "bench consume": [[ODD, "-n", "1", "--timeout", "1s"]],
    "bench produce": [[ODD, "-n", "1"]],
    "broker add": [["2", "--root", PATH], ["2", "--root", "{tmp}/two", "--rack", ODD]],
    "broker alter": [["1", "--rack", ODD]],
    "broker describe": [["1"]],
    "broker drain": [["1", "--dry-run"], [ODD]],
    "broker fence": [["1", "--reason", ODD]],
    "broker forget-root": [[ODD, "--yes"]],
    "broker list": [[]],
    "broker remove": [["1", "--dry-run"], ["1", "--yes"]],
    "broker replace": [["1", "--root", PATH, "--yes"]],
    "broker unfence": [["1"]],
    "checkpoint": [[]],
    "cluster health": [[], QUORUM],
    "cluster info": [[]],
    "cluster release": [[]],
    "cluster reset-clock": [["--dry-run"]],
    "cluster upgrade": [["--dry-run"]],
    "config alter": [["-c", f"{ODD}=1"], ["-c", f"retention.ms={ODD}"], ["--unset", ODD]],
    "config describe": [["--topic", ODD], ["--topic", ODD, "--all"], []],
    "consume": [[ODD], ["orders", "-f", "%k %h\\n"], [ODD, "-f", "%q"], ["orders", "--group", ODD], ["--include", ODD]],
    "elect preferred": [[ODD], ["orders:0"]],
    "elect unclean": [[ODD, "--dry-run"]],
    "gc": [["--dry-run"]],
    "group delete": [[ODD, "--dry-run"], [ODD, "--yes"], [f"no{ODD}", "--yes"]],
    "group describe": [[ODD], ["shared"], [ODD, "--export"], [f"no{ODD}"]],
    "group lag": [[ODD], ["shared"]],
    "group list": [[], ["--state", ODD]],
    "group remove-members": [[ODD, "--dry-run"], ["shared", "--dry-run"]],
    "group seek": [
        [ODD, "--to", "earliest", "--dry-run"],
        [ODD, "--to", ODD],
        [ODD, "--from-file", PATH],
        ["new", "--to-group", ODD],
    ],
    "maintain": [["--dry-run"], []],
    "merge": [[]],
    "metadata dump": [[], ["--state"], [PATH]],
    "metadata shell": [["tree", "/"], ["ls", "/groups"], ["cat", "/groups"], ["find", "/"], [ODD], ["cat", ODD]],
    "mirror run": [[PATH], ["{tmp}/copy", "--yes"]],
    "mirror set": [[PATH]],
    "mirror status": [[PATH], ["{tmp}/copy"]],
    "move": [[PATH, "--dry-run"]],
    "plan": [[ODD], ["orders"], ["orders", "--where", ODD]],
    "produce": [[ODD], ["orders", "-H", f"{ODD}=1"], ["orders", "-p", ODD]],
    "producer list": [[]],
    "quorum add-voter": [[f"7@{ODD}", *QUORUM]],
    "quorum adopt": [[PATH, "/nowhere", "--to", PATH]],
    "quorum describe": [["--status", *QUORUM]],
    "quorum init": [[PATH, "--cluster-id", ODD, "--node", "1", "--standalone"]],
    "quorum random-id": [[]],
    "quorum remove-voter": [[f"7@{ODD}", "--yes", *QUORUM]],
    "quorum restore": [[PATH]],
    "quorum transfer": [QUORUM],
    "reassign cancel": [["{tmp}/plan.json"], [PATH]],
    "reassign execute": [["{tmp}/plan.json"], [PATH]],
    "reassign generate": [["--topic", ODD, "--brokers", "0,1"], ["--brokers", ODD]],
    "reassign list": [[]],
    "reassign verify": [["{tmp}/plan.json"]],
    "recover": [["--dry-run"]],
    "repair": [["--dry-run"], ["--cluster-id", ODD]],
    "replicate": [[]],
    "segment dump": [["{segment}"], ["{segment}", "--records"], [ODD]],
    "storage info": [[PATH], ["{tmp}"]],
    "topic alter": [[ODD, "-p", "9"], ["orders", "-c", f"{ODD}={ODD}"], ["typed", "--schema", f"`{ODD}` INT"]],
    "topic create": [[f"new{ODD}"], ["new", "-c", f"retention.ms={ODD}"], ["new", "--schema", ODD]],
    "topic delete": [[ODD, "--dry-run"], [f"no{ODD}", "--yes"]],
    "topic describe": [["--unavailable"], [ODD], ["orders"], ["typed"]],
    "topic erase": [
        [ODD, "--key", PATH, "--dry-run"],
        ["orders", "--key", PATH, "--dry-run"],
        ["orders", "--key", ODD],
    ],
    "topic erasures": [[]],
    "topic list": [[], ["--internal"]],
    "topic offsets": [[ODD], ["orders", "--at", ODD]],
    "topic schema": [["typed"], ["typed", "--history"], [ODD]],
    "topic trim": [[ODD, "--to", "latest", "--dry-run"], [ODD, "--to", ODD]],
    "transaction abort": [[ODD, "--dry-run"], [ODD, "--yes"], [f"no{ODD}", "--yes"]],
    "transaction describe": [[ODD], [f"no{ODD}"]],
    "transaction list": [[]],
    "verify": [[], ["--deep"]],
}
"""Arguments by command; those of changes are carried out, if the log lets them."""


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[str]:
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from commands(inner, (*path, name))
    else:
        yield " ".join(path)


def test_every_command_is_tried() -> None:
    """A new one has to be added."""
    assert sorted(commands(root)) == sorted([*VERBS, *LONG])


@pytest.fixture
def odd(tmp_path: Path) -> Pylog:
    """A log that was written when names had no rule: each name in it has control characters."""
    pylog = Pylog(tmp_path / "log")
    with spark_log.connect(pylog.url) as log:
        log.admin.create_topics([spark_log.NewTopic("orders", 1), spark_log.NewTopic("typed", 1)])
        with log.producer() as producer:
            producer.send("orders", value=ODD.encode(), key=ODD.encode(), headers=[(ODD, ODD.encode())])
        pylog.ok("broker", "add", "1", "--root", str(tmp_path / "one"))
        state, store = log.journal.refresh(), log.journal.metadata
        orders, typed = state.names["orders"], state.names["typed"]
        member = RosterMember(ODD, ODD, ODD, ODD, 10_000, 10_000, b"", b"")
        entry = r.OffsetEntry(orders, 0, 1, ODD)
        schema = json.dumps(
            {"type": "struct", "fields": [{"name": ODD, "type": "string", "nullable": True, "metadata": {}}]}
        )
        records = (
            r.CreateTopicRecord(topic_id="odd", name=ODD, partitions=1, configs={"segment.bytes": "2000000"}),
            r.SetConfigsRecord(topic_id=orders, configs={"leader.replication.throttled.replicas": ODD}),
            r.SetSchemaRecord(topic_id=typed, version=1, schema=schema),
            r.JoinGroupRecord(group=ODD, member=ODD, token=ODD, owner=ODD, timeout_ms=600_000),
            r.CommitOffsetsRecord(commits=(r.GroupCommit(ODD, 1, (entry,)), r.GroupCommit("shared", -1, (entry,)))),
            r.GroupGenerationRecord(group="shared", roster=Roster(1, "consumer", ODD, ODD, (member,))),
            r.InitProducerRecord(producer=f"txn:{ODD}", timeout_ms=600_000),
            r.CommitRecord(producer=f"sink:{ODD}", sequence=0, holder=ODD, dense=False, upload_epoch=state.version),
            r.AlterBrokerRecord(broker=1, rack=ODD),
            r.FenceBrokerRecord(broker=1, epoch=state.brokers[1].epoch, reason=ODD),
        )
        batch = Batch(id="raw", time=state.time, records=records)
        assert store.put_new(log_key(state.version + 1), encode_batch(batch))
        assert {ODD, "shared"} <= set(log.journal.refresh().groups)
    (tmp_path / "plan.json").write_text(
        json.dumps({"version": 1, "partitions": [{"topic": ODD, "partition": 0, "replicas": [1]}]})
    )
    return pylog


# Promise: command-line.md#choose-the-output
@pytest.mark.parametrize("verb", VERBS)
def test_no_command_prints_a_control_character(odd: Pylog, tmp_path: Path, verb: str) -> None:
    """Neither its output nor its errors, in any form."""
    segment = next((tmp_path / "log" / "data").rglob("*.seg")).relative_to(tmp_path / "log")
    for args in VERBS[verb]:
        given = [arg.replace("{tmp}", str(tmp_path)).replace("{segment}", str(segment)) for arg in args]
        for form in FORMS:
            found = odd.run(*verb.split(), *given, "--output", form, stdin="")
            assert found.exception is None or isinstance(found.exception, SystemExit), (given, found.output)
            printed = found.stdout + found.stderr
            if verb == "consume":
                printed = printed.replace(ODD, "")  # keys and values, which programs get as they are
            assert [line for line in printed.split("\n") if not line.isprintable()] == [], given


# Promise: command-line.md#choose-the-output
def test_records_on_a_terminal_have_no_control_characters(odd: Pylog) -> None:
    """Programs get keys and values as they are, as from kcat; names of headers are escaped for both."""
    args = ("consume", "orders", "-f", "%k %v %h\\n", "--url", odd.url)
    with on_terminal(*args) as (process, lines):
        assert next(lines) == f"{SHOWN} {SHOWN} {SHOWN}={SHOWN}"
        assert process.wait() == 0
    assert odd.ok(*args) == f"{ODD} {ODD} {SHOWN}={ODD}\n"


def test_lines_and_tabs_of_records_stay_on_a_terminal() -> None:
    """Bytes that are not UTF-8 are shown."""
    assert printable_bytes(b"a\tb\r\nc\xff") == b"a\tb\\r\nc\\xff"


# ---------------------------------------------------------------------------------------------------------------- others

PRINTS = re.compile(r"(?<![.\w])(?<!def )print\(|click\.s?echo\(|sys\.(?:stdout|stderr)\.(?:write|buffer)")
PRINTING = {
    "spark_log/cli/common/output.py": "escapes, and paints cells that are escaped",
    "spark_log/cli/main.py": "prints a script of click",
    "datasource/pyspark_pylog/jobs/job_support.py": "escapes; its JSON is ASCII",
    "datasource/pyspark_pylog/jobs/admin.py": "escapes",
    "jobs/quickstart.py": "has its own log, in a folder that it makes",
}


def test_whoever_prints_escapes() -> None:
    """Other modules call these."""
    sources = [path for part in ("spark_log", "datasource", "jobs") for path in (ROOT / part).rglob("*.py")]
    names = {str(path.relative_to(ROOT)) for path in sources if PRINTS.search(path.read_text())}
    assert names == set(PRINTING)


def test_log_lines_escape_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    """For all handlers: messages, and errors in tracebacks."""
    logger, text = logging.getLogger("spark_log"), io.StringIO()
    handler = logging.StreamHandler(text)
    logger.addHandler(handler)
    try:
        logger.warning("group %s is held by %s", ODD, "a process")
        try:
            raise ValueError(ODD)
        except ValueError:
            logger.warning("maintenance failed", exc_info=True)
    finally:
        logger.removeHandler(handler)
    shown = text.getvalue()
    assert shown.startswith(f"group {SHOWN} is held by a process\nmaintenance failed\nTraceback")
    assert shown.endswith(f"ValueError: {SHOWN}\n")


def test_errors_and_warnings_escape_control_characters(odd: Pylog) -> None:
    """A program that does not catch an error prints it."""
    assert str(InvalidRequest(f"group {ODD}:\nnext")) == f"group {SHOWN}:\nnext"
    topic = spark_log.NewTopic("noted", 1, configs={"leader.replication.throttled.replicas": "\u202e"})
    with (
        spark_log.connect(odd.url) as log,
        pytest.warns(UserWarning, match="no effect") as said,
        suppress(InvalidRequest),
    ):
        log.admin.create_topics([topic])
    assert [str(one.message) for one in said if not str(one.message).isprintable()] == []


def test_a_label_of_a_metric_is_escaped_in_its_format() -> None:
    """Backslashes, quotes and lines as the text format of Prometheus has them; then other control characters."""
    assert label_value('a\\b"c\nd') == r"a\\b\"c\nd"
    assert line("m", ["group"], [ODD], 1) == f'm{{group="{SHOWN}"}} 1'.replace("\\", "\\\\")


def test_the_audit_log_is_ascii(tmp_path: Path) -> None:
    """Names and reasons with control characters are escaped as JSON."""
    open_audit(str(tmp_path / "audit"))
    try:
        write(ODD, ODD, AuditedChange("join_group", groups=[ODD]), InvalidRequest(ODD), 1)
    finally:
        close_audit()
    line = (tmp_path / "audit").read_text()
    assert line.isascii()
    assert line.rstrip("\n").isprintable()
    assert json.loads(line)["groups"] == [ODD]


def test_a_job_escapes_what_was_typed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        job_parser("a job").parse_args([f"--{ODD}", "--url", "x"])
    progress(f"topic {ODD}")
    error, line = capsys.readouterr().err.rstrip("\n").rsplit("\n", 1)
    assert line == f"topic {SHOWN}"
    assert SHOWN in error
    assert error.replace("\n", "").isprintable()


def test_completion_offers_no_name_with_control_characters(odd: Pylog) -> None:
    """Shells print them as they are."""
    words = {"COMP_WORDS": "pylog group describe ", "COMP_CWORD": "3", "_PYLOG_COMPLETE": "bash_complete"}
    try:
        with warnings.catch_warnings():
            found = odd.run(**words).stdout
    finally:
        logging.disable(logging.NOTSET)
    assert found == "plain,shared\n"
