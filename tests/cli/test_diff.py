"""`numerics diff`: two presets, or two saved outputs of show."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command

Write = Callable[..., Path]
MINE = """
[reductions.copy]
summary = "vllm_cuda_128 under another name"
width = 128
vector = 8
threads = 16
lanes = "adjacent"
mean = "divide"
[presets.copy]
summary = "equal bits"
extends = "vllm_cuda_128"
rms_norm_reduction = "copy"
reference = { provider = "vllm_c", versions = ">=0.20,<0.34" }
[presets.narrower]
summary = "equal bits under other conditions"
extends = "vllm_cuda_128"
requires = { dtype = ["bfloat16"] }
"""


def differences(numerics: Command, a: str, b: str, *options: object) -> dict[str, Any]:
    return {each["what"]: each for each in numerics("diff", a, b, "--json", *options).json["differences"]}


def test_equal_presets_exit_0(numerics: Command) -> None:
    found = numerics("diff", "vllm_cuda", "vllm_cuda")
    assert (found.code, found.out) == (0, "vllm_cuda and vllm_cuda do not differ.\n")


def test_one_declaration_with_two_names_is_no_difference(numerics: Command, write: Write) -> None:
    assert numerics("diff", "copy", "vllm_cuda_128", "--config", write(MINE)).code == 0


def test_a_rounding_point_matters_in_its_families(numerics: Command) -> None:
    found = differences(numerics, "vllm_cuda", "vllm_cuda_0_19")
    assert found["rounding point normalized"] == {
        "what": "rounding point normalized",
        "a": "float32",
        "b": "rounded",
        "families": ["fused_qk_norm_rope", "fused_modulation", "fused_rms_norm"],
        "detail": "x * rstd, before the weight multiply",
    }


def test_a_rotation_matters_for_q_and_k_alone(numerics: Command) -> None:
    found = differences(numerics, "diffusers_native", "diffusers_complex")
    assert found["rope_rotation"]["families"] == ["fused_qk_norm_rope"]


def test_two_reductions_say_at_which_widths_they_part(numerics: Command) -> None:
    detail = differences(numerics, "vllm_cuda", "vllm_cuda_batch_invariant")["rms_norm_reduction"]["detail"]
    assert detail == "the same mean at widths 64, 96, 128, 256; another at widths 3072, 3840, 5120, 5376, 6144"


def test_a_reduction_for_fewer_widths_says_so(numerics: Command) -> None:
    detail = differences(numerics, "vllm_cuda_128", "vllm_cuda")["rms_norm_reduction"]["detail"]
    assert detail.startswith("the same mean at width 128; only vllm_cuda holds at widths 64, 96, 256")


def test_an_open_order_is_compared_with_nothing(numerics: Command) -> None:
    detail = differences(numerics, "fast", "vllm_cuda")["rms_norm_reduction"]["detail"]
    assert detail == "triton leaves the order open"


def test_conditions_differ_without_changing_bytes(numerics: Command, write: Write) -> None:
    path = write(MINE)
    found = numerics("diff", "narrower", "vllm_cuda_128", "--config", path, "--json")
    assert (found.code, found.json["same_bits"]) == (1, True)
    assert found.json["differences"][0]["families"] == []
    page = numerics("diff", "narrower", "vllm_cuda_128", "--config", path)
    assert page.code == 1
    assert "the same bits, under other conditions" in page.out
    assert "no bytes" in page.out


def test_a_page_names_both_sides_and_exits_1(numerics: Command) -> None:
    found = numerics("diff", "vllm_cuda_128", "diffusers_aten")
    assert found.code == 1
    assert found.out.splitlines()[1].split() == ["what", "vllm_cuda_128", "diffusers_aten", "matters", "in"]


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ("vlm_cuda", "fast", "'vlm_cuda': no such preset and no such file; nearest: vllm_cuda"),
        ("fast", "no.json", "'no.json': no such preset and no such file"),
    ],
)
def test_an_unknown_side_exits_2(numerics: Command, a: str, b: str, message: str) -> None:
    found = numerics("diff", a, b)
    assert (found.code, found.out) == (2, "")
    assert message in found.err


# --- Saved settings ---------------------------------------------------------------------------------------------------

QK = "VLLM_OMNI_FUSED_QK_NORM_ROPE_NUMERICS"


@pytest.fixture
def saved(numerics: Command, write: Write) -> Callable[..., Path]:
    """Saves what show prints."""

    def save(name: str, *arguments: str, **environment: str) -> Path:
        return write(numerics("show", "--json", *arguments, **environment).out, name)

    return save


def test_saved_settings_that_are_equal_exit_0(numerics: Command, saved: Callable[..., Path]) -> None:
    assert numerics("diff", saved("a.json"), saved("b.json")).code == 0


def test_who_set_a_value_is_no_difference(numerics: Command, saved: Callable[..., Path]) -> None:
    model = ("--model", "flux2", "--op", "fused_qk_norm_rope")
    assert numerics("diff", saved("a.json", *model), saved("b.json", *model, **{QK: "vllm_cuda_128"})).code == 0


def test_saved_settings_differ_in_values_and_in_entries(numerics: Command, saved: Callable[..., Path]) -> None:
    a = saved("a.json")
    b = saved("b.json", "--model", "flux2", "--op", "fused_qk_norm_rope", **{QK: "vllm_cuda_128,rope_rotation=complex"})
    found = numerics("diff", a, b, "--json")
    assert found.code == 1
    of_flux2 = [each for each in found.json["differences"] if each["model"] == "flux2" and each["what"] != "setting"]
    assert [(each["what"], each["a"], each["b"]) for each in of_flux2] == [
        ("modified", [], ["rope_rotation"]),
        ("reference", {"provider": "vllm_c", "versions": ">=0.20,<0.34"}, None),
        ("rope_rotation", "separate", "complex"),
    ]
    missing = [each for each in found.json["differences"] if each["what"] == "setting" and each["b"] is None]
    assert {(each["op"], each["model"]) for each in missing} >= {
        ("fused_qk_norm_rope", None),
        ("fused_rms_norm", "flux2"),
    }


def test_models_that_differ_alike_stand_together(numerics: Command, saved: Callable[..., Path]) -> None:
    found = numerics("diff", saved("a.json"), saved("b.json", **{QK: "vllm_cuda"}), COLUMNS="200")
    assert found.code == 1
    assert (
        "fused_qk_norm_rope: diffusers:flux, diffusers:flux2, diffusers:flux2_klein, diffusers:ovis_image" in found.out
    )


def test_a_declaration_that_changed_behind_its_name_is_found(
    numerics: Command, saved: Callable[..., Path], write: Write
) -> None:
    a = saved("a.json", "--model", "flux2", "--op", "rms_norm")
    (setting,) = json.loads(a.read_text())
    b = write(json.dumps([{**setting, "fingerprint": "sha256:other"}]), "b.json")
    found = numerics("diff", a, b, "--json").json["differences"]
    assert [(each["what"], each["b"]) for each in found] == [("fingerprint", "sha256:other")]


def test_rows_for_a_capability_are_compared_one_by_one(numerics: Command, write: Write) -> None:
    row = '[models.flux2]\nfused_rms_norm = {{ when = [{{ capability = "cuda:9", min_tokens = {} }}] }}\n'
    show = ("show", "--json", "--model", "flux2", "--op", "rms_norm", "--config")
    a, b = (write(numerics(*show, write(row.format(n))).out, f"{n}.json") for n in (1, 2))
    found = numerics("diff", a, b, "--json").json["differences"]
    assert [(each["on"], each["what"], each["a"], each["b"]) for each in found] == [("cuda:9", "min_tokens", 1, 2)]
    assert "fused_rms_norm: flux2 on cuda:9" in numerics("diff", a, b).out


def test_a_preset_and_a_file_are_not_compared(numerics: Command, saved: Callable[..., Path]) -> None:
    found = numerics("diff", "fast", saved("a.json"))
    assert (found.code, "'fast' is a preset and the other a file" in found.err) == (2, True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("{}", "got dict, not the list that numerics show --json writes"),
        ("[1]", "record 0: not from numerics show --json: got 1, not a table"),
        ('[{"op": "fused_rms_norm"}]', "record 0: not from numerics show --json: no 'model'"),
    ],
)
def test_a_file_that_show_did_not_write_exits_2(numerics: Command, write: Write, text: str, message: str) -> None:
    path = write(text, "a.json")
    found = numerics("diff", path, path)
    assert (found.code, found.out) == (2, "")
    assert f"{path}: " in found.err
    assert message in found.err


def test_knobs_that_are_no_table_are_refused(numerics: Command, saved: Callable[..., Path], write: Write) -> None:
    (setting,) = json.loads(saved("a.json", "--model", "flux2", "--op", "rms_norm").read_text())
    path = write(json.dumps([{**setting, "numerics": 1}]), "b.json")
    assert "record 0: numerics: got 1, not a table" in numerics("diff", path, path).err


@pytest.mark.parametrize(("key", "value"), [("op", None), ("model", {}), ("preset", 1)])
def test_names_that_are_none_are_refused(
    numerics: Command, saved: Callable[..., Path], write: Write, key: str, value: Any
) -> None:
    (setting,) = json.loads(saved("a.json", "--model", "flux2", "--op", "rms_norm").read_text())
    path = write(json.dumps([{**setting, key: value}]), "b.json")
    found = numerics("diff", path, path)
    assert (found.code, f"record 0: {key}: got {value!r}, not a name" in found.err) == (2, True)


def test_a_folder_is_no_saved_file(numerics: Command, tmp_path: Path) -> None:
    found = numerics("diff", tmp_path, tmp_path)
    assert (found.code, "cannot be read: is a directory" in found.err) == (2, True)


def test_variables_of_a_condition_are_named(numerics: Command) -> None:
    found = {
        each["what"]: each for each in numerics("diff", "vllm_cuda_128", "diffusers_aten", "--json").json["differences"]
    }
    condition = found["requires env"]
    assert (condition["a"], condition["b"]) == (["VLLM_BATCH_INVARIANT=0"], ["TORCH_NATIVE_SKIP_VERSION_CHECK=0"])
