# Two commands: `make bench` sets up and runs the default bench, `make check` sets up and runs all
# checks. Both need Python 3.11 or newer (another one: make PYTHON=python3.12 bench).

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
CONFIG ?= default

ENGINES ?= build/engines

.PHONY: bench check check-fast clean compiled compilers core endure engines full fuzz house kills python reach shuffle site tour traces words

bench: $(VENV)/installed
	$(BIN)/dsv4kv bench $(CONFIG)

check: $(VENV)/installed-test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --num-workers auto
	$(BIN)/lint-imports
	DSV4KV_CORE=python $(BIN)/pytest --numprocesses auto --dist worksteal
	@if command -v cc > /dev/null; then $(MAKE) --no-print-directory compiled; \
	  else echo "no C compiler: the compiled core is not tested"; fi

# The replays that are pinned, and the engines' recorded answers, by the compiled core.
compiled: core
	DSV4KV_CORE=compiled $(BIN)/pytest --numprocesses auto --dist worksteal -q tests/goldens \
	  tests/engines/test_rules.py tests/engines/oracles tests/replay/test_rules_machine.py

# Within a minute, while working: none of the tests that tests/conftest.py calls slow, and
# ten examples of every property.
check-fast: $(VENV)/installed-test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	DSV4KV_HYPOTHESIS=fast $(BIN)/pytest --numprocesses auto --dist worksteal -m "not slow" -q

# Every variant of every property; `check` tries some of the dearest. Half an hour.
full: $(VENV)/installed-test
	DSV4KV_FULL=1 DSV4KV_COMPILERS=1 DSV4KV_WHOLE_TRACES=1 \
	  $(BIN)/pytest --numprocesses auto --dist worksteal

# The suite in ten random orders, to find tests that need another one to have run; two hours.
shuffle: $(VENV)/installed-test
	for seed in 1 2 3 4 5 6 7 8 9 10; do $(BIN)/pytest --numprocesses auto --dist worksteal -q \
	  --random-order-bucket=module --random-order-seed=$$seed || exit; done

# Machine code of every kernel by every NVRTC that has a baseline; `check` asks the newest.
compilers: $(VENV)/installed-test
	DSV4KV_COMPILERS=1 $(BIN)/pytest tests/kernels/test_compile.py

# All of the conversation trace: the policies against libCacheSim, of which `check` replays the
# beginning, and every rule of V4's groups, of which `check` replays one.
traces: $(VENV)/installed-test
	DSV4KV_WHOLE_TRACES=1 $(BIN)/pytest tests/core/test_policies_libcachesim.py tests/engines/test_rules.py

# A million steps of a cache that shares blocks and runs out of them; about an hour.
endure: $(VENV)/installed-test
	DSV4KV_ENDURANCE_OPERATIONS=1000000 \
	  $(BIN)/pytest --numprocesses auto tests/cache/test_sharing_machine.py

# Twenty thousand odd files for every command that reads one; about an hour.
fuzz: $(VENV)/installed-test
	$(BIN)/python -m tests.fuzz.run --cases 20000

# Two hundred kills at random instants; half an hour. Twenty in the middle of a thousand stores.
kills: $(VENV)/installed-test
	DSV4KV_KILLS=200 DSV4KV_STORE_KILLS=20 \
	  $(BIN)/pytest tests/test_kills.py tests/bench/tiers/test_kills.py

engines: $(VENV)/installed-test $(ENGINES)/unpacked
	DSV4KV_ENGINES=$(abspath $(ENGINES)) $(BIN)/pytest tests/engines/oracles

# vLLM's and SGLang's own cache managers run on a CPU, with stand-ins for what needs a GPU.
$(ENGINES)/unpacked: | python
	$(PYTHON) -m venv $(ENGINES)
	$(ENGINES)/bin/pip install --constraint constraints.txt torch msgspec orjson pyzmq psutil pydantic requests \
	  openai transformers regex cachetools py-cpuinfo einops prometheus_client triton pybase64 openai_harmony tqdm \
	  fastapi uvicorn aiohttp cloudpickle cbor2 dill huggingface_hub pillow numpy safetensors
	$(ENGINES)/bin/pip download --no-deps --dest $(ENGINES) vllm==0.33.0 sglang==0.5.23 lmcache==0.5.6
	cd $(ENGINES) && for engine in vllm sglang lmcache; do \
	  bin/python -m zipfile --extract $$engine-*.whl $$engine; done
	cd $(ENGINES) && for version in 0.5.21 0.5.22; do \
	  bin/pip download --no-deps --dest . sglang==$$version && \
	  bin/python -m zipfile --extract sglang-$$version-*.whl sglang-$$version; done
	cd $(ENGINES) && for version in 0.22.1 0.23.0; do \
	  bin/pip download --no-deps --dest . vllm==$$version && \
	  bin/python -m zipfile --extract vllm-$$version-*.whl vllm-$$version; done
	touch $@

# Every command of the README, the guides and the helps, as a new user types it: from a wheel, on
# a terminal of 80 columns, in a pipe, without colours and without UTF-8; an hour.
tour: $(VENV)/installed-test
	$(BIN)/python -m tests.tour

# Functions that no documented command calls: candidates for deletion. An hour.
reach: $(VENV)/installed-test
	$(BIN)/python -m tests.reach

# Compiles dsv4kv/core in place by mypyc, for an editable install; wheels carry it compiled.
core: $(VENV)/installed-test
	$(BIN)/python hatch_build.py

# The source tree as a newcomer meets it: modules, lines, rooms that a decode step crosses.
house: $(VENV)/installed-test
	$(BIN)/python -m tests.house

# Phrases that make pages, messages and docstrings hard to read.
words: $(VENV)/installed-test
	$(BIN)/python -m tests.words

# The documentation as a site with a gallery of pages, in build/site.
site: $(VENV)/installed
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[docs]'
	rm -rf build/gallery && mkdir -p build/gallery
	cd build/gallery && export PATH="$(abspath $(BIN)):$$PATH" && \
	  dsv4kv bench smoke --json > bench.json && dsv4kv report bench.json --html bench.html && \
	  dsv4kv bench smoke --data none --axis cache.block_tokens=128,256 \
	    --axis workload.concurrency=2,8 --json > sweep.json && \
	  dsv4kv report sweep.json --html sweep.html && \
	  dsv4kv replay builtin:chat --json > replay.json && \
	  dsv4kv report replay.json --html replay.html && \
	  dsv4kv bench smoke --launches 7 --json > before.json && \
	  dsv4kv bench smoke --launches 7 --json > after.json && \
	  { dsv4kv compare before.json after.json --html compare.html > /dev/null || true; }
	cp build/gallery/*.html docs/gallery/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

clean:
	rm -rf $(VENV) build dist

python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "dsv4kv needs Python 3.11 or newer and $(PYTHON) is" \
	    "$$($(PYTHON) --version 2>/dev/null || echo not here):" \
	    "install one and name it, for example: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; \
	  exit 1; }

# Python 3.11's own pip takes more than twice as long for all the others.
$(VENV)/bin/python: | python
	$(PYTHON) -m venv $(VENV)
	-$@ -m pip install --quiet 'pip>=26'

$(VENV)/installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing dsv4kv into $(VENV): torch with CUDA is most of the download."
	$(BIN)/python -m pip install --constraint constraints.txt --editable .
	touch $@

# Of ten thousand modules a test imports some: they are compiled then, which saves a minute.
$(VENV)/installed-test: pyproject.toml constraints.txt build/compilers/installed | $(VENV)/bin/python
	$(BIN)/python -m pip install --no-compile --constraint constraints.txt --editable '.[test]'
	touch $@ $(VENV)/installed

# What the kernels' tests compile with, next to the NVRTC that torch chooses in $(VENV).
build/compilers/installed: $(wildcard tests/compilers/*) | $(VENV)/bin/python
	mkdir -p $(@D)
	$(BIN)/python -m pip install --upgrade --target build/compilers/13.0 --requirement tests/compilers/13.0.txt
	$(BIN)/python -m pip install --upgrade --target build/compilers/13.5 --requirement tests/compilers/13.5.txt
	touch $@
