"""A trajectory of two layers and two steps on a CPU: what is equal, what is counted, and what a record says."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from numerics.errors import ConfigurationError, RequirementError
from numerics.golden import load
from numerics.measure import dit, trajectory_arms, trajectory_plot
from numerics.measure.arms import as_tuple
from numerics.measure.chains import TORCH
from numerics.measure.dit import Dit, Geometry
from numerics.measure.peers import Peer
from numerics.measure.trajectory import (
    CONTROL,
    REFERENCE,
    Record,
    Trajectory,
    deterministic,
    is_wrong,
    noise_levels,
    steps_of,
)
from numerics.measure.trajectory_arms import PRESETS, Plan, Unfused, claims, settings_of, unfused_of
from numerics.presets.vocabulary import FAMILIES

CPU = torch.device("cpu")
SMALL = Geometry(layers=2, tokens=36, width=256)
STEPS = 2
ALL = tuple(FAMILIES)


def run(plan: Plan) -> tuple[Trajectory, list[Record]]:
    taken = Trajectory(plan, CPU)
    steps = [each for each in map(taken.take, taken.turns) if each is not None]
    return taken, [taken.header(["trajectory", "--steps", "2"]), *steps]


@pytest.fixture(scope="module")
def usual() -> tuple[Trajectory, list[Record]]:
    return run(Plan(SMALL, STEPS))


def differing(records: list[Record]) -> dict[str, list[int]]:
    return {preset: [each["elements_differing"] for each in steps] for preset, steps in steps_of(records).items()}


# --- Bytes ------------------------------------------------------------------------------------------------------------


def test_the_exact_preset_equals_the_unfused_chain_in_every_step_and_fast_does_not(
    usual: tuple[Trajectory, list[Record]],
) -> None:
    found = differing(usual[1])
    assert list(found) == [CONTROL, *PRESETS]
    assert found[CONTROL] == found["vllm_cuda"] == [0] * STEPS
    assert all(found["fast"])
    assert not any(map(is_wrong, usual[1]))


def test_all_families_can_be_under_test() -> None:
    # diffusers_aten adds the squares in another order; the rounding points of its modulation are the same.
    taken, records = run(Plan(SMALL, STEPS, ("vllm_cuda", "diffusers_aten"), ALL))
    found = differing(records)
    assert found["vllm_cuda"] == [0] * STEPS
    assert found["diffusers_aten"][-1]
    assert set(taken.arms["vllm_cuda"].counted) == set(trajectory_arms.OPS)


def test_families_that_are_not_under_test_are_the_same_in_all_arms() -> None:
    families = {"fused_modulation"}
    taken, _ = run(Plan(Geometry(1, 5, 256), 1, ("fast",)))
    exact, fast = taken.arms[REFERENCE].numerics, taken.arms["fast"].numerics
    assert {family for family in exact if exact[family] != fast[family]} == families


@pytest.mark.parametrize(
    ("op", "output"),
    [
        ("rms_norm_indexed_scale_shift", 0),
        ("indexed_gate_rms_norm_scale_shift", 0),
        ("indexed_gate_rms_norm_scale_shift", 1),
        ("indexed_gate", 0),
    ],
)
def test_a_wrong_row_of_any_output_reaches_the_latent_and_the_verdict(op: str, output: int) -> None:
    taken = Trajectory(Plan(SMALL, 1, ("vllm_cuda",)), CPU)
    right = taken.arms["vllm_cuda"].calls[op]

    def wrong(**given: Tensor) -> Any:
        made = as_tuple(right(**given))
        made[output][7] += made[output][8]
        return made if len(made) > 1 else made[0]

    taken.arms["vllm_cuda"].calls = {**taken.arms["vllm_cuda"].calls, op: wrong}
    control, exact = [each for each in map(taken.take, taken.turns) if each is not None]
    assert (is_wrong(control), is_wrong(exact)) == (False, True)
    assert math.isfinite(exact["psnr_db"])


def test_a_chain_that_does_not_repeat_itself_is_seen() -> None:
    taken = Trajectory(Plan(SMALL, 1, ()), CPU)
    taken.arms[CONTROL].latent = taken.arms[CONTROL].latent * 1.5
    assert [is_wrong(each) for each in map(taken.take, taken.turns) if each is not None] == [True]


def test_a_preset_that_claims_nothing_may_differ() -> None:
    record = {"kind": "step", "claims_reference": False, "elements_differing": 9}
    assert not is_wrong(record)
    assert is_wrong(record | {"claims_reference": True})


def test_a_run_repeats_itself_and_a_seed_changes_it(usual: tuple[Trajectory, list[Record]]) -> None:
    plan = Plan(SMALL, STEPS, ())
    again, other = run(plan)[0], run(replace(plan, seed=1))[0]
    last = usual[0].arms[REFERENCE].latent
    assert torch.equal(again.arms[REFERENCE].latent.view(torch.int16), last.view(torch.int16))
    assert not torch.equal(other.arms[REFERENCE].latent, last)


# --- The schedule -----------------------------------------------------------------------------------------------------


def test_noise_levels_fall_from_one_to_zero_and_are_shifted_to_noise() -> None:
    levels = noise_levels(4)
    assert levels == pytest.approx([1.0, 9 / 10, 3 / 4, 1 / 2, 0.0])
    assert (levels[0], levels[-1]) == (1.0, 0.0)


def test_a_step_is_eulers(usual: tuple[Trajectory, list[Record]]) -> None:
    taken = Trajectory(Plan(SMALL, STEPS, ()), CPU)
    start, arm = taken.dit.start, taken.arms[REFERENCE]
    with torch.no_grad():
        velocity = taken.dit.velocity(start, 1.0, arm.calls)
    taken.take((REFERENCE, 1))
    expected = (start.float() + velocity.float() * (taken.sigmas[1] - 1.0)).to(torch.bfloat16)
    assert torch.equal(arm.latent, expected)
    assert arm.latent.dtype == torch.bfloat16


def test_deterministic_algorithms_are_restored() -> None:
    before = torch.are_deterministic_algorithms_enabled()
    with deterministic():
        assert torch.are_deterministic_algorithms_enabled()
    assert torch.are_deterministic_algorithms_enabled() == before


# --- What is counted, and what a record says --------------------------------------------------------------------------


def test_each_modulation_op_is_called_once_a_layer_and_step(usual: tuple[Trajectory, list[Record]]) -> None:
    header = usual[1][0]
    each = dict.fromkeys(("rms_norm_indexed_scale_shift", "indexed_gate_rms_norm_scale_shift", "indexed_gate"), 4)
    assert header["calls"] == dict.fromkeys((REFERENCE, CONTROL, *PRESETS), each)
    assert set(header["not_fused"]) == set(PRESETS)  # the chain has no kernel to miss
    assert not any(count for counts in header["fused"].values() for count in counts.values())


def test_a_record_names_what_it_compares_and_all_of_it_is_json(usual: tuple[Trajectory, list[Record]]) -> None:
    _, records = usual
    header, *steps = json.loads(json.dumps(records, allow_nan=False))
    assert (header["kind"], {each["kind"] for each in steps}) == ("header", {"step"})
    assert header["command"] == "numerics trajectory --steps 2"
    assert (header["grid"], header["image"], header["weight_sets"]) == ([6, 6], [16, 12, 12], 2)
    exact = next(each for each in steps if each["preset"] == "vllm_cuda")
    assert (exact["step"], exact["elements"], exact["psnr_db"], exact["claims_reference"]) == (1, 36 * 64, "inf", True)
    assert "eager norm of vllm_cuda" in exact["reference"]
    assert {each["claims_reference"] for each in steps if each["preset"] in {"fast", "bf16_affine"}} == {False}


# --- Claims and chains ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "version", "claimed"),
    [
        ("vllm_cuda", None, True),
        ("vllm_cuda", "0.29.0", True),
        ("vllm_cuda", "0.40.0", False),
        ("vllm_cuda_0_19", None, False),  # the same provider, earlier
        ("diffusers_aten", None, False),
        ("fast", None, False),
    ],
)
def test_a_claim_is_of_a_provider_and_its_version(preset: str, version: str | None, claimed: bool) -> None:
    exact, candidates = settings_of(Plan(SMALL, STEPS, (preset,)), CPU)
    unfused = Unfused(TORCH, "a chain", version)
    assert claims(candidates[preset], exact, unfused, ["fused_modulation"]) is claimed


def test_vllms_norm_is_the_reference_where_it_is_claimed() -> None:
    exact, _ = settings_of(Plan(SMALL, STEPS), CPU)
    cuda = torch.device("cuda", 0)

    def arm(inputs: object) -> Any:
        raise AssertionError

    library = Peer(arm, None, (Path("somewhere/vllm_C.so"),))
    assert "eager" in unfused_of(exact, library, CPU).name
    assert unfused_of(exact, library, cuda).name == "vLLM's rms_norm (vllm_C.so), PyTorch's affine"
    assert unfused_of(exact, Peer(arm, "0.29.0"), cuda).version == "0.29.0"
    assert "0.40.0 is installed" in unfused_of(exact, Peer(arm, "0.40.0"), cuda).name
    assert "(it is not here)" in unfused_of(exact, "it is not here", cuda).name


def test_the_eager_chain_has_the_bytes_of_vllms_norm() -> None:
    exact, _ = settings_of(Plan(SMALL, STEPS), CPU)
    golden = load()
    rows, weight = golden["x_3072"], golden["w_3072"]  # rows that tell orders of additions apart
    found = unfused_of(exact, "it is not here", CPU).chain.norm(rows, weight, 1e-6)
    assert torch.equal(found.view(torch.int16), golden["vllm_small_3072"].view(torch.int16))
    assert not torch.equal(found, TORCH.norm(rows, weight, 1e-6))


def test_a_preset_that_refuses_or_takes_the_name_of_an_arm_is_named_before_anything_is_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(Dit, "__init__", never)
    with pytest.raises(RequirementError, match="vllm_cuda_128"):
        Trajectory(Plan(SMALL, STEPS, ("vllm_cuda_128",)), CPU)
    with pytest.raises(ConfigurationError, match="no such preset"):
        Trajectory(Plan(SMALL, STEPS, ("vlm_cuda",)), CPU)
    with pytest.raises(ConfigurationError, match="'control': the name of an arm"):
        Trajectory(Plan(SMALL, STEPS, ("control",)), CPU)


# --- The stack --------------------------------------------------------------------------------------------------------


def test_geometry_is_that_of_minimax_h3() -> None:
    it = Geometry(layers=50, tokens=1536)
    assert (it.width, it.heads, it.grid) == (5376, 56, (32, 48))
    assert Geometry(1, 13, 256).grid == (1, 13)
    with pytest.raises(ConfigurationError, match="width: got 95; legal: at least 96"):
        Geometry(1, 1, 95)


def test_a_token_is_a_patch_of_the_image() -> None:
    it = Geometry(1, 6, 96)  # 2 x 3 tokens
    latent = torch.arange(6 * 64).view(6, 64)
    image = it.image(latent)
    assert image.shape == (16, 4, 6)
    assert sorted(image[:, 2:4, 4:6].flatten().tolist()) == latent[5].tolist()
    assert image[3, 0, 1] == latent[0, 16 + 3]


def test_rows_index_all_of_the_modulation_table_and_some_channels_stand_out() -> None:
    stack = Dit(SMALL, CPU, 0)
    assert set(stack._indices.tolist()) == set(range(12))
    _, second, third = stack.weights[0].down.float().abs().mean(dim=1).topk(3).values.tolist()
    assert second > 8 * third  # 2 of 256 channels


def test_layers_share_weights_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    one = 2 * sum(x.numel() for x in vars(Dit(Geometry(1, 4, 256), CPU, 0).weights[0]).values())
    monkeypatch.setattr(dit, "CPU_WEIGHTS", 2 * one)
    stack = Dit(Geometry(3, 4, 256), CPU, 0)
    assert (len(stack.weights), len(stack._tables)) == (2, 3)
    monkeypatch.setattr(dit, "CPU_WEIGHTS", 1)
    assert len(Dit(Geometry(3, 4, 256), CPU, 0).weights) == 1


# --- The plot ---------------------------------------------------------------------------------------------------------


def test_a_line_has_a_point_where_latents_differ(usual: tuple[Trajectory, list[Record]]) -> None:
    lines = {line.label: line for line in trajectory_plot.lines(usual[1])}
    assert len(lines) == len(PRESETS)
    assert lines["vllm_cuda (equal in every step)"].steps == ()
    assert lines["fast"].steps == (1, 2)
    assert all(map(math.isfinite, lines["fast"].psnr_db))
