"""Whole runs: 28 steps of flow matching, by hand for each model and through real pipeline objects."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from diffusers import DiffusionPipeline, FlowMatchEulerDiscreteScheduler
from torch import Tensor, nn

import numerics
from numerics.integrations.diffusers import apply
from numerics.measure.model_cases import TINY, ModelCase
from numerics.measure.model_cases import outputs as forward
from numerics.measure.model_inputs import Inputs
from numerics.ops.telemetry import dispatch_counts
from tests.integrations.gpu_chain import stock_as_on_a_gpu
from tests.integrations.test_bytes import same_bytes
from tests.integrations.tiny import inputs_of, made

STEPS = 28
LATENTS = {"z_image": ("x",), "minimax_h3": ("hidden_states", "audio_hidden_states")}
TIMES = {"z_image": "t"}


def steps(tiny: ModelCase, model: Any, inputs: Inputs) -> list[list[Tensor]]:
    """The latents of each step, of a batch of one."""
    names, time = LATENTS.get(tiny.name, ("hidden_states",)), TIMES.get(tiny.name, "timestep")
    schedulers = [FlowMatchEulerDiscreteScheduler() for _ in names]
    for scheduler in schedulers:
        scheduler.set_timesteps(STEPS)
    latents = [torch.stack(x) if isinstance(x, list) else x for x in (inputs[name] for name in names)]
    made_so_far = []
    for t in schedulers[0].timesteps:
        given = [list(x) if isinstance(inputs[name], list) else x for name, x in zip(names, latents, strict=True)]
        times = (t / 1000).to(inputs[time].dtype).expand_as(inputs[time])
        velocities = forward(model, {**inputs, time: times, **dict(zip(names, given, strict=True))})
        latents = [
            stepped(scheduler, velocity.view(-1, *x.shape[1:]) if tiny.name == "z_image" else velocity, t, x)
            for scheduler, velocity, x in zip(schedulers, velocities, latents, strict=True)
        ]
        made_so_far.append(latents)
    return made_so_far


def stepped(scheduler: Any, velocity: Tensor, t: Tensor, x: Tensor) -> Tensor:
    """The scheduler's step. A model of an image's video beside what conditions it predicts the first channels alone."""
    channels = velocity.shape[1]
    out: Tensor = scheduler.step(velocity, t, x[:, :channels], return_dict=False)[0]
    return torch.cat([out, x[:, channels:]], dim=1).to(x.dtype)


def test_28_steps_of_a_flow_matching_loop_keep_every_byte_of_every_latent(tiny: ModelCase) -> None:
    fewest = {name: 1 for name in ("num_layers", "num_single_layers", "n_layers") if name in tiny.config}
    model = made(tiny, **fewest)
    inputs = inputs_of(tiny)
    with apply(model):
        ours = steps(tiny, model, inputs)
    with stock_as_on_a_gpu(model, numerics.resolve("fused_qk_norm_rope", tiny.model).preset):
        stock = steps(tiny, model, inputs)
    assert len(ours) == STEPS
    assert all(same_bytes(x, y) for x, y in zip(ours, stock, strict=True))
    assert not same_bytes(ours[-1], ours[0])
    assert all(bool(torch.isfinite(x).all()) for x in ours[-1])


# --- Pipelines --------------------------------------------------------------------------------------------------------


class TextToImage(DiffusionPipeline):  # type: ignore[misc]  # diffusers is not typed here
    """A pipeline of diffusers without its text encoders, which need another library."""

    def __init__(self, transformer: nn.Module, scheduler: Any) -> None:
        super().__init__()
        self.register_modules(transformer=transformer, scheduler=scheduler)

    @torch.no_grad()
    def __call__(self, inputs: Inputs, num_inference_steps: int) -> Tensor:
        self.scheduler.set_timesteps(num_inference_steps)
        x: Tensor = inputs["hidden_states"]
        for t in self.progress_bar(self.scheduler.timesteps):
            time = (t / 1000).to(x.dtype).expand(len(x))
            velocity = self.transformer(**{**inputs, "hidden_states": x, "timestep": time}, return_dict=False)[0]
            x = self.scheduler.step(velocity, t, x, return_dict=False)[0]
        return x


def test_a_pipeline_makes_the_same_latents_with_its_transformer_fused() -> None:
    tiny = TINY["flux2"]
    pipeline = TextToImage(made(tiny), FlowMatchEulerDiscreteScheduler())
    pipeline.set_progress_bar_config(disable=True)
    inputs = inputs_of(tiny)
    with apply(pipeline) as applied:
        ours = pipeline(inputs, 3)
    assert list(applied.resolutions) == ["transformer"]
    assert str(applied).startswith("transformer: diffusers:flux2 by diffusers_aten")
    with stock_as_on_a_gpu(pipeline.transformer, "diffusers_aten"):
        assert torch.equal(ours.view(torch.int16), pipeline(inputs, 3).view(torch.int16))


def test_flux_pipeline_itself_makes_the_same_latents() -> None:
    pytest.importorskip("transformers")
    from diffusers import FluxPipeline  # needs it

    tiny = TINY["flux"]
    encoders = dict.fromkeys(("vae", "text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2"))
    # Four latent channels in patches of 2 x 2.
    model = made(tiny, in_channels=16)
    pipeline = FluxPipeline(transformer=model, scheduler=FlowMatchEulerDiscreteScheduler(), **encoders)
    pipeline.set_progress_bar_config(disable=True)
    embeds, pooled = torch.randn(1, 5, 24).to(torch.bfloat16), torch.randn(1, 16).to(torch.bfloat16)

    def image() -> Tensor:
        out: Tensor = pipeline(
            prompt_embeds=embeds,
            pooled_prompt_embeds=pooled,
            height=48,
            width=80,
            num_inference_steps=2,
            output_type="latent",
            generator=torch.Generator().manual_seed(0),
        ).images
        return out

    with apply(pipeline):
        ours = image()
    assert sum(dispatch_counts().values()) == 2 * 3
    with stock_as_on_a_gpu(model, "diffusers_aten"):
        assert torch.equal(ours.view(torch.int16), image().view(torch.int16))
