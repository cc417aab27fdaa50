"""The command that checks the product against a file of vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simulation.vectors.__main__ import main

FILE = Path(__file__).parents[2] / "vectors" / "murmur2.json"


def written(folder: Path, vectors: dict[str, Any]) -> str:
    path = folder / "vectors.json"
    path.write_text(json.dumps(vectors))
    return str(path)


def test_kafkas_vectors_hold(capsys: pytest.CaptureFixture[str]) -> None:
    """Every hash and partition of the file, and the sticky cases that pylog can run."""
    assert main(["murmur2", str(FILE)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "29 passed, 0 failed"


def test_a_wrong_vector_is_reported_with_expected_and_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One partition changed in one of four cases."""
    vectors = json.loads(FILE.read_text())
    vectors["vectors"][0]["partition"]["7"] += 1
    vectors["builtin_partitioner_for_null_keys"] = [{"source": "mine", "sticky_batch_size": -5}]
    vectors["vectors"] = vectors["vectors"][:3]

    assert main(["murmur2", written(tmp_path, vectors)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "3 passed, 1 failed"
    assert "expected" in lines[0] and "found" in lines[0]


def test_a_file_without_cases_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing checked is not success."""
    assert main(["murmur2", written(tmp_path, {"vectors": []})]) == 1
    assert capsys.readouterr().out == "0 passed, 0 failed\n"


def test_an_unknown_kind_names_the_ones_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong usage is exit status 2."""
    assert main(["crc", str(FILE)]) == 2
    assert "one of: murmur2" in capsys.readouterr().err
