// Package e2e holds wopproxy to its promises from outside: the program is
// built and run as a process, and what calls it and is called by it are real
// peers, such as the official SDKs.
//
// Nothing here looks into the program. What it did is read where its users read
// it: in the messages its peers receive, on its read API, in its metrics, its
// log and its exit code.
package e2e
