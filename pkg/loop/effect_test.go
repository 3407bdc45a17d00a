package loop_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// shop is a tool of the user's own without arguments.
func shop(name string, revert *tools.Revert, with tools.Remote) tools.Tool {
	with.Kind, with.Resources = protocol.Kind(name), []tools.Resource{{Key: "shop/orders", Access: with.Resources[0].Access}}
	tool := tools.NewRemote[struct {
		N int `json:"n,omitempty"`
	}](name, "Does "+name+".", with)
	tool.Revert = revert
	return tool
}

// The journal has how a call reaches outside of the workspace, and the call that undoes it as it
// was planned when the result came.
func TestEffect_IsJournaledWithItsRevert(t *testing.T) {
	t.Parallel()
	reply := asks("a", "order", "look", "broken", "work", "later")
	for i := range reply.ToolCalls {
		reply.ToolCalls[i].Arguments = `{"n":1}`
	}
	reply.ToolCalls[3].Arguments = `{}`
	r := newRig(reply, says("done"), says("I see"))
	touches := []tools.Resource{{Access: protocol.Exclusive}}
	r.tools = append(r.tools,
		shop("order", &tools.Revert{Tool: "cancel", Arguments: json.RawMessage(`{"n":"{n}"}`)}, tools.Remote{Resources: touches, Delivery: protocol.AtMostOnce}),
		shop("cancel", nil, tools.Remote{Resources: touches}),
		shop("look", nil, tools.Remote{Resources: []tools.Resource{{Access: protocol.Shared}}}),
		shop("broken", &tools.Revert{Tool: "nothing", Arguments: json.RawMessage(`{}`)}, tools.Remote{Resources: touches}),
		shop("later", &tools.Revert{Tool: "cancel", Arguments: json.RawMessage(`{"n":2}`)}, tools.Remote{Resources: touches, Background: true}),
	)
	_, err := r.run(t.Context(), t, "go")
	require.NoError(t, err)
	history, err := r.journal.Load(t.Context(), r.session)
	require.NoError(t, err)
	_, err = r.journal.Append(t.Context(), r.session, history.Last, loop.Event{Type: loop.EventCallResolved, Turn: 1, Text: "[it did happen]"})
	require.NoError(t, err)
	_, err = r.run(t.Context(), t, "and now?")
	require.NoError(t, err)
	require.Contains(t, strings.Join(texts(r.model.lastSeen()), "\n"), "it did happen")

	effects := map[string]*loop.Effect{}
	for _, e := range r.events(t) {
		if e.Type == loop.EventToolResult && e.Job == "" || e.Type == loop.EventJobEnded {
			effects[e.Name] = e.Effect
		}
	}
	require.Equal(t, []string{"tool", "at_most_once"}, effects["order"].Reaches)
	require.Nil(t, effects["look"], "it only reads")
	require.Equal(t, &loop.Effect{Reaches: []string{"tool"}}, effects["broken"], "there is no such tool")
	require.Equal(t, "cancel", effects["later"].Revert.Tool)
	revert := effects["order"].Revert
	require.Equal(t, `{"n":1}`, revert.Arguments)
	call, err := wire.DecodeCall(revert.Call)
	require.NoError(t, err)
	require.Equal(t, protocol.ResourceKey("shop/orders"), call.Resources[0].Key)
	require.Equal(t, protocol.Kind("cancel"), wire.KindOf(call.Payload))
}
