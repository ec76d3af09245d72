"""`numerics list`: everything that has a name, with a line about it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from numerics.cli.listing import KINDS
from numerics.presets.file import load
from numerics.presets.vocabulary import OP_SUMMARIES, OPEN_REDUCTION, OPS, ROUNDING_POINTS
from tests.cli.conftest import Command

Write = Callable[..., Path]
CATALOG = load()
NAMES: dict[str, set[str]] = {
    "presets": set(CATALOG.presets),
    "reductions": {*CATALOG.reductions, OPEN_REDUCTION},
    "rounding_points": set(ROUNDING_POINTS),
    "ops": set(OPS),
    "models": set(CATALOG.model_names()),
}


def test_every_op_has_a_summary() -> None:
    assert list(OP_SUMMARIES) == list(OPS)


def test_every_kind_is_listed_by_default(numerics: Command) -> None:
    found = numerics("list", "--json").json
    assert {kind: {each["name"] for each in entries} for kind, entries in found.items()} == NAMES
    assert all(each["summary"] for entries in found.values() for each in entries)


@pytest.mark.parametrize("kind", KINDS)
def test_one_kind_is_listed_alone(numerics: Command, kind: str) -> None:
    assert list(numerics("list", kind, "--json").json) == [kind]
    shown = numerics("list", kind, COLUMNS="200").out
    assert shown.splitlines()[0] == kind.replace("_", " ").capitalize()
    assert NAMES[kind] <= {line.split()[0] for line in shown.splitlines()}


def test_an_unknown_kind_exits_2_and_names_the_nearest(numerics: Command) -> None:
    found = numerics("list", "preset")
    assert (found.code, "'preset': no such kind; nearest: presets" in found.err) == (2, True)


def test_presets_say_what_is_known_of_their_bytes(numerics: Command) -> None:
    shown = {
        line.split()[0]: line.split()[1:3]
        for line in numerics("list", "presets").out.splitlines()[2:]
        if line[0] != " "
    }
    assert shown["vllm_cuda_128"][0] == "verified"
    assert shown["apex"][0] == "declared"
    assert shown["fast"] == ["left", "open"]


def test_declarations_of_ones_own_are_listed_with_their_origin(numerics: Command, write: Write) -> None:
    path = write(
        '[presets.mine]\nsummary = "mine"\nextends = "vllm_cuda"\nrounding_points = []\n'
        '[models.flux2]\nfused_rms_norm = { preset = "mine", min_tokens = 8, '
        'when = [{ capability = "hip", preset = "fast" }] }\n'
    )
    found = numerics("list", "--config", path, "--json").json
    (preset,) = [each for each in found["presets"] if each["name"] == "mine"]
    assert (preset["origin"], preset["reference"], preset["exact"]) == ("user", None, True)
    (model,) = [each for each in found["models"] if each["name"] == "flux2"]
    assert model["settings"][-1] == {
        "family": "fused_rms_norm",
        "origin": "user",
        "setting": "mine, min_tokens = 8; on hip fast",
    }
    assert "no claim" in numerics("list", "presets", "--config", path).out
    assert "user" in numerics("list", "models", "--config", path).out
