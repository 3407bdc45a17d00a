package snapshot_test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/sandbox/snapshot"
)

// workspace is 2,000 files of 10 KiB in 50 directories.
func workspace(tb testing.TB) *os.Root {
	tb.Helper()
	words := []string{"func", "return", "err", "nil", "context", "\n", "\t", "if", "{", "}"}
	source := rand.New(rand.NewPCG(1, 2))
	want := tree{}
	for d := range 50 {
		want[fmt.Sprintf("d%d", d)] = node{dir: true}
		for f := range 40 {
			var body bytes.Buffer
			for body.Len() < 10<<10 {
				fmt.Fprintf(&body, "%s %d ", words[source.IntN(len(words))], source.IntN(1000))
			}
			want[fmt.Sprintf("d%d/f%d", d, f)] = node{body: body.String()}
		}
	}
	return newRoot(tb, want)
}

func BenchmarkPack(b *testing.B) {
	root := workspace(b)
	b.SetBytes(2000 * 10 << 10)
	b.ReportAllocs()
	for b.Loop() {
		_, _, err := snapshot.Pack(b.Context(), root, io.Discard, nil)
		require.NoError(b, err)
	}
}

func BenchmarkSync_Unchanged(b *testing.B) {
	root := workspace(b)
	data, base, _ := pack(b, root, nil)
	b.SetBytes(2000 * 10 << 10)
	b.ReportAllocs()
	for b.Loop() {
		_, err := snapshot.Sync(b.Context(), root, base, bytes.NewReader(data), nil)
		require.NoError(b, err)
	}
}
