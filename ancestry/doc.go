// Package ancestry knows which run caused which: it names runs, carries their
// ancestry from host to host, and keeps it.
//
// It promises three things.
//
// A run has at most one recorded parent, and the first one recorded stays. A
// run may have two ids, the one minted for it on arrival and the one its host
// gave it; both name it for good, whatever order they were learned in.
//
// What a Recorder has acknowledged is durable, and what it has accepted can be
// read at once. Recording never blocks: when the disk cannot follow, links are
// dropped and counted, and calls go on.
//
// What a peer sends is bounded and checked before anything is taken from it. A
// Run-Ancestry header is taken as a whole or not at all, and no value in it can
// break out of a header, a log line or a path.
package ancestry
