# Each target sets up what it needs and is instant when nothing changed.
#   make demo    train a real model on a mesh, kill it, and watch it continue
#   make test    lint, types and the suite, on as many processes as there are cores
#   make test-newest   the suite, the pages and the slow tests on the newest Python found, where that is another
#   make test-pages   run the code of the site's pages
#   make test-slow   tests of some seconds whose parts `make test` tries, and further cases that are alike
#   make test-notebooks   the notebooks of the docs, in a real kernel
#   make test-clusters   runs on a real SLURM and a real Ray of three nodes on this machine, and pods of a JobSet
#   make notebooks   run them and keep their outputs
#   make test-others   tests that read checkpoints of other systems, which are not in the repository (OTHERS=FOLDER)
#   make lint    ruff and the type checker
#   make soak    kill saving runs thousands of times (KILLS=5000), and try random faults by the thousand (SEED=1)
#   make types   a user's program under mypy and pyright
#   make docs    the site, into site/; fails at a broken link and at a public name without a docstring
#   make dist    the wheel and the sdist, into dist/, the same bytes for the same commit
#   make test-dist   build them twice, install the wheel into fresh environments, and train with it
#   make bench   the measurements behind the README's claims
#   make setup   only the environment

VENV ?= .venv
BIN := $(VENV)/bin
KILLS ?= 5000
LOCKS := requirements/dev.txt
unexport PYTHONDONTWRITEBYTECODE PYTHONPATH

.PHONY: setup demo test test-here test-pages test-slow test-clusters test-notebooks notebooks test-newest test-others lint types soak docs dist test-dist bench bench-accelerator lock clean

setup: $(VENV)/.ready

$(VENV)/.ready: $(LOCKS) pyproject.toml scripts/setup
	@python="$(PYTHON)"; [ -n "$$python" ] || python=$$(sh scripts/find_python) && sh scripts/setup $(VENV) "$$python" $(LOCKS)

demo: setup
	@$(BIN)/meshwright demo digits --kill

lint: setup
	@$(BIN)/ruff check --quiet . && $(BIN)/ruff format --quiet --check . && $(BIN)/pyrefly check --summary=none

test: lint
	@sh scripts/programs
	@$(MAKE) --no-print-directory test-here

# Each process has a share of the files, and takes over from another when it is done with them. There is one more
# than cores, since many tests wait for programs that they start.
test-here: setup
	$(BIN)/python -m pytest -n $$(($$(getconf _NPROCESSORS_ONLN) + 1)) --maxprocesses 8 --dist worksteal $(MARKS)

test-pages: setup
	$(BIN)/python -m pytest -m pages

# Ray stays out of the environment that tests run in.
test-clusters:
	@sh scripts/programs
	@$(MAKE) --no-print-directory VENV=.venv-clusters LOCKS="$(LOCKS) requirements/clusters.txt" setup
	.venv-clusters/bin/python -m pytest -m clusters -rs tests/clusters

test-slow: setup
	$(BIN)/python -m pytest -m slow

# Python 3.11 ends at jax 0.10; most users have a newer Python, and with it a newer jax.
test-newest:
	@python=$$(sh scripts/find_python newest); \
	if [ -n "$$python" ] && [ "$$($$python -V)" != "$$($(BIN)/python -V)" ]; then \
	  $(MAKE) --no-print-directory VENV=.venv-newest PYTHON="$$python" \
	    MARKS='-m "not others and not long and not types and not notebooks and not clusters"' test-here; fi

types: setup
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/types.txt
	$(BIN)/python -m pytest -m types

test-others: setup
	OTHERS="$(OTHERS)" $(BIN)/python -m pytest -m others

soak: setup
	SOAK=1 $(BIN)/python -m pytest -m "soak or long" -o timeout=0
	KILLS=$(KILLS) $(BIN)/python -m pytest tests/crash -o timeout=0

# Reads the sources, so it needs neither JAX nor the package.
docs: .venv-docs/.ready
	@NO_MKDOCS_2_WARNING=1 nice .venv-docs/bin/mkdocs build

.venv-docs/.ready: requirements/docs.txt
	@python="$(PYTHON)"; [ -n "$$python" ] || python=$$(sh scripts/find_python) && "$$python" -m venv --clear .venv-docs
	@.venv-docs/bin/python -m pip install -qq --disable-pip-version-check -r requirements/docs.txt && touch $@

dist: setup
	@sh scripts/dist $(BIN)/python dist

test-dist: setup
	@sh scripts/test_dist $(BIN)/python

# A kernel and what it needs stay out of the environment that tests run in.
test-notebooks:
	@$(MAKE) --no-print-directory VENV=.venv-notebooks LOCKS="$(LOCKS) requirements/notebooks.txt" setup
	.venv-notebooks/bin/python -m pytest -m notebooks tests/notebooks

# Run the notebooks of the docs anew and keep their outputs.
notebooks:
	@$(MAKE) --no-print-directory VENV=.venv-notebooks LOCKS="$(LOCKS) requirements/notebooks.txt" setup
	.venv-notebooks/bin/python scripts/run_notebooks docs/notebooks/*.ipynb

# The library that we are measured against stays out of the environment that tests run in.
bench:
	@$(MAKE) --no-print-directory VENV=.venv-bench LOCKS="$(LOCKS) requirements/bench.txt" setup
	@for script in benchmarks/*.py; do echo "== $$script"; .venv-bench/bin/python $$script || exit 1; done

# On the machine with the GPU or TPU, in an environment whose JAX finds it: PYTHON=python make bench-accelerator
bench-accelerator:
	@$(if $(PYTHON),$(PYTHON),python) benchmarks/accelerator --out $(or $(OUT),runs/accelerator)

lock: setup
	@$(BIN)/python -m pip install --quiet uv
	@$(BIN)/uv pip compile --universal --python-version 3.11 --no-emit-index-url --no-header --no-annotate --quiet \
	  pyproject.toml requirements/dev.in -o requirements/dev.txt
	@$(BIN)/uv pip compile --universal --python-version 3.11 --no-emit-index-url --no-header --no-annotate --quiet \
	  requirements/bench.in -o requirements/bench.txt
	@$(BIN)/uv pip compile --universal --python-version 3.11 --no-emit-index-url --no-header --no-annotate --quiet \
	  requirements/types.in -o requirements/types.txt
	@$(BIN)/uv pip compile --universal --python-version 3.11 --no-emit-index-url --no-header --no-annotate --quiet \
	  requirements/docs.in -o requirements/docs.txt

clean:
	rm -rf .venv .venv-newest .venv-bench .venv-docs .venv-notebooks .venv-clusters .compiled build dist site
