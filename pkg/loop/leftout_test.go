package loop_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

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
		runner, err := loop.New(model, r.fleet, r.journal, table(t), &r.opts)
		require.NoError(t, err)
		result, err := runner.Run(t.Context(), r.session, loop.Input{Text: input})
		require.NoError(t, err)
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
