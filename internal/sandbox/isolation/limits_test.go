package isolation_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/protocol"
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

func TestCleanProtected(t *testing.T) {
	t.Parallel()
	for want, places := range map[string][]string{
		"":           nil,
		"a":          {"a", "./a/", "a/b/c", "a/../a"},
		"a b c/d ab": {"b", "c/d", "ab", "a"},
		"...":        {"..."},
	} {
		got, err := isolation.CleanProtected(places)
		require.NoError(t, err, places)
		require.ElementsMatch(t, strings.Fields(want), got, places)
	}
	for place, fault := range map[string]string{
		"": "the workspace itself", ".": "the workspace itself", "a/..": "the workspace itself", "..": "relative to it", "a/../../b": "relative to it",
		"/a": "relative to it", "a\x00": "without NUL", "\xff": "UTF-8", strings.Repeat("a", 256): "256 bytes", strings.Repeat("a/", 3000) + "a": "6001 bytes",
	} {
		_, err := isolation.CleanProtected([]string{"fine", place})
		require.ErrorContains(t, err, "protected place", "%.10q", place)
		require.ErrorContains(t, err, fault, "%.10q", place)
	}
	_, err := isolation.CleanProtected(make([]string, isolation.MaxProtected+1))
	require.ErrorContains(t, err, "1025 protected places: at most 1024")
}

func TestUnusableError_HasWhatTheSystemSaid(t *testing.T) {
	t.Parallel()
	denied := errors.New("permission denied")
	err := &isolation.UnusableError{Found: "only root may", Advice: "be root", Err: denied}
	require.EqualError(t, err, "control groups cannot be used: only root may: permission denied")
	require.ErrorIs(t, err, denied)
	require.Equal(t, "only root may: permission denied", err.Why())
}
