"""Requests of the tests to a console."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any


class Asking:
    """Requests to a console."""

    def __init__(self, address: str, token: str | None = None) -> None:
        self.address, self._token = address, token

    def raw(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
        asked = urllib.request.Request(f"http://{self.address}{path}", method=method, headers=headers)
        if self._token is not None:
            asked.add_header("Authorization", f"Bearer {self._token}")
        try:
            with urllib.request.urlopen(asked, timeout=60) as found:
                return found.status, dict(found.headers), found.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, dict(error.headers), error.read()

    def __call__(self, name: str, **query: object) -> Any:
        status, _, body = self.raw(f"/console/api/{name}?{urllib.parse.urlencode(query)}")
        assert status == 200, body
        return json.loads(body)

    def refused(self, name: str, **query: object) -> int:
        return self.raw(f"/console/api/{name}?{urllib.parse.urlencode(query)}")[0]
