package workspace_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/workspace"
)

// TestS3_CredentialsGoNowhereElse: whoever writes the fleet's record of the store gets no request
// of a process that was told of another store, or of none.
func TestS3_CredentialsGoNowhereElse(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests.Add(1) }))
	defer server.Close()
	f := natsiotest.New(t, natsio.Topology{})
	url := "s3://bucket?region=us-east-1&endpoint=" + server.URL
	body, err := json.Marshal(map[string]string{"fleet": string(f.Name), "id": "1", "url": url})
	require.NoError(t, err)
	places, err := f.JS.KeyValue(t.Context(), wire.PlacesBucket(f.Name))
	require.NoError(t, err)
	_, err = places.Put(t.Context(), "bodies", body)
	require.NoError(t, err)
	require.NoError(t, workspace.Bind(t.Context(), f.NC, f.Name, ""))
	for _, told := range []string{"", strings.Replace(url, "bucket", "another", 1)} {
		_, err = workspace.Open(t.Context(), f.NC, f.Name, told)
		require.ErrorIs(t, err, workspace.ErrUnknownStore, told)
		require.ErrorContains(t, err, "--bodies", told)
		require.ErrorContains(t, err, server.URL, told)
	}
	require.Zero(t, requests.Load())
}

// TestS3_HasTheBodiesOfAFleet: the first process decides, and all others are told the same.
func TestS3_HasTheBodiesOfAFleet(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	url, store3 := s3(t)
	f := natsiotest.New(t, natsio.Topology{})
	require.NoError(t, workspace.Bind(t.Context(), f.NC, f.Name, url))
	require.NoError(t, workspace.Bind(t.Context(), f.NC, f.Name, url), "again it is the same")
	store := mustOpen(t, f, url)
	w := take(t, store, 1)
	large := string(random(9 << 20))
	require.NoError(t, w.root.WriteFile("large", []byte(large), 0o600))
	require.NoError(t, w.commit("c1"))
	objects, err := natsio.ListObjects(t.Context(), f.JS, wire.BodiesBucket(f.Name), func(string) bool { return true })
	require.NoError(t, err)
	require.Empty(t, objects)
	require.Equal(t, 3, store3.keys(t))

	n := mustSweep(t, store, -time.Hour)
	require.Zero(t, n, "they are needed")
	other := take(t, store, 2)
	require.Equal(t, large, other.content("large"))
	require.NoError(t, store.Put(t.Context(), "NAME", []byte("young")))
	require.NoError(t, store.Put(t.Context(), "NAME", []byte("young")))
	require.Equal(t, 4, store3.keys(t))
	require.NoError(t, store.Remove(t.Context(), lane, 2))
	n = mustSweep(t, store, -time.Hour)
	require.Equal(t, 5, n)
	require.Zero(t, store3.keys(t))
	_, err = store.Get(t.Context(), "NAME")
	require.ErrorIs(t, err, workspace.ErrMissing)
}

// A body that is about to be named is copied within the store, and the copy stays.
func TestS3_KeepsWhatIsAboutToBeNamed(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	url, store3 := s3(t)
	f := natsiotest.New(t, natsio.Topology{})
	require.NoError(t, workspace.Bind(t.Context(), f.NC, f.Name, url))
	store := mustOpen(t, f, url)
	w := take(t, store, 1)
	require.NoError(t, w.root.WriteFile("f", random(200_000), 0o600))
	delta, err := snapshot.Save(t.Context(), w.root, w.Tree(), w.index, store, nil)
	require.NoError(t, err)
	require.Equal(t, 1, store3.keys(t))
	store.Age()
	store.Later()
	require.NoError(t, w.Commit(t.Context(), delta, result("c1")))
	require.Equal(t, 2, store3.keys(t))
	n := mustSweep(t, store, -time.Hour)
	require.Equal(t, 1, n, "the one that was copied")
	require.Equal(t, w.content("f"), take(t, store, 2).content("f"))
	require.ErrorIs(t, store.Keep(t.Context(), []string{"none"}), workspace.ErrMissing)
}

// TestS3_OnePrefixIsOfOneFleet: another fleet uses none of it, and removes nothing.
func TestS3_OnePrefixIsOfOneFleet(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	url, store3 := s3(t)
	mine, other := natsiotest.New(t, natsio.Topology{}), natsiotest.New(t, natsio.Topology{})
	require.NoError(t, workspace.Bind(t.Context(), mine.NC, mine.Name, url))
	require.ErrorIs(t, workspace.Bind(t.Context(), other.NC, other.Name, url), workspace.ErrForeign)
	require.ErrorContains(t, workspace.Bind(t.Context(), mine.NC, mine.Name, strings.Replace(url, "some", "any", 1)), "already")
	store := mustOpen(t, mine, url)
	require.NoError(t, store.Put(t.Context(), "NAME", []byte("body")))
	store3.put(t, "some/prefix/toolfleet-fleet.json", `{"fleet":"tf","id":"another","url":"x"}`)
	_, err := store.Sweep(t.Context(), -time.Hour)
	require.ErrorIs(t, err, workspace.ErrForeign)
	require.Equal(t, 1, store3.keys(t))

	store = mustOpen(t, other, "")
	require.NoError(t, store.Put(t.Context(), "NAME", []byte("body")), "in its own servers")
	require.ErrorContains(t, workspace.Bind(t.Context(), other.NC, other.Name, strings.Replace(url, "some", "any", 1)), "1 bodies")
}

// TestS3_AwayCommitsNothing: a store that cannot be reached is waited for, for as long as a body
// may take, and goes on when it is back.
func TestS3_AwayCommitsNothing(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	url, store3 := s3(t)
	f := natsiotest.New(t, natsio.Topology{})
	require.NoError(t, workspace.Bind(t.Context(), f.NC, f.Name, url))
	store := mustOpen(t, f, url)
	w := take(t, store, 1)
	large := random(1 << 20)
	require.NoError(t, w.root.WriteFile("large", large, 0o600))
	store3.stop()
	store.Waits(500 * time.Millisecond)
	_, err := snapshot.Save(t.Context(), w.root, w.Tree(), w.index, store, nil)
	require.ErrorIs(t, err, workspace.ErrAway)
	require.Empty(t, w.Tree())

	store.Waits(time.Minute)
	saved := make(chan error, 1)
	go func() {
		delta, err := snapshot.Save(t.Context(), w.root, w.Tree(), w.index, store, nil)
		if err == nil {
			err = w.Commit(t.Context(), delta, result("c1"))
		}
		saved <- err
	}()
	store3.start()
	require.NoError(t, <-saved)
	require.Equal(t, string(large), take(t, store, 2).content("large"))

	store3.stop()
	store.Waits(500 * time.Millisecond)
	_, err = snapshot.LoadBytes(t.Context(), store, w.Tree()["large"].Parts, 2<<20)
	require.ErrorIs(t, err, workspace.ErrAway)
}

// TestS3_RefusesForGood: what will not be otherwise is not waited for.
func TestS3_RefusesForGood(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	for code, status := range map[string]int{
		"AccessDenied": http.StatusForbidden, "NoSuchBucket": http.StatusNotFound, "XMinioStorageFull": http.StatusInsufficientStorage,
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			fmt.Fprintf(w, "<Error><Code>%s</Code></Error>", code)
		}))
		f := natsiotest.New(t, natsio.Topology{})
		url := "s3://bucket?region=us-east-1&endpoint=" + server.URL
		bound, err := json.Marshal(map[string]string{"fleet": string(f.Name), "id": "1", "url": url})
		require.NoError(t, err)
		places, err := f.JS.KeyValue(t.Context(), wire.PlacesBucket(f.Name))
		require.NoError(t, err)
		_, err = places.Put(t.Context(), "bodies", bound)
		require.NoError(t, err)
		store := mustOpen(t, f, url)
		err = store.Put(t.Context(), "NAME", []byte("body"))
		require.Error(t, err)
		require.NotErrorIs(t, err, workspace.ErrAway)
		require.Equal(t, status == http.StatusInsufficientStorage, errors.Is(err, workspace.ErrFull))
		server.Close()
	}
}

// TestBind_SaysWhatIsWrong with a URL, before anything is asked.
func TestBind_SaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	for url, want := range map[string]string{
		"https://x/y":                       "must be s3://BUCKET/PREFIX",
		"s3:///prefix":                      "must be s3://BUCKET/PREFIX",
		"s3://key:secret@bucket":            "AWS_SECRET_ACCESS_KEY",
		"s3://bucket/a/../b":                "must be s3://BUCKET/PREFIX",
		"s3://bucket/a?size=3":              `unknown parameter "size"`,
		"s3://bucket/a?endpoint=host:1":     "must be http://HOST:PORT",
		"s3://bucket/a?endpoint=http://h/x": "must be http://HOST:PORT",
	} {
		require.ErrorContains(t, workspace.Bind(t.Context(), f.NC, f.Name, url), want, url)
	}
	require.NoError(t, workspace.Bind(t.Context(), f.NC, f.Name, ""))
	require.NoError(t, workspace.Bind(t.Context(), f.NC, f.Name, ""))
	require.ErrorContains(t, workspace.Bind(t.Context(), f.NC, f.Name, "s3://bucket"), "in nats: already", "workers write there")
}

// s3Store is a bucket of an S3 server, until the test ends: of one in this process, or of the
// program that TOOLFLEET_S3_SERVER names, which is a versitygw.
type s3Store struct {
	client      *minio.Client
	start, stop func()
}

// s3 starts a server, and returns the URL of a prefix of its bucket. The test has the credentials.
func s3(t *testing.T) (string, *s3Store) {
	t.Helper()
	endpoint, start, stop := s3Server(t)
	u, err := url.Parse(endpoint)
	require.NoError(t, err)
	client, err := minio.New(u.Host, &minio.Options{Creds: credentials.NewStaticV4("key", "secret", ""), Region: "us-east-1"})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		return client.MakeBucket(t.Context(), "bucket", minio.MakeBucketOptions{}) == nil
	}, time.Minute, 10*time.Millisecond, "the server does not answer")
	return "s3://bucket/some/prefix?endpoint=" + endpoint + "&region=us-east-1", &s3Store{client, start, stop}
}

// s3Server starts a server that can be stopped, and started again with what it had.
func s3Server(t *testing.T) (endpoint string, start, stop func()) {
	t.Helper()
	listener := listenAt(t, "127.0.0.1:0")
	address := listener.Addr().String()
	if program := os.Getenv("TOOLFLEET_S3_SERVER"); program != "" {
		require.NoError(t, listener.Close())
		start, stop = s3Program(t, program, address)
		start()
	} else {
		handler := gofakes3.New(s3mem.New()).Server()
		serve := func(listener net.Listener) *httptest.Server {
			server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}}
			server.Start()
			return server
		}
		server := serve(listener)
		stop = func() { server.Close() }
		start = func() { server = serve(listenAt(t, address)) }
	}
	t.Cleanup(func() { stop() })
	return "http://" + address, start, stop
}

func listenAt(t *testing.T, address string) net.Listener {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
	require.NoError(t, err)
	return listener
}

func s3Program(t *testing.T, program, address string) (start, stop func()) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "s3")
	require.NoError(t, os.Mkdir(dir, 0o700))
	var output bytes.Buffer
	start = func() {
		ctx, cancel := context.WithCancel(context.Background())
		server := exec.CommandContext(ctx, program, "--port", address, "--region", "us-east-1", "posix", dir)
		server.Env = append(os.Environ(), "ROOT_ACCESS_KEY=key", "ROOT_SECRET_KEY=secret")
		server.Stdout, server.Stderr = &output, &output
		require.NoError(t, server.Start())
		stop = func() {
			cancel()
			_ = server.Wait() // it was killed
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(output.String())
		}
	})
	return start, func() { stop() }
}

// put stores an object of the bucket.
func (s *s3Store) put(t *testing.T, key, content string) {
	t.Helper()
	_, err := s.client.PutObject(t.Context(), "bucket", key, strings.NewReader(content), int64(len(content)), minio.PutObjectOptions{})
	require.NoError(t, err)
}

// keys are how many bodies the prefix has.
func (s *s3Store) keys(t *testing.T) (n int) {
	t.Helper()
	for info := range s.client.ListObjectsIter(t.Context(), "bucket", minio.ListObjectsOptions{Prefix: "some/prefix/bodies/", Recursive: true}) {
		require.NoError(t, info.Err)
		n++
	}
	return n
}
