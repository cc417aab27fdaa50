"""`pylog console`."""

from __future__ import annotations

import html
import re
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

import click

from spark_log.cli.common.base import Failed, Verb, pass_session
from spark_log.cli.common.output import echo
from spark_log.cli.common.session import CommandSession
from spark_log.text import install_extra


@click.command(cls=Verb)
@click.option(
    "-u",
    "--url",
    "urls",
    multiple=True,
    metavar="URL",
    help="The URL of the log; may be repeated: the page has a choice then.  [env: PYLOG_URL]",
)
@click.option(
    "--listen",
    metavar="[HOST:]PORT",
    default="127.0.0.1:9560",
    show_default=True,
    help="The address to listen on, of this machine only; with port 0, a free one.",
)
@click.option(
    "--token-file",
    type=click.File("rb"),
    metavar="FILE",
    help="Use the token in this file, of 16 characters at least, as for Prometheus; by default, each run makes one.",
)
@click.option(
    "--admin",
    is_flag=True,
    help="Let the printed address change the log: topics, configs and positions of groups; a --token-file only reads.",
)
@click.option("--open", "opens", is_flag=True, help="Open the page in a browser.")
@pass_session
def console(
    session: CommandSession,
    urls: tuple[str, ...],
    listen: str,
    token_file: BinaryIO | None,
    admin: bool,
    opens: bool,
) -> None:
    """Show a log, or several, in a browser, until SIGTERM or Ctrl-C.

    Pages show topics, records, groups and health, and change nothing without --admin.  The command prints their
    address, with a token that is made for this run or read from a file.  The log needs no coordinator.  A coordinator
    has this console too, on its own port.
    With --admin, pages change the log with your rights, each time after a dry run, and each change is a line of JSON on
    standard error.  Everybody who has the printed address can do that as long as the command runs.
    GET /metrics with the token, as `Authorization: Bearer TOKEN`, answers with metrics for Prometheus.

    \b
    Example:
      pylog console -u file:///data/log
      pylog console -u file:///data/log --admin
      pylog console -u file:///data/log -u s3://bucket/log
      pylog console -u pylog://127.0.0.1:9550 --listen 8080 --open
      pylog console -u file:///data/log --token-file /etc/pylog/console-token
    """
    import asyncio
    import secrets
    import webbrowser

    try:
        from spark_log.console.standalone import serve_console
        from spark_log.server.audit import STDERR, open_audit
    except ImportError as error:
        if error.name != "aiohttp":
            raise
        raise Failed(f"the console needs aiohttp: {install_extra('server')}") from error

    given = "" if token_file is None else token_in(token_file)
    token = given if given and not admin else secrets.token_urlsafe(24)
    if admin:
        open_audit(STDERR)

    opened = ExitStack()

    def say(address: str) -> None:
        echo(address)
        if opens:
            folder = opened.enter_context(TemporaryDirectory(prefix="pylog-console-"))
            webbrowser.open(page_that_leads_to(address, Path(folder)).as_uri())

    if "" in urls:
        raise click.BadParameter("it is empty; give a value, or leave the option out", param_hint="'-u' / '--url'")
    sessions = [replace(session, given_url=url) for url in dict.fromkeys(urls)] or [session]
    with opened:
        logs = [opened.enter_context(one.connect()) for one in sessions]
        asyncio.run(serve_console(logs, listen, token, say, changes=admin, reader=given if admin else ""))


def page_that_leads_to(address: str, folder: Path) -> Path:
    """A file in a folder of this user alone, whose name a browser may get as an argument.

    All users of the machine see the arguments of processes, so these must not contain the address with its token.
    """
    page = folder / "open.html"
    page.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={html.escape(address)}">')
    return page


def token_in(file: BinaryIO) -> str:
    """The token that is all of a file.  Raises Failed, which does not show it, for anything else."""
    from spark_log.server.tokens import TOKEN_MIN

    token = file.read().strip()
    if not re.fullmatch(rb"[\w.~-]{%d,}" % TOKEN_MIN, token):  # the page takes no others from its address
        raise Failed(
            f"--token-file {file.name}: expected one token and nothing else, of {TOKEN_MIN} or more of the characters "
            "a-z A-Z 0-9 . _ ~ -; make one with: openssl rand -hex 24"
        )
    return token.decode()
