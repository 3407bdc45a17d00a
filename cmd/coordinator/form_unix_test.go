//go:build unix

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// What an MCP server asks in the middle of a call is a form at the terminal: each field until it
// fits, an empty line for its default.
func TestForm_OnATerminal(t *testing.T) {
	t.Parallel()
	config := filepath.Join(t.TempDir(), "mcp.json")
	require.NoError(t, os.WriteFile(config, []byte(`{"mcpServers": {"test": {"command": "mcptest"}}}`), 0o600))
	fields := []struct{ shows, types string }{
		{"Who are you?", "y\n"},
		{"a whole number; an empty line is 30:", "old\n"},
		{"age: must be a number", ""},
		{"a whole number; an empty line is 30:", "41\n"},
		{`a text; an empty line is "Ann":`, "Bob\n"},
		{"a number; an empty line is 9.5:", "\n"},
		{`one of active, gone; an empty line is "active":`, "lost\n"},
		{"status: ", ""},
		{`one of active, gone; an empty line is "active":`, "gone\n"},
		{"y or n; an empty line is true:", "n\n"},
	}
	for name, test := range map[string]struct {
		answers bool
		says    string
	}{
		"yes": {true, `accept {"age":41,"name":"Bob","score":9.5,"status":"gone","sure":false}`},
		"no":  {false, "decline null"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := open(t, "", "call", "--mcp-config", config, "test__form")
			seen := map[string]int{}
			for _, field := range fields {
				if !test.answers {
					c.shows(question, 1)
					c.typeIn("n\n")
					break
				}
				seen[field.shows]++
				c.shows(field.shows, seen[field.shows])
				c.typeIn(field.types)
			}
			code, output := c.ends()
			require.Equal(t, 0, code, c.screen.String())
			require.Equal(t, test.says, output.Content)
		})
	}
}

// What the model asks is one line; a choice that is none is asked again.
func TestForm_TheModelAsks(t *testing.T) {
	t.Parallel()
	script := filepath.Join(t.TempDir(), "ask.json")
	require.NoError(t, os.WriteFile(script, []byte(`{"steps": [
		{"tool_calls": [{"name": "ask_user", "arguments": {"question": "Which colour?", "choices": ["red", "blue"]}}]},
		{"text": "thanks"}]}`), 0o600))
	for typed, says := range map[string]string{"blue\n": `"content":"blue"`, "\n": "declined to answer"} {
		c := open(t, "", "run", "--model", "script:"+script, "--toolset", "ask", "--json", "go")
		c.shows("one of red, blue; an empty line declines:", 1)
		c.typeIn("green\n")
		c.shows("must be one of red, blue", 1)
		c.shows("one of red, blue; an empty line declines:", 2)
		c.typeIn(typed)
		<-c.done
		require.Contains(t, c.stdout.String(), says)
	}
}
