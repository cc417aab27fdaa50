"""What all commands share: where the log is, the options of every command, errors as one sentence, positions and durations.

Modules of the command line import Arrow and the client inside their functions only: `pylog --help` is fast.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

import click

from spark_log.debug import shows_tracebacks
from spark_log.errors import InvalidRequest, SparkLogError
from spark_log.positions import UNITS_MS, Position, parse_position

if TYPE_CHECKING:
    from spark_log.client.log import Log

URL_VARIABLE = "PYLOG_URL"


@dataclass(slots=True)
class Session:
    """What the options that every command has say."""

    url: str | None = None
    storage_options: dict[str, str] = field(default_factory=dict)
    output: str = "table"

    @property
    def json(self) -> bool:
        return self.output == "json"

    def connect(self, *, create: bool = False) -> Log:
        """The log.  Raises a usage error if no URL was given, NoLog if there is none and it is not to be created."""
        from spark_log.client.log import connect

        if not self.url:
            raise click.UsageError(
                f"which log? give its URL with -u URL or in {URL_VARIABLE}, as in -u file:///data/log"
            )
        return connect(self.url, storage_options=self.storage_options or None, create=create)


class Failed(click.ClickException):
    """Refused or failed: one sentence on standard error, exit status 1."""

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"pylog: {self.format_message()}", err=True)


class Root(click.Group):
    """The command: errors of the log become sentences."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SparkLogError as error:
            if shows_tracebacks():
                raise
            raise Failed(str(error)) from error


class Verb(click.Command):
    """A command that does something.  It takes the options of every command too, so that they may come last."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += common_options()


def common_options() -> list[click.Parameter]:
    """URL, storage options and form of output."""
    return [
        click.Option(
            ["-u", "--url"],
            metavar="URL",
            expose_value=False,
            callback=_set_url,
            help=f"The log. [env: {URL_VARIABLE}]",
        ),
        click.Option(
            ["--storage-option", "storage_options"],
            metavar="KEY=VALUE",
            multiple=True,
            expose_value=False,
            callback=_set_storage_options,
            help="Handed to the storage: credentials, endpoints.",
        ),
        click.Option(
            ["--output"],
            type=click.Choice(["table", "json"]),
            expose_value=False,
            callback=_set_output,
            help="Form of what is printed; table is the default.",
        ),
    ]


def _session(ctx: click.Context) -> Session:
    session = ctx.find_root().ensure_object(Session)
    if session.url is None:
        session.url = os.environ.get(URL_VARIABLE)
    return session


def _set_url(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    session = _session(ctx)
    if value is not None:
        session.url = value


def _set_storage_options(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> None:
    _session(ctx).storage_options.update(parse_pairs(values, param))


def _set_output(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None:
        _session(ctx).output = value


pass_session = click.make_pass_decorator(Session, ensure=True)


def verb(group: click.Group, name: str | None = None) -> Callable[[Callable[..., Any]], click.Command]:
    """Registers a function as a command of a group; its docstring is the help, with an example after `\\b`."""
    return group.command(name, cls=Verb)


# ---------------------------------------------------------------------------------------------------------------- options


class PositionType(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.5 on only
    """A position, as everywhere: see `spark_log.positions`."""

    name = "position"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Position:
        try:
            return parse_position(value)
        except InvalidRequest as error:
            self.fail(str(error), param, ctx)


class DurationType(click.ParamType):  # type: ignore[type-arg]
    """A number with a unit, in milliseconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return parse_duration(str(value))
        except InvalidRequest as error:
            self.fail(str(error), param, ctx)


def parse_duration(text: str) -> int:
    """Milliseconds of a number with a unit.  Raises InvalidRequest."""
    found = re.fullmatch(r"([0-9]{1,9})(ms|[smhdw])", text.strip().lower())
    if found is None or not int(found[1]):
        raise InvalidRequest(f"{text!r} is not a duration; give a number and one of ms, s, m, h, d, w, as in 10m")
    return int(found[1]) * UNITS_MS[found[2]]


POSITION = PositionType()
DURATION = DurationType()


def parse_pairs(values: Sequence[str], param: click.Parameter | None = None) -> dict[str, str]:
    """k=v texts as a mapping.  Raises a usage error."""
    pairs = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{text!r} has not the form KEY=VALUE", param=param)
        pairs[name] = value
    return pairs


def config_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """-c KEY=VALUE, as often as wanted, as a mapping `configs`."""
    return click.option(
        "-c",
        "--config",
        "configs",
        multiple=True,
        metavar="KEY=VALUE",
        callback=lambda ctx, param, values: parse_pairs(values, param),
        help="A config by Kafka's name; may be repeated.",
    )(function)


def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """--dry-run and --yes, for what cannot be undone."""
    function = click.option("--yes", is_flag=True, help="Do not ask.")(function)
    return click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")(function)


def confirmed(what: str, *, dry_run: bool, yes: bool) -> bool:
    """Whether to go on.  Asks on a terminal; elsewhere, without --yes, it is refused."""
    if dry_run:
        click.echo(f"would {what}", err=True)
        return False
    if yes:
        return True
    if not sys.stdin.isatty():
        raise Failed(f"this would {what}, and cannot be undone: say --yes to do it, or --dry-run to see it")
    if not click.confirm(f"This will {what}, and cannot be undone. Go on?", err=True):
        raise Failed("nothing was done")
    return True
