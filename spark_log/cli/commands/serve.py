"""`pylog serve`: the coordinator."""

from __future__ import annotations

from functools import partial

import click

from spark_log.cli.common.base import Failed, Verb, pass_session
from spark_log.cli.common.output import echo
from spark_log.cli.common.session import CommandSession
from spark_log.text import install_extra


@click.command(cls=Verb)
@click.option(
    "--conf",
    type=click.Path(dir_okay=False),
    help="A file of settings; options take precedence over it, and it over PYLOG_URL.",
)
@click.option(
    "--listen",
    metavar="[HOST:]PORT",
    help="The address to listen on, 127.0.0.1 if HOST is left out. [default: 127.0.0.1:9550]",
)
@click.option("--advertise", metavar="HOST:PORT", help="The address for clients, if it is a different one.")
@click.option(
    "--takeover-after",
    metavar="DURATION",
    help="Take over from a coordinator that has been silent for this long. [default: 10s]",
)
@click.option(
    "--maintain-every",
    metavar="DURATION",
    help="How often to run the duties of `pylog maintain`, or never. [default: 10m]",
)
@click.option(
    "--storage-timeout",
    metavar="DURATION",
    help="Step down if no write to the storage succeeds for this long. [default: 15s]",
)
@click.option(
    "--durability",
    type=click.Choice(["disk", "os"]),
    help="Whether a commit waits for the disk or the operating system. [default: disk]",
)
@click.option(
    "--metadata",
    type=click.Choice(["storage", "served"]),
    help="Where clients read the log's metadata: on the storage, or served by the coordinator. [default: storage]",
)
@click.option(
    "--quorum",
    "quorum_directory",
    metavar="DIR",
    help="Be a node of a quorum, with this directory of `pylog quorum init`; the URL is that of the records.",
)
@click.option("--quorum-listen", metavar="HOST:PORT", help="The address for other nodes. [default: 127.0.0.1:9551]")
@click.option(
    "--quorum-peers", metavar="N@HOST:PORT,…", help="The nodes of the quorum; their secret is in [quorum] of --conf."
)
@click.option("--create/--no-create", default=None, help="Create the log if the URL has none. [default: create]")
@click.option("--insecure", is_flag=True, default=None, help="Accept other machines without TLS and tokens.")
@pass_session
def serve(
    session: CommandSession,
    /,
    conf: str | None,
    insecure: bool | None,
    create: bool | None,
    **settings: str | None,
) -> None:
    """Run the coordinator of a log, until SIGTERM or SIGINT.

    It takes the log over, and embedded writers switch to its address.  A second coordinator of the same log stands
    by, and takes over when the first one is gone.

    Its address in a browser, such as http://127.0.0.1:9550, is the console: pages about the log, its records and its
    groups.

    With --quorum it is one of 1, 3 or 5 nodes, which keep the metadata of the log on their own disks.

    \b
    Example:
      pylog serve --listen 9550
      pylog serve --conf coordinator.ini --listen 0.0.0.0:9550
      pylog -u s3://bucket/records serve --conf node.ini --quorum /var/lib/pylog/quorum
    """
    import asyncio
    import logging

    try:
        from spark_log.console.history_file import state_folder
        from spark_log.console.of_coordinator import pages_of
        from spark_log.serve.serve import serve
        from spark_log.serve.serve_config import Environment, ServeConfig, read_config
    except ImportError as error:
        if error.name != "aiohttp":
            raise
        raise Failed(f"the coordinator needs aiohttp: {install_extra('server')}") from error

    # The names of the options, with dots, are those of the file.
    flags = {name.replace("_", "."): text for name, text in settings.items()}
    flags["url"] = session.url if session.is_given else None
    flags["create"] = None if create is None else str(create).lower()
    flags["insecure"] = None if insecure is None else "true"

    def read() -> ServeConfig:
        if session.is_given:
            return read_config(conf, flags, session.storage_options)
        environment = Environment(session.url, session.storage_options)
        return read_config(conf, flags, session.given_storage_options, environment)

    config = read()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    asyncio.run(serve(config, lambda line: echo(line), reread=read, pages=partial(pages_of, folder=state_folder())))
