package render

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// TestFailure_BeginsWithItsHead: who shows an error otherwise drops it from the text by the same
// words, however long it is.
func TestFailure_BeginsWithItsHead(t *testing.T) {
	t.Parallel()
	for name, message := range map[string]string{
		"short": "It failed.", "with lines": "\n It failed.\nTwice. \n", "long": strings.Repeat("It failed. ", 10_000), "none": "",
	} {
		result := &protocol.Result{Status: protocol.StatusFailed, Error: &protocol.Error{Code: protocol.CodeInternal, Message: message}}
		rest, has := strings.CutPrefix(Failure(result, "some output"), prose.FailureHead("failed", result.Error.Code, message))
		require.True(t, has, name)
		require.True(t, strings.HasPrefix(rest, "Next: "), name)
	}
}
