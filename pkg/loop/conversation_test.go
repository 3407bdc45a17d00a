package loop_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// narrow is a model that takes so many bytes.
type narrow struct {
	*script

	most    int
	refused int
}

func (n *narrow) Reply(ctx context.Context, req loop.Request, delta func(loop.Delta)) (loop.Reply, error) {
	size := 0
	for _, message := range req.Messages[1:] {
		size += len(message.Text)
		for _, call := range message.ToolCalls {
			size += len(call.Arguments)
		}
	}
	if size > n.most {
		n.refused++
		return loop.Reply{}, fmt.Errorf("%d bytes: %w", size, loop.ErrTooLong)
	}
	return n.script.Reply(ctx, req, delta)
}

// wordy is a tool that answers at length.
func wordy() tools.Tool {
	return tools.New("wordy", "Answer at length.", func(_ context.Context, args struct {
		N    int    `json:"n"`
		Text string `json:"text,omitempty"`
	},
	) (string, error) {
		return fmt.Sprintf("answer %d ", args.N) + strings.Repeat("é", 4000), nil
	})
}

// runNarrow runs a turn of so many steps, each with one long answer.
func runNarrow(t *testing.T, steps, most int) (*rig, *narrow, loop.TurnResult) {
	t.Helper()
	r := newRig()
	for i := range steps {
		call := loop.ToolCall{Name: "wordy", Arguments: fmt.Sprintf(`{"n":%d,"text":%q}`, i, strings.Repeat("x", 3000))}
		r.model.replies = append(r.model.replies, loop.Reply{Text: "asking", ToolCalls: []loop.ToolCall{call}})
	}
	r.model.replies = append(r.model.replies, says("done"))
	model := &narrow{script: r.model, most: most}
	runner := mustNew(t, model, r.fleet, r.journal, table(t, wordy()), &r.opts)
	result := mustRun(t.Context(), t, runner, r.session, loop.Input{Text: "go"})
	return r, model, result
}

func TestRun_AConversationThatIsTooLongIsShownInPart(t *testing.T) {
	t.Parallel()
	r, model, result := runNarrow(t, 12, 60_000)
	require.Equal(t, loop.OutcomeAnswered, result.Outcome)
	require.Equal(t, 1, model.refused, "what was cut once stays cut")

	seen := r.model.lastSeen()
	requireProtocol(t, seen)
	var results, arguments []string
	for _, message := range seen {
		if message.Role == loop.RoleTool {
			results = append(results, message.Text)
		}
		for _, call := range message.ToolCalls {
			require.True(t, json.Valid([]byte(call.Arguments)))
			arguments = append(arguments, call.Arguments)
		}
	}
	require.Len(t, results, 12)
	require.Contains(t, results[0], "answer 0 é")
	require.Contains(t, results[0], "[3509 more characters were here")
	require.Less(t, len(results[0]), 2000)
	require.Less(t, len(arguments[7]), 1000)
	require.Greater(t, len(arguments[8]), 3000, "the last calls are whole")
	require.Less(t, len(results[7]), 2000)
	require.Greater(t, len(results[8]), 8000)
	for _, event := range r.events(t) {
		if event.Type == loop.EventToolResult {
			require.Greater(t, len(event.Content), 8000, "the journal has all of it")
		}
	}
}

func TestRun_AConversationThatCannotBeCutAnyMoreEndsTheTurn(t *testing.T) {
	t.Parallel()
	_, model, result := runNarrow(t, 3, 900)
	require.Equal(t, loop.OutcomeFailed, result.Outcome)
	require.Contains(t, result.Error.Message, loop.ErrTooLong.Error())
	require.Equal(t, 2, model.refused, "whole, and with nothing whole")
}

// picky is a model whose server refuses requests that have an image.
type picky struct {
	*script

	refused int
	broken  bool // it names an image, but refuses the request in any case
}

func (p *picky) Reply(ctx context.Context, req loop.Request, delta func(loop.Delta)) (loop.Reply, error) {
	for _, message := range req.Messages {
		if message.ToolCallID == "a0" && (message.Image != nil || p.broken) {
			p.refused++
			return loop.Reply{}, &loop.RefusedError{
				Parts: []loop.Part{{ToolCallID: "a0", Kind: loop.PartImage}, {ToolCallID: "nobody's", Kind: loop.PartImage}},
				Err:   errors.New("400: no such picture"),
			}
		}
	}
	return p.script.Reply(ctx, req, delta)
}

func pickyRig(t *testing.T, replies ...loop.Reply) (*rig, *picky, func(input string) loop.TurnResult) {
	t.Helper()
	r := newRig(append([]loop.Reply{asks("a", "work")}, replies...)...)
	r.fleet.answer = func(*protocol.Call) (protocol.Value, *protocol.Error) {
		return protocol.MCPCallResult{Content: []protocol.MCPContent{
			{Type: "text", Text: "Look."}, {Type: "image", MediaType: "image/png", Data: []byte(png)},
		}}, nil
	}
	model := &picky{script: r.model}
	return r, model, func(input string) loop.TurnResult {
		t.Helper()
		runner := mustNew(t, model, r.fleet, r.journal, table(t), &r.opts)
		result := mustRun(t.Context(), t, runner, r.session, loop.Input{Text: input})
		return result
	}
}

// What a server refuses is in no later request, in this process or another, and the model is told.
func TestRun_WhatTheServerRefusesIsLeftOut(t *testing.T) {
	t.Parallel()
	r, model, run := pickyRig(t, says("I see nothing."), says("Still nothing."))
	require.Equal(t, loop.OutcomeAnswered, run("go").Outcome)
	require.Equal(t, loop.OutcomeAnswered, run("again").Outcome)
	require.Equal(t, 1, model.refused, "the journal knows")
	var told string
	for _, message := range r.model.lastSeen() {
		require.Nil(t, message.Image)
		if message.Role == loop.RoleTool {
			told = message.Text
		}
	}
	require.Contains(t, told, "[The image was left out, because the model's server refuses it: 400: no such picture]")
	var left []loop.Event
	for _, event := range r.events(t) {
		if event.Type == loop.EventPartLeftOut {
			left = append(left, event)
		}
	}
	require.Len(t, left, 1)
	require.Equal(t, "a0", left[0].ToolCallID)
	require.Equal(t, loop.PartImage, left[0].Part)
}

// Nothing is left out for good when the request without it is refused as well.
func TestRun_WhatDoesNotHelpIsNotLeftOut(t *testing.T) {
	t.Parallel()
	r, model, run := pickyRig(t)
	model.broken = true
	result := run("go")
	require.Equal(t, loop.OutcomeFailed, result.Outcome)
	require.Contains(t, result.Error.Message, "no such picture")
	require.Equal(t, 2, model.refused)
	for _, event := range r.events(t) {
		require.NotEqual(t, loop.EventPartLeftOut, event.Type)
	}
}

// prompt is the system prompt of the last request.
func (r *rig) prompt() string { return r.model.lastSeen()[0].Text }

func agents(text string) []protocol.InstructionFile {
	return []protocol.InstructionFile{{Name: "AGENTS.md", Text: text}}
}

func TestRun_InstructionsOfTheProjectFollowTheSystemPrompt(t *testing.T) {
	t.Parallel()
	r := newRig(says("done"))
	r.opts.System, r.opts.Project = "Be brief.", append(agents("Run make check."), protocol.InstructionFile{Name: "CLAUDE.md", Text: "Ask."})
	r.mustRun(t.Context(), t, "go")
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
		r.mustRun(t.Context(), t, string(rune('a'+i)))
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
	result := r.mustRun(t.Context(), t, "go")
	require.Equal(t, loop.OutcomeAnswered, result.Outcome)
	require.Contains(t, r.prompt(), "S1.")
	require.Contains(t, r.prompt(), "A1")
	require.NotContains(t, r.prompt(), "2")
}
