"""What all tests share: no settings of the person who runs them, and the certainty of which package is under test."""

import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

import numerics

ROOT = Path(__file__).resolve().parent.parent
# VLLM_BATCH_INVARIANT is a condition of presets; the last ones change what a command line prints.
FOREIGN = ("VLLM_", "NUMERICS_", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "COLUMNS", "LINES")

hypothesis.settings.register_profile("steady", deadline=None, derandomize=True, database=None, print_blob=True)
hypothesis.settings.load_profile("steady")


def pytest_configure(config: pytest.Config) -> None:
    """Clean the environment once, subprocesses included, and see that they and the suite test the same package.

    Raises:
        pytest.UsageError: the clone would be tested in the wheel's name.
    """
    for name in [name for name in os.environ if name.startswith(FOREIGN)]:
        del os.environ[name]
    if not config.getini("pythonpath") and _package().is_relative_to(ROOT / "numerics"):
        raise pytest.UsageError(
            "`-o pythonpath=` asks for an installed package, but `import numerics` found the clone; "
            "run it with PYTHONSAFEPATH=1 in an environment without the editable install (see `make wheel`)"
        )
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_package().parent), inherited]))


def pytest_report_header() -> str:
    return f"numerics under test: {_package()}"


def _package() -> Path:
    assert numerics.__file__ is not None
    return Path(numerics.__file__).resolve().parent


@pytest.fixture(scope="session")
def root() -> Path:
    """The folder of the checkout."""
    return ROOT


@pytest.fixture(autouse=True)
def _configuration_lasts_one_test() -> Iterator[None]:
    yield
    numerics.configure(None)
