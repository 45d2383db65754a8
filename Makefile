# Each target makes or refreshes .venv by itself; nothing else needs to be installed first.
PY := .venv/bin/python
ARGS ?=
export EVERYGRAD_TEST_DEVICES ?= cpu,webgpu

.PHONY: help demo test check bench fuzz clean venv-demo venv-dev venv-bench
.NOTPARALLEL:    # under -j, two targets must not fill one .venv at the same time

help:  ## list the targets (the default)
	@sed -nE 's/^([a-z]+):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 8

demo: venv-demo  ## train a small network on handwritten digits; pictures go to demo-output/
	@$(PY) examples/digits.py $(ARGS)

test: venv-dev  ## run all tests (EVERYGRAD_TEST_DEVICES=cpu,... ARGS="-k name")
	@$(PY) -m pytest -n 2 --dist worksteal $(ARGS)

check: venv-dev  ## lint, formatting and types
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

bench: venv-bench  ## time ours against PyTorch, torch.compile and JAX, side by side
	@$(PY) -m benchmarks --peers all --first $(ARGS)

fuzz: venv-dev  ## random programs, each run in every way (ARGS="--start 0 --seeds 1000 --minutes 5")
	@$(PY) -m everygrad.tools.fuzz $(ARGS)

clean:  ## remove caches and outputs (.venv stays)
	@rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist demo-output
	@find . -name .venv -prune -o -name __pycache__ -type d -exec rm -rf {} +

venv-demo venv-dev venv-bench: venv-%:
	@tools/bootstrap.sh $*
