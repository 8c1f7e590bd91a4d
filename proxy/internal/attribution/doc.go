// Package attribution decides which run of this host an outbound call belongs
// to.
//
// It promises never to guess: a run is named only on evidence that identifies
// it, and otherwise the verdict carries the reason why none is named. Two
// rungs that disagree are settled by their order and reported as a conflict.
// Timing and similarity are not evidence.
//
// Three rungs (trace-id, conversation, single-flight) reason from the set of
// runs that are live here, so they hold only as long as that set is complete.
// Whenever the table has had to leave a run out, those rungs abstain.
package attribution
