//go:build race

package integration

// raceEnabled says that the tests, and so the binaries, have the race detector.
const raceEnabled = true

// slow is 1 when everything is several times slower than it is in use.
const slow = 1
