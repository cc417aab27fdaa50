"""Options and names of Kafka's tools: rejected, with pylog's equivalent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import click

URL = "give the log's URL with -u URL or in PYLOG_URL"
TOPIC = "the topic is an argument: {path} TOPIC"
GROUP = "the group is an argument: {path} GROUP"
PRODUCE_PROPERTIES = (
    "give --key-delimiter TEXT for key.separator, -H K=V for headers, and --null-marker TEXT for null.marker"
)

EVERYWHERE: Mapping[str, str] = {
    "--bootstrap-server": URL,
    "--bootstrap-servers": URL,
    "--broker-list": URL,
    "--bootstrap-controller": "give addresses of the quorum's nodes with --nodes",
    "--zookeeper": URL,
    "--command-config": "a profile holds how the log is reached: --profile NAME",
    "--topic": TOPIC,
    "--group": GROUP,
    "--list": "listing is a verb, as in `pylog topic list`",
    "--create": "creating is a verb, as in `pylog topic create TOPIC`",
    "--describe": "describing is a verb, as in `pylog topic describe TOPIC`",
    "--delete": "deleting is a verb, as in `pylog topic delete TOPIC`",
    "--alter": "altering is a verb, as in `pylog topic alter TOPIC`",
    "--replica-assignment": "give --assign 0:1,1:2 to `pylog topic create`",
    "--under-replicated-partitions": "give --under-replicated to `pylog topic describe`",
    "--under-min-isr-partitions": "give --under-min-isr to `pylog topic describe`",
    "--unavailable-partitions": "give --unavailable to `pylog topic describe`",
    "--execute": "give --yes",
    "--if-not-exists": "leave it out: a topic that exists is an error with exit status 1, and stays as it is",
    "--if-exists": "leave it out: a topic that does not exist is an error with exit status 1",
    "--all-groups": "`pylog group list` shows all groups, with their lag",
    "--members": "`pylog group describe GROUP` shows the members",
    "--entity-type": "give --topic TOPIC to `pylog config alter`, or leave it out for the configs of the log",
    "--entity-name": "give --topic TOPIC to `pylog config alter`",
    "--timeout-ms": "leave it out: a command ends when there is nothing more to do",
}
CONSUME: Mapping[str, str] = {
    "--from-beginning": "leave it out: pylog consume starts at the earliest record, also for a new group",
    "--max-messages": "give -n N",
    "--whitelist": "give --include REGEX",
    "--isolation-level": "leave it out: the log holds committed records only",
    "--formatter": "give -f FORMAT, as in -f '%T %k %v\\n'",
    "--formatter-property": "give -f FORMAT, as in -f '%T %k %v\\n'",
    "--property": "give -f FORMAT, as in -f '%T %k %v\\n'",
    "--consumer-property": "leave it out",
    "--consumer.config": "a profile holds how the log is reached: --profile NAME",
    "--messages": "give -n N",
}
PRODUCE: Mapping[str, str] = {
    "--property": PRODUCE_PROPERTIES,
    "--reader-property": PRODUCE_PROPERTIES,
    "--producer-property": "give --acks for acks; leave others out",
    "--request-required-acks": "give --acks 0, 1 or all",
    "--producer.config": "a profile holds how the log is reached: --profile NAME",
    "--sync": "leave it out: a line is durable before the next lines are read",
}
SEEK: Mapping[str, str] = {
    "--reset-offsets": "`pylog group seek` resets offsets",
    "--to-earliest": "give --to earliest",
    "--to-latest": "give --to latest",
    "--to-offset": "give --to N",
    "--to-datetime": "give --to @TIME, as in --to @2026-01-31T10:00Z",
    "--by-duration": "give --to now-DURATION, as in --to now-1h",
    "--to-current": "`pylog group describe GROUP --export` prints the committed offsets",
    "--export": "`pylog group describe GROUP --export` prints the committed offsets",
    "--all-topics": "leave --topic out",
}
REASSIGN: Mapping[str, str] = {
    "--generate": "generating is a verb: `pylog reassign generate`",
    "--execute": "executing is a verb: `pylog reassign execute`",
    "--verify": "verifying is a verb: `pylog reassign verify`",
    "--cancel": "cancelling is a verb: `pylog reassign cancel`",
    "--list": "listing is a verb: `pylog reassign list`",
    "--reassignment-json-file": "the file is an argument: {path} FILE",
    "--topics-to-move-json-file": "give --topics-to-move FILE",
    "--broker-list": "give --brokers 1,2,3",
    "--replica-alter-log-dirs-throttle": "leave it out: a broker has one root",
    "--disallow-replication-factor-change": "leave it out: compare the numbers of replicas before",
}
VOTER = "the voter is an argument: {path} ID@DIRECTORY-ID"
OF_COMMAND: Mapping[str, Mapping[str, str]] = {
    "consume": CONSUME,
    "produce": PRODUCE,
    "group": SEEK,
    "seek": SEEK,
    **dict.fromkeys(("reassign", "generate", "execute", "verify", "cancel"), REASSIGN),
    "remove-voter": {"--controller-id": VOTER, "--controller-directory-id": VOTER},
    "alter": {"--delete-config": "give --unset KEY", "--add-config": "give -c KEY=VALUE"},
}
COMMANDS: Mapping[str, str] = {
    "topics": "pylog topic",
    "console-producer": "pylog produce",
    "console-consumer": "pylog consume",
    "consumer-groups": "pylog group",
    "configs": "pylog config",
    "delete-records": "pylog topic trim",
    "reassign-partitions": "pylog reassign",
    "leader-election": "pylog elect",
    "log-dirs": "pylog broker list",
    "metadata-quorum": "pylog quorum describe",
    "features": "pylog cluster upgrade",
    "transactions": "pylog transaction",
    "producer-perf-test": "pylog bench produce",
    "consumer-perf-test": "pylog bench consume",
    "storage format": "pylog quorum init",
    "storage random-uuid": "pylog quorum random-id",
}
"""Kafka's tools, without `kafka-` and `.sh`, and commands of theirs."""


def check_no_kafka_tool(ctx: click.Context, name: str) -> None:
    """Raise UsageError for a command that is unknown here and has the name of a tool of Kafka's."""
    tool = name.removeprefix("kafka-").removesuffix(".sh")
    inner = f"{ctx.info_name} {tool}" if ctx.parent is not None else tool
    if (command := COMMANDS.get(inner)) is not None:
        raise click.UsageError(f"{inner} is a command of Kafka's tools. In pylog, it is `{command}`.", ctx)


@contextmanager
def with_kafka_hint(ctx: click.Context) -> Iterator[None]:
    """Add pylog's equivalent to the error for an unknown option, if Kafka's tools have that option."""
    try:
        yield
    except click.NoSuchOption as error:
        name = error.option_name
        hint = OF_COMMAND.get(ctx.info_name or "", {}).get(name) or EVERYWHERE.get(name)
        if hint is None:
            raise
        path = ctx.command_path
        raise click.UsageError(
            f"{name} is an option of Kafka's tools. In pylog, {hint.format(path=path)}.", ctx
        ) from error
