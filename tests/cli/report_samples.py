"""Small files of each kind that the report knows, as their commands write them, and a reader of its page."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final

from numerics.cli.report_html import VOID
from numerics.measure.result import record

H200: Final = {"gpu": "NVIDIA H200", "torch": "2.11.0+cu130", "triton": "3.6.0"}
HASH: Final = "sha256:" + 64 * "a"


def settings() -> Any:
    shadow = {"source": "package", "location": "presets.toml: ops.fused_rms_norm", "value": "fast"}
    preset = {
        "source": "user",
        "location": "my.toml: ops.fused_rms_norm",
        "value": "vllm_cuda",
        "shadows": [shadow],
    }
    tokens = {**shadow, "value": 0, "shadows": []}
    knobs: dict[str, Any] = {"rms_norm_reduction": "vllm_cuda", "enable_fp_fusion": False}
    knobs |= {"rounding_points": ["residual"], "rope_rotation": "separate"}
    common: dict[str, Any] = {"preset": "vllm_cuda", "modified": [], "numerics": knobs}
    common |= {"min_tokens": 0, "reference": {"provider": "vllm_c", "versions": ">=0.20,<0.34"}}
    common |= {"op": "fused_rms_norm", "model": "flux2", "fingerprint": HASH}
    common |= {"sources": {"preset": preset, "min_tokens": tokens}}
    return [common | {"capability": None, "when": [common | {"capability": "cuda:9"}]}]


def verify() -> Any:
    claim = {"provider": "vllm_c", "versions": ">=0.20,<0.34"}
    counts = {"cases": 2, "rows": 10, "elements": 1280, "differing": 0}
    seen = {"differences": [], "errors": [], "sees": {"rounding_points": ["with norm"]}, "cannot_see": {}}
    nothing = {"elements": 0, "elements_differing": 0, "max_ulp": 0, "shows": None, "arm": None, "case": None}
    record = {"op": "rms_norm", "preset": "vllm_cuda_128", "not_fused": None, "absent": None, "error": None, **nothing}
    records = [
        {**record, "reference": "golden", "shows": "claim", "arm": "eager", "elements": 1280},
        {**record, "reference": "eager", "shows": "kernel", "arm": "kernel", "elements": 999},
        {**record, "reference": "vllm", "absent": "vllm is not installed"},
    ]
    found = {"preset": "vllm_cuda_128", "reference": claim, "status": "verified", **counts, **seen}
    return [found | {"records": records, "machine": {**H200, "command": "numerics verify --out verify.json"}}]


def parity() -> Any:
    counts = {"elements": 1019215872, "elements_differing": 0, "calls": 18, "unfused": []}
    return [{"op": "rms_norm", "preset": "vllm_cuda", **counts, **H200, "vllm": "vllm_C.so", "seed": 1}]


def bench() -> Any:
    return [
        record(
            op="rms_norm",
            case="16384x5376",
            preset=preset,
            exact=preset != "fast",
            clock="graph",
            time_us=time,
            copy_us=80.0,
            ratio_to_copy=time / 80,
            ratio_to_fast=time / 84,
            peer_us={"vllm": 126.0},
            absent={"torch": "it is not here"},
            reference="vLLM's ops (0.29.0)",
            elements=1000,
            elements_differing=7 if preset == "fast" else 0,
            differing={"before": 0, "repeated": 0, "after": 0},
            times={"graph": {"median": time, "spread": [time - 0.25, time + 0.25], "samples": 20}},
            started="2026-11-30T21:34:22+00:00",
            command="numerics bench --out bench.json",
            **H200,
        )
        for preset, time in (("fast", 84.0), ("vllm_cuda", 85.25))
    ]


def trajectory(steps: int = 4) -> Any:
    shape = {"steps": steps, "layers": 2, "tokens": 36, "width": 256}
    why = {"fast": {"indexed_gate": "no kernel for device 'cpu'"}}
    header = {"kind": "header", "reference": "PyTorch's affine", **shape, "not_fused": why}
    header |= {"started": "2026-11-30T22:54:37+00:00", **H200}
    return [header, *(_step(name, at) for name in ("control", "vllm_cuda", "fast") for at in range(1, steps + 1))]


def _step(preset: str, at: int) -> dict[str, Any]:
    far = preset == "fast" and at > 1
    distance = {"psnr_db": 80.5 - at if far else "inf", "max_abs": 0.5 * far, "max_ulp": 3 * far, "bias": -1e-5 * far}
    counts = {"elements_differing": 100 * at * far, "elements": 2304, "ssim": None}
    return {
        "kind": "step", "preset": preset, "step": at, **distance, **counts, "claims_reference": preset != "fast", **H200
    }  # fmt: skip


def models() -> Any:
    times = {
        "stock_ms": 61.2,
        "ours_ms": 55.3,
        "stock_over_ours": 1.1067,
        "fused_calls": {"rms_norm": 57},
        "ceiling": 1.2,
    }
    counts = {"elements_differing": 0, "elements": 262144}
    flux = {
        "model": "flux",
        "case": "batch 1",
        "preset": "diffusers_aten",
        "verdict": "equal",
        **counts,
        **times,
        **H200,
    }
    return [flux, {"model": "z_image", "case": "batch 1", "verdict": "stated", "error": "no weights", **H200}]


def environment() -> Any:
    package = {"installed": "2.13.0", "needs": None, "suits": True}
    return {
        "python": "3.12.3",
        "platform": "Linux",
        "package": {"version": "0.1.0", "location": "somewhere"},
        "packages": {"torch": package, "triton": package},
        "optional": {"vllm": "0.29.0", "diffusers": None},
        "capability": "cuda:9.0",
        "fused_kernels": {"can_run": True, "missing": []},
        "environment": {"NUMERICS_STRICT": "1"},
        "problems": [],
    }


def precision() -> Any:
    place = {"op": "rms_norm", "case": "5376", "stage": "norm", "precision": "float64", "table": None, "refused": None}
    numbers = {"elements": 1000, "max_abs": 0.5, "bias": -1e-6, "rms": 1.0, "computed_by": "kernel", **H200}
    against = {"closer": 10, "tied": 980, "further": 10}
    fast = {**place, "preset": "fast", "rmse": 0.001, "exact": False, "same_as": None, "against": {}, **numbers}
    exact = {**place, "preset": "vllm_cuda", "rmse": 0.0012, "exact": True, "same_as": None, **numbers}
    refused = dict.fromkeys(("stage", "precision", "rmse"))
    return [
        fast,
        {**exact, "against": {"fast": against}},
        {**exact, "preset": "vllm_cuda_add", "same_as": "vllm_cuda", "against": {"fast": against}},
        {"op": "rms_norm", "case": "5376", "preset": "quack", **refused, "refused": "width 5376 is not 128", **H200},
    ]


def bisect() -> Any:
    turn = {"op": "fused_rms_norm", "model": None, "applies": True}
    order = {**turn, "what": "rms_norm_reduction", "a": "vllm_cuda", "b": "aten_mean"}
    fusion = {**turn, "what": "enable_fp_fusion", "a": "false", "b": "true"}
    header: dict[str, Any] = {"kind": "header", "target": "mine:norm", "from": "vllm_cuda", "to": "omni_native", **H200}
    header |= {"counts": "return value", "tolerance": 0.0, "differences": [order, fusion]}
    numbers: dict[str, Any] = {"elements": 10, "max_abs": 0.5, "worst": None}
    same = numbers | {"elements_differing": 0, "psnr_db": "inf"}
    far = numbers | {"elements_differing": 3, "psnr_db": 40.5}
    arm = {"kind": "arm", "run": 1, "status": "ok", "reason": ""}
    return [
        header,
        {**arm, "name": "A, run 1", "turned": [], "from_a": None, "from_b": None},
        {**arm, "name": "B, run 1", "turned": [0, 1], "from_a": far, "from_b": None},
        {**arm, "name": "the order", "turned": [0], "from_a": far, "from_b": same},
        {
            **arm,
            "name": "contraction",
            "turned": [1],
            "status": "crashed",
            "reason": "why",
            "from_a": None,
            "from_b": None,
        },
        {"kind": "verdict", "result": "explained", "reason": "", "smallest": [0], "others": []},
    ]


SAMPLES: Final[dict[str, Callable[[], Any]]] = {
    "settings": settings,
    "verify": verify,
    "parity": parity,
    "bench": bench,
    "precision": precision,
    "trajectory": trajectory,
    "bisect": bisect,
    "models": models,
    "environment": environment,
}


def saved(folder: Path, *names: str, **content: Any) -> list[Path]:
    """Files with these samples, or with content of one's own."""
    found = {name: SAMPLES[name]() for name in names} | content
    for name, value in found.items():
        (folder / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
    return [folder / f"{name}.json" for name in found]


def with_strings(value: Any, change: Callable[[str], str]) -> Any:
    """JSON whose strings, but for the keys of tables and the few with a meaning, are changed."""
    if isinstance(value, dict):
        return {
            key: each if key in {"kind", "psnr_db", "result"} else with_strings(each, change)
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [with_strings(each, change) for each in value]
    return change(value) if isinstance(value, str) else value


# --- The page ---------------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """A page as a tree that was closed in order, with what tests ask about."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []  # innermost element, and a text in it
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs), attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, tag
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def having(self, attribute: str) -> Iterator[str]:
        """All values of an attribute."""
        yield from (value for _, found in self.elements if (value := found.get(attribute)) is not None)

    def tags(self, *names: str) -> list[dict[str, str | None]]:
        """The attributes of all elements of these names."""
        return [found for tag, found in self.elements if tag in names]

    @property
    def text(self) -> str:
        """All that is read, in one line."""
        return " ".join(" ".join(text for tag, text in self.texts if tag not in {"style", "title", "desc"}).split())


def is_finite(value: str) -> bool:
    """Whether a length or a place of a chart is a number."""
    return math.isfinite(float(value.removesuffix("%")))
