# Everything a checkout needs: `make demo` runs the main job, `make test` passes the tests.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
UV     := $(BIN)/uv
# A network that inspects TLS has its certificate in the system's store, where uv looks only when told to.
SYNC    = VIRTUAL_ENV=$(CURDIR)/$(VENV) $(UV) sync --quiet --compile-bytecode --frozen --active --inexact
sync    = $(SYNC) $(1) 2>/dev/null || $(SYNC) $(1) --system-certs
PIP     = $(UV) pip install --quiet
pip     = $(PIP) $(1) 2>/dev/null || $(PIP) $(1) --system-certs
ARGS   ?=
# Tests wait a good deal, for daemons and servers of their own.
WORKERS ?= 4
# Many images set it. Then each worker and each command under test would compile all that it imports, again and again.
unexport PYTHONDONTWRITEBYTECODE

SPARK     := .venv-spark
EVIDENTLY := .venv-evidently
TOOLS := .venv-tools
CLICKS := .cache/obp-0.5.7/PKG-INFO

.PHONY: demo test test-engines spark tools check audit docs same bench evaluate wheel clean setup
.DEFAULT_GOAL := help

help:
	@echo "make demo [ARGS=--once]   set up, fill a simulated shop, monitor it"
	@echo "make test                 set up, lint, type-check, run the tests"
	@echo "make test-engines         further engines, what takes long, benchmarks on a few rows, Spark (needs Java)"
	@echo "make check                ruff and mypy only"
	@echo "make audit                known vulnerabilities of what is installed, where osv.dev can be reached"
	@echo "make docs                 make the references and build the documentation into site/"
	@echo "make same                 does it behave as recorded? Minutes; needs the shared data for most of it"
	@echo "make bench                benchmarks, as ratios against floors and peers"
	@echo "make evaluate             the long runs (many kills, larger data); results under tests/benchmarks"
	@echo "make wheel                build dist/*.whl"

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("rankmon needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; try make PYTHON=python3.12") if sys.version_info < (3, 11) else 0'
	$(PYTHON) -m venv $(VENV)

$(UV): $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv>=0.5,<1'
	@touch $(UV)

$(VENV)/.run: pyproject.toml uv.lock $(UV)
	$(call sync,--no-default-groups)
	@touch $@

$(VENV)/.dev: pyproject.toml uv.lock $(UV)
	$(call sync,--group dev)
	@touch $@ $(VENV)/.run

$(VENV)/.bench: pyproject.toml uv.lock $(UV)
	$(call sync,--group dev --group bench)
	@touch $@ $(VENV)/.dev $(VENV)/.run

setup: $(VENV)/.dev

demo: $(VENV)/.run
	$(BIN)/rankmon demo $(ARGS)

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Of what is installed with rankmon and its extras. 1 means that something is known; else the advisories could not be had.
audit: $(UV)
	@$(UV) audit --quiet --frozen --no-dev --preview-features audit-command 2>$(VENV)/.audit || { \
	    [ $$? = 1 ] && exit 1; echo "not audited: $$(grep -m 1 error $(VENV)/.audit)"; }

docs: $(VENV)/.dev
	$(BIN)/python -m tests.support.references
	$(BIN)/python -m tests.support.house
	$(BIN)/zensical build --strict

same: $(VENV)/.dev
	$(BIN)/python -m tests.same $(or $(ARGS),compare)

test: check
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

# Spark wants an older pandas than we do.
$(SPARK)/.done: tests/support/spark-requirements.txt $(UV)
	$(BIN)/python -m venv --clear --without-pip $(SPARK)
	$(call pip,--python $(SPARK)/bin/python -r $<)
	@touch $@

spark: $(SPARK)/.done

$(TOOLS)/.done: tests/benchmarks/tools.txt $(UV)
	$(BIN)/python -m venv --clear --without-pip $(TOOLS)
	$(call pip,--python $(TOOLS)/bin/python -r $<)
	@touch $@

tools: $(TOOLS)/.done

# Public data with clicks at random places: a sample that comes with a package, of which nothing else is used.
$(CLICKS): $(VENV)/.dev
	$(BIN)/python -m pip download --quiet obp==0.5.7 --no-deps --no-binary obp --ignore-requires-python -d .cache
	tar xzf .cache/obp-0.5.7.tar.gz -C .cache
	@touch $@

test-engines: $(VENV)/.dev spark tools $(CLICKS)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m engines $(ARGS)
	$(BIN)/python -m pytest -m spark $(ARGS) tests/source/test_spark.py

# Evidently cannot be imported with the pandas that we have.
$(EVIDENTLY)/.done: tests/benchmarks/evidently.txt $(UV)
	$(BIN)/python -m venv --clear --without-pip $(EVIDENTLY)
	$(call pip,--python $(EVIDENTLY)/bin/python -r $<)
	@touch $@

bench: $(VENV)/.bench $(EVIDENTLY)/.done
	$(BIN)/python -m tests.benchmarks $(ARGS)

evaluate: $(VENV)/.bench $(EVIDENTLY)/.done spark
	$(BIN)/python -m tests.evaluate $(ARGS)

wheel: $(VENV)/.dev
	$(UV) build --quiet --wheel

clean:
	rm -rf $(VENV) $(SPARK) $(EVIDENTLY) $(TOOLS) dist build site .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
