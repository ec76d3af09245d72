"""A model is known by the names of its classes, and no name means two things."""

from collections.abc import Callable
from pathlib import Path

import pytest

from numerics.errors import ConfigurationError
from numerics.presets.file import Catalog, load
from numerics.presets.schema import Model
from numerics.presets.vocabulary import FAMILIES

Problems = Callable[[str], list[str]]


def catalog(tmp_path: Path, text: str) -> Catalog:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    return load(file)


def test_a_table_of_a_model_has_a_key_for_each_family() -> None:
    assert set(Model.model_fields) == {*FAMILIES, "classes"}


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("Flux2Transformer2DModel", "diffusers:flux2"),
        ("MiniMaxH3Transformer3DModel", "diffusers:minimax_h3"),
        ("MiniMaxH3DiTModel", "minimax_h3"),
        ("flux2", "flux2"),
    ],
)
def test_a_class_leads_to_its_model_and_a_name_to_itself(name: str, model: str) -> None:
    assert load().model_named(name) == model


def test_the_users_file_names_classes_of_its_own_models_and_of_packaged_ones(tmp_path: Path) -> None:
    found = catalog(tmp_path, "[models.mine]\nclasses = ['Mine']\n[models.'diffusers:flux2']\nclasses = ['MyFlux2']\n")
    assert found.model_named("Mine") == "mine"
    assert found.model_named("MyFlux2") == found.model_named("Flux2Transformer2DModel") == "diffusers:flux2"


def test_a_class_of_several_models_is_refused_with_their_names(tmp_path: Path) -> None:
    found = catalog(tmp_path, "[models.mine]\nclasses = ['Flux2Transformer2DModel']\n")
    expected = "model 'Flux2Transformer2DModel': the class of diffusers:flux2 and mine; name one of them"
    with pytest.raises(ConfigurationError, match=expected):
        found.model_named("Flux2Transformer2DModel")


def test_an_unknown_model_is_refused_with_the_nearest_name_or_class() -> None:
    with pytest.raises(ConfigurationError, match=r"^model 'flux_2': no such model; nearest: flux2\. Known: "):
        load().model_named("flux_2")
    with pytest.raises(ConfigurationError, match="nearest: Flux2Transformer2DModel"):
        load().model_named("Flux2Transformer2dModel")


def test_settings_under_the_name_of_a_class_are_refused_since_nobody_would_read_them(problems: Problems) -> None:
    text = "\n[models.Flux2Transformer2DModel]\nfused_qk_norm_rope = 'fast'\n"
    cure = "the class of model 'diffusers:flux2'; write [models.\"diffusers:flux2\"]"
    assert problems(text) == [f"my.toml:2: models.Flux2Transformer2DModel: {cure}"]


def test_a_class_that_is_called_like_a_model_is_refused_since_nobody_would_find_it(problems: Problems) -> None:
    text = "[models.mine]\nclasses = [\n  'Mine',\n  'flux2',\n]\n"
    expected = "my.toml:4: models.mine.classes[1]: got 'flux2', which is a model; legal: names of classes"
    assert problems(text) == [expected]


@pytest.mark.parametrize("given", ["'Mine'", "[3]", "['my class']"])
def test_classes_are_a_list_of_names(problems: Problems, given: str) -> None:
    (found,) = problems(f"[models.mine]\nclasses = {given}\n")
    assert found.startswith("my.toml:2: models.mine.classes")
    assert "legal: a list of names of Python classes" in found
