"""`--metrics` of a command that keeps running."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from spark_log.cli.common.base import Failed
from spark_log.cli.common.output import echo
from spark_log.text import install_extra


@contextmanager
def metrics_port(text: Callable[[], str], listen: str | None) -> Iterator[None]:
    """Answer scrapes on an address of this machine while the block runs, if there is one.  Raises Failed."""
    if listen is None:
        yield
        return
    try:
        from spark_log.console.local_port import METRICS, serving_metrics
    except ImportError as error:
        if error.name != "aiohttp":
            raise
        raise Failed(f"--metrics needs aiohttp: {install_extra('server')}") from error
    with serving_metrics(text, listen, "--metrics") as address:
        echo(f"metrics: http://{address}{METRICS}", err=True)
        yield
