"""The options and arguments that commands share, with the completion of their names."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import typer

from numerics.errors import NumericsError

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
