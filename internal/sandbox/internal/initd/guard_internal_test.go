//go:build linux

package initd

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseStat(t *testing.T) {
	t.Parallel()
	const tail = " S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 77 20 21\n"
	want := proc{pid: 9, ppid: 1, pgrp: 2}
	for _, comm := range []string{"(sh)", "(a b)", "())", "(a) S 5 5 5 (b)", "(\n)", "()"} {
		got, ok := parseStat(9, []byte("9 "+comm+tail))
		require.True(t, ok, comm)
		require.Equal(t, want, got, comm)
	}
	for _, bad := range []string{"", "9 (sh)", "9 (sh) S 1", "9 (sh) S x" + tail[4:]} {
		_, ok := parseStat(9, []byte(bad))
		require.False(t, ok, bad)
	}
	require.Contains(t, readProcs(), proc{pid: os.Getpid(), ppid: os.Getppid(), pgrp: syscall.Getpgrp()})
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("9 (sh) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 77 20 21\n"))
	f.Add([]byte(")"))
	f.Fuzz(func(_ *testing.T, stat []byte) { parseStat(1, stat) })
}
