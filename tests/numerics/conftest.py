"""Settings from every source, for tests of how they are resolved."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

import numerics
from numerics.environment import VARIABLES
from numerics.layers import knob_text
from numerics.presets import file as presets_file
from numerics.presets.vocabulary import KNOBS
from numerics.resolution import Resolution
from numerics.resolve import resolve

FAMILY: Final = "fused_qk_norm_rope"
MODEL: Final = "flux2"

# A packaged file of our own, so that each layer can be set or left out.
DECLARED: Final = """
[reductions.alpha]
summary = "rows of 128"
width = 128
vector = 8
threads = 16
lanes = "adjacent"
mean = "divide"

[reductions.alpha_again]
summary = "the same bits under another name"
width = 128
vector = 8
threads = 16
lanes = "adjacent"
mean = "divide"

[reductions.beta]
summary = "any row"
vector = "gcd8"
threads = "row/vector"
lanes = "halves"
mean = "multiply"

[presets.fast]
summary = "order left open"
rms_norm_reduction = "triton"
enable_fp_fusion = true
rounding_points = ["qk_norm", "residual"]

[presets.exact]
summary = "a claim with conditions"
reference = { provider = "vllm_c", versions = ">=0.20,<0.34" }
rms_norm_reduction = "alpha"
enable_fp_fusion = false
rounding_points = ["qk_norm"]
[presets.exact.requires]
dtype = ["bfloat16", "float16"]
rope_table_dtype = "activation"
backend = "cuda"
env = { VLLM_BATCH_INVARIANT = "0" }

[presets.other]
summary = "declared, no claim"
rms_norm_reduction = "beta"
enable_fp_fusion = false
rounding_points = []
rope_rotation = "complex"
"""


@dataclass
class Sources:
    """What each source says about the family and the model; each a dict of preset, knobs and min_tokens."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    said: dict[str, dict[str, Any]] = field(default_factory=dict)
    models: str = f"[models.known]\n{FAMILY} = 'fast'\n"  # more TOML for the packaged file
    fresh: Iterator[int] = field(default_factory=itertools.count)

    def resolve(self, model: str | None = MODEL, **arguments: Any) -> Resolution:
        """Settings of the family, with what the sources say."""
        with self.applied():
            return resolve(FAMILY, model, **self.said.get("call", {}), **arguments)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Files, environment and context as the sources say."""
        folder = self.folder / str(next(self.fresh))  # a new path, so that nothing read before can stand for it
        folder.mkdir()
        package = {"preset": "fast", "min_tokens": 0} | self.said.get("package", {})
        packaged = folder / "presets.toml"
        packaged.write_text(DECLARED + self.models + self._tables(package, self.said.get("package model")))
        self.monkeypatch.setattr(presets_file, "PACKAGED", packaged)
        user = folder / "my.toml"
        user.write_text(self._tables(self.said.get("user"), self.said.get("user model")))
        names = VARIABLES["fused_qk_norm_rope"]
        choice = self.said.get("environment", {})
        with ExitStack() as stack, self.monkeypatch.context() as patch:
            parts = [choice["preset"]] if "preset" in choice else []
            parts += [knob_text(knob, choice[knob]) for knob in KNOBS if knob in choice]
            if parts:
                patch.setenv(str(names.numerics), ",".join(parts))
            if "min_tokens" in choice:
                patch.setenv(str(names.min_tokens), str(choice["min_tokens"]))
            numerics.configure(user)
            if "context" in self.said:
                stack.enter_context(numerics.use(**self.said["context"]))
            yield

    def _tables(self, of_op: dict[str, Any] | None, of_model: dict[str, Any] | None) -> str:
        text = ""
        for key, choice in ((f"ops.{FAMILY}", of_op), (f"models.{MODEL}.{FAMILY}", of_model)):
            if choice:
                text += f"[{key}]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in choice.items())
        # The model is declared even where no layer says anything about it.
        return text + ("" if of_model else f"[models.{MODEL}]\n")


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sources:
    return Sources(tmp_path, monkeypatch)
