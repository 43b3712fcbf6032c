# `make demo` and `make test` need nothing but Python 3.11-3.13: each makes the environment it needs.

VENV ?= .venv
BIN := $(VENV)/bin
# The first interpreter that TensorFlow 2.21 has wheels for.
PYTHON ?= $(shell for p in python3 python3.12 python3.11 python3.13 python; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && echo $$p && break; done)
# A process per processor; the tests of a file share what is fitted for them.
PYTEST_ARGS ?= -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: help demo test test-all lint format docs studio-shots bench clean

help:
	@echo "make demo      train, evaluate, score, recommend and report on the embedded sample (about two minutes)"
	@echo "make test      the tests but the slow ones"
	@echo "make test-all  all tests"
	@echo "make lint      ruff, ruff format --check, mypy"
	@echo "make format    apply ruff's fixes and formatting"
	@echo "make docs      the API reference from the docstrings, as HTML in build/api"
	@echo "make bench     the benchmarks (long; results under benchmarks/)"
	@echo "make clean     remove the environment and caches"

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "No Python 3.11-3.13 found: install one, or say make PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv $(VENV) || { echo "python -m venv failed: on Debian and Ubuntu, apt install python3-venv"; exit 1; }

# A stamp per environment: installed again only when setup.py changes. Compiling every file of every
# package takes longer than installing them, so only what is imported is compiled, by importing it.
INSTALL := $(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check --editable
WARM := env -u PYTHONDONTWRITEBYTECODE TF_CPP_MIN_LOG_LEVEL=2 $(BIN)/python -c

$(VENV)/.installed: setup.py | $(BIN)/python
	$(INSTALL) '.[tensorflow]'
	@$(WARM) 'import simrec.jobs.demo, simrec.jobs.recommend, simrec.model.two_tower, tqdm, pandas'
	@touch $@

$(VENV)/.installed-test: setup.py | $(BIN)/python
	$(INSTALL) '.[test,ray]'
	@$(WARM) 'import simrec.jobs.demo, simrec.jobs.recommend, simrec.model.two_tower, tqdm, pandas'
	@$(WARM) 'import simrec.simec.keras, hypothesis, pytest, ray, sklearn' 2>/dev/null
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-bench: setup.py $(VENV)/.installed-test
	$(INSTALL) '.[test,ray,bench]'
	@touch $@

demo: $(VENV)/.installed
	$(BIN)/simrec demo

# Tests start many processes: none is to compile again what another has.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest

test: $(VENV)/.installed-test
	$(PYTEST) $(PYTEST_ARGS) -m "not slow"

test-all: $(VENV)/.installed-test
	$(PYTEST) $(PYTEST_ARGS)

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

API ?= build/api

docs: $(VENV)/.installed-test
	$(BIN)/python docs/reference.py $(API)
	@echo "open $(API)/index.html"

studio-shots: $(VENV)/.installed-test
	$(BIN)/python docs/studio_shots.py docs

bench: $(VENV)/.installed-bench
	set -e; for f in benchmarks/*.py; do case $$f in */_*) ;; *) echo "== $$f"; $(BIN)/python $$f;; esac; done

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
