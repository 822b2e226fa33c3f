# make demo | make test: each works on a fresh machine and installs everything only once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
FOR_TESTS := $(VENV)/.installed-test
WITH_TORCH := $(VENV)/.installed-torch
FOR_DRILLS := $(VENV)/.installed-drills
FOR_DOCS := $(VENV)/.installed-docs
PIP := $(BIN)/python -m pip --disable-pip-version-check
NEW_ENOUGH := -c "import sys; sys.exit(sys.version_info < (3, 11))"
# Use the newest pip, because that of Python 3.11 takes twice as long to resolve versions.
MADE = { $(BIN)/python $(NEW_ENOUGH) && $(PIP) --version; } >/dev/null 2>&1 || { \
	$(PYTHON) $(NEW_ENOUGH) || { echo "$(PYTHON) is missing or older than 3.11: choose a newer one, as in make demo PYTHON=python3.12"; exit 2; }; \
	$(PYTHON) -m venv --clear --upgrade-deps $(VENV); }
# Python compiles modules on import. Compiling everything up front would take half of the installation time.
INSTALL := $(PIP) install --quiet --no-compile
# If this is set, each of the tests' hundreds of processes compiles all its imports, which takes 4 s instead of 1 s.
unexport PYTHONDONTWRITEBYTECODE
# launch/gcloud_tpu.sh reads this name too, and is tested.
unexport PYTHON

.PHONY: browser demo docs links test drills lint types floors install clean

# Reinstall only when the requirements have changed. The demo does not install test dependencies.
$(INSTALLED): setup.cfg setup.py pyproject.toml
	@$(MADE)
	$(INSTALL) -e .
	touch $@

$(FOR_TESTS): setup.cfg setup.py pyproject.toml
	@$(MADE)
	$(INSTALL) -e '.[test]'
	touch $(INSTALLED) $@

$(WITH_TORCH): $(FOR_TESTS)
	$(INSTALL) -e '.[parity]'
	touch $@

$(FOR_DRILLS): $(WITH_TORCH)
	$(INSTALL) -e '.[test,parity,docs,emulators,export,formats,mlflow,ray,report,serve,wandb]'
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

# Check types while installing PyTorch; each uses one core.
test: lint floors
	$(MAKE) --no-print-directory -j 2 types $(WITH_TORCH)
	$(BIN)/python -m pytest -m "not drill" -n 2 --dist worksteal --durations=25

# Long-running tests: faults at random moments, many processes, whole runs.
drills: $(FOR_DRILLS)
	$(BIN)/python -m pytest -m drill -n 2 --dist loadfile --durations=25

# Install Debian's Chromium and its driver for tests of web pages, which are skipped otherwise.
browser: $(FOR_TESTS)
	command -v chromium >/dev/null || (apt-get update && apt-get install --yes --no-install-recommends chromium)
	$(INSTALL) playwright

# Build the documentation site, site/index.html, which works offline. Warnings are errors.
docs: $(FOR_DOCS)
	$(BIN)/python docs/_site/stage.py build/docs
	rm -rf site
	$(BIN)/python -m sphinx -W --keep-going -q -E -b html -c docs/_site build/docs site
	$(BIN)/python docs/_site/links.py site
	@echo "site/index.html; to serve it to other devices, with search: python -m http.server -d site"

# Check links to other sites. This needs network access.
links:
	$(PYTHON) docs/_site/external.py

clean:
	rm -rf $(VENV) runs site build/docs .mypy_cache .pytest_cache .ruff_cache
