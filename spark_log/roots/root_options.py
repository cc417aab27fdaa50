"""Options of the storage of roots: which are registered in the log, and which each process has to give."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from spark_log.errors import InvalidRequest

SECRET = re.compile(
    r"(?i)secret|password|passwd|passphrase|^pwd|credential|token|sas|authorization|bearer|^auth$|connection_?string|(^|_|\.)(api_?|account_?|access_?)?key(_?id)?$"
)
"""Names of options that may hold a secret.  The state is readable for every client of the log."""


class RootOptions(NamedTuple):
    """How the process opens roots."""

    storage: tuple[tuple[str, Any], ...] = ()
    """Storage options.  Those named `<broker>.<option>` are for the root of that broker, the others for the log's own
    root, and for all roots with the same scheme."""
    durability: str = "disk"
    rack: str = ""
    """Where the process is: it reads from brokers in the same rack first."""

    @classmethod
    def of(cls, storage: Mapping[str, Any] | None, durability: str, rack: str = "") -> RootOptions:
        """Raises InvalidRequest for a rack that is not a string."""
        if not isinstance(rack, str):
            raise InvalidRequest(f"client_rack: {rack!r} is not a string, such as 'a'")
        return cls(tuple(sorted((storage or {}).items())), durability, rack)

    def own(self) -> dict[str, Any]:
        """The options of the log's own root."""
        return {name: value for name, value in self.storage if not _broker_option(name)}

    def at(self, url: str) -> RootOptions:
        """The options of the log after it was moved to this URL: a folder takes none."""
        if _is_bucket(url):
            return self
        return self._replace(storage=tuple(option for option in self.storage if _broker_option(option[0])))

    def of_broker(
        self, broker: int, url: str, own_url: str, registered: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """The options of the root of a broker.

        Those of the process for this broker take precedence over those that are registered in the log, and these over
        those of the log's own root.
        """
        same = _is_bucket(url) and _scheme(url) == _scheme(own_url)
        return {
            **(self.own() if same else {}),
            **(registered or {}),
            **{name.partition(".")[2]: value for name, value in self.storage if _broker_option(name) == str(broker)},
        }


DEFAULT_OPTIONS = RootOptions()


def _broker_option(name: str) -> str:
    """The broker of an option `<broker>.<option>`; empty for others."""
    broker, dot, _ = name.partition(".")
    return broker if dot and broker.isdecimal() else ""


def _is_bucket(url: str) -> bool:
    return "://" in url and not url.startswith(("file:", "memory:"))


def _scheme(url: str) -> str:
    scheme = url.partition(":")[0]
    return "s3" if scheme == "s3a" else scheme


def registered_options(broker: int, given: Mapping[str, Any]) -> dict[str, str]:
    """Options of a broker's root as text, to be registered in the log.

    Raises InvalidRequest for one that may hold a secret, or that is not text.
    """
    for name, value in given.items():
        if secret := _secret_in(name, value):
            raise InvalidRequest(
                f"storage option {secret} may hold a secret, and every client of the log can read what is registered: give "
                f"it to each process that opens the log, as storage option {broker}.{name} (in Spark: "
                f"storage.{broker}.{name})"
            )
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in given.items()}


def _secret_in(name: str, value: Any) -> str:
    """The name of an option that may hold a secret, which can be in a JSON object; empty if there is none."""
    if SECRET.search(name):
        return name
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise InvalidRequest(f"storage option {name} is not JSON: {error}") from None
    if isinstance(value, Mapping):
        return next((found for key, inner in value.items() if (found := _secret_in(str(key), inner))), "")
    return ""
