"""NUMERICS_RECORD: what a program resolved, line by line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from numerics.errors import ConfigurationError, RequirementError
from numerics.resolve import declared, resolve


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "record.jsonl"
    monkeypatch.setenv("NUMERICS_RECORD", str(path))
    return path


def test_each_resolution_is_one_line_however_often_it_is_looked_up(record: Path) -> None:
    found = [resolve("fused_rms_norm", "flux2"), resolve("fused_rms_norm", "flux2"), resolve("rms_norm", min_tokens=3)]
    lines = record.read_text().splitlines()
    assert [json.loads(line) for line in lines] == [json.loads(json.dumps(each.to_dict())) for each in found[1:]]


def test_without_the_variable_nothing_is_written(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMERICS_RECORD")
    resolve("fused_rms_norm", "flux2")
    assert not record.exists()


def test_a_record_that_cannot_be_written_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NUMERICS_RECORD", os.fspath(tmp_path / "no" / "such"))
    with pytest.raises(ConfigurationError, match=r"NUMERICS_RECORD='.*such': cannot be written"):
        resolve("fused_rms_norm")


def test_what_is_declared_is_told_where_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    with pytest.raises(RequirementError):
        resolve("fused_rms_norm", "flux2")
    monkeypatch.delenv("VLLM_BATCH_INVARIANT")
    wanted = resolve("fused_rms_norm", "flux2")
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    assert declared("rms_norm", "flux2") == wanted
