"""Writes the generated references: `make docs`.  Tests keep them equal to the code."""

from __future__ import annotations

from pathlib import Path

from spark_log import settings
from spark_log.cli import reference

DOCS = Path(__file__).parent


def main() -> None:
    for name, text in (("topic-configs.md", settings.reference_markdown()), ("cli.md", reference.reference_markdown())):
        (DOCS / name).write_text(text)
        print(f"docs/{name}: {len(text.splitlines())} lines")


if __name__ == "__main__":
    main()
