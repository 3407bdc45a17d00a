package isolation_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestLevel_WordsAreParsedBack(t *testing.T) {
	t.Parallel()
	for level := isolation.LevelNone; level <= isolation.LevelKernel; level++ {
		got, err := isolation.ParseLevel(level.String())
		require.NoError(t, err)
		require.Equal(t, level, got)
	}
	got, err := isolation.ParseLevel("")
	require.NoError(t, err)
	require.Equal(t, isolation.LevelNone, got)
	for _, word := range []string{"Full", "best", isolation.Level(9).String()} {
		_, err := isolation.ParseLevel(word)
		require.ErrorContains(t, err, "none, paths, full or kernel")
	}
}

func TestFault(t *testing.T) {
	t.Parallel()
	fault := protocol.Errorf(protocol.CodeNotFound, "%q does not exist", "a")
	require.EqualError(t, fault, `not_found: "a" does not exist`)
	require.Equal(t, "not_found", fault.ErrorType())
}
