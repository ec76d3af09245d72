"""Calls a function with a module each time that it has been imported: at once if it is there, later otherwise."""

import importlib
import importlib.machinery
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType

Act = Callable[[ModuleType], None]


class AfterImport(MetaPathFinder):
    """Acts on modules by name, after a first import and after a reload. Survives a fork, as sys.meta_path does."""

    def __init__(self, acts: Mapping[str, Act]) -> None:
        self._acts = dict(acts)
        self._acted: set[str] = set()  # on modules that were imported through `find_spec`

    def start(self) -> None:
        """Act on what is imported already, and wait for the rest."""
        sys.meta_path.insert(0, self)
        for name in self._acts:
            module = _imported(name)
            if module is not None and name not in self._acted:
                self.act(name, module)

    def stop(self) -> None:
        """Wait no longer."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def act(self, name: str, module: ModuleType) -> None:
        """Act on a module that has just been imported."""
        self._acted.add(name)
        self._acts[name](module)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec that the other finders have for the module, with a loader that acts when it is done."""
        if fullname not in self._acts:
            return None
        for finder in tuple(sys.meta_path):
            if finder is self or not hasattr(finder, "find_spec"):  # which Python passes over, too
                continue
            spec: importlib.machinery.ModuleSpec | None = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Acting(spec.loader, partial(self.act, fullname))
                return spec
        return None


def _imported(name: str) -> ModuleType | None:
    """The module if it is there. If another thread is in the midst of importing it, this waits for the end of that."""
    if sys.modules.get(name) is None:
        return None
    try:
        return importlib.import_module(name)
    except Exception:  # noqa: BLE001  # of the module, which whoever imports it sees
        return None


class _Acting(Loader):
    """The module's own loader, and then the act. The module never sees this one."""

    def __init__(self, loader: Loader, act: Act) -> None:
        self._loader = loader
        self._act = act

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._act(module)
