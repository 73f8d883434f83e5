# Every target makes the virtual environment it needs, once; nothing has to be installed by hand.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# pip is the default because it finds CPU builds of torch that a machine provides; uv takes the registry's build, which on
# Linux brings several gigabytes of GPU libraries. `make UV=uv ...` uses uv all the same.
UV ?=

# Drives the page in `make test-browser`.
CHROMIUM ?= chromium

.PHONY: demo test test-slow test-paper test-browser lint format docs dist bench recipes results clean

demo: $(READY)
	$(BIN)/clom demo

test: $(READY)
	$(BIN)/python -m pytest -n 2

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

# A part of the slow tests that takes less than a minute: the paper's recipes on one of its experiments.
test-paper: $(READY)
	$(BIN)/python -m pytest -m slow tests/experiments/test_paper_recipes_run.py -k cifar10-5t

test-browser: $(VENV)/.browser
	@command -v "$(CHROMIUM)" > /dev/null || { echo "The browser test needs chromium. On Debian: apt install chromium" \
		"(or name yours: make test-browser CHROMIUM=/path/to/chrome)"; exit 1; }
	CHROMIUM="$(CHROMIUM)" $(BIN)/python -m pytest -m browser tests/serve

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Into build/site; open build/site/index.html. The variable silences an announcement of the theme's successor.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# The sdist and the wheel, into dist/, tried in an empty environment. It makes its own and does not use $(VENV).
dist:
	$(PYTHON) release/make_dist.py

bench: $(READY)
	$(BIN)/python -m benchmarks

recipes: $(READY)
	$(BIN)/clom recipes

results: $(READY)
	$(BIN)/clom results

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist src/*.egg-info

$(READY): pyproject.toml constraints.txt
	@echo "Setting up $(VENV) (a few minutes, once) ..."
ifeq ($(UV),)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
else
	$(UV) venv --quiet --python $(PYTHON) $(VENV)
	$(UV) pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[dev]'
endif
	@touch $(READY)

$(VENV)/.browser: $(READY)
ifeq ($(UV),)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[browser]'
else
	$(UV) pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[browser]'
endif
	@touch $@
