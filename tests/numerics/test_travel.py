"""Resolutions are values: remembered, compared, pickled, handed to workers."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from numerics import context
from numerics.resolution import Resolution
from numerics.resolve import resolve

if TYPE_CHECKING:
    from pathlib import Path

    from tests.numerics.conftest import Sources


def test_resolving_again_gives_the_same_object(sources: Sources) -> None:
    with sources.applied():
        assert resolve("fused_qk_norm_rope", preset="exact") is resolve("fused_qk_norm_rope", preset="exact")


def test_remembered_resolutions_do_not_pile_up(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(resolve.__globals__, "REMEMBERED", 10)
    with sources.applied():
        for tokens in range(100):
            assert resolve("fused_qk_norm_rope", min_tokens=tokens).min_tokens == tokens
        assert len(context.configuration().resolutions) <= 10


def test_copies_are_equal_and_hash_alike(sources: Sources) -> None:
    found = sources.resolve(preset="exact", rounding_points=["norm"])
    found.bind("cuda:9.0").check_call(width=128, rows=1, dtype="bfloat16")
    for twin in (pickle.loads(pickle.dumps(found)), copy.deepcopy(found)):
        assert twin == found
        assert hash(twin) == hash(found)
        assert twin is not found
        assert twin.to_dict() == found.to_dict()
        assert {found: 1}[twin] == 1
        twin.bind("cuda:8.0")
        assert twin == found, "what it remembers is no part of it"
    assert set(pickle.loads(pickle.dumps(found)).__dict__) == set(Resolution.__dataclass_fields__)
    assert found != sources.resolve(preset="exact")
    assert found != "exact"


def test_every_part_of_a_resolution_tells_it_apart(sources: Sources) -> None:
    found, other = sources.resolve(preset="exact"), sources.resolve(preset="fast")
    others: dict[str, Any] = {
        "op": "fused_modulation",
        "model": "another",
        "capability": "cuda:8.0",
        "preset": "another",
        "modified": ("rope_rotation",),
        "numerics": other.numerics,
        "reduction": "another",
        "min_tokens": 7,
        "reference": None,
        "requires": found.requires.model_copy(update={"width": 96}),
        "sources": {},
        "when": (("cuda:9", other),),
    }
    assert set(others) == {each.name for each in dataclasses.fields(Resolution) if each.init}
    for name, value in others.items():
        changed = dataclasses.replace(found, **{name: value})
        assert changed != found, name
        assert changed.key != found.key, name


def test_looking_for_equal_settings_compares_no_parts(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call of an op looks for settings like its own among those of earlier calls."""
    found = sources.resolve(preset="exact")
    twin = dataclasses.replace(found)
    monkeypatch.setattr(Resolution, "__getstate__", lambda _: pytest.fail("looked at the parts"))
    assert {found: 1}[twin] == 1


def test_a_resolution_cannot_be_changed(sources: Sources) -> None:
    with pytest.raises(AttributeError):
        sources.resolve().min_tokens = 3  # type: ignore[misc]


def test_pickled_settings_hold_in_a_process_that_knows_nothing_of_them(sources: Sources, tmp_path: Path) -> None:
    """Neither the file, the context nor the variables are there: the value itself travels."""
    found = sources.resolve(preset="exact", rounding_points=["norm"], min_tokens=0)
    (tmp_path / "resolution").write_bytes(pickle.dumps(found))
    code = (
        "import json, pathlib, pickle, sys\n"
        "found = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())\n"
        "found.bind('cuda:9.0').check_call(width=128, rows=1, dtype='bfloat16')\n"
        "print(json.dumps(found.to_dict()))"
    )
    for seed in ("1", "2"):
        seen = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "resolution")],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONHASHSEED": seed},
        )
        assert json.loads(seen.stdout) == json.loads(json.dumps(found.to_dict()))


WORKERS = """
import json, multiprocessing, os
import numerics
from numerics.resolution import Resolution

def in_child(queue):
    queue.put(numerics.resolve("fused_modulation").to_dict())

if __name__ == "__main__":
    with numerics.use("bf16_affine", min_tokens=0):
        found = numerics.resolve("fused_modulation")
        seen = [found.to_dict()]
        for method in ("spawn", "fork"):
            with multiprocessing.get_context(method).Pool(1) as pool:
                seen.append(pool.apply(Resolution.to_dict, (found,)))  # by value
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        child = context.Process(target=in_child, args=(queue,))  # by inheritance
        child.start()
        seen.append(queue.get(timeout=30))
        child.join()
    seen[-1]["sources"] = seen[0]["sources"]  # a different line resolved it
    print(len(seen), all(each == seen[0] for each in seen), seen[0]["preset"])
"""


def test_spawned_and_forked_workers_get_the_settings_they_are_handed(tmp_path: Path) -> None:
    script = tmp_path / "workers.py"
    script.write_text(WORKERS)
    seen = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert seen.stdout.split() == ["4", "True", "bf16_affine"]


def test_every_rank_resolves_the_same(tmp_path: Path) -> None:
    user_file = tmp_path / "my.toml"
    user_file.write_text(
        "[models.flux2]\nfused_qk_norm_rope = { when = [{ capability = 'cuda:9', preset = 'fast' }] }\n"
    )
    code = (
        "import json, numerics\n"
        "from numerics.presets.file import load\n"
        "models = [None, *load().model_names()]\n"
        "print(json.dumps([numerics.resolve(op, m).to_dict() for m in models for op in sorted(load().packaged.ops)]))"
    )
    ranks = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONHASHSEED": seed, "NUMERICS_CONFIG": str(user_file)},
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(ranks) == 1
    assert "when cuda:9" in ranks.pop()
