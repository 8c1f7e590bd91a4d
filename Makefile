# Everything here is a go command. .ci/run runs all but bench and figures, and more.

# Tools are pinned here and nowhere else, and installed outside go.mod: their
# modules are not the program's.
GOLANGCI_LINT = v2.15.0
GOVULNCHECK = v1.8.0
HELM = v3.22.0
KUBECONFORM = v0.8.0
ACTIONLINT = v1.7.12
GORELEASER = v2.16.0
SYFT = v1.52.0
COSIGN = v3.1.3
JAEGER = v1.62.0
# Modules that schemas are taken from.
KUBERNETES = v1.36.3
PROMETHEUS_OPERATOR = v0.92.1
CERT_MANAGER = v1.19.2
BENCHSTAT = v0.0.0-20260908200009-22c9c6c9d4da

FUZZTIME = 20s
BENCHTIME = 1s
COUNT = 1

.PHONY: test race lint fuzz bench figures guard demo generate
test: ; go test ./...
race: ; go test -race ./...
demo: ; go run ./cmd/wopproxy demo
lint:
	go vet ./...
	go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT) run ./...
# Two at a time, and each alone on its core: FUZZTIME=10m for a night, FUZZ=Judge for
# those whose names have it.
FUZZ = .
fuzz: ; .ci/fuzz $(FUZZTIME) $(FUZZ)
# To compare: COUNT=10 >old, COUNT=10 >new, then go run golang.org/x/perf/cmd/benchstat@$(BENCHSTAT) old new.
bench: ; go test -run '^$$' -bench . -benchmem -benchtime $(BENCHTIME) -count $(COUNT) ./...
# The benchmarks of the hot pieces beside what is recorded, and recording anew.
guard: ; go run ./test/bench -guard
figures: ; go run ./test/bench -record
# Rewrites what tests compare with: schemas, golden files, what is made of the chart's
# values. What the chart renders takes helm.
generate: ; go test ./config ./proxy/internal/wire ./cmd/wopproxy ./deploy/inject ./charts -run . -update
