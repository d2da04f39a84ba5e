# Bare `make` says what there is.
PYTHON ?= python3
BIN := .venv/bin
PEERS := .venv-peers/bin
# The first Python that MXNet, whose last release is of 2022 and for Intel, can run on; empty where there is none.
MXNET_PYTHON ?= $(shell for python in python3.11 python3; do \
  $$python -c 'import platform, sys; sys.exit(sys.version_info[:2] > (3, 11) or platform.machine() != "x86_64")' 2> /dev/null && { echo $$python; break; }; done)
MXNET := .venv-mxnet/bin
SOURCES := src tests benchmarks examples docs tools conftest.py
# Without bytecode of all that is installed: what is imported is compiled then.
INSTALL := -m pip install --quiet --disable-pip-version-check --no-compile
# The first that installs dependency groups.
PIP := 'pip>=25.1'
TEST := -e '.[translation,regression,dask,datasets,catalogues,textbook,transformers,serve]' --group test
# Threads that wait busily for work would take the cores from the other process's.
WAITING := OMP_WAIT_POLICY=passive OPENBLAS_NUM_THREADS=1
PYTEST := $(WAITING) $(BIN)/python -m pytest -q --numprocesses=2 --dist=worksteal
MXNET_TESTS := tests/textbook/test_textbook_mxnet.py
TENSORFLOW_TESTS := tests/textbook/test_textbook_tensorflow.py src/dikkat/textbook/tensorflow.py
# What runs on plain PyTorch in about a minute: the core without its largest tables of cases.
FAST_TESTS := tests/core/test_attention.py tests/core/test_masking.py tests/core/test_scores.py tests/core/test_layers.py \
  tests/storage tests/project/test_docstrings.py tests/recurrent/test_encoder.py \
  tests/translation/test_settings.py tests/translation/test_tokenizer.py

FENCED_TESTS := tests/engine/test_fences.py tests/core/test_numba_calls.py tests/translation/test_cross_entropy.py

# What builds and tests the page of a translator; users need neither, since the built file lies in the package.
WEB := web/node_modules/installed

.PHONY: help demo test test-fast test-core test-inspection test-regression test-translation \
  test-all test-fences test-triton test-tensorflow test-mxnet mxnet test-pythons \
  test-versions coverage \
  check lint types site page wheel without-npm format install web peers bench clean
.DEFAULT_GOAL := help

help:  ## Say what there is.
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: .venv/demo  ## Train a translator on the phrasebook, score it, and make the page in which it lives.
	$(BIN)/python examples/demo.py

install: .venv/tools  ## The environment of the commands: translation and regression.

test: .venv/test .rxnmapper $(if $(shell command -v npm),$(WEB))  ## All tests of dikkat on PyTorch, with the examples of the docstrings, README and docs.
	$(PYTEST)

test-fast: .venv/test  ## The core's tests, in about a minute.
	$(PYTEST) $(FAST_TESTS)

test-core: .venv/test  ## The core's tests, whole: attention as a call, and the engine.
	$(PYTEST) tests/core tests/engine src/dikkat/_core src/dikkat/_engine src/dikkat/*.py

test-inspection: .venv/test  ## The tests of recordings and pictures.
	$(PYTEST) tests/inspection tests/show src/dikkat/inspection src/dikkat/show

test-regression: .venv/test  ## The regression's tests.
	$(PYTEST) tests/regression tests/cli/test_cli_regress*.py src/dikkat/regression

test-translation: .venv/test  ## The translator's tests, those of the recurrent networks among them.
	$(PYTEST) tests/translation tests/recurrent $(filter-out %regress.py %tables.py,$(wildcard tests/cli/test_*.py)) src/dikkat/translation src/dikkat/recurrent src/dikkat/serving

test-all: test test-fences test-triton test-tensorflow test-mxnet  ## Run every test, also those on Triton's interpreter, TensorFlow and MXNet.

test-triton: .venv/test  ## The kernels for GPUs, in Triton's interpreter.
	TRITON_INTERPRET=1 $(PYTEST) tests/interpreted

test-tensorflow: .venv/tensorflow  ## Test the textbook's chapters on TensorFlow with Keras 2.
	TF_USE_LEGACY_KERAS=1 $(PYTEST) $(TENSORFLOW_TESTS)

test-fences: .venv/test  ## The compiled kernels, with every region of memory fenced.
	DIKKAT_FENCES=1 $(PYTEST) $(FENCED_TESTS)

coverage: .venv/check  ## Which lines the tests of dikkat on PyTorch reach.
	$(BIN)/coverage run --module pytest -q
	$(BIN)/coverage report

PYTHONS ?= 3.11 3.12 3.13 3.14
test-pythons:  ## The core's tests on each of $(PYTHONS) that is here, each in an environment of its own.
	for version in $(PYTHONS); do \
	  command -v python$$version > /dev/null && python$$version -c '' 2> /dev/null || { echo "python$$version: not here"; continue; }; \
	  python$$version -m venv .venv-$$version && \
	  .venv-$$version/bin/python $(INSTALL) $(PIP) && \
	  .venv-$$version/bin/python $(INSTALL) -c constraints.txt $(TEST) && \
	  $(WAITING) .venv-$$version/bin/python -m pytest -q --numprocesses=2 $(FAST_TESTS) || exit 1; done

VERSIONS ?= lowest newest
test-versions: .venv/check  ## The README's installation examples and the core's tests, with the lowest and the newest allowed versions.
	for which in $(VERSIONS); do \
	  $(BIN)/python tools/wheel.py --versions $$which && \
	  $(BIN)/python tools/versions.py $$which translation,regression > .venv/$$which.txt && \
	  $(PYTHON) -m venv --clear .venv-$$which && \
	  .venv-$$which/bin/python $(INSTALL) $(PIP) && \
	  .venv-$$which/bin/python $(INSTALL) -c .venv/$$which.txt -e '.[translation,regression]' --group test && \
	  $(WAITING) .venv-$$which/bin/python -m pytest -q --numprocesses=2 $(FAST_TESTS) || exit 1; done

test-mxnet: $(if $(MXNET_PYTHON),.venv-mxnet/installed,.venv/test)  ## The textbook's chapters on MXNet; without Python 3.11 or older on Intel, skipped and counted.
	$(if $(MXNET_PYTHON),$(WAITING) $(MXNET)/python -m pytest -q --numprocesses=2 --dist=worksteal $(MXNET_TESTS) src/dikkat/textbook/mxnet.py,$(PYTEST) $(MXNET_TESTS))

mxnet: $(if $(MXNET_PYTHON),.venv-mxnet/installed)  # the environment of test-mxnet, where it can be had

check: lint types site $(if $(shell command -v npm),page,without-npm)  ## Linter, import rules, strict types, docs build; of the page its types, and that it is built.

lint: .venv/check
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/lint-imports --config pyproject.toml
	$(BIN)/python tools/words.py

types: .venv/check
	$(BIN)/mypy

site: .venv/check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # with --quiet, it would not count the warnings

wheel: .venv/check  ## Build the wheel, and try it by the README's lines.
	$(BIN)/python tools/wheel.py

without-npm:
	@echo "npm: not here, so the page's types and whether it is built are not checked"

page: $(WEB)
	npm --prefix web run --silent check

web: $(WEB)  ## Build src/dikkat/show/living.js and living.css from web/src.
	npm --prefix web run --silent build

$(WEB): web/package.json web/package-lock.json
	npm --prefix web ci --no-audit --no-fund --silent
	touch $@

format: .venv/check  ## Format the sources, and mend what the linter can.
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

bench: peers demo  ## Measure, and write benchmarks/results/ and the tables of docs/benchmarks.md.
	for suite in attention regression translation; do $(BIN)/python -m benchmarks $$suite $(BENCH) || exit 1; done
	PYTHONPATH=src $(BIN)/python -m benchmarks.tables

clean:  ## Remove the environments and everything made.
	rm -rf .venv .venv-* site demo textbook-figures web/node_modules

# One environment, which grows: each stage adds its extra to the one before.
.venv/pip:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"Python 3.11 or later is needed; {sys.executable} is {sys.version.split()[0]}. Try: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv || { echo "Python has no venv: on Debian and Ubuntu, apt install python3-venv"; exit 1; }
	$(BIN)/python $(INSTALL) $(PIP)
	touch $@

# The trained transformer of examples/reactions.py: its files are read, it is not imported. Where it cannot be had, its
# tests are skipped and counted.
.rxnmapper: | .venv/test
	-$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps rxnmapper==0.4.3 -d $@

.venv/demo: parts := -e '.[translation]'
.venv/tools: parts := -e '.[regression]'
.venv/test: parts := $(TEST)
.venv/tensorflow: parts := -e '.[textbook-tensorflow]'
.venv/check: parts := --group check
.venv/tools: | .venv/demo
.venv/test: | .venv/tools
.venv/tensorflow .venv/check: | .venv/test

.venv/demo .venv/tools .venv/test .venv/tensorflow .venv/check: .venv/pip pyproject.toml constraints.txt
	$(BIN)/python $(INSTALL) -c constraints.txt $(parts)
	touch $@

.venv-mxnet/installed: pyproject.toml constraints-mxnet.txt
	$(MXNET_PYTHON) -m venv .venv-mxnet
	$(MXNET)/python $(INSTALL) "$$(grep '^torch==' constraints-mxnet.txt)"
	$(MXNET)/python $(INSTALL) -c constraints-mxnet.txt -e '.[textbook-mxnet]' pytest pytest-xdist
	touch $@

peers: .venv-peers/installed  ## The environment of the benchmarks, with JAX, KeOps and statsmodels.

.venv-peers/installed: benchmarks/peers.txt
	$(PYTHON) -m venv .venv-peers
	$(PEERS)/python $(INSTALL) "$$(grep '^torch==' $<)"
	$(PEERS)/python $(INSTALL) -r $<
	$(PEERS)/python $(INSTALL) --no-deps ISLP==0.6.0
	touch $@
