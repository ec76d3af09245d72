"""Planted differences are found, alone, in pairs, and together; and nothing is claimed that noise could explain."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from numerics.errors import ConfigurationError
from numerics.measure.bisect import Bisection, Question
from numerics.measure.bisect_arms import Arms, apart
from numerics.measure.bisect_search import searched
from numerics.measure.bisect_settings import atoms_of, of_file
from numerics.measure.bisect_target import Target

QK: Final = "fused_qk_norm_rope"
MODULATION: Final = "fused_modulation"
NORM: Final = "fused_rms_norm"
FAMILIES: Final = (QK, MODULATION, NORM)
POINTS: Final = {
    QK: ("normalized", "qk_norm", "rope_product"),
    MODULATION: ("gate_product", "residual", "normalized", "norm", "one_plus_scale", "scaled"),
}
# Two orders that differ in the mean alone, and one that differs in the additions.
DECLARED: Final = """
[reductions.divided]
summary = "divided"
vector = "gcd8"
threads = "row/vector"
lanes = "adjacent"
mean = "divide"

[reductions.multiplied]
summary = "multiplied"
vector = "gcd8"
threads = "row/vector"
lanes = "adjacent"
mean = "multiply"

[reductions.halved]
summary = "halved"
vector = "gcd8"
threads = "row/vector"
lanes = "halves"
mean = "divide"

[presets.base]
summary = "of the tests"
rms_norm_reduction = "divided"
enable_fp_fusion = false
rounding_points = []
"""
Settings = dict[str, dict[str, Any]]  # of each family of one model


@pytest.fixture(autouse=True)
def _targets(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    monkeypatch.syspath_prepend(str(root / "tests" / "measure"))


class Searches:
    """Runs a search between two settings of the model `minimax_h3`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.question: Any = None
        self.bisection: Any = None

    def __call__(self, target: str | Target, a: Settings, b: Settings, **options: Any) -> dict[str, Any]:
        given = target if isinstance(target, Target) else Target(f"bisect_functions:{target}", in_process=True)
        left = of_file(str(self.write("a.toml", a)), None)
        right = apart(left, of_file(str(self.write("b.toml", b)), None))
        self.question = Question(given, Arms(left, right, atoms_of(left, right)), **options)
        self.bisection = Bisection(self.question, self.folder / "kept")
        return searched(self.bisection)

    def write(self, name: str, settings: Settings) -> Path:
        lines = [DECLARED, "[models.minimax_h3]"]
        for family in FAMILIES:
            fields = {"preset": "base", **settings.get(family, {})}
            written = ", ".join(f"{key} = {_toml(value)}" for key, value in fields.items())
            lines.append(f"{family} = {{ {written} }}")
        path = self.folder / name
        path.write_text("\n".join(lines))
        return path

    def names(self, verdict: dict[str, Any], key: str = "smallest") -> set[tuple[str, str]]:
        atoms = [self.question.arms.atoms[index] for index in verdict[key]]
        assert all(atom.model == "minimax_h3" for atom in atoms)
        return {(atom.op, atom.what) for atom in atoms}

    def arm(self, op: str, what: str) -> dict[str, Any]:
        """The arm in which one difference is turned."""
        atoms = self.question.arms.atoms
        index = next(i for i, atom in enumerate(atoms) if (atom.op, atom.model, atom.what) == (op, "minimax_h3", what))
        (found,) = [arm for arm in self.bisection.arms if arm["turned"] == [index] and arm["run"] == 1]
        return dict(found)


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)


@pytest.fixture
def search(tmp_path: Path) -> Searches:
    return Searches(tmp_path)


# --- Each alone -------------------------------------------------------------------------------------------------------

PLANTED: Final = [
    ("qk", QK, "rms_norm_reduction", "divided", "halved"),
    ("odd", NORM, "rms_norm_reduction", "divided", "multiplied"),
    ("contraction", QK, "enable_fp_fusion", False, True),
    ("qk", QK, "rope_rotation", "separate", "complex"),
    ("threshold", QK, "min_tokens", 0, 1024),
    *(
        (target, family, f"rounding point {point}", [], [point])
        for target, family in (("qk", QK), ("modulation", MODULATION))
        for point in POINTS[family]
    ),
]


@pytest.mark.parametrize(("target", "family", "what", "a", "b"), PLANTED)
def test_a_planted_difference_is_the_smallest_set(
    search: Searches, target: str, family: str, what: str, a: Any, b: Any
) -> None:
    knob = "rounding_points" if what.startswith("rounding") else what
    # Decoys: other families of the same model differ in several knobs, and the target does not use them.
    decoys = {
        each: {"enable_fp_fusion": True, "rms_norm_reduction": "halved", "rounding_points": [*POINTS.get(each, ())]}
        for each in FAMILIES
        if each != family
    }
    verdict = search(target, {family: {knob: a}}, {**decoys, family: {knob: b}})
    assert (verdict["result"], verdict["smaller_without_verdict"]) == ("explained", 0)
    assert search.names(verdict) == {(family, what)}
    assert verdict["others"] == verdict["unexpected"] == []


@pytest.mark.parametrize(
    ("target", "points"),
    [("qk", ["normalized"]), ("modulation", ["gate_product", "norm"])],
)
def test_a_removed_point_is_found_like_an_added_one(search: Searches, target: str, points: list[str]) -> None:
    family = QK if target == "qk" else MODULATION
    verdict = search(target, {family: {"rounding_points": points}}, {family: {"rounding_points": []}})
    assert search.names(verdict) == {(family, f"rounding point {point}") for point in points}


# --- Pairs and more ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "a", "b", "pair"),
    [
        (
            "qk",
            {},
            {QK: {"rounding_points": ["normalized", "rope_product"]}},
            {(QK, "rounding point normalized"), (QK, "rounding point rope_product")},
        ),
        (
            "qk",
            {},
            {QK: {"rms_norm_reduction": "halved", "rounding_points": ["rope_product"], "min_tokens": 9}},
            {(QK, "rms_norm_reduction"), (QK, "rounding point rope_product")},
        ),
        (
            "qk",
            {},
            {QK: {"rms_norm_reduction": "halved", "rope_rotation": "complex", "enable_fp_fusion": True}},
            {(QK, "rms_norm_reduction"), (QK, "rope_rotation")},
        ),
        (
            "modulation",
            {MODULATION: {"rounding_points": ["scaled"]}},
            {MODULATION: {"rounding_points": ["one_plus_scale"], "enable_fp_fusion": True}},
            {(MODULATION, "rounding point scaled"), (MODULATION, "rounding point one_plus_scale")},
        ),
    ],
)
def test_a_planted_pair_is_the_smallest_set(
    search: Searches, target: str, a: Settings, b: Settings, pair: set[tuple[str, str]]
) -> None:
    verdict = search(target, a, b)
    assert verdict["result"] == "explained"
    assert search.names(verdict) == pair


def test_a_pair_that_acts_only_together_is_found_among_decoys(search: Searches) -> None:
    b: Settings = {
        QK: {"enable_fp_fusion": True, "rope_rotation": "complex", "rounding_points": ["qk_norm", "normalized"]},
        MODULATION: {"rounding_points": ["norm", "scaled", "residual"], "rms_norm_reduction": "halved"},
    }
    verdict = search("only_together", {}, b)
    assert search.names(verdict) == {(QK, "enable_fp_fusion"), (MODULATION, "rounding point norm")}
    assert all(arm["from_a"]["elements_differing"] == 0 for arm in search.bisection.arms if len(arm["turned"]) == 1)


def test_more_than_a_pair_is_found_once_every_pair_was_tried(search: Searches) -> None:
    b: Settings = {
        QK: {"enable_fp_fusion": True, "rope_rotation": "complex"},
        MODULATION: {"rounding_points": ["norm", "scaled"]},
    }
    verdict = search("three", {}, b)
    assert search.names(verdict) == {
        (QK, "enable_fp_fusion"),
        (MODULATION, "rounding point norm"),
        (MODULATION, "rounding point scaled"),
    }
    assert verdict["smaller_without_verdict"] == 0
    assert sum(len(arm["turned"]) == 2 for arm in search.bisection.arms) == 6


def test_what_moves_alone_is_measured_beside_a(search: Searches) -> None:
    search("qk", {}, {QK: {"rounding_points": ["normalized", "rope_product"]}})
    moved = search.arm(QK, "rounding point rope_product")["from_a"]
    assert moved["elements"] == 4 * 64 * 4 * 128
    assert 0 < moved["elements_differing"] < moved["elements"]
    assert moved["max_abs"] > 0
    assert 20 < moved["psnr_db"] < 120
    assert moved["worst"] in {"q16", "k16"}


def test_several_differences_that_each_give_bs_result_are_all_named(
    search: Searches, monkeypatch: pytest.MonkeyPatch
) -> None:
    import bisect_functions  # type: ignore[import-not-found]  # found through the fixture

    def either() -> float:
        numerics = bisect_functions.of(QK)
        return float(numerics.enable_fp_fusion or numerics.rope_rotation == "complex")

    monkeypatch.setattr(bisect_functions, "constant", either)
    verdict = search("constant", {}, {QK: {"enable_fp_fusion": True, "rope_rotation": "complex"}})
    assert search.names(verdict) | search.names(verdict, "others") == {(QK, "enable_fp_fusion"), (QK, "rope_rotation")}


def test_a_point_that_no_op_of_the_family_has_is_found_where_the_target_reads_it(search: Searches) -> None:
    verdict = search("beyond", {}, {QK: {"rounding_points": ["norm", "qk_norm"], "enable_fp_fusion": True}})
    assert search.names(verdict) == search.names(verdict, "unexpected") == {(QK, "rounding point norm")}


# --- Nothing to explain, or nothing decided ---------------------------------------------------------------------------


def test_equal_results_of_settings_that_were_used_are_no_difference(search: Searches) -> None:
    assert search("contraction", {}, {QK: {"rope_rotation": "complex"}})["result"] == "equal"


def test_what_the_target_never_used_is_said_so_and_decides_nothing(search: Searches) -> None:
    verdict = search("contraction", {}, {MODULATION: {"rounding_points": ["norm"]}})
    assert verdict["result"] == "undecided"
    assert "never used by the target" in verdict["reason"]
    assert len(search.bisection.arms) == 4


def test_a_target_that_resolves_nothing_decides_nothing(search: Searches) -> None:
    verdict = search("constant", {}, {QK: {"enable_fp_fusion": True}})
    assert verdict["result"] == "undecided"
    assert "resolved nothing" in verdict["reason"]


def test_a_knob_that_the_call_names_itself_is_said_to_be_overridden(search: Searches) -> None:
    verdict = search("named", {}, {QK: {"enable_fp_fusion": True}})
    assert verdict["result"] == "undecided"
    assert "overridden by call, argument enable_fp_fusion" in verdict["reason"]


def test_settings_kept_by_a_module_are_noticed_in_process(search: Searches, monkeypatch: pytest.MonkeyPatch) -> None:
    import bisect_functions

    monkeypatch.setattr(bisect_functions, "KEPT", {})
    verdict = search("kept", {}, {QK: {"enable_fp_fusion": True}})
    assert verdict["result"] == "undecided"
    assert "leave out --in-process" in verdict["reason"]


def test_a_result_that_moves_by_itself_is_not_explained(search: Searches) -> None:
    verdict = search("noisy", {}, {QK: {"enable_fp_fusion": True, "rope_rotation": "complex"}})
    assert verdict["result"] == "undecided"
    assert verdict["reason"].startswith("not reproducible: runs of A and B are up to 0.002 apart, A and B 1;")
    assert verdict["smallest"] == []


def test_within_a_tolerance_above_the_noise_the_difference_is_explained(search: Searches) -> None:
    b: Settings = {QK: {"enable_fp_fusion": True, "rope_rotation": "complex"}}
    verdict = search("noisy", {}, b, tolerance=0.1)
    assert search.names(verdict) == {(QK, "enable_fp_fusion")}


def test_more_controls_see_a_noise_that_two_runs_do_not(search: Searches, monkeypatch: pytest.MonkeyPatch) -> None:
    import bisect_functions

    calls = iter(range(100))
    monkeypatch.setattr(bisect_functions, "constant", lambda: float(next(calls) == 4) + bisect_functions.planted())
    b: Settings = {QK: {"enable_fp_fusion": True}}
    assert search("constant", {}, b, controls=3)["result"] == "undecided"


def test_a_set_that_does_not_give_bs_result_twice_is_not_claimed(
    search: Searches, monkeypatch: pytest.MonkeyPatch
) -> None:
    import bisect_functions

    calls = iter(range(100))
    b: Settings = {QK: {"enable_fp_fusion": True, "rope_rotation": "complex"}}
    # Both controls and all arms are steady; what runs after the two single differences is not.
    monkeypatch.setattr(bisect_functions, "constant", lambda: bisect_functions.planted() + (next(calls) >= 6))
    verdict = search("constant", {}, b)
    assert verdict["result"] == "undecided"
    assert "the smallest set ran a second time, and did not give B's result again" in verdict["reason"]
    assert verdict["smallest"] == []


# --- Arms without a verdict -------------------------------------------------------------------------------------------


def test_the_search_goes_on_after_an_arm_that_raises(search: Searches) -> None:
    b: Settings = {
        QK: {"enable_fp_fusion": True, "rope_rotation": "complex"},
        MODULATION: {"rounding_points": ["norm"]},
    }
    verdict = search("planted", {}, b)
    assert search.names(verdict) == {(QK, "enable_fp_fusion")}
    failed = search.arm(MODULATION, "rounding point norm")
    assert (failed["status"], failed["reason"]) == ("crashed", "RuntimeError: planted")
    assert failed["stderr"][-1] == "RuntimeError: planted"


def test_a_smaller_set_without_a_verdict_is_counted(search: Searches) -> None:
    b: Settings = {
        QK: {"enable_fp_fusion": True, "rope_rotation": "complex"},
        MODULATION: {"rounding_points": ["norm"]},
    }
    verdict = search("fragile", {}, b)
    assert search.names(verdict) == {(QK, "enable_fp_fusion"), (MODULATION, "rounding point norm")}
    assert verdict["smaller_without_verdict"] == 1


def test_an_arm_that_the_package_refuses_is_refused_with_the_reason(search: Searches) -> None:
    a = {NORM: {"rms_norm_reduction": "divided"}}
    b: Settings = {NORM: {"rms_norm_reduction": "sglang_qk_norm", "rounding_points": ["normalized"]}}
    verdict = search("refused", a, b)
    assert verdict["result"] == "undecided"
    assert verdict["reason"].startswith("B, run 1: refused: ")
    assert "96" in verdict["reason"]


def test_a_target_that_returns_something_else_is_bad_usage(search: Searches) -> None:
    with pytest.raises(ConfigurationError, match=r"returned str; legal: a tensor, a number"):
        search("strange", {}, {QK: {"enable_fp_fusion": True}})


# --- Continuing -------------------------------------------------------------------------------------------------------


def test_a_search_that_was_stopped_continues_without_running_an_arm_twice(search: Searches) -> None:
    b: Settings = {QK: {"rms_norm_reduction": "halved", "rope_rotation": "complex", "rounding_points": ["normalized"]}}
    whole = search("qk", {}, b)
    arms = search.bisection.arms
    for count in (1, 3, 6, len(arms)):
        ran: list[str] = []
        known = [dict(arm) for arm in arms[:count]]
        again = Bisection(
            search.question, search.folder / "kept", known, announce=lambda name, *_, ran=ran: ran.append(name)
        )
        assert searched(again) == whole
        assert len(ran) == len(arms) - count
        assert [arm["turned"] for arm in again.arms] == [arm["turned"] for arm in arms]


def test_the_tensors_of_the_first_run_must_be_there_to_continue(search: Searches) -> None:
    search("qk", {}, {QK: {"rope_rotation": "complex"}})
    search.bisection.forget()
    with pytest.raises(ConfigurationError, match=r"a\.pt: the tensors of A .* are not there"):
        Bisection(search.question, search.folder / "kept", search.bisection.arms)
