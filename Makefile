# Everything that a newcomer or CI runs. Each target makes what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

# albumentations would ask the network for a newer version.
export NO_ALBUMENTATIONS_UPDATE := 1

.PHONY: demo test lint bench chaos zoo browser clean

demo: $(VENV)/.demo
	$(BIN)/python examples/digits.py

test: $(VENV)/.test
	$(BIN)/pytest -n 2

lint: $(VENV)/.test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: $(VENV)/.bench
	$(BIN)/python benchmarks/run.py

chaos: $(VENV)/.test
	$(BIN)/python tests/chaos.py

zoo: $(VENV)/.test
	$(BIN)/pytest -n 2 tests/every_seed.py

browser: $(VENV)/.test
	$(BIN)/pytest tests/browser.py

clean:
	rm -rf $(VENV) build

$(VENV)/.%: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --editable '.[$*]'
	touch $@

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
