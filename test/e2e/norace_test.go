//go:build !race

package e2e

// raceEnabled builds the program under test as these tests are built.
const raceEnabled = false
