package worker_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func script(text string) protocol.ToolRun {
	return protocol.ToolRun{Argv: []string{"sh", "-c", text}, Arguments: json.RawMessage(`{"n":1}`)}
}

func output(want string) func(*testing.T, *protocol.Result) {
	return func(t *testing.T, r *protocol.Result) {
		t.Helper()
		v := value[protocol.ToolRunResult](t, r)
		require.Equal(t, want, string(v.Output))
		require.Empty(t, v.Stdout)
	}
}

func says(want string) func(*testing.T, *protocol.Result) {
	return func(t *testing.T, r *protocol.Result) {
		t.Helper()
		require.Contains(t, r.Error.Message, want)
	}
}

func TestToolRun_Results(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	o.Tools = t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(o.Tools, "count.sh"), []byte("printf '{\"tool\": \"%s\"}' \"$1\"\n"), 0o600))
	r.work(o)
	text := script("cat; echo; echo; echo b")
	text.Text = true
	inFolder := protocol.ToolRun{Argv: []string{"sh", "{tools}/count.sh", "x"}, Arguments: json.RawMessage(`{}`)}
	failed, fault := protocol.StatusFailed, protocol.CodeToolFailed
	r.steps(t, []step{
		{name: "the arguments come in, JSON goes out", payload: script(`printf '\n{"got": '; cat; echo ' }'`), check: output(`{"got":{"n":1}}`)},
		{name: "any JSON value will do", payload: script(`echo '"done"'`), check: output(`"done"`)},
		{name: "nothing is null", payload: script(`true`), check: output(`null`)},
		{name: "text", payload: text, check: output(`"{\"n\":1}\n\nb"`)},
		{name: "a program of the folder", payload: inFolder, check: output(`{"tool":"x"}`)},
		{name: "the folder in the environment", payload: script(`printf '"%s"' "$TOOLFLEET_TOOLS"`), check: output(`"` + o.Tools + `"`)},
		{name: "the workspace is that of the session", payload: script(`echo 1 >kept; echo 2`), check: output(`2`)},
		{name: "and stays", payload: protocol.FilesRead{Path: "kept"}},
		{name: "an exit code", payload: script(`echo '{"half":1}'; echo "no such account" >&2; exit 3`), status: failed, code: fault, check: func(t *testing.T, r *protocol.Result) {
			t.Helper()
			require.Equal(t, "the tool failed (exit code 3): no such account", r.Error.Message)
			v := value[protocol.ToolRunResult](t, r)
			require.Equal(t, 3, v.ExitCode)
			require.Equal(t, `{"half":1}`, string(v.Output))
		}},
		{name: "a long complaint", payload: script(`head -c 9000 /dev/zero | tr '\0' x >&2; echo end >&2; exit 1`), status: failed, code: fault, check: func(t *testing.T, r *protocol.Result) {
			t.Helper()
			require.Less(t, len(r.Error.Message), 2300)
			require.Contains(t, r.Error.Message, "xend\n[these are the last 2000 of 9003 characters of what it wrote to stderr; all of it: read with path=\"result:"+string(r.CallID)+"#stderr\"]")
			require.NotNil(t, r.Kept)
		}},
		{name: "a signal", payload: script(`kill -9 $$`), status: failed, code: fault, check: says("SIGKILL")},
		{name: "no JSON", payload: script(`echo hello`), status: failed, code: fault, check: says("must write one JSON value")},
		{name: "two values", payload: script(`echo 1; echo 2`), status: failed, code: fault, check: says("must write one JSON value")},
		{name: "no UTF-8", payload: script(`printf '"\377"'`), status: failed, code: fault, check: says("not UTF-8")},
		{name: "more JSON than a model reads", payload: script(`printf '"'; head -c 200000 /dev/zero | tr '\0' x; printf '"'`), check: func(t *testing.T, r *protocol.Result) {
			t.Helper()
			require.Len(t, value[protocol.ToolRunResult](t, r).Output, 200002)
		}},
		{name: "too much of it", payload: script(`printf '"'; head -c 700000 /dev/zero | tr '\0' x; printf '"'`), status: failed, code: fault, check: says("wrote 700002 bytes to standard output: what it returns has 524288 bytes at most")},
		{name: "no command", payload: protocol.ToolRun{Arguments: json.RawMessage(`{}`)}, status: protocol.StatusRejected, code: codes.InvalidPayload},
		{name: "no such program", payload: protocol.ToolRun{Argv: []string{"no-such-program"}, Arguments: json.RawMessage(`{}`)}, status: failed, code: protocol.CodeCommandNotFound},
	})
}

func TestToolRun_NeedsTheFolderThatItNames(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.work(r.options())
	payload := protocol.ToolRun{Argv: []string{"sh", "{tools}/count.sh"}, Arguments: json.RawMessage(`{}`)}
	result := r.do(protocol.NewSessionID(), payload)
	requireFault(t, result, protocol.StatusRejected, codes.InvalidPayload)
	require.Contains(t, result.Error.Message, "start it with --tools DIR")
}

func TestToolRun_OfAnotherResourceHasAnEmptySandboxThatIsRemoved(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	_, stop := r.work(o)
	for range 2 {
		call := newCall(protocol.NewSessionID(), script(`mkdir -p d && echo 1 >d/left && printf '"'; ls | tr '\n' ' '; printf '"'`))
		call.Resources = []protocol.Use{{Key: "account/acme", Access: protocol.Exclusive}}
		result := r.dispatch(t.Context(), call)
		requireOK(t, result)
		require.Equal(t, `"d "`, string(value[protocol.ToolRunResult](t, result).Output))
	}
	stop()
	left, err := os.ReadDir(filepath.Join(o.Data, "sandboxes"))
	require.NoError(t, err)
	require.Empty(t, left)
}
