"""Types of configs: name, type with a range, default and effect.  `settings.py` has the configs themselves.  Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from spark_log.errors import InvalidConfig
from spark_log.positions import UNITS_MS

UNITS_BYTES = {"": 1, "b": 1} | {
    f"{unit}{end}": 1 << 10 * power for power, unit in enumerate("kmgt", 1) for end in ("", "b", "ib")
}
"""Bytes of each unit.  As in Spark's settings, 1k, 1kb and 1kib are 1024 bytes."""
UNITS_MINUTES = {unit: ms // 60_000 for unit, ms in UNITS_MS.items() if ms >= 60_000}

Value = int | float | bool | str
"""A parsed config value.  A list is its text, the items joined by commas."""


class ConfigKind(Protocol):
    """A type of config with its range."""

    def parse(self, text: str) -> Value:
        """Parse a trimmed text.  Raises ValueError."""

    def possible(self) -> str:
        """The values that are allowed, in words that can follow 'give'."""


@dataclass(frozen=True, slots=True)
class Whole:
    """An integer, with its unit."""

    minimum: int
    maximum: int
    unit: str = ""
    """The unit's plural."""

    def parse(self, text: str) -> int:
        found = re.fullmatch(r"([+-]?[0-9]{1,19})(?: ?([a-z]+))?", text.lower())
        factor = 1 if found is None or not found[2] else self._units.get(found[2])
        if found is None or factor is None or not self.minimum <= (number := int(found[1]) * factor) <= self.maximum:
            raise ValueError(text)
        return number

    def possible(self) -> str:
        return f"a whole number {self.unit and f'of {self.unit} '}from {self.minimum} to {self.maximum}"

    def or_unit(self) -> str:
        """Words that can follow `possible`."""
        return {"milliseconds": ", or with a unit, as in 7d", "bytes": ", or with a unit, as in 64m"}.get(self.unit, "")

    @property
    def _units(self) -> Mapping[str, int]:
        """The units that a value may have, if it is a duration or a size."""
        units: dict[str, Mapping[str, int]] = {
            "milliseconds": UNITS_MS,
            "minutes": UNITS_MINUTES,
            "bytes": UNITS_BYTES,
        }
        return units.get(self.unit, {})


@dataclass(frozen=True, slots=True)
class Fraction:
    """A number from 0 to 1."""

    def parse(self, text: str) -> float:
        if not 0 <= (number := float(text)) <= 1:
            raise ValueError(text)
        return number

    def possible(self) -> str:
        return "a number from 0 to 1"


@dataclass(frozen=True, slots=True)
class Flag:
    """true or false, in any case."""

    def parse(self, text: str) -> bool:
        return ("false", "true").index(text.lower()) == 1

    def possible(self) -> str:
        return "true or false"


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words."""

    words: tuple[str, ...]
    synonyms: tuple[tuple[str, str], ...] = ()
    """(another spelling, the canonical word)."""
    why_not_others: str = ""

    def parse(self, text: str) -> str:
        word = dict(self.synonyms).get(text, text)
        if word not in self.words:
            raise ValueError(text)
        return word

    def possible(self) -> str:
        return f"one of {', '.join(self.words)}{self.why_not_others}"


@dataclass(frozen=True, slots=True)
class Several:
    """Any of a few words, joined by commas; an empty text if none."""

    words: tuple[str, ...]

    def parse(self, text: str) -> str:
        given = [word.strip() for word in text.split(",")] if text else []
        if not set(given) <= set(self.words):
            raise ValueError(text)
        return ",".join(word for word in self.words if word in given)

    def possible(self) -> str:
        return f"any of {', '.join(self.words)}, joined by commas, or empty"


@dataclass(frozen=True, slots=True)
class Names:
    """Some names, joined by commas; an empty text if none."""

    count_max: int

    def parse(self, text: str) -> str:
        given = [name.strip() for name in text.split(",")] if text else []
        if len(given) > self.count_max or not all(given):
            raise ValueError(text)
        return ",".join(dict.fromkeys(given))

    def possible(self) -> str:
        return f"up to {self.count_max} names, joined by commas, or empty"


@dataclass(frozen=True, slots=True)
class FreeText:
    """Any text."""

    def parse(self, text: str) -> str:
        return text

    def possible(self) -> str:
        return "any text"


class Effect(Enum):
    """The effect of setting a config."""

    IN_FORCE = "in force"
    NONE = "without effect"
    """A config of Kafka that is stored and shown.  A value other than the default gives a warning with the reason,
    `doc`."""
    REFUSED = "refused"
    """A config of Kafka that only accepts its default: `doc` is the reason."""


@dataclass(frozen=True, slots=True)
class ConfigSpec:
    """One config."""

    name: str
    default: Value
    kind: ConfigKind
    doc: str = ""
    """One line."""
    effect: Effect = Effect.IN_FORCE

    def parse(self, given: object) -> Value:
        """Parse a value; a number or a bool is taken as its text.  InvalidConfig has the range, or the reason."""
        value = self._parse_kind(given)
        if value is None:
            raise InvalidConfig(f"config {self.name}: {given!r} is invalid; expected {self._expected()}")
        if self.effect is Effect.REFUSED and value != self.default:
            raise InvalidConfig(f"config {self.name}: {given!r} is refused: {self.doc}")
        return value

    def _parse_kind(self, given: object) -> Value | None:
        if isinstance(given, str | int | float):
            with suppress(ValueError):
                return self.kind.parse(str(given).strip())
        return None

    def _expected(self) -> str:
        return self.kind.possible() + (self.kind.or_unit() if isinstance(self.kind, Whole) else "")

    @property
    def in_force(self) -> bool:
        """Whether pylog does what the config says."""
        return self.effect is Effect.IN_FORCE

    def warnings(self, value: Value) -> Iterator[str]:
        """Warnings about a value that has no effect."""
        if self.effect is Effect.NONE and value != self.default:
            yield f"config {self.name} is kept, and has no effect in pylog: {self.doc}"


def format_value(value: Value) -> str:
    """The canonical text of a value: `parse(format_value(v)) == v`."""
    return str(value).lower() if isinstance(value, bool) else str(value)
