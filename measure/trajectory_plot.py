"""A trajectory as lines: the PSNR of each preset from step to step."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from numerics.measure.plot import check, figure_class, save
from numerics.measure.trajectory import CONTROL, Record, steps_of

INCHES: Final = (7.0, 4.0)


@dataclass(frozen=True)
class Line:
    """One preset. Steps whose latents are equal have no finite PSNR and no point."""

    label: str
    steps: tuple[int, ...]
    psnr_db: tuple[float, ...]


def lines(records: Sequence[Record]) -> list[Line]:
    """One for each preset; a label says where all latents are equal."""
    found = []
    for preset, steps in steps_of(records).items():
        if preset == CONTROL:
            continue
        points = [(each["step"], float(each["psnr_db"])) for each in steps]
        finite = [(step, value) for step, value in points if math.isfinite(value)]
        equal = not any(each["elements_differing"] for each in steps)
        label = f"{preset} (equal in every step)" if equal else preset
        found.append(Line(label, tuple(step for step, _ in finite), tuple(value for _, value in finite)))
    return found


def draw(records: Sequence[Record], path: Path) -> None:
    """Write the lines to a file. Raises MissingExtraError without matplotlib, ConfigurationError for another ending."""
    check(path)
    figure = figure_class()(figsize=INCHES, layout="constrained")
    axis = figure.subplots()
    for line in lines(records):
        axis.plot(line.steps, line.psnr_db, label=line.label, linewidth=1.5)
    axis.set_xlabel("step")
    axis.set_ylabel("PSNR of the latent, dB")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8)
    save(figure, path)
