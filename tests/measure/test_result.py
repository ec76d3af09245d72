"""Results: every field, and files that are none."""

import json
from pathlib import Path

import pytest

from numerics.errors import ConfigurationError
from numerics.measure.result import FIELDS, check_writable, is_wrong, ratio, read, record, write

# What other programs read.
PROMISED = [
    "op",
    "case",
    "preset",
    "time_us",
    "copy_us",
    "ratio_to_copy",
    "peer_us",
    "elements_differing",
    "elements",
    "reference",
    "gpu",
    "torch",
    "triton",
]


def test_a_record_has_the_fields_that_are_promised() -> None:
    assert set(PROMISED) <= set(FIELDS)
    assert tuple(record(op="rms_norm")) == FIELDS
    with pytest.raises(TypeError, match="no such field: tiem_us"):
        record(tiem_us=1.0)


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    records = [record(op="rms_norm", case="1x5376", preset="fast", time_us=1.25, peer_us={"vllm": 2.5})]
    write(path, records)
    write(path, records)  # over the one before
    assert read(path) == records
    assert [each.name for each in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read: no such file or directory"),
        ("no json", "not JSON"),
        ("[" * 100_000, "not JSON: maximum recursion depth exceeded"),
        ("{}", "got dict, not the list that numerics bench writes"),
        ('[{"op": "rms_norm"}]', "record 0: not from numerics bench: no 'case'"),
        ("[1]", "record 0: not from numerics bench: got 1, not a table"),
    ],
)
def test_a_file_that_is_no_result_is_named(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "result.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigurationError, match=f"{path}: .*{message}"):
        read(path)


def test_a_result_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "none" / "result.json"
    with pytest.raises(ConfigurationError, match="cannot be written: no such file or directory"):
        write(path, [])
    with pytest.raises(ConfigurationError, match="cannot be written: no such file or directory"):
        check_writable(path)


def test_a_result_is_left_alone_until_there_is_another(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write(path, [record(op="rms_norm")])
    check_writable(path)
    assert json.loads(path.read_text())[0]["op"] == "rms_norm"
    assert [each.name for each in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.parametrize(
    ("values", "wrong"),
    [
        ({"exact": True, "elements_differing": 0, "differing": {"repeated": 0}}, False),
        ({"exact": True, "elements_differing": 1}, True),
        ({"exact": False, "elements_differing": 1}, False),
        ({"exact": False, "differing": {"repeated": 1}}, True),
        ({"error": "MemoryError"}, True),
        ({"refused": "requires width 128"}, False),
        ({"inputs_changed": True}, True),
    ],
)
def test_a_record_is_wrong_where_bytes_or_arms_are(values: dict[str, object], wrong: bool) -> None:
    assert is_wrong(record(**values)) == wrong


def test_a_ratio_needs_both_times() -> None:
    assert (ratio(3.0, 2.0), ratio(None, 2.0), ratio(3.0, None), ratio(1.0, 3.0)) == (1.5, None, None, 0.3333)


def test_numbers_are_json(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write(path, [record(time_us=None, exact=True)])
    assert json.loads(path.read_text())[0]["exact"] is True
