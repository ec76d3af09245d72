"""The cases: what they cover, what they move, and how they are chosen."""

from collections import Counter

import pytest

from numerics.errors import ConfigurationError
from numerics.measure.cases import CASES, PEERS, ROW_PASSES, SMALL, Case, Heads, Rows, Streams, chosen
from numerics.presets.file import load
from numerics.presets.vocabulary import OPS

CATALOG = load()


def named(path: str) -> Case:
    (found,) = [case for case in CASES if case.path == path]
    return found


def norms(case: Case) -> list[tuple[int, int]]:
    """Width and rows of each norm of the unfused chain."""
    match case.geometry:
        case Heads() as it:
            return [(it.head_dim, it.tokens * it.q_heads), (it.head_dim, it.tokens * it.k_heads)]
        case Streams() as it:
            return [(it.head_dim, it.batch * tokens * it.heads) for tokens in (it.text, it.image)]
        case Rows() as it:
            return [(it.width, it.rows)] if "norm" in it.op else []


def test_every_case_has_a_path_of_its_own() -> None:
    assert max(Counter(case.path for case in CASES).values()) == 1


def test_every_op_has_a_headline_case() -> None:
    assert {case.op for case in CASES if case.headline} == set(OPS)


@pytest.mark.parametrize(
    ("path", "megabytes"),
    [
        ("fused_qk_norm_rope/4608x48x128", 4608 * 2 * 48 * 128 * 4e-6),
        ("fused_qk_norm_rope/37760x14x128-half96", 37760 * 2 * 14 * 128 * 4e-6),
        ("fused_qk_norm_rope/4608x32q8kx128", 4608 * 40 * 128 * 4e-6),
        ("fused_joint_qkv_norm_rope/2x512+4096x24x128", 2 * 4608 * 3 * 24 * 128 * 4e-6),
        ("rms_norm/16384x5376", 16384 * 5376 * 4e-6),
        ("fused_add_rms_norm/16384x5376", 16384 * 5376 * 8e-6),
        ("indexed_gate_rms_norm_scale_shift/16384x5376-12groups", 16384 * 5376 * 8e-6),
        ("indexed_gate/16384x5376-12groups", 16384 * 5376 * 6e-6),
    ],
)
def test_a_case_moves_each_activation_once_in_and_once_out(path: str, megabytes: float) -> None:
    assert named(path).moved_bytes * 1e-6 == pytest.approx(megabytes)


def test_an_empty_kernel_is_the_yardstick_below_20_megabytes() -> None:
    assert SMALL == 20_000_000
    assert named("fused_qk_norm_rope/512x24x128").is_small
    assert not named("fused_qk_norm_rope/1024x24x128").is_small
    assert named("rms_norm/256x5376").is_small


def test_every_op_on_rows_says_what_it_moves() -> None:
    assert set(ROW_PASSES) == {op for op in OPS if "qk" not in op and "qkv" not in op}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.path)
def test_every_preset_of_a_case_exists_and_holds_for_its_rows(case: Case) -> None:
    for name in (*case.presets, case.exact):
        reduction = CATALOG.presets[name].numerics(CATALOG.reductions).rms_norm_reduction
        for width, rows in norms(case):
            if not isinstance(reduction, str):
                assert reduction.order(width, rows).width == width
    assert CATALOG.presets[case.exact].reference is not None


def test_inductor_is_asked_for_the_headline_cases_alone() -> None:
    for case in CASES:
        assert ("inductor" in case.peers) == case.headline
        assert ("quack" in case.peers) == (case.headline and OPS[case.op] == "fused_rms_norm")
        assert "inductor_autotuned" not in case.peers
        assert set(case.peers) <= set(PEERS)


# --- Choosing ---------------------------------------------------------------------------------------------------------


def test_without_a_choice_all_cases_are_measured() -> None:
    assert chosen() == list(CASES)


def test_a_family_stands_for_its_ops() -> None:
    assert {case.op for case in chosen(["fused_qk_norm_rope"])} == {"fused_qk_norm_rope", "fused_joint_qkv_norm_rope"}
    assert {case.op for case in chosen(["rms_norm", "indexed_gate"])} == {"rms_norm", "indexed_gate"}


def test_patterns_match_a_name_or_op_and_name() -> None:
    assert {case.path for case in chosen(patterns=["rms_norm/16384x*", "*-half96"])} == {
        *(f"rms_norm/16384x{width}" for width in (768, 2048, 3072, 4096, 5376, 7168, 8192, 16384)),
        "fused_qk_norm_rope/9440x56x128-half96",
        "fused_qk_norm_rope/37760x14x128-half96",
    }


def test_a_quick_run_takes_headline_cases_and_two_presets() -> None:
    found = chosen(quick=True)
    assert {case.path for case in found} == {case.path for case in CASES if case.headline}
    assert {case.presets for case in found} == {("fast", "vllm_cuda"), ("fast", "vllm_cuda_add")}
    (named_too,) = chosen(patterns=["rms_norm/1x5376"], quick=True)
    assert not named_too.headline


def test_presets_replace_those_of_a_case_but_not_the_settings_in_force() -> None:
    found = chosen(["fused_qk_norm_rope"], presets=["omni_native"])
    assert {case.presets for case in found} == {("omni_native",)}
    assert "4x24x128-host-none" not in {case.name for case in found}


def test_a_case_is_named_once_as_known() -> None:
    with pytest.raises(ConfigurationError) as caught:
        chosen(patterns=["nothing"])
    known = str(caught.value).split("Known: ")[1].split(", ")
    assert len(known) == len(set(known))


@pytest.mark.parametrize(
    ("ops", "patterns", "presets", "message"),
    [
        (["rms_nrm"], [], [], "op 'rms_nrm': no such op or family; nearest: rms_norm"),
        ([], ["16384x53"], [], "case '16384x53': matches none; nearest: 16384x5376"),
        (["indexed_gate"], ["4608x*"], [], "matches none"),
        ([], ["4x24x128-host-none"], ["fast"], "no case is left"),
    ],
)
def test_a_choice_of_nothing_is_an_error(ops: list[str], patterns: list[str], presets: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        chosen(ops, patterns, presets)
