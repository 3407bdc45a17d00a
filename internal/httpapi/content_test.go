package httpapi_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	internal "github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/httpapi"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

// head is the head of an answer.
type head struct {
	StatusCode int
	Header     http.Header
}

// full sends a request, and returns the answer with its headers.
func (s server) full(t *testing.T, method, path string, body io.Reader, headers ...string) (head, []byte) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, body)
	require.NoError(t, err)
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	answer, err := s.Client().Do(r)
	require.NoError(t, err)
	defer answer.Body.Close()
	read, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	t.Logf("%s %s: %d %.300q", method, path, answer.StatusCode, read)
	return head{answer.StatusCode, answer.Header}, read
}

// changed sends a change of files, and waits for its call.
func (s server) changed(t *testing.T, method, path string, body []byte, headers ...string) *httpapi.CallState {
	t.Helper()
	sep := "?"
	if strings.Contains(path, "?") {
		sep = "&"
	}
	answer, read := s.full(t, method, path+sep+"wait_ms=60000", bytes.NewReader(body), headers...)
	require.Equal(t, http.StatusAccepted, answer.StatusCode, "%s", read)
	var state httpapi.CallState
	require.NoError(t, json.Unmarshal(read, &state))
	require.Equal(t, "ended", state.State)
	return &state
}

// A file is written and removed as a call: ordered, checkpointed, once for an idempotency key.
func TestFiles_AreWrittenAndRemovedAsCalls(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	const path = "/v1/sessions/s/file?path=d/f"
	content := []byte("\xff\xfebinary\x00\n")
	first := s.changed(t, "PUT", path+"&mode=0755", content, "Idempotency-Key", "one", "If-None-Match", "*")
	require.EqualValues(t, "ok", first.Result.Status)
	require.EqualValues(t, "one", first.CallID)
	answer, read := s.full(t, "GET", path, nil)
	require.Equal(t, content, read)
	sum := sha256.Sum256(content)
	etag := `"` + hex.EncodeToString(sum[:]) + `"`
	require.Equal(t, etag, answer.Header.Get("ETag"))
	var files httpapi.FileList
	require.Equal(t, 200, s.ask(t, "GET", "/v1/sessions/s/files", "", &files))
	require.Equal(t, "0755", files.Files[1].Mode)

	again := s.changed(t, "PUT", path+"&mode=0755", content, "Idempotency-Key", "one", "If-None-Match", "*")
	require.EqualValues(t, "ok", again.Result.Status, "the first result")
	require.EqualValues(t, "file_changed", s.changed(t, "PUT", path, []byte("x"), "If-None-Match", "*").Result.Error.Code)
	require.EqualValues(t, "file_changed", s.changed(t, "PUT", path, []byte("x"), "If-Match", `"`+strings.Repeat("0", 64)+`"`).Result.Error.Code)
	require.EqualValues(t, "ok", s.changed(t, "PUT", path, []byte("second"), "If-Match", etag).Result.Status)
	require.Equal(t, 200, s.ask(t, "GET", "/v1/sessions/s/files", "", &files))
	require.Equal(t, "0755", files.Files[1].Mode, "it keeps its mode")

	answer, _ = s.full(t, "GET", path, nil)
	etag = answer.Header.Get("ETag")
	answer, _ = s.full(t, "GET", path, nil, "If-None-Match", etag)
	require.Equal(t, http.StatusNotModified, answer.StatusCode)
	answer, read = s.full(t, "GET", path, nil, "Range", "bytes=1-3")
	require.Equal(t, http.StatusPartialContent, answer.StatusCode)
	require.Equal(t, "eco", string(read))
	answer, _ = s.full(t, "GET", path, nil, "Range", "bytes=99-")
	require.Equal(t, http.StatusRequestedRangeNotSatisfiable, answer.StatusCode)
	require.Equal(t, "application/problem+json", answer.Header.Get("Content-Type"))
	_, read = s.full(t, "GET", path+"&at=one", nil)
	require.Equal(t, content, read, "the file at an earlier call")

	require.EqualValues(t, "file_changed", s.changed(t, "DELETE", path, nil, "If-Match", `"`+strings.Repeat("0", 64)+`"`).Result.Error.Code)
	require.EqualValues(t, "ok", s.changed(t, "DELETE", path, nil, "If-Match", etag).Result.Status)
	answer, _ = s.full(t, "GET", path, nil)
	require.Equal(t, http.StatusNotFound, answer.StatusCode)
	require.EqualValues(t, "not_found", s.changed(t, "DELETE", path, nil).Result.Error.Code)
	require.EqualValues(t, "is_directory", s.changed(t, "DELETE", "/v1/sessions/s/file?path=d", nil).Result.Error.Code)
	for _, wrong := range []string{"/v1/sessions/s/file?path=../f", "/v1/sessions/s/file?path=a&mode=4755"} {
		answer, _ = s.full(t, "PUT", wrong, strings.NewReader("x"))
		require.Equal(t, http.StatusUnprocessableEntity, answer.StatusCode, wrong)
	}
	answer, _ = s.full(t, "PUT", path, bytes.NewReader(make([]byte, 16<<20+1)))
	require.Equal(t, http.StatusRequestEntityTooLarge, answer.StatusCode)
	large := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
	require.EqualValues(t, "ok", s.changed(t, "PUT", path, large).Result.Status, "a body that is no message any more")
	answer, read = s.full(t, "GET", path, nil, "Range", "bytes=16777200-")
	require.Equal(t, "0123456789abcdef", string(read))
	sum = sha256.Sum256(large)
	require.Equal(t, `"`+hex.EncodeToString(sum[:])+`"`, answer.Header.Get("ETag"))
}

// Rules about tools that write hold for files over HTTP.
func TestFiles_ArePolicyOfTools(t *testing.T) {
	t.Parallel()
	for name, rules := range map[string]policy.Policy{
		"tool":  {Tools: policy.Names{Deny: []string{"write"}}},
		"class": {Tools: policy.Names{Deny: []string{"@write"}}},
		"path":  {Paths: policy.Paths{Write: []string{"src"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			judge, err := policy.New(rules)
			require.NoError(t, err)
			s := start(t, func(o *httpapi.Options) { o.Policy = judge })
			for _, request := range []string{"PUT /v1/sessions/s/file?path=f", "DELETE /v1/sessions/s/file?path=f", "PUT /v1/sessions/s/archive"} {
				method, path, _ := strings.Cut(request, " ")
				answer, read := s.full(t, method, path, bytes.NewReader(archived(t, "f", "x")))
				require.Equal(t, http.StatusForbidden, answer.StatusCode, request)
				require.Contains(t, string(read), "policy_denied")
			}
			if name == "path" {
				require.EqualValues(t, "ok", s.changed(t, "PUT", "/v1/sessions/s/archive?path=src", archived(t, "f", "x")).Result.Status)
			}
		})
	}
}

// archived is a tar archive with a file.
func archived(t *testing.T, name, content string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	require.NoError(t, w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content)), Typeflag: tar.TypeReg}))
	_, err := io.WriteString(w, content)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return out.Bytes()
}

// An archive goes in as one call, and out at any call, in each format.
func TestArchives_GoInAndOut(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	plain := archived(t, "a/f", "one")
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, err := z.Write(archived(t, "a/f", "two"))
	require.NoError(t, err)
	require.NoError(t, z.Close())
	encoder, err := zstd.NewWriter(nil)
	require.NoError(t, err)
	require.EqualValues(t, "ok", s.changed(t, "PUT", "/v1/sessions/s/archive", plain, "Idempotency-Key", "one").Result.Status)
	require.EqualValues(t, "ok", s.changed(t, "PUT", "/v1/sessions/s/archive", zipped.Bytes()).Result.Status)
	require.EqualValues(t, "ok", s.changed(t, "PUT", "/v1/sessions/s/archive?path=sub/dir", encoder.EncodeAll(plain, nil)).Result.Status)
	_, read := s.full(t, "GET", "/v1/sessions/s/archive?format=tar", nil)
	require.Equal(t, map[string]string{"a/": "", "a/f": "two", "sub/": "", "sub/dir/": "", "sub/dir/a/": "", "sub/dir/a/f": "one"}, unpacked(t, bytes.NewReader(read)))
	_, read = s.full(t, "GET", "/v1/sessions/s/archive?at=one", nil)
	unzipped, err := gzip.NewReader(bytes.NewReader(read))
	require.NoError(t, err)
	require.Equal(t, map[string]string{"a/": "", "a/f": "one"}, unpacked(t, unzipped))
	_, read = s.full(t, "GET", "/v1/sessions/s/archive?format=tar.zst&at=one", nil)
	decoder, err := zstd.NewReader(bytes.NewReader(read))
	require.NoError(t, err)
	defer decoder.Close()
	require.Equal(t, map[string]string{"a/": "", "a/f": "one"}, unpacked(t, decoder))

	for body, code := range map[string]string{
		string(archived(t, "../out", "x")): "unsafe_entry", string(plain[:600]): "invalid_archive", "no archive": "invalid_archive",
		string(zipped.Bytes()[:zipped.Len()-4]): "invalid_archive", string(damage(zipped.Bytes())): "invalid_archive",
	} {
		answer, read := s.full(t, "PUT", "/v1/sessions/s/archive", strings.NewReader(body))
		require.Equal(t, http.StatusUnprocessableEntity, answer.StatusCode)
		require.Contains(t, string(read), code)
	}
	require.EqualValues(t, "unsafe_entry", s.changed(t, "PUT", "/v1/sessions/s/archive", archived(t, "a", "a file now")).Result.Error.Code)
	again := s.changed(t, "PUT", "/v1/sessions/s/archive", plain, "Idempotency-Key", "one")
	require.EqualValues(t, "ok", again.Result.Status, "the first result")
	require.EqualValues(t, "ok", s.changed(t, "PUT", "/v1/sessions/s/archive?path=/workspace/sub", plain).Result.Status)
	for _, outside := range []string{"/", "/etc", "/workspaces", "..", "a/../.."} {
		answer, read := s.full(t, "PUT", "/v1/sessions/s/archive?path="+outside, bytes.NewReader(plain))
		require.Equal(t, http.StatusUnprocessableEntity, answer.StatusCode, outside)
		require.Contains(t, string(read), "outside the workspace")
	}
	require.Equal(t, 404, s.ask(t, "GET", "/v1/sessions/none/archive", "", nil))
}

// damage changes the checksum of a compressed archive.
func damage(archive []byte) []byte {
	broken := bytes.Clone(archive)
	broken[len(broken)-8] ^= 1
	return broken
}

// unpacked has the entries of a tar archive with their contents.
func unpacked(t *testing.T, from io.Reader) map[string]string {
	t.Helper()
	all := map[string]string{}
	for r := tar.NewReader(from); ; {
		h, err := r.Next()
		if err == io.EOF { //nolint:errorlint // as package tar returns it
			return all
		}
		require.NoError(t, err)
		content, err := io.ReadAll(r)
		require.NoError(t, err)
		all[h.Name] = string(content)
	}
}

// What differs is read into memory, so it is bounded; that of a single call is there.
func TestDiff_IsBounded(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	var call httpapi.CallState
	const many = `{"tool": "bash", "arguments": {"command": "for i in $(seq 66); do head -c 1040000 /dev/zero | tr '\\0' x >$i; done"}, "session_id": "s"}`
	require.Equal(t, 202, s.ask(t, "POST", "/v1/calls?wait_ms=60000", many, &call))
	require.EqualValues(t, "ok", call.Result.Status)
	require.EqualValues(t, "ok", s.changed(t, "PUT", "/v1/sessions/s/file?path=f", []byte("text\n"), "Idempotency-Key", "small").Result.Status)
	status, read := s.send(t, "GET", "/v1/sessions/s/diff", "")
	require.Equal(t, http.StatusUnprocessableEntity, status)
	require.Contains(t, string(read), "too_large")
	status, read = s.send(t, "GET", "/v1/sessions/s/diff?call=small", "")
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, string(read), "+text")
	require.NotContains(t, string(read), "+++ b/66", "of one call")
}

// Without a call the difference is that of all calls, which a fork has from its beginning.
func TestDiff_OfAllCalls(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	for _, name := range []string{"a", "b"} {
		require.EqualValues(t, "ok", s.changed(t, "PUT", "/v1/sessions/s/file?path="+name, []byte(name+"\n")).Result.Status)
	}
	diff := func(session string) string {
		t.Helper()
		status, read := s.send(t, "GET", "/v1/sessions/"+session+"/diff", "")
		require.Equal(t, http.StatusOK, status)
		var d httpapi.Diff
		require.NoError(t, json.Unmarshal(read, &d))
		return d.Diff
	}
	require.Equal(t, "new file a\n--- a/a\n+++ b/a\n@@ -0,0 +1 @@\n+a\nnew file b\n--- a/b\n+++ b/b\n@@ -0,0 +1 @@\n+b\n", diff("s"))
	require.Equal(t, 201, s.ask(t, "POST", "/v1/sessions/s/fork", `{"session_id": "fork"}`, nil))
	require.Empty(t, diff("fork"))
	require.EqualValues(t, "ok", s.changed(t, "DELETE", "/v1/sessions/fork/file?path=a", nil).Result.Status)
	require.Equal(t, "removed file a\n--- a/a\n+++ b/a\n@@ -1 +0,0 @@\n-a\n", diff("fork"))
	require.Equal(t, 404, s.ask(t, "GET", "/v1/sessions/none/diff", "", nil))
}

// An archive that cannot be sent to its end is an error for the client, in each format.
func TestArchives_CutShortAreErrors(t *testing.T) {
	t.Parallel()
	var inner *internal.Fleet
	options := fleet.Options{Data: t.TempDir()}
	options.Opened = func(f *internal.Fleet) { inner = f }
	client, err := fleet.Connect(t.Context(), options)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	_, err = client.StartWorker(t.Context(), worker.Options{Driver: "process"})
	require.NoError(t, err)
	s := server{httptest.NewServer(httpapi.New(httpapi.Options{Client: client, Version: "test"})), client}
	t.Cleanup(s.Close)
	large := make([]byte, 9<<20) // of several bodies
	source := rand.NewChaCha8([32]byte{})
	_, _ = source.Read(large)
	require.EqualValues(t, "ok", s.changed(t, "PUT", "/v1/sessions/s/file?path=large", large).Result.Status)
	bodies, err := inner.JS.ObjectStore(t.Context(), wire.BodiesBucket(inner.Name))
	require.NoError(t, err)
	stored, err := bodies.List(t.Context())
	require.NoError(t, err)
	require.Greater(t, len(stored), 2)
	_, whole := s.full(t, "GET", "/v1/sessions/s/archive?format=tar", nil)
	require.Greater(t, len(whole), len(large))
	require.NoError(t, bodies.Delete(t.Context(), stored[len(stored)-1].Name))
	for _, format := range []string{"tar", "tar.gz", "tar.zst"} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/v1/sessions/s/archive?format="+format, nil)
		require.NoError(t, err)
		answer, err := s.Client().Do(r)
		if err != nil {
			continue // before anything was sent
		}
		_, err = io.ReadAll(answer.Body)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF, format)
		require.NoError(t, answer.Body.Close())
	}
}
