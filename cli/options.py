"""The options and arguments that commands share, with the completion of their names and what they may be."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from numerics.errors import ConfigurationError, NumericsError, nearest

if TYPE_CHECKING:
    import torch

# What a name may be is looked up when a shell asks, and not when a command starts.


def completing(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """A completion that offers the names that begin like the word under the cursor."""

    def complete(incomplete: str) -> list[str]:
        try:
            return [name for name in names() if name.startswith(incomplete)]
        except NumericsError:
            return []  # a shell that completes is no place for messages

    return complete


def presets() -> Iterable[str]:
    """Every preset."""
    from numerics.context import configuration

    return configuration().catalog.presets


def orders() -> Iterable[str]:
    """Everything that `explain` explains."""
    from numerics.context import configuration
    from numerics.presets.vocabulary import OPEN_REDUCTION

    catalog = configuration().catalog
    return dict.fromkeys((*catalog.presets, *catalog.reductions, OPEN_REDUCTION))


def model_names() -> Iterable[str]:
    """Every model, and the classes by whose names some are known."""
    from numerics.context import configuration

    catalog = configuration().catalog
    return (*catalog.model_names(), *catalog.classes())


def ops() -> Iterable[str]:
    """Families and ops."""
    from numerics.presets.vocabulary import FAMILIES, OPS

    return dict.fromkeys((*FAMILIES, *OPS))


def kinds() -> Iterable[str]:
    """What `list` lists."""
    from numerics.cli.listing import KINDS

    return KINDS


def several(name: str, text: str, names: Callable[[], Iterable[str]]) -> Any:
    """An option that may be repeated, and completes its names."""
    return typer.Option(metavar=name, help=text, autocompletion=completing(names))


LARGEST_SEED = 2**63 - 1  # that a generator of torch takes

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Config = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Your presets file, instead of the one that NUMERICS_CONFIG names.")
]
Capability = Annotated[
    str | None, typer.Option(metavar="CAPABILITY", help="Such as cuda:9.0; without it the driver is asked.")
]
Op = Annotated[
    str | None, typer.Option(metavar="OP", help="One family, or one of its ops.", autocompletion=completing(ops))
]
Ops = Annotated[list[str] | None, several("OP", "A family, or one op; may be repeated.", ops)]
Seed = Annotated[int, typer.Option(min=0, max=LARGEST_SEED, metavar="N", help="Of the inputs.")]
Saved = Annotated[
    Path | None, typer.Argument(metavar="RESULT", help="A saved result, to look at instead of measuring.")
]
Out = Annotated[Path | None, typer.Option(metavar="FILE", help="Save the result as JSON, as it grows.")]
Plot = Annotated[Path | None, typer.Option(metavar="FILE", help="Draw it: .svg, .png or .pdf; needs the extra plot.")]
VllmLibrary = Annotated[Path | None, typer.Option(metavar="FILE", help="vLLM's compiled ops, if it is not installed.")]


# --- What they may be -------------------------------------------------------------------------------------------------


def use_file(config: Path | None) -> None:
    """Read the user's presets file that --config names, if it does."""
    if config is not None:
        from numerics.context import configure

        configure(config)


def check_known(kind: str, names: Sequence[str] | None, known: Iterable[str]) -> tuple[str, ...]:
    """The names, each once. Raises ConfigurationError for one that is not known."""
    legal = list(known)
    for name in names or ():
        if name not in legal:
            raise ConfigurationError(f"{kind} {name!r}: no such {kind}{nearest(name, legal)}")
    return tuple(dict.fromkeys(names or ()))


def check_saved(options: Mapping[str, Any]) -> None:
    """Raises ConfigurationError for options that say what to measure, where a saved result is looked at."""
    if given := [name for name, value in options.items() if value]:
        raise ConfigurationError(f"{', '.join(given)}: of no use with a saved RESULT, which is not measured again")


def device_of(name: str | None, hint: str = "") -> torch.device:
    """The device that --device names; without it a GPU, if there is one. Raises ConfigurationError where it is not.

    hint: what to do about a GPU that is not there.
    """
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    name = name or ("cuda" if count else "cpu")
    if re.fullmatch(r"cpu|cuda(:\d+)?", name) is None:
        raise ConfigurationError(f"--device {name}: no such device; legal: cuda, cuda:N, cpu")
    device = torch.device(name)
    if name == "cpu":
        return device
    if not count:
        raise ConfigurationError(f"--device {name}: no CUDA device{hint}")
    index = device.index if ":" in name else torch.cuda.current_device()
    if index >= count:
        raise ConfigurationError(f"--device {name}: there are {count} CUDA devices")
    torch.cuda.set_device(index)
    return torch.device("cuda", index)
