package modelpath_test

import (
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/modeltext/modelpath"
)

func TestPath_MustBeUTF8(t *testing.T) {
	t.Parallel()
	_, err := modelpath.Path("a\xff")
	require.Equal(t, "invalid_path", err.ErrorType())
	require.True(t, utf8.ValidString(err.Message))
}
