# The project's commands. Each sets up .venv by itself first, which takes minutes once and nothing later.
.DEFAULT_GOAL := help
.PHONY: help setup train test test-fast test-long faults clusters lint format clean
BIN := .venv/bin
# Each pytest worker would spend seconds to compile all tests again.
unexport PYTHONDONTWRITEBYTECODE

help:  ## list these commands
	@sed -n 's/^\([a-z-]*\):.*## /    make \1\t/p' Makefile
	@echo '    ARGS="..." adds arguments to train, test and faults; PYTHON=python3.12 chooses the Python of a new .venv.'

setup:  ## make the environment .venv ready
	@sh ./setup.sh

train: setup  ## train a language model (ARGS="--config=config:debug" another one)
	$(BIN)/python train.py $(or $(ARGS),--config=config:base)

PYTEST = $(BIN)/python -m pytest -n auto --maxprocesses=4 --dist=loadgroup

test: setup  ## run the tests (ARGS="tests/test_layout.py -x" some of them)
	$(PYTEST) $(ARGS)

test-fast: setup  ## run the tests that take moments: what to run while you edit
	$(PYTEST) -m "not slow and not long" $(ARGS)

test-long: setup  ## run all tests, those that take minutes too
	$(PYTEST) -m "long or not long" $(ARGS)

faults: setup  ## kill and damage runs a thousand times, and print how they ended
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m faults $(or $(ARGS),--num=1000)

clusters: setup  ## test sweeps on a Ray of several nodes, and on Slurm where it is installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[ray,slurm]'
	$(BIN)/python -m pytest -n0 $(or $(ARGS),$(wildcard tests/sweep/test_ray.py tests/sweep/test_slurm*.py))

lint: setup  ## check style and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/basedpyright

format: setup  ## mend what the linter can mend, and format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:  ## delete the environment and what tools left; runs stay
	rm -rf .venv build dist src/*.egg-info .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
