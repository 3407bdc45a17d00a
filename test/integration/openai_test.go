package integration

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/model/aimocktest"
)

const openaiFixtures = `{"fixtures": [
	{"match": {"userMessage": "do it", "turnIndex": 0, "toolName": "read"},
	 "response": {"content": "Let me look at the file first.", "toolCalls": [
		{"id": "call_read", "name": "read", "arguments": {"path": "a.txt"}},
		{"id": "call_bash", "name": "bash", "arguments": {"command": "echo \"it's here\" > b.txt"}}]}},
	{"match": {"userMessage": "do it", "turnIndex": 1, "toolResultContains": "no output"},
	 "response": {"content": "The file says alpha, and there is another one now.", "usage": {"prompt_tokens": 30, "completion_tokens": 12, "total_tokens": 42}}}
]}`

// TestRun_OpenAI is a session with a server that speaks the API of OpenAI and is not ours.
func TestRun_OpenAI(t *testing.T) {
	t.Parallel()
	base := aimocktest.Start(t, openaiFixtures)
	env := []string{"OPENAI_BASE_URL=" + base, "OPENAI_API_KEY=" + aimocktest.APIKey}
	for name, flags := range map[string][]string{"progress": nil, "json": {"--json"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			workspace := t.TempDir()
			write(t, filepath.Join(workspace, "a.txt"), "alpha\n")
			got := execute(t, coordinator, launch{args: runFlags(t, "openai:gpt-4o-mini", workspace, flags...), env: env})
			require.Equal(t, 0, got.code, got.stderr)
			require.Equal(t, "it's here\n", content(t, filepath.Join(workspace, "b.txt")))
			const answer = "The file says alpha, and there is another one now."
			if flags == nil {
				require.Equal(t, answer+"\n", got.stdout)
				require.Contains(t, got.stderr, "Let me look at the file first.")
				return
			}
			list := events(t, got.stdout)
			require.Equal(t, "openai:gpt-4o-mini", list[0].raw["model"])
			require.Contains(t, results(list)["call_read"].Content, "alpha")
			require.Equal(t, answer, list[len(list)-1].Text)
			require.Positive(t, *list[len(list)-1].Usage.OutputTokens)
		})
	}
	t.Run("wrong key", func(t *testing.T) {
		t.Parallel()
		got := execute(t, coordinator, launch{
			args: runFlags(t, "openai:gpt-4o-mini", ""),
			env:  []string{"OPENAI_BASE_URL=" + base, "OPENAI_API_KEY=sk-secret-key"},
		})
		require.Equal(t, 1, got.code, got.stderr)
		require.Contains(t, got.stderr, "401 Unauthorized: Invalid API key (check the API key)")
		require.NotContains(t, got.stdout+got.stderr, "sk-secret-key", "keys are not printed")
		require.Empty(t, got.stdout)
	})
	t.Run("no key", func(t *testing.T) {
		t.Parallel()
		got := execute(t, coordinator, launch{args: runFlags(t, "openai:gpt-4o-mini", "")})
		require.Equal(t, 2, got.code, got.stderr)
		require.Contains(t, got.stderr, "OPENAI_API_KEY")
	})
}
