"""Shared by all commands: common options, one-sentence errors, and the types of positions and durations.

The command line imports Arrow and the client only inside functions, to keep `pylog --help` fast.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any

import click

from spark_log.cli.common.completion import complete_profiles
from spark_log.cli.common.kafka_flags import check_no_kafka_tool, with_kafka_hint
from spark_log.cli.common.output import echo
from spark_log.cli.common.profiles import OUTPUTS
from spark_log.cli.common.session import OUTPUT_VARIABLE, PROFILE_VARIABLE, URL_VARIABLE, CommandSession
from spark_log.display.units import parse_rate
from spark_log.errors import AuthorizationFailed, InvalidRequest, SparkLogError
from spark_log.positions import UNITS_MS, Position, parse_position
from spark_log.runtime.closed_pipe import EXIT_CLOSED_PIPE, discard_output
from spark_log.runtime.debug import shows_tracebacks
from spark_log.text import printable_lines

JOBS: Mapping[str, str] = {
    "backup": "`python -m spark_log.jobs.backup` backs up a log",
    "backups": "`python -m spark_log.jobs.backup --list --backups URL` lists backups",
    "restore": (
        "`python -m spark_log.jobs.backup --restore latest --backups URL --url URL` restores a backup, "
        "`pylog recover` makes a log of a mirror, and `pylog quorum restore` restores a quorum"
    ),
    "export": "`python -m spark_log.jobs.export` exports a topic to a table",
    "backfill": "`python -m spark_log.jobs.backfill` writes a table to a topic",
    "mirror-kafka": "`python -m spark_log.jobs.mirror_kafka` copies topics of Kafka",
    "mirror-pylog": "`python -m spark_log.jobs.mirror_pylog` copies topics to another log",
}
"""The command of a job, by the name that is typed for it."""


def check_no_job(ctx: click.Context, name: str) -> None:
    """Raise UsageError for a command that is unknown here and is done by a job."""
    if ctx.parent is None and (says := JOBS.get(name.replace("_", "-"))) is not None:
        raise click.UsageError(f"There is no command {name}: {says}. In a checkout, the jobs are in jobs/.", ctx)


class Failed(click.ClickException):
    """An error: one sentence on standard error, and exit status 1."""

    def show(self, file: IO[Any] | None = None) -> None:
        echo(f"pylog: {self.format_message()}", err=True)


class Long(click.types.IntParamType):
    """An integer of 64 bits."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if number.bit_length() > 63:
            self.fail(f"{number} is not a number of 64 bits.", param, ctx)
        return number


LONG = Long()


class Verb(click.Command):
    """A command that does something.  It accepts the common options too, so that they may come last."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.own_params = tuple(self.params)
        self.params += common_options({name for param in self.params for name in param.opts})

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with with_kafka_hint(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        ctx.find_root().ensure_object(CommandSession).check_output()
        try:
            return super().invoke(ctx)
        except AuthorizationFailed as error:  # the coordinator does not know what was typed
            error.args = (f"{ctx.command_path.removeprefix('pylog ')}: {error}",)
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The command's options come before the common ones."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        own = [param for param in options if param in self.own_params]
        shared = [param for param in options if param not in self.own_params]
        for title, params in (("Options", own), ("Options of every command", shared)):
            records = [record for param in params if (record := param.get_help_record(ctx))]
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class Noun(click.Group):
    """A group of commands."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None:
            check_no_kafka_tool(ctx, args[0])
            check_no_job(ctx, args[0])
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with with_kafka_hint(ctx):
            return super().parse_args(ctx, args)


class Root(Noun):
    """The `pylog` command.  It reports errors of the log as sentences, and groups the commands in its help by
    purpose."""

    sections: Sequence[tuple[str, Sequence[str]]] = ()
    """(title, names of commands), in the order of the help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for _, names in self.sections for name in names]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands come first: most readers look for those."""
        self.format_commands(ctx, formatter)
        click.Command.format_options(self, ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        limit = formatter.width - 6 - max(map(len, self.commands))
        for title, names in self.sections:
            with formatter.section(title):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(limit)) for name in names])

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with _printable_errors():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _printable_errors():
                return super().invoke(ctx)
        except SparkLogError as error:
            if shows_tracebacks():
                raise
            raise Failed(str(error)) from error
        except BrokenPipeError:
            discard_output()
            ctx.exit(EXIT_CLOSED_PIPE)


@contextmanager
def _printable_errors() -> Iterator[None]:
    """Errors of click have what was typed, which may be another's name."""
    try:
        yield
    except click.ClickException as error:
        texts = {name: text for name, text in vars(error).items() if isinstance(text, str)}
        vars(error).update({name: printable_lines(text) for name, text in texts.items()})
        raise


def common_options(taken: Collection[str] = ()) -> list[click.Parameter]:
    """The options of every command.

    taken:  names that have another meaning in this command.
    """
    output = [name for name in ("-o", "--output") if name not in taken]
    options: list[click.Parameter] = [
        click.Option(
            ["-u", "--url"],
            metavar="URL",
            expose_value=False,
            callback=_set("given_url"),
            help=f"The URL of the log. [env: {URL_VARIABLE}]",
        ),
        click.Option(
            ["--profile"],
            metavar="NAME",
            expose_value=False,
            callback=_set("given_profile"),
            shell_complete=complete_profiles,
            help=f"The section of ~/.config/pylog/config.ini to take the URL from. [env: {PROFILE_VARIABLE}]",
        ),
        click.Option(
            ["--storage-option", "storage_options"],
            metavar="KEY=VALUE",
            multiple=True,
            expose_value=False,
            callback=_set_storage_options,
            help="An option of the storage, such as a credential or an endpoint; may be repeated.",
        ),
        click.Option(
            output,
            type=click.Choice(OUTPUTS),
            expose_value=False,
            callback=_set("given_output"),
            help=f"The form of the output; table is the default. [env: {OUTPUT_VARIABLE}]",
        ),
        click.Option(
            ["--bytes", "exact"],
            is_flag=True,
            default=None,
            expose_value=False,
            callback=_set("exact"),
            help="Print bytes, milliseconds and counts as plain numbers, without units.",
        ),
    ]
    return [option for option in options if not ("--url" in option.opts and "--url" in taken)]


Callback = Callable[[click.Context, click.Parameter, Any], None]


def _set(name: str) -> Callback:
    """A callback that sets a field of the session, unless the option was not given here."""

    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if value == "":
            raise click.BadParameter("it is empty; give a value, or leave the option out", ctx, param)
        if value is not None:
            setattr(ctx.find_root().ensure_object(CommandSession), name, value)

    return callback


def _set_storage_options(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> None:
    ctx.find_root().ensure_object(CommandSession).given_storage_options.update(parse_pairs(values, param))


pass_session = click.make_pass_decorator(CommandSession, ensure=True)


def verb(group: click.Group, name: str | None = None) -> Callable[[Callable[..., Any]], click.Command]:
    """Register a function as a command of a group.  Its docstring is the help, with an example after `\\b`."""
    return group.command(name, cls=Verb)


# -------------------------------------------------------------------------------------------------------------- options


class PositionType(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.5 on only
    """A position: see `spark_log.positions`."""

    name = "position"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Position:
        try:
            return parse_position(value)
        except InvalidRequest as error:
            is_form = value in OUTPUTS and param is not None and "-o" in param.opts
            self.fail(f"{error}{f'; the form of the output is --output {value} here' if is_form else ''}", param, ctx)


class PatternType(click.ParamType):  # type: ignore[type-arg]
    """A Python regular expression."""

    name = "regex"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> re.Pattern[str]:
        if not value:
            self.fail("it is empty; .* matches all", param, ctx)
        try:
            return re.compile(value)
        except (re.error, OverflowError, RecursionError) as error:
            self.fail(f"{value!r} is not a regular expression: {error}", param, ctx)


class ParsedType(click.ParamType):  # type: ignore[type-arg]
    """A number that a function reads, which raises InvalidRequest for other texts."""

    def __init__(self, name: str, parse: Callable[[str], int]) -> None:
        self.name, self._parse = name, parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return self._parse(str(value))
        except InvalidRequest as error:
            self.fail(str(error), param, ctx)


def parse_duration(text: str) -> int:
    """A number with a unit, as milliseconds.  Raises InvalidRequest."""
    found = re.fullmatch(r"([0-9]{1,9})(ms|[smhdw])", text.strip().lower())
    if found is None or not int(found[1]):
        raise InvalidRequest(f"{text!r} is not a duration; give a number and one of ms, s, m, h, d, w, as in 10m")
    return int(found[1]) * UNITS_MS[found[2]]


POSITION = PositionType()
DURATION = ParsedType("duration", parse_duration)
RATE = ParsedType("rate", parse_rate)
PATTERN = PatternType()


def parse_pairs(values: Sequence[str], param: click.Parameter | None = None) -> dict[str, str]:
    """Strings of the form k=v as a mapping.  Raises a usage error."""
    return dict(pair_list(values, param))


def pair_list(values: Sequence[str], param: click.Parameter | None = None) -> list[tuple[str, str]]:
    """Strings of the form k=v, of which some may have the same name.  Raises a usage error."""
    pairs = []
    for text in values:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{text!r} is not of the form KEY=VALUE", param=param)
        pairs.append((name, value))
    return pairs


def config_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """-c KEY=VALUE, repeatable, as a mapping `configs`."""
    return click.option(
        "-c",
        "--config",
        "configs",
        multiple=True,
        metavar="KEY=VALUE",
        callback=lambda ctx, param, values: parse_pairs(values, param),
        help="A config by Kafka's name; may be repeated.",
    )(function)


create_option = click.option(
    "--create/--no-create", default=True, show_default=True, help="Create the log if the URL has none."
)


def storage_option(
    flag: str, storage: str, example: str = "a credential or an endpoint"
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An option for another storage than that of the log, as a mapping `options`."""
    return click.option(
        flag,
        "options",
        multiple=True,
        metavar="KEY=VALUE",
        callback=lambda ctx, param, values: parse_pairs(values, param),
        help=f"An option of {storage}, such as {example}; may be repeated.",
    )


def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """--dry-run and --yes, for changes that cannot be undone."""
    function = click.option("--yes", is_flag=True, help="Do it without asking.")(function)
    return click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")(function)


def confirmed(what: str, *, dry_run: bool, yes: bool, undo: str = "") -> bool:
    """Whether to continue.  Asks on a terminal; without a terminal, --yes is required.

    undo:  how a user gets back what was there; empty: it cannot be undone.
    """
    what_then = f" ({undo})" if undo else ", and cannot be undone"
    if dry_run:
        echo(f"would {what}", err=True)
        return False
    if yes:
        return True
    if not sys.stdin.isatty():
        params = click.get_current_context().command.params
        shown = ", or --dry-run to see it" if any("--dry-run" in param.opts for param in params) else ""
        raise Failed(f"this would {what}{what_then}: give --yes to do it{shown}")
    if not click.confirm(f"This will {printable_lines(what)}{what_then}. Continue?", err=True):
        raise Failed("nothing was done")
    return True
