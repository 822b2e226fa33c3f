# make demo | make test: each works on a fresh machine and installs nothing twice.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
FOR_TESTS := $(VENV)/.installed-test
WITH_TORCH := $(VENV)/.installed-torch
FOR_DRILLS := $(VENV)/.installed-drills
FOR_DOCS := $(VENV)/.installed-docs
PIP := $(BIN)/python -m pip --disable-pip-version-check
# The newest pip: that of Python 3.11 takes twice as long to choose versions.
MADE = $(PIP) --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear --upgrade-deps $(VENV)
# Python compiles what it imports; to compile all that is installed takes half of an installation.
INSTALL := $(PIP) install --quiet --no-compile
# Where this is set, each of the hundreds of processes of the tests compiles all that it imports: 4 s in place of 1.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: browser demo docs links test drills lint types floors install clean

# Installed again only when what is to be installed has changed. The demo needs nothing that only tests need.
$(INSTALLED): setup.cfg setup.py pyproject.toml
	$(MADE)
	$(INSTALL) -e .
	touch $@

$(FOR_TESTS): setup.cfg setup.py pyproject.toml
	$(MADE)
	$(INSTALL) -e '.[test]'
	touch $(INSTALLED) $@

$(WITH_TORCH): $(FOR_TESTS)
	$(INSTALL) -e '.[parity]'
	touch $@

$(FOR_DRILLS): $(WITH_TORCH)
	$(INSTALL) -e '.[test,parity,docs,emulators,export,mlflow,report,serve,wandb]'
	touch $@

$(FOR_DOCS): $(INSTALLED)
	$(INSTALL) -e '.[docs]'
	touch $@

install: $(WITH_TORCH)

demo: $(INSTALLED)
	$(BIN)/python train.py --config=configs/cldr_en_de.py --workdir=runs/demo
	$(BIN)/python decode.py --workdir=runs/demo --split=test --output=runs/demo/test.de --show=8

lint: $(FOR_TESTS)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(FOR_TESTS)
	$(BIN)/mypy

floors: $(FOR_TESTS)
	$(BIN)/lint-imports

# Types are checked while PyTorch is installed: each takes one core.
test: lint floors
	$(MAKE) --no-print-directory -j 2 types $(WITH_TORCH)
	$(BIN)/python -m pytest -m "not drill" -n 2 --dist worksteal --durations=25

# Rehearsals that take long: faults at random moments, many processes, whole runs. The table goes to docs/reliability.md.
drills: $(FOR_DRILLS)
	$(BIN)/python -m pytest -m drill -n 2 --dist loadfile -p tests.drills --drill-report=docs/reliability.md

# For the tests of pages, which are skipped without: Debian's Chromium and what drives it.
browser: $(FOR_TESTS)
	command -v chromium >/dev/null || (apt-get update && apt-get install --yes --no-install-recommends chromium)
	$(INSTALL) playwright

# The documentation as a site, which opens without a network: site/index.html. Warnings are errors.
docs: $(FOR_DOCS)
	$(BIN)/python docs/_site/stage.py build/docs
	rm -rf site
	$(BIN)/python -m sphinx -W --keep-going -q -E -b html -c docs/_site build/docs site
	$(BIN)/python docs/_site/links.py site
	@echo "site/index.html; for search on a phone or from elsewhere: python -m http.server -d site"

# Links to other sites, where there is a network.
links:
	$(PYTHON) docs/_site/external.py

clean:
	rm -rf $(VENV) runs site build/docs .mypy_cache .pytest_cache .ruff_cache
