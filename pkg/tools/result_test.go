package tools_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/modeltext/plain"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// What a person says takes nothing from the result, whose end says how to read on.
func TestWithNote_TakesNothingFromTheText(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("é", prose.MaxText)
	var tool *tools.Tool
	require.Equal(t, text, tool.WithNote(text, ""))
	require.Equal(t, text+"\n[the call was approved by a person, who said: only once]", tool.WithNote(text, "only once"))
}

// A call that was started again says so, and JSON is still what it was, and one entry more.
func TestText_StartedAgain(t *testing.T) {
	t.Parallel()
	const line = "attempt 2: a worker was lost while the call ran, and it was started again; what it does outside of the workspace may have happened more than once"
	command := tools.Remote{}.CommandTool(
		tools.Definition{Name: "t", Description: "t", Schema: json.RawMessage(`{"type":"object"}`)}, protocol.ToolRun{Argv: []string{"t"}})
	for output, want := range map[string]string{
		`{"a": [1]}`:  `{"a": [1],"[started again]":"` + line + `"}`,
		`{}`:          `{"[started again]":"` + line + `"}`,
		` [[]] `:      `[[],"[` + line + `]"]`,
		`[]`:          `["[` + line + `]"]`,
		`3`:           `3`,
		`"two words"`: "two words\n[" + line + "]",
	} {
		r := protocol.Result{Status: protocol.StatusOK, Attempt: 2, Value: protocol.ToolRunResult{Output: json.RawMessage(output)}}
		require.Equal(t, want, command.Text(&r), output)
		r.Attempt = 1
		require.NotContains(t, command.Text(&r), "attempt", output)
	}
	const again = "attempt 3: attempt 2 failed with run_timeout, and the tool's retry started the call again; what it did before it failed may still be there, in the workspace too"
	retried := protocol.Result{Status: protocol.StatusOK, Attempt: 3, Value: protocol.ToolRunResult{Output: json.RawMessage(`[]`)}, Tries: []protocol.Try{
		{Attempt: 1, Error: protocol.Errorf(protocol.CodeToolFailed, "no")}, {Attempt: 2, Error: protocol.Errorf(protocol.CodeRunTimeout, "late")},
	}}
	require.Equal(t, `["[`+again+`]"]`, command.Text(&retried))
	retried.Attempt = 4
	require.Contains(t, command.Text(&retried), "attempt 4: a worker was lost")
	failed := protocol.Result{Attempt: 2, Status: protocol.StatusFailed, Error: protocol.Errorf(protocol.CodeToolFailed, "no")}
	require.Regexp(t, `^\[failed: tool_failed\]\n(?s:.*)\n\[attempt 2: .*\]$`, command.Text(&failed))
	for code, status := range map[protocol.Code]protocol.Status{
		protocol.CodeAttemptsExhausted: protocol.StatusFailed, protocol.CodeOutcomeUnknown: protocol.StatusOutcomeUnknown,
	} {
		lost := protocol.Result{Attempt: 2, Status: status, Error: protocol.Errorf(code, "lost")}
		require.NotContains(t, command.Text(&lost), "attempt 2", "it says what became of it")
	}
}

// Only images of the types that models take are images for them; SVG is text.
func TestImage_TypesThatModelsTake(t *testing.T) {
	t.Parallel()
	result := func(mediaType string) *protocol.Result {
		return &protocol.Result{Value: protocol.MCPCallResult{Content: []protocol.MCPContent{{Type: "image", MediaType: mediaType, Data: []byte("<svg/>")}}}}
	}
	for given, want := range map[string]string{
		"image/png": "image/png", "image/jpg": "image/jpeg", "IMAGE/WEBP": "image/webp",
		"image/svg+xml": "", "image/bmp": "", "image/tiff": "", "": "",
	} {
		mediaType, _, ok := render.Image(result(given))
		require.Equal(t, want, mediaType, given)
		require.Equal(t, want != "", ok, given)
	}
	svg, ok := result("image/svg+xml").Value.(protocol.MCPCallResult)
	require.True(t, ok)
	require.Equal(t, "[image image/svg+xml]\n<svg/>", plain.MCP(svg))
}
