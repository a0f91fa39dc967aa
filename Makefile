# `make conformance` and `make test` are all that is needed; both build .venv themselves.
#   make conformance ARGS="-m llama -b hf"      EXTRAS=gpu,dev for CUDA's vLLM
.PHONY: conformance gate bisect selftest fuzz test test-all campaign check lint format types imports files doctor \
	docs docs-site from-wheel release-check environment lock clean

BIN := .venv/bin
# Every process of a test run imports the same modules: compile them once, whatever the shell says.
export PYTHONDONTWRITEBYTECODE :=
ARGS ?=

conformance: environment
	$(BIN)/conformance run $(ARGS)

# The run, held against known.yaml: 0 when all is as expected (docs/ci.md). ARGS=latest: stored.
gate: environment
	$(BIN)/conformance gate $(ARGS)

# Which version, commit or package: ARGS="vllm --good 0.28.0 --bad 0.32.0 -m gpt_neox" (docs/bisect.md).
bisect: environment
	$(BIN)/conformance bisect $(ARGS)

# Known faults injected inside real workers must be found and named; ARGS=--quick for some.
selftest: environment
	$(BIN)/conformance selftest $(ARGS)

# Interventions that nobody wrote, on every column, after those of fuzz/corpus (docs/programs.md).
fuzz: environment
	$(BIN)/conformance fuzz $(ARGS)

# On every core; tests/conftest.py says which tests run on the same one.
TESTS := -n auto --dist loadscope --no-loadscope-reorder

test: environment
	$(BIN)/python -m tests.supervised tests -m "not slow" $(TESTS) $(ARGS)

# With the relay's safeties removed one by one, more stages, and hundreds of random programs; then
# what a run must outlive.
test-all: environment
	$(BIN)/python -m tests.supervised tests --hypothesis-profile nightly $(TESTS) $(ARGS)
	$(MAKE) campaign

# 204 kills and refusals (an hour), 2,000 requests and 10,000 traces on one engine: docs/campaign.md.
campaign: environment
	$(BIN)/python bench/campaign.py
	$(BIN)/python bench/soak.py --serve --traces 2000
	$(BIN)/python bench/soak.py --traces 10000

# Everything that needs no test run; `make -k check` goes on after the first complaint.
check: lint format types imports files

lint: environment
	$(BIN)/ruff check .

format: environment
	$(BIN)/ruff format --check .

types: environment
	$(BIN)/mypy
	$(BIN)/mypy --explicit-package-bases bench scripts

imports: environment
	$(BIN)/lint-imports

# Images, scripts, workflows and the action, by linters of their kinds.
files: environment
	$(BIN)/hadolint docker/Dockerfile.*
	$(BIN)/shellcheck .ci/run scripts/*.sh tests/sample_repository/*.sh
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-actions action.yml

doctor: environment
	$(BIN)/conformance doctor $(ARGS)

# docs/faults.md, from the records of the faults.
docs: environment
	$(BIN)/python -m conformance.commands.selftest.faults_page docs/faults.md

# The pages of docs/ as a site in .site/, with the reference of the API; a warning is an error.
docs-site: environment
	scripts/release.sh site

# The wheel in an environment of its own, as another user in an empty folder: minutes; ARGS=--no-engine.
from-wheel: environment
	$(BIN)/python scripts/from_wheel.py $(ARGS)

# Everything a release needs: its tag, its entry in CHANGELOG.md, two builds with the same bytes, a site,
# and the wheel tried as another user (minutes; FROM_WHEEL=--no-engine: without engines).
release-check: environment
	scripts/release.sh check

environment:
	@scripts/environment.sh
	@scripts/first_start.sh

# New versions of everything that the environment pins.
lock:
	scripts/environment.sh lock

# The environment and every tool's cache. Runs, and checkpoints in the user's cache, stay.
clean:
	rm -rf .venv .uv .site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
