package protocol_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestStatuses_AreAllDeclared(t *testing.T) {
	t.Parallel()
	var listed []string
	for _, status := range protocol.Statuses() {
		listed = append(listed, string(status))
	}
	require.Equal(t, constants(t, "Status"), listed)
}

func TestCodes_AreDistinctWords(t *testing.T) {
	t.Parallel()
	codes := constants(t, "Code")
	require.NotEmpty(t, codes)
	seen := map[string]bool{}
	for _, code := range codes {
		require.Regexp(t, `^[a-z]+(_[a-z]+)*$`, code)
		require.False(t, seen[code], "%s is declared twice", code)
		seen[code] = true
	}
}

func TestDecodeResult_Refuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ body, says string }{
		"not JSON":            {`{`, ""},
		"another type":        {`{"type":"call"}`, `"call"`},
		"no call id":          {`{"type":"result","status":"ok"}`, "call id"},
		"no status":           {`{"type":"result","call_id":"c"}`, `status ""`},
		"an unknown status":   {`{"type":"result","call_id":"c","status":"done"}`, `"done"`},
		"ok with an error":    {`{"type":"result","call_id":"c","status":"ok","error":{"code":"internal"}}`, "ok"},
		"failed without one":  {`{"type":"result","call_id":"c","status":"failed"}`, "failed"},
		"value without type":  {`{"type":"result","call_id":"c","status":"ok","value":{}}`, "value"},
		"malformed value":     {`{"type":"result","call_id":"c","status":"ok","value":{"type":"files_list","total":"x"}}`, "files_list"},
		"value of wrong kind": {`{"type":"result","call_id":"c","status":"ok","value":7}`, "value"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := protocol.DecodeResult([]byte(c.body))
			require.ErrorIs(t, err, protocol.ErrInvalidResult)
			require.ErrorContains(t, err, c.says)
		})
	}
}

// TestDecodeResult_NullIsAbsent: workers in other languages write null for nothing.
func TestDecodeResult_NullIsAbsent(t *testing.T) {
	t.Parallel()
	result, err := protocol.DecodeResult([]byte(`{"type":"result","call_id":"c","status":"ok","error":null,"value":null}`))
	require.NoError(t, err)
	require.Nil(t, result.Error)
	require.Nil(t, result.Value)
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
