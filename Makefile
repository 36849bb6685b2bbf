# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
LOCK := cluster/requirements-cpu.lock

.PHONY: demo serve test test-browser check unit install sandbox
.DEFAULT_GOAL := demo

install: $(VENV)/.installed

# torch's CPU build has a local version that the usual index does not carry: configured indexes first, then PyTorch's own.
$(VENV)/.installed: $(LOCK) pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip uv
	$(BIN)/pip install --quiet --no-deps $$(grep '^torch==' $(LOCK)) || \
		$(BIN)/pip install --quiet --no-deps --index-url $(TORCH_INDEX) $$(grep '^torch==' $(LOCK))
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps -r $(LOCK)
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

# Verifiers run replies' programs under bubblewrap, a system package.
sandbox:
	@command -v bwrap >/dev/null || { apt-get update -qq && apt-get install -y -qq bubblewrap >/dev/null; } || \
		{ echo "error: bubblewrap is missing and could not be installed: apt-get install bubblewrap" >&2; exit 1; }

demo: install
	$(BIN)/python jobs/pi_scale.py --config jobs/configs/pi_scale.cpu.yaml

# The best prefix of the demo, as model="smollm2-135m-instruct:demo" at http://127.0.0.1:8000
serve: install
	$(BIN)/python -m serve.app --run runs/demo

unit: install
	$(BIN)/python -m pytest -q tests/unit

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/unit

test: sandbox check
	$(BIN)/python -m pytest -q tests/integration tests/e2e

# Needs Chromium on this machine, which `make test` does not.
test-browser: install
	$(BIN)/python -m pytest -q tests/browser
