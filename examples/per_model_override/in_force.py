"""Which settings hold for which model with `my.toml`, and who set each value.

python examples/per_model_override/in_force.py
"""

from pathlib import Path

import numerics

OP = "fused_qk_norm_rope"
MODELS = ("diffusers:flux2", "Flux2Transformer2DModel", "diffusers:flux", "flux2", "MyTransformer")


def main() -> None:
    """Print them."""
    numerics.configure(Path(__file__).with_name("my.toml"))  # or NUMERICS_CONFIG, or --config
    for model in MODELS:
        print(model)
        show(numerics.resolve(OP, model))
    print("diffusers:flux2, inside of numerics.use")
    with numerics.use("vllm_cuda"):  # stronger than any file
        show(numerics.resolve(OP, "diffusers:flux2"))


def show(found: numerics.Resolution) -> None:
    """One line for the preset in force, and one for each that it beats."""
    winner, *beaten = found.sources["preset"].chain
    print(f"    {found.model}: {found.label}, from {found.min_tokens} tokens, by {winner.source} ({winner.location})")
    for each in beaten:
        print(f"        instead of {each.value}, by {each.source} ({each.location})")
    for pattern, there in found.when:
        print(f"        on {pattern}: {there.label}")


if __name__ == "__main__":
    main()
