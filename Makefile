# Needs Python 3.9 or newer, git and make; builds everything else.
PYTHON ?= python3
ARGS ?=
GHSTACK ?=
BIN := .venv/bin
# What pip's Chromium needs of the system.
CHROMIUM_LIBRARIES := libasound2 libegl1 libgbm1 libnss3 libxcomposite1 libxdamage1 libxkbcommon0 \
	libxkbfile1 libxrandr2 libxtst6

.DEFAULT_GOAL := help
.PHONY: help demo test test-upstream test-standin test-submit test-html test-1.13 dist lint venv clean

help: ## show this
	@sed -n 's/^\([a-z0-9.-]*\):.*## /\1\t/p' Makefile

demo: .venv/.installed ## show nested precisions fail on stock torch 2.13 and work with the series
	@$(BIN)/torch-overlay demo

test: .venv/.installed ## run the project's tests (ARGS="-k name" is passed to pytest)
	@echo "Fetching the torch that the tests run on"
	@$(BIN)/python -m overlay.runtime
	@$(BIN)/python -m pytest -n 2 $(ARGS)

test-1.13: .venv/.installed ## run the series on torch 1.13.1 (downloads 3 GB)
	@$(BIN)/python -m pytest test/heavy/test_behaviour_1_13.py $(ARGS)

test-upstream: .venv/.installed ## run some of upstream's tests on 1.13.1, before and after (ARGS="v2.6.0 --all" for others)
	@set -- $(or $(ARGS),v1.13.1 test_fsdp_mixed_precision test_fsdp_core test_wrap); \
		$(BIN)/torch-overlay base fetch "$$1" && $(BIN)/torch-overlay test "$$@"

test-html: .venv/.html ## use the HTML report in a headless Chromium (downloads 200 MB)
	@$(BIN)/python -m pytest test/heavy/test_report_page.py $(ARGS)

test-standin: .venv/.installed ## see that the CUDA stand-in is exact and hides no faults (downloads 6 GB)
	@$(BIN)/python -m pytest test/heavy/test_standin_exact.py test/heavy/test_standin_faults.py $(ARGS)

test-submit: .venv/.installed ## run the tests of submit on the newest ghstack (GHSTACK="==0.17.0" takes another)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'ghstack$(GHSTACK)'
	@$(BIN)/python -m pytest -n 2 test/test_submit*.py $(ARGS)

dist: .venv/.installed ## build the mails and whole files for every base, under dist/
	@set -e; for base in $$($(BIN)/python -c 'from overlay.bases import BASES; print(*BASES)'); do \
		$(BIN)/torch-overlay base fetch --source-only $$base; \
		rm -rf dist/$$base; \
		$(BIN)/torch-overlay build $$base -o dist/$$base; \
	done

lint: .venv/.linters ## run all linters on all files, new ones too (lintrunner -a repairs what it can)
	@PATH="$(CURDIR)/$(BIN):$$PATH" lintrunner --paths-cmd='git grep -Il --untracked ""'

venv: .venv/.installed ## build .venv with the tool and what its tests need

clean: ## remove what make built here (fetched torch stays in its cache)
	rm -rf .venv build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find tools test torch_overlay -name __pycache__ -prune -exec rm -rf {} +

# The stamps come last, so that an interrupted build is taken up again.
.venv/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 9))' || \
		{ echo "error: $(PYTHON) is older than Python 3.9; use make PYTHON=python3.11" >&2; exit 2; }
	@echo "Building .venv with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv --clear .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'pip>=22'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[stack,test,lint]'
	@touch $@

.venv/.html: .venv/.installed
	@echo "Installing a Chromium"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[html]'
	@QT_QPA_PLATFORM=offscreen $(BIN)/python -c 'import PyQt6.QtWebEngineWidgets' || \
		{ echo "error: Chromium lacks a library of the system; on Debian and Ubuntu: apt-get install" \
		"$(CHROMIUM_LIBRARIES)" >&2; exit 2; }
	@touch $@

.venv/.linters: .venv/.installed .lintrunner.toml
	@echo "Installing the linters"
	@PATH="$(CURDIR)/$(BIN):$$PATH" lintrunner init >.venv/linters.log 2>&1 || \
		{ cat .venv/linters.log >&2; exit 2; }
	@touch $@
