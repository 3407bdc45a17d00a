package wire_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestApproval_ComesBack(t *testing.T) {
	t.Parallel()
	for _, approval := range []protocol.Approval{{}, {Granted: true, By: "ada", Note: "<fine>"}} {
		body, err := wire.EncodeApproval(approval)
		require.NoError(t, err)
		decoded, err := wire.DecodeApproval(body)
		require.NoError(t, err)
		require.Equal(t, approval, decoded)
	}
	for _, body := range []string{"", "{}", `{"type":"call","granted":true}`, `{"type":"approval","granted":"yes"}`} {
		_, err := wire.DecodeApproval([]byte(body))
		require.ErrorIs(t, err, wire.ErrInvalidApproval, body)
	}
}
