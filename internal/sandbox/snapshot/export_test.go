package snapshot

import (
	"testing"
	"time"
)

// KeepEvery sets how often the bodies of a long Save are kept.
func KeepEvery(t *testing.T, d time.Duration) {
	t.Helper()
	before := keepEvery
	keepEvery = d
	t.Cleanup(func() { keepEvery = before })
}

// Digest is the digest of a content: each run is followed by that many zeros.
func Digest(runs [][]byte, zeros []int64) string {
	d := newDigest()
	for i, run := range runs {
		_, _ = d.Write(run)
		d.zeros(zeros[i])
	}
	return d.sum()
}
