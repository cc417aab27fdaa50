"""Profiles: named settings (URL, access, output) in an INI file of the user.

[prod]
url = pylog://log.example.org:9550
ca = /etc/pylog/certificate.pem
token = …
output = wide
storage.endpoint_url = …
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from spark_log.errors import InvalidRequest

STORAGE = "storage."
KEYS = ("url", "token", "ca", "output")
OUTPUTS = ("table", "wide", "json", "yaml", "csv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One section of the file."""

    url: str | None = None
    """Including `ca`, if the profile has one."""
    token: str | None = None
    output: str | None = None
    storage_options: Mapping[str, str] = field(default_factory=dict)


def profiles_path() -> Path:
    """The path of the file, which may not exist."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "pylog" / "config.ini"


def profile_names() -> list[str]:
    return list(_sections())


def read_profile(name: str) -> Profile:
    """Raises InvalidRequest if the profile does not exist or is invalid."""
    sections = _sections()
    if name not in sections:
        known = f"it has {', '.join(sections)}" if sections else "it has no profiles"
        raise InvalidRequest(f"profile {name!r} is not in {profiles_path()}; {known}")
    values = sections[name]
    for key in values:
        if key not in KEYS and not key.startswith(STORAGE):
            raise InvalidRequest(f"profile {name!r}: unknown key {key!r}; expected {', '.join(KEYS)} or {STORAGE}NAME")
    return Profile(
        url=_url(name, values),
        token=values.get("token"),
        output=None if "output" not in values else checked_output(values["output"], f"profile {name!r}"),
        storage_options={key.removeprefix(STORAGE): value for key, value in values.items() if key.startswith(STORAGE)},
    )


def checked_output(text: str, place: str) -> str:
    """An output form.  Raises InvalidRequest, whose message names the place."""
    if text not in OUTPUTS:
        raise InvalidRequest(f"{place}: invalid output {text!r}; expected {', '.join(OUTPUTS)}")
    return text


def _url(name: str, values: Mapping[str, str]) -> str | None:
    url, ca = values.get("url"), values.get("ca")
    if ca is None:
        return url
    if url is None or not url.startswith("pylog://") or "?" in url:
        raise InvalidRequest(f"profile {name!r}: ca belongs to a url of the form pylog://HOST:PORT, found {url!r}")
    return f"{url}?ca={ca}"


def _why(error: Exception) -> str:
    """Without the text of a line, which may hold a token."""
    if isinstance(error, configparser.MissingSectionHeaderError):
        return f"line {error.lineno} is before the first [profile]"
    if isinstance(error, configparser.ParsingError):
        return f"expected NAME = VALUE in line {', '.join(str(number) for number, _ in error.errors)}"
    return " ".join(str(error).split())


def _sections() -> dict[str, dict[str, str]]:
    """Sections by name; empty without a file.  Raises InvalidRequest if the file cannot be read."""
    path = profiles_path()
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # storage options have case
    try:
        parser.read_string(path.read_text(encoding="utf-8-sig"), str(path))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        raise InvalidRequest(f"profiles: {path} cannot be read: {_why(error)}") from None
    return {name: dict(parser[name]) for name in parser.sections()}
