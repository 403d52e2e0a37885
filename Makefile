# Two commands: `make bench` sets up and runs the default bench, `make check` sets up and runs all
# checks. Both need Python 3.11 or newer (another one: make PYTHON=python3.12 bench).

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
CONFIG ?= default

.PHONY: bench check clean endure python

bench: $(VENV)/installed
	$(BIN)/dsv4kv bench $(CONFIG)

check: $(VENV)/installed-test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --num-workers auto
	$(BIN)/pytest --numprocesses auto --dist worksteal

# A million operations of every allocator, index and cache, with interruptions; about an hour.
endure: $(VENV)/installed-test
	DSV4KV_ENDURANCE_OPERATIONS=1000000 \
	  $(BIN)/pytest --numprocesses auto tests/cache/test_endurance.py

clean:
	rm -rf $(VENV) build dist

python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "dsv4kv needs Python 3.11 or newer and $(PYTHON) is" \
	    "$$($(PYTHON) --version 2>/dev/null || echo not here):" \
	    "install one and name it, for example: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; \
	  exit 1; }

$(VENV)/bin/python: | python
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/installed-test: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@ $(VENV)/installed
