# What CI runs is what a person runs: make setup check test. `make quickstart` goes from text to predictions in minutes.

VENV ?= .venv
TORCH ?= torch>=2.11,<2.14
ARGS ?=
JOBS ?= 3
PYTHON ?=
BIN := $(VENV)/bin
READY := $(VENV)/.ready
FITS := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))

.PHONY: setup check test test-slow quickstart bench bench-peers gpu-check
.DELETE_ON_ERROR:

# Many containers set it, and every start of the tests would then compile all of them again.
unexport PYTHONDONTWRITEBYTECODE

setup: $(READY)

# Torch comes first and capped: a later `pip install` then finds it there, and takes no other wheel of several GB.
$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python && $(BIN)/python -m pip --version >/dev/null 2>&1 || { \
	  for each in $(or $(PYTHON),python3 python3.13 python3.12 python3.11); do \
	    if $$each -c '$(FITS)' 2>/dev/null; then python=$$each; break; fi; \
	  done; \
	  if [ -z "$${python:-}" ]; then \
	    echo "Bertsmith needs Python 3.11, 3.12 or 3.13, and none was found: install one, or name it with make PYTHON=..." >&2; exit 2; \
	  fi; \
	  if ! $$python -c 'import ensurepip, venv' 2>/dev/null; then \
	    echo "$$python cannot make virtual environments: install its venv package (Debian: apt-get install python3-venv)" >&2; exit 2; \
	  fi; \
	  echo "setup: $$($$python --version) into $(VENV)"; \
	  rm -rf $(VENV) && $$python -m venv $(VENV); \
	}
	$(BIN)/python -m pip install --quiet -c constraints.txt '$(TORCH)'
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# In three processes: with two a fifth of the time of two cores is spent waiting, and with four nothing is gained. Each
# file is in one of them, in the order of the folders: the long files of tests/behaviour come first, and none is left for
# one process alone at the end. A process that dies ends the run, which would wait for it for ever. JOBS= runs all in one.
test: setup
	$(BIN)/python -m pytest $(if $(JOBS),-n $(JOBS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0) $(ARGS)

# The long tests, and further cases of what `make test` tries.
test-slow: setup
	$(BIN)/python -m pytest -m slow $(ARGS)

quickstart: setup
	$(BIN)/bertsmith quickstart $(ARGS)

# The tables that docs/speed.md and docs/scaling.md are made of, a file for each run. One that is there is not made
# again, so what was broken off continues with the next table; `make bench ARGS=--quick`, in a folder of its own, takes
# minutes. The peers are an extra; those of serve come by `make bench-peers`, and are left out and named where they are
# not there. Prediction has two runs, that of real texts only where $BERTSMITH_DATA has them; both by one thread on one
# core, as docs/speed.md says.
DATA := $(or $(BERTSMITH_DATA),$(HOME)/.cache/bertsmith-data)
REAL := $(and $(wildcard $(DATA)/glue/SST-2/dev.tsv),$(wildcard $(DATA)/squad/v1.1/dev-v1.1.json))
TABLES := prepare prepare-sizes batches pretrain-step pretrain-step-avx2 finetune \
  predict-shapes $(if $(REAL),predict-real) serve reference scaling
# Not for the others that take ARGS, whose words may be no name of a folder.
BENCH_OUT ?= bench-tables$(if $(filter gpu-check quickstart test-slow,$(MAKECMDGOALS)),,$(subst $(eval) ,,$(ARGS)))
QUICK := $(findstring --quick,$(ARGS))

bench: setup
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[bench]'
	@$(MAKE) --no-print-directory $(TABLES:%=$(BENCH_OUT)/%.md)
	@cat $(TABLES:%=$(BENCH_OUT)/%.md)

$(BENCH_OUT)/prepare-sizes.md: MORE := $(if $(QUICK),,--sizes 100 1000 10000) --against
$(BENCH_OUT)/predict-shapes.md: MORE := --only ' x '
$(BENCH_OUT)/predict-real.md: MORE := --only real
$(BENCH_OUT)/predict-%.md: export OMP_NUM_THREADS := 1
$(BENCH_OUT)/predict-%.md: PINNED := $(if $(shell command -v taskset),taskset -c 0)
$(BENCH_OUT)/pretrain-step-avx2.md: MORE := --only "fp32, AdamW against transformers, fp32 as shipped"
$(BENCH_OUT)/pretrain-step-avx2.md: export ATEN_CPU_CAPABILITY := avx2
$(BENCH_OUT)/pretrain-step-avx2.md: export ONEDNN_MAX_CPU_ISA := AVX2
$(BENCH_OUT)/pretrain-step-avx2.md: export MKL_ENABLE_INSTRUCTIONS := AVX2
$(BENCH_OUT)/pretrain-step-avx2.md: export BERTSMITH_ARCHITECTURE := x86-64-v3
$(BENCH_OUT)/%.md:
	@mkdir -p $(@D)
	$(PINNED) $(BIN)/bertsmith bench $(subst $(eval) ,-,$(filter-out sizes avx2 shapes real,$(subst -, ,$*))) --markdown --json $(@:.md=.json) $(MORE) $(ARGS) > $@.part
	@mv $@.part $@

# The servers that `bertsmith bench serve` is compared with, each in a virtual environment of its own, with the versions
# that it asks for; torch comes first and capped, as above.
bench-peers: setup
	for each in 'fastapi fastapi uvicorn transformers' 'litserve litserve transformers' 'infinity infinity-emb[torch,server,optimum]'; do \
	  set -- $$each; folder=.bench/$$1; shift; \
	  $(BIN)/python -m venv $$folder && $$folder/bin/python -m pip install --quiet '$(TORCH)' && \
	  $$folder/bin/python -m pip install --quiet '$(TORCH)' "$$@" || exit; \
	done

# At most nine minutes, and without network: where the machine's own Python has torch, its GPU is measured with that one.
# The rows go to benchmarks/results, or where ARGS="--json FILE" says; ARGS=--go-on measures what a call had no time for.
gpu-check:
	@python=python3; $$python -c 'import torch' 2>/dev/null || { $(MAKE) --no-print-directory setup && python=$(BIN)/python; }; \
	PYTHONPATH="src$${PYTHONPATH:+:$$PYTHONPATH}" $$python benchmarks/gpu_check.py $(value ARGS)
