# Levee's commands. `make run` and `make test` need Go alone; the rest fetches what it needs, at pinned versions.
#
# Any Go from 1.21 on fetches the toolchain named here by itself: older standard libraries have vulnerabilities that a
# broker's listeners can be made to reach.
export GOTOOLCHAIN := go1.27.3

SHELL       := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := build
.NOTPARALLEL:

VERSION   ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS   := -s -w -X github.com/leveemq/levee/internal/cli.Version=$(VERSION)
DATA      ?= ./levee-data
FUZZTIME  ?= 10m
BENCHTIME ?= 1s
BIN       := bin
TOOLS     := $(CURDIR)/bin/tools
SERVERS   := $(CURDIR)/bin/servers

GOLANGCI    := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.9.0
# The newest vulnerabilities count, so the database is not pinned; VULNDB=vX.Y.Z does it where that matters.
VULNDB      ?= latest

# Object stores of others, for tests. Each is installed under a name with its version, and only where that is not there.
VERSITYGW   := v1.8.0
FAKEGCS     := v1.56.1
AZURITE     := 3.37.0

.PHONY: check-go build run run-tiers test ci ci-tools clients servers race faults mutation bench microbench fuzz gen gen-check vuln release lint fmt clean

# Says what to install when make can do nothing without it.
check-go:
	@command -v go >/dev/null 2>&1 || { \
	  echo "levee: there is no Go here. Install Go 1.21 or newer (https://go.dev/dl, or your system's package golang)" >&2; exit 1; }
	@minor=$$(GOTOOLCHAIN=local go version | sed -n 's/.*go1\.\([0-9][0-9]*\).*/\1/p'); \
	if [ "$${minor:-0}" -lt 21 ]; then \
	  echo "levee: $$(GOTOOLCHAIN=local go version) is too old. Install Go 1.21 or newer (https://go.dev/dl): it fetches $(GOTOOLCHAIN) by itself" >&2; exit 1; fi
	@go version >/dev/null || { \
	  echo "levee: Go cannot fetch its toolchain $(GOTOOLCHAIN) (no network, or GOFLAGS or GOPROXY forbid it). Install that version itself" >&2; exit 1; }

## build: the broker and its command line, as bin/levee
build: check-go
	@mkdir -p $(BIN)
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/levee ./cmd/levee

## run: a broker on loopback (6650 gRPC, 9040 HTTP) with its data in ./levee-data
run: build
	exec $(BIN)/levee server --data-dir $(DATA)

## run-tiers: the same with a Valkey and an S3 server beside it, on loopback (6659, 7659), all data in ./levee-data/tiers
run-tiers: build $(SERVERS)/versitygw-$(VERSITYGW)
	@sh tools/run-tiers.sh $(DATA)/tiers $(BIN)/levee $(SERVERS)/versitygw-$(VERSITYGW)

## test: every test that needs Go alone; those that break real brokers at their short length
test: $(BIN)/testrun
	@LEVEE_FAULTS=short $(BIN)/testrun -timeout 9m ./...

$(BIN)/testrun: check-go $(wildcard test/run/*.go)
	@mkdir -p $(BIN)
	@go build -o $(BIN)/testrun ./test/run

## race: every test under the race detector, with self-checks; the long enumerations, which run in one goroutine, at their short length
race: $(BIN)/testrun
	@$(BIN)/testrun -race -short -tags invariants -timeout 25m ./...

## ci: what must pass before a change lands; ends with go test's own lines
ci: check-go ci-tools clients servers gen-check lint vuln build
	@echo "== race detector and self-checks"
	@$(MAKE) --no-print-directory race
	@echo "== fuzz targets: 10 minutes shared"
	@$(MAKE) --no-print-directory fuzz
	@echo "== mutants: each has to be noticed"
	@$(MAKE) --no-print-directory mutation
	@echo "== tests, as users run them"
	@$(BIN)/testrun -no-skips test/skips.txt -count=1 -timeout 20m ./...

## ci-tools: programs that some tests need, by the system's package manager where one is missing
ci-tools:
	@missing=""; \
	for pair in strace:strace mkfs.ext4:e2fsprogs losetup:mount prlimit:util-linux redis-server:redis-server; do \
	  command -v $${pair%%:*} >/dev/null 2>&1 || missing="$$missing $${pair##*:}"; done; \
	if [ -n "$$missing" ]; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing; fi

## clients: clients of others in Python, for the tests below test/compat, into bin/python
clients:
	@command -v python3 >/dev/null && python3 -c 'import venv, ensurepip' 2>/dev/null || { \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3 python3-venv; }
	@test -x bin/python/bin/python || python3 -m venv bin/python
	@bin/python/bin/python -m pip install -q --disable-pip-version-check -r test/compat/python/requirements.txt

## servers: object stores of others, for the tests of internal/objstore, into bin/servers (two are built: 4 minutes; one needs npm)
servers: $(SERVERS)/versitygw-$(VERSITYGW) $(SERVERS)/fake-gcs-server-$(FAKEGCS) $(SERVERS)/azurite-$(AZURITE)/done

$(SERVERS)/versitygw-$(VERSITYGW): | check-go
	@mkdir -p $(SERVERS) && rm -f $(SERVERS)/versitygw*
	cd / && GOBIN=$(SERVERS) go install github.com/versity/versitygw/cmd/versitygw@$(VERSITYGW)
	@mv $(SERVERS)/versitygw $@

$(SERVERS)/fake-gcs-server-$(FAKEGCS): | check-go
	@mkdir -p $(SERVERS) && rm -f $(SERVERS)/fake-gcs-server*
	cd / && GOBIN=$(SERVERS) go install github.com/fsouza/fake-gcs-server@$(FAKEGCS)
	@mv $(SERVERS)/fake-gcs-server $@

$(SERVERS)/azurite-$(AZURITE)/done:
	@command -v npm >/dev/null || { echo "levee: Azurite needs npm: install Node.js (your system's packages nodejs and npm)" >&2; exit 1; }
	@rm -rf $(SERVERS)/azurite-* && mkdir -p $(dir $@)
	npm install --prefix $(dir $@) --no-audit --no-fund --loglevel=error azurite@$(AZURITE)
	@touch $@

## mutation: deliberate bugs, each of which a named test must notice
mutation: check-go
	go test -tags mutation -count=1 -timeout 30m ./test/mutation

## faults: kill, power loss, disk faults, lost nodes and servers at full length; takes hours
faults: build ci-tools $(SERVERS)/versitygw-$(VERSITYGW)
	LEVEE_FAULTS=full go test -count=1 -timeout 12h -v ./test/faults/...

## bench: this broker and its peers in turns, and each performance goal as a ratio; ROUNDS=3 rounds, about 15 minutes each
bench: check-go
	test/bench/build.sh
	test/bench/campaign.sh

## microbench: the Go benchmarks of every package
microbench: check-go
	go test -run '^$$' -bench . -benchmem -benchtime $(BENCHTIME) ./...

## fuzz: every fuzz target, FUZZTIME shared by all
fuzz: check-go
	@mkdir -p $(BIN)
	@go build -o $(BIN)/fuzz ./test/fuzz
	@$(BIN)/fuzz -total $(FUZZTIME) ./...

## gen: generated code and pages (needs npx)
gen: check-go
	sh tools/gen.sh
	go test -count=1 -run '^TestMetricsPage$$' ./internal/archtest -rewrite

## gen-check: generated files are what their sources give
gen-check: check-go
	@command -v npx >/dev/null || { echo "levee: the generators need npx: install Node.js (your system's packages nodejs and npm)" >&2; exit 1; }
	@out=$$(mktemp -d); trap 'rm -rf "$$out"' EXIT; sh tools/gen.sh --output "$$out"; \
	(cd "$$out" && find . -name '*.pb.go') | sort | while read -r f; do \
	  cmp -s "$$out/$$f" "$$f" || { echo "levee: $$f is not what its source gives: run make gen" >&2; exit 1; }; done
	@go mod tidy -diff

## lint: go vet and a short list of linters
lint: $(TOOLS)/golangci-lint
	go vet ./...
	$(TOOLS)/golangci-lint run ./...

$(TOOLS)/golangci-lint: | check-go
	@mkdir -p $(TOOLS)
	GOBIN=$(TOOLS) go install $(GOLANGCI)

## vuln: known vulnerabilities in what we call, from a database built here
vuln: $(TOOLS)/govulncheck
	@version=$$(go list -m golang.org/x/vulndb@$(VULNDB) | cut -d' ' -f2); \
	db=$(TOOLS)/vulndb-$$version; \
	if [ ! -f $$db/done ]; then \
	  dir=$$(cd / && go mod download -json golang.org/x/vulndb@$$version | sed -n 's/^.*"Dir": "\(.*\)",$$/\1/p'); \
	  GOBIN=$(TOOLS) go install golang.org/x/vulndb/cmd/indexdb@$$version; \
	  rm -rf $(TOOLS)/vulndb-*; \
	  $(TOOLS)/indexdb -vulns $$dir/data/osv -out $$db; touch $$db/done; fi; \
	$(TOOLS)/govulncheck -db file://$$db ./...

$(TOOLS)/govulncheck: | check-go
	@mkdir -p $(TOOLS)
	GOBIN=$(TOOLS) go install $(GOVULNCHECK)

## release: static binaries and their checksums in dist/
release: check-go
	@rm -rf dist && mkdir -p dist
	for arch in amd64 arm64; do \
	  CGO_ENABLED=0 GOOS=linux GOARCH=$$arch go build -trimpath -ldflags '$(LDFLAGS)' -o dist/levee-$(VERSION)-linux-$$arch ./cmd/levee; done
	cd dist && sha256sum levee-* > SHA256SUMS && cat SHA256SUMS

## fmt: gofmt
fmt: check-go
	gofmt -w $$(git ls-files '*.go')

## clean: what make built; never data
clean:
	rm -rf $(BIN) dist
