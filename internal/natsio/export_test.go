package natsio

import (
	"testing"
	"time"
)

// SweepChunksBefore removes chunks that no record names, and that were stored before a time.
var SweepChunksBefore = sweepChunks

// SetOrphanAge sets the age of chunks that are removed, for a test that runs alone.
func SetOrphanAge(t *testing.T, age time.Duration) {
	t.Helper()
	before := orphanAge
	orphanAge = age
	t.Cleanup(func() { orphanAge = before })
}
