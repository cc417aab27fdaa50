"""The command `pylog`."""

from __future__ import annotations

import sys
from contextlib import suppress

import click

from spark_log.cli.commands.bench import bench
from spark_log.cli.commands.brokers import broker, elect
from spark_log.cli.commands.cluster import cluster
from spark_log.cli.commands.console import console
from spark_log.cli.commands.consume import consume
from spark_log.cli.commands.erase import erase, erasures
from spark_log.cli.commands.flow import flow
from spark_log.cli.commands.gateway import gateway
from spark_log.cli.commands.groups import group
from spark_log.cli.commands.inspect import config, metadata, plan, producer
from spark_log.cli.commands.maintenance import checkpoint, gc, maintain, merge, repair, verify
from spark_log.cli.commands.mirror import mirror, recover
from spark_log.cli.commands.move import move
from spark_log.cli.commands.produce import produce
from spark_log.cli.commands.quorum import quorum, storage
from spark_log.cli.commands.quorum_admin import RUNNING
from spark_log.cli.commands.quorum_founding import adopt, restore
from spark_log.cli.commands.reassign import reassign
from spark_log.cli.commands.replicate import replicate
from spark_log.cli.commands.segments import segment
from spark_log.cli.commands.serve import serve
from spark_log.cli.commands.topics import topic
from spark_log.cli.commands.transactions import transaction
from spark_log.cli.common.base import Root, Verb, common_options
from spark_log.cli.common.output import echo
from spark_log.runtime.closed_pipe import EXIT_CLOSED_PIPE, discard_output, open_missing_streams

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
SHELLS = ("bash", "zsh", "fish")


@click.group(cls=Root, params=common_options(), context_settings=SETTINGS)
@click.version_option(package_name="spark-log", prog_name="pylog")
def pylog() -> None:
    """A distributed log over shared storage.

    The options below may come before the command or after it.  The environment may hold the URL, the profile and the
    output, and PYLOG_TOKEN a coordinator's token; options take precedence.

    A position is earliest, latest, an offset, latest-100, now-10m, @2026-01-31T10:00Z, @1769853600000 or group:NAME.
    The exit status is 0 after success, 1 after an error, and 2 after wrong usage.

    \b
    Example:
      export PYLOG_URL=file:///data/log
      pylog topic create orders -p 3
      pylog topic list
    """


@click.command(cls=Verb)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    It completes commands, options, and the names of topics, groups and profiles.

    \b
    Example:
      eval "$(pylog completion bash)"
      pylog completion fish > ~/.config/fish/completions/pylog.fish
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None, f"click completes {shell}"
    click.echo(found(pylog, {}, "pylog", "_PYLOG_COMPLETE").source())


SECTIONS: tuple[tuple[str, tuple[click.Command, ...]], ...] = (
    ("Every day", (topic, produce, consume, group, flow)),
    ("Administration", (serve, gateway, console, cluster, config, broker, reassign, elect, producer, transaction)),
    ("Maintenance", (maintain, replicate, merge, gc, checkpoint, verify, repair, mirror, recover, move)),
    ("Inspection", (plan, segment, metadata)),
    ("Quorum", (quorum, storage)),
    ("Tools", (bench, completion)),
)

topic.add_command(erase)
topic.add_command(erasures)
for command_of_quorum in (*RUNNING, adopt, restore):
    quorum.add_command(command_of_quorum)
for _, commands in SECTIONS:
    for command in commands:
        pylog.add_command(command)
pylog.sections = [(title, [str(command.name) for command in commands]) for title, commands in SECTIONS]


def main() -> None:
    """Entry point.  An output that cannot be written ends the command with one sentence, wherever it is noticed."""
    open_missing_streams()
    try:
        try:
            pylog(prog_name="pylog")
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.filename is not None:
            raise
        discard_output(but=sys.stderr)
        if isinstance(error, BrokenPipeError):
            sys.exit(EXIT_CLOSED_PIPE)
        with suppress(OSError):
            echo(f"pylog: the output cannot be written: {error.strerror or error}", err=True)
        discard_output()
        sys.exit(1)
