SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION)

# What starts in a sandbox first, which the binaries contain. A plain "go build" has each
# binary start itself there instead, which takes longer.
PROGRAM := internal/sandbox/internal/image/program.bin
TAG     := sandboxprogram

# The race detector needs cgo and so a C compiler; without one the tests still run.
RACE := $(if $(filter 1,$(shell go env CGO_ENABLED)),-race,)

# Compilers, linters and tests collect garbage less often while they need little memory, which halves the
# processor time of the former, and saves tests a tenth.
LAVISH := GOGC=400 GOMEMLIMIT=3GiB

# Tests, and what they build, start that program too: it is a fraction of a test with the race detector.
TESTING := $(LAVISH) GOFLAGS="$(strip $(shell go env GOFLAGS) -tags=$(TAG))"
# Processes with the detector would wait for a second at their end, and spend most of their time on
# faults of small pages where much memory is copied.
# Some of them belong to ordinary users: what the detector reads at their start is copied to where these may read it.
RACING  := $(TESTING) GORACE="atexit_sleep_ms=0 no_huge_pages_for_shadow=0 suppressions=$$races $(GORACE)"
# Programs that tests of several packages start are linked once, and copied by each.
LINKED  := bin/linked

# What runs here only is built the way the binaries are: so Go builds what they share, and what the linters read, once.
ONCE     := $(LAVISH) CGO_ENABLED=0 GOFLAGS="$(strip $(shell go env GOFLAGS) -trimpath)"
LINT     := $(ONCE) go tool -modfile=tools/go.mod golangci-lint
SYSTEMS  := darwin/arm64 windows/amd64
# Most tests wait, for leases and processes: as many packages as there are processors with the detector, as many without it
# at the same time, and at least four tests of each.
CORES    := $(shell getconf _NPROCESSORS_ONLN)
WAITING  := -p $(CORES) -parallel $(shell echo $$(( $(CORES) > 4 ? $(CORES) : 4 ))) -timeout 30m
# The race detector sees the packages whose goroutines share memory, and by their tests all that they use. Under it
# tests take three times as long, and each package is compiled and linked once more. So all else runs without it: whole
# processes, what parses, what has no goroutines of its own, or hands them to one of these. PKG asks for packages with it.
# What takes longest comes first.
RACED    := $(addprefix internal/,lane worker calls mcp/mcpserver natsio session sandbox/snapshot session/serve workspace \
	lane/store mcp/login mcp/toolserver sandbox/egress sandbox/internal/initd sandbox/internal/supervisor sandbox/process session/schedule \
	telemetry terminal worker/background worker/dialog worker/sandboxes) pkg/fleet pkg/loop pkg/worker
RACEDS   := ($(shell echo $(RACED) | tr ' ' '|'))
LONGEST  := $(addprefix ./,test/integration cmd/coordinator test/firsthour test/chaos internal/sandbox/ns internal/lane/core)
# Nor with the detector, tests of these packages that end the world at each write, one after the other, that move much
# data, that fill a fleet, that need a worker's answer within 75 ms, or that run three servers in their process. They
# take four to fifteen times as long with it, and it sees the same code in the others.
# PKG=./internal/lane runs them all with it. Their times mean less beside many others, so fewer run at once.
HEAVY     = Test(Crash_|Commit_(ThatCannotBeSent|OfManyBodies|ResultsOfManyCalls)|Cluster|Caretaker_WhatACaller|Remade_|Twice_|Cancel_Beyond|Attachments_Documents|Deploy_EachUser|Redeliver_OutlivesTheLeader|Prefer|Fact|Keep|ResultRead|Toolsets|Command_OfVery|Command_LongerThan|Isolated_LongCommand|WorkspaceImport_Failed|Limits_HoldWhile|Later_Many|Drain_WhatIsOn|Dispatch_Spans|Flood_|Memory_DoesNotGrow|Reader_EndsSoon|Save_EachChange|AsNobody$$|Server_GivesMemory|\w*(CrashAt|AnyCrashes|PicturesAreDecoded|AndCrashes|Wherever|CutOffAnywhere|WhateverFollows|WhateverIsTooLarge|InMemoryIsBounded|SentAgainAreBounded|ADeepLane|ADeepStream|OnThreeServers|OnSeveralServers|InACluster|AServerCannotKeep|AFloodDelays|BehindAFlood|Thousands|ManyFutures|ManyHeld|TooLargeForTheFleet|TooLargeIsRejected))
HEAVY_IN  = $$(grep -rlE --include='*_test.go' '^func $(HEAVY)' $(RACED) | xargs -n1 dirname | sort -u | grep -xE '$(RACEDS)' | sed 's,^,./,')
MODULES  := . tools tools/openapi test/browser deploy/compose/check deploy/kubernetes/check
PKG      ?= ./...
CALLS    ?= 100000
SEED     ?= 0
LIMIT    ?= 0
SEEDS    ?= 100000
FUZZTIME ?= 10s
GIT      ?= 2.55.0
GIT_SUM  ?= 457fdb04dc8728e007d4688695e6912e6f680727920f2a40bf11eacc17505357
DEMO     := .toolfleet/demo
PROMPT   ?= The tests of this project fail. Find out why, repair it, and show that they pass.

## Use

.PHONY: demo
demo: build ## Run a session that repairs a real project, with a scripted model
	@echo "The session's first command compiles Go's packages in its sandbox: on a slow machine that takes a minute or two."
	rm -rf $(DEMO)
	mkdir -p $(DEMO)
	cp -R examples/wordstats $(DEMO)/wordstats
	-git init -q $(DEMO)/wordstats
	bin/coordinator run --model script:examples/wordstats.script.json \
		--workspace $(DEMO)/wordstats --data $(DEMO)/data \
		--env GOTOOLCHAIN=local --env GOWORK=off \
		"$(PROMPT)"
	@cd $(DEMO)/wordstats && GOWORK=off go test ./... || { echo "demo: the session has ended, but the tests in $(DEMO)/wordstats fail" >&2; exit 1; }

.PHONY: demo-fleet
demo-fleet: build ## The same over a server and two workers; the one that runs a call is killed
	examples/fleet-demo.sh

.PHONY: build
build: program ## Build static binaries into bin/
	$(LAVISH) CGO_ENABLED=0 go build -trimpath -tags $(TAG) -ldflags "$(LDFLAGS)" -o bin/ ./cmd/coordinator ./cmd/worker

.PHONY: program
program:
	$(if $(filter linux,$(shell go env GOOS)),$(LAVISH) CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o $(PROGRAM) ./internal/sandbox/internal/initd/program)

## Check

.PHONY: test
test: program bin/testsum ## Run every test, those of packages with goroutines under the race detector (PKG=./pkg/... for some, all under it)
	@$(if $(RACE),,echo "NO RACE DETECTOR: it needs a C compiler (go env CGO_ENABLED is not 1)" >&2)
	bin/testsum $(if $(filter ./...,$(PKG)),$(MAKE) --no-print-directory test-plain --) $(MAKE) --no-print-directory test-raced

# What testsum runs at the same time: it adopts the processes that tests leave behind, and fails. The linters vet, and
# see more.
.PHONY: test-plain
test-plain:
	@$(TESTING) CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o $(LINKED)/ ./cmd/coordinator ./cmd/worker
	@export TOOLFLEET_LINKED=$(CURDIR)/$(LINKED); failed=; \
	$(TESTING) CGO_ENABLED=0 go test -trimpath -short -vet=off $(WAITING) -json $(LONGEST) $$(go list ./... | grep -vE '^([^/]+/){3}$(RACEDS)$$') || failed=1; \
	$(TESTING) CGO_ENABLED=0 go test -trimpath -vet=off $(WAITING) -parallel $(CORES) -run '^$(HEAVY)' -json $(HEAVY_IN) || failed=1; \
	[ -z "$$failed" ]

.PHONY: test-raced
test-raced:
	@races=$$(mktemp) && trap 'rm -f "$$races"' EXIT && cat test/races.txt >"$$races" && chmod a+r "$$races" && \
	$(RACING) go test $(RACE) -trimpath $(if $(filter ./...,$(PKG)),-skip '^$(HEAVY)') -vet=off $(WAITING) -json $(if $(filter ./...,$(PKG)),$(RACED:%=./%),$(PKG))

.PHONY: chaos
chaos: ## Hold the laws against recorded histories, CALLS calls per fault (SEED=n, FAULT=pattern, LIMIT=20m: as many as fit), and in the simulation
	go test ./test/chaos -run 'TestChaos_$(FAULT)' -count=1 -parallel=1 -timeout=6h -v -args -calls=$(CALLS) -seed=$(SEED) -limit=$(LIMIT)
	$(if $(FAULT),,$(MAKE) simulate FAULT=each SEEDS=1000)
	$(if $(FAULT),,TOOLFLEET_SCHEDULE_FOR=5m go test -tags=$(TAG) ./test/integration -run TestSchedule_EachTimeOnce -count=1 -timeout=1h -v)

.PHONY: blackbox
blackbox: build ## Hold the laws against the binaries, and a worker with a handler in Go, by a program that knows only the wire (CALLS=n, SEED=n)
	go test ./test/blackbox -run TestRun_LawsHold -count=1 -parallel=1 -timeout=12h -v -args -bin=$(CURDIR)/bin -calls=$(CALLS) -seed=$(SEED)

.PHONY: calls-figures
calls-figures: ## Measure a log of CALLS calls, or of ROWS ones that SQL writes (SQLITE=sqlite3 has that program do it): its size, and how long a page takes with each filter
	TOOLFLEET_CALLS=$(CALLS) TOOLFLEET_ROWS=$(ROWS) TOOLFLEET_SQLITE=$(SQLITE) go test ./internal/session/index -run TestFigures -count=1 -timeout=6h -v

.PHONY: crash
crash: ## End the world at every write of a session's operations (OPERATION=fork for those whose names begin so), with each fault and each continuation
	go test ./test/crash -run TestCrash_EveryWrite -count=1 -timeout=3h -v -args -every -operation=$(OPERATION)

.PHONY: simulate
simulate: ## Hold the laws in a simulation of the streams, SEEDS seeds (default 100000; SEED=n replays one, FAULT=kill, or each, see docs/chaos.md)
	go test ./internal/lane/core -run TestSimulation_LawsHold -count=1 -timeout=12h -v -args -seeds=$(SEEDS) -seed=$(SEED) -fault=$(FAULT)

.PHONY: limits
limits: ## Hold the limits of lanes while workers and the server are killed, CALLS calls, and in the simulation
	go test ./internal/lane -run TestLimits_HoldWhileWorkersAreKilled -count=1 -timeout=6h -v -args -limited=$(CALLS)
	go test ./internal/lane/core -run TestSimulation_LimitsHold -count=1 -timeout=6h -v -args -seeds=20000

.PHONY: programs
programs: ## Compare random programs of streams and events with a model while workers are killed, CALLS programs
	go test ./pkg/fleet -run TestStream_RandomProgramsAgreeWithTheirModel -count=1 -timeout=6h -v -args -programs=$(CALLS)

.PHONY: flood
flood: ## Time a single call while CALLS calls of another tenant wait (such as 100000); needs a quiet machine
	go test ./internal/lane -run TestTenant_ASingleCallBehindAFlood -count=1 -timeout=1h -v -args -flood=$(CALLS)

.PHONY: escape
escape: program ## Try to get out of every sandbox driver, and say how each probe went (as root also as an ordinary user); abuse one, and time calls beside it
	go test -count=1 -v -run 'TestControl|TestEscape|TestProxy' ./test/escapetest ./internal/sandbox/ns ./internal/sandbox/drivers
	go test -tags=$(TAG) -count=1 -v -run TestAbuse_WorkerStaysResponsive ./test/integration

.PHONY: firsthour
firsthour: ## Work on every project as people have them, in place and over a fleet, as root and as an ordinary user
	TOOLFLEET_INTEGRATION=required TOOLFLEET_FIRSTHOUR=all go test ./test/firsthour -count=1 -timeout=1h -v

.PHONY: vm
vm: program ## Run sandbox tests in virtual machines with what this one may lack: cgroup v2, no Landlock (needs qemu and apt)
	go test ./test/vm -run TestMachines -count=1 -timeout=6h -v -args -vm $(VM)

.PHONY: interop
interop: program ## Run the MCP conformance suites, the inspector and agents of others against the server, and OpenTelemetry's collector, and print what they found
	TOOLFLEET_INTEGRATION=required go test -tags=$(TAG) ./test/interop -count=1 -timeout=30m -v -args -tables
	TOOLFLEET_INTEGRATION=required go test -tags=$(TAG) ./test/integration -run TestMcpDocs_ServersByNpx -count=1 -timeout=30m -v

.PHONY: sdk-typescript
sdk-typescript: build ## Check and test the client for TypeScript, and use its package in a fresh folder (needs node 20, npm)
	sdk/typescript/check.sh

.PHONY: http-followers
http-followers: program ## Follow one session by 1,000 clients, one of which reads nothing: of one server, of the next, and of a process that is killed
	FOLLOWERS=1000 go test ./internal/httpapi -run TestStreams_FollowersDoNotWaitForEachOther -count=1 -timeout=20m -v
	FOLLOWERS=1000 go test -tags=$(TAG) ./test/integration -run TestHTTP_FollowersOfAKilledServer -count=1 -timeout=20m -v

.PHONY: http-clients
http-clients: build ## Run one scenario with the SDKs, and with clients that generators of others make of the HTTP API's description (CLIENT=go for one), and docs/go.md word for word
	test/interop/clients/run.sh bin/coordinator $(CLIENT)
	$(if $(CLIENT),,TOOLFLEET_INTEGRATION=required go test -tags=$(TAG) ./test/integration -run TestGo_FifteenMinutes -count=1 -timeout=30m -v)

.PHONY: http-overhead
http-overhead: ## Check that a call over HTTP takes at most 1 ms longer than by the Go client, in the median of 400 pairs in turns
	PAIRS=400 go test ./internal/httpapi -run TestCalls_OverHTTPTakeLittleLonger -count=1 -v

.PHONY: http-schemathesis
http-schemathesis: build ## Try the HTTP API with what schemathesis makes of its description, for SECONDS (default 300; needs python3 and PyPI)
	test/interop/schemathesis.sh bin/coordinator $(or $(SECONDS),300)

.PHONY: webhooks
webhooks: build ## Run the receivers of docs/webhooks.md in Python and TypeScript (needs python3, npm, curl, PyPI and the npm registry)
	test/interop/webhooks.sh bin/coordinator

.PHONY: browser
browser: build browser-packages ## Use each page in a real browser, also by keys alone, and check it by axe-core (needs chromium-headless-shell, npm, python3)
	TOOLFLEET_INTEGRATION=required go -C test/browser test . -count=1 -timeout=60m -v $(if $(RUN),-run '$(RUN)')

.PHONY: browser-packages
browser-packages:
	npm --prefix test/browser ci --ignore-scripts --no-audit --no-fund

.PHONY: git
git: program bin/git-$(GIT)/bin/git ## Hold the guard of git against git GIT, which it builds (GIT=version GIT_SUM=sha256; needs a C compiler, zlib, curl)
	export PATH="$(CURDIR)/bin/git-$(GIT)/bin:$$PATH" TOOLFLEET_INTEGRATION=required && git --version && \
	go test -tags=$(TAG) ./internal/inplace/gitguard -count=1 && \
	go test -tags=$(TAG) ./internal/worker ./test/integration -run 'Protect|Isolated' -count=1

# The sources are those of Debian sid, which drops a version soon after it has the next one.
bin/git-$(GIT)/bin/git:
	dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && \
	curl -fsSL -o "$$dir/git.tar.xz" https://deb.debian.org/debian/pool/main/g/git/git_$(GIT).orig.tar.xz && \
	echo "$(GIT_SUM)  $$dir/git.tar.xz" | sha256sum --check --quiet && tar -xJf "$$dir/git.tar.xz" -C "$$dir" && \
	{ make -C "$$dir/git-$(GIT)" -j2 NO_RUST=1 NO_CURL=1 NO_EXPAT=1 NO_OPENSSL=1 NO_GETTEXT=1 NO_TCLTK=1 NO_PERL=1 NO_PYTHON=1 \
		RUNTIME_PREFIX=1 prefix="$(CURDIR)/$(@D:/bin=)" install >"$$dir/log" 2>&1 || { tail -n 20 "$$dir/log" >&2; exit 1; }; }

.PHONY: s3
s3: ## Hold the tests of contents in S3 against a server of others, versitygw
	dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && GOBIN=$$dir GOFLAGS= CGO_ENABLED=0 go install -trimpath github.com/versity/versitygw/cmd/versitygw@v1.8.0 && \
	TOOLFLEET_S3_SERVER=$$dir/versitygw go test ./internal/workspace -run 'TestS3|TestMove' -count=1 -timeout=10m -v

.PHONY: sdk-python
sdk-python: build ## Test the Python SDK, build its wheel, and use that in an empty environment (needs Python 3.10 or later and PyPI)
	sdk/python/scripts/check.sh

.PHONY: lint
lint: ## Run the linters of .golangci.yml (the first time builds them)
	$(LINT) run ./...

.PHONY: fmt
fmt: ## Format the code
	$(LINT) fmt ./...

.PHONY: tidy-check
tidy-check: ## Check that go.mod and go.sum of every module are tidy
	for module in $(MODULES); do echo "go mod tidy -diff: $$module"; go -C $$module mod tidy -diff || exit 1; done

.PHONY: api
api: bin/api ## List the public API in docs/api.txt, so that a review shows what a change does to it
	bin/api -o docs/api.txt

.PHONY: api-check
api-check: bin/api ## Check that docs/api.txt lists the public API
	bin/api -check -o docs/api.txt

.PHONY: openapi-check
openapi-check: ## Check that docs/openapi.json breaks no client of the last release, by oasdiff
	$(ONCE) go -C tools/openapi tool oasdiff breaking --fail-on ERR released.json ../../docs/openapi.json

.PHONY: openapi-release
openapi-release: ## With a release: keep docs/openapi.json as what later changes are compared with
	cp docs/openapi.json tools/openapi/released.json

.PHONY: cross
cross: bin/typecheck ## Check that everything, tests too, is valid Go on macOS and Windows
	$(LAVISH) bin/typecheck $(SYSTEMS)

.PHONY: compose-check
compose-check: ## Check deploy/compose without an engine
	$(ONCE) go -C deploy/compose/check test -count=1 ./... # what it checks lies outside its module, where no cache looks

.PHONY: alerts-check
alerts-check: ## Check the alert rules of deploy/compose, and what they do, by promtool
	@command -v promtool >/dev/null || { echo "NOT CHECKED: promtool is not installed (Debian: prometheus)" >&2; exit 0; }; \
	cd deploy/compose && promtool check rules alerts.yml && promtool test rules alerts.test.yml && \
	promtool check config prometheus.yml

.PHONY: kubernetes-check
kubernetes-check: ## Check deploy/kubernetes without a cluster
	$(ONCE) go -C deploy/kubernetes/check test -count=1 ./...

.PHONY: compose-podman
compose-podman: build ## Prove by podman-compose what deploy/compose promises (BASE=image, CLUSTER=1: three NATS servers)
	deploy/compose/podman.sh

.PHONY: ci
ci: ## Run all that a change must pass
	.ci/run

## Measure

.PHONY: bench
bench: build ## Measure the fleet beside bare NATS in the same run (CALLS=n per line)
	bin/coordinator bench --calls $(CALLS)
	bin/coordinator bench --calls $(CALLS) --lanes 1 --callers 64 --waiting 100000
	bin/coordinator bench --calls $(CALLS) --lanes 100000
	bin/coordinator bench --calls 10000 --lanes 1 --callers 1
	bin/coordinator bench --calls $(CALLS) --work 5ms
	bin/coordinator bench --calls 10000 --callers 16 --slow-lane 50ms

.PHONY: bench-cluster
bench-cluster: build ## The same on three servers with three replicas on this machine
	bin/coordinator bench --replicas 3 --calls $(CALLS)
	bin/coordinator bench --replicas 3 --calls 10000 --lanes 1 --callers 64
	bin/coordinator bench --replicas 3 --calls 40000 --lanes 100000
	bin/coordinator bench --replicas 3 --calls 3000 --lanes 1 --callers 1

.PHONY: bench-fleet
bench-fleet: build ## Measure shell commands in sandboxes through the whole fleet, beside plain shells in the same run
	bin/coordinator bench --exec true --lanes 32 --callers 64 --calls 10000

.PHONY: bench-sessions
bench-sessions: build ## Measure 300 sessions that take turns on one worker of 64 slots, and 5,000 that make a call a minute, beside 64
	for lanes in 64 300 64 300; do bin/coordinator bench --exec true --lanes $$lanes --callers 64 --calls 6000; done
	for lanes in 64 5000; do bin/coordinator bench --lanes $$lanes --rate 84 --calls 5000; done

.PHONY: bench-peers
bench-peers: program ## The same work on asynq, River, Restate and Temporal, in turns (ARGS="-rounds 1 -only toolfleet,river"; needs PostgreSQL, Redis and npm)
	CGO_ENABLED=0 go -C tools/peers build -trimpath -tags $(TAG) -o ../../bin/peers .
	bin/peers $(ARGS)

.PHONY: bench-workspace
bench-workspace: program ## Measure workspaces that move, 10,000 files of 100 MB, beside tar, zstd, git and cp in the same run
	CGO_ENABLED=0 go test -tags $(TAG) -run '^$$' -bench Workspace -benchtime 5x -timeout 30m ./cmd/coordinator/internal/bench

.PHONY: bench-sandbox
bench-sandbox: build ## Measure sandboxes beside plain child processes in the same run
	CGO_ENABLED=0 go test -tags $(TAG) -run '^$$' -bench . -benchtime 3s ./internal/sandbox/ns

.PHONY: bench-growth
bench-growth: ## Measure what looking and waiting cost where there are 10, 1,000 and 10,000 lanes, sessions or triggers
	CGO_ENABLED=0 go test -run '^$$' -bench Growth -benchtime 1x -timeout 1h ./cmd/coordinator/internal/bench

.PHONY: ui-load
ui-load: build ## Measure the pages of a fleet with 1,000 sessions, 10,000 lanes and a log of a million calls, and 100 watchers
	TOOLFLEET_INTEGRATION=required go -C test/browser test . -run TestLoad -count=1 -timeout=60m -v -sessions=1000 -lanes=10000 -calls=1000000

.PHONY: bench-cache
bench-cache: program ## Measure the first go test of a session beside the next one: at most 1.2 times as long
	CGO_ENABLED=0 go test -tags $(TAG) -run '^$$' -bench BenchmarkCache -benchtime 9x ./test/firsthour

.PHONY: bench-mcp
bench-mcp: program ## Measure calls by the Model Context Protocol beside those of coordinator call in the same run
	CGO_ENABLED=0 go test -tags $(TAG) -run '^$$' -bench BenchmarkCall -benchtime 5000x ./internal/mcp/mcpserver

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME (default 10s) each
	go list $(PKG) | while read -r pkg; do \
		for target in $$(go test -list '^Fuzz' "$$pkg" | grep '^Fuzz' || true); do \
			echo "$$pkg $$target"; \
			go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$pkg" || exit 1; \
		done; \
	done

## Other

.PHONY: screenshots
screenshots: build bin/screenshots ## Draw docs/images from real sessions with a scripted model, and each web page into bin/screenshots-web (needs chromium-headless-shell)
	mkdir -p .toolfleet/screenshots docs/images
	bin/screenshots bin/coordinator tools/screenshots/run.script.json examples/wordstats docs/images/run.svg
	TOOLFLEET_INTEGRATION=required go -C test/browser test . -run 'TestScreenshots|TestWalks' -count=1 -timeout=30m -v -shots=$(CURDIR)/bin/screenshots-web -images=$(CURDIR)/docs/images

.PHONY: clean
clean: ## Remove what the other targets made
	rm -rf bin .toolfleet $(PROGRAM)

.PHONY: help
help: ## Show this help
	@awk 'BEGIN { FS = ":.*## " } \
		/^## / { printf "\n%s\n", substr($$0, 4) } \
		/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

bin/%: tools/%/*.go tools/go.mod
	@$(ONCE) go -C tools build -o ../$@ ./$*
