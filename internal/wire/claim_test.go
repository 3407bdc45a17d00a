package wire_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
)

func TestClaim_IsReadAsItWasWritten(t *testing.T) {
	t.Parallel()
	claim := wire.Claim{
		Lane: "sandbox/a", WorkerID: "w", Incarnation: "life", Token: "token", Ready: 17, Interrupted: true,
	}
	body, err := wire.EncodeClaim(&claim)
	require.NoError(t, err)
	require.JSONEq(t, `{"type":"claim","version":1,"lane":"sandbox/a","worker_id":"w","life":"life",`+
		`"token":"token","ready":17,"interrupted":true}`, string(body))
	read, err := wire.DecodeClaim(body)
	require.NoError(t, err)
	require.Equal(t, &claim, read)
	for _, body := range []string{``, `{}`, `{"type":"heartbeat","version":1,"lease_ms":1}`} {
		_, err := wire.DecodeClaim([]byte(body))
		require.ErrorIs(t, err, wire.ErrInvalidClaim, body)
	}
}

func TestHeartbeat_IsReadAsItWasWritten(t *testing.T) {
	t.Parallel()
	beat := wire.Heartbeat{WorkerID: "w", LeaseMS: 10_000, Beat: 3, Origin: "here#1", Expired: true}
	body, err := wire.EncodeHeartbeat(&beat)
	require.NoError(t, err)
	require.JSONEq(t, `{"type":"heartbeat","version":1,"worker_id":"w","lease_ms":10000,"beat":3,`+
		`"origin":"here#1","expired":true}`, string(body))
	read, err := wire.DecodeHeartbeat(body)
	require.NoError(t, err)
	require.Equal(t, &beat, read)
	for _, body := range []string{``, `{"type":"claim","version":1}`, `{"type":"heartbeat","version":1,"lease_ms":0}`} {
		_, err := wire.DecodeHeartbeat([]byte(body))
		require.ErrorIs(t, err, wire.ErrInvalidClaim, body)
	}
}
