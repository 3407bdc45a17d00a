package loop_test

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/calls/ports"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// fullTexts is a fleet that keeps texts, unless err is set.
type fullTexts struct {
	*fleet

	err error

	mu   sync.Mutex
	kept map[protocol.CallID]string
}

func (k *fullTexts) StoreText(_ context.Context, _ protocol.SessionID, call protocol.CallID, text string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err == nil {
		k.kept[call] = text
	}
	return k.err
}

func (k *fullTexts) StoreMedia(ctx context.Context, session protocol.SessionID, call protocol.CallID, data []byte) error {
	return k.StoreText(ctx, session, call+"#media", string(data))
}

var _ ports.Fleet = (*fullTexts)(nil)

func long(t *testing.T) *tools.Table {
	t.Helper()
	return table(t, tools.New("long", "Returns a long text.", func(context.Context, struct {
		N int `json:"n,omitempty"`
	},
	) (string, error) {
		return strings.Repeat("é", 60_000), nil
	}))
}

// A long error of an inline tool is kept as well.
func TestRun_WhatIsCutOfAnErrorIsKept(t *testing.T) {
	t.Parallel()
	message := strings.Repeat("é", 60_000)
	wrong := table(t, tools.New("wrong", "Fails at length.", func(context.Context, struct {
		N int `json:"n,omitempty"`
	},
	) (string, error) {
		return "", errors.New(message)
	}))
	r := newRig(asks("a", "wrong"), says("done"))
	keeper := &fullTexts{fleet: r.fleet, kept: map[protocol.CallID]string{}}
	runner, err := loop.New(r.model, keeper, r.journal, wrong, &loop.Options{Observe: r.watch.observe})
	require.NoError(t, err)
	_, err = runner.Run(t.Context(), "s1", loop.Input{Text: "go"})
	require.NoError(t, err)
	event := r.watch.of(loop.EventToolResult)[0]
	require.Contains(t, keeper.kept[event.CallID], message)
	require.Contains(t, event.Content, `path="result:`+string(event.CallID)+`"`)
}

// TestRun_WhatIsCutOfAnInlineToolIsKept: and what is not kept is not promised.
func TestRun_WhatIsCutOfAnInlineToolIsKept(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{"kept": nil, "cannot be kept": errors.New("full")} {
		r := newRig(asks("a", "long", "inline"), says("done"))
		keeper := &fullTexts{fleet: r.fleet, err: err, kept: map[protocol.CallID]string{}}
		runner, fault := loop.New(r.model, keeper, r.journal, long(t), &loop.Options{Observe: r.watch.observe})
		require.NoError(t, fault)
		_, fault = runner.Run(t.Context(), "s1", loop.Input{Text: "go"})
		require.NoError(t, fault)
		for _, event := range r.watch.of(loop.EventToolResult) {
			if event.Name != "long" {
				continue
			}
			require.Contains(t, event.Content, "characters left out")
			require.Equal(t, err == nil, strings.HasSuffix(event.Content, `all of it: read with path="result:`+string(event.CallID)+`"]`), name)
			if err == nil {
				require.Equal(t, map[protocol.CallID]string{event.CallID: strings.Repeat("é", 60_000)}, maps.Clone(keeper.kept), "and nothing else")
			}
		}
	}
}

func TestPlanSingle_WhatIsCutOfAnInlineToolIsKept(t *testing.T) {
	t.Parallel()
	keeper := &fullTexts{kept: map[protocol.CallID]string{}}
	single := loop.PlanSingle(t.Context(), long(t), "s1", "long", "{}", &loop.SingleOptions{Dispatcher: keeper})
	require.Len(t, keeper.kept, 1)
	for call := range keeper.kept {
		require.Contains(t, single.Text, `all of it: read with path="result:`+string(call)+`"]`)
	}
	single = loop.PlanSingle(t.Context(), long(t), "s1", "long", "{}", nil)
	require.NotContains(t, single.Text, "result:")
}

// An event that no journal takes would leave its turn open for ever.
func TestRun_EventsHaveNoMoreOfAnErrorThanAModelIsShown(t *testing.T) {
	t.Parallel()
	huge := strings.Repeat("x", 10<<20) + "\xff"
	wrong := tools.New("wrong", "Fails at length.", func(context.Context, struct {
		N int `json:"n,omitempty"`
	},
	) (string, error) {
		return "", protocol.Errorf(protocol.CodeNotFound, "%s", huge)
	})
	r := newRig(asks("a", "wrong", "work"))
	r.tools, r.model.err = []tools.Tool{wrong}, errors.New(huge)
	r.fleet.answer = func(*protocol.Call) (protocol.Value, *protocol.Error) {
		return nil, protocol.Errorf(protocol.CodeToolFailed, "%s", huge)
	}
	result, err := r.run(t.Context(), t, "go")
	require.NoError(t, err)
	require.Equal(t, loop.OutcomeFailed, result.Outcome)
	told := 0
	for _, event := range r.events(t) {
		if event.Error != nil {
			told++
			require.Less(t, len(event.Error.Message), 100_000, event.Type)
			require.True(t, utf8.ValidString(event.Error.Message))
		}
	}
	require.Equal(t, 3, told)
}
