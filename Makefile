# A fresh machine needs two of these: `make demo` and `make test`. Each sets up .venv first.
# The studies are not installed, so Python has to look for them here.
PYTHON ?= python3
BIN := .venv/bin
export PYTHONPATH := $(CURDIR)

.PHONY: setup demo study test test-slow trust lint bench docs bom pins clean

setup: .venv/.ready

.venv/.ready: pyproject.toml constraints.txt
	test -d .venv || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[all,dev]"
	touch $@

demo: setup
	$(BIN)/python -m studies demo

study: setup
	$(BIN)/python -m studies $(NAME) $(if $(DATA),--data-dir $(DATA)) $(OPTIONS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile  # a core for each of the two

test-slow: setup
	$(BIN)/python -m pytest -q -m slow

trust: setup  # every fault, kill and flip, and many fuzz cases; the counts go to results/trust
	rm -f results/trust/counts.jsonl
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m "slow or not slow" --thorough --tally results/trust/counts.jsonl \
	  tests/test_damage.py tests/test_disks.py tests/test_faults.py tests/test_fuzz.py tests/test_kills.py

bench: setup
	for file in $(filter-out bench/tabular.py bench/odor.py bench/trust.py,$(wildcard bench/*.py)); do echo "== $$file" && $(BIN)/python $$file || exit 1; done

docs: setup
	$(BIN)/python docs/render.py
	$(BIN)/mkdocs build --strict --quiet
	@echo "The pages: site/index.html"

bom: setup  # a bill of materials, and the page of licences
	mkdir -p build
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --mc-type library --output-reproducible -o build/bom.json .venv
	$(BIN)/python docs/supply.py licences docs/licences.md

pins: setup  # exact versions with the hashes of the files for this platform: pip install --require-hashes -r requirements.txt
	mkdir -p build
	$(BIN)/python -m pip install --quiet --dry-run --ignore-installed --report build/report.json -c constraints.txt ".[all]"
	$(BIN)/python docs/supply.py pins build/report.json requirements.txt

clean:
	rm -rf .venv site dsokr-demo build
