"""Bars of a result: which there are, and files with them where matplotlib is installed."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from numerics.errors import ConfigurationError, MissingExtraError
from numerics.measure.plot import Bar, Group, check, draw, groups
from numerics.measure.result import record

RECORDS = [
    record(op="rms_norm", case="a", preset="fast", time_us=2.0, copy_us=1.5, peer_us={"vllm": 3.0}),
    record(op="rms_norm", case="a", preset="vllm_cuda", time_us=2.1, copy_us=1.5, peer_us={"vllm": 3.0}),
    record(op="rms_norm", case="refused", preset="fast"),
    record(op="indexed_gate", case="a", preset="fast", time_us=4.0, empty_us=1.0, peer_us={}),
]


def test_each_case_has_its_presets_and_each_peer_once() -> None:
    assert groups(RECORDS) == [
        Group("rms_norm: a", (Bar("fast", 2.0, "ours"), Bar("vllm_cuda", 2.1, "ours"), Bar("vllm", 3.0, "peer")), 1.5),
        Group("indexed_gate: a", (Bar("fast", 4.0, "ours"),), 1.0),
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
def test_bars_are_drawn(tmp_path: Path, name: str, begins: bytes) -> None:
    draw(RECORDS, tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(begins)


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="needs the extra plot")
def test_a_plot_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be written: no such file or directory"):
        draw(RECORDS, tmp_path / "none" / "a.svg")
