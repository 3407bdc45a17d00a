package protocol_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestParseResourceKey(t *testing.T) {
	t.Parallel()
	longest := "a/" + strings.Repeat("x", 1024-2)
	for name, c := range map[string]struct{ in, want string }{
		"canonical stays":          {"sandbox/s1/src/a.go", "sandbox/s1/src/a.go"},
		"lane only":                {"account/acme", "account/acme"},
		"dots are dropped":         {"sandbox/s1/./a/./b", "sandbox/s1/a/b"},
		"empty segments too":       {"/sandbox//s1/a/", "sandbox/s1/a"},
		"up and down again":        {"sandbox/s1/sub/../a.txt", "sandbox/s1/a.txt"},
		"up to the lane":           {"sandbox/s1/a/..", "sandbox/s1"},
		"names with dots are kept": {"sandbox/s1/..a/...", "sandbox/s1/..a/..."},
		"spaces and wildcards":     {"sandbox/s1/a b/*.>", "sandbox/s1/a b/*.>"},
		"the longest":              {longest, longest},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			key, err := protocol.ParseResourceKey(c.in)
			require.NoError(t, err)
			require.Equal(t, protocol.ResourceKey(c.want), key)
		})
	}
}

func TestParseResourceKey_Refuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ in, says string }{
		"nothing":               {"", "two segments"},
		"one segment":           {"sandbox", "two segments"},
		"one after dropping":    {"./sandbox/.", "two segments"},
		"climbing from nothing": {"../a/b", "climbs"},
		"climbing out of lane":  {"sandbox/s1/../s2", "climbs"},
		"climbing in the end":   {"sandbox/s1/a/../..", "climbs"},
		"NUL":                   {"sandbox/s1/a\x00b", "NUL"},
		"not UTF-8":             {"sandbox/s1/\xff", "UTF-8"},
		"too long":              {"a/" + strings.Repeat("x", 1024), "1024"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			key, err := protocol.ParseResourceKey(c.in)
			require.ErrorIs(t, err, protocol.ErrInvalidName)
			require.ErrorContains(t, err, c.says)
			require.Empty(t, key)
		})
	}
}

func TestResourceKey_Join(t *testing.T) {
	t.Parallel()
	sandbox := protocol.SandboxKey("s1")
	sub := protocol.ResourceKey("sandbox/s1/sub")
	for name, c := range map[string]struct {
		base protocol.ResourceKey
		path string
		want protocol.ResourceKey
	}{
		"a file":                       {sandbox, "a.txt", "sandbox/s1/a.txt"},
		"the same file, dotted":        {sandbox, "./a.txt", "sandbox/s1/a.txt"},
		"the same file, by detour":     {sandbox, "sub/../a.txt", "sandbox/s1/a.txt"},
		"the workspace":                {sandbox, "", "sandbox/s1"},
		"an absolute path is relative": {sub, "/x", "sandbox/s1/sub/x"},
		"one long segment is left out": {sandbox, strings.Repeat("x", 2000), "sandbox/s1"},
		"a long path is cut":           {sandbox, "ab/" + strings.Repeat("x", 1100) + "/c", "sandbox/s1/ab"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			key, err := c.base.Join(c.path)
			require.NoError(t, err)
			require.Equal(t, c.want, key)
		})
	}
	for name, path := range map[string]string{
		"above the base": "..", "above it by detour": "a/../../sub2", "NUL": "a\x00", "not UTF-8": "\xff",
	} {
		t.Run("refuses "+name, func(t *testing.T) {
			t.Parallel()
			_, err := sub.Join(path)
			require.ErrorIs(t, err, protocol.ErrInvalidName)
		})
	}
}

func TestUse_Conflicts(t *testing.T) {
	t.Parallel()
	const shared, exclusive = protocol.Shared, protocol.Exclusive
	for name, c := range map[string]struct {
		a, b protocol.Use
		want bool
	}{
		"two readers of a file":             {protocol.Use{Key: "s/1/a", Access: shared}, protocol.Use{Key: "s/1/a", Access: shared}, false},
		"reader and writer of a file":       {protocol.Use{Key: "s/1/a", Access: shared}, protocol.Use{Key: "s/1/a", Access: exclusive}, true},
		"two writers of a file":             {protocol.Use{Key: "s/1/a", Access: exclusive}, protocol.Use{Key: "s/1/a", Access: exclusive}, true},
		"writers of two files":              {protocol.Use{Key: "s/1/a", Access: exclusive}, protocol.Use{Key: "s/1/b", Access: exclusive}, false},
		"a shell and a writer":              {protocol.Use{Key: "s/1", Access: exclusive}, protocol.Use{Key: "s/1/a/b", Access: exclusive}, true},
		"a list and a writer below":         {protocol.Use{Key: "s/1/a", Access: shared}, protocol.Use{Key: "s/1/a/b", Access: exclusive}, true},
		"a list and a writer beside":        {protocol.Use{Key: "s/1/a", Access: shared}, protocol.Use{Key: "s/1/ab", Access: exclusive}, false},
		"a prefix of letters is no segment": {protocol.Use{Key: "s/1", Access: exclusive}, protocol.Use{Key: "s/10", Access: exclusive}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.want, c.a.Conflicts(c.b))
			require.Equal(t, c.want, c.b.Conflicts(c.a))
		})
	}
}

// TestUse_ConflictsEqualsItsDefinition draws keys of few letters, so that prefixes
// and near misses are common.
func TestUse_ConflictsEqualsItsDefinition(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		requireConflictByDefinition(rt, drawUse(rt, "a"), drawUse(rt, "b"))
	})
}

func TestCall_ConflictsWithAnyOfItsUses(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		a := &protocol.Call{Resources: rapid.SliceOfN(rapid.Custom(anyUse), 1, 4).Draw(rt, "a")}
		b := &protocol.Call{Resources: rapid.SliceOfN(rapid.Custom(anyUse), 1, 4).Draw(rt, "b")}
		want := false
		for _, x := range a.Resources {
			for _, y := range b.Resources {
				want = want || conflictByDefinition(x, y)
			}
		}
		require.Equal(rt, want, a.ConflictsWith(b))
		require.Equal(rt, want, b.ConflictsWith(a))
	})
}

// TestResourceKey_SpellingsOfAPathAreOneKey inserts detours that change nothing.
func TestResourceKey_SpellingsOfAPathAreOneKey(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		segments := rapid.SliceOfN(rapid.StringMatching(`[a-c]{1,2}`), 1, 4).Draw(rt, "segments")
		plain := strings.Join(segments, "/")
		var spelling []string
		for _, segment := range segments {
			detour := rapid.SampledFrom([]string{"", ".", "x/..", "./x/y/../.."}).Draw(rt, "detour")
			spelling = append(spelling, detour, segment)
		}
		want, err := protocol.SandboxKey("s1").Join(plain)
		require.NoError(rt, err)
		got, err := protocol.SandboxKey("s1").Join(strings.Join(spelling, "/"))
		require.NoError(rt, err)
		require.Equal(rt, want, got)
		parsed, err := protocol.ParseResourceKey("sandbox/s1/" + strings.Join(spelling, "/"))
		require.NoError(rt, err)
		require.Equal(rt, want, parsed)
	})
}

func TestResourceKey_Lane(t *testing.T) {
	t.Parallel()
	for key, want := range map[protocol.ResourceKey]protocol.Lane{
		"sandbox/s1": "sandbox/s1", "sandbox/s1/a/b": "sandbox/s1", "one": "one",
	} {
		require.Equal(t, want, key.Lane())
	}
}

func use(key protocol.ResourceKey, exclusive bool) protocol.Use {
	if exclusive {
		return protocol.Use{Key: key, Access: protocol.Exclusive}
	}
	return protocol.Use{Key: key, Access: protocol.Shared}
}

func anyUse(rt *rapid.T) protocol.Use { return drawUse(rt, "use") }

func drawUse(rt *rapid.T, label string) protocol.Use {
	segments := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "ab"}), 2, 4).Draw(rt, label)
	return use(protocol.ResourceKey(strings.Join(segments, "/")), rapid.Bool().Draw(rt, label+" exclusive"))
}

// conflictByDefinition says it segment by segment, as the design does.
func conflictByDefinition(a, b protocol.Use) bool {
	if a.Access != protocol.Exclusive && b.Access != protocol.Exclusive {
		return false
	}
	x, y := strings.Split(string(a.Key), "/"), strings.Split(string(b.Key), "/")
	for i := range min(len(x), len(y)) {
		if x[i] != y[i] {
			return false
		}
	}
	return true
}

func requireConflictByDefinition(t require.TestingT, a, b protocol.Use) {
	require.Equal(t, conflictByDefinition(a, b), a.Conflicts(b), "%v and %v", a, b)
	require.Equal(t, a.Conflicts(b), b.Conflicts(a), "symmetry of %v and %v", a, b)
	require.Equal(t, a.Key == b.Key, a.Key.Contains(b.Key) && b.Key.Contains(a.Key), "%v and %v", a, b)
}

// requireCanonical checks every promise that [protocol.ResourceKey] makes.
func requireCanonical(t *testing.T, key protocol.ResourceKey) {
	t.Helper()
	again, err := protocol.ParseResourceKey(string(key))
	require.NoError(t, err)
	require.Equal(t, key, again)
	require.LessOrEqual(t, len(key), 1024)
	segments := strings.Split(string(key), "/")
	require.GreaterOrEqual(t, len(segments), 2)
	require.Len(t, drop(segments, "", ".", ".."), len(segments))
	require.True(t, key.Contains(key))
	require.True(t, protocol.ResourceKey(key.Lane()).Contains(key))
}

func drop(segments []string, unwanted ...string) []string {
	var kept []string
next:
	for _, segment := range segments {
		for _, u := range unwanted {
			if segment == u {
				continue next
			}
		}
		kept = append(kept, segment)
	}
	return kept
}

func TestResourceKey_JoinRefusesAKeyThatIsTooLong(t *testing.T) {
	t.Parallel()
	for _, key := range []string{strings.Repeat("x", 2*1024), "a/b/" + strings.Repeat("x", 1024)} {
		_, err := protocol.ResourceKey(key).Join("y")
		require.ErrorIs(t, err, protocol.ErrInvalidName)
	}
}

// TestUse_NoAccessIsExclusive, as in tools and manifests.
func TestUse_NoAccessIsExclusive(t *testing.T) {
	t.Parallel()
	use := protocol.Use{Key: "account/acme"}
	require.True(t, use.Conflicts(protocol.Use{Key: "account/acme", Access: protocol.Shared}))
	body, err := json.Marshal(use)
	require.NoError(t, err)
	require.JSONEq(t, `{"key":"account/acme","access":"exclusive"}`, string(body))
	call := protocol.Call{
		ID: "c", SessionID: "s", Pool: protocol.DefaultPool, Resources: []protocol.Use{use}, Delivery: protocol.Idempotent,
		IssuedAt: time.Now(), Payload: protocol.UnknownPayload{},
	}
	require.NoError(t, call.Validate())
}
