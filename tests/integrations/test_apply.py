"""What `apply` replaces, says and undoes."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers.models.transformers import transformer_flux2

import numerics
from numerics.errors import ConfigurationError, MissingExtraError
from numerics.integrations import diffusers as integration
from numerics.integrations import diffusers_models, diffusers_sources
from numerics.integrations.diffusers import apply
from numerics.integrations.supported import SUPPORTED
from numerics.measure.model_cases import TINY, ModelCase
from numerics.measure.model_cases import outputs as forward
from numerics.measure.model_inputs import Inputs
from numerics.ops.telemetry import dispatch_counts, reset_dispatch_counts
from numerics.presets.file import load
from tests.integrations.test_bytes import same_bytes
from tests.integrations.tiny import inputs_of, made


def parts(model: Any) -> dict[str, Any]:
    """What may be replaced: processors, and forwards where an instance has one of its own."""
    return {
        name: each.processor if hasattr(each, "set_processor") else vars(each).get("forward")
        for name, each in model.named_modules()
    }


def test_default_preset_is_the_one_of_the_models_entry(tiny: ModelCase, model: Any) -> None:
    with apply(model) as applied:
        found = applied.resolutions[""]
        assert found.model == tiny.model
        assert found.sources["preset"].source == "package model"
        assert f'models."{tiny.model}"' in str(applied)
        assert found.reference is not None
        assert found.reference.provider.startswith("diffusers_")


def test_restore_puts_the_very_same_parts_back(tiny: ModelCase, model: Any) -> None:
    before = parts(model)
    applied = apply(model)
    after = parts(model)
    assert {name for name in after if after[name] is not before[name]} == set(applied.replaced)
    assert applied.restore() == ()
    assert applied.restore() == ()
    assert all(now is before[name] for name, now in parts(model).items())


def test_what_was_restored_is_not_entered_again(flux2: Any) -> None:
    applied = apply(flux2)
    applied.restore()
    with pytest.raises(ConfigurationError, match="call apply"), applied:
        pass


def test_an_error_while_replacing_leaves_nothing_replaced(flux2: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: Any) -> None:
        raise RuntimeError("mine")

    before = parts(flux2)
    monkeypatch.setattr(flux2.single_transformer_blocks[0].attn, "set_processor", fails)
    with pytest.raises(RuntimeError, match="mine"):
        apply(flux2)
    assert parts(flux2) == before


@pytest.mark.parametrize("name", ["flux2", "minimax_h3"])
def test_a_module_that_stands_in_two_places_is_replaced_once(name: str) -> None:
    model = made(TINY[name])
    block = model.transformer_blocks[0]
    block.attn = torch.compile(block.attn, backend="eager")
    before = parts(model)
    applied = apply(SimpleNamespace(components={"transformer": model, "transformer_2": model}))
    assert not [path for path in applied.replaced if "_orig_mod" in path or "transformer_2" in path]
    assert "transformer.transformer_blocks.0.attn" in applied.replaced
    assert applied.restore() == ()
    assert parts(model) == before


def test_an_error_inside_restores_too(flux2: Any) -> None:
    before = parts(flux2)
    with pytest.raises(RuntimeError, match="mine"), apply(flux2):
        raise RuntimeError("mine")
    assert parts(flux2) == before


def test_restore_leaves_what_something_else_installed_since(flux2: Any) -> None:
    applied, other = apply(flux2), transformer_flux2.Flux2KVAttnProcessor()
    attention = flux2.transformer_blocks[0].attn
    stock = attention.processor.stock
    attention.set_processor(other)
    assert applied.restore() == ("transformer_blocks.0.attn",)
    assert attention.processor is other
    attention.set_processor(stock)


def test_what_has_no_fused_form_is_kept_and_named(flux2: Any) -> None:
    attention = flux2.transformer_blocks[0].attn
    stock, other = attention.processor, transformer_flux2.Flux2KVAttnProcessor()
    attention.set_processor(other)
    with apply(flux2) as applied:
        assert attention.processor is other
        assert "Flux2KVAttnProcessor" in applied.kept["transformer_blocks.0.attn"]
        assert "transformer_blocks.0.attn kept: " in str(applied)
        assert len(applied.replaced) == 2
    attention.set_processor(stock)


def test_the_refiner_of_hunyuan_video_is_kept() -> None:
    with apply(TINY["hunyuan_video_15"].build()) as applied:
        assert list(applied.kept) == ["context_embedder.token_refiner.refiner_blocks.0.attn"]


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (torch.nn.LayerNorm(32), "norm_k is a LayerNorm"),
        (torch.nn.RMSNorm(32, eps=1e-3), "differ in eps"),
        (torch.nn.RMSNorm(32), "no eps of its own"),
        (None, "has no norm_k"),
    ],
)
def test_attention_with_another_norm_is_kept(flux2: Any, other: Any, reason: str) -> None:
    attention = flux2.single_transformer_blocks[1].attn
    norm = attention.norm_k
    attention.norm_k = other
    with apply(flux2) as applied:
        assert reason in applied.kept["single_transformer_blocks.1.attn"]
    attention.norm_k = norm


def test_zero_replacements_are_an_error_that_says_why(flux2: Any) -> None:
    with apply(flux2), pytest.raises(ConfigurationError, match=r"nothing was replaced: .* is fused already"):
        apply(flux2)


def test_a_source_that_is_not_the_known_one_is_kept(flux2: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diffusers_sources, "KNOWN", {"Flux2AttnProcessor": {"another"}})
    with pytest.raises(ConfigurationError, match=r"Flux2AttnProcessor or what it calls is written otherwise"):
        apply(flux2)


def test_digests_follow_the_code_and_not_its_comments() -> None:
    assert all(
        diffusers_sources.why_unknown(getattr(diffusers_models, name)) is None
        for each in SUPPORTED.values()
        for name in each.processors
    )
    assert diffusers_sources.digest((_commented,)) != ""
    assert diffusers_sources.digest((_commented,)) != diffusers_sources.digest((parts,))


def _commented() -> int:
    """Say it."""
    return 1  # one


@pytest.mark.parametrize(
    "given", [torch.nn.Linear(2, 2), 3, SimpleNamespace(components={"vae": torch.nn.Linear(2, 2)})]
)
def test_something_unsupported_is_refused_by_name(given: Any) -> None:
    with pytest.raises(ConfigurationError, match=type(given).__name__):
        apply(given)


def test_each_supported_transformer_of_a_pipeline_is_served(flux2: Any) -> None:
    pipeline = SimpleNamespace(components={"transformer": flux2, "vae": torch.nn.Linear(2, 2), "tokenizer": None})
    with apply(pipeline) as applied:
        assert list(applied.resolutions) == ["transformer"]
        assert "transformer.transformer_blocks.0.attn" in applied.replaced


def test_an_unknown_preset_or_model_is_refused_before_anything_is_replaced(flux2: Any) -> None:
    before = parts(flux2)
    with pytest.raises(ConfigurationError, match="nearest: diffusers_aten"):
        apply(flux2, "diffusers_atem")
    with pytest.raises(ConfigurationError, match="nearest: diffusers:flux2"):
        apply(flux2, model="diffusers:flux22")
    assert parts(flux2) == before


def test_a_models_entry_of_the_users_file_holds(tiny: ModelCase, model: Any, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(f'[models."{tiny.model}"]\nfused_qk_norm_rope = "flashinfer"\n')
    numerics.configure(file)
    with apply(model) as applied:
        assert applied.resolutions[""].preset == "flashinfer"
        assert applied.resolutions[""].sources["preset"].source == "user model"


def test_a_preset_with_a_table_in_the_activation_dtype_gets_one(flux2: Any, flux2_inputs: Inputs) -> None:
    with apply(flux2, "vllm_cuda"):
        assert torch.isfinite(forward(flux2, flux2_inputs)[0]).all()


def test_models_named_by_the_supported_classes_have_entries() -> None:
    named = {name for each in SUPPORTED.values() for name in each.models}
    assert named <= set(load().model_names())


@pytest.mark.parametrize("name", ["flux2", "minimax_h3"])
def test_a_fused_model_copies_and_pickles(name: str) -> None:
    model, inputs = made(TINY[name]), inputs_of(TINY[name])
    with apply(model):
        ours = forward(model, inputs)
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    for each in copies:
        reset_dispatch_counts()
        assert same_bytes(forward(each, inputs), ours)
        assert sum(dispatch_counts().values()) == sum(TINY[name].calls(each.config).values())
        for block in each.transformer_blocks if name == "minimax_h3" else ():
            assert block.forward.args[0] is block


def test_a_missing_or_older_diffusers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    monkeypatch.setattr(metadata, "version", lambda _: "0.41.0")
    with pytest.raises(ConfigurationError, match=r"diffusers 0\.41\.0: legal: 0\.42 or newer"):
        apply(None)
    monkeypatch.setattr(metadata, "version", lambda _: "1.0rc1")
    with pytest.raises(ConfigurationError, match="got NoneType; legal: a diffusers model or pipeline"):
        apply(None)

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(MissingExtraError, match=r"omni-numerics\[diffusers\]"):
        integration.apply(None)
