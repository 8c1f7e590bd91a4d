# Everything here is a go command. .ci/run runs all but bench and figures, and more.

# Tools are pinned here and nowhere else, and installed outside go.mod: their
# modules are not the program's.
GOLANGCI_LINT = v2.15.0
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
# One target at a time is all that go test does. Without the flag for the
# minimiser it spends most of a short run on shortening inputs.
fuzz:
	@set -e; for pkg in $$(go list ./...); do \
	  for f in $$(go test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
	    echo "$$f $$pkg"; go test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1x $$pkg; \
	  done; done
# To compare: COUNT=10 >old, COUNT=10 >new, then go run golang.org/x/perf/cmd/benchstat@$(BENCHSTAT) old new.
bench: ; go test -run '^$$' -bench . -benchmem -benchtime $(BENCHTIME) -count $(COUNT) ./...
# The benchmarks of the hot pieces beside what is recorded, and recording anew.
guard: ; go run ./test/bench -guard
figures: ; go run ./test/bench -record
# Rewrites what tests compare with: the schema of the configuration, golden files.
generate: ; go test ./config ./proxy/internal/wire ./cmd/wopproxy -run . -update
