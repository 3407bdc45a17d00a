package integration

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/model/aimocktest"
)

// TestModels_OfTwoCoordinators: each turn is run by a coordinator that serves its model, a model
// that nobody serves is refused before the turn is accepted, and what was accepted is listed
// whatever becomes of it.
func TestModels_OfTwoCoordinators(t *testing.T) {
	t.Parallel()
	red, blue := script(t, say("I am red.")), script(t, say("I am blue."))
	b := newBroker(t)
	first := startServe(t, red, b.flags...)
	startServe(t, blue, b.flags...)
	for _, model := range []string{red, blue, red, blue, red, blue} {
		want := map[string]string{red: "I am red.\n", blue: "I am blue.\n"}[model]
		got := succeed(t, coordinator, launch{args: append([]string{"submit", "--model", model, "who are you?"}, b.flags...)})
		require.Equal(t, want, got.stdout)
	}
	got := execute(t, coordinator, launch{args: append([]string{"submit", "--detach", "--model", "script:none", "hello"}, b.flags...)})
	require.Equal(t, 2, got.code, got.stderr)
	require.Empty(t, got.stdout)
	require.Contains(t, got.stderr, `--model script:none: no coordinator serves model "script:none"; served are: script:`)
	served := succeed(t, coordinator, launch{args: append([]string{"workers", "--pool", "session"}, b.flags...)})
	require.Contains(t, served.stdout, red)
	require.Contains(t, served.stdout, blue)

	first.stop(t)
	got = execute(t, coordinator, launch{args: append([]string{"submit", "--model", red, "hello"}, b.flags...)})
	require.Equal(t, 2, got.code, got.stderr)
}

// TestModels_AnAcceptedTurnIsListed while it waits for a coordinator.
func TestModels_AnAcceptedTurnIsListed(t *testing.T) {
	t.Parallel()
	model := script(t, say("Done."))
	b := newBroker(t)
	b.shortLeases(t)
	id := b.submit(t, "--model", model, "look at the sky")
	listed := b.session(t, "ls")
	require.Equal(t, 0, listed.code, listed.stderr)
	require.Regexp(t, `(?m)^look at the sky .*waits for coordinator.* `+id, listed.stdout)
	shown := b.session(t, "show", id)
	require.Equal(t, 0, shown.code, shown.stderr)
	require.Regexp(t, `state +waits for coordinator`, shown.stdout)
	require.Contains(t, shown.stdout, "look at the sky")
	log := b.session(t, "log", id)
	require.Equal(t, 1, log.code)
	require.Contains(t, log.stderr, "waits for a coordinator")

	other := startServe(t, script(t, say("Another.")), b.flags...)
	waits := start(t, coordinator, launch{args: append([]string{"session", "attach", id}, b.flags...)})
	require.Regexp(t, `waits +turn_run.*no coordinator serves model`, b.session(t, "show", id).stdout)
	other.signal(t, syscall.SIGTERM)
	startServe(t, model, b.flags...)
	require.Equal(t, 0, waits.wait(t), waits)
	require.Equal(t, "Done.", strings.TrimSpace(waits.stdout.String()))
	require.Regexp(t, `(?m)^look at the sky .*answered.* `+id, b.session(t, "ls").stdout)
}

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
			got := succeed(t, coordinator, launch{args: runFlags(t, "openai:gpt-4o-mini", workspace, flags...), env: env})
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
