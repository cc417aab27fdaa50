"""Makes the links of README.md absolute: an index shows the README alone, without the files beside it.

    python deploy/absolute_links.py README.md https://host/pylog v0.1.0

rewrites the file for a repository at that URL and a tag in it.  `deploy/release_check.sh` runs it on a copy.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

LINK = re.compile(r"(!?)\[((?:[^\[\]]|!\[[^\]]*\]\([^)]*\))*)\]\(([^)\s]+)\)")
"""An image or a link, with its text and its target."""


def absolute_links(text: str, repository: str, tag: str) -> str:
    """The text with links to pages and pictures of a repository, at a tag."""

    def absolute(link: re.Match[str]) -> str:
        image, shown, target = link.groups()
        if re.match(r"[a-z]+:|#", target):
            return link[0]
        return f"{image}[{shown}]({repository}/{'raw' if image else 'blob'}/{tag}/{target})"

    return LINK.sub(absolute, text)


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(absolute_links(page.read_text(encoding="utf-8"), *sys.argv[2:4]), encoding="utf-8")
