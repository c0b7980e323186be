# Each target sets up what it needs and is instant when nothing changed.
#   make demo    train a real model on a mesh, kill it, and watch it continue
#   make test    lint, types and the suite, on as many processes as there are cores
#   make test-oldest   imports, formats, checkpoints and what depends on versions, on the oldest Python found
#   make test-slow   tests of some seconds whose parts `make test` tries
#   make test-share   as many of these as MINUTES=6 have time for; first those near what changed last
#   make test-pages   run the code of the site's pages
#   make test-notebooks   the notebooks of the docs, in a real kernel
#   make test-clusters   runs on a real SLURM and a real Ray of three nodes on this machine, and pods of a JobSet
#   make nightly   all slow tests, pages, further cases that are alike and faults planted in the code
#   make notebooks   run them and keep their outputs
#   make test-others   tests that read checkpoints of other systems, which are not in the repository (OTHERS=FOLDER)
#   make lint    ruff and the type checker, and how much is over a limit
#   make measure   figures of the code beside those of a commit (SINCE=HEAD)
#   make soak    kill saving runs thousands of times (KILLS=5000), and try random faults by the thousand (SEED=1)
#   make types   a user's program under mypy and pyright
#   make docs    the site, into site/; fails at a broken link and at a public name without a docstring
#   make dist    the wheel and the sdist, into dist/, the same bytes for the same commit
#   make test-dist   build them twice, install the wheel into fresh environments, and train with it
#   make bench   the measurements behind the README's claims
#   make setup   only the environment; make environments: those of all targets but bench
# The Python is the newest that is found and has packages; PYTHON=/path/to/python3 names another.

VENV ?= .venv
BIN := $(VENV)/bin
KILLS ?= 5000
MINUTES ?= 6
SINCE ?= HEAD
LOCKS := requirements/dev.txt
SETUP = sh scripts/setup $(VENV) "$(PYTHON)" $(LOCKS)
# Each process has a share of the files, and takes over from another when it is done with them. There is one more
# than cores, since many tests wait for programs that they start.
PARALLEL = -n $$(($$(getconf _NPROCESSORS_ONLN) + 1)) --maxprocesses 8 --dist worksteal --durations 10
# They wait for schedulers most of the time. The tests of Ray share a cluster, so one process runs them.
RAY = tests/clusters/test_ray.py
CLUSTERS = .venv-clusters/bin/python -m pytest -rs --durations 10
unexport PYTHONDONTWRITEBYTECODE PYTHONPATH

.PHONY: setup setup-oldest setup-docs setup-notebooks setup-clusters environments programs demo lint measure test test-oldest test-slow test-share test-pages test-notebooks test-clusters nightly notebooks test-others types soak docs dist test-dist bench bench-accelerator lock clean

setup:
	@$(SETUP)

setup-oldest: setup
	@python=$$(sh scripts/find_python oldest); \
	if [ "$$("$$python" -V)" = "$$($(BIN)/python -V)" ]; then rm -rf .venv-oldest; \
	else sh scripts/setup .venv-oldest "$$python" $(LOCKS); fi

# Reads the sources, so it needs neither JAX nor the package.
setup-docs:
	@sh scripts/setup --without-project .venv-docs "$(PYTHON)" requirements/docs.txt

# A kernel and what it needs stay out of the environment that tests run in, and so does Ray.
setup-notebooks:
	@sh scripts/setup .venv-notebooks "$(PYTHON)" $(LOCKS) requirements/notebooks.txt

setup-clusters:
	@sh scripts/setup .venv-clusters "$(PYTHON)" $(LOCKS) requirements/clusters.txt

environments: setup setup-oldest setup-docs setup-notebooks setup-clusters

programs:
	@sh scripts/programs

demo: setup
	@$(BIN)/meshwright demo digits --kill

lint: setup
	@$(BIN)/ruff check --quiet . && $(BIN)/ruff format --quiet --check . && $(BIN)/pyrefly check --summary=none
	@$(BIN)/python scripts/measure.py --limits || true

measure: setup
	@$(BIN)/python scripts/measure.py --since $(SINCE)

test: lint programs
	$(BIN)/python -m pytest $(PARALLEL)

# What must hold on the oldest Python, where that is another one.
OLDEST = tests/checkpoints tests/base/storage tests/program tests/engine/adapters tests/engine/exports tests/parallel \
  tests/test_docstring_examples.py tests/test_house.py
test-oldest: setup-oldest
	@if [ -d .venv-oldest ]; then .venv-oldest/bin/python -m pytest $(PARALLEL) $(OLDEST); \
	else echo "One Python alone was found, $$($(BIN)/python -V): make test has tested it."; fi

test-slow: setup programs
	$(BIN)/python -m pytest $(PARALLEL) -m "slow and not nightly and not long" --write-seconds

test-share: setup programs
	$(BIN)/python -m pytest $(PARALLEL) -m "slow and not nightly and not long" --share-minutes $(MINUTES)

test-pages: setup programs
	$(BIN)/python -m pytest $(PARALLEL) -m pages

nightly: setup setup-clusters programs
	$(BIN)/python -m pytest $(PARALLEL) -m "(slow or nightly or pages) and not long and not clusters"
	$(CLUSTERS) -m "clusters and nightly" tests/clusters

test-clusters: setup-clusters programs
	@$(CLUSTERS) -m "clusters and not nightly" $(RAY) & ray=$$!; \
	$(CLUSTERS) -m "clusters and not nightly" -n 4 --dist load tests/clusters --ignore $(RAY); \
	others=$$?; wait $$ray && exit $$others

types: setup
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/types.txt
	$(BIN)/python -m pytest -m types

test-others: setup
	OTHERS="$(OTHERS)" $(BIN)/python -m pytest -m others

soak: setup
	SOAK=1 $(BIN)/python -m pytest -m "soak or long" -o timeout=0
	KILLS=$(KILLS) $(BIN)/python -m pytest tests/crash -o timeout=0

docs: setup-docs
	@NO_MKDOCS_2_WARNING=1 nice .venv-docs/bin/mkdocs build

dist: setup
	@sh scripts/dist $(BIN)/python dist

test-dist: setup
	@sh scripts/test_dist $(BIN)/python

test-notebooks: setup-notebooks
	.venv-notebooks/bin/python -m pytest -m notebooks tests/notebooks

# Run the notebooks of the docs anew and keep their outputs.
notebooks: setup-notebooks
	.venv-notebooks/bin/python scripts/run_notebooks docs/notebooks/*.ipynb

# The library that we are measured against stays out of the environment that tests run in.
bench:
	@$(MAKE) --no-print-directory VENV=.venv-bench LOCKS="$(LOCKS) requirements/bench.txt" setup
	@failed=; for script in benchmarks/*.py; do echo "== $$script"; \
	  .venv-bench/bin/python $$script || failed="$$failed $$script"; done; \
	if [ -n "$$failed" ]; then echo "over a bar, or broken:$$failed"; exit 1; fi

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
	rm -rf .venv .venv-oldest .venv-bench .venv-docs .venv-notebooks .venv-clusters .compiled build dist site
