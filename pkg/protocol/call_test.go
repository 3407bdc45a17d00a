package protocol_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func sampleCall() *protocol.Call {
	now := time.Date(2026, 3, 14, 15, 9, 26, 0, time.UTC)
	return &protocol.Call{
		ID: "c-1", SessionID: "my_session", Pool: protocol.DefaultPool,
		Resources: []protocol.Use{
			{Key: "sandbox/s1/a/b.txt", Access: protocol.Shared},
			{Key: "sandbox/s1/c", Access: protocol.Exclusive},
		},
		Delivery: protocol.Rollback, MaxAttempts: 3,
		IssuedAt: now, QueueTimeout: 60_000, RunTimeout: 30_000, Deadline: now.Add(time.Hour),
		Payload: protocol.FilesRead{Path: "a/b.txt"},
	}
}

func TestCall_ValidateNamesTheFault(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spoil func(*protocol.Call)
		says  []string
	}{
		"no call id":        {func(c *protocol.Call) { c.ID = "" }, []string{"call id"}},
		"no session id":     {func(c *protocol.Call) { c.SessionID = "" }, []string{"session id"}},
		"session with dots": {func(c *protocol.Call) { c.SessionID = "a.b" }, []string{"session id", "letters, digits, '-' and '_'"}},
		"upper case pool":   {func(c *protocol.Call) { c.Pool = "GPU" }, []string{"pool", `"GPU"`}},
		"no resources":      {func(c *protocol.Call) { c.Resources = nil }, []string{"resources", "1 to 64"}},
		"too many resources": {func(c *protocol.Call) {
			c.Resources = make([]protocol.Use, 65)
		}, []string{"65 uses"}},
		"every bad resource": {func(c *protocol.Call) {
			c.Resources = []protocol.Use{
				{Key: "sandbox/s1/./a", Access: protocol.Shared},
				{Key: "sandbox/s1/a", Access: "exclusiv"},
				{Key: "one", Access: protocol.Shared},
			}
		}, []string{"resources[0]", `want "sandbox/s1/a"`, "resources[1]", `"exclusiv"`, "resources[2]", "two segments"}},
		"two lanes": {func(c *protocol.Call) {
			c.Resources = []protocol.Use{
				{Key: "sandbox/s1/a", Access: protocol.Shared}, {Key: "sandbox/s2/a", Access: protocol.Shared},
			}
		}, []string{"resources[1]", "different lanes"}},
		"unknown delivery": {func(c *protocol.Call) { c.Delivery = "twice" }, []string{`"twice"`, "at_most_once"}},
		"negative limits":  {func(c *protocol.Call) { c.MaxAttempts = -1 }, []string{"max_attempts -1"}},
		"negative queue":   {func(c *protocol.Call) { c.QueueTimeout = -5 }, []string{"queue_timeout_ms -5"}},
		"negative run":     {func(c *protocol.Call) { c.RunTimeout = -6 }, []string{"run_timeout_ms -6"}},
		"no payload":       {func(c *protocol.Call) { c.Payload = nil }, []string{"payload"}},
		"everything at once": {
			func(c *protocol.Call) { *c = protocol.Call{} },
			[]string{"call id", "session id", "pool", "resources", "delivery", "payload"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			call := sampleCall()
			require.NoError(t, call.Validate())
			c.spoil(call)
			err := call.Validate()
			require.ErrorIs(t, err, protocol.ErrInvalidCall)
			for _, word := range c.says {
				require.ErrorContains(t, err, word)
			}
		})
	}
}

func TestCall_Defaults(t *testing.T) {
	t.Parallel()
	call := sampleCall()
	call.MaxAttempts, call.RunTimeout, call.Deadline = 0, 0, time.Time{}
	require.Equal(t, 5, call.Attempts())
	require.Equal(t, protocol.DefaultRunTimeout, call.RunFor())
	require.Zero(t, call.LifeTime(), "no deadline is for ever")
	require.False(t, call.Expired(time.Hour))
	require.Equal(t, protocol.Lane("sandbox/s1"), call.Lane())

	call.MaxAttempts, call.RunTimeout, call.Deadline = 1, 1500, call.IssuedAt.Add(time.Minute)
	require.Equal(t, 1, call.Attempts())
	require.Equal(t, 1500*time.Millisecond, call.RunFor())
	require.Equal(t, time.Minute, call.LifeTime())
	require.False(t, call.Expired(time.Minute-1))
	require.True(t, call.Expired(time.Minute))

	call.Deadline = call.IssuedAt.Add(-time.Hour)
	require.Equal(t, time.Millisecond, call.LifeTime(), "a deadline in the past is over at once, not for ever")
	require.True(t, call.Expired(0))
}

func TestMillis(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		in   time.Duration
		want protocol.Millis
	}{
		"zero":              {0, 0},
		"rounds up":         {1, 1},
		"whole":             {2 * time.Millisecond, 2},
		"a bit more":        {2*time.Millisecond + 1, 3},
		"negative":          {-time.Millisecond, -1},
		"longest":           {math.MaxInt64, protocol.Millis(math.MaxInt64/time.Millisecond) + 1},
		"longest backwards": {math.MinInt64, protocol.Millis(math.MinInt64 / time.Millisecond)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.want, protocol.MillisOf(c.in))
		})
	}
	require.Equal(t, time.Duration(math.MaxInt64), protocol.Millis(math.MaxInt64).Duration())
	require.Equal(t, time.Duration(math.MinInt64), protocol.Millis(math.MinInt64).Duration())
	rapid.Check(t, func(rt *rapid.T) {
		d := time.Duration(rapid.Int64().Draw(rt, "d"))
		back := protocol.MillisOf(d).Duration()
		require.GreaterOrEqual(rt, back, d, "never shorter than asked for")
		require.Less(rt, uint64(back-d), uint64(time.Millisecond))
	})
}

func TestCall_LongestNames(t *testing.T) {
	t.Parallel()
	call := sampleCall()
	call.ID, call.SessionID = protocol.CallID(strings.Repeat("c", 64)), protocol.SessionID(strings.Repeat("s", 64))
	call.Pool = protocol.Pool(strings.Repeat("p", 32))
	require.NoError(t, call.Validate())
}

func TestStatuses_AreAllDeclared(t *testing.T) {
	t.Parallel()
	var listed []string
	for _, status := range wire.Statuses() {
		listed = append(listed, string(status))
	}
	require.Equal(t, constants(t, "Status"), listed)
}

func TestCodes_AreDistinctWords(t *testing.T) {
	t.Parallel()
	codes := slices.Concat(constants(t, "Code"), constants(t, "protocol.Code"))
	require.Greater(t, len(codes), 50)
	seen := map[string]bool{}
	for _, code := range codes {
		require.Regexp(t, `^[a-z]+(_[a-z]+)*$`, code)
		require.False(t, seen[code], "%s is declared twice", code)
		seen[code] = true
	}
}

func TestError_IsFoundAndNamed(t *testing.T) {
	t.Parallel()
	err := fmt.Errorf("read: %w", protocol.Errorf(protocol.CodeNotFound, "no file %q", "a"))
	var coded *protocol.Error
	require.True(t, errors.As(err, &coded)) //nolint:testifylint // the typed target is used below
	require.Equal(t, "not_found", coded.ErrorType())
	require.EqualError(t, err, `read: not_found: no file "a"`)
}

func TestUsage(t *testing.T) {
	t.Parallel()
	sum := protocol.Usage{InputTokens: 1, OutputTokens: 2}.Add(protocol.Usage{InputTokens: 10, OutputTokens: 20})
	require.Equal(t, protocol.Usage{InputTokens: 11, OutputTokens: 22}, sum)
	require.Equal(t, int64(33), sum.Total())
}

func TestParseNames(t *testing.T) {
	t.Parallel()
	parsers := map[string]func(string) error{
		"session": func(s string) error { _, err := protocol.ParseSessionID(s); return err },
		"call":    func(s string) error { _, err := protocol.ParseCallID(s); return err },
		"fleet":   func(s string) error { _, err := protocol.ParseFleet(s); return err },
		"pool":    func(s string) error { _, err := protocol.ParsePool(s); return err },
	}
	const everybody, ids, notFleet, nobody = "session call fleet pool", "session call", "session call pool", ""
	for name, c := range map[string]struct{ in, accepted string }{
		"lower case":          {"abc", everybody},
		"with digit and dash": {"a-1", everybody},
		"one letter":          {"x", everybody},
		"32 characters":       {strings.Repeat("a", 32), everybody},
		"33 characters":       {strings.Repeat("a", 33), ids},
		"64 characters":       {strings.Repeat("a", 64), ids},
		"65 characters":       {strings.Repeat("a", 65), nobody},
		"a uuid":              {"0199f3a2-7c1e-7a44-9d50-2f6f1c0d9b11", ids},
		"starts with a digit": {"1a", notFleet},
		"starts with a dash":  {"-a", notFleet},
		"upper case":          {"Abc", ids},
		"underscore":          {"a_b", ids},
		"empty":               {"", nobody},
		"a dot":               {"a.b", nobody},
		"wildcards":           {"a*", nobody},
		"the rest":            {">", nobody},
		"a space":             {"a b", nobody},
		"a slash":             {"a/b", nobody},
		"a newline":           {"a\n", nobody},
		"not ASCII":           {"ä", nobody},
		"NUL":                 {"a\x00", nobody},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for who, parse := range parsers {
				err := parse(c.in)
				if strings.Contains(c.accepted, who) {
					require.NoError(t, err, who)
					continue
				}
				require.ErrorIs(t, err, protocol.ErrInvalidName, who)
				require.ErrorContains(t, err, who)
			}
		})
	}
}

func TestNewIDs_AreAccepted(t *testing.T) {
	t.Parallel()
	session := protocol.NewSessionID()
	_, err := protocol.ParseSessionID(string(session))
	require.NoError(t, err)
	require.Equal(t, uuid.Version(7), uuid.MustParse(string(session)).Version())
	_, err = protocol.ParseFleet(string(protocol.DefaultFleet))
	require.NoError(t, err)
	for _, pool := range []protocol.Pool{protocol.DefaultPool, protocol.SessionPool} {
		_, err = protocol.ParsePool(string(pool))
		require.NoError(t, err)
	}
}

// constants returns the values of every string constant of the named type that
// the package's source, and that of internal/wire/codes, declares: what no test may forget.
func constants(t *testing.T, typeName string) []string {
	t.Helper()
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	elsewhere, err := filepath.Glob("../../internal/wire/codes/*.go")
	require.NoError(t, err)
	require.NotEmpty(t, elsewhere)
	files = append(files, elsewhere...)
	var values []string
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(parsed, func(node ast.Node) bool {
			spec, ok := node.(*ast.ValueSpec)
			if !ok {
				return true
			}
			if spec.Type != nil && types.ExprString(spec.Type) == typeName {
				for _, value := range spec.Values {
					literal, ok := value.(*ast.BasicLit)
					require.True(t, ok, "constant of %s is not a literal", typeName)
					values = append(values, unquote(t, literal.Value))
				}
			}
			return true
		})
	}
	return values
}

func unquote(t *testing.T, literal string) string {
	t.Helper()
	text, err := strconv.Unquote(literal)
	require.NoError(t, err)
	return text
}
