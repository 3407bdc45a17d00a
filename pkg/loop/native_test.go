package loop_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/loop"
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
