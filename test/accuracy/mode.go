package main

// mode is one way in which hosts help wopproxy, or don't.
type mode struct {
	name        string
	cooperation string   // what the host is told to do
	settings    string   // what wopproxy is told, as YAML
	by          []string // the evidence that has to decide
	without     []string // hosts that there is no such thing for
	carry       bool     // the host is started with the shims
	dear        bool     // a run takes long to start: there are fewer
	spaced      bool     // where one run is at work at a time, wait until the one before is forgotten
	least       float64  // the share of calls that has to be linked where several are; of one, all
}

// allowance is how many of the calls may be left alone with so many runs at work.
func (m mode) allowance(at, calls int) int {
	if at == 1 {
		return 0
	}
	return int((1 - m.least) * float64(calls))
}

// modes are the rows of the table, from those that ask nothing of the host to
// those that ask more.
var modes = []mode{
	{name: "none", cooperation: "none", by: []string{"single-flight"}, spaced: true},
	{name: "carry shim", cooperation: "none", least: 1, by: []string{"run-id"}, without: []string{"Go"}, carry: true},
	{name: "OpenTelemetry", cooperation: "opentelemetry", least: 1, by: []string{"trace-state"}},
	{name: "`traceparent` handed on", cooperation: "traceparent", least: 1, by: []string{"trace-id"}},
	{name: "`Run-Id`", cooperation: "run-id", least: 1, by: []string{"run-id"}},
	{name: "proxy credential", cooperation: "credential", least: 1, by: []string{"proxy-credential"}},
	{name: "base path", cooperation: "base-path", least: 1, by: []string{"base-path"}},
	{name: "a process for each run", cooperation: "process", least: 1, by: []string{"process"}, dear: true, settings: `
attribution: { processPerRun: true }
limits: { processScan: 10s }`},
}
