"""Capabilities: matched by component, the most specific entry of a file wins, and the driver says what there is."""

from __future__ import annotations

import ctypes
import itertools
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from numerics import capability
from numerics.capability import matches, most_specific
from numerics.errors import ConfigurationError, RequirementError
from numerics.resolve import resolve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.numerics.conftest import Sources

# --- Matching ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "found", "holds"),
    [
        ("cuda:9", "cuda:9.0", True),
        ("cuda:9.0", "cuda:9.0", True),
        ("cuda", "cuda:9.0", True),
        ("cuda:9", "cuda:90.0", False),
        ("cuda:1", "cuda:10.0", False),
        ("cuda:9.0", "cuda:9", False),
        ("cuda", "hip:gfx942", False),
        ("hip", "hip:gfx942", True),
        ("hip:gfx9", "hip:gfx942", False),
        ("cuda", None, False),
    ],
)
def test_patterns_match_by_component(pattern: str, found: str | None, holds: bool) -> None:
    assert matches(pattern, found) is holds


def test_the_pattern_with_the_most_components_wins_in_any_order() -> None:
    for patterns in itertools.permutations(("cuda", "cuda:9", "cuda:9.0", "cuda:10.0", "hip")):
        assert most_specific(patterns, "cuda:9.0") == "cuda:9.0"
        assert most_specific(patterns, "cuda:9.1") == "cuda:9"
        assert most_specific(patterns, "cuda:8.0") == "cuda"
        assert most_specific(patterns, "npu:910b") is None
        assert most_specific(patterns, None) is None


@pytest.mark.parametrize(
    "wrong",
    ["", "9.0", "sm_90", "cuda:", "cuda:9.", "cuda:٩.0", "CUDA:9.0", "cuda:9.0 ", "cuda:09", "cuda:9.00", "cpu"],
)
def test_a_capability_that_is_not_written_as_one_is_an_error(wrong: str, sources: Sources) -> None:
    with pytest.raises(ConfigurationError, match=r"not a capability; write cuda:MAJOR\.MINOR"):
        resolve("rms_norm", capability=wrong)
    entry = f"{{ capability = '{wrong}', preset = 'fast' }}"
    sources.models = f"[models.known]\nfused_qk_norm_rope = {{ when = [{entry}] }}\n"
    with pytest.raises(ConfigurationError, match=r"when\[0\]\.capability: got .*; legal: 'cuda', 'cuda:9', "):
        sources.resolve(model="known")


# --- Entries of files -------------------------------------------------------------------------------------------------

WHEN = """
[models.known.fused_qk_norm_rope]
preset = "fast"
min_tokens = 1
when = [
  { capability = "cuda", preset = "other", rope_rotation = "separate" },
  { capability = "cuda:9.0", preset = "exact", min_tokens = 2 },
  { capability = "cuda:9", rounding_points = [] },
]
"""


@pytest.mark.parametrize(
    ("found", "label", "min_tokens"),
    [
        ("cuda:9.0", "exact", 2),
        ("cuda:9.1", "fast (modified: rounding_points)", 1),
        ("cuda:8.0", "other (modified: rope_rotation)", 1),
        ("hip:gfx942", "fast", 1),
    ],
)
def test_the_most_specific_entry_overrides_its_setting(
    sources: Sources, found: str, label: str, min_tokens: int
) -> None:
    sources.models = WHEN
    resolution = sources.resolve(model="known", capability=found)
    assert (resolution.label, resolution.min_tokens) == (label, min_tokens)
    assert resolution.when == ()


def test_an_entry_shadows_its_own_setting(sources: Sources) -> None:
    sources.models = WHEN
    chain = sources.resolve(model="known", capability="cuda:9.0").sources["preset"].chain
    assert [(said.location, said.value) for said in chain] == [
        ("presets.toml: models.known, when cuda:9.0", "exact"),
        ("presets.toml: models.known", "fast"),
        ("presets.toml: ops.fused_qk_norm_rope", "fast"),
    ]


def test_a_setting_may_have_entries_alone(sources: Sources) -> None:
    sources.models = "[models.known]\nfused_qk_norm_rope = { when = [{ capability = 'cuda:9', preset = 'other' }] }\n"
    chain = sources.resolve(model="known", capability="cuda:9.0").sources["preset"].chain
    assert [said.location for said in chain] == [
        "presets.toml: models.known, when cuda:9",
        "presets.toml: ops.fused_qk_norm_rope",
    ]
    assert sources.resolve(model="known", capability="cuda:8.0").sources["preset"].source == "package"


def test_an_entry_of_a_weaker_layer_does_not_beat_a_stronger_layer(sources: Sources) -> None:
    sources.models = WHEN
    sources.said = {"environment": {"preset": "other"}}
    found = sources.resolve(model="known", capability="cuda:9.0")
    assert (found.label, found.min_tokens) == ("other", 2)
    assert found.sources["preset"].shadows[0].location == "presets.toml: models.known, when cuda:9.0"


def test_without_a_capability_every_entry_stays_open(sources: Sources) -> None:
    sources.models = WHEN
    found = sources.resolve(model="known")
    assert found.label == "fast", "what holds where no entry does"
    assert {pattern: row.label for pattern, row in found.when} == {
        "cuda": "other (modified: rope_rotation)",
        "cuda:9": "fast (modified: rounding_points)",
        "cuda:9.0": "exact",
    }
    shown = found.to_dict()
    assert [(row["capability"], row["preset"]) for row in shown["when"]] == [
        ("cuda", "other"),
        ("cuda:9", "fast"),
        ("cuda:9.0", "exact"),
    ]
    assert shown["capability"] is None


@pytest.mark.parametrize("found", ["cuda:9.0", "cuda:9.1", "cuda:8.0", "hip:gfx942"])
def test_bind_gives_what_resolving_for_the_capability_gives(sources: Sources, found: str) -> None:
    sources.models = WHEN
    with sources.applied():
        opened = resolve("fused_qk_norm_rope", "known")
        assert opened.bind(found) == resolve("fused_qk_norm_rope", "known", capability=found)
    assert opened.bind(found) is opened.bind(found)
    assert pickle.loads(pickle.dumps(opened)).bind(found) == opened.bind(found)


def test_bind_to_a_device_without_capability_takes_what_holds_where_no_entry_does(sources: Sources) -> None:
    sources.models = WHEN
    bound = sources.resolve(model="known").bind(None)
    assert (bound.label, bound.capability, bound.when) == ("fast", None, ())


def test_the_first_components_of_a_capability_leave_finer_entries_open(sources: Sources) -> None:
    sources.models = WHEN
    found = sources.resolve(model="known", capability="cuda:9")
    assert found.label == "fast (modified: rounding_points)"
    assert [pattern for pattern, _ in found.when] == ["cuda:9.0"]
    assert found.bind("cuda:9.0").label == "exact"
    assert found.bind("cuda:9.1").label == "fast (modified: rounding_points)"
    assert found.bind(None).when == ()


def test_an_open_resolution_refuses_to_be_used(sources: Sources) -> None:
    sources.models = WHEN
    with pytest.raises(ConfigurationError, match=r"depend on the capability \(cuda, cuda:9, cuda:9.0\); call bind"):
        sources.resolve(model="known").check_call(width=128, rows=1, dtype="bfloat16")


def test_bind_refuses_another_capability_than_the_resolved_one(sources: Sources) -> None:
    found = sources.resolve(capability="cuda:9.0")
    assert found.bind("cuda:9.0") is found
    assert found.bind(None) is found
    with pytest.raises(RequirementError, match=r"resolved for capability 'cuda:9.0' and cannot be used on 'cuda:10.0'"):
        found.bind("cuda:10.0")
    with pytest.raises(ConfigurationError, match="not a capability"):
        found.bind("sm_90")


def test_settings_that_do_not_depend_on_the_capability_are_never_open(sources: Sources) -> None:
    found = sources.resolve()
    assert found.when == ()
    assert "when" not in found.to_dict()
    assert found.bind("cuda:9.0").capability == "cuda:9.0"


# --- The driver -------------------------------------------------------------------------------------------------------


class Driver:
    """A CUDA driver library with some devices; any step can fail."""

    def __init__(self, devices: int = 1, fails: str = "") -> None:
        self.devices, self.fails = devices, fails

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            if name == self.fails:
                return 100
            if name == "cuDeviceGetCount":
                arguments[0]._obj.value = self.devices
            if name == "cuDeviceGet":
                arguments[0]._obj.value = 5
            if name == "cuDeviceGetAttribute":
                pointer, attribute, device = arguments
                assert device.value == 5
                pointer._obj.value = {75: 9, 76: 0}[attribute]
            return 0

        return call


@pytest.fixture
def fresh() -> Iterator[None]:
    capability.current.cache_clear()
    yield
    capability.current.cache_clear()


@pytest.mark.usefixtures("fresh")
def test_the_driver_is_asked_for_the_capability_of_the_first_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver() if name == "libcuda.so.1" else None)
    assert capability.current() == "cuda:9.0"


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(
    "driver",
    [Driver(devices=0), *(Driver(fails=step) for step in ("cuInit", "cuDeviceGetCount", "cuDeviceGetAttribute"))],
)
def test_without_a_device_the_capability_is_unknown(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: driver)
    assert capability.current() is None


@pytest.mark.usefixtures("fresh")
def test_without_a_driver_the_capability_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert capability.current() is None


def test_asking_and_resolving_import_no_framework() -> None:
    code = (
        "import sys, numerics; from numerics.capability import current; current();"
        "numerics.resolve('fused_qk_norm_rope', 'flux2').bind('cuda:9.0');"
        "print(sorted({'torch', 'triton', 'numpy'} & set(sys.modules)))"
    )
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert seen.stdout.strip() == "[]"
