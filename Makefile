# Everything runs in .venv, which is made when it is missing or when what it holds has changed.
#   make         this list
#   make demo    the main job on the prompts in examples/, with the embedded model
#   make test    the tests (make test-slow: the long ones; make test-runners: those on other runners and real servers,
#                which take Go, Maven and Java; RUNNER=flink make test-runners those on one), in WORKERS processes
#                examples of properties are the same each time; HYPOTHESIS_SEARCH=1 make test looks for others
#   make test-engines  the tests with llama.cpp, OpenVINO, CTranslate2 and vLLM, and with servers: Triton, Ray Serve and
#                llama.cpp's (pytriton, ray), and with clients (openai_clients, openai_node, schemathesis,
#                lm_eval, guidellm), in environments made on first use;
#                ENGINES="openvino vllm" make test-engines those with these
#   make test-long  test-slow, test-runners and test-engines in one: some compute while others wait
#   make truth   random configs, budgets and constraints against transformers and bare grammars; prints what differs.
#                SEED=7 make truth draws what that seed draws, by default the day does
#   make fuzz    FUZZ_SECONDS (300) for each: messages, rows, constraints, templates and checkpoints, changed at random and
#                guided by coverage; what they reach is kept in tests/fuzz/corpora, with a record of the time
#   make lint    style, types and the import rule
#   make check   before a commit: lint, and the fast tests that mirror what has changed since the last one
#   make format  style, mended
#   make notebooks  runs the notebooks, and stores them with their outputs
#   make docs    the documentation as a site, in out/site; a broken link fails
#   make errors  the page of errors, from what commands print
#   make reference  the tables of docs/reference, from the code
#   make pins    the hashes of the pinned packages, in deploy/requirements.hashes.txt: after each change of requirements.txt
#   make sbom    a bill of materials of .venv, in out/sbom.cdx.json (CycloneDX: packages, licenses, who needs whom)
#   make audit   known vulnerabilities in the pinned packages, as pypi.org and pip-audit know them; fails where it cannot ask
#   make figures the benchmarks, their plots and tables: hours, on a machine that does nothing else. Interrupted, it
#                goes on where it was; SINCE=2026-11-21 says from which day on kept figures are good, today by default
#   make clean   removes what these made: .venv, out, build and *.egg-info

# The tests start hundreds of processes: without stored bytecode each would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
READY := $(VENV)/ready
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

# Installed code that is seldom imported, more than half of it. All other code is compiled now, once for all processes.
SELDOM := /(tests?|cloud|genai|agentplatform|vertexai|sympy|networkx|models|debugpy|openai)/

# Tests of a file, or of a runner, stay in one process and begin in the order that tests/conftest.py says. Tests on other
# runners wait more than they compute, so six of them share two cores.
WORKERS ?= 3
RUNNER_WORKERS ?= 6
PYTEST := $(VENV)/bin/pytest -q -n $(WORKERS) --dist loadscope --no-loadscope-reorder

UV := UV_SYSTEM_CERTS=1 $(VENV)/bin/uv
HASHES := deploy/requirements.hashes.txt
RESULTS := benchmarks/results
SINCE ?= $(shell date -u +%F)
FUZZ_SECONDS ?= 300
SEED ?= $(shell date -u +%Y%m%d)

.PHONY: help check demo test test-slow test-runners test-engines test-long truth fuzz lint format notebooks docs errors reference pins sbom audit figures clean

help:
	@sed -n '/^$$/q; s/^# \{0,1\}//p' $(firstword $(MAKEFILE_LIST))

demo: $(READY)
	$(VENV)/bin/millrace run --input 'examples/prompts/*.jsonl' --output out/demo/completions --overwrite

test: $(READY)
	$(PYTEST) -m "not slow and not runners and not engines"

test-slow: $(READY)
	$(PYTEST) -m "slow and not runners and not engines"

test-runners: $(READY)
	$(if $(RUNNER),,$(VENV)/bin/python -m tests.servers.everything)
	$(PYTEST) -n $(RUNNER_WORKERS) -m runners $(if $(RUNNER),tests/runners)

test-engines: $(READY)
	ENGINES="$(ENGINES)" $(PYTEST) -m engines tests/deploy tests/model_manager/backends tests/notebooks tests/serving/clients

test-long: $(READY)
	$(VENV)/bin/python -m tests.servers.everything
	ENGINES="$(ENGINES)" $(VENV)/bin/python -m tests.model_manager.backends.environments
	ENGINES="$(ENGINES)" $(PYTEST) -n $(RUNNER_WORKERS) -m "slow or runners or engines"

# Each part says what differs; all of them run, and any difference fails.
truth: $(READY)
	@failed=0; for part in "configs --count 100" "outputs --count 100" "budgets --count 1000" "company --dtype float32 --rows 200"; do \
		echo "== $$part --seed $(SEED)"; $(VENV)/bin/python -m tests.truth.$$part --seed $(SEED) || failed=1; \
	done; exit $$failed

fuzz: $(READY)
	$(VENV)/bin/python -m tests.fuzz wire rows constraints templates checkpoints --seconds $(FUZZ_SECONDS)

lint: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

check: lint
	@changed=$$($(VENV)/bin/python -m tests.check.changed); echo "tests: $${changed:-none}"; \
		test -z "$$changed" || $(PYTEST) -m "not slow and not runners and not engines" $$changed || test $$? = 5  # 5: none of them is fast

format: $(READY)
	$(VENV)/bin/ruff check --fix-only -q .
	$(VENV)/bin/ruff format -q .

notebooks: $(READY)
	$(VENV)/bin/python -m tests.notebooks.store

# By `python -m`, whose path begins with this checkout: tests/docs makes some of the pages.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build --quiet

errors: $(READY)
	$(VENV)/bin/python -m tests.docs.error_cases

reference: $(READY)
	$(VENV)/bin/python -m tests.docs.reference_pages

pins: $(READY)
	$(UV) pip compile -q --universal --no-deps --generate-hashes --no-annotate --no-header --python-version 3.11 \
		requirements.txt -o $(HASHES)

sbom: $(READY)
	@mkdir -p out
	$(UV) tool run -q --from cyclonedx-bom==7.5.0 cyclonedx-py environment $(VENV) --output-reproducible --of JSON -o out/sbom.cdx.json

# A package whose vulnerabilities could not be asked for fails it as well.
audit: $(READY)
	@$(VENV)/bin/python -m tests.check.advisories
	$(UV) tool run -q pip-audit==2.10.1 --strict --no-deps --disable-pip --progress-spinner off -r $(HASHES)

figures: $(READY)
	$(VENV)/bin/python -m benchmarks.engine --shape all --workload all --dtype all --results $(RESULTS)/engine.json --keep_since $(SINCE)
	$(VENV)/bin/python -m benchmarks.pipeline --dtype all --results $(RESULTS)/pipeline.json --keep_since $(SINCE)
	$(VENV)/bin/python -m benchmarks.queue --results $(RESULTS)/queue.json
	$(VENV)/bin/python -m benchmarks.start --shape opt-125m,qwen-0.5b --results $(RESULTS)/start.json
	$(VENV)/bin/python -m benchmarks.start --shape opt-125m --engines millrace-first-load,millrace-second-load --results $(RESULTS)/start-second.json
	$(VENV)/bin/python -m benchmarks.latency --rate 1.5 --rounds 3 --results $(RESULTS)/latency.json
	$(VENV)/bin/python -m benchmarks.constrained --constraint schema --rounds 3 --results $(RESULTS)/constrained-schema.json
	$(VENV)/bin/python -m benchmarks.constrained --constraint regex --rounds 3 --results $(RESULTS)/constrained-regex.json
	$(VENV)/bin/python -m benchmarks.server --rounds 3 --seconds 8 --results $(RESULTS)/server.json
	$(VENV)/bin/python -m benchmarks.hang_ups --results $(RESULTS)/hang-ups.json
	$(VENV)/bin/python -m benchmarks.many_models --results $(RESULTS)/many-models.json
	$(VENV)/bin/python -m benchmarks.timeline --rate 6 --output $(RESULTS)/timeline.json
	$(VENV)/bin/python -m benchmarks.simulation --results $(RESULTS)
	$(VENV)/bin/python -m benchmarks.draw
	$(VENV)/bin/python -m benchmarks.table

clean:
	rm -rf $(VENV) out build *.egg-info

$(READY): setup.py requirements.txt
	@test -n "$(PYTHON)" || { echo "millrace needs Python 3.11 or later; none was found on PATH"; exit 2; }
	@echo "Setting up $(VENV) (a few minutes the first time)"
	@$(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/python -m pip install -q --disable-pip-version-check uv
	@$(UV) pip install -q --python $(VENV)/bin/python -r requirements.txt
	@$(UV) pip install -q --python $(VENV)/bin/python --no-deps --no-build-isolation -e .
	@$(VENV)/bin/python -m compileall -q -j 0 -x '$(SELDOM)' $(VENV)/lib || true
	@touch $@
