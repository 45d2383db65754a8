# Each target makes or refreshes .venv by itself; nothing else needs to be installed first.
PY := .venv/bin/python
CUDA_PY ?= python3    # GPU machines bring CuPy and pytest, and may have no way to install more
ARGS ?=
export EVERYGRAD_TEST_DEVICES ?= cpu,webgpu

.PHONY: help demo gpt test test-cuda check bench bench-webgpu bench-cuda bench-models fuzz sweep zoo clean venv-demo venv-dev venv-bench venv-zoo
.NOTPARALLEL:    # under -j, two targets must not fill one .venv at the same time

help:  ## list the targets (the default)
	@sed -nE 's/^([a-z-]+):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

demo: venv-demo  ## train a small network on handwritten digits; demo-output/digits.png shows it
	@$(PY) examples/digits.py $(ARGS)

gpt: venv-demo  ## train a small GPT on Python's help texts (ARGS="--device webgpu")
	@$(PY) examples/gpt.py $(ARGS)

test: venv-dev  ## run all tests (EVERYGRAD_TEST_DEVICES=cpu,... ARGS="-k name")
	@$(PY) -m pytest -n 2 --dist worksteal $(ARGS)

test-cuda:  ## every test that takes a device, on an NVIDIA GPU; writes benchmarks/CUDA-TESTS.md
	@$(CUDA_PY) tools/cuda_report.py $(ARGS)

check: venv-dev  ## lint, formatting and types
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

bench: venv-bench  ## time ours against PyTorch, torch.compile and JAX, side by side
	@$(PY) -m benchmarks --peers all --first $(ARGS)
	@$(PY) -m benchmarks.loader
	@$(PY) -m benchmarks.gpt_training

bench-webgpu: venv-bench  ## what a GPU does through WebGPU, and the MLP step beside tinygrad
	@$(PY) -m benchmarks.webgpu $(ARGS)

bench-cuda:  ## everygrad on an NVIDIA GPU beside PyTorch and JAX; writes benchmarks/CUDA.md
	@$(CUDA_PY) -m benchmarks.cuda --write $(ARGS)

bench-models: venv-bench  ## training steps of whole networks beside PyTorch (ARGS="--device cpu --write")
	@$(PY) -m benchmarks.models $(ARGS)

fuzz: venv-dev  ## random programs, each run in every way (ARGS="--start 0 --seeds 1000 --minutes 5")
	@$(PY) -m devtools.fuzz $(ARGS)

sweep: venv-dev  ## shapes at the edges of every kernel (ARGS="--minutes 60 --device cpu --start 0")
	@$(PY) -m devtools.sweep $(ARGS)

zoo: venv-zoo  ## 40 architectures of PyTorch's, compiled and imported; writes benchmarks/ZOO.md
	@$(PY) -m devtools.zoo $(ARGS)

clean:  ## remove caches and outputs (.venv stays)
	@rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist demo-output
	@find . -name .venv -prune -o -name __pycache__ -type d -exec rm -rf {} +

venv-demo venv-dev venv-bench venv-zoo: venv-%:
	@tools/bootstrap.sh $*
