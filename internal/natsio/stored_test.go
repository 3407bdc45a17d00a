package natsio_test

import (
	"bytes"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Law: the server counts what a tenant stores, and no more what was removed.
func TestStored(t *testing.T) {
	t.Parallel()
	const mebibyte = 1 << 20
	f := natsiotest.New(t, natsio.Topology{})
	acme := natsio.StoredBy(t.Context(), "acme")
	stored := func(tenant protocol.Tenant) int64 {
		t.Helper()
		require.NoError(t, f.NC.Flush())
		n, _, err := natsio.Stored(t.Context(), f.NC, tf, tenant)
		require.NoError(t, err)
		return n
	}
	require.Zero(t, stored("acme"))

	_, err := natsio.PutObject(acme, f.JS, wire.KeptBucket(tf), "text/s/1", bytes.NewReader(make([]byte, mebibyte)))
	require.NoError(t, err)
	_, err = natsio.PutObject(wire.WithFlow(t.Context(), "acme", ""), f.JS, wire.BodiesBucket(tf), "body", bytes.NewReader(make([]byte, mebibyte)))
	require.NoError(t, err)
	_, err = natsio.PutObject(t.Context(), f.JS, wire.KeptBucket(tf), "text/s/2", bytes.NewReader(make([]byte, mebibyte)))
	require.NoError(t, err)
	require.EqualValues(t, 2*mebibyte, stored("acme"))
	require.EqualValues(t, mebibyte, stored(wire.DefaultTenant))
	require.NoError(t, natsio.DeleteObjects(t.Context(), f.JS, wire.KeptBucket(tf), "text/s/1"))
	require.EqualValues(t, mebibyte, stored("acme"))

	for _, session := range []protocol.SessionID{"one", "two"} {
		natsio.MarkJournal(acme, f.NC, tf, session, 2*mebibyte)
	}
	require.Eventually(t, func() bool { return stored("acme") == 5*mebibyte }, time.Minute, 10*time.Millisecond)
	require.NoError(t, natsio.RemoveJournalMarks(t.Context(), f.JS, tf, "one"))
	require.EqualValues(t, 3*mebibyte, stored("acme"))

	natsio.MarkResult(f.NC, tf, "acme", mebibyte)
	require.Eventually(t, func() bool { return stored("acme") == 4*mebibyte }, time.Minute, 10*time.Millisecond)
	_, oldest, err := natsio.Stored(t.Context(), f.NC, tf, "acme")
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), oldest, time.Minute)
}

// Law: small objects and messages count as what they have, on average.
func TestStored_SmallOnesCountAsTheyAre(t *testing.T) {
	t.Parallel()
	const small, each = 16 << 10, 400 // 50 chunks each, with a standard deviation of 6.6
	f := natsiotest.New(t, natsio.Topology{})
	ctx := natsio.StoredBy(t.Context(), "acme")
	for i := range each {
		_, err := natsio.PutObject(ctx, f.JS, wire.KeptBucket(tf), "text/s/"+strconv.Itoa(i), bytes.NewReader(make([]byte, small)))
		require.NoError(t, err)
		natsio.MarkResult(f.NC, tf, "acme", small)
	}
	require.NoError(t, f.NC.Flush())
	n, _, err := natsio.Stored(ctx, f.NC, tf, "acme")
	require.NoError(t, err)
	require.InDelta(t, 2*each*small, n, 60*128<<10, "six times the standard deviation")
}
