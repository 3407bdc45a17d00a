package snapshot_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/sandbox/snapshot"
)

// FuzzUnpack feeds bytes, as they are and compressed. Whatever they are, nothing outside
// changes; what is accepted packs again, and unpacks to itself.
func FuzzUnpack(f *testing.F) {
	for _, c := range evil(f) {
		if len(c.data) < 1<<16 {
			f.Add(c.data, false)
		}
	}
	f.Add(tarball(f, dir("d"), file("d/f", "x"), link("l", "../canary")), true)
	f.Add(sparseTar(f), true)
	f.Add(tarball(f, link("up", ".."), file("up/canary", "dead")), true)
	opts := &snapshot.Options{Limits: snapshot.Limits{MaxEntries: 50, MaxBytes: 1 << 20}}
	f.Fuzz(func(t *testing.T, data []byte, plain bool) {
		if plain {
			data = compress(t, data)
		}
		a := newArena(t)
		_, err := snapshot.Unpack(t.Context(), a.root, bytes.NewReader(data), opts)
		a.unharmed(t)
		if err != nil {
			var typed *snapshot.Error
			var pathError *fs.PathError
			var linkError *os.LinkError
			require.True(t, errors.As(err, &typed) || errors.As(err, &pathError) || errors.As(err, &linkError), "%v", err)
			unlockAll(t, a.root.Name())
			return
		}
		packed, manifest, _ := pack(t, a.root, opts)
		there := newRoot(t, nil)
		_, err = snapshot.Unpack(t.Context(), there, bytes.NewReader(packed), opts)
		require.NoError(t, err)
		_, again, _ := pack(t, there, opts)
		require.Equal(t, manifest, again)
		unlockAll(t, a.root.Name())
	})
}
