"""An accuracy job: may this preset replace the one in use? Green or red for CI, and what to do when it is red.

A reference and a candidate denoise the same noise with the same weights; only the preset differs. The model is small
and its weights are random, so that this runs anywhere; in `denoised` load your own.

    python examples/accuracy_job.py --candidate fast --psnr 60
"""

import argparse
import sys
from pathlib import Path

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, Flux2Transformer2DModel
from diffusers.utils import logging
from torch import Tensor

import numerics
from numerics.integrations.diffusers import apply
from numerics.measure.metrics import compared

SIDE, CHANNELS, TEXT, STEPS = 16, 8, 8, 8
DTYPE = torch.bfloat16


def denoised() -> Tensor:
    """The latent [channels, height, width] after all steps, with the settings in force. `numerics bisect` calls it."""
    logging.set_verbosity_error()  # diffusers warns of casting a model to a dtype
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Flux2Transformer2DModel(
        in_channels=CHANNELS, patch_size=1, num_layers=2, num_single_layers=2, num_attention_heads=2,
        attention_head_dim=128, joint_attention_dim=24, axes_dims_rope=(32,) * 4, guidance_embeds=False,
    )  # fmt: skip
    for name, weight in model.named_parameters():  # those of trained norms are not all 1
        if "norm" in name and weight.ndim == 1:
            weight.data.uniform_(0.5, 2.0)
    latent, text = torch.randn(1, SIDE * SIDE, CHANNELS), torch.randn(1, TEXT, 24)
    image_ids, text_ids = torch.zeros(SIDE, SIDE, 4), torch.zeros(TEXT, 4)
    image_ids[..., 1] += torch.arange(SIDE)[:, None]
    image_ids[..., 2] += torch.arange(SIDE)
    model, latent, text = model.to(device, DTYPE).eval(), latent.to(device, DTYPE), text.to(device, DTYPE)
    scheduler = FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(STEPS)
    with torch.no_grad(), apply(model):
        for timestep in scheduler.timesteps:
            velocity = model(
                hidden_states=latent, encoder_hidden_states=text, timestep=(timestep / 1000).to(device, DTYPE)[None],
                img_ids=image_ids.reshape(-1, 4).to(device), txt_ids=text_ids.to(device), return_dict=False,
            )[0]  # fmt: skip
            latent = scheduler.step(velocity, timestep, latent, return_dict=False)[0].to(DTYPE)
    return latent[0].T.reshape(CHANNELS, SIDE, SIDE)


def main() -> int:
    """The exit code: 0 green, 1 red, 2 bad usage, 5 if the reference does not repeat itself."""
    parser = argparse.ArgumentParser(description="May this preset replace the one in use?")
    parser.add_argument("--reference", default="diffusers_aten", metavar="PRESET")
    parser.add_argument("--candidate", default="fast", metavar="PRESET")
    parser.add_argument("--psnr", type=float, default=40.0, metavar="DB", help="at least")
    parser.add_argument("--ssim", type=float, default=0.95, metavar="X", help="at least")
    parser.add_argument("--max-abs", type=float, default=1.0, metavar="X", help="at most, in any element")
    parser.add_argument(
        "--differing", type=float, default=1.0, metavar="SHARE", help="of the elements, at most; 0: bytes"
    )
    asked = parser.parse_args()
    try:  # a name that is misspelt is not red
        for preset in (asked.reference, asked.candidate):
            numerics.resolve("fused_qk_norm_rope", "diffusers:flux2_klein", preset=preset)
    except numerics.errors.NumericsError as error:
        parser.error(str(error))
    with numerics.use(asked.reference):
        reference, again = denoised(), denoised()
    if not torch.equal(reference.view(torch.int16), again.view(torch.int16)):
        print("not measurable: the reference differs from itself")
        return 5
    with numerics.use(asked.candidate):
        candidate = denoised()
    found = compared(candidate, reference, (candidate.float(), reference.float()))
    share = found["elements_differing"] / found["elements"]
    limits = [
        ("PSNR, dB", float(found["psnr_db"]), ">=", asked.psnr),
        ("SSIM", float(found["ssim"]), ">=", asked.ssim),
        ("largest difference", float(found["max_abs"]), "<=", asked.max_abs),
        ("share that differs", share, "<=", asked.differing),
    ]
    red = [name for name, value, sign, limit in limits if not (value >= limit if sign == ">=" else value <= limit)]
    for name, value, sign, limit in limits:
        print(f"{'red  ' if name in red else 'green'}  {name:<20} {value:10.4g}  {sign} {limit:g}")
    if red:
        print("Which knob does it:")
        print(f"  cd {Path(__file__).parent.resolve()}")
        print(f"  numerics bisect accuracy_job:denoised --from {asked.reference} --to {asked.candidate}")
    return int(bool(red))


if __name__ == "__main__":
    sys.exit(main())
