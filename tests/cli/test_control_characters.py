"""Names may have control characters, which must not reach an administrator's terminal."""

from __future__ import annotations

import pytest

from spark_log.cli.base import Failed
from spark_log.cli.output import _text
from spark_log.text import printable, printable_lines


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a\x1b[2Jb", "a\\x1b[2Jb"),
        ("a\nb", "a\\nb"),
        ("a\x9b31mb", "a\\x9b31mb"),
        ("a\u202eb", "a\\u202eb"),
        ("Größe 数 é", "Größe 数 é"),
    ],
)
def test_a_table_escapes_control_characters(name: str, shown: str) -> None:
    """Letters of all scripts stay."""
    assert printable(name) == _text(name) == shown
    assert _text({"x": name}) == f"x={shown}"


def test_an_error_escapes_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    """The name in it may be another tenant's; a message of several lines keeps them."""
    Failed("group 'a\x1b[2Jb' is in use:\n  wait").show()
    assert capsys.readouterr().err == "pylog: group 'a\\x1b[2Jb' is in use:\n  wait\n"
    assert printable_lines("a\r\nb") == "a\\r\nb"
