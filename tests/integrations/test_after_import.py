"""Acting on modules once they are imported, whoever imports them and when."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Barrier, BrokenBarrierError, Event, Thread
from types import ModuleType, SimpleNamespace

import pytest

from numerics.integrations import vllm_omni
from numerics.integrations.after_import import AfterImport
from tests.integrations.vllm_omni_package import MODULES, Engine, imported, original

NAMES = ("after_import_one", "after_import_two")
STARTED, GO_ON = Event(), Event()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text("value = 1\n")
    finders = list(sys.meta_path)
    yield tmp_path
    sys.meta_path[:] = finders
    for name in NAMES:
        sys.modules.pop(name, None)


def test_what_is_imported_while_acting_is_acted_on_once(folder: Path) -> None:
    seen = []

    def act(module: ModuleType) -> None:
        seen.append(module.__name__)
        importlib.import_module(NAMES[1])

    importlib.import_module(NAMES[0])
    AfterImport(dict.fromkeys(NAMES, act)).start()
    assert sorted(seen) == sorted(NAMES)


def test_a_module_that_another_thread_is_importing_is_acted_on_when_it_is_whole(folder: Path) -> None:
    (folder / f"{NAMES[0]}.py").write_text(
        f"from {__name__} import GO_ON, STARTED\nSTARTED.set()\nGO_ON.wait(10)\nvalue = 1\n"
    )
    seen: list[int | None] = []
    thread = Thread(target=importlib.import_module, args=NAMES[:1])
    thread.start()
    assert STARTED.wait(10)
    starting = Thread(target=AfterImport({NAMES[0]: lambda module: seen.append(vars(module).get("value"))}).start)
    starting.start()
    starting.join(0.05)
    GO_ON.set()
    for each in (thread, starting):
        each.join()
    assert seen == [1]


def test_a_module_that_fails_is_acted_on_when_it_is_mended(folder: Path) -> None:
    seen = []
    AfterImport({NAMES[0]: lambda module: seen.append(module.value)}).start()
    (folder / f"{NAMES[0]}.py").write_text("raise ImportError('mine')\n")
    with pytest.raises(ImportError, match="mine"):
        importlib.import_module(NAMES[0])
    assert seen == []
    (folder / f"{NAMES[0]}.py").write_text("value = 'mended'\n")
    importlib.invalidate_caches()
    importlib.import_module(NAMES[0])
    assert seen == ["mended"]


def test_a_finder_that_finds_nothing_by_specs_is_passed_over(folder: Path) -> None:
    seen: list[ModuleType] = []
    sys.meta_path.insert(0, SimpleNamespace(find_module=lambda *_: None))
    AfterImport({NAMES[0]: seen.append}).start()
    assert seen == [importlib.import_module(NAMES[0])]


def test_of_two_threads_that_install_one_does(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine()
    both = Barrier(2)

    def version(_: str) -> str:
        with suppress(BrokenBarrierError):
            both.wait(0.1)
        return "0.30.0"

    monkeypatch.setattr(vllm_omni, "version", version)
    modules = [imported(name) for name in MODULES]
    records: list[object] = []
    threads = [Thread(target=lambda: records.append(vllm_omni.install())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first, second = records
    assert first is second
    installed = vllm_omni.active()
    assert installed is not None
    assert len(installed.replaced) == 5 + 1 + 1
    assert installed.restore() == ()
    assert all(module.fused_qk_norm_rope is original("fused_qk_norm_rope") for module in modules)
