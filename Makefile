# Two commands: `make bench` sets up and runs the default bench, `make check` sets up and runs all
# checks. Both need Python 3.11 or newer (another one: make PYTHON=python3.12 bench).

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
CONFIG ?= default

ENGINES ?= build/engines

.PHONY: bench check claims clean endure engines fuzz house kills python

bench: $(VENV)/installed
	$(BIN)/dsv4kv bench $(CONFIG)

check: $(VENV)/installed-test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --num-workers auto
	$(BIN)/lint-imports
	$(BIN)/pytest --numprocesses auto --dist worksteal

# A million operations of every allocator, index and cache, with interruptions; about an hour.
endure: $(VENV)/installed-test
	DSV4KV_ENDURANCE_OPERATIONS=1000000 \
	  $(BIN)/pytest --numprocesses auto tests/cache/test_endurance.py

# Twenty thousand odd files for every command that reads one; about an hour.
fuzz: $(VENV)/installed-test
	$(BIN)/python -m tests.fuzz.run --cases 20000

# Two hundred kills at random instants; half an hour.
kills: $(VENV)/installed-test
	DSV4KV_KILLS=200 $(BIN)/pytest tests/test_kills.py

engines: $(VENV)/installed-test $(ENGINES)/unpacked
	DSV4KV_ENGINES=$(abspath $(ENGINES)) $(BIN)/pytest tests/engines/oracles

# vLLM's and SGLang's own cache managers run on a CPU, with stand-ins for what needs a GPU.
$(ENGINES)/unpacked: | python
	$(PYTHON) -m venv $(ENGINES)
	$(ENGINES)/bin/pip install --quiet --constraint constraints.txt torch msgspec orjson pyzmq psutil pydantic requests \
	  openai transformers regex cachetools prometheus_client pybase64 openai_harmony tqdm \
	  fastapi uvicorn aiohttp cloudpickle cbor2 dill huggingface_hub pillow numpy safetensors
	$(ENGINES)/bin/pip download --quiet --no-deps --dest $(ENGINES) vllm==0.33.0 sglang==0.5.23
	cd $(ENGINES) && for engine in vllm sglang; do \
	  bin/python -m zipfile --extract $$engine-*.whl $$engine; done
	touch $@

# The figures of docs/compare.md, simulated anew and written into it; ten minutes on one core.
claims: $(VENV)/installed-test
	$(BIN)/python -m tests.measure.claims

# The source tree as a newcomer meets it: modules, lines, rooms that a decode step crosses.
house: $(VENV)/installed-test
	$(BIN)/python -m tests.house

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
