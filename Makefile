# What to type here. `make help` lists it.
PYTHON  ?= python3
VENV    ?= .venv
VENVS   ?= .cache/venvs
CACHE   ?= .cache
BIN     := $(VENV)/bin
READY   := $(VENV)/.ready
SUITES  ?= tests
# what a run promises to test besides, or fails: strace, faketime, root
REQUIRE ?=
SIDE_BY_SIDE ?= -n 2 --dist loadscope --no-loadscope-reorder -o faulthandler_timeout=200
export ICECHUNK_ARROW_CACHE = $(abspath $(CACHE))

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-newest soak lint format schemas notebooks bench clean

help: ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade 'pip>=25.1' # the first that installs dependency groups
	$(BIN)/python -m pip install -q -e '.[all]' --group dev
	@touch $(READY)

demo: $(READY) ## Set everything up and show the main job on a local disk
	$(BIN)/python notebooks/demo.py

test: $(READY) ## Set everything up and run all tests that need only Python and Java
	ICECHUNK_ARROW_REQUIRE=spark,$(REQUIRE) $(BIN)/python -m pytest $(SIDE_BY_SIDE) -m "not s3 and not storm and not delta" $(SUITES)

test-all: test ## All tests, on the oldest and the newest Python, with a real S3 server and Delta Lake
	ICECHUNK_ARROW_REQUIRE=s3,$(REQUIRE) $(BIN)/python -m pytest -m "(s3 or storm) and not delta" $(SUITES)
	ICECHUNK_ARROW_REQUIRE=spark,delta,$(REQUIRE) $(BIN)/python -m pytest -m delta $(SUITES)
	$(MAKE) test-newest

test-newest: $(READY) ## All tests but the storms, on the newest Python that is installed
	$(eval NEWEST := $(shell $(PYTHON) .ci/newest_python.py))
	@test -n "$(NEWEST)" || { echo "no Python newer than 3.11 was found; install 3.12 or 3.13"; exit 1; }
	$(MAKE) VENV=$(VENVS)/newest PYTHON=$(NEWEST) $(VENVS)/newest/.ready
	ICECHUNK_ARROW_REQUIRE=s3,other-python,$(REQUIRE) ICECHUNK_ARROW_OTHER_PYTHON=$(abspath $(BIN)/python) \
	    $(VENVS)/newest/bin/python -m pytest $(SIDE_BY_SIDE) -m "not storm and not spark and not delta" $(SUITES)

soak: $(READY) ## Storms with many seeds: SEED=1 MINUTES=0 COUNT= ONLY=
	$(BIN)/python -m tests.soak --seed $(or $(SEED),1) --minutes $(or $(MINUTES),0) $(if $(COUNT),--count $(COUNT)) --only '$(ONLY)'

lint: $(READY) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY) ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

schemas: $(READY) ## Write the published schemas anew
	$(BIN)/python -m icechunk_arrow.engine.published

notebooks: $(READY) ## Run the notebooks, and keep what they show
	$(BIN)/python -m tests.notebooks notebooks/*.ipynb

bench: ## Benchmarks against peers, in the newest Python's environment
	$(eval NEWEST := $(shell $(PYTHON) .ci/newest_python.py))
	@test -n "$(NEWEST)" || { echo "no Python newer than 3.11 was found; install 3.12 or 3.13"; exit 1; }
	$(MAKE) VENV=$(VENVS)/newest PYTHON=$(NEWEST) $(VENVS)/newest/.ready
	test -x $(VENVS)/peers/bin/python || { $(NEWEST) -m venv $(VENVS)/peers && \
	    $(VENVS)/peers/bin/python -m pip install -q 'icechunk>=2.3' zarr; }
	ICECHUNK_PEER_PYTHON=$(abspath $(VENVS)/peers/bin/python) $(VENVS)/newest/bin/python -m tests.benchmarks $(ARGS)

clean: ## Remove environments and caches
	rm -rf $(VENV) $(CACHE) .mypy_cache .ruff_cache .pytest_cache
