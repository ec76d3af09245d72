"""`verify` on a CPU: what it compares, what it says of it, and that it sees faults planted in the eager references."""

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from numerics.measure.arms import AbsentError
from numerics.measure.chains import TORCH, rotate_separate
from numerics.measure.peers import Locations
from numerics.measure.verify import Verifier
from numerics.measure.verify_golden import golden_cases, replayed
from numerics.measure.verify_references import Live, Where, live
from numerics.measure.verify_rows import pools, telling
from numerics.measure.verify_samples import make, samples
from numerics.measure.verify_subject import REFERENCES, Plan, Record
from numerics.ops import norm, reduction, stages
from numerics.ops.arithmetic import fma, multiply, round_at
from numerics.presets.file import load
from numerics.presets.vocabulary import OPS

CATALOG: Final = load()
CPU: Final = torch.device("cpu")
QK, NORM, MODULATED, GATED = "fused_qk_norm_rope", "rms_norm", "indexed_scale_shift_", "indexed_gate"


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def records(preset: str, op: str, *references: str, elements: int = 0) -> list[Record]:
    verifier = Verifier(Plan(CATALOG, (preset,), (op,), references or REFERENCES, CPU, elements))
    return [record for unit in verifier.units() for record in verifier.run(unit)]


def wrong(found: list[Record]) -> set[str]:
    assert not [each["error"] for each in found if each["error"]]
    return {each["reference"] for each in found if each["elements_differing"]}


# --- What is compared -------------------------------------------------------------------------------------------------


def test_golden_bytes_show_a_claim_and_live_steps_do_not() -> None:
    found = records("diffusers_aten", QK)
    shows = {each["reference"]: each["shows"] for each in found if each["elements"]}
    installed = {"diffusers": "steps"} if importlib.util.find_spec("diffusers") else {}
    assert shows == {"golden": "claim", "aten": "steps"} | installed
    assert not wrong(found)


@pytest.mark.parametrize("preset", ["vllm_cuda_128", "diffusers_complex", "vllm_cuda_add"])
def test_golden_bytes_are_replayed_by_eager_references_too(preset: str) -> None:
    chosen = CATALOG.presets[preset]
    numerics = chosen.numerics(CATALOG.reductions)
    cases = [case for case in golden_cases(CATALOG, chosen, tuple(OPS)) if case.width <= 128]
    assert cases
    for case in cases:
        tally = replayed(case, numerics, CPU, by_reference=True)
        assert (tally.differing, tally.elements > 0) == (0, True), case.name


def test_a_reference_that_computes_other_shapes_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def halves_alone(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
        if interleaved:
            raise AbsentError("it rotates halves")
        return rotate_separate(x, cos, sin, interleaved)

    chain = replace(TORCH, norm=TORCH.norm, rotate=halves_alone)
    monkeypatch.setattr("numerics.measure.verify_subject.live", lambda *_: Live(chain, "steps", "halves", None))
    found = records("vllm_cuda_128", QK, "aten", elements=10**9)
    assert {each["absent"] for each in found if each["case"] and each["case"].startswith("production")} == {
        "it rotates halves"
    }


def test_a_library_that_fails_is_wrong_and_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Tensor:
        raise RuntimeError("compiled for another torch")

    chains = {"aten": TORCH, "diffusers": replace(TORCH, rotate=broken)}
    monkeypatch.setattr(
        "numerics.measure.verify_subject.live", lambda name, *_: Live(chains[name], "steps", name, None)
    )
    found = records("diffusers_aten", QK, "aten", "diffusers")
    assert {each["reference"] for each in found if each["error"]} == {"diffusers"}
    assert all("compiled for another torch" in each["error"] for each in found if each["error"])
    assert {each["reference"] for each in found if each["elements"]} == {"aten"}


def test_what_a_cpu_computes_otherwise_is_absent_and_says_so() -> None:
    why = {each["reference"]: each["absent"] for each in records("diffusers_complex", QK) if each["absent"]}
    assert why["aten"].startswith("not on this device: a CPU multiplies")
    assert why["eager"].startswith("not on this device")
    (absent,) = [each for each in records("vllm_native", NORM, "aten") if each["absent"]]
    assert (absent["absent"], absent["elements"]) == ("not on this device: a CPU adds the squares in another order", 0)


def test_an_order_without_golden_bytes_is_compared_with_its_declaration() -> None:
    found = records("apex", NORM)
    assert {each["shows"] for each in found if each["elements"]} == {"declaration"}
    assert not wrong(found)


def test_samples_are_repeated_until_there_are_elements_enough() -> None:
    few, many = (sum(each["elements"] for each in records("vllm_cuda_128", QK, "aten", elements=n)) for n in (0, 10**6))
    assert few < 10**6 <= many


def test_presets_that_compute_the_same_are_compared_once() -> None:
    verifier = Verifier(
        Plan(CATALOG, ("vllm_cuda", "vllm_cuda_bf16_rope", "omni_native"), (MODULATED,), ("aten",), CPU)
    )
    first, *others = verifier.units()
    assert (first.live, first.also) == (True, ("vllm_cuda_bf16_rope", "omni_native"))
    assert not any(each.live for each in others)
    found = [each for each in verifier.run(first) if each["elements"]]
    assert len({each["elements"] for each in found if each["same_as"]}) == 1
    assert {(each["preset"], each["same_as"]) for each in found} == {
        ("vllm_cuda", None),
        ("vllm_cuda_bf16_rope", "vllm_cuda"),
        ("omni_native", "vllm_cuda"),
    }


def test_a_library_of_unknown_version_is_no_proof_of_an_old_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numerics.measure.verify_references.vllm", lambda *_: None)
    monkeypatch.setattr("numerics.measure.verify_references.capability_of", lambda _: "cuda:9.0")
    where = Where(torch.device("cuda"), Locations(vllm_library=__file__), None)  # type: ignore[arg-type]  # any path
    asked = {name: CATALOG.presets[name] for name in ("vllm_cuda", "vllm_cuda_0_19", "vllm_cuda_batch_invariant")}
    numerics = {name: preset.numerics(CATALOG.reductions) for name, preset in asked.items()}
    assert live("vllm", asked["vllm_cuda"], numerics["vllm_cuda"], NORM, where).shows == "claim"
    with pytest.raises(AbsentError, match="--vllm-version"):
        live("vllm", asked["vllm_cuda_0_19"], numerics["vllm_cuda_0_19"], NORM, where)
    known = replace(where, vllm_version="0.29.0")
    with pytest.raises(AbsentError, match=r"found 0\.29\.0"):
        live("vllm", asked["vllm_cuda_0_19"], numerics["vllm_cuda_0_19"], NORM, known)
    with pytest.raises(AbsentError, match="VLLM_BATCH_INVARIANT=1"):
        live("vllm", asked["vllm_cuda_batch_invariant"], numerics["vllm_cuda_batch_invariant"], NORM, known)


# --- Samples and searched rows ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("large", [False, True])
def test_samples_have_thresholds_special_values_strides_and_both_layouts(large: bool) -> None:
    preset = CATALOG.presets["vllm_cuda"]
    numerics = preset.numerics(CATALOG.reductions)
    rows = samples(NORM, numerics, preset.requires, large=large)
    assert {0, 1, 255, 256} <= {each.geometry.rows for each in rows}  # type: ignore[union-attr]
    assert any(each.special for each in rows)
    assert any(each.dtype == torch.float16 for each in rows)
    assert not any(each.dtype == torch.float32 for each in rows)  # the preset refuses it
    strided = next(each for each in rows if each.strided and each.special)
    assert not make(strided, NORM, CPU, 0).tensors["x"].is_contiguous()
    heads = samples(QK, numerics, preset.requires, large=large)
    assert {each.geometry.interleaved for each in heads} == {True, False}  # type: ignore[union-attr]
    assert any(each.geometry.q_heads != each.geometry.k_heads for each in heads)  # type: ignore[union-attr]


def test_searched_rows_tell_an_order_from_every_other_and_merge_equal_ones() -> None:
    order = CATALOG.reductions["vllm_cuda"].order(128, 256)
    found = telling(pools(CATALOG, CPU, 0), order, (), torch.bfloat16)
    assert found.told >= 12
    assert not any("vllm_cuda_128" in each or "flashinfer," in each for each in found.not_told)  # the same tree
    again = telling(pools(CATALOG, CPU, 0), order, (), torch.bfloat16)
    assert torch.equal(found.x, again.x)


# --- Faults -----------------------------------------------------------------------------------------------------------

Store = Callable[[Tensor, torch.dtype], Tensor]


def other_order(x: Tensor, order: Any, true: Any = reduction.row_sum) -> Any:
    return true(x, replace(order, lanes="halves" if order.lanes == "adjacent" else "adjacent"))


def without(point: str, true: Any = round_at) -> Any:
    return lambda name, x, *rest: x if name == point else true(name, x, *rest)


def contracted(a: Tensor, b: Tensor, c: Tensor, s: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return fma(a, c, -(b * s)), fma(a, s, b * c)


def turned_back(a: Tensor, b: Tensor, c: Tensor, s: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return a * c + b * s, b * c - a * s


def dropped(y: Tensor, dtype: torch.dtype, true: Store = stages.store) -> Tensor:
    out = true(y, dtype)
    out[-1:] = torch.nan
    return out


class Stale:
    """What a call of this shape returned before."""

    def __init__(self) -> None:
        self.kept: dict[Any, Tensor] = {}

    def __call__(self, y: Tensor, dtype: torch.dtype, true: Store = stages.store) -> Tensor:
        return self.kept.setdefault((y.shape, dtype), true(y, dtype))


FAULTS: Final = {
    "order": ("vllm_cuda_128", NORM, reduction, "row_sum", other_order, {"golden", "declaration"}),
    "order, declared only": ("apex", NORM, reduction, "row_sum", other_order, {"declaration"}),
    "mean": ("vllm_cuda", NORM, reduction, "divide", multiply, {"golden", "declaration"}),
    "rounding point": ("vllm_cuda", MODULATED, stages, "round_at", without("scaled"), {"golden", "aten"}),
    "rotation": ("vllm_cuda_128", QK, stages, "_products", turned_back, {"golden", "aten"}),
    "contraction": ("diffusers_aten", QK, stages, "_products", contracted, {"golden", "aten"}),
    "a dropped row": ("vllm_cuda_128", NORM, norm, "store", dropped, {"golden", "declaration"}),
    "a stale output": ("vllm_cuda_128", NORM, norm, "store", Stale(), {"declaration"}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_planted_in_a_reference_is_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    preset, op, module, name, planted, seen_by = FAULTS[fault]
    monkeypatch.setattr(module, name, planted)
    found = records(preset, op)
    assert wrong(found) >= seen_by
    first = next(each for each in found if each["elements_differing"])
    assert first["max_ulp"] or first["one_sided_nan"]
    assert repr(first["first"]["reference"]) != repr(first["first"]["computed"])  # zeros have signs
