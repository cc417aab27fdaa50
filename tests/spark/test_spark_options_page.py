"""The table of options, and the page that is made of it."""

from __future__ import annotations

import re
from pathlib import Path

from pyspark_pylog.options.kafka_client_settings import REFUSED, TUNING
from pyspark_pylog.options.option_table import ALL

from docs.option_reference import reference_markdown

PAGE = Path(__file__).parents[2] / "docs" / "options.md"


# Promise: options.md#options-of-formatpylog
def test_the_page_is_the_table() -> None:
    """`make docs` writes it again."""
    assert PAGE.read_text() == reference_markdown()


# Promise: options.md#options-of-formatpylog
def test_every_option_is_there_once() -> None:
    """In any case of letters."""
    names = [option.name.lower() for option in ALL]
    assert sorted(names) == sorted(set(names))


# Promise: from-kafka.md#option-by-option
def test_the_page_for_people_from_kafka_says_of_each_setting_what_the_table_says() -> None:
    """A `kafka.…` that it names as honoured, refused or without effect is that."""
    page = (PAGE.parent / "from-kafka.md").read_text()
    honoured = {option.name for option in ALL if option.name.startswith("kafka.")}
    for kind, known in (
        ("honoured", honoured),
        ("refused, with", {setting.name for setting in REFUSED}),
        ("no effect, named", {*TUNING, "kafka.fetch.*"}),
    ):
        (row,) = (line for line in page.splitlines() if line.startswith(f"| {kind}"))
        named = set(re.findall(r"`(kafka\.[\w.*]+)`", row))
        assert named and named <= known, kind
    (row,) = (line for line in page.splitlines() if line.startswith("| honoured"))
    assert honoured == set(re.findall(r"`(kafka\.[\w.*]+)`", row))
