"""`verify` where kernels run: each is right, and a fault planted in a launch makes its records red."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from numerics.measure import verify_samples, verify_subject
from numerics.measure.verify import Verifier
from numerics.measure.verify_subject import Plan, Record
from numerics.ops.launch import Launch
from numerics.presets.file import load

CATALOG: Final = load()
QK, NORM, GATE = "fused_qk_norm_rope", "rms_norm", "indexed_gate"
FEW: Final = (
    "production",
    "special",
    "special, ragged",
    "searched",
    "batch",
    "cancelling",
    "no token",
    "half-split, ragged",
)
Fault = Callable[[Launch, Sequence[Any]], tuple[Tensor, ...]]


@pytest.fixture(autouse=True)
def _few_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Narrow and few: an interpreter takes a second where a GPU takes a microsecond."""
    every = verify_samples.samples

    def few(op: str, *args: Any, **options: Any) -> list[verify_samples.Sample]:
        return [each for each in every(op, *args, **options) if each.name in FEW]

    monkeypatch.setattr(verify_subject, "samples", few)
    monkeypatch.setattr(verify_samples, "WIDTHS", (128, 128))


def records(op: str, preset: str, *references: str) -> list[Record]:
    plan = Plan(CATALOG, (preset,), (op,), references or ("aten", "eager", "declaration"), torch.device("cpu"))
    verifier = Verifier(plan)
    return [record for unit in verifier.units() for record in verifier.run(unit)]


@pytest.mark.parametrize(
    ("op", "preset"),
    [
        (QK, "vllm_cuda_128"),
        (QK, "diffusers_complex"),
        (QK, "diffusers_bf16_rope"),
        (NORM, "vllm_native"),
        (GATE, "vllm_cuda"),
    ],
)
def test_kernels_return_what_references_do(op: str, preset: str) -> None:
    found = records(op, preset)
    compared = [each for each in found if each["elements"]]
    assert "eager" in {each["reference"] for each in compared}
    assert {each["arm"] for each in compared if each["reference"] != "declaration"} == {"kernel"}
    assert not [each for each in found if each["elements_differing"] or each["error"] or each["not_fused"]]


RUN: Final = Launch.__call__


def dropped_row(launch: Launch, args: Sequence[Any]) -> tuple[Tensor, ...]:
    made = RUN(launch, args)
    for out in made:
        if out.numel():
            out.view(-1, out.shape[-1])[-1].fill_(torch.nan)  # as the poisoned memory holds it
    return made


class Stale:
    def __init__(self) -> None:
        self.kept: dict[Any, tuple[Tensor, ...]] = {}

    def __call__(self, launch: Launch, args: Sequence[Any]) -> tuple[Tensor, ...]:
        return self.kept.setdefault(args[0].shape, RUN(launch, args))


def changed(**constants: Callable[[Any], Any]) -> Fault:
    """A kernel compiled with other constants."""

    def fault(launch: Launch, args: Sequence[Any]) -> tuple[Tensor, ...]:
        own = {name: constants[name](value) if name in constants else value for name, value in launch.constants.items()}
        return RUN(replace(launch, constants=own), args)

    return fault


def other_order(order: Any) -> Any:
    return replace(order, lanes="halves" if order.lanes == "adjacent" else "adjacent")


FAULTS: Final[dict[str, tuple[str, str, Fault]]] = {
    "order": (NORM, "vllm_cuda", changed(RMS_NORM_REDUCTION=other_order)),
    "rounding point": (QK, "vllm_cuda_128", changed(ROUNDING_POINTS=lambda _: ())),
    "contraction": (QK, "diffusers_aten", changed(ROPE_ROTATION=lambda _: "complex")),
    "rotation": (QK, "vllm_cuda_128", changed(INTERLEAVED=lambda value: not value)),
    "a dropped row": (GATE, "vllm_cuda", dropped_row),
    "a stale output": (NORM, "vllm_cuda", Stale()),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_planted_in_a_kernel_is_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    op, preset, planted = FAULTS[fault]
    monkeypatch.setattr(Launch, "__call__", lambda launch, args: planted(launch, args))  # noqa: PLW0108  # an object does not bind
    wrong = [each for each in records(op, preset, "eager") if each["elements_differing"]]
    assert wrong
    assert all(each["first"]["index"] and each["arm"] == "kernel" for each in wrong)
