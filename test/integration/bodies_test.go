package integration

import (
	"net/http/httptest"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/stretchr/testify/require"
)

// TestBodies_AreMovedWhileTheFleetStandsStill: not while a worker runs; then a session goes on
// with contents that are in an S3 store.
func TestBodies_AreMovedWhileTheFleetStandsStill(t *testing.T) {
	t.Parallel()
	backend := s3mem.New()
	require.NoError(t, backend.CreateBucket("bucket"))
	server := httptest.NewServer(gofakes3.New(backend).Server())
	t.Cleanup(server.Close)
	keys := []string{"AWS_ACCESS_KEY_ID=key", "AWS_SECRET_ACCESS_KEY=secret"}
	to := "s3://bucket/fleet?endpoint=" + server.URL + "&region=us-east-1"
	b := newBroker(t)
	move := func(to string) finished {
		return execute(t, coordinator, launch{args: append(append([]string{"bodies", "move"}, b.flags...), to), env: keys})
	}
	model := script(t, say("", bash("c1", "head -c 200000 /dev/urandom > large; sha256sum large > sum")), say("Done."),
		say("", bash("c2", "sha256sum -c sum")), say("Done."))
	turn := func() finished {
		return execute(t, coordinator, launch{args: append(append([]string{"run", "--session", "s-1", "--model", model}, b.flags...), "go")})
	}
	for id, w := range startWorkers(t, 1, b.flags) {
		got := turn()
		require.Equal(t, 0, got.code, got)
		got = move(to)
		require.Equal(t, 1, got.code, got)
		require.Contains(t, got.stderr, "worker "+id+" of pool default runs: stop all workers and coordinators first")
		w.stop(t)
	}
	got := move(to)
	require.Equal(t, 0, got.code, got)
	require.Contains(t, got.stdout, "1 bodies are copied from nats: to "+to)
	list, err := backend.ListBucket("bucket", nil, gofakes3.ListBucketPage{})
	require.NoError(t, err)
	require.Len(t, list.Contents, 2, "the body, and whose they are")
	startWorkers(t, 1, b.flags, keys...)
	got = turn()
	require.Equal(t, 0, got.code, got)
	require.Contains(t, got.stderr, "large: OK")
	got = move("s3://bucket/a?size=3")
	require.Equal(t, 2, got.code, got)
	require.Contains(t, got.stderr, `unknown parameter "size"`)
}
