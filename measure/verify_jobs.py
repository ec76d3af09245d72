"""The units of a run, one after the other in this process or shared by several: compiling kernels takes the time."""

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import torch

from numerics.measure.verify import Unit, Verifier
from numerics.measure.verify_subject import Plan, Record

# Those that take longest first, so that no process works alone at the end.
SLOWEST: Final = (
    "rms_norm",
    "indexed_gate_rms_norm_scale_shift",
    "rms_norm_indexed_scale_shift",
    "fused_add_rms_norm",
    "fused_qk_norm_rope",
)
_verifiers: list[Verifier] = []  # of a process that was started for it


@dataclass(frozen=True)
class Work:
    """One unit. `records` waits for them."""

    name: str
    records: Callable[[], list[Record]]


@contextmanager
def started(plan: Plan, jobs: int) -> Iterator[list[Work]]:
    """The work, begun by so many processes if there is more than one, done when its records are asked for otherwise."""
    verifier = Verifier(plan)
    units = verifier.units()
    if jobs == 1:
        yield [Work(unit.name, partial(verifier.run, unit)) for unit in units]
        return
    units.sort(key=lambda unit: SLOWEST.index(unit.op) if unit.op in SLOWEST else len(SLOWEST))
    # A process that was forked cannot use a GPU that its parent has used.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, _start, (_portable(plan),)) as pool:
        yield [Work(unit.name, pool.submit(_run, unit).result) for unit in units]


def _portable(plan: Plan) -> Plan:
    """A plan that pickles: a read-only view of a dict does not."""
    catalog = plan.catalog
    return replace(plan, catalog=replace(catalog, reductions=dict(catalog.reductions), presets=dict(catalog.presets)))


def _start(plan: Plan) -> None:
    torch.set_num_threads(1)
    if plan.device.type == "cuda":
        torch.cuda.set_device(plan.device)
    _verifiers.append(Verifier(plan))


def _run(unit: Unit) -> list[Record]:
    records = _verifiers[0].run(unit)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # for the others
    return records
