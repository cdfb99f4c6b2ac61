# The one way to run things. Needs Python 3.11 or newer; everything else comes from hash-locked packages
# and lies in two ignored folders, .venv and .local.
#
#   make up           the product on this machine, until Ctrl-C (PORT=8000)
#   make mail         the newest mail that the product of make up sent
#   make demo         the main job, end to end, on a product of its own
#   make test         all tests (ARGS="tests/entitlements -k name" for some)
#   make check        formatting, types, layers, migrations, production settings, OpenAPI
#   make cases        each public failure of systems like ours, with the tests that cover it
#   make docs         the documentation as a site, in .local/site; also at /docs/ of the product
#   make bench        measurements, written to bench/
#   make bench-desk   the support desk with 100,000 accounts, written to bench/desk/
#   make screenshots  pictures of the pages
#   make lock openapi format clean

.DEFAULT_GOAL := help
.PHONY: help up mail demo test check checks cases docs bench bench-desk screenshots lock openapi format clean

SYSTEM_PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
PYTHON := $(BIN)/python
LOCAL := $(PYTHON) -m webhost.local
COMPILE := $(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-annotate --no-header --quiet
ARGS ?=
# All tests run in two processes, each with a PostgreSQL, a Valkey and a product of its own.
AT_ONCE := --numprocesses 2 --dist loadfile

export UV_SYSTEM_CERTS := 1
export VIRTUAL_ENV := $(CURDIR)/.venv

help:
	@sed -n 's/^#   //p' Makefile

.venv/installed: requirements/uv.txt requirements/development.txt cli/pyproject.toml
	@test -n "$(SYSTEM_PYTHON)" || { echo "Python 3.11 or newer is needed; none was found on PATH."; exit 1; }
	@test -x $(PYTHON) || $(SYSTEM_PYTHON) -m venv .venv
	@$(BIN)/uv --version >/dev/null 2>&1 || $(PYTHON) -m pip install --quiet --disable-pip-version-check \
		--require-hashes -r requirements/uv.txt
	@$(BIN)/uv pip sync --quiet --require-hashes requirements/development.txt
	@$(BIN)/uv pip install --quiet --no-deps --no-build-isolation --editable ./cli
	@touch $@

# Warnings are errors: a page that is in no list, a link or an anchor that leads nowhere. Built aside, so that
# a product that runs never shows half of it.
SITE := .local/site
SITE_SOURCES := $(shell find docs examples -type f -not -path '*/node_modules/*' -not -path '*/__pycache__/*')

docs: $(SITE)/built

$(SITE)/built: .venv/installed $(SITE_SOURCES)
	@mkdir -p .local
	@rm -rf $(SITE).new
	@$(BIN)/sphinx-build --quiet --fail-on-warning --builder dirhtml --conf-dir docs/site docs $(SITE).new
	@rm -rf $(SITE).new/.doctrees $(SITE).new/.buildinfo $(SITE) && mv $(SITE).new $(SITE) && touch $@

up: .venv/installed docs
	@PORT="$(PORT)" $(LOCAL) up

mail:
	@newest=$$(ls -t .local/mail/*.log 2>/dev/null | head -n 1); \
	if [ -n "$$newest" ]; then cat "$$newest"; else echo "No mail yet: make up, then sign up at /sign-up/."; fi

demo: .venv/installed docs
	@$(LOCAL) product -- $(PYTHON) -m webhost.local.demo

test: .venv/installed docs
	@$(LOCAL) run -- $(PYTHON) -m pytest $(or $(ARGS),$(AT_ONCE))

check: .venv/installed
	@$(LOCAL) run -- $(MAKE) --no-print-directory checks

checks:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy .
	$(BIN)/lint-imports
	$(PYTHON) manage.py makemigrations --check --dry-run
	ENVIRONMENT=production ALLOWED_HOSTS=webhost.example PUBLIC_URL=https://webhost.example \
		$(PYTHON) manage.py check --deploy --fail-level WARNING
	$(PYTHON) manage.py spectacular --validate --fail-on-warn --file .local/openapi.yaml
	diff -u docs/openapi.yaml .local/openapi.yaml

cases: .venv/installed
	@$(LOCAL) run -- $(PYTHON) -m tests.cases

bench: .venv/installed
	@$(LOCAL) run -- $(PYTHON) -m bench $(ARGS)

bench-desk: .venv/installed
	@$(PYTHON) -m bench.desk $(ARGS)

screenshots: .venv/installed docs
	@$(LOCAL) product -- $(PYTHON) -m tests.screenshots

lock: .venv/installed
	$(COMPILE) --upgrade pyproject.toml -o requirements/production.txt
	$(COMPILE) --upgrade pyproject.toml --group dev -o requirements/development.txt
	echo uv | $(COMPILE) --upgrade --constraint requirements/development.txt - -o requirements/uv.txt
	$(LOCAL) lock

openapi: .venv/installed
	@$(LOCAL) run -- $(PYTHON) manage.py spectacular --validate --fail-on-warn --file docs/openapi.yaml

format: .venv/installed
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format --quiet .

clean:
	@if [ -x $(PYTHON) ]; then $(LOCAL) clean; fi
	rm -rf .venv .local staticfiles .mypy_cache .ruff_cache .import_linter_cache .hypothesis
