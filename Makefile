# make plan   answer for examples/four-workloads.yaml (or SCENARIO=…, OUT=…)
# make test   lint, type-check, import rules and the whole test suite
# make test-vllm  every scheduled step of fresh workloads against vLLM's own scheduler, and a profile measured on this
#             machine's CPUs, fitted, and predicting traffic it has not seen (2.5 GB in .venv-vllm, once; no GPU; 15 minutes)
# make measure-cpu  the same measurement in full, into docs/methods/measured/cpu: 20 minutes of a quiet machine
# make bench  speed of the simulation kernel
# make profiles  fit all shipped profiles anew from hardware_profiles/measurements (NAMES='h100/*'; an hour of one core)
# make docs   write the tables in docs/ anew that commands print
# make lock   write requirements-dev.txt anew from pyproject.toml
# make clean  remove the environments and caches; results in out/ stay
#
# Needs GNU make and Python 3.11 or newer, nothing else; no root. PYTHON=… chooses the interpreter. test-vllm needs
# Python 3.11 itself (VLLM_BASE_PYTHON=…), or an environment that is there already (GOODFLEET_VLLM_PYTHON=…).

SCENARIO ?= examples/four-workloads.yaml
OUT ?= out/$(basename $(notdir $(SCENARIO)))

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
PIP_INSTALL := $(PIP) install --quiet
PIP_COMPILE := pip-compile --quiet --extra dev --generate-hashes --strip-extras --allow-unsafe \
	--no-emit-index-url --no-emit-find-links --no-emit-trusted-host

VLLM_VENV := .venv-vllm
VLLM_BASE_PYTHON ?= python3.11
VLLM_PIP_INSTALL := $(VLLM_VENV)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps
VLLM_PY := $(or $(GOODFLEET_VLLM_PYTHON),$(VLLM_VENV)/bin/python)

unexport PYTHONPATH PYTHONHOME

# Steps share one environment, and pytest's summary comes last: never side by side, not even under make -j.
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: plan profiles docs test test-vllm measure-cpu bench lock clean FORCE

plan: $(VENV)/.plan
	$(VENV)/bin/goodfleet plan "$(SCENARIO)" --out "$(OUT)"

test: $(VENV)/.dev
	$(PY) -m ruff check
	$(PY) -m mypy
	$(VENV)/bin/lint-imports
	$(PY) -m pytest

test-vllm: $(VENV)/.dev $(if $(GOODFLEET_VLLM_PYTHON),,$(VLLM_VENV)/.installed)
	GOODFLEET_VLLM_PYTHON="$(VLLM_PY)" GOODFLEET_VLLM_REQUIRED=1 $(PY) -m pytest -m hardware \
	    tests/differential tests/hardware -s

measure-cpu: $(VENV)/.dev $(if $(GOODFLEET_VLLM_PYTHON),,$(VLLM_VENV)/.installed)
	GOODFLEET_VLLM_PYTHON="$(VLLM_PY)" $(PY) -m tests.hardware.measure_cpu out/measure-cpu \
	    --publish docs/methods/measured/cpu

profiles: $(VENV)/.plan
	$(PY) -m planner.refit $(NAMES)

docs: $(VENV)/.dev
	$(PY) tests/contract/test_doc_tables.py

bench: $(VENV)/.dev
	$(PY) -m pytest tests/bench -m bench -s

# The stamps, oldest first: .home (an environment for this folder), .plan (goodfleet and what it needs), .dev (and the pinned tools).
# A clone that was moved or copied, or whose Python is gone, gets a new environment: its scripts would run the old folder.
HOME_IS_HERE := $(shell [ "$$(cat $(VENV)/.home 2>/dev/null)" = "$$(pwd -P)" ] && $(PY) -c '' 2>/dev/null && echo yes)

$(VENV)/.home: $(if $(HOME_IS_HERE),,FORCE)
	@for python in $(if $(PYTHON),"$(PYTHON)",python3 python3.14 python3.13 python3.12 python3.11); do \
	    "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
	    echo "$$python -m venv $(VENV)"; \
	    "$$python" -m venv --clear $(VENV) && pwd -P > $@; \
	    exit; \
	done; \
	echo "goodfleet needs Python 3.11 or newer with its venv module; found none." >&2; \
	echo "Install one (on Debian and Ubuntu also the package python3-venv) or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3" >&2; \
	exit 1

$(VENV)/.plan: pyproject.toml $(VENV)/.home
	@echo "Installing goodfleet into $(VENV) (once; a few minutes at most)"
	$(PIP_INSTALL) --editable .
	@touch $@

$(VENV)/.dev: requirements-dev.txt pyproject.toml $(VENV)/.home
	@echo "Installing goodfleet and the pinned development tools into $(VENV) (once; a few minutes at most)"
	$(PIP_INSTALL) --require-hashes --requirement requirements-dev.txt
	$(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@touch $(VENV)/.plan $@

# vLLM lives apart (tests/vllm/README.md). Made anew when its pins change or its Python is gone; half of one is none.
VLLM_RUNS := $(shell $(VLLM_VENV)/bin/python -c '' 2>/dev/null && echo yes)

$(VLLM_VENV)/.installed: tests/vllm/requirements.txt tests/vllm/shim_vllm_metadata.py $(if $(VLLM_RUNS),,FORCE)
	@"$(VLLM_BASE_PYTHON)" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null || { \
	    echo "make test-vllm needs Python 3.11 with its venv module; $(VLLM_BASE_PYTHON) is not that." >&2; \
	    echo "Name one: make test-vllm VLLM_BASE_PYTHON=/path/to/python3.11, or the python of a vLLM environment:" >&2; \
	    echo "GOODFLEET_VLLM_PYTHON=/path/to/python (tests/vllm/README.md)" >&2; \
	    exit 1; \
	}
	@echo "Installing vLLM into $(VLLM_VENV) (once; 2.5 GB, some minutes)"
	"$(VLLM_BASE_PYTHON)" -m venv --clear $(VLLM_VENV)
	@$(VLLM_PIP_INSTALL) --requirement tests/vllm/requirements.txt && \
	$(VLLM_VENV)/bin/python tests/vllm/shim_vllm_metadata.py && \
	touch $@ || { \
	    echo "make test-vllm: vLLM could not be installed into $(VLLM_VENV); nothing was compared. The last lines of pip" >&2; \
	    echo "above say why, tests/vllm/README.md where the packages come from." >&2; \
	    exit 1; \
	}

# With the oldest supported Python, in an environment that is thrown away, and from the public registry only:
# hashes of files that lie on this machine alone would be of no use elsewhere.
lock:
	@tools=$$(mktemp -d) && trap 'rm -rf "$$tools"' EXIT && \
	$(if $(PYTHON),"$(PYTHON)",python3.11) -m venv "$$tools" && \
	"$$tools/bin/python" -m pip --disable-pip-version-check install --quiet pip-tools && \
	env -u PIP_FIND_LINKS -u PIP_EXTRA_INDEX_URL PIP_CONFIG_FILE=/dev/null CUSTOM_COMPILE_COMMAND="make lock" \
	    "$$tools/bin/"$(PIP_COMPILE) --output-file requirements-dev.txt pyproject.toml

clean:
	rm -rf $(VENV) $(VLLM_VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find hardware_profiles simulator planner validator tests -name __pycache__ -type d -prune -exec rm -rf {} +
