# unseen: federated domain generalization. `make help` lists what there is.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --quiet --quiet --no-compile --disable-pip-version-check -c constraints.txt
# One thread per process: runs use processes for parallel work, and sums then have one order (see docs/architecture.md).
export OMP_NUM_THREADS := 1
# Python keeps what it compiled, also where the machine's environment says not to: torch is compiled anew by every process
# else, and that takes half of the time of a short run (--no-compile below leaves the rest, which nothing imports).
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test example flower check results bench clean site docs dist

help: ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1 \t/' | expand -t 16

setup: $(STAMP) ## make .venv and install unseen with everything the tests need

$(STAMP): pyproject.toml constraints.txt
	@echo "making $(VENV) and installing (about a minute)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "unseen needs Python 3.11 or later: make PYTHON=python3.11 ..."; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --quiet --no-compile --disable-pip-version-check -c constraints.txt torch -e '.[flower,dev]'
	@touch $@

demo: setup ## train three styles of digits together, test on the fourth, with two methods; write the report
	@$(BIN)/unseen bench --data digits --methods fedavg,gperxan --targets street --seeds 0 --rounds 10 --workers 2 --out demo
	@$(BIN)/unseen report demo
	@echo "look next: open demo/report.html;  $(BIN)/unseen show demo;  $(BIN)/unseen methods gperxan"

# Tests that take minutes of real Flower processes. One process: two deployments at once would run into each other's time-outs.
EXAMPLE := tests/engines/test_flower_same_bits.py tests/engines/test_flower_example.py
FLOWER := $(EXAMPLE) tests/engines/test_flower_faults.py tests/engines/test_flower_every_method.py

test: setup ## all tests but those of `make flower` (two processes)
	@$(BIN)/python -m pytest -n 2 --dist loadfile $(FLOWER:%=--ignore %)

flower: setup ## real Flower processes: the hospital example; sites killed, lying and coming back; every method deployed
	@$(BIN)/python -m pytest $(FLOWER) --durations 10

example: setup ## real Flower processes: a deployment has the local engine's bits; the hospital example
	@$(BIN)/python -m pytest $(EXAMPLE)

check: setup ## format, lint, types, import rules
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest -q tests/test_architecture.py

results: setup ## write the numbers of the documentation anew, from benchmarks/results
	@$(BIN)/python benchmarks/results.py write

bench: setup ## speed, as ratios measured side by side
	@for file in benchmarks/overhead.py benchmarks/store.py benchmarks/clients.py benchmarks/kernels.py benchmarks/server.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done
	@$(BIN)/unseen cost --methods all

site: setup # the packages that build the documentation site
	@$(BIN)/python -c 'import mkdocs, mkdocstrings, latex2mathml' 2>/dev/null || $(PIP) -e '.[docs]'

docs: site ## the documentation site, in build/site; a broken link is an error; no network once its packages are there
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "open build/site/index.html"

dist: setup ## sdist and wheel in dist; the wheel is installed into an empty environment and tried there
	@$(BIN)/python -c 'import build' 2>/dev/null || $(PIP) -e '.[release]'
	@rm -rf dist build/dist-venv build/dist-run
	@$(BIN)/python -m build --outdir dist .
	@$(PYTHON) -m venv build/dist-venv
	@build/dist-venv/bin/python -m pip install --quiet --quiet --no-compile --disable-pip-version-check -c constraints.txt dist/*.whl
	@cd build && dist-venv/bin/unseen --version && dist-venv/bin/unseen run --data digits --target street --rounds 1 --local-steps 1 --workers 1 --out dist-run
	@rm -rf build/dist-venv build/dist-run

clean: ## remove .venv and what tests and demo left
	rm -rf $(VENV) demo build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
