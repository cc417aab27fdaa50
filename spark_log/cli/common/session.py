"""The settings of one command: the log's URL, its access, and the form of the output.

Precedence: the command line, the profile named on it, the environment, the profile named by PYLOG_PROFILE.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from spark_log.cli.common.profiles import Profile, checked_output, read_profile
from spark_log.errors import InvalidRequest

if TYPE_CHECKING:
    from spark_log.client.log import Log
    from spark_log.journal.journal import Journal

URL_VARIABLE = "PYLOG_URL"
OUTPUT_VARIABLE = "PYLOG_OUTPUT"
PROFILE_VARIABLE = "PYLOG_PROFILE"


@dataclass(slots=True)
class CommandSession:
    """Values of the common options, and settings derived from them."""

    given_url: str | None = None
    given_output: str | None = None
    given_profile: str | None = None
    given_storage_options: dict[str, str] = field(default_factory=dict)
    exact: bool = False
    """Print numbers without units."""

    @property
    def is_given(self) -> bool:
        """Whether the command line names the log, not the environment."""
        return bool(self.given_url or self.given_profile)

    @property
    def url(self) -> str | None:
        profile = self._of_url()
        return self.given_url or os.environ.get(URL_VARIABLE) if profile is None else profile.url

    @property
    def storage_options(self) -> dict[str, str]:
        """The profile's storage options apply to the profile's URL only."""
        profile = self._of_url()
        return {**({} if profile is None else profile.storage_options), **self.given_storage_options}

    @property
    def output(self) -> str:
        if self.given_output:
            return self.given_output
        if self.given_profile and (output := read_profile(self.given_profile).output):
            return output
        if text := os.environ.get(OUTPUT_VARIABLE):
            return _output_of_environment(text)
        name = os.environ.get(PROFILE_VARIABLE)
        return (read_profile(name).output if name and not self.given_profile else None) or "table"

    def check_output(self) -> None:
        """Raises an error for an unknown form, before the command does anything: of usage, or of the profile."""
        _ = self.output

    @property
    def structured(self) -> bool:
        """Whether the output form can represent nested objects and lists."""
        return self.output in ("json", "yaml")

    def connect(self, *, create: bool = False, client_rack: str = "") -> Log:
        """Open the log.  Raises a usage error without a URL, and NoLog if there is no log and `create` is false.

        client_rack:  of a reader.
        """
        from spark_log.client.log import Log

        return Log(self.journal(create=create, client_rack=client_rack))

    def journal(self, *, create: bool = False, client_rack: str = "") -> Journal:
        """Open only the journal of the log, which needs fewer imports.  Raises the errors of `connect`."""
        from spark_log.client.open_journal import open_journal

        profile, url = self._of_url(), self.url
        if not url:
            raise click.UsageError(
                f"no URL: give the log's with -u URL or in {URL_VARIABLE}, as in -u file:///data/log"
            )
        token = None if profile is None else profile.token
        return open_journal(url, self.storage_options or None, token, create=create, client_rack=client_rack)

    def _of_url(self) -> Profile | None:
        """The profile that provides the URL.  Its token is not sent anywhere else."""
        if self.given_profile and self.given_url:
            raise click.UsageError("give either --profile or -u: a profile has a URL")
        if self.given_profile:
            return read_profile(self.given_profile)
        name = os.environ.get(PROFILE_VARIABLE)
        if not name or self.given_url or os.environ.get(URL_VARIABLE):
            return None
        return read_profile(name)


def _output_of_environment(text: str) -> str:
    """Raises a usage error."""
    try:
        return checked_output(text, OUTPUT_VARIABLE)
    except InvalidRequest as error:
        raise click.UsageError(str(error)) from error
