"""A models entry of the user's file, from the file to the processors that a model runs with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import numerics
from numerics.integrations.diffusers import apply
from numerics.measure.model_cases import ModelCase
from numerics.presets.file import load
from numerics.resolution import Resolution
from tests.cli.conftest import spawn

PRESET = "flashinfer"  # the default of no model
PACKAGED = load()
OVERRIDES = {model: list(PACKAGED.packaged.settings_of(model)) for model in PACKAGED.packaged.models}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A presets file that overrides every setting of every model."""
    tables = [
        "\n".join([f'[models."{model}"]', *(f'{family} = "{PRESET}"' for family in families)])
        for model, families in OVERRIDES.items()
    ]
    path = tmp_path_factory.mktemp("override") / "mine.toml"
    path.write_text("\n".join(tables) + "\n")
    return path


@pytest.fixture(scope="module")
def shown(file: Path) -> dict[str, list[Any]]:
    """What `show` and `models` say of each model, in a process of their own."""
    settings = json.loads(spawn("show", "--config", file, "--json").out)
    models = json.loads(spawn("models", "--config", file, "--json").out)
    found: dict[str, list[Any]] = {each["name"]: list(each["settings"]) for each in models}
    for each in settings:
        if each["model"] is not None:
            found[each["model"]].append(each)
    return found


@pytest.mark.parametrize("model", OVERRIDES)
def test_show_models_and_resolve_say_what_the_users_file_says(
    model: str, file: Path, shown: dict[str, list[Any]]
) -> None:
    numerics.configure(file)
    for family in OVERRIDES[model]:
        found = numerics.resolve(family, model)
        said = [each for each in shown[model] if each["op"] == family]
        assert said == [found.to_dict()] * 2  # of show and of models
        assert (found.preset, found.sources["preset"].source) == (PRESET, "user model")
        packaged = PACKAGED.packaged.settings_of(model)[family].preset
        shadowed = [each.value for each in found.sources["preset"].shadows if each.source == "package model"]
        assert shadowed[0] == packaged


def test_apply_installs_what_the_users_file_says(tiny: ModelCase, model: Any, file: Path) -> None:
    numerics.configure(file)
    with apply(model) as applied:
        assert applied.replaced
        for path in applied.replaced:
            found = _resolution_of(model.get_submodule(path))
            assert (found.model, found.preset) == (tiny.model, PRESET)
            assert found.sources["preset"].location == f'mine.toml: models."{tiny.model}"'


def test_one_models_entry_leaves_the_others_alone(tiny: ModelCase, model: Any, tmp_path: Path) -> None:
    other = "diffusers:flux" if tiny.model != "diffusers:flux" else "diffusers:flux2"
    path = tmp_path / "other.toml"
    path.write_text(f'[models."{other}"]\nfused_qk_norm_rope = "{PRESET}"\n')
    numerics.configure(path)
    with apply(model) as applied:
        presets = {_resolution_of(model.get_submodule(path)).preset for path in applied.replaced}
    assert presets == {PACKAGED.packaged.settings_of(tiny.model)["fused_qk_norm_rope"].preset}


def _resolution_of(module: Any) -> Resolution:
    """The settings that a replaced part of a model computes with: of a processor, or of a block's forward."""
    found = module.processor.resolution if hasattr(module, "processor") else module.forward.args[1]
    assert isinstance(found, Resolution)
    return found
