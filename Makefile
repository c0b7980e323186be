# Each target sets up what it needs and is instant when nothing changed.
#   make demo    train a real model on a mesh, kill it, and watch it continue
#   make test    lint, then the whole suite; where a newer Python is found, there too
#   make lint    ruff and the type checker
#   make bench   the measurements behind the README's claims
#   make setup   only the environment

VENV ?= .venv
BIN := $(VENV)/bin
LOCKS := requirements/dev.txt
unexport PYTHONDONTWRITEBYTECODE PYTHONPATH

.PHONY: setup demo test test-here test-newest lint bench lock clean

setup: $(VENV)/.ready

$(VENV)/.ready: $(LOCKS) pyproject.toml scripts/setup
	@python="$(PYTHON)"; [ -n "$$python" ] || python=$$(sh scripts/find_python) && sh scripts/setup $(VENV) "$$python" $(LOCKS)

demo: setup
	@$(BIN)/meshwright demo digits --kill

lint: setup
	@$(BIN)/ruff check --quiet . && $(BIN)/ruff format --quiet --check . && $(BIN)/pyrefly check --summary=none

test: lint test-here test-newest

test-here: setup
	$(BIN)/python -m pytest

# Python 3.11 ends at jax 0.10; most users have a newer Python, and with it a newer jax.
test-newest:
	@python=$$(sh scripts/find_python newest); \
	if [ -n "$$python" ]; then $(MAKE) --no-print-directory VENV=.venv-newest PYTHON="$$python" test-here; fi

bench: $(VENV)/.bench
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

$(VENV)/.bench: setup requirements/bench.txt
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --compile -r requirements/bench.txt && touch $@

lock: setup
	@$(BIN)/python -m pip install --quiet uv
	@$(BIN)/uv pip compile --universal --python-version 3.11 --no-emit-index-url --no-header --no-annotate --quiet \
	  --all-extras --no-emit-package meshwright pyproject.toml requirements/dev.in -o requirements/dev.txt

clean:
	rm -rf .venv .venv-newest build dist
