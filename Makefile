# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
LOCK := cluster/requirements-cpu.lock

# GSM8K, LongHealth and SkillsBench as downloaded, in folders gsm8k/, longhealth/ and skillsbench/.
LPC_DATASETS ?= datasets

.PHONY: demo serve test test-long soak test-datasets check unit docs install sandbox browser
.DEFAULT_GOAL := demo

install: $(VENV)/.installed

# torch's CPU build has a local version that the usual index does not carry: configured indexes first, then PyTorch's own.
$(VENV)/.installed: $(LOCK) pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip uv
	$(BIN)/pip install --quiet --no-deps $$(grep '^torch==' $(LOCK)) || \
		$(BIN)/pip install --quiet --no-deps --index-url $(TORCH_INDEX) $$(grep '^torch==' $(LOCK))
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --compile-bytecode -r $(LOCK)
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

# System packages, not Python's: verifiers run replies' programs under bubblewrap, and a page is tested in Chromium.
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
apt = command -v $(1) >/dev/null || { $(SUDO) apt-get update -qq && $(SUDO) apt-get install -y -qq $(2) >/dev/null; } || \
	{ echo "error: got no $(1) and could not install it: apt-get install $(2)" >&2; exit 1; }

sandbox:
	@$(call apt,bwrap,bubblewrap)

browser:
	@$(call apt,chromium,chromium)

demo: install
	$(BIN)/python jobs/pi_scale.py --config jobs/configs/pi_scale.cpu.yaml

# The best prefix of the demo, as model="smollm2-135m-instruct:demo" at http://127.0.0.1:8000
serve: install
	$(BIN)/python -m serve.app --run runs/demo

unit: install
	$(BIN)/python -m pytest -q -n auto --maxprocesses=4 tests/unit

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(MAKE) docs
	$(MAKE) unit

# build/docs/index.html; a link or anchor that leads nowhere is an error.
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

test: sandbox check
	$(BIN)/python -m pytest -q --durations=25 tests/integration tests/e2e

# Serving through Ray Serve and Chromium, and vLLM on one tiny model of each architecture.
test-long: browser install
	$(BIN)/python -m pytest -q --durations=25 tests/long

# Half an hour against a server: mixed tenants, loads, moves, cancels, floods, kills.
soak: install
	$(BIN)/python -m tests.soak

test-datasets: install
	LPC_DATASETS=$(abspath $(LPC_DATASETS)) $(BIN)/python -m pytest -q tests/datasets
