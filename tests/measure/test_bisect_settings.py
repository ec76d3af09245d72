"""What two settings say is read place by place, and a generated file says exactly what an arm turns."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

import numerics
from numerics.environment import VARIABLES
from numerics.errors import ConfigurationError
from numerics.measure.bisect_arms import Arms, apart
from numerics.measure.bisect_settings import Setting, atoms_of, environment_of, of_file, of_saved, of_text
from numerics.presets.vocabulary import FAMILIES
from numerics.resolve import declared, resolve

MINE: Final = """
[reductions.mine]
summary = "of mine"
source = {{ provider = "me", versions = ">=1,<=2", location = "here \\\\ \\"there\\"" }}
width = [4, 128]
vector = [[64, 2], [128, 4]]
threads = "row/vector"
lanes = "{lanes}"
mean = "divide"

[presets.mine]
summary = "of mine"
reference = {{ provider = "me", versions = ">=1,<=2" }}
requires = {{ width = [4, 128], env = {{ SOME_VARIABLE = "1" }} }}
rms_norm_reduction = "mine"
enable_fp_fusion = false
rounding_points = ["{point}"]

[ops.fused_rms_norm]
preset = "mine"

[models.flux2]
fused_qk_norm_rope = {{ preset = "mine", min_tokens = 7 }}

[models."my:model"]
classes = ["MyTransformer"]
fused_modulation = {{ preset = "mine", when = [{{ capability = "cuda:9", rounding_points = [] }}] }}
"""
A: Final = {"lanes": "halves", "point": "qk_norm"}
Write = Callable[..., Setting]


@pytest.fixture
def mine(tmp_path: Path) -> Write:
    def write(capability: str | None = None, **fields: str) -> Setting:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.toml"
        path.write_text(MINE.format(**{**A, **fields}))
        return of_file(str(path), capability)

    return write


def arms_of(a: Setting, b: Setting) -> Arms:
    b = apart(a, b)
    return Arms(a, b, atoms_of(a, b))


def reread(arms: Arms, turned: frozenset[int], path: Path) -> Setting:
    path.write_text(arms.file(turned))
    return of_file(str(path), None)


# --- Files of arms ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["a", "b"])
def test_the_files_of_a_and_b_say_what_a_and_b_say(mine: Write, tmp_path: Path, end: str) -> None:
    a, b = mine(), mine(lanes="adjacent", point="normalized")
    arms = arms_of(a, b)
    turned = frozenset(range(len(arms.atoms))) if end == "b" else frozenset()
    found, wanted = reread(arms, turned, tmp_path / "arm.toml"), a if end == "a" else b
    assert found.places.keys() == wanted.places.keys()
    for place, chosen in found.places.items():
        expected = wanted.places[place]
        assert chosen.numerics == expected.numerics
        assert (chosen.min_tokens, chosen.requires) == (expected.min_tokens, expected.requires)
    assert {model: names for model, names in found.classes.items() if names} == {"my:model": ("MyTransformer",)}


def test_a_name_that_both_files_declare_otherwise_is_two_names(mine: Write, tmp_path: Path) -> None:
    arms = arms_of(mine(), mine(lanes="adjacent"))
    assert {(atom.what, atom.a, atom.b) for atom in arms.atoms} == {("rms_norm_reduction", "mine", "mine_b")}
    found = reread(arms, frozenset({0}), tmp_path / "arm.toml")
    here, elsewhere = arms.atoms[0].place, arms.atoms[1].place
    assert found.places[here].numerics == arms.b.places[here].numerics != arms.a.places[here].numerics
    assert found.places[elsewhere].numerics == arms.a.places[elsewhere].numerics


def test_each_difference_turned_alone_changes_one_value_of_one_place(tmp_path: Path) -> None:
    arms = arms_of(of_text("fast", None), of_text("diffusers_complex,rms_norm_reduction=vllm_cuda", None))
    model = [index for index, atom in enumerate(arms.atoms) if atom.model == "minimax_h3"]
    assert {arms.atoms[index].what for index in model} == {
        "rms_norm_reduction", "enable_fp_fusion", "rope_rotation", "conditions", "rounding point gate_product",
        "rounding point normalized", "rounding point norm", "rounding point one_plus_scale", "rounding point scaled",
    }  # fmt: skip
    for index in model:
        turned = reread(arms, frozenset({index}), tmp_path / "arm.toml")
        changed = {
            (place, what)
            for place, chosen in turned.places.items()
            for what, value in chosen.texts().items()
            if value != arms.a.places[place].texts()[what]
        }
        assert changed == {(arms.atoms[index].place, arms.atoms[index].what)}


def test_b_is_in_force_with_its_own_preset_and_conditions_once_all_of_a_place_is_turned() -> None:
    arms = arms_of(of_text("vllm_cuda", None), of_text("diffusers_aten", None))
    here = frozenset(index for index, atom in enumerate(arms.atoms) if atom.place == ("fused_rms_norm", "flux2"))
    assert arms.values(("fused_rms_norm", "flux2"), here)["conditions"] == "diffusers_aten"
    only = frozenset(index for index in here if arms.atoms[index].what == "rms_norm_reduction")
    assert arms.values(("fused_rms_norm", "flux2"), only)["conditions"] == "vllm_cuda"


def test_two_names_of_one_order_are_no_difference(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(
        '[reductions.other]\nsummary = "vllm_cuda_128 again"\nwidth = 128\nvector = 8\nthreads = 16\n'
        'lanes = "adjacent"\nmean = "divide"\n'
        '[models.flux2]\nfused_qk_norm_rope = { preset = "vllm_cuda_128", rms_norm_reduction = "other" }\n'
    )
    found = atoms_of(of_file(str(tmp_path / "a.toml"), None), of_text("rope_rotation=separate", None))
    assert [atom for atom in found if atom.model == "flux2"] == []


def test_what_no_op_of_a_family_reads_does_not_apply() -> None:
    arms = arms_of(of_text("fast", None), of_text("fast,rope_rotation=complex,rounding_points=scaled", None))
    applies = {(atom.op, atom.what) for atom in arms.atoms if atom.applies}
    assert applies == {
        ("fused_qk_norm_rope", "rope_rotation"),
        ("fused_qk_norm_rope", "rounding point qk_norm"),
        ("fused_modulation", "rounding point residual"),
        ("fused_modulation", "rounding point scaled"),
        ("fused_rms_norm", "rounding point residual"),
    }


def test_a_capability_picks_the_row_of_a_setting(mine: Write) -> None:
    arms = arms_of(mine(), mine(capability="cuda:9.0"))
    assert [(atom.op, atom.model, atom.what) for atom in arms.atoms] == [
        ("fused_modulation", "my:model", "rounding point qk_norm")
    ]


# --- Reading ----------------------------------------------------------------------------------------------------------


def test_a_text_is_read_as_the_variable_of_every_family() -> None:
    found = of_text("vllm_cuda_128,enable_fp_fusion=true", None)
    assert {chosen.preset for chosen in found.places.values()} == {"vllm_cuda_128"}
    assert all(chosen.numerics.enable_fp_fusion for chosen in found.places.values())


def test_knobs_alone_keep_the_preset_of_each_model() -> None:
    found = of_text("enable_fp_fusion=true", None).places
    assert found["fused_qk_norm_rope", "flux2"].preset == "vllm_cuda_128"
    assert found["fused_qk_norm_rope", None].preset == "fast"


def test_variables_of_the_shell_do_not_count_and_are_as_before_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    for names in VARIABLES.values():
        monkeypatch.setenv(str(names.numerics), "bf16_affine")
        monkeypatch.setenv(str(names.min_tokens), "5")
    before = dict(os.environ)
    found = of_text("fast", None)
    assert {(chosen.preset, chosen.min_tokens) for chosen in found.places.values()} == {("fast", 0)}
    assert dict(os.environ) == before
    assert resolve("fused_rms_norm").preset == "bf16_affine"


def test_the_file_that_was_configured_is_in_force_again_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_text(MINE.format(**A))
    numerics.configure(path)
    with environment_of({}):
        assert resolve("fused_modulation", "flux2").preset == "fast"
    assert of_text("mine", None).places["fused_modulation", None].preset == "mine"
    assert declared("fused_qk_norm_rope", "flux2").preset == "mine"


def saved() -> list[dict[str, Any]]:
    found = [resolve(family, "flux2").to_dict() for family in FAMILIES]
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def test_saved_settings_say_what_they_were_saved_from() -> None:
    a, b = of_saved("a.json", saved(), None), of_text("rope_rotation=separate", None)
    assert len(a.places) == len(FAMILIES)
    assert atoms_of(a, b) == []


def test_a_place_that_only_one_setting_speaks_about_is_no_difference() -> None:
    arms = arms_of(of_saved("a.json", saved(), None), of_text("vllm_native", None))
    assert {atom.model for atom in arms.atoms} == {"flux2"}
    assert arms.values(("fused_rms_norm", "flux"), frozenset())["conditions"] == "vllm_native"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"preset": "gone"}, "no such declaration: 'gone'; name the presets file with --config"),
        ({"fingerprint": "sha256:0"}, "reduction 'vllm_cuda_128' is not declared here as it was"),
        ({"op": "fused_qk"}, "op 'fused_qk': no such op"),
    ],
)
def test_a_saved_setting_that_means_something_else_here_is_refused(changes: dict[str, str], words: str) -> None:
    found = saved()
    found[0].update(changes)
    with pytest.raises(ConfigurationError) as error:
        of_saved("a.json", found, None)
    assert words in str(error.value)
