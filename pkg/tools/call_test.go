package tools_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

func TestCall_Defaults(t *testing.T) {
	t.Parallel()
	issued := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	call, err := tools.Plan{Payload: wire.Noop{}}.Call(scope, tools.Place{ID: "id", Turn: 2, Step: 3, Index: 4}, "c1", "noop", issued)
	require.Nil(t, err)
	require.Equal(t, protocol.Call{
		ID: "id", SessionID: "session-1", ToolCallID: "c1", Tool: "noop",
		Turn: 2, Step: 3, Index: 4,
		Pool: protocol.DefaultPool, Resources: use("sandbox/box", protocol.Exclusive), Delivery: protocol.Rollback,
		IssuedAt: issued, RunTimeout: protocol.MillisOf(protocol.DefaultRunTimeout), Payload: wire.Noop{},
	}, call)
	require.NoError(t, call.Validate())
}

func TestCall_TakesWhatThePlanSays(t *testing.T) {
	t.Parallel()
	resources := use("account/acme", protocol.Shared)
	plan := tools.Plan{
		Payload: wire.Noop{}, Resources: resources, Delivery: protocol.AtMostOnce, Timeout: time.Microsecond, Pool: "gpu",
	}
	call, err := plan.Call(scope, tools.Place{Turn: 1, Step: 1}, "", "pay", time.Now())
	require.Nil(t, err)
	require.Equal(t, use("account/acme", protocol.Shared), call.Resources)
	require.Equal(t, protocol.AtMostOnce, call.Delivery)
	require.Equal(t, protocol.Millis(1), call.RunTimeout, "never rounded to the default")
	require.Equal(t, protocol.Pool("gpu"), call.Pool)
	resources[0].Key = "changed/later"
	require.Equal(t, use("account/acme", protocol.Shared), call.Resources)
}

func TestCall_OfNoResourceHasALaneOfItsOwn(t *testing.T) {
	t.Parallel()
	plan := tools.Plan{Payload: wire.Noop{}, Resources: []protocol.Use{}}
	first, err := plan.Call(scope, tools.Place{Turn: 1, Step: 1}, "", "noop", time.Now())
	require.Nil(t, err)
	second, err := plan.Call(scope, tools.Place{Turn: 1, Step: 1, Index: 1}, "", "noop", time.Now())
	require.Nil(t, err)
	require.Equal(t, use("call/"+string(first.ID), protocol.Exclusive), first.Resources)
	require.NotEqual(t, first.Lane(), second.Lane())
}

func TestCall_WithoutAnIDIsNeverTheSameCall(t *testing.T) {
	t.Parallel()
	id := func(at tools.Place) protocol.CallID {
		call, err := tools.Plan{Payload: wire.Noop{}}.Call(scope, at, "", "noop", time.Now())
		require.Nil(t, err)
		return call.ID
	}
	for _, at := range []tools.Place{{}, {Turn: 1, Step: 2, Index: 3}} {
		first, again := id(at), id(at)
		require.NotEqual(t, first, again)
	}
}

func TestCall_BrokenPlansAreInternalErrors(t *testing.T) {
	t.Parallel()
	place := tools.Place{Turn: 1, Step: 1}
	for name, test := range map[string]struct {
		plan  tools.Plan
		scope tools.Scope
	}{
		"inline":             {tools.Plan{Inline: func(context.Context) (string, *protocol.Error) { return "", nil }}, scope},
		"two lanes":          {tools.Plan{Payload: wire.Noop{}, Resources: append(use("a/b", protocol.Shared), use("c/d", protocol.Shared)...)}, scope},
		"not canonical":      {tools.Plan{Payload: wire.Noop{}, Resources: use("a/./b", protocol.Shared)}, scope},
		"too many resources": {tools.Plan{Payload: wire.Noop{}, Resources: make([]protocol.Use, 65)}, scope},
		"a strange delivery": {tools.Plan{Payload: wire.Noop{}, Delivery: "twice"}, scope},
		"a negative timeout": {tools.Plan{Payload: wire.Noop{}, Timeout: -time.Second}, scope},
		"a strange pool":     {tools.Plan{Payload: wire.Noop{}, Pool: "A B"}, scope},
		"no sandbox":         {tools.Plan{Payload: wire.Noop{}}, tools.Scope{Session: "s"}},
		"a nested sandbox":   {tools.Plan{Payload: wire.Noop{}}, tools.Scope{Session: "s", Sandbox: "a/b"}},
		"no session":         {tools.Plan{Payload: wire.Noop{}}, tools.Scope{Sandbox: "a"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			call, err := test.plan.Call(test.scope, place, "", "bad", time.Now())
			require.NotNil(t, err)
			require.Equal(t, protocol.CodeInternal, err.Code)
			require.Equal(t, protocol.Call{}, call)
		})
	}
}

func use(key string, access protocol.Access) []protocol.Use {
	return []protocol.Use{{Key: protocol.ResourceKey(key), Access: access}}
}
