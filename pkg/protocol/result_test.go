package protocol_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestStatuses_AreAllDeclared(t *testing.T) {
	t.Parallel()
	var listed []string
	for _, status := range wire.Statuses() {
		listed = append(listed, string(status))
	}
	require.Equal(t, constants(t, "Status"), listed)
}

func TestCodes_AreDistinctWords(t *testing.T) {
	t.Parallel()
	codes := slices.Concat(constants(t, "Code"), constants(t, "protocol.Code"))
	require.Greater(t, len(codes), 50)
	seen := map[string]bool{}
	for _, code := range codes {
		require.Regexp(t, `^[a-z]+(_[a-z]+)*$`, code)
		require.False(t, seen[code], "%s is declared twice", code)
		seen[code] = true
	}
}

func TestError_IsFoundAndNamed(t *testing.T) {
	t.Parallel()
	err := fmt.Errorf("read: %w", protocol.Errorf(protocol.CodeNotFound, "no file %q", "a"))
	var coded *protocol.Error
	require.True(t, errors.As(err, &coded)) //nolint:testifylint // the typed target is used below
	require.Equal(t, "not_found", coded.ErrorType())
	require.EqualError(t, err, `read: not_found: no file "a"`)
}

func TestUsage(t *testing.T) {
	t.Parallel()
	sum := protocol.Usage{InputTokens: 1, OutputTokens: 2}.Add(protocol.Usage{InputTokens: 10, OutputTokens: 20})
	require.Equal(t, protocol.Usage{InputTokens: 11, OutputTokens: 22}, sum)
	require.Equal(t, int64(33), sum.Total())
}
