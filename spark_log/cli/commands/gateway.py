"""`pylog gateway`."""

from __future__ import annotations

import click

from spark_log.cli.common.base import Verb, pass_session
from spark_log.cli.common.output import echo
from spark_log.cli.common.session import CommandSession


@click.command(cls=Verb)
@click.option(
    "--listen",
    metavar="[HOST:]PORT",
    default="127.0.0.1:9092",
    show_default=True,
    help="The address to listen on, 127.0.0.1 if HOST is left out; with port 0, a free port.",
)
@click.option("--advertise", metavar="HOST:PORT", help="The address for clients, if it is a different one.")
@click.option(
    "--prefix",
    "prefixes",
    metavar="PREFIX",
    multiple=True,
    help="Serve only topics whose names begin with it; repeat it for several. [default: all topics]",
)
@click.option("--read-only", is_flag=True, help="Refuse writes, commits and changes of topics and groups.")
@click.option("--insecure", is_flag=True, help="Accept other machines: clients neither authenticate nor encrypt.")
@pass_session
def gateway(
    session: CommandSession,
    listen: str,
    advertise: str | None,
    prefixes: tuple[str, ...],
    read_only: bool,
    insecure: bool,
) -> None:
    """Let Kafka's clients use a log, until SIGTERM or Ctrl-C.

    It speaks Kafka's wire protocol: producers, consumers and their groups, kcat, Spark's Kafka connector and Kafka's
    tools.  Records of typed topics are JSON.  It serves no transactions.

    \b
    Example:
      pylog gateway -u file:///data/log
      pylog gateway -u pylog://127.0.0.1:9550 --listen 0.0.0.0:9092 --advertise kafka.example:9092 --insecure
      pylog gateway -u s3://bucket/log --prefix public. --prefix shop.
    """
    import asyncio
    import logging

    from spark_log.gateway.gateway import parse_addresses, serve_gateway

    addresses = parse_addresses(listen, advertise, insecure=insecure)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    with session.connect() as log:
        say = lambda address: echo(f"listening on {address}")  # noqa: E731
        asyncio.run(serve_gateway(log, addresses, prefixes, say, read_only=read_only))
