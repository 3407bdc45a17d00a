package loop_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// provided is a model whose provider runs tools.
type provided struct{ *script }

func (provided) Provider() string { return "cloud" }

// A tool that a provider runs is declared to its models, with its hint, and to no other.
func TestNative_IsForItsProviderAlone(t *testing.T) {
	t.Parallel()
	web := tools.Tool{
		Definition: tools.Definition{Name: "web", Description: "Search.", Native: map[string]json.RawMessage{"cloud": json.RawMessage(`{"type":"search"}`)}},
		Metadata:   tools.Metadata{Hint: "Search before you guess."},
	}
	r := newRig(says("done"))
	elsewhere := &script{replies: []loop.Reply{says("done")}}
	for _, test := range []struct {
		model loop.Model
		seen  *script
		has   bool
	}{{r.model, r.model, false}, {provided{elsewhere}, elsewhere, true}} {
		r.session += "x"
		runner, err := loop.New(test.model, r.fleet, r.journal, table(t, web), &r.opts)
		require.NoError(t, err)
		_, err = runner.Run(t.Context(), r.session, loop.Input{Text: "go"})
		require.NoError(t, err)
		var names []string
		for _, definition := range test.seen.seen[0].Tools {
			names = append(names, definition.Name)
		}
		if test.has {
			require.Contains(t, names, "web")
			require.Contains(t, test.seen.lastSeen()[0].Text, "- web: Search before you guess.")
		} else {
			require.NotContains(t, names, "web")
			require.NotContains(t, test.seen.lastSeen()[0].Text, "Search before you guess.")
		}
	}
}

// drawn is a model of a provider that makes an image.
func drawn(t *testing.T) *rig {
	t.Helper()
	first := asks("a", "work")
	first.Native = []loop.NativeCall{
		{Name: "search", Input: "dots\xff", Output: "https://dots.example/", Failed: true},
		{Name: "draw", Input: "a dot", Image: &loop.Image{MediaType: "image/png", Data: []byte("\x89PNG")}},
	}
	r := newRig(first, says("done"), says("checked"))
	native := tools.Definition{Name: "draw", Description: "Draw.", Native: map[string]json.RawMessage{"cloud": json.RawMessage(`{"type":"draw"}`)}}
	r.tools = []tools.Tool{{Definition: native}}
	return r
}

// What the provider's tools returned is journaled, and an image becomes a file of the workspace.
func TestNative_ImagesAreStored(t *testing.T) {
	t.Parallel()
	r := drawn(t)
	_, err := r.run(t.Context(), t, "go")
	require.NoError(t, err)
	var native []loop.Event
	for _, e := range r.events(t) {
		if e.Type == loop.EventNativeCall {
			native = append(native, e)
		}
	}
	require.Len(t, native, 2)
	require.Equal(t, "dots\uFFFD", native[0].Text)
	require.Equal(t, "https://dots.example/", native[0].Content)
	require.Equal(t, "failed", native[0].Status)
	require.Equal(t, "\x89PNG", string(native[1].Image.Data))
	require.Equal(t, 1, native[1].Index)

	require.Len(t, r.fleet.runs, 2)
	stored, is := r.fleet.runs[1].Payload.(protocol.FilesWrite)
	require.True(t, is)
	require.Equal(t, "\x89PNG", string(stored.Content))
	require.Regexp(t, `^generated/[0-9a-f]{12}\.png$`, stored.Path)
	requireProtocol(t, r.model.lastSeen())
	require.Equal(t, native[1].ToolCallID, r.model.lastSeen()[4].ToolCallID)

	// A model that calls the tool itself gets a sentence, and stores nothing.
	r = drawn(t)
	r.model.replies[0] = asks("a", "draw")
	_, err = r.run(t.Context(), t, "go")
	require.NoError(t, err)
	require.Empty(t, r.fleet.runs)
	require.Contains(t, r.model.lastSeen()[3].Text, "is run by the model's provider")
}

func TestNative_CrashAtAnyAppendStoresAnImageOnce(t *testing.T) {
	t.Parallel()
	for n, crashed := 0, true; crashed; n++ {
		crashed = false
		for kept := range 4 {
			r, journal := drawn(t), &crashingJournal{untilCrash: n, kept: kept}
			r.journal = journal
			if _, err := r.run(t.Context(), t, "go"); err != nil {
				crashed = true
				_, err = r.run(t.Context(), t, "go")
				require.NoError(t, err)
			}
			require.Len(t, r.fleet.runs, 2, "append %d, of which %d events are stored", n+1, kept)
			require.Equal(t, []byte("\x89PNG"), []byte(r.fleet.runs[1].Payload.(protocol.FilesWrite).Content)) //nolint:errcheck,forcetypeassert // else it panics
		}
	}
}
