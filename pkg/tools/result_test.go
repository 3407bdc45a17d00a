package tools_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/tools"
)

// What a person says takes nothing from the result, whose end says how to read on.
func TestWithNote_TakesNothingFromTheText(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("é", tools.MaxText)
	require.Equal(t, text, tools.WithNote(text, ""))
	require.Equal(t, text+"\n[the call was approved by a person, who said: only once]", tools.WithNote(text, "only once"))
}
