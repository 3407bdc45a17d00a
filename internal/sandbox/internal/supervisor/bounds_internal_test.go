//go:build linux

package supervisor

import (
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/cgroup"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// TestBounds_LimitsAreThoseOfWhoRunsAlone, and of the sandbox when nobody or more than one does;
// and a command was alone if none has run at the same time, whichever of the two came first.
func TestBounds_LimitsAreThoseOfWhoRunsAlone(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		whole := sandbox.Limits{Memory: 1 << 20}
		inForce := whole
		s := &Bounds{whole: whole, set: func(l sandbox.Limits) error { inForce = l; return nil }}
		beside := map[*Bound]bool{} // whether another one has run at the same time
		running := func() []*Bound {
			return slices.SortedFunc(maps.Keys(s.running), func(a, b *Bound) int { return int(a.limits.Memory - b.limits.Memory) })
		}
		next := int64(0)
		t.Repeat(map[string]func(*rapid.T){
			"enter": func(t *rapid.T) {
				next++
				p, err := s.Enter(sandbox.Limits{Memory: next})
				require.NoError(t, err)
				beside[p] = false
			},
			"leave": func(t *rapid.T) {
				if len(s.running) == 0 {
					t.Skip("nothing runs")
				}
				p := rapid.SampledFrom(running()).Draw(t, "command")
				p.Leave()
				delete(beside, p)
				require.False(t, p.only())
			},
			"": func(t *rapid.T) {
				require.Len(t, s.running, len(beside))
				want := whole
				for p := range beside {
					beside[p] = beside[p] || len(beside) > 1
					require.Equal(t, !beside[p], p.alone)
					require.Equal(t, len(beside) == 1, p.only())
					if len(beside) == 1 {
						want = p.limits
					}
				}
				require.Equal(t, want, inForce)
			},
		})
	})
}

// TestBounds_WhatCannotBeLimitedDoesNotRun.
func TestBounds_WhatCannotBeLimitedDoesNotRun(t *testing.T) {
	t.Parallel()
	fault := errors.New("no such file")
	fails := false
	s := &Bounds{set: func(sandbox.Limits) error {
		if fails {
			return fault
		}
		return nil
	}}
	first, err := s.Enter(sandbox.Limits{})
	require.NoError(t, err)
	fails = true
	_, err = s.Enter(sandbox.Limits{})
	require.ErrorIs(t, err, fault)
	require.True(t, first.only())
}

// TestKinds_AreWhatHeld: a limit of the command's own holds only while the command is alone.
func TestKinds_AreWhatHeld(t *testing.T) {
	t.Parallel()
	whole := sandbox.Limits{Memory: 8 << 20, Processes: 8}
	none := isolation.LimitKinds{Memory: isolation.LimitSoft, Processes: isolation.LimitRlimit}
	for name, test := range map[string]struct {
		bounded, beside   bool
		limits            sandbox.Limits
		memory, processes isolation.LimitKind
		watched           bool
	}{
		"nothing is there":       {limits: whole, memory: none.Memory, processes: none.Processes, watched: true},
		"as the sandbox":         {bounded: true, limits: whole, memory: isolation.LimitCgroup, processes: isolation.LimitCgroup},
		"as the sandbox, beside": {bounded: true, beside: true, limits: whole, memory: isolation.LimitCgroup, processes: isolation.LimitCgroup},
		"its own, alone": {
			bounded: true, limits: sandbox.Limits{Memory: 1, Processes: 1}, memory: isolation.LimitCgroup, processes: isolation.LimitCgroup, watched: true,
		},
		"its own, beside another": {
			bounded: true, beside: true, limits: sandbox.Limits{Memory: 1, Processes: 1},
			memory: isolation.LimitSoft, processes: isolation.LimitNone, watched: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := &Bounds{whole: whole}
			if test.bounded {
				b.group = &cgroup.Group{}
			}
			command, err := b.Enter(test.limits)
			require.NoError(t, err)
			if test.beside {
				other, err := b.Enter(whole)
				require.NoError(t, err)
				require.False(t, command.Alone())
				other.Leave()
			}
			require.Equal(t, test.bounded, command.Alone(), "now")
			require.Equal(t, test.memory, command.Kinds(none).Memory)
			require.Equal(t, test.processes, command.Kinds(none).Processes)
			require.Equal(t, test.watched, command.Watched())
			command.Leave()
			require.False(t, command.Alone())
		})
	}
}
