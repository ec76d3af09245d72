"""One case from its inputs to its records: arms are compiled, compared, timed in turns and compared again."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import torch

from numerics import ops
from numerics.measure.arms import Arm, copy, ours
from numerics.measure.cases import OPEN, Case
from numerics.measure.clock import SMALL_GRAPH_CALLS, Clock, Graph, Unit
from numerics.measure.inputs import Inputs, hash_of, make
from numerics.measure.machine import command, machine, sources
from numerics.measure.peers import Peer
from numerics.measure.reference import References
from numerics.measure.result import Record, ratio, record, rounded
from numerics.measure.samples import interleave
from numerics.measure.trial import Trial, compare_after, compare_before
from numerics.ops.dispatch import capability_of
from numerics.resolve import resolve

YARD: Final = "yard"  # the copy, or the empty kernel
IN_FORCE: Final = "in force"
Trials = Mapping[str, Trial]


@dataclass(frozen=True)
class Plan:
    """What holds for all cases of a run."""

    peers: Mapping[str, Peer | str]  # by name; text says why one is absent
    asked: tuple[str, ...] = ()  # peers in place of those of each case
    rounds: int = 10
    seed: int = 0


def facts(plan: Plan, arguments: Iterable[str]) -> Record:
    """What is the same in all records of a run. arguments: of the command line."""
    there = {name: peer for name, peer in plan.peers.items() if isinstance(peer, Peer)}
    return {
        **machine(),
        "rounds": plan.rounds,
        "seed": plan.seed,
        "peer_versions": {name: peer.version for name, peer in there.items()},
        "sources": sources(path for peer in there.values() for path in peer.files),
        "command": command(arguments),
    }


def measured(case: Case, plan: Plan, clock: Clock) -> list[Record]:
    """A record for each preset."""
    started = datetime.now(UTC).isoformat(timespec="seconds")
    inputs = make(case, clock.device, plan.seed)
    before = inputs.hash
    mine = {preset or IN_FORCE: _our_trial(inputs, preset) for preset in case.presets or (None,)}
    theirs = {name: _peer_trial(inputs, plan.peers[name]) for name in plan.asked or case.peers}
    _compile(mine, clock, at_once=True)
    _compile(theirs, clock, at_once=False)
    references = References(inputs, plan.peers.get("vllm"))
    everyone = {**{f"ours: {name}": trial for name, trial in mine.items()}, **theirs}
    for trial in everyone.values():
        trial.attempt(compare_before, references)
    times = _host_times if case.clock == "host" else _graph_times
    shared = {
        **times(inputs, everyone, references, plan, clock),
        **_peers(theirs),
        "clock": case.clock,
        "moved_bytes": case.moved_bytes,
        "inputs": before,
        "inputs_changed": hash_of(inputs.tensors) != before,
        "started": started,
    }
    return list(_records(case, mine, shared))


# --- Arms -------------------------------------------------------------------------------------------------------------


def _our_trial(inputs: Inputs, preset: str | None) -> Trial:
    """None stands for the settings in force, which each call then looks up."""

    def prepare(trial: Trial) -> None:
        settings = resolve(inputs.case.op, preset=preset, min_tokens=None if preset is None else 0)
        trial.numerics = settings.bind(capability_of(inputs.device))
        trial.arm = ours(inputs, trial.numerics, given=preset is not None)

    trial = Trial()
    trial.attempt(prepare)
    return trial


def _peer_trial(inputs: Inputs, peer: Peer | str) -> Trial:
    if isinstance(peer, str):
        return Trial(failure=peer)

    def prepare(trial: Trial) -> None:
        trial.arm = peer.arm(inputs)

    trial = Trial()
    trial.attempt(prepare)
    return trial


def _compile(trials: Trials, clock: Clock, *, at_once: bool) -> None:
    calls = {name: trial.arm.call for name, trial in trials.items() if trial.arm}
    for name, error in clock.compile(calls, at_once=at_once).items():
        trials[name].fail(error)


# --- Times ------------------------------------------------------------------------------------------------------------


def _graph_times(
    inputs: Inputs, trials: Trials, references: References, plan: Plan, clock: Clock
) -> dict[str, float | None]:
    small = inputs.case.is_small
    yard = Trial(arm=Arm(clock.launch_empty) if small else copy(inputs))
    everyone = {YARD: yard, **trials}
    graphs: dict[str, Graph] = {}
    eager: dict[str, Unit] = {}

    def capture(trial: Trial, name: str) -> None:
        assert trial.arm is not None
        eager[name] = clock.eager(trial.arm.call)
        graphs[name] = clock.capture(trial.arm.call, SMALL_GRAPH_CALLS if small else None)

    for name, trial in everyone.items():
        trial.attempt(capture, name)
    if yard.failure is not None:
        raise RuntimeError(f"{inputs.case.path}: the yardstick failed: {yard.failure}")
    replays = {name: graph.replay for name, graph in graphs.items()}
    clock.settle(list(replays.values()))
    for kind, units in (("graph", replays), ("eager", {name: eager[name] for name in graphs})):
        for name, samples in interleave(units, plan.rounds).items():
            everyone[name].times[kind] = samples
    for name, trial in trials.items():
        trial.attempt(compare_after, references, graphs.get(name))
    return {"empty_us" if small else "copy_us": yard.time("graph"), "pack_us": _pack_time(inputs, plan, clock)}


def _pack_time(inputs: Inputs, plan: Plan, clock: Clock) -> float | None:
    """The rotation table from cosines and sines, eagerly: a model packs once and reads it in every layer."""
    if "cos" not in inputs.tensors:
        return None
    numerics = resolve(inputs.case.op, preset=OPEN).numerics
    cos, sin = inputs.tensors["cos"], inputs.tensors["sin"]
    unit = clock.eager(lambda: ops.pack_qk_norm_rope_table(cos, sin, dtype=torch.bfloat16, numerics=numerics))
    return interleave({"pack": unit}, plan.rounds)["pack"].median


def _host_times(
    _inputs: Inputs, trials: Trials, references: References, plan: Plan, clock: Clock
) -> dict[str, float | None]:
    units = {name: clock.host(trial.arm.call) for name, trial in trials.items() if trial.arm}
    clock.settle(list(units.values()))
    for name, samples in interleave(units, plan.rounds).items():
        trials[name].times["host"] = samples
    for trial in trials.values():
        trial.attempt(compare_after, references)
    return {}


# --- Records ----------------------------------------------------------------------------------------------------------


def _records(case: Case, trials: Trials, shared: Mapping[str, Any]) -> Iterator[Record]:
    copy_us, empty_us = shared.get("copy_us"), shared.get("empty_us")
    fast = trials[OPEN].time("graph", "host") if OPEN in trials else None
    for preset, trial in trials.items():
        time = trial.time("graph", "host")
        own = {
            "op": case.op,
            "case": case.name,
            "preset": preset if trial.numerics is None else trial.numerics.label,
            "exact": trial.numerics is not None and trial.numerics.numerics.is_exact,
            "refused": trial.failure if trial.refused else None,
            "error": None if trial.refused else trial.failure,
            "not_fused": trial.not_fused,
            "time_us": rounded(time, 3),
            "copy_us": rounded(copy_us, 3),
            "ratio_to_copy": ratio(time, copy_us),
            "empty_us": rounded(empty_us, 3),
            "ratio_to_empty": ratio(time, empty_us),
            "ratio_to_fast": ratio(time, fast),
            "eager_us": rounded(trial.time("eager"), 3),
            "pack_us": rounded(shared.get("pack_us"), 3),
            "reference": trial.reference,
            "elements": trial.elements,
            "elements_differing": trial.elements_differing,
            "differing": trial.differing or None,
            "times": trial.samples(),
            "fingerprint": None if trial.numerics is None else trial.numerics.fingerprint,
        }
        yield record(**{**shared, **own})


def _peers(trials: Trials) -> dict[str, Any]:
    timed = {name: trial for name, trial in trials.items() if trial.times}
    details = {
        name: {
            "eager_us": rounded(trial.time("eager"), 3),
            "elements_differing": trial.elements_differing,
            "differing": trial.differing,
            "times": trial.samples(),
        }
        for name, trial in timed.items()
    }
    return {
        "peer_us": {name: rounded(trial.time("graph", "host"), 3) for name, trial in timed.items()},
        "peers": details,
        "absent": {name: trial.failure for name, trial in trials.items() if trial.failure},
    }
