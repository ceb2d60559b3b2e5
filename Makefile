# make demo    install into .venv and denoise a bundled image
# make test    install into .venv, then lint, types and the fast tests
# make test-slow   the statistical runs that take minutes
# make soak     two hundred runs killed, half an hour without a pause, 2,000 damaged files: what breaks, grows or leaks
# make examples    the paper's synthetic experiments, about half an hour on two cores
# make docs    build the documentation into site/, every warning an error
# make audit-deps  known holes in the pinned dependencies; needs the network
# make test-oldest the fast core with the oldest versions that pyproject.toml allows, in .venv-oldest
# make sbom    dist/sbom.json, a CycloneDX bill of materials of what a plain install is
# make coverage    line coverage of src by the fast tests, child processes too; about a quarter of an hour
# make mutants     are mistakes in losses, noise and scaling noticed by the tests? About an hour
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PYTHONUTF8 := 1

.PHONY: audit-deps test-oldest sbom coverage mutants demo test soak test-slow lint examples docs clean

# The pinned torch is fetched first and by its exact version: a range would pull gigabytes of CUDA on a machine without a GPU.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,tensorboard]'
	touch $@

demo: $(VENV)/.installed
	$(BIN)/python -m inverseflow.demo --output demo_output

test: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-slow: $(VENV)/.installed
	$(BIN)/python -m pytest -m slow -s

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

soak: $(VENV)/.installed
	$(BIN)/python -m soak.kills --store
	$(BIN)/python -m soak.endurance --store
	$(BIN)/python -m soak.fuzz

examples: $(VENV)/.installed
	for name in eight_gaussians generate_clean uncertainty custom_noise navier_stokes; do $(BIN)/python examples/$$name.py --output out/$$name || exit 1; done

docs: $(VENV)/.installed
	$(BIN)/mkdocs build --strict --site-dir site

TOOLS := .venv-tools
$(TOOLS)/.installed:
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet 'pip-audit>=2.10' 'cyclonedx-bom>=7'
	touch $@

audit-deps: $(TOOLS)/.installed
	$(PYTHON) tools/audit_deps.py $(TOOLS)/bin/pip-audit

# The environment is that of the tests, as it is the one that constraints.txt describes.
sbom: $(TOOLS)/.installed $(VENV)/.installed
	mkdir -p dist
	$(TOOLS)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --of JSON -o dist/sbom.json $(BIN)/python

OLDEST := .venv-oldest
CORE := architecture losses process times nets patches noise noise_formulas io io_zarr tiling train denoiser estimate
$(OLDEST)/.installed: pyproject.toml constraints-oldest.txt
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet -c constraints.txt torch==2.13.0
	$(OLDEST)/bin/python -m pip install --quiet -c constraints-oldest.txt torch==2.13.0 -e '.[zarr,cluster,cells,tensorboard]' pytest pytest-xdist hypothesis 'pyparsing<3.3'
	touch $@

# torch stays at the pinned version: from PyPI its old releases are gigabytes of CUDA.
test-oldest: $(OLDEST)/.installed
	$(OLDEST)/bin/python -m pytest -n 2 $(CORE:%=tests/test_%.py)

coverage: $(VENV)/.installed
	$(BIN)/python -m pytest -n 2 --dist worksteal --cov --cov-report json:out/coverage.json
	$(BIN)/python tools/coverage_figures.py out/coverage.json

mutants: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet 'mutmut>=3.8'
	$(BIN)/python tools/mutants.py

clean:
	rm -rf $(VENV) $(OLDEST) $(TOOLS) demo_output out mutants .pytest_cache .mypy_cache .ruff_cache
