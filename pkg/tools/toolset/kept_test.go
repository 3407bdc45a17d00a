package toolset_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

func TestRead_TakesHandlesOfEarlierResults(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]protocol.ResultRead{
		`{"path":"result:c-1"}`:                                   {CallID: "c-1"},
		`{"path":"result:c-1#stderr"}`:                            {CallID: "c-1", Part: "stderr"},
		`{"path":"result:c-1#output","offset":"40","limit":"20"}`: {CallID: "c-1", Part: "output", Offset: 40, Limit: 20},
		`{"path":"result:c-1#output:40"}`:                         {CallID: "c-1", Part: "output", Offset: 40},
		`{"path":"result:c-1:40","limit":3}`:                      {CallID: "c-1", Offset: 40, Limit: 3},
		`{"path":"result:c-1:40","offset":50}`:                    {CallID: "c-1", Offset: 50},
	} {
		_, plan, err := coreTable(t).Plan(scope, "read", raw)
		require.Nil(t, err, raw)
		require.Equal(t, want, plan.Payload)
		call, err := plan.Call(scope, tools.Place{Turn: 1, Step: 1}, "", "read", time.Now())
		require.Nil(t, err)
		require.NotEqual(t, protocol.SandboxKey(scope.Sandbox).Lane(), call.Lane(), "it waits for no command")
	}
	for _, path := range []string{"result:", "result:c-1#", "result:c-1#all", "result:a/b", "result:c-1#stdout#stderr", "result:c-1:", "result:c-1:x", "result:c-1:-1", "result:c-1#all:3"} {
		_, _, err := coreTable(t).Plan(scope, "read", `{"path":"`+path+`"}`)
		if path == "result:c-1#" {
			require.Nil(t, err)
			continue
		}
		require.NotNil(t, err, path)
		require.Equal(t, protocol.CodeInvalidPath, err.Code)
	}
	_, plan, err := coreTable(t).Plan(scope, "read", `{"path":"./result:c-1"}`)
	require.Nil(t, err)
	require.Equal(t, protocol.FilesRead{Path: "result:c-1"}, plan.Payload)
}

func TestRead_OfEveryToolsetTakesHandles(t *testing.T) {
	t.Parallel()
	for set, name := range map[string]string{
		"core": "read", "core-shell": "read", "files": "read_file", "openrath": "read_workspace_file", "smithers": "read",
	} {
		tool, plan, err := setTable(t, set).Plan(scope, name, `{"path":"result:c-1#stderr:7"}`)
		require.Nil(t, err, set)
		require.Equal(t, protocol.ResultRead{CallID: "c-1", Part: "stderr", Offset: 7}, plan.Payload)
		result := ok(protocol.ResultReadResult{CallID: "c-1", Part: "stderr", Content: protocol.Bytes("g\n"), FirstLine: 7, Lines: 1, TotalLines: 7})
		require.Equal(t, "     7\tg\n[lines 7-7 of 7]", tool.Text(&result), set)
	}
}

func TestText_OutputInTheOrderInWhichItCame(t *testing.T) {
	t.Parallel()
	both := execution("1\n3\n", "2\n4\n", 0)
	both.Combined = protocol.Bytes("1\n2\n3\n4\n")
	require.Equal(t, "1\n2\n3\n4\n", text(t, "bash", ok(protocol.CommandRunResult{Execution: both})))
	both.Combined = nil // an older worker
	require.Equal(t, "1\n3\n[stderr]\n2\n4\n", text(t, "bash", ok(protocol.CommandRunResult{Execution: both})))
}

var readOn = regexp.MustCompile(`all of it: read it from path="result:c-1:(\d+)" on\]$`)

// TestText_CutOutputSaysWhereTheRestIs: reading on there misses nothing.
func TestText_CutOutputSaysWhereTheRestIs(t *testing.T) {
	t.Parallel()
	var lines strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&lines, "%d\n", i+1)
	}
	for name, output := range map[string]string{"lines": lines.String(), "one line": strings.Repeat("x", 100_000)} {
		result := ok(protocol.CommandRunResult{Execution: execution(output, "", 0)})
		result.CallID = "c-1"
		out := text(t, "bash", result)
		found := readOn.FindStringSubmatch(out)
		require.NotNil(t, found, "%s: %s", name, out[len(out)-300:])
		offset, err := strconv.Atoi(found[1])
		require.NoError(t, err)
		if name == "lines" {
			require.Contains(t, out, fmt.Sprintf("\n%d\n", offset-1))
			require.NotContains(t, out, fmt.Sprintf("\n%d\n", offset+2))
			continue
		}
		require.LessOrEqual(t, (offset-1)*protocol.MaxKeptLine, 24_000)
		require.Greater(t, offset, 5)
	}
}

func TestText_CutOutputOfWhichNoMoreIsKept(t *testing.T) {
	t.Parallel()
	cut := execution("head", "", 0)
	cut.Truncated = true
	result := ok(protocol.CommandRunResult{Execution: cut})
	result.CallID = "c-1"
	require.Contains(t, text(t, "bash", result), "send it to a file and read that, or filter it]")
	cut.Whole = "output/s/c-1"
	result.Value = protocol.CommandRunResult{Execution: cut}
	require.Contains(t, text(t, "bash", result), `all of it: read it from path="result:c-1" on]`)
	cut.Reason = "output_limit"
	result.Value = protocol.CommandRunResult{Execution: cut}
	require.Contains(t, text(t, "bash", result), `what it wrote first: read it from path="result:c-1" on]`)
}

func TestText_KeptResult(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		value protocol.ResultReadResult
		want  string
	}{
		"some lines":   {protocol.ResultReadResult{Content: protocol.Bytes("c\nd\n"), FirstLine: 3, Lines: 2, TotalLines: 9}, "     3\tc\n     4\td\n[lines 3-4 of 9; read on with path=\"result:c-1#stdout:5\"]"},
		"the last":     {protocol.ResultReadResult{Content: protocol.Bytes("d\n"), FirstLine: 9, Lines: 1, TotalLines: 9}, "     9\td\n[lines 9-9 of 9]"},
		"not all kept": {protocol.ResultReadResult{Content: protocol.Bytes("d\n"), FirstLine: 9, Lines: 1, TotalLines: 9, Truncated: true}, "     9\td\n[lines 9-9 of 9; what came after that is not kept]"},
		"none there":   {protocol.ResultReadResult{TotalLines: 9}, "[there are no such lines: result:c-1#stdout has 9 lines]"},
		"empty":        {protocol.ResultReadResult{}, "[result:c-1#stdout is empty]"},
	} {
		test.value.CallID, test.value.Part = "c-1", protocol.PartStdout
		require.Equal(t, test.want, text(t, "read", ok(test.value)), name)
	}
	gone := protocol.Result{Status: protocol.StatusFailed, Error: protocol.Errorf(protocol.CodeNotFound, "no result")}
	require.Contains(t, text(t, "read", gone), "[failed: not_found]")
}

func TestText_AnyResultThatIsCutHasAHandle(t *testing.T) {
	t.Parallel()
	result := ok(protocol.TurnRunResult{Text: strings.Repeat("é", 60_000)})
	result.CallID = "c-1"
	out := text(t, "exists", result) // a value that this tool does not know is shown as JSON
	var value map[string]any
	require.NoError(t, json.Unmarshal([]byte(out), &value), "it is JSON even then")
	require.Equal(t, `all of it: read with path="result:c-1#value"`, value["[cut]"])
	require.Contains(t, value["text"], "and 48000 more characters]")
}
