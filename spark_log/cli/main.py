"""The command `pylog`."""

from __future__ import annotations

import click

from spark_log.cli.base import Root, Verb, common_options
from spark_log.cli.bench import bench
from spark_log.cli.cluster import cluster
from spark_log.cli.groups import group
from spark_log.cli.inspect import config, metadata, plan, producer
from spark_log.cli.records import consume, produce
from spark_log.cli.segments import segment
from spark_log.cli.serve import serve
from spark_log.cli.topics import topic
from spark_log.cli.transactions import transaction
from spark_log.cli.upkeep import checkpoint, gc, maintain, merge, repair, verify

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
SHELLS = ("bash", "zsh", "fish")


@click.group(cls=Root, params=common_options(), context_settings=SETTINGS)
@click.version_option(package_name="spark-log", prog_name="pylog")
def pylog() -> None:
    """A distributed log over shared storage.

    Every command takes -u URL, --storage-option KEY=VALUE and --output table|json, before the noun or at the end.
    Positions are earliest, latest, an offset, latest-100, now-10m, @2026-01-31T10:00Z, @1769853600000 or group:NAME.
    Exit status: 0 done, 1 refused or failed, 2 wrong usage.

    \b
    Example:
      export PYLOG_URL=file:///data/log
      pylog topic create orders -p 3
      pylog topic list
    """


@click.command(cls=Verb)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print what makes a shell complete pylog's commands and options.

    \b
    Example:
      eval "$(pylog completion bash)"
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None, f"click completes {shell}"
    click.echo(found(pylog, {}, "pylog", "_PYLOG_COMPLETE").source())


for command in (
    topic,
    produce,
    consume,
    group,
    plan,
    serve,
    maintain,
    merge,
    gc,
    checkpoint,
    verify,
    repair,
    segment,
    metadata,
    cluster,
    config,
    producer,
    transaction,
    bench,
    completion,
):
    pylog.add_command(command)


def main() -> None:
    """Entry point."""
    pylog(prog_name="pylog")
