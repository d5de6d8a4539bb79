# Two commands need nothing but Python 3.11+ and make: `make demo` and `make test`.
# Each makes and fills .venv by itself.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.filled
SOURCES := emceepee_stdio tests bench scripts
# For two cores: tests wait a good part of their time.
WORKERS ?= 3
MINUTES ?= 30
# What `make test` runs in its own process or in forks, once more with fresh processes.
REAL_SAMPLE := $(addprefix tests/e2e/test_,front_cancel.py front_questions.py front_results.py \
	front_losses.py tools_input.py backend_life.py shutdown.py cli_call.py front_http.py keyring.py \
	config_watch.py front_partings.py)
# What needs nothing of /proc, neither the product nor the harness.
WITHOUT_PROC := $(addprefix tests/e2e/test_,processes.py stdio_failures.py idle_stop.py)
SEED ?= 1
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
# ASYNC124: a tool is async by contract, also where it has nothing to wait for. It reads each file
# on its own and takes long for each, so the files are split over all cores.
FLAKE8_ASYNC := xargs -r -n 20 -P $(CORES) $(BIN)/flake8-async --anyio --enable ASYNC \
	--disable ASYNC9,ASYNC124 --startable-in-context-manager run,heed_signals,_own

# Modules that differ from the branch that a change starts from, or are new; all that exist.
BASE = $(shell git merge-base HEAD origin/main 2>/dev/null || echo HEAD)
CHANGED = { git diff --name-only --diff-filter=d $(BASE); git ls-files --others --exclude-standard; } \
	| { grep '^emceepee_stdio/.*\.py$$' || true; } | sort -u

.DEFAULT_GOAL := help
.PHONY: help venv demo peers peers-slow test test-slow test-real quick check check-slow check-windows test-without-proc fmt lint types imports size deps docs docs-check soak bench bench-search bundle clean

help: ## Show this list.
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "emceepee needs Python 3.11 or newer; say which one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "Filling $(VENV): about 90 packages, a minute or two the first time."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

venv: $(STAMP) ## Create and fill .venv, and nothing else.

demo: $(STAMP) ## See the product at work.
	$(BIN)/emceepee demo

peers: $(STAMP) ## Install the third-party servers and clients that the tests talk to.
	$(BIN)/python scripts/peers.py

peers-slow: $(STAMP) ## Install what only the slow tests talk to.
	$(BIN)/python scripts/peers.py slow

test: peers ## Run every test that is not slow.
	$(BIN)/pytest -n $(WORKERS) --durations 10 --cov=emceepee_stdio/state --cov-report=
	$(BIN)/coverage report --fail-under=95

quick: $(STAMP) ## The checks of a minute or two: changed files, types for Linux, unit tests.
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(CHANGED) | $(FLAKE8_ASYNC)
	$(BIN)/basedpyright --pythonplatform Linux
	$(MAKE) --no-print-directory imports size docs-check
	$(BIN)/pytest -q -n $(WORKERS) tests/unit

check: $(STAMP) ## Everything that must hold before a change lands.
	@$(BIN)/python scripts/run_parts.py lint types imports size deps docs-check test

check-slow: $(STAMP) ## What takes longer: the official conformance suite, real hosts.
	@$(BIN)/python scripts/run_parts.py peers peers-slow test-slow test-real test-without-proc

test-slow: $(STAMP)
	$(BIN)/pytest -n $(WORKERS) --durations 10 -m slow

test-real: $(STAMP)
	EMCEEPEE_TEST_REAL=1 $(BIN)/pytest -n $(WORKERS) --durations 10 $(REAL_SAMPLE)

check-windows: $(STAMP) ## The tests on Windows: under Wine on Debian, which this sets up.
	$(BIN)/python scripts/windows.py

test-without-proc: $(STAMP) ## The processes as on macOS: without /proc, and without what only Linux has.
	unshare -m sh -c 'mount -t tmpfs none /proc && PYTHONPATH=tests/without_proc EMCEEPEE_TEST_REAL=1 \
		exec $(BIN)/python -m pytest -p no:cacheprovider $(WITHOUT_PROC)'

fmt: $(STAMP) ## Format the code and fix what can be fixed.
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

lint: $(STAMP)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	find emceepee_stdio -name '*.py' | $(FLAKE8_ASYNC)

types: $(STAMP)
	$(BIN)/basedpyright --pythonplatform Linux
	$(BIN)/basedpyright --pythonplatform Darwin
	$(BIN)/basedpyright --pythonplatform Windows

imports: $(STAMP)
	$(BIN)/lint-imports
	$(BIN)/python scripts/check_names.py

size: $(STAMP)
	$(BIN)/python scripts/check_size.py

deps: $(STAMP)
	$(BIN)/deptry emceepee_stdio

docs: $(STAMP) ## Write the generated pages.
	$(BIN)/python scripts/generate_docs.py

docs-check: $(STAMP)
	$(BIN)/python scripts/generate_docs.py --check

soak: $(STAMP) ## Mix calls and faults for half an hour, and see that every promise holds.
	@mkdir -p .cache
	$(BIN)/python -m tests.faults --seed $(SEED) --minutes $(MINUTES) --json .cache/soak.json

bench: $(STAMP) ## Measure what the promises cost.
	$(BIN)/python -m bench

bench-search: $(STAMP) ## Judge the ranking of list_tools on public sets.
	$(BIN)/python -m bench.search

bundle: $(STAMP) ## Pack dist/emceepee.mcpb, which a double click installs in Claude Desktop.
	$(BIN)/python scripts/peers.py bundle
	$(BIN)/python scripts/bundle.py

clean: ## Remove everything that make made.
	rm -rf $(VENV) .cache build dist .coverage .hypothesis .import_linter_cache .pytest_cache .ruff_cache bench/results
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
