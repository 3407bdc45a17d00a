package main

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestProgress_ShowsWhatWasRead(t *testing.T) {
	t.Parallel()
	var shown []string
	w := &remoteWorkspace{busy: func(what string) { shown = append(shown, what) }}
	archive := w.shown("sending the workspace", strings.NewReader(strings.Repeat("x", 3_000_000)))
	read, err := io.ReadFull(archive, make([]byte, 2_500_000))
	require.NoError(t, err)
	require.Equal(t, 2_500_000, read)
	require.Equal(t, []string{"sending the workspace: 2.5 MB"}, shown)
}
