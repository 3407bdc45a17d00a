package cli_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
)

func TestProtect_ParsesOrNamesTheFault(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"": nil, "none": {}, " none ": {}, "a": {"a"}, "b, ./a/,b/c": {"a", "b"}, ".git/hooks,.git/config": {".git/config", ".git/hooks"},
	} {
		got, err := (&cli.Protect{Protect: text}).Places()
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for text, fault := range map[string]string{
		"/etc": `--protect: protected place "/etc": must be a path in the workspace`, "a,../b": `"../b"`, ".": "is the workspace itself", "a,": "any extra comma", ",": "any extra comma", "a\x00": "NUL",
	} {
		_, err := (&cli.Protect{Protect: text}).Places()
		require.ErrorContains(t, err, fault)
	}
}

func TestProtects_NeedsADriverThatCan(t *testing.T) {
	t.Parallel()
	require.NoError(t, cli.Protects(nil, isolation.Caps{}))
	require.NoError(t, cli.Protects([]string{}, isolation.Caps{}))
	require.NoError(t, cli.Protects([]string{"a"}, isolation.Caps{Protect: true}))
	require.ErrorContains(t, cli.Protects([]string{"a"}, isolation.Caps{Driver: "landlock"}), "driver landlock cannot")
}
