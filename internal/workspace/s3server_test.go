package workspace_test

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/stretchr/testify/require"
)

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
