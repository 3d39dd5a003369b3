# The project's commands. Each sets up .venv first, which takes minutes once.
.DEFAULT_GOAL := help
.PHONY: help setup train test test-fast test-long faults fuzz clusters lint format clean
BIN := .venv/bin
# Each pytest worker would spend seconds to compile all tests again.
unexport PYTHONDONTWRITEBYTECODE

help:  ## list these commands
	@sed -n 's/^\([a-z-]*\):.*## /    make \1\t/p' Makefile
	@echo '    ARGS="..." adds arguments to train, test and faults; PYTHON=python3.12 chooses the Python of a new .venv.'

setup:  ## set up the environment .venv
	@sh ./setup.sh

train: setup  ## train a language model (ARGS="--config=config:debug" for another one)
	$(BIN)/python train.py $(or $(ARGS),--config=config:base)

PYTEST = $(BIN)/python -m pytest -n auto --maxprocesses=4 --dist=loadgroup

test: setup  ## run the tests (ARGS="tests/test_layout.py -x" for some of them)
	$(PYTEST) $(ARGS)

test-fast: setup  ## run the quick tests, while editing
	$(PYTEST) -m "not slow and not long" $(ARGS)

test-long: setup  ## run all tests, including those that take minutes
	$(PYTEST) -m "long or not long" $(ARGS)

FAULTS = OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m faults
THOUSAND = "--num=880" "--elastic --num=30" "--machines --num=50" "--sweeps --num=40"

faults: setup  ## inject a thousand faults into runs and sweeps, and print the outcomes
ifdef ARGS
	$(FAULTS) $(ARGS)
else
	@status=0; for kind in $(THOUSAND); do $(FAULTS) $$kind || status=1; done; exit $$status
endif

fuzz: setup  ## change the files that are read at random, for an hour
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz.py $(or $(ARGS),--minutes=60)

clusters: setup  ## test sweeps on Ray with several nodes, and on Slurm if installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[ray,slurm]'
	$(BIN)/python -m pytest -n0 $(or $(ARGS),$(wildcard tests/sweep/test_ray.py tests/sweep/test_slurm*.py))

lint: setup  ## check style and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/basedpyright

format: setup  ## fix what the linter can fix, and format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:  ## delete the environment and caches; runs are kept
	rm -rf .venv build dist src/*.egg-info .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
