# make demo | make test: each works on a fresh machine and installs nothing twice.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test lint types floors install clean

# Installed again only when what is to be installed has changed.
$(INSTALLED): setup.cfg pyproject.toml
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]'
	touch $@

install: $(INSTALLED)

demo: $(INSTALLED)
	$(BIN)/python train.py --config=configs/cldr_en_de.py --workdir=runs/demo
	$(BIN)/python decode.py --workdir=runs/demo --split=test --output=runs/demo/test.de --show=8

lint: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(INSTALLED)
	$(BIN)/mypy

floors: $(INSTALLED)
	$(BIN)/lint-imports

test: lint types floors
	$(BIN)/python -m pytest -n 2 --dist worksteal --durations=15

clean:
	rm -rf $(VENV) runs .mypy_cache .pytest_cache .ruff_cache
