// Package peac makes and checks evidence of workflows, in the form that PEAC
// gives it: signed receipts (wire format 0.2), each with its place in a workflow
// of several agents, and summaries that commit to all of them.
//
// It promises three things.
//
// What it signs, it would accept: a receipt is checked by the rules for reading
// one before it is signed, down to its strings, and none is made of what fails.
//
// What it accepts is what was signed: bytes are refused that another reader of
// JSON could take for something else, and each refusal names its code. Where
// several rules are broken, the first in PEAC's order decides.
//
// An identifier tells nothing of the run that it stands for without the key that
// it was made with, and is not made from anything that a trace shows.
//
// The package reads no network, no file and no clock: the time comes from the
// caller. What it returns may be used by many goroutines while none changes it.
package peac
