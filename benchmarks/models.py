"""Diffusers' models, stock and fused, on a GPU: every byte of the output, and the time of a forward.

    python benchmarks/models.py --out h200_models.json

Full width, two blocks of each kind, random weights with outlier channels, bfloat16, batches of one and two. First the
stock model against itself: where that differs, nothing can be said of ours. One record for each model and batch, saved
as it is made. Exits with 1 where a byte differs, a call was not fused or a case could not be measured.

--tiny runs the same with models of a few channels, on a CPU too, where kernels do not run and diffusers adds in another
order: there bytes are reported and not judged.
"""

import argparse
import gc
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from diffusers.utils import logging

from numerics.errors import NumericsError
from numerics.integrations.diffusers import Applied, apply
from numerics.measure import model_trial as trial
from numerics.measure.arms import differing
from numerics.measure.machine import machine, sources
from numerics.measure.model_cases import MODELS, TINY, ModelCase, outputs
from numerics.measure.result import check_writable, write

SEED = 20261130
COMPILED_BACKEND = "native"  # PyTorch chooses, as it does for whoever compiles a stock model
CONTROL = "fast"  # a preset of other bytes: a comparison that does not see it sees nothing


class Run:
    """What is measured, how often, and the records so far."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.cases = TINY if given.tiny else MODELS
        self.given = given
        self.records: list[dict[str, Any]] = []
        self.about = {**machine(), "diffusers": version("diffusers"), "seed": SEED, "sources": sources()}

    def save(self, case: ModelCase, what: str, **values: Any) -> None:
        """Keep a record, write all of them, and print a line."""
        record = {"model": case.model, "case": what, **values, **self.about}
        self.records.append(record)
        write(self.given.out, self.records)
        speed = record.get("stock_over_ours")
        timed = f", {record['stock_ms']:.2f} / {record['ours_ms']:.2f} ms = {speed:.3f}" if speed else ""
        print(f"{record['model']:26} {what}: {record['verdict']}{timed}", flush=True)

    def model(self, case: ModelCase) -> None:
        """Both batches of one model."""
        torch.manual_seed(SEED)
        stock = case.build(self.device)
        fused = trial.twin_of(stock)
        applied = apply(fused)
        for batch in self.given.batch:
            torch.manual_seed(SEED + batch)
            inputs = case.random(stock, batch)
            values = self.settings(applied) | trial.compare(case, stock, fused, inputs)
            if batch == min(self.given.batch):
                values["control"] = self.control(stock, inputs)
            arms = [partial(outputs, each, inputs) for each in (stock, fused)]
            stock_ms, ours_ms, bound_ms = trial.times(
                [*arms, partial(trial.without_ops, fused, inputs, {})], self.given.rounds
            )
            bound = trial.ratio(stock_ms, bound_ms)
            values |= trial.ratio(stock_ms, ours_ms)
            values |= {"ceiling": bound["stock_over_ours"], "ceiling_spread": bound["spread"]}
            values |= {"ceiling_is": trial.CEILING}
            applied.restore()
            values["restored_differing"] = differing(outputs(fused, inputs), outputs(stock, inputs))
            applied = apply(fused)
            found = trial.verdict(values)
            values["verdict"] = found if self.device.type == "cuda" else f"not judged on a CPU ({found})"
            self.save(case, f"batch {batch}, {case.extent}", **values)

    def compiled(self, case: ModelCase) -> None:
        """Under regional compile: repeated blocks, dynamic shapes. Bytes are stated, since Inductor's are its own."""
        torch.manual_seed(SEED)
        stock = case.build(self.device)
        torch.manual_seed(SEED + 1)
        inputs = case.random(stock, 1)
        stock.set_attention_backend(COMPILED_BACKEND)
        eager = outputs(stock, inputs)
        fused, eager_fused = trial.twin_of(stock), trial.twin_of(stock)
        applied = apply(fused)
        apply(eager_fused)
        start = time.perf_counter()
        for model in (stock, fused):
            model.compile_repeated_blocks(fullgraph=True, dynamic=True, backend=self.given.compiler)
        theirs, ours = outputs(stock, inputs), outputs(fused, inputs)
        seconds = time.perf_counter() - start
        kept = [differing(outputs(stock, inputs), theirs), differing(outputs(fused, inputs), ours)]
        common = self.settings(applied) | {
            "attention_backend": COMPILED_BACKEND,
            "compiler": self.given.compiler,
            "compile_seconds": seconds,
            "elements": sum(x.numel() for x in theirs),
            "repeated_differing": max(kept),
            "stock_compiled_from_eager": differing(theirs, eager),
        }
        for what, model, made in (("compiled", fused, ours), ("eager", eager_fused, outputs(eager_fused, inputs))):
            arms = partial(outputs, stock, inputs), partial(outputs, model, inputs)
            self.save(
                case,
                f"batch 1, {case.extent}, {what} beside the compiled stock model",
                **common,
                elements_differing=differing(made, theirs),
                ours_from_eager_stock=differing(made, eager),
                verdict="stated",
                **trial.ratio(*trial.times(arms, self.given.rounds)),
            )

    def control(self, stock: Any, inputs: Any) -> dict[str, Any]:
        """The same comparison with a preset of other bytes."""
        other = trial.twin_of(stock)
        apply(other, CONTROL)
        return {"preset": CONTROL, "elements_differing": differing(outputs(other, inputs), outputs(stock, inputs))}

    @staticmethod
    def settings(applied: Applied) -> dict[str, Any]:
        """The presets in force."""
        modulations = applied.modulations.values()
        return {
            "preset": applied.resolutions[""].label,
            "modulation_preset": next((each.label for each in modulations), None),
            "replaced": len(applied.replaced),
            "kept": dict(applied.kept),
        }

    def attempt(self, case: ModelCase, what: str, measure: Callable[[ModelCase], None]) -> None:
        """Measure; what fails is a record too, and the next model goes on."""
        try:
            measure(case)
        except (RuntimeError, ValueError, TypeError, NumericsError) as error:
            self.save(case, what, verdict="error", error=f"{type(error).__name__}: {error}")
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def main() -> int:
    """Measure what is asked for; 1 where something is not as it must be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", action="append", choices=[*MODELS, "none"], help="only this one; may be repeated")
    parser.add_argument("--batch", action="append", type=int, help="only this one; may be repeated")
    parser.add_argument("--rounds", type=int, default=6, help="ABBA rounds of timing")
    parser.add_argument("--compiled", action="append", choices=[*MODELS, "none"], help="default: flux2")
    parser.add_argument("--compiler", default="inductor", help="backend of torch.compile")
    parser.add_argument("--tiny", action="store_true", help="a few channels; runs on a CPU")
    given = parser.parse_args()
    given.batch = given.batch or [1, 2]
    if not given.tiny and not torch.cuda.is_available():
        parser.error("no CUDA device; --tiny runs on a CPU")
    check_writable(given.out)
    logging.set_verbosity_error()
    run = Run(given)
    for names, what, measure in (
        (given.model or MODELS, "both batches", run.model),
        (given.compiled or ["flux2"], "compiled", run.compiled),
    ):
        for name in names:
            if name != "none":
                run.attempt(run.cases[name], what, measure)
    judged = {"equal", "stated"}
    if run.device.type == "cpu":
        return int(any(record["verdict"] == "error" for record in run.records))
    return int(any(record["verdict"] not in judged for record in run.records))


if __name__ == "__main__":
    sys.exit(main())
