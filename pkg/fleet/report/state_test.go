package report

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// constantsOf are the strings of the constants of a package whose names match. The name decides, so
// a state that is added without a class fails.
func constantsOf(t *testing.T, dir, names string) (values []string) {
	t.Helper()
	matches := regexp.MustCompile(names)
	packages, err := parser.ParseDir(token.NewFileSet(), dir, func(f fs.FileInfo) bool { return !strings.HasSuffix(f.Name(), "_test.go") }, 0) //nolint:staticcheck // one package
	require.NoError(t, err)
	for _, p := range packages {
		ast.Inspect(p, func(n ast.Node) bool {
			spec, is := n.(*ast.ValueSpec)
			if !is {
				return true
			}
			if kind, is := spec.Type.(*ast.Ident); is && (kind.Name == "StateClass" || kind.Name == "SpanKind") {
				return true
			}
			for i, name := range spec.Names {
				if i < len(spec.Values) && matches.MatchString(name.Name) {
					if literal, is := spec.Values[i].(*ast.BasicLit); is {
						value, err := strconv.Unquote(literal.Value)
						require.NoError(t, err)
						values = append(values, value)
					}
				}
			}
			return true
		})
	}
	return values
}

func TestClassOf_HasEachState(t *testing.T) {
	t.Parallel()
	for _, of := range []struct {
		dir, names string
		least      int
	}{
		{".", "^State|^Span", 16},
		{"../../protocol", "^Status", 6},
		{"../../protocol", "^Action(Accept|Decline|Cancel)$", 3},
		{"../../loop", "^Outcome|^decision|^State", 10},
		{"../../tools/policy", "^(Allowed|Denied|Ask)$", 3},
		{"../../../internal/lane/operator", "^State", 6},
		{"../../../internal/overview", "^(Serving|Draining|Silent|Lost)$", 4},
	} {
		all := constantsOf(t, of.dir, of.names)
		require.GreaterOrEqual(t, len(all), of.least, "%s %s: %q", of.dir, of.names, all)
		for _, state := range all {
			_, known := states[state]
			require.True(t, known, "%s: state %q has no class", of.dir, state)
		}
	}
	for state, class := range map[string]StateClass{
		"exit code 2": StateClassBad, "ended by signal KILL": StateClassBad, "exit code": StateClassPlain,
		"nonsense": StateClassPlain, "answered": StateClassOK, StateInUse: StateClassRun,
	} {
		require.Equal(t, class, ClassOf(state), state)
	}
	for state, words := range map[string]string{StateOpen: "running", StateInUse: "running", StateWaitsForApproval: "waits for approval", "limit_reached": "limit reached"} {
		require.Equal(t, words, StateWords(state))
	}
}
