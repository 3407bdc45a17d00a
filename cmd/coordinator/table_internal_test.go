package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/cli"
)

// TestPrintList: a list is JSON, a table with aligned columns, or a sentence; a table without a
// sentence has its columns alone.
func TestPrintList(t *testing.T) {
	t.Parallel()
	type item struct {
		Name string `json:"name"`
		N    uint64 `json:"n"`
	}
	some := []item{{"a", 1}, {"longer", 22}}
	for name, test := range map[string]struct {
		list    []item
		json    bool
		nothing string
		want    string
	}{
		"a table":            {some, false, "there is none", "NAME    N\na       1\nlonger  22\n"},
		"JSON":               {some, true, "there is none", `[{"name":"a","n":1},{"name":"longer","n":22}]` + "\n"},
		"nothing":            {nil, false, "there is none", "there is none\n"},
		"nothing, as JSON":   {nil, true, "there is none", "[]\n"},
		"nothing to be said": {nil, false, "", "NAME  N\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "out")
			out, err := os.Create(path)
			require.NoError(t, err)
			defer out.Close()
			p := program{Program: cli.Program{Stdout: out}}
			require.NoError(t, printList(p, test.json, test.list, test.nothing, "NAME\tN", func(i *item) []any { return []any{i.Name, i.N} }))
			printed, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, test.want, string(printed))
		})
	}
}
