// Package audit checks the event log of an OpenWOP run against the rules of the
// multi-agent execution model: the handoff from a planner to its workers (RFC
// 0037), and the confidence floor, the life of memory and the refusal of forks
// (RFC 0039).
//
// It reports what a log shows, and never what it leaves open. Rules that look
// for an event which ought to be there apply only while the log is whole, that
// is, while every sequence number from 0 on has been seen: the default mode of
// an event stream filters most of what matters here out, and a stream that was
// resumed lacks its beginning. What a log can't show at all, for example
// whether a worker's output had to be harvested, is not judged.
//
// The package reads no network and keeps no clock. A Run is for one goroutine.
package audit
