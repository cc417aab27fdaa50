"""Schemas in Spark's DDL: `id BIGINT NOT NULL, tags ARRAY<STRING>, place STRUCT<lat: DOUBLE, lon: DOUBLE>`.

    schema  := column ("," column)*                or the same inside of STRUCT<…>
    column  := name [":"] type ["NOT" "NULL"] ["COMMENT" 'text']
    name    := a word, or any text in `backticks` (a backtick is doubled)
    type    := BOOLEAN | TINYINT | BYTE | SMALLINT | SHORT | INT | INTEGER | BIGINT | LONG | FLOAT | REAL | DOUBLE
             | (DECIMAL | DEC | NUMERIC) ["(" digits ["," digits] ")"] | STRING | (CHAR | VARCHAR) "(" digits ")"
             | BINARY | DATE | TIMESTAMP | TIMESTAMP_LTZ | TIMESTAMP_NTZ
             | ARRAY "<" type ">" | MAP "<" type "," type ">" | STRUCT "<" [column ("," column)*] ">"

Words are case-insensitive.  Comments are dropped.  The elements of arrays and the values of maps may be null; only the
JSON form can exclude that.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import pyarrow as pa

from spark_log.errors import InvalidSchema
from spark_log.schema.arrow_types import ELEMENT, TIMESTAMP, TIMESTAMP_NTZ, map_of, storable, unsupported
from spark_log.schema.struct_json import decimal

_WORDS = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
    "timestamp_ltz": TIMESTAMP,
    "timestamp_ntz": TIMESTAMP_NTZ,
}
_SQL = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
    pa.binary(): "BINARY",
    pa.date32(): "DATE",
    TIMESTAMP: "TIMESTAMP",
    TIMESTAMP_NTZ: "TIMESTAMP_NTZ",
}
_TOKEN = re.compile(r"\s*(?:`((?:[^`]|``)*)`|('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|([A-Za-z0-9_$]+)|(\S))")
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class _Token(NamedTuple):
    kind: str
    """quoted, text, word, mark or end."""
    text: str
    at: int
    """Position of its first character in the DDL, from 1."""


def from_ddl(text: str) -> pa.Schema:
    """The canonical schema.  Raises InvalidSchema with the position of what does not parse."""
    return storable(pa.schema(_Parser(text).schema()))


def to_ddl(schema: pa.Schema) -> str:
    """The DDL of a canonical schema.  That elements of arrays and values of maps are required is lost in it."""
    return ", ".join(_column(field, " ") for field in schema)


def sql_type(given: pa.DataType) -> str:
    """The name of a canonical type in SQL."""
    if (name := _SQL.get(given)) is not None:
        return name
    if pa.types.is_decimal(given):
        return f"DECIMAL({given.precision},{given.scale})"
    if pa.types.is_list(given):
        return f"ARRAY<{sql_type(given.value_type)}>"
    if pa.types.is_map(given):
        return f"MAP<{sql_type(given.key_type)}, {sql_type(given.item_type)}>"
    if pa.types.is_struct(given):
        return f"STRUCT<{', '.join(_column(field, ': ') for field in given)}>"
    return str(given)


def _column(field: pa.Field, between: str) -> str:
    name = field.name if _PLAIN.fullmatch(field.name) else f"`{field.name.replace('`', '``')}`"
    return f"{name}{between}{sql_type(field.type)}{'' if field.nullable else ' NOT NULL'}"


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = [*_tokens(text), _Token("end", "the end", len(text) + 1)]
        self._next = 0

    def schema(self) -> list[pa.Field]:
        if self._is_word("struct") and self._tokens[1].kind == "mark":
            fields = list(self._type("the schema"))
        else:
            fields = self._columns()
        if self._peek.kind != "end":
            raise self._error("a comma or the end")
        return fields

    @property
    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._tokens[self._next]
        self._next += token.kind != "end"
        return token

    def _error(self, expected: str) -> InvalidSchema:
        found = self._peek
        what = found.text if found.kind == "end" else repr(found.text)
        return InvalidSchema(f"the DDL does not parse at character {found.at}: found {what}, expected {expected}")

    def _is_word(self, *words: str) -> bool:
        return self._peek.kind == "word" and self._peek.text.lower() in words

    def _is_mark(self, mark: str) -> bool:
        return self._peek.kind == "mark" and self._peek.text == mark

    def _skip(self, mark: str) -> bool:
        if not self._is_mark(mark):
            return False
        self._next += 1
        return True

    def _expect(self, mark: str) -> None:
        if not self._skip(mark):
            raise self._error(repr(mark))

    def _columns(self) -> list[pa.Field]:
        columns = [self._one_column()]
        while self._skip(","):
            columns.append(self._one_column())
        return columns

    def _one_column(self) -> pa.Field:
        if self._peek.kind not in ("word", "quoted"):
            raise self._error("the name of a column")
        name = self._take().text
        self._skip(":")
        type_ = self._type(repr(name))
        nullable = not self._is_word("not")
        if not nullable:
            self._take()
            if not self._is_word("null"):
                raise self._error("NULL after NOT")
            self._take()
        if self._is_word("comment"):
            self._take()
            if self._take().kind != "text":
                self._next -= 1
                raise self._error("a text in quotes after COMMENT")
        return pa.field(name, type_, nullable)

    def _type(self, column: str) -> pa.DataType:
        if self._peek.kind != "word":
            raise self._error("a type")
        start = self._next
        word = self._take().text.lower()
        if (found := _WORDS.get(word)) is not None:
            return found
        match word:
            case "decimal" | "dec" | "numeric":
                return self._decimal(column)
            case "char" | "varchar" | "character":
                self._digits()
                return pa.string()
            case "array" | "map" | "struct":
                return self._nested(word, column)
        if self._peek.kind == "word" and word == "interval":
            word = f"{word} {' '.join(token.text for token in self._tokens[start + 1 : start + 4] if token.kind == 'word')}"
        if re.match("interval|variant|void|null|time|geo", word):
            raise unsupported(word, column)
        self._next = start
        raise self._error("a type, such as BIGINT or STRING")

    def _decimal(self, column: str) -> pa.DataType:
        digits = self._digits() if self._is_mark("(") else [10]
        return decimal(digits[0], digits[1] if len(digits) > 1 else 0, column)

    def _digits(self) -> list[int]:
        self._expect("(")
        found = [self._number()]
        if self._skip(","):
            found.append(self._number())
        self._expect(")")
        return found

    def _number(self) -> int:
        if not self._peek.text.isdigit():
            raise self._error("a number")
        return int(self._take().text)

    def _nested(self, word: str, column: str) -> pa.DataType:
        self._expect("<")
        if word == "struct":
            found = pa.struct([] if self._is_mark(">") else self._columns())
        else:
            found = self._type(column)
            if word == "map":
                self._expect(",")
                found = map_of(found, self._type(column), True)
            else:
                found = pa.list_(pa.field(ELEMENT, found))
        self._expect(">")
        return found


def _tokens(text: str) -> list[_Token]:
    found = []
    for match in _TOKEN.finditer(text):
        quoted, literal, word, mark = match.groups()
        if quoted is not None:
            found.append(_Token("quoted", quoted.replace("``", "`"), match.start(1)))
        elif literal is not None:
            found.append(_Token("text", literal, match.start(2) + 1))
        elif word is not None:
            found.append(_Token("word", word, match.start(3) + 1))
        else:
            found.append(_Token("mark", mark, match.start(4) + 1))
    return found
