"""Calls a function with a module each time that it has been imported: at once if it is there, later otherwise."""

import importlib.machinery
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType

Act = Callable[[ModuleType], None]


class AfterImport(MetaPathFinder):
    """Acts on modules by name, after a first import and after a reload. Survives a fork, as sys.meta_path does."""

    def __init__(self, acts: Mapping[str, Act]) -> None:
        self._acts = dict(acts)

    def start(self) -> None:
        """Act on what is imported already, and wait for the rest."""
        sys.meta_path.insert(0, self)
        for name, act in self._acts.items():
            if name in sys.modules:
                act(sys.modules[name])

    def stop(self) -> None:
        """Wait no longer."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec that the other finders have for the module, with a loader that acts when it is done."""
        act = self._acts.get(fullname)
        if act is None:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Acting(spec.loader, act)
                return spec
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
