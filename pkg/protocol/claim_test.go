package protocol_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestClaim_IsReadAsItWasWritten(t *testing.T) {
	t.Parallel()
	claim := protocol.Claim{
		Lane: "sandbox/a", WorkerID: "w", Life: "life", Token: "token", Ready: 17, Interrupted: true,
	}
	body, err := protocol.EncodeClaim(&claim)
	require.NoError(t, err)
	require.JSONEq(t, `{"type":"claim","version":1,"lane":"sandbox/a","worker_id":"w","life":"life",`+
		`"token":"token","ready":17,"interrupted":true}`, string(body))
	read, err := protocol.DecodeClaim(body)
	require.NoError(t, err)
	require.Equal(t, &claim, read)
	for _, body := range []string{``, `{}`, `{"type":"heartbeat","version":1,"lease_ms":1}`} {
		_, err := protocol.DecodeClaim([]byte(body))
		require.ErrorIs(t, err, protocol.ErrInvalidClaim, body)
	}
}

func TestHeartbeat_IsReadAsItWasWritten(t *testing.T) {
	t.Parallel()
	beat := protocol.Heartbeat{WorkerID: "w", LeaseMS: 10_000, Beat: 3, Origin: "here#1", Expired: true}
	body, err := protocol.EncodeHeartbeat(&beat)
	require.NoError(t, err)
	require.JSONEq(t, `{"type":"heartbeat","version":1,"worker_id":"w","lease_ms":10000,"beat":3,`+
		`"origin":"here#1","expired":true}`, string(body))
	read, err := protocol.DecodeHeartbeat(body)
	require.NoError(t, err)
	require.Equal(t, &beat, read)
	for _, body := range []string{``, `{"type":"claim","version":1}`, `{"type":"heartbeat","version":1,"lease_ms":0}`} {
		_, err := protocol.DecodeHeartbeat([]byte(body))
		require.ErrorIs(t, err, protocol.ErrInvalidClaim, body)
	}
}
