"""Files of the report: recognised by their content, refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from numerics.cli.report_files import KINDS, read
from numerics.errors import ConfigurationError
from tests.cli.conftest import Command
from tests.cli.report_samples import SAMPLES, saved


@pytest.mark.parametrize("name", SAMPLES)
def test_content_and_not_the_name_says_what_a_file_is(name: str, tmp_path: Path) -> None:
    path = saved(tmp_path, name)[0].rename(tmp_path / "something.txt")
    (found,) = read([path])
    assert (found.kind.name, found.name) == (name, "something.txt")


@pytest.mark.parametrize("name", SAMPLES)
def test_no_file_is_of_two_kinds(name: str) -> None:
    assert [kind.name for kind in KINDS if kind.fits(SAMPLES[name]())] == [name]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "not JSON: Expecting property name"),
        ("[" * 100_000, "not JSON: maximum recursion depth"),
        ("[]", "an empty list, which says neither what it is"),
        ("7", "not a file that the report knows: 7."),
        ('"text"', "not a file that the report knows: 'text'."),
        ("[[1]]", "not a file that the report knows: [[1]]."),
        ("{}", "a table with nothing"),
        ('[{"colour": "red"}]', "a list of 1, the first with colour."),
        ('[{"op": "rms_norm", "case": "1", "preset": "fast", "time_us": 1}]', "no ratio_to_copy"),
    ],
)
def test_what_is_unknown_is_refused_by_name_with_what_is_legal(content: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    path.write_text(content)
    with pytest.raises(ConfigurationError) as caught:
        read([path])
    assert str(caught.value).startswith(f"{path}: ")
    assert said in str(caught.value)
    assert "Legal is what these write: numerics show --json; " in str(caught.value)


@pytest.mark.parametrize("command", ["list", "models", "schema"])
def test_the_output_of_another_command_is_refused(numerics: Command, tmp_path: Path, command: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(json.dumps(numerics(command, "--json").json))
    with pytest.raises(ConfigurationError, match="not a file that the report knows"):
        read([path])


@pytest.mark.parametrize(
    ("name", "index", "field", "value"),
    [
        ("bench", 1, "time_us", "fast"),
        ("bench", 1, "time_us", True),
        ("bench", 0, "peer_us", {"vllm": "slow"}),
        ("parity", 0, "elements_differing", -1),
        ("parity", 0, "elements", None),
        ("trajectory", 3, "psnr_db", "high"),
        ("trajectory", 3, "step", 1.5),
        ("settings", 0, "sources", {"preset": "fast"}),
        ("precision", 0, "against", {"fast": 1}),
        ("models", 0, "ours_ms", []),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_its_place(
    name: str, index: int, field: str, value: Any, tmp_path: Path
) -> None:
    content = SAMPLES[name]()
    content[index][field] = value
    with pytest.raises(ConfigurationError, match=rf"looks like the output of .*, but record {index}: {field}.*, got "):
        read(saved(tmp_path, **{name: content}))


def test_a_record_of_another_kind_among_others_is_refused(tmp_path: Path) -> None:
    mixed = SAMPLES["bench"]() + SAMPLES["parity"]()
    with pytest.raises(ConfigurationError, match="record 2: case: field required"):
        read(saved(tmp_path, mixed=mixed))


def test_one_result_given_twice_is_refused(tmp_path: Path) -> None:
    content = SAMPLES["bench"]()
    with pytest.raises(ConfigurationError, match=r"copy\.json: the same content as .*bench\.json"):
        read(saved(tmp_path, bench=content, copy=content))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"absent\.json: cannot be read: no such file"):
        read([tmp_path / "absent.json"])


def test_a_record_that_says_less_of_the_machine_is_not_of_another(tmp_path: Path) -> None:
    fast, exact = SAMPLES["bench"]()
    (found,) = read(saved(tmp_path, bench=[fast, exact | {"driver": "580.1"}]))
    assert [dict(machine).get("driver") for machine in found.machines] == ["580.1"]


def test_the_docs_say_by_what_each_kind_is_recognised(root: Path) -> None:
    rows = [line.split(" | ") for line in (root / "docs" / "report.md").read_text().splitlines() if " | `" in line]
    listed = {frozenset(cells[-1].removesuffix(" |").replace("`", "").split(", ")) for cells in rows}
    assert listed == {kind.marks for kind in KINDS}
