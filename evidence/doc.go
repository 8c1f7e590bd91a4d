// Package evidence turns what a proxy has observed of exchanges into signed
// receipts, as ancestry/peac has them, and says where each stands in the workflow
// of its run.
//
// What an exchange is called is fixed when it begins, so that what it leads to can
// name it; what is said of it is signed when it has ended, on the side. The package
// promises that nobody who has traffic to carry ever waits for it: but for Run, the
// methods of a Minter wait for nothing but each other, and a receipt for which there
// is no room is dropped and counted. Seal alone signs while its caller waits, for an
// answer that is to bear its receipt. Of a workflow that has lost one the store knows
// so, and no summary is made of it.
//
// It says what was observed and nothing else: no argument, no answer, no name that
// the configured Privacy keeps back. It knows no network.
package evidence
