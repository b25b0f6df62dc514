# Every target sets up what it needs; only Python >= 3.11, pip and make must be there before.
#   make test ARGS="-k claim"      make setup PYTHON=python3.13      VENV=/elsewhere works too

VENV ?= .venv
BIN := $(VENV)/bin
SUITABLE := -c 'import sys; sys.exit(sys.version_info < (3, 11))'
PYTHON ?= $(shell for one in python3 python3.13 python3.12 python3.11 python3.14 python; do \
	if $$one $(SUITABLE) >/dev/null 2>&1; then echo $$one; break; fi; done)
PIP := $(BIN)/python -m pip --disable-pip-version-check
DEV := $(VENV)/.installed-dev
DEMO := $(VENV)/.installed-demo
ARGS ?=

.PHONY: help setup check fix test faults demo bench bench-peers docs clean
.DELETE_ON_ERROR:

help:
	@echo "make setup | check | fix | test | faults | demo | bench | bench-peers | docs | clean      (ARGS=... goes to pytest, the bench, the demo)"

setup: $(DEV)

check: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fix: $(DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Most tests wait for leases and processes: three at a time suit two cores.
JOBS ?= 3
test: $(DEV)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(ARGS)

# Workers under random faults for so long; docs/proof.md says what is done and what is checked.
MINUTES ?= 10
faults: $(DEV)
	$(BIN)/python -m tests.faults --minutes $(MINUTES) $(ARGS)

demo: $(DEMO)
	$(BIN)/python -m onceflow.demo $(ARGS)

bench: $(DEV)
	$(BIN)/python -m bench $(ARGS)

# Installs other engines, each into a virtual environment under .bench/, and measures them beside ours.
bench-peers: $(DEV)
	$(BIN)/python -m bench --peers $(ARGS)

# The documentation is Markdown; making it means running every block and example in it.
docs: $(DEV)
	$(BIN)/python -m pytest tests/examples $(ARGS)

clean:
	rm -rf $(VENV) dist .mypy_cache .ruff_cache .hypothesis .import_linter_cache .pytest_cache
	find src tests bench docs examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "No Python >= 3.11 found. Install one, or name it: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) $(SUITABLE) || { echo "$(PYTHON) is older than Python 3.11: make PYTHON=/path/to/python3" >&2; exit 1; }
# A Debian without python3-venv has no ensurepip; the system's pip then puts one into the new environment.
	$(PYTHON) -m venv $(VENV) || { $(PYTHON) -m venv --clear --without-pip $(VENV) && \
		$(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }

# The dev installation holds the demo's, so the demo's stamp is enough after either.
$(DEV): pyproject.toml | $(BIN)/python
	$(PIP) install --quiet -e ".[dev]"
	@touch $(DEV) $(DEMO)

$(DEMO): pyproject.toml | $(BIN)/python
	$(PIP) install --quiet -e ".[demo]"
	@touch $@
