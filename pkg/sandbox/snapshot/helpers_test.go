package snapshot_test

import (
	"archive/tar"
	"bytes"
	gocontext "context"
	"maps"
	"slices"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
)

func context(tb testing.TB) gocontext.Context { tb.Helper(); return tb.Context() }

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// tarball is the bytes of a tar stream with these entries; a file's Size is set when it
// is 0.
func tarball(tb testing.TB, entries ...entry) []byte {
	tb.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, e := range entries {
		if e.Size == 0 {
			e.Size = int64(len(e.body))
		}
		if e.Mode == 0 {
			e.Mode = 0o755
		}
		require.NoError(tb, tw.WriteHeader(&e.Header))
		_, err := tw.Write([]byte(e.body))
		require.NoError(tb, err)
	}
	require.NoError(tb, tw.Close())
	return buf.Bytes()
}

type entry struct {
	tar.Header

	body string
}

func file(name, body string) entry {
	return entry{Header: tar.Header{Typeflag: tar.TypeReg, Name: name}, body: body}
}

func dir(name string) entry {
	return entry{Header: tar.Header{Typeflag: tar.TypeDir, Name: name + "/"}}
}

func link(name, target string) entry {
	return entry{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target}}
}

func compress(tb testing.TB, plain []byte) []byte {
	tb.Helper()
	zw, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	require.NoError(tb, err)
	defer func() { require.NoError(tb, zw.Close()) }()
	return zw.EncodeAll(plain, nil)
}

func decompress(tb testing.TB, packed []byte) []byte {
	tb.Helper()
	zr, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	require.NoError(tb, err)
	defer zr.Close()
	plain, err := zr.DecodeAll(packed, nil)
	require.NoError(tb, err)
	return plain
}
