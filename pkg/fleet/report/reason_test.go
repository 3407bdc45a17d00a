package report_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/fleet/report"
)

// TestReasons_HaveEach: a reason that is added has a class and words, so that no reader of the list
// misses it.
func TestReasons_HaveEach(t *testing.T) {
	t.Parallel()
	file, err := parser.ParseFile(token.NewFileSet(), "reason.go", nil, 0)
	require.NoError(t, err)
	var declared []report.Reason
	ast.Inspect(file, func(n ast.Node) bool {
		value, is := n.(*ast.ValueSpec)
		if !is {
			return true
		}
		if name, is := value.Type.(*ast.Ident); is && name.Name == "Reason" {
			literal, is := value.Values[0].(*ast.BasicLit)
			require.True(t, is)
			text, err := strconv.Unquote(literal.Value)
			require.NoError(t, err)
			declared = append(declared, report.Reason(text))
		}
		return true
	})
	require.NotEmpty(t, declared)
	require.ElementsMatch(t, declared, report.Reasons())
	words := map[string]bool{}
	for _, r := range declared {
		require.NotEmpty(t, r.What())
		require.False(t, words[r.What()], "two reasons are both %q", r.What())
		words[r.What()] = true
	}
}
