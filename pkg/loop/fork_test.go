package loop_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
)

// forking has two sub-agents work on forks of the workspace.
func forking(t *testing.T) *family {
	t.Helper()
	parent := delegates("d", `{"prompt":"left","workspace":"fork"}`, `{"prompt":"right","workspace":"fork"}`)
	before := asks("a", "greedy").ToolCalls
	parent.ToolCalls = append(before, parent.ToolCalls...)
	f := newFamily(t, byPrompt{
		"go":    {replies: []loop.Reply{parent, asks("w", "work"), says("both are done")}},
		"left":  {replies: []loop.Reply{asks("l", "greedy", "work"), says("left is done")}},
		"right": {replies: []loop.Reply{asks("r", "greedy"), says("right is done")}},
	})
	f.fleet.answer = func(call *protocol.Call) (protocol.Value, *protocol.Error) {
		switch call.Payload.(type) {
		case wire.WorkspaceFork:
			return wire.WorkspaceForkResult{Files: 1}, nil
		case wire.WorkspaceMerge:
			return wire.WorkspaceMergeResult{Written: []string{"new"}, Conflicts: []string{"both"}, Theirs: []string{"both.toolfleet-theirs"}, Checkpoint: 3}, nil
		default:
			return protocol.FilesWriteResult{}, nil
		}
	}
	return f
}

// kinds are the payloads that ran, in their order.
func (f *family) kinds() (kinds []string) {
	for _, call := range f.fleet.runs {
		kinds = append(kinds, string(wire.KindOf(call.Payload)))
	}
	return kinds
}

func TestAgent_WorksOnAForkThatIsMergedBack(t *testing.T) {
	t.Parallel()
	f := forking(t)
	result, err := f.run(t.Context(), t)
	require.NoError(t, err)
	require.Equal(t, "both are done", result.Text)
	require.Equal(t, []string{"noop", "workspace_fork", "workspace_fork"}, f.kinds()[:3], "in the order of the step")
	parent := protocol.SandboxKey(string(f.session))
	for _, call := range f.fleet.runs {
		switch p := call.Payload.(type) {
		case wire.WorkspaceFork:
			require.Equal(t, []protocol.Use{{Key: parent, Access: protocol.Shared}}, call.Resources)
		case wire.WorkspaceMerge:
			require.Equal(t, []protocol.Use{{Key: parent, Access: protocol.Exclusive}}, call.Resources)
			require.Contains(t, []string{string(f.callID(t, 1, 1, 1)), string(f.callID(t, 1, 1, 2))}, p.From)
		default:
			if call.Tool == "greedy" && call.SessionID != f.session {
				require.Equal(t, protocol.ResourceKey("sandbox/"+call.SessionID), call.Resources[0].Key)
			}
		}
	}
	said := strings.Join(texts(f.models["go"].lastSeen()), "\n")
	require.Contains(t, said, "left is done\n\n[Merged into the workspace:\nchanged: new\nCONFLICTS, changed on both sides, and left as they are in the workspace: both\ntheir versions of the fork: both.toolfleet-theirs]")
}

// A fork and its merge are bound as each call of the turn: by its policy, else by the level of the
// process.
func TestAgent_ForksAndMergesAreBoundAsTheTurn(t *testing.T) {
	t.Parallel()
	for level, rules := range map[string][]policy.Policy{
		"paths": nil, "none": {{MinLevel: "none"}}, "full": {{MinLevel: "full", AtMostOnce: policy.AtMostOnce{Tools: []string{"agent"}}}},
	} {
		f := forking(t)
		f.opts.MinLevel = "paths"
		if len(rules) > 0 {
			judge, err := policy.New(rules...)
			require.NoError(t, err)
			f.opts.Policy = judge
		}
		_, err := f.run(t.Context(), t)
		require.NoError(t, err)
		checked := 0
		for _, call := range f.fleet.runs {
			switch call.Payload.(type) {
			case wire.WorkspaceFork, wire.WorkspaceMerge:
				require.Equal(t, level, call.MinLevel)
				require.Equal(t, protocol.Idempotent, call.Delivery)
				checked++
			default:
			}
		}
		require.Equal(t, 4, checked)
	}
}

func TestAgent_CrashAtAnyAppendForksAndMergesOnce(t *testing.T) {
	t.Parallel()
	requireCrashesChangeNothing(t, 15, func() *family { return forking(t) }, func(clean, f *family, name string) {
		require.Equal(t, slices.Sorted(slices.Values(clean.kinds())), slices.Sorted(slices.Values(f.kinds())), name)
	})
}

// What an agent that was stopped has changed stays in its fork, and the model reads where.
func TestAgent_ThatIsStoppedIsNotMerged(t *testing.T) {
	t.Parallel()
	f := forking(t)
	ctx, stop := context.WithCancel(t.Context())
	f.models["left"].before = func(context.Context) { stop() }
	f.models["right"].before = func(ctx context.Context) { <-ctx.Done() }
	result, err := f.run(ctx, t)
	require.NoError(t, err)
	require.Equal(t, loop.OutcomeInterrupted, result.Outcome)
	require.NotContains(t, f.kinds(), "workspace_merge")
	require.Contains(t, fmt.Sprint(f.watch.of(loop.EventToolResult)), "is not merged: it was stopped. Its files are in the workspace of session "+string(f.callID(t, 1, 1, 1)))
}

func TestAgent_WhoseForkFailsIsNotStarted(t *testing.T) {
	t.Parallel()
	f := forking(t)
	f.fleet.answer = func(call *protocol.Call) (protocol.Value, *protocol.Error) {
		if _, is := call.Payload.(wire.WorkspaceFork); is {
			return nil, protocol.Errorf(protocol.CodeWorkspaceUnavailable, "no room")
		}
		return protocol.FilesWriteResult{}, nil
	}
	_, err := f.run(t.Context(), t)
	require.NoError(t, err)
	require.Contains(t, strings.Join(texts(f.models["go"].lastSeen()), "\n"), "no room")
	require.Empty(t, f.models["left"].seen)
}

// The answer of a fork that was merged is one message to the model.
func TestRun_ReadsOfASessionThatWasMerged(t *testing.T) {
	t.Parallel()
	f := newFamily(t, byPrompt{"go": {replies: []loop.Reply{says("first"), says("second")}}})
	_, err := f.run(t.Context(), t)
	require.NoError(t, err)
	history, err := f.journal.Load(t.Context(), f.session)
	require.NoError(t, err)
	_, err = f.journal.Append(t.Context(), f.session, history.Last, loop.Event{Type: loop.EventSessionMerged, Turn: 1, Text: "the fork is done"})
	require.NoError(t, err)
	result, err := f.run(t.Context(), t)
	require.NoError(t, err)
	require.Equal(t, "second", result.Text)
	require.Equal(t, []string{"user: go", "assistant: first", "user: the fork is done", "user: go"}, texts(f.models["go"].lastSeen())[1:])
}
