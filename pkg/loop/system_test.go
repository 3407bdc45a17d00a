package loop_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// prompt is the system prompt of the last request.
func (r *rig) prompt() string { return r.model.lastSeen()[0].Text }

func agents(text string) []protocol.InstructionFile {
	return []protocol.InstructionFile{{Name: "AGENTS.md", Text: text}}
}

func TestRun_InstructionsOfTheProjectFollowTheSystemPrompt(t *testing.T) {
	t.Parallel()
	r := newRig(says("done"))
	r.opts.System, r.opts.Project = "Be brief.", append(agents("Run make check."), protocol.InstructionFile{Name: "CLAUDE.md", Text: "Ask."})
	_, err := r.run(t.Context(), t, "go")
	require.NoError(t, err)
	require.Regexp(t, `(?s)^Be brief\..*\n\n# AGENTS\.md\n\nRun make check\.\n\n# CLAUDE\.md\n\nAsk\.$`, r.prompt())
	require.Equal(t, []string{"AGENTS.md", "CLAUDE.md"}, r.events(t)[0].Instructions)
}

// A session keeps its instructions until a turn brings others, and journals them when they change.
func TestRun_InstructionsAreThoseOfTheJournal(t *testing.T) {
	t.Parallel()
	r := newRig(says("1"), says("2"), says("3"), says("4"), says("5"))
	journaled := func() []*loop.Terms {
		var terms []*loop.Terms
		for _, e := range r.events(t) {
			if e.Type == loop.EventTurnStarted {
				terms = append(terms, e.Terms)
			}
		}
		return terms
	}
	for i, turn := range []struct {
		system   string
		project  []protocol.InstructionFile
		want     []string
		not      string
		recorded bool
	}{
		{"S1.", agents("A1"), []string{"S1.", "A1"}, "A2", true},
		{"", nil, []string{"S1.", "A1"}, "A2", false},
		{"S1.", agents("A1"), []string{"S1.", "A1"}, "A2", false},
		{"S2.", agents("A2"), []string{"S2.", "A2"}, "A1", true},
		{"", []protocol.InstructionFile{}, []string{"S2."}, "A2", true},
	} {
		r.opts.System, r.opts.Project = turn.system, turn.project
		_, err := r.run(t.Context(), t, string(rune('a'+i)))
		require.NoError(t, err)
		for _, want := range turn.want {
			require.Contains(t, r.prompt(), want, "turn %d", i+1)
		}
		require.NotContains(t, r.prompt(), turn.not, "turn %d", i+1)
		last := journaled()[i]
		require.Equal(t, turn.recorded, last.System != "" || last.Project != nil, "turn %d", i+1)
	}
}

func TestRun_ResumedTurnHasTheInstructionsThatItWasBegunWith(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work"), says("done"))
	r.opts.System, r.opts.Project = "S1.", agents("A1")
	ctx, stop := context.WithCancelCause(t.Context())
	r.fleet.told = func(protocol.Call) { stop(loop.ErrDetached) }
	_, err := r.run(ctx, t, "go")
	require.ErrorIs(t, err, loop.ErrDetached)
	r.opts.System, r.opts.Project, r.fleet.told = "S2.", agents("A2"), nil
	result, err := r.run(t.Context(), t, "go")
	require.NoError(t, err)
	require.Equal(t, loop.OutcomeAnswered, result.Outcome)
	require.Contains(t, r.prompt(), "S1.")
	require.Contains(t, r.prompt(), "A1")
	require.NotContains(t, r.prompt(), "2")
}
