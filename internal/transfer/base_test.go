package transfer

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestProgress_ShowsWhatTravelled(t *testing.T) {
	t.Parallel()
	var shown []string
	w := &Workspace{Options: Options{Busy: func(what string) { shown = append(shown, what) }}}
	w.shown("sending the workspace").add(2_500_000)
	require.Equal(t, []string{"sending the workspace: 2.5 MB"}, shown)
}
