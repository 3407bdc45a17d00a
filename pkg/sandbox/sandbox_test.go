package sandbox_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

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

func TestLimits_Tighten(t *testing.T) {
	t.Parallel()
	limit := func(t *rapid.T, name string) int64 { return rapid.Int64Range(-2, 5).Draw(t, name) }
	rapid.Check(t, func(t *rapid.T) {
		a := sandbox.Limits{Wall: time.Duration(limit(t, "wall a")), Output: limit(t, "output a"), Grace: 3}
		b := sandbox.Limits{Wall: time.Duration(limit(t, "wall b")), Output: limit(t, "output b"), Grace: 2}
		got := a.Tighten(b)
		require.Equal(t, time.Duration(2), got.Grace)
		require.False(t, wider(int64(got.Wall), int64(a.Wall)), "Wall %v of %v and %v", got, a, b)
		require.False(t, wider(got.Output, a.Output))
		if b.Output > 0 {
			require.False(t, wider(got.Output, b.Output))
		}
	})
}

// wider compares limits, where none is the widest.
func wider(a, b int64) bool { return b > 0 && (a <= 0 || a > b) }

func TestLimits_Defaults(t *testing.T) {
	t.Parallel()
	require.Equal(t,
		sandbox.Limits{Output: sandbox.DefaultOutput, Grace: sandbox.DefaultGrace},
		sandbox.Limits{Grace: -1}.WithDefaults())
	set := sandbox.Limits{Wall: 1, Output: 2, Grace: 3}
	require.Equal(t, set, set.WithDefaults())
}

func TestFault(t *testing.T) {
	t.Parallel()
	fault := sandbox.Faultf(sandbox.FaultNotFound, "%q does not exist", "a")
	require.EqualError(t, fault, `not_found: "a" does not exist`)
	require.Equal(t, "not_found", fault.ErrorType())
}
