# make demo    install into .venv and denoise a bundled image
# make test    install into .venv, then lint, types and the fast tests
# make test-slow   the statistical runs that take minutes
# make examples    the paper's synthetic experiments, about half an hour on two cores
# make docs    build the documentation into site/, every warning an error
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PYTHONUTF8 := 1

.PHONY: demo test test-slow lint examples docs clean

# The pinned torch is fetched first and by its exact version: a range would pull gigabytes of CUDA on a machine without a GPU.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,tensorboard]'
	touch $@

demo: $(VENV)/.installed
	$(BIN)/python -m inverseflow.demo --output demo_output

test: lint
	$(BIN)/python -m pytest -n 2

test-slow: $(VENV)/.installed
	$(BIN)/python -m pytest -m slow -s

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

examples: $(VENV)/.installed
	for name in eight_gaussians generate_clean uncertainty custom_noise navier_stokes; do $(BIN)/python examples/$$name.py --output out/$$name || exit 1; done

docs: $(VENV)/.installed
	$(BIN)/mkdocs build --strict --site-dir site

clean:
	rm -rf $(VENV) demo_output out .pytest_cache .mypy_cache .ruff_cache
