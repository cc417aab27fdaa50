"""Numbers on the pages: defaults and limits are those of the code, ratios and times are the same on every page.

A number of the code is checked by a text that is made of the constant: if either changes, the page no longer has the
text.
"""

from __future__ import annotations

import ast
import json
import operator
import re
from collections.abc import Iterator
from typing import Any

import pytest

from spark_log import errors
from spark_log.client import client_settings as clients
from spark_log.configs.settings import CLUSTER_CONFIGS, TOPIC_CONFIGS
from tests.unit.test_pages import ROOT, prose
from tests.unit.test_promises import GUIDES, PROMISED

_OPERATORS = {ast.Mult: operator.mul, ast.LShift: operator.lshift, ast.Pow: operator.pow, ast.Sub: operator.sub}


def constant(path: str, name: str) -> Any:
    """A constant of a module, or a parameter's default as `function.parameter`.

    The module is parsed and not imported: some of them import Spark or aiohttp, which not every environment has.
    """
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        for found, value in (*_assigned(node), *_defaults(node)):
            if found == name:
                return _value(value, path)
    raise AssertionError(f"{path} has no constant {name}: correct the test, and the page if the number has changed")


def _assigned(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
            yield from zip(map(ast.unparse, names), values, strict=True)
        case (
            ast.Assign(targets=[ast.Name(id=name)], value=value) | ast.AnnAssign(target=ast.Name(id=name), value=value)
        ):
            if value is not None:
                yield name, value


def _defaults(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    if not isinstance(node, ast.FunctionDef):
        return
    for one, value in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
        if value is not None:
            yield f"{node.name}.{one.arg}", value


def _value(node: ast.expr, path: str) -> Any:
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](_value(node.left, path), _value(node.right, path))
    if isinstance(node, ast.Name):
        return constant(path, node.id)
    return ast.literal_eval(node)


def config(name: str) -> int:
    return int({**TOPIC_CONFIGS, **CLUSTER_CONFIGS}[name].default)


def line_of(path: str, pattern: str) -> str:
    """The match of the pattern's group in a file."""
    found = re.search(pattern, (ROOT / path).read_text(encoding="utf-8"))
    assert found is not None, f"{path} has no {pattern}"
    return found[1]


def conf_seconds(name: str) -> int:
    """A setting of conf/coordinator.ini, whose values are the defaults: tests/serve/test_serve_config.py."""
    return int(line_of(CONF, rf"\n#?{re.escape(name)} = ([0-9]+)s"))


def mib(size: int) -> str:
    assert size % (1 << 20) == 0
    return f"{size >> 20} MiB"


def days(ms: int) -> str:
    assert ms % 86_400_000 == 0
    return f"{ms // 86_400_000} days"


CONNECT = "spark_log/http/client_connection.py"
CLIENT = "spark_log/rpc/client.py"
CLIENT_TIMEOUTS = "spark_log/rpc/client_timeouts.py"
CHANGES = "spark_log/server/change_replies.py"
CONF = "conf/coordinator.ini"
LIMITS = ("connections", "connections.per.address", "silent.connections", "request.timeout")
KAFKA = "simulation/harness/kafka.py"
SERVE = "spark_log/serve/serve_config.py"
REMOTE = "spark_log/store/remote.py"
RETRY = "spark_log/store/retry.py"
LOOKS = "spark_log/client/consumer/poll_interval.py"
FETCH = "spark_log/client/reader/request_ahead.py"
STREAM = "datasource/pyspark_pylog/source/following_reader.py"
SPLITS = "datasource/pyspark_pylog/source/splits.py"
OPTIONS = "datasource/pyspark_pylog/options/parse.py"
CONSOLE, CONSOLE_RECORDS, CONSOLE_ROUTES, CONSOLE_HISTORY = (
    f"spark_log/console/{name}.py" for name in ("site", "records", "http_routes", "history")
)
PROGRESS = "datasource/pyspark_pylog/progress/group_publisher.py"

PORT = constant("spark_log/http/address.py", "PORT")
STARTING_S = round(sum(constant(CLIENT_TIMEOUTS, "START_S")))
RETRIED_S = sum(constant(RETRY, "RETRY_MS")) / 1000
FIRST_MS, LAST_MS = constant(LOOKS, "FIRST_MS"), constant(LOOKS, "LAST_MS")
LAST_REMOTE_MS = constant(LOOKS, "LAST_REMOTE_MS")
TAKEOVER_S = constant(SERVE, "takeover_ms") // 1000
STORAGE_S = constant(SERVE, "storage_timeout_ms") // 1000
WHOLE = mib(constant(FETCH, "WHOLE_BYTES_MAX"))
IDENTITIES = days(config("streaming.identity.retention.ms"))
HOURS = config("gc.fence.age.ms") // 3_600_000
WORDS = {1: "one", 2: "two", 8: "eight", 20: "twenty", 50: "fiftieth"}

NUMBERS = {
    "README.md": [
        f"Python {line_of('setup.cfg', r'python_requires = >=(.*)')} or newer",
    ],
    "docs/testing.md": [
        f"runs {int(line_of('Makefile', r'--seeds ([0-9]+)')):,} seeds",
        "| Kafka {} and Spark's connector {} |".format(
            line_of(KAFKA, r"kafka_2.13:([0-9]+\.[0-9]+)"), line_of(KAFKA, r"kafka-0-10_2.13:([0-9]+\.[0-9]+)")
        ),
    ],
    "docs/spark*.md": [
        f"A topic created by a write has {WORDS[config('num.partitions')]}",
        f"between {mib(constant(SPLITS, 'TASK_BYTES_MIN'))} and `maxBytesPerPartition`",
        f"up to {constant(SPLITS, 'OPEN_TASKS_MIN')}, even if its topic is empty",
        f"`fetchOffset.numRetries` times in all ({constant(OPTIONS, 'DEFAULT_TRIES')})",
        f"`fetchOffset.retryIntervalMs` ({constant(OPTIONS, 'DEFAULT_TRY_WAIT_MS')})",
        f"for about {5 * round(RETRIED_S / 5)} s.",
        f"up to {WHOLE} is fetched whole",
        f"`num.partitions` partitions ({config('num.partitions')})",
        f"kept for {IDENTITIES} after its last commit",
        f"after a {WORDS[round(1 / constant(STREAM, 'LOOKS_SHARE'))]} of the time since the last record, "
        f"{FIRST_MS:g} to {LAST_MS:g} ms",
        f"up to {constant(STREAM, 'LONG_POLL_MS')} ms",
        f"It is {constant(OPTIONS, 'DEFAULT_BYTES_PER_TRIGGER') >> 30}g unless it is set",
        f"until it has missed heartbeats for {constant(PROGRESS, 'SESSION_MS') // 1000} s",
        f"one every {constant(PROGRESS, 'SIGN_S'):g} s while nothing happens",
        f"about {round(86_400 / constant(PROGRESS, 'SIGN_S') * 3, -3):,g} requests a day",
        f"| `partition` | 0 to {constant('spark_log/metadata/groups/consumer_offsets.py', 'PARTITIONS') - 1}, by the group",
    ],
    "docs/options.md": [
        f"requests are retried for about {5 * round(RETRIED_S / 5)} s",
        f"| `fetchOffset.numRetries` | B S | `{constant(OPTIONS, 'DEFAULT_TRIES')}` |",
        f"| `maxTriggerDelay` | S | `{constant(OPTIONS, 'DEFAULT_TRIGGER_DELAY_MS') // 60_000}m` |",
        f"| `maxBytesPerPartition` | B S | `{constant(OPTIONS, 'DEFAULT_BYTES_PER_PARTITION') >> 20}m` |",
    ],
    "docs/clients.md": [
        {1000: "within a second of its timeout"}[constant("spark_log/client/consumer/consumer.py", "READ_GRACE_MS")],
        f"has at most {WORDS[constant('spark_log/store/bounded_waits.py', 'CALLS_MAX')]} such reads in progress",
        f"of {constant('spark_log/groups/offset_deletion.py', 'METADATA_BYTES_MAX'):,} bytes at most as in Kafka",
        f"`transaction.max.timeout.ms` ({config('transaction.max.timeout.ms') // 60_000} minutes, as in Kafka)",
        f"that has not been used for {IDENTITIES}",
        f"no run has moved for {IDENTITIES}",
    ],
    "docs/command-line.md": [
        f"does not answer within {constant('spark_log/cli/common/completion.py', 'ANSWER_S')} s",
        f"again every {WORDS[constant('spark_log/cli/common/watch.py', 'WATCH_SECONDS')]} seconds",
    ],
    "docs/cli.md": [
        f"older than gc.fence.age.ms (default: {HOURS} hours)",
        {1000: "committed once a second"}[constant("spark_log/cli/commands/consume.py", "COMMIT_MS")],
        f"Refresh every {WORDS[constant('spark_log/cli/common/watch.py', 'WATCH_SECONDS')]} seconds",
        f"segments of about {mib(constant('spark_log/rewriting/merge_policy.py', 'SEGMENT_BYTES'))}",
        f"if HOST is left out. [default: 127.0.0.1:{PORT}]",
        f"silent for this long. [default: {TAKEOVER_S}s]",
        f"the duties of `pylog maintain`, or never. [default: {constant(SERVE, 'maintain_ms') // 60_000}m]",
        f"the disk or the operating system. [default: {constant(SERVE, 'durability')}]",
        f"no write to the storage succeeds for this long. [default: {STORAGE_S}s]",
    ],
    "docs/topic-configs.md": [
        f"span `segment.ms`, or an {WORDS[constant('spark_log/rewriting/merge_policy.py', 'RETENTION_PARTS')]}h of `retention.ms`",
    ],
    "docs/storage*.md": [
        f"then {constant('spark_log/store/probe.py', 'probe.races')} races of "
        f"{WORDS[constant('spark_log/store/probe.py', 'probe.threads')]} writers",
        f"stops trying to connect after {constant(REMOTE, 'CONNECT_TIMEOUT_S')} s, and waiting for an answer after "
        f"{constant(REMOTE, 'READ_TIMEOUT_S')} s",
        f"Waits grow from {constant(RETRY, 'RETRY_MS')[0]} ms to {constant(RETRY, 'RETRY_MS')[-1] // 1000} s",
        f"or answers 503 | about {5 * round(RETRIED_S / 5)} s",
        f"two tries of {constant(REMOTE, 'READ_TIMEOUT_S')} s",
        {60_000: "repeats the commit for up to a minute"}[
            constant("spark_log/client/producer/commit.py", "STORAGE_MS_MAX")
        ],
        {3_600_000: "and at least an hour old"}[constant("spark_log/client/admin/brokers.py", "PUT_MS_MAX")],
        {24: "`gc.fence.age.ms`, a day."}[HOURS],
        {1 << 20: "reserves 1 MiB for these steps"}[
            constant("spark_log/journal/storage/disk_reserve.py", "RESERVE_BYTES")
        ],
        {1000: "stops waiting for reads one second after its timeout"}[
            constant("spark_log/client/consumer/consumer.py", "READ_GRACE_MS")
        ],
        f"within {config('log.clock.skew.max.ms') // 60_000} minutes of the storage's clock (`log.clock.skew.max.ms`)",
        f"more than {constant('spark_log/journal/storage/clock_check.py', 'WARN_MS') // 1000} s behind the log",
    ],
    "docs/console.md": [
        f"the first {constant(CONSOLE_RECORDS, 'SHOWN_BYTES') >> 10} KiB, and *Load more* up to "
        f"{mib(constant(CONSOLE_RECORDS, 'WHOLE_BYTES'))}",
        f"samples of {constant(CONSOLE, 'SAMPLE_S'):g} seconds",
        {3600.0: "of the last hour"}[constant(CONSOLE, "SAMPLE_S") * constant(CONSOLE_HISTORY, "SAMPLES_MAX")],
        f"file of at most {mib(constant('spark_log/console/history_file.py', 'FILE_BYTES_MAX'))} for each log",
        f"has {constant(CONSOLE_ROUTES, 'THREADS')} threads for answers from memory, and "
        f"{constant(CONSOLE_ROUTES, 'THREADS')} for",
        f"at most {mib(constant(CONSOLE_RECORDS, 'PAGE_BYTES_MAX'))} and a search "
        f"{mib(constant(CONSOLE_RECORDS, 'SEARCH_BYTES_MAX'))}",
        f"at most {constant(CONSOLE_RECORDS, 'READ_S'):g} s; *Search on* continues",
        f"parses about {constant(CONSOLE_RECORDS, 'PARSED_MAX'):,} values",
        f"the last {line_of('spark_log/console/static/records.js', r'LIVE_MAX = ([0-9]+)')}, and *Pause*",
        f"at most {constant(CONSOLE, 'ROWS_MAX')} rows",
        {10: "cached for ten times as long"}[constant(CONSOLE, "KEPT_FOR")],
        f"without an answer after {constant(CONSOLE_ROUTES, 'ANSWER_S'):g} s fails. At most "
        f"{constant(CONSOLE_ROUTES, 'WAITING_MAX')} requests of each kind are in progress",
        f"more than {mib(constant(CONSOLE_RECORDS, 'BATCH_BYTES_MAX'))} are not read",
    ],
    "docs/service.md": [
        f"on 127.0.0.1:{PORT}, until Ctrl-C",
        f"| {STARTING_S} s, announced by a warning",
        f"refused) for {STARTING_S} s`",
        f"group waits {conf_seconds('initial.rebalance.delay')} s for more members (`initial.rebalance.delay`)",
        f"| {constant(CONNECT, 'CONNECT_S'):g} s for a connection, {constant(CLIENT_TIMEOUTS, 'FIRST_ANSWER_S'):g} s for the",
        f"`is silent: no connection within {constant(CONNECT, 'CONNECT_S'):g} s or no answer within "
        f"{constant(CLIENT_TIMEOUTS, 'FIRST_ANSWER_S'):g} s`",
        f"clients wait, up to {constant(CLIENT, 'ANSWER_S'):g} s for a change, and continue",
        f"more than {constant('spark_log/server/server.py', 'HELD_MAX'):,} partitions",
        f"answered for {constant('spark_log/journal/topic_feed.py', 'UNANSWERED_MS') // 1000} s, or if",
        f"`--takeover-after` ({TAKEOVER_S} s)",
        f"a fifth of `--takeover-after` ({TAKEOVER_S // constant('spark_log/server/coordinator.py', 'REFUSED_PART')} s)",
        {1000: "`CommitUnknown` within a second of its `delivery_timeout_ms`"}[
            constant("spark_log/journal/storage/commit_protocol.py", "ASK_MS_MIN")
        ],
        f"for `--storage-timeout` ({STORAGE_S} s) | it steps down",
        {1.0: "notices within a second"}[constant("spark_log/server/coordinator.py", "LOOK_S")],
        f"the address is tried last for {constant(CLIENT, 'SILENT_S'):g} s",
        f"managed to read the log to its end for {constant('spark_log/server/leader_check.py', 'STALE_S'):g} s",
        f"answers `GET /health` within {constant(CLIENT_TIMEOUTS, 'CHECK_S'):g} s",
        *(f"| `{name}` | {line_of(CONF, rf'{name} = ([0-9a-z]+)')} |" for name in LIMITS),
        f"`offsets.retention.minutes` ({days(config('offsets.retention.minutes') * 60_000)})",
        f"every {constant(SERVE, 'maintain_ms') // 60_000} minutes (`--maintain-every`",
    ],
    "docs/monitoring.md": [
        f"The file keeps the last {constant('datasource/pyspark_pylog/progress/listener.py', 'ENDED_MAX')} ended queries",
        f"within `--storage-timeout` ({STORAGE_S} s)",
        f"{86_400 * constant('spark_log/journal/storage/storage_health.py', 'PROBES') // STORAGE_S:,} puts and as many gets a day",
    ],
    "docs/performance.md": [
        f"after {FIRST_MS:g} to {LAST_MS:g} ms, on an object store up to {LAST_REMOTE_MS:g}",
    ],
    "docs/latency.md": [
        f"a {WORDS[round(1 / constant(STREAM, 'LOOKS_SHARE'))]} of the time since the last record, "
        f"{FIRST_MS:g} to {LAST_MS:g} ms",
    ],
    "docs/measurements*.md": [
        f"a twentieth of the time since the last record, {FIRST_MS:g} to {LAST_MS:g} ms",
        f"woken {WORDS[constant('spark_log/server/long_poll.py', 'WOKEN_MAX')]} at a time",
        f"read {WORDS[constant('spark_log/server/long_poll.py', 'RESUMED_MAX')]} at a time",
        f"more than {constant(CHANGES, 'CHANGES_BYTES_MAX') >> 10} KB",
        f"the {constant('spark_log/journal/storage/storage_log.py', 'READ_AHEAD')} versions that follow it",
        f"in blocks of {constant(FETCH, 'BLOCK_BYTES_MAX') >> 20} MiB, {WORDS[constant(FETCH, 'REQUESTS_AHEAD')]} requests",
        f"at most {constant(FETCH, 'GAP_BYTES_MAX') >> 10} KiB between them",
        f"written every {config('metadata.checkpoint.interval')} versions",
        f"one larger than {WHOLE} is wanted",
        f"a writer takes its buffer ({constant('spark_log/client/producer/upload.py', 'BUFFER_BYTES') >> 20} MB)",
    ],
    "docs/format/metadata.md": [
        f"pylog-batch {constant('spark_log/metadata/formats/batch_format.py', 'BATCH_VERSION')} 124",
        f"pylog-checkpoint {constant('spark_log/metadata/formats/checkpoint_format.py', 'VERSION')} header",
        f"at most {mib(constant('spark_log/metadata/maps/frames.py', 'FRAME_BYTES'))} before compression",
        f"more than {constant('spark_log/metadata/formats/checkpoint_format.py', 'CHANGES_MIN'):,} of a map",
        f"when the state has more than {constant('spark_log/journal/maintenance_limits.py', 'dropped_inline'):,} of them",
        f"pylog-dropped {constant('spark_log/metadata/formats/dropped_list_format.py', 'VERSION')} <name of the list> dropped",
        f"more than an {WORDS[constant('spark_log/metadata/formats/checkpoint_format.py', 'CHANGES_SHARE')]}h of its rows",
        f"format of the whole log, {constant('spark_log/journal/storage/log_format.py', 'FORMAT_VERSION')},",
        f"or {constant('spark_log/journal/storage/log_format.py', 'MIRROR_VERSION')} for a mirror;",
        f"more than {constant('spark_log/metadata/commands.py', 'SLICES_INLINE_MAX'):,} slices",
        f"In a log of {constant('spark_log/journal/maintenance_limits.py', 'remembered_slices'):,} slices or more",
    ],
    "docs/format/segment.md": [
        f"format version {constant('spark_log/segment/batch_index.py', 'VERSION')}",
        f"close a batch at {constant('spark_log/segment/writer.py', 'BATCH_ROWS'):,} rows or "
        f"{mib(constant('spark_log/segment/writer.py', 'BATCH_BYTES'))}",
        f"read whole (up to {WHOLE}, or of one batch)",
    ],
}
"""By page, or by the pages of one part: texts that are made of constants."""


def words_of(pattern: str) -> str:
    """The words of a page, or of all pages that match a pattern such as `docs/spark*.md`."""
    found = sorted(ROOT.glob(pattern))
    assert found, f"no page is called {pattern}"
    return " ".join(word for page in found for word in page.read_text(encoding="utf-8").split())


# Promise: ../README.md#spark, ../README.md#install, cli.md#pylog-consume, cli.md#pylog-gc, cli.md#pylog-group-lag,
# Promise: cli.md#pylog-merge, cli.md#the-pylog-command, clients.md#consumer, clients.md#transactions,
# Promise: command-line.md#turn-on-completion, console.md#read-records, console.md#see-how-a-log-is-doing,
# Promise: console.md#what-it-costs, format/metadata.md#checkpoints, format/metadata.md#records,
# Promise: format/metadata.md#the-metadata-log-format-version-1, format/segment.md#runs,
# Promise: format/segment.md#what-a-reader-refuses, latency.md#what-pylog-does-about-it,
# Promise: measurements-alone.md#many-waiting-clients, measurements-kafka.md#where-a-triggers-time-goes,
# Promise: measurements.md#object-stores, monitoring.md#watch-a-query, performance.md#sparks-settings,
# Promise: performance.md#what-to-set, service.md#a-coordinator, service.md#failover, service.md#groups,
# Promise: service.md#leadership, service.md#what-a-client-keeps-in-memory, spark-read.md#options-of-a-read,
# Promise: spark-read.md#reading-less, spark-streams.md#exactly-once, spark-streams.md#how-much-a-micro-batch-reads,
# Promise: spark-streams.md#named-progress, spark-streams.md#streams, storage-failures.md#what-a-killed-writer-leaves,
# Promise: storage-failures.md#when-the-storage-is-busy-or-unreachable, storage.md#clocks,
# Promise: storage.md#credentials-and-endpoints, storage.md#storage, testing.md#simulations, testing.md#what-was-tested
@pytest.mark.parametrize(("page", "text"), [(page, text) for page, texts in NUMBERS.items() for text in texts])
def test_a_number_on_a_page_is_that_of_the_code(page: str, text: str) -> None:
    """The page has the text that follows from the constant."""
    assert " ".join(text.split()) in words_of(page)


# Promise: clients.md#consumer, clients.md#producer, clients.md#transactions, service.md#groups
def test_a_default_of_a_client_is_on_the_page() -> None:
    """Those that docs/clients.md and docs/service.md give are those of the tables of settings."""
    producer, consumer = clients.PRODUCER, clients.CONSUMER
    text = {
        page: " ".join((ROOT / "docs" / page).read_text(encoding="utf-8").split())
        for page in ("clients.md", "service.md")
    }
    assert f"`compression_type` is `{producer['compression_type'].default}` unless set" in text["clients.md"]
    assert (
        f"`max_partition_fetch_bytes` is {mib(consumer['max_partition_fetch_bytes'].default)} unless"
        in text["clients.md"]
    )
    timeout_ms = clients.TRANSACTION["transaction_timeout_ms"].default
    assert (
        timeout_ms == 60_000
        and "transaction_timeout_ms=600_000)` gives the transaction ten minutes instead of one" in text["clients.md"]
    )
    session = consumer["session_timeout_ms"].default // 1000
    assert consumer["heartbeat_interval_ms"].default is None
    assert f"`heartbeat_interval_ms` | {session} s, a third of it:" in text["service.md"]
    assert f"`max_poll_interval_ms` | {consumer['max_poll_interval_ms'].default // 60_000} min:" in text["service.md"]


# Promise: clients.md#consumer
def test_refused_settings_of_clients_are_on_the_page() -> None:
    """Each setting with one value that the page names is refused with another, and the reasons of the page are the
    code's.
    """
    settings = prose(ROOT / "docs/clients.md").split("**Settings.**")[1].split("With `fetch_min_bytes`")[0]
    named = re.findall(r"`(\w+)=([^`]+)`", settings)
    assert len(named) >= 5
    for name, value in named:
        table = clients.CONSUMER if name in clients.CONSUMER else clients.PRODUCER
        assert not table[name].accepts(ast.literal_eval(value)), f"{name}={value} is accepted"


# ------------------------------------------------------------------------------------------------ numbers of measurements


PERFORMANCE = words_of("docs/performance.md")
MEASURED = words_of("docs/measurements*.md")
README = words_of("README.md")


def stock(line: str) -> tuple[float, str]:
    """Of a line of the comparison with Kafka: the ratio with stock settings, and what it is of."""
    found = re.search(rf"\| {re.escape(line)} \| ([0-9.]+) \((.*?)\) \|", MEASURED)
    assert found is not None, f"no page of measurements has the line {line!r}"
    return float(found[1]), found[2]


# Promise: ../README.md#why, measurements-kafka.md#what-was-found
def test_ratios_of_the_readme_are_those_of_the_page() -> None:
    """Its table beside Kafka has the columns of default and of recommended settings."""
    row = r"^\| ([^|]+) \| ([0-9.]+[^|]*) \| ([0-9.]+[^|]*) \|$"
    rows = re.findall(row, (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) == 6
    for line, *columns in rows:
        found = re.search(rf"\| {re.escape(line)} \| ([0-9.][^|]*) \| ([^|]*) \|", MEASURED)
        assert found is not None, f"no page of measurements has the line {line!r}"
        assert all(full.startswith(column) for full, column in zip(found.groups(), columns, strict=True)), line


# Promise: ../README.md#why, measurements-kafka.md#what-was-found
def test_ratios_of_the_later_run_in_the_readme_are_those_of_the_page() -> None:
    """With reads and writes in the JVM."""
    later = MEASURED.partition("in the JVM.** The figures above are from before")[2]
    ratios = re.search(
        r"gave ([0-9.]+) for a batch read, ([0-9.]+) for a batch write and ([0-9.]+) for a stream", README
    )
    assert ratios is not None
    for line, ratio in zip(("batch read, all columns", "batch write", "stream copy"), ratios.groups(), strict=True):
        found = re.search(rf"\| {line} \| ([0-9.]+) \(", later)
        assert found is not None and found[1] == ratio, line


def test_the_query_over_columns_in_the_readme_is_that_of_the_page() -> None:
    """Beside JSON in Kafka and beside a Parquet table."""
    found = re.search(r"\| batch, rows a second \| ([0-9,]+) \|[^|]*\| ([0-9,]+) \| ([0-9,]+) \|", MEASURED)
    assert found is not None
    pylog, _, parquet = (int(number.replace(",", "")) for number in found.groups())
    times = re.search(r"\| times as fast as Kafka \(10 to reach\) \| ([0-9]+)", MEASURED)
    stream = re.search(r"A stream with columns is ([0-9.]+) times as fast as with Kafka", MEASURED)
    assert times is not None and stream is not None
    ratios = (
        f"{times[1]} times as fast over a topic with a schema as over JSON in Kafka, and {stream[1]} times as fast in"
    )
    assert ratios in README
    assert f"A Parquet table is {parquet / pylog:.1f} times as fast" in README


# Promise: ../README.md#why
def test_the_latency_of_a_record_is_the_same_on_every_page() -> None:
    """0.1 s is the median and 0.2 s the 99th percentile, with stock settings."""
    seconds = [int(stock(f"record in → record out, {p}")[1].split(" ")[0]) / 1000 for p in ("p50", "p99")]
    text = "[{:.1f} to {:.1f} s]".format(*seconds)
    for page in ("README.md", "docs/spark.md", "docs/from-kafka.md"):
        assert text in (ROOT / page).read_text(encoding="utf-8"), page


# Promise: spark-read.md#reading-less
def test_a_ratio_that_two_pages_give_is_the_same() -> None:
    """How much faster a projection is."""
    ratio = re.search(r"the value only, against all columns \| same \| ([0-9.]+) times as fast", MEASURED)
    assert ratio is not None
    assert f"reads about {ratio[1]} times as fast" in words_of("docs/spark*.md")


# Promise: ../README.md#why
def test_commits_a_second_are_those_of_the_page() -> None:
    """The README's figure for busy writers on an object store."""
    found = re.search(r"commits a second of 8 writers on an object store \| `object_store.py` \| ([0-9]+)", MEASURED)
    assert found is not None
    assert f"about {found[1]} in total from 8 busy writers on an object store" in README


# Promise: performance.md#what-to-set
def test_partitions_cost_what_the_page_says() -> None:
    """1,000 partitions against 10, by the figures that `make pictures` keeps."""
    figures = json.loads((ROOT / "docs/pictures/figures.json").read_text(encoding="utf-8"))["partitions"]
    few, many = figures["x"].index(10.0), figures["x"].index(1000.0)
    words = {3: "three", 4: "four", 5: "five", 6: "six"}
    least, most = sorted(round(costs[many] / costs[few]) for costs in figures["costs"].values())
    assert f"1,000 partitions are {words[least]} to {words[most]} times slower than 10" in PERFORMANCE


# Promise: measurements-alone.md#pylog-alone
def test_every_script_on_the_page_exists() -> None:
    """Each figure of `pylog alone` names the benchmark that gives it."""
    table = prose(ROOT / "docs/measurements-alone.md").partition("| question | script |")[2].partition("\n\n")[0]
    rows = [line.split("|")[2].strip() for line in table.splitlines()[2:]]
    assert len(rows) > 10
    for script in rows:
        assert script == "same" or (ROOT / "benchmarks" / script.strip("`")).exists(), script


# ------------------------------------------------------------------------------------------------------------- errors


# Promise: clients.md#errors
def test_every_error_that_a_page_names_exists() -> None:
    """Names in backquotes that look like an error of pylog are classes of spark_log.errors."""
    known = {name for name in dir(errors) if isinstance(getattr(errors, name), type)}
    for page in {*PROMISED, *GUIDES}:
        text = prose(ROOT / page)
        raised = re.findall(r"(?:raises?|gets?|is|with|fails with|error) `([A-Z][a-z]+(?:[A-Z][a-z]+)+)`", text)
        raised += re.findall(r"\(`([A-Z][a-z]+(?:[A-Z][a-z]+)+)`\)", text)
        unknown = set(raised) - known - OTHERS
        assert not unknown, f"{page} names {sorted(unknown)}"


OTHERS = {"TimeoutError", "PrepareAbort", "CreateTime", "LogAppendTime", "FileSystemBasedCheckpointFileManager"}
"""Names of Python, Kafka and Spark."""
