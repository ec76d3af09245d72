"""Dots of a result: which there are, and files with them where matplotlib is installed."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from numerics.errors import ConfigurationError, MissingExtraError
from numerics.measure.plot import Panel, Row, check, draw, panels
from numerics.measure.result import record

RECORDS = [
    record(op="rms_norm", case="a", preset="fast", time_us=2.0, copy_us=1.0, peer_us={"vllm": 3.0}, moved_bytes=10),
    record(
        op="rms_norm", case="a", preset="vllm_cuda", time_us=2.1, copy_us=1.0, peer_us={"vllm": 3.0}, moved_bytes=10
    ),
    record(op="rms_norm", case="refused", preset="fast"),
    record(op="rms_norm", case="larger", preset="fast", time_us=6.0, copy_us=4.0, moved_bytes=20),
    record(op="indexed_gate", case="a", preset="fast", time_us=4.0, empty_us=1.0, peer_us={}, moved_bytes=1),
    record(op="indexed_gate", case="a-host", preset="fast", time_us=5.0, peer_us={"torch": 20.0}, moved_bytes=1),
    record(op="indexed_gate", case="a-host", preset="vllm_cuda", time_us=7.5, peer_us={"torch": 20.0}, moved_bytes=1),
]


def test_each_case_is_a_row_beside_its_floor_the_largest_first() -> None:
    assert panels(RECORDS) == [
        Panel(
            "rms_norm",
            "a copy of the same bytes",
            [
                Row("larger", 20, 4.0, {"fast": 1.5}, {}),
                Row("a", 10, 1.0, {"fast": 2.0, "vllm_cuda": 2.1}, {"vllm": 3.0}),
            ],
        ),
        Panel("indexed_gate", "an empty kernel", [Row("a", 1, 1.0, {"fast": 4.0}, {})]),
        Panel(
            "indexed_gate",
            "its first preset: host time of a call",
            [Row("a-host", 1, 5.0, {"fast": 1.0, "vllm_cuda": 1.5}, {"torch": 4.0})],
        ),
    ]


@pytest.fixture
def no_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.usefixtures("no_matplotlib")
def test_without_matplotlib_the_message_names_the_extra(tmp_path: Path) -> None:
    message = r"pip install 'omni-numerics\[plot\]'"
    with pytest.raises(MissingExtraError, match=message):
        check(tmp_path / "a.svg")
    with pytest.raises(MissingExtraError, match=message):
        draw(RECORDS, tmp_path / "a.svg")


def test_an_unknown_format_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"legal endings: \.pdf, \.png, \.svg"):
        check(tmp_path / "a.gif")


def test_a_result_without_times_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no time to draw"):
        draw(RECORDS[2:3], tmp_path / "a.svg")


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="needs the extra plot")
@pytest.mark.parametrize(("name", "begins"), [("a.svg", b"<?xml"), ("a.png", b"\x89PNG"), ("a.pdf", b"%PDF")])
def test_dots_are_drawn(tmp_path: Path, name: str, begins: bytes) -> None:
    draw(RECORDS, tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(begins)
    draw(RECORDS[3:4], tmp_path / name)  # without peers


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="needs the extra plot")
def test_the_text_of_a_drawing_is_text(tmp_path: Path) -> None:
    draw(RECORDS, tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    for said in ("rms_norm, beside a copy of the same bytes", "larger", "vllm_cuda", "torch", "1 = 4.0 µs"):
        assert f">{said}</text>" in text


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="needs the extra plot")
def test_a_plot_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be written: no such file or directory"):
        draw(RECORDS, tmp_path / "none" / "a.svg")
