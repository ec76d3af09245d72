# make demo    a fresh environment, the settings in force, and what has golden bytes proved on them
# make test    the whole check, as CI runs it
# make lint    its static part        make format   what ruff can mend
# make clean   remove everything that these make

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: demo test lint format unit wheel clean help

PYTHON ?= python3
# A CUDA build of torch asks for one release of Triton exactly: `make test TRITON=3.7.1` for torch 2.13.
TRITON ?= 3.9.0

BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

help:
	@sed -n 's/^# make/make/p' Makefile

# --- Environments -----------------------------------------------------------------------------------------------------
# Each stamp is older than a changed pyproject.toml or constraints.txt, which installs again. The build needs setuptools
# alone and takes the pinned one, so that no release of tomorrow builds today's package.

.venv/base: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed, not " + sys.version.split()[0] + "; name one: make PYTHON=python3.11 ...")'
	@echo "Installing into .venv (torch takes a while) ..."
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) setuptools
	touch $@

.venv/demo: .venv/base
	$(PIP) --no-build-isolation --editable .
	touch $@

.venv/dev: .venv/base
	$(PIP) --no-build-isolation --editable '.[dev]' "triton==$(TRITON); sys_platform == 'linux'"
	touch $@ .venv/demo

# --- Commands ---------------------------------------------------------------------------------------------------------

demo: .venv/demo
	@printf '\n$$ numerics show\n'
	@$(BIN)/numerics show
	@printf '\n$$ numerics verify\n'
	@$(BIN)/numerics verify

test: lint unit wheel

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: .venv/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

unit: .venv/dev
	$(BIN)/python -m pytest --cov

# The wheel, built from the sdist as a release is, in an environment of its own. What else the suite needs is read from
# .venv by path: a line in a .pth file adds the folder but runs none of the .pth files in it, so the editable install
# stays out of reach; tests/conftest.py refuses to run if the clone is imported after all.
wheel: .venv/dev
	rm -rf dist build *.egg-info .venv-wheel  # setuptools ships what an old egg-info lists
	log=$$($(BIN)/python -m build --no-isolation . 2>&1) || { echo "$$log"; exit 1; }
	$(BIN)/python -m venv --without-pip .venv-wheel
	$(BIN)/python -m pip --python .venv-wheel/bin/python install --quiet --no-deps --no-index dist/*.whl
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	    > "$$(.venv-wheel/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/development.pth"
	$(BIN)/python -m pip --python .venv-wheel/bin/python check
	# Not again what would only say twice that the code is right: it is the packaging that is in question here.
	PYTHONSAFEPATH=1 .venv-wheel/bin/python -m pytest -o pythonpath= \
	    --ignore=tests/integrations --ignore=tests/measure --ignore=tests/ops/test_interpreted.py \
	    --ignore=tests/cli/test_report_browser.py \
	    --ignore=tests/test_examples.py

clean:
	rm -rf .venv .venv-wheel build dist htmlcov .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
	rm -rf *.egg-info
