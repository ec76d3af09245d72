"""`numerics trajectory`: presets driven through all layers and steps of a diffusion, beside the unfused chain."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from numerics.cli.options import (
    LARGEST_SEED,
    Config,
    Json,
    Out,
    Plot,
    VllmLibrary,
    check_known,
    device_of,
    ops,
    presets,
    several,
    use_file,
)
from numerics.cli.render import DIFFERENT, heading, indented, print_json, print_page, table, with_progress
from numerics.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from numerics.measure.trajectory import Record
    from numerics.presets.vocabulary import Family

SHOWN: Final = (1, 10, 25, 40, 50)  # steps of the table, and the last
SMALL: Final = "--steps 2 --layers 2 --tokens 36 --width 256"


def trajectory(
    preset: Annotated[
        list[str] | None,
        several("PRESET", "May be repeated; vllm_cuda, bf16_affine and fast without it.", presets),
    ] = None,
    op: Annotated[
        list[str] | None,
        several("OP", "A family or op that differs as well; without it only modulation does.", ops),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, metavar="N", help="Of the flow-matching schedule.")] = 50,
    layers: Annotated[int, typer.Option(min=1, metavar="N", help="DiT blocks.")] = 50,
    tokens: Annotated[int, typer.Option(min=1, metavar="N", help="Patches of the latent.")] = 1536,
    width: Annotated[int, typer.Option(min=1, metavar="N", help="Elements of a row.")] = 5376,
    seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED, metavar="N", help="Of weights and start latent.")] = 0,
    device: Annotated[str, typer.Option(metavar="DEVICE", help=f"cuda or cpu; on a CPU: {SMALL}.")] = "cuda",
    vllm_library: VllmLibrary = None,
    out: Out = None,
    plot: Plot = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Presets through a whole diffusion, beside the chain.

    A stack of DiT blocks of MiniMax-H3's geometry, with random weights, denoises a random latent. Each step's latent is
    compared with that of vLLM's norm and PyTorch's affine, or of an eager norm where vLLM's ops are not there.
    Exit 1 if a preset that claims that chain differs from it, or the chain from itself.
    """
    use_file(config)
    names = check_known("preset", preset, presets())
    try:
        from numerics.measure import plot as drawing
        from numerics.measure import result
        from numerics.measure.dit import Geometry
        from numerics.measure.trajectory import Trajectory, is_wrong
        from numerics.measure.trajectory_arms import PRESETS, Plan
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"trajectory computes with {error.name}, which is not installed") from None
    if plot is not None:
        drawing.check(plot)
    plan = Plan(Geometry(layers, tokens, width), steps, names or PRESETS, _families(op), seed)
    where = device_of(device, f"; on a CPU: --device cpu {SMALL}")
    if out is not None:
        result.write(out, [])  # where that fails, it fails before the work
    run = Trajectory(plan, where, vllm_library)
    found = [run.take(turn) for turn in with_progress(run.turns, lambda turn: f"{turn[0]}, step {turn[1]}")]
    records = [run.header(sys.argv[1:]), *(each for each in found if each is not None)]
    if out is not None:
        result.write(out, records)
    if plot is not None:
        from numerics.measure.trajectory_plot import draw

        draw(records, plot)
    if as_json:
        print_json(records)
    else:
        print_page(*page(records))
    if any(map(is_wrong, records)):
        raise typer.Exit(DIFFERENT)


def _families(names: Sequence[str] | None) -> tuple[Family, ...]:
    """Modulation, and those of the ops that were named."""
    from numerics.layers import family_of

    return tuple(dict.fromkeys(("fused_modulation", *map(family_of, names or ()))))


# --- As a page --------------------------------------------------------------------------------------------------------


def page(records: Sequence[Record]) -> Iterator[RenderableType]:
    """PSNR by step, what the last latents differ in, whether the chain repeats itself, and what was called."""
    from numerics.measure.trajectory import CONTROL, steps_of

    header, by_preset = records[0], steps_of(records)
    control = by_preset.pop(CONTROL)
    shown = [at for at in range(1, header["steps"] + 1) if at in (*SHOWN, header["steps"])]
    yield heading("PSNR of the latent, dB", f": beside {header['reference']}")
    rows = [(f"  step {at}", *(_db(steps[at - 1]["psnr_db"]) for steps in by_preset.values())) for at in shown]
    yield table(["", *by_preset], rows, whole=[""], right=list(by_preset))
    yield ""
    yield heading(f"After step {header['steps']}")
    columns = ["  preset", "differ", "max abs", "max ULP", "bias", "SSIM"]
    yield table(columns, (_last(name, steps[-1]) for name, steps in by_preset.items()), right=columns[1:])
    yield ""
    yield from _verdict(by_preset, control)
    yield ""
    sizes = f"{header['layers']} layers, {header['steps']} steps, {header['tokens']} tokens x {header['width']}"
    yield heading("Calls", f" in each arm, {sizes}")
    yield from _calls(header)


def _last(name: str, each: Mapping[str, Any]) -> tuple[str, ...]:
    share = each["elements_differing"] / each["elements"]
    ssim = "-" if each["ssim"] is None else f"{float(each['ssim']):.6f}"
    numbers = f"{float(each['max_abs']):.3g}", str(each["max_ulp"]), f"{float(each['bias']):+.2e}"
    return f"  {name}", f"{share:.2%}" if each["elements_differing"] else "0", *numbers, ssim


def _verdict(by_preset: Mapping[str, Sequence[Record]], control: Sequence[Record]) -> Iterator[RenderableType]:
    if at := _first_difference(control):
        yield heading("Not reproducible", f": the chain run twice differs from step {at} on")
    else:
        yield f"The chain run twice: 0 of {control[-1]['elements']} elements differ in each of {len(control)} steps"
    for name, steps in by_preset.items():
        if not steps[0]["claims_reference"]:
            continue
        if at := _first_difference(steps):
            yield heading("Differs", f": {name} claims these bytes, and differs from step {at} on")
        else:
            yield f"{name} claims these bytes: equal in each of {len(steps)} steps"


def _first_difference(steps: Sequence[Record]) -> int | None:
    return next((each["step"] for each in steps if each["elements_differing"]), None)


def _calls(header: Record) -> Iterator[RenderableType]:
    """By op: calls of an arm, and where the kernel did not run."""
    for op, count in header["calls"]["reference"].items():
        reasons: dict[str, list[str]] = {}
        for name, found in header["not_fused"].items():
            if op in found:
                reasons.setdefault(found[op], []).append(name)
        notes = "".join(f"; not fused in {', '.join(names)}: {why}" for why, names in reasons.items())
        yield indented(f"{count} {op}{notes}")


def _db(value: float | str) -> str:
    return "inf" if value == "inf" else f"{float(value):.2f}"
