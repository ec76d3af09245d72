"""A stock diffusers pipeline, with and without fused attention: the same image, and how many calls were fused.

Weights are random, so that this runs anywhere. Instead of `pipeline` load your own, and pass `prompt` instead of
`prompt_embeds`.

    python examples/text_to_image.py --out images/
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLFlux2, FlowMatchEulerDiscreteScheduler, Flux2Pipeline, Flux2Transformer2DModel
from diffusers.utils import logging
from torch import Tensor

from numerics.integrations.diffusers import apply
from numerics.ops import dispatch_counts, reset_dispatch_counts

HEADS, HEAD_DIM, TEXT_FEATURES, CHANNELS = 4, 32, 64, 4  # of FLUX.2 dev: 48, 128, 15360, 32
DTYPE = torch.bfloat16


def pipeline(device: str) -> Any:
    """Flux.2 at tiny size. It has no text encoder; the embeddings of a prompt are random as well."""
    torch.manual_seed(0)
    transformer = Flux2Transformer2DModel(
        in_channels=4 * CHANNELS,
        num_layers=2,
        num_single_layers=2,
        num_attention_heads=HEADS,
        attention_head_dim=HEAD_DIM,
        joint_attention_dim=TEXT_FEATURES,
        axes_dims_rope=(8, 8, 8, 8),
    )
    vae = AutoencoderKLFlux2(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(16, 32),
        latent_channels=CHANNELS,
        norm_num_groups=8,
    )
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    made = Flux2Pipeline(scheduler=scheduler, vae=vae, text_encoder=None, tokenizer=None, transformer=transformer)
    made.set_progress_bar_config(disable=True)
    return made.to(device, DTYPE)


def generate(pipe: Any, steps: int, pixels: int) -> Tensor:
    """[3, height, width] between 0 and 1. The noise is drawn on the CPU, so that every device starts from the same."""
    text = torch.randn(1, 16, TEXT_FEATURES, generator=torch.Generator().manual_seed(1)).to(pipe.device, DTYPE)
    noise = torch.Generator().manual_seed(2)
    wanted = {"height": pixels, "width": pixels, "num_inference_steps": steps, "output_type": "pt"}
    return pipe(prompt_embeds=text, generator=noise, **wanted).images[0]  # type: ignore[no-any-return]


def differing(a: Tensor, b: Tensor) -> int:
    """How many values differ in a bit."""
    return int((a.view(torch.int16) != b.view(torch.int16)).sum())


def main() -> int:
    """The exit code: 1 on a GPU if a bit of the image differs, 5 if the stock pipeline does not repeat itself."""
    parser = argparse.ArgumentParser(description="A stock diffusers pipeline, with and without fused attention.")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--pixels", type=int, default=128)
    parser.add_argument("--preset", help="another preset than the one that reproduces this model's own chain")
    parser.add_argument("--out", type=Path, default=Path(), metavar="FOLDER")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)  # first, so that nothing is computed in vain

    logging.set_verbosity_error()  # diffusers warns of casting a model to a dtype
    pipe = pipeline(asked.device)
    stock, again = (generate(pipe, asked.steps, asked.pixels) for _ in range(2))
    if differing(stock, again):
        print("The stock pipeline differs from itself, so nothing can be said about bytes.")
        return 5
    reset_dispatch_counts()
    with apply(pipe, asked.preset) as applied:
        print(applied)
        ours = generate(pipe, asked.steps, asked.pixels)
    for way, calls in dispatch_counts().items():
        print(f"{way.op}: {calls} calls " + ("fused" if way.fused else f"by the reference: {way.reason}"))

    for name, image in (("stock", stock), ("fused", ours)):
        pixels = pipe.image_processor.pt_to_numpy(image[None].float())
        pipe.image_processor.numpy_to_pil(pixels)[0].save(asked.out / f"{name}.png")
    found, largest = differing(stock, ours), (stock.float() - ours.float()).abs().max().item()
    print(f"{found} of {stock.numel()} values of the image differ, by at most {largest:.4g}; both are in {asked.out}")
    if found and asked.device == "cpu":
        print("The preset reproduces what this chain computes on a GPU; on a CPU PyTorch adds in another order.")
    return int(found > 0 and asked.device != "cpu" and asked.preset is None)


if __name__ == "__main__":
    sys.exit(main())
