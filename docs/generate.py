"""Writes the generated references: `make docs`.  Tests keep them equal to the code."""

from __future__ import annotations

from pathlib import Path

from api_reference import reference_markdown as api_markdown
from cli_reference import reference_markdown as cli_markdown
from option_reference import reference_markdown as options_markdown
from topic_configs import reference_markdown as configs_markdown

DOCS = Path(__file__).parent
PAGES = {
    "topic-configs.md": configs_markdown,
    "cli.md": cli_markdown,
    "api.md": api_markdown,
    "options.md": options_markdown,
}


def main() -> None:
    for name, text in PAGES.items():
        (DOCS / name).write_text(text())
        print(f"docs/{name}: {len(text().splitlines())} lines")


if __name__ == "__main__":
    main()
