"""Kafka's messages as bytes.  Pure.

A message is a frozen dataclass whose fields are declared with `fixed`, `text`, `uuid`, `data` and `several`: the type
on the wire, and the first and last version that have the field.  From a class and a version, `layout` makes a
`MessageLayout`, which reads and writes it.  Fields of fixed size that follow each other are one `struct`.

In a *flexible* version lengths are varints, and each structure ends with tagged fields.  None is written, because all
of them are optional, and those that arrive are skipped.  Everything read is untrusted: a length or a count is compared
with the bytes that are left before anything is made of it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache, partial
from typing import Any, NamedTuple

from spark_log.bounds import INT16_MAX
from spark_log.errors import InvalidRequest

LAST = 1 << 15
"""A version that no message reaches."""
FIXED = {"bool": "?", "int8": "b", "int16": "h", "int32": "i", "int64": "q"}
NO_UUID = "0" * 32
UUID_BYTES = 16
VARINT_BYTES_MAX = 5
ITEMS_MAX = 100_000
"""In all arrays of a message.  An item takes a hundred times the memory of its bytes."""


class MalformedFrame(InvalidRequest):
    """Bytes that are not what they claim to be: the connection is closed."""


class WireField(NamedTuple):
    """One declared field."""

    kind: str
    since: int
    until: int
    nullable: bool = False
    item: str | type | None = None
    """A class of messages, text, or the name of a fixed type, for an array."""


def fixed(kind: str, since: int = 0, until: int = LAST, *, default: int = 0) -> Any:
    """An integer or a bool, `default` in versions without it."""
    return field(default=default, metadata={"wire": WireField(kind, since, until)})


def text(since: int = 0, until: int = LAST, *, nullable: bool = False) -> Any:
    return field(default=None if nullable else "", metadata={"wire": WireField("text", since, until, nullable)})


def uuid(since: int = 0, until: int = LAST) -> Any:
    """A uuid, as 32 hex digits: the form of topic ids in the state."""
    return field(default=NO_UUID, metadata={"wire": WireField("uuid", since, until)})


def data(since: int = 0, until: int = LAST) -> Any:
    """Bytes or None."""
    return field(default=None, metadata={"wire": WireField("data", since, until, nullable=True)})


def several(item: str | type, since: int = 0, until: int = LAST, *, nullable: bool = False) -> Any:
    """A sequence of messages, of texts, or of values of a fixed type."""
    return field(default=(), metadata={"wire": WireField("array", since, until, nullable, item)})


class FrameBytes:
    """Bytes that are read from the front."""

    __slots__ = ("at", "data", "items")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.items = 0
        """Items of all arrays so far."""

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    def take(self, size: int) -> bytes:
        if not 0 <= size <= self.left:
            raise MalformedFrame(f"a field of {size} bytes where {self.left} are left")
        self.at += size
        return self.data[self.at - size : self.at]

    def unpack(self, form: struct.Struct) -> tuple[Any, ...]:
        if form.size > self.left:
            raise MalformedFrame(f"a field of {form.size} bytes where {self.left} are left")
        self.at += form.size
        return form.unpack_from(self.data, self.at - form.size)

    def varint(self) -> int:
        """Unsigned, of at most 32 bits."""
        value = 0
        for number in range(VARINT_BYTES_MAX):
            (byte,) = self.take(1)
            value |= (byte & 127) << 7 * number
            if byte < 128:
                return value
        raise MalformedFrame("a varint of more than five bytes")

    def skip_tags(self) -> None:
        for _ in range(self.counted(self.varint(), 2)):
            self.varint()
            self.take(self.varint())

    def counted(self, count: int, smallest: int) -> int:
        """A count of items of at least `smallest` bytes, as far as so many can be there, and may be."""
        if count * smallest > self.left:
            raise MalformedFrame(f"{count} items where {self.left} bytes are left")
        self.items += count
        if self.items > ITEMS_MAX:
            raise MalformedFrame(f"{self.items} items, and a message may have {ITEMS_MAX}")
        return count


def varint(value: int) -> bytes:
    """Unsigned."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


Out = Callable[[bytes], object]
"""Takes the next bytes of a message."""


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Fields of fixed size, one behind the other."""

    names: tuple[str, ...]
    form: struct.Struct

    def read(self, source: FrameBytes, found: dict[str, Any]) -> None:
        found.update(zip(self.names, source.unpack(self.form), strict=True))

    def write(self, message: object, out: Out) -> None:
        out(self.form.pack(*[getattr(message, name) for name in self.names]))


@dataclass(frozen=True, slots=True)
class _Value:
    """A field whose size is in front of it, or a uuid."""

    name: str
    read_value: Callable[[FrameBytes], Any]
    write_value: Callable[[Any, Out], object]
    nullable: bool

    def read(self, source: FrameBytes, found: dict[str, Any]) -> None:
        value = self.read_value(source)
        if value is None and not self.nullable:
            raise MalformedFrame(f"{self.name} has no value")
        found[self.name] = value

    def write(self, message: object, out: Out) -> None:
        self.write_value(getattr(message, self.name), out)


class MessageLayout:
    """The fields that a version of a message has, in order."""

    def __init__(self, message: type, version: int, *, flexible: bool) -> None:
        self._message = message
        self._flexible = flexible
        self.smallest = int(flexible)
        """The fewest bytes that such a message has."""
        self._steps: list[_Numbers | _Value] = []
        run: list[tuple[str, str]] = []
        for one in fields(message):
            wire: WireField = one.metadata["wire"]
            if not wire.since <= version <= wire.until:
                continue
            if wire.kind in FIXED:
                run.append((one.name, FIXED[wire.kind]))
            else:
                self._add_numbers(run)
                self._steps.append(self._value(one.name, wire, version))
                self.smallest += UUID_BYTES if wire.kind == "uuid" else _length_size(wire.kind, flexible)
        self._add_numbers(run)

    def _add_numbers(self, run: list[tuple[str, str]]) -> None:
        if run:
            names, codes = zip(*run, strict=True)
            form = struct.Struct(">" + "".join(codes))
            self._steps.append(_Numbers(names, form))
            self.smallest += form.size
            run.clear()

    def _value(self, name: str, wire: WireField, version: int) -> _Value:
        read_length = partial(_read_length, wire.kind, self._flexible)
        write_length = partial(_write_length, wire.kind, self._flexible)
        if wire.kind == "uuid":
            return _Value(name, _read_uuid, _write_uuid, nullable=False)
        if wire.kind == "array":
            assert wire.item is not None, "an array has items"
            read, write, smallest = _item(wire.item, version, self._flexible)
            return _Value(
                name,
                partial(_read_array, read_length, read, smallest),
                partial(_write_array, write_length, write),
                wire.nullable,
            )
        is_text = wire.kind == "text"
        return _Value(
            name, partial(_read_data, read_length, is_text), partial(_write_data, write_length), wire.nullable
        )

    def read(self, source: FrameBytes) -> Any:
        """Raises MalformedFrame."""
        found: dict[str, Any] = {}
        for step in self._steps:
            step.read(source, found)
        if self._flexible:
            source.skip_tags()
        return self._message(**found)

    def write(self, message: object, out: Out) -> None:
        for step in self._steps:
            step.write(message, out)
        if self._flexible:
            out(b"\0")


@lru_cache(maxsize=512)
def layout(message: type, version: int, flexible: bool) -> MessageLayout:
    return MessageLayout(message, version, flexible=flexible)


def _length_size(kind: str, flexible: bool) -> int:
    return 1 if flexible else 2 if kind == "text" else 4


_SHORT, _INT = struct.Struct(">h"), struct.Struct(">i")


def _read_length(kind: str, flexible: bool, source: FrameBytes) -> int:
    """-1: no value."""
    if flexible:
        return source.varint() - 1
    length: int = source.unpack(_SHORT if kind == "text" else _INT)[0]
    if length < -1:
        raise MalformedFrame(f"a length of {length}")
    return length


def _write_length(kind: str, flexible: bool, length: int, out: Out) -> None:
    out(varint(length + 1) if flexible else (_SHORT if kind == "text" else _INT).pack(length))


def _read_uuid(source: FrameBytes) -> str:
    return source.take(UUID_BYTES).hex()


def _write_uuid(value: str, out: Out) -> None:
    out(bytes.fromhex(value))


def _read_data(read_length: Callable[[FrameBytes], int], is_text: bool, source: FrameBytes) -> str | bytes | None:
    length = read_length(source)
    if length < 0:
        return None
    if is_text and length > INT16_MAX:
        raise MalformedFrame(f"text of {length} bytes, and at most {INT16_MAX} are allowed")
    found = source.take(length)
    if not is_text:
        return found
    try:
        return found.decode()
    except UnicodeDecodeError as error:
        raise MalformedFrame("text that is not UTF-8") from error


def _write_data(write_length: Callable[[int, Out], None], value: str | bytes | None, out: Out) -> None:
    if value is None:
        write_length(-1, out)
        return
    raw = value.encode() if isinstance(value, str) else value
    write_length(len(raw), out)
    out(raw)


def _item(
    item: str | type, version: int, flexible: bool
) -> tuple[Callable[[FrameBytes], Any], Callable[[Any, Out], object], int]:
    """How one item of an array is read and written, and its least size."""
    if item == "text":
        read_item = partial(_read_item, partial(_read_length, "text", flexible))
        return read_item, partial(_write_data, partial(_write_length, "text", flexible)), _length_size("text", flexible)
    if isinstance(item, str):
        form = struct.Struct(">" + FIXED[item])
        return lambda source: source.unpack(form)[0], lambda value, out: out(form.pack(value)), form.size
    inner = layout(item, version, flexible)
    return inner.read, inner.write, inner.smallest


def _read_item(read_length: Callable[[FrameBytes], int], source: FrameBytes) -> str | bytes:
    value = _read_data(read_length, True, source)
    if value is None:
        raise MalformedFrame("an item without a value")
    return value


def _read_array(
    read_length: Callable[[FrameBytes], int], read: Callable[[FrameBytes], Any], smallest: int, source: FrameBytes
) -> list[Any] | None:
    count = read_length(source)
    return None if count < 0 else [read(source) for _ in range(source.counted(count, smallest))]


def _write_array(
    write_length: Callable[[int, Out], None],
    write: Callable[[Any, Out], object],
    values: Sequence[Any] | None,
    out: Out,
) -> None:
    write_length(-1 if values is None else len(values), out)
    for value in values or ():
        write(value, out)
