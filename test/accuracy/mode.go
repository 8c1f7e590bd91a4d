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
	alone       bool     // only the calls of a run that is alone are linked; else all have to be
}

// modes are the rows of the table, from those that ask nothing of the host to
// those that ask more.
var modes = []mode{
	{name: "none", cooperation: "none", by: []string{"single-flight"}, alone: true},
	{name: "ids of the message", cooperation: "ids", by: []string{"echoed-id"}, settings: `
attribution: { echoedIds: true }`},
	{name: "carry shim", cooperation: "none", by: []string{"run-id"}, without: []string{"Go"}, carry: true},
	{name: "OpenTelemetry", cooperation: "opentelemetry", by: []string{"trace-state"}},
	{name: "`traceparent` handed on", cooperation: "traceparent", by: []string{"trace-id"}},
	{name: "`Run-Id`", cooperation: "run-id", by: []string{"run-id"}},
	{name: "proxy credential", cooperation: "credential", by: []string{"proxy-credential"}},
	{name: "base path", cooperation: "base-path", by: []string{"base-path"}},
	{name: "a process for each run", cooperation: "process", by: []string{"process"}, dear: true, settings: `
attribution: { processPerRun: true }
limits: { processScan: 10s }`},
}
