package isolation_test

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// fields are the limits by their names; a limit that is added is tested by itself.
func fields(l *sandbox.Limits) map[string]reflect.Value {
	v := reflect.ValueOf(l).Elem()
	all := map[string]reflect.Value{}
	for i := range v.NumField() {
		all[v.Type().Field(i).Name] = v.Field(i)
	}
	return all
}

func TestLimits_TightenNeverWidens(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var a, b sandbox.Limits
		limit := rapid.Int64Range(-2, 5)
		for name := range fields(&a) {
			fields(&a)[name].SetInt(limit.Draw(t, "a."+name))
			fields(&b)[name].SetInt(limit.Draw(t, "b."+name))
		}
		got := isolation.Tighten(a, b)
		for name, value := range fields(&got) {
			one, other := fields(&a)[name].Int(), fields(&b)[name].Int()
			require.False(t, wider(value.Int(), one), "%s %d of %d and %d", name, value.Int(), one, other)
			require.False(t, wider(value.Int(), other), "%s %d of %d and %d", name, value.Int(), one, other)
			require.Contains(t, []int64{one, other}, value.Int())
		}
	})
}

// wider reports whether a limits less than b does, where 0 and less is no limit.
func wider(a, b int64) bool { return b > 0 && (a <= 0 || a > b) }

func TestLimits_NegativeOnesAreRefused(t *testing.T) {
	t.Parallel()
	var all sandbox.Limits
	require.NoError(t, isolation.ValidateLimits(all))
	for name := range fields(&all) {
		var one sandbox.Limits
		fields(&one)[name].SetInt(1)
		require.NoError(t, isolation.ValidateLimits(one))
		fields(&one)[name].SetInt(-2)
		fields(&all)[name].SetInt(-2)
		require.Regexp(t, "^sandbox.Limits."+name+` -2(ns)?: must be 0 \(the default\) or more$`, isolation.ValidateLimits(one).Error())
	}
	for name := range fields(&all) {
		require.ErrorContains(t, isolation.ValidateLimits(all), "Limits."+name+" -2")
	}
}

func TestLimits_Defaults(t *testing.T) {
	t.Parallel()
	want := sandbox.Limits{
		Processes: isolation.DefaultProcesses, OpenFiles: isolation.DefaultOpenFiles,
		Output: isolation.DefaultOutput, Grace: isolation.DefaultGrace,
	}
	require.Equal(t, want, isolation.WithDefaults(sandbox.Limits{}))
	var negative, set sandbox.Limits
	for name := range fields(&set) {
		fields(&negative)[name].SetInt(-1)
		fields(&set)[name].SetInt(7)
	}
	require.Equal(t, want, isolation.WithDefaults(negative))
	require.Equal(t, set, isolation.WithDefaults(set))
}
