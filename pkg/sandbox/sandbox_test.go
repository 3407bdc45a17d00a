package sandbox_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

func TestLevel_WordsAreParsedBack(t *testing.T) {
	t.Parallel()
	for level := sandbox.LevelNone; level <= sandbox.LevelKernel; level++ {
		got, err := sandbox.ParseLevel(level.String())
		require.NoError(t, err)
		require.Equal(t, level, got)
	}
	got, err := sandbox.ParseLevel("")
	require.NoError(t, err)
	require.Equal(t, sandbox.LevelNone, got)
	for _, word := range []string{"Full", "best", sandbox.Level(9).String()} {
		_, err := sandbox.ParseLevel(word)
		require.ErrorContains(t, err, "none, paths, full or kernel")
	}
}

func TestFault(t *testing.T) {
	t.Parallel()
	fault := protocol.Errorf(protocol.CodeNotFound, "%q does not exist", "a")
	require.EqualError(t, fault, `not_found: "a" does not exist`)
	require.Equal(t, "not_found", fault.ErrorType())
}
