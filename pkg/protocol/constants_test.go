package protocol_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

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
