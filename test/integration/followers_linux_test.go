package integration

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/system/pause"
)

// TestHTTP_FollowersOfAKilledServer: clients follow one session, and one more takes nothing of what
// it asked for. The process of the server, with the fleet in it, is killed while a turn is sent,
// and starts again: each client has every stored event once, in order, and the server needs no more
// memory than it should. FOLLOWERS is how many there are (make http-followers: 1,000).
func TestHTTP_FollowersOfAKilledServer(t *testing.T) {
	t.Parallel()
	n, err := strconv.Atoi(cmp.Or(os.Getenv("FOLLOWERS"), "30"))
	require.NoError(t, err)
	const before, behind = 5, 20
	var steps []step
	for range before + behind {
		steps = append(steps, say(strings.Repeat("x", 20_000)))
	}
	ports, data := natsiotest.FreePorts(t, 2), filepath.Join(t.TempDir(), "data")
	model, address := script(t, steps...), fmt.Sprintf("127.0.0.1:%d", ports[1])
	serve := func() *process {
		return startServe(t, model, "--listen", fmt.Sprintf("127.0.0.1:%d", ports[0]), "--http", address, "--data", data)
	}
	server := serve()
	var token []byte
	require.Eventually(t, func() bool {
		token, err = os.ReadFile(filepath.Join(data, "http.token"))
		return err == nil && len(token) > 0
	}, patience, 10*time.Millisecond)
	f := &followers{url: "http://" + address, token: strings.TrimSpace(string(token))}
	require.Eventually(t, func() bool { return f.ask(t.Context(), "GET", "/v1/sessions", "") == nil }, patience, 10*time.Millisecond)

	silent, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
	require.NoError(t, err)
	defer func() { _ = silent.Close() }()
	_, err = fmt.Fprintf(silent, "GET /v1/sessions/s/events HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n\r\n", address, f.token)
	require.NoError(t, err)

	got, failed := make([][]string, n), make([]error, n)
	var arrived, all sync.WaitGroup
	arrived.Add(n)
	for i := range n {
		all.Go(func() {
			once := sync.OnceFunc(arrived.Done)
			defer once()
			got[i], failed[i] = f.follow(t.Context(), before+behind, func(ended int) {
				if ended == before {
					once()
				}
			})
		})
	}
	for turn := range before {
		require.NoError(t, f.turn(t.Context(), turn))
	}
	arrived.Wait()
	require.NoError(t, f.send(t.Context(), before))
	server.kill(t)
	server = serve()
	begun := time.Now()
	for turn := before; turn < before+behind; turn++ {
		require.NoError(t, f.turn(t.Context(), turn))
	}
	all.Wait()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", server.cmd.Process.Pid))
	require.NoError(t, err)
	_, most, _ := strings.Cut(string(status), "VmHWM:")
	kib, err := strconv.Atoi(strings.Fields(most)[0])
	require.NoError(t, err)
	t.Logf("%d followers had %d turns %s after the server came back, which needed at most %d MiB", n, behind, time.Since(begun).Round(time.Millisecond), kib>>10)
	if os.Getenv("FOLLOWERS") != "" { // with the race detector it is more
		require.Less(t, kib>>10, 300+n/2)
	}
	want, err := f.follow(t.Context(), before+behind, func(int) {})
	require.NoError(t, err)
	for i := range n {
		require.NoError(t, failed[i])
		require.Equal(t, want, got[i])
	}
}

// followers are clients of one server.
type followers struct{ url, token string }

func (f *followers) do(ctx context.Context, method, path, body string, header http.Header) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, f.url+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header = header
	r.Header.Set("Authorization", "Bearer "+f.token)
	answer, err := http.DefaultClient.Do(r)
	if err == nil && answer.StatusCode >= http.StatusMultipleChoices {
		text, _ := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		return nil, fmt.Errorf("%s %s: %d %s", method, path, answer.StatusCode, text)
	}
	return answer, err
}

// ask sends a request, and drops its answer.
func (f *followers) ask(ctx context.Context, method, path, body string, headers ...string) error {
	header := http.Header{"Content-Type": {"application/json"}}
	for i := 0; i+1 < len(headers); i += 2 {
		header.Set(headers[i], headers[i+1])
	}
	answer, err := f.do(ctx, method, path, body, header)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, answer.Body)
	_ = answer.Body.Close()
	return err
}

// send sends a turn, which may have been sent before.
func (f *followers) send(ctx context.Context, turn int) error {
	path, body := "/v1/sessions/s/turns", `{"prompt": "Go on."}`
	if turn == 0 {
		path, body = "/v1/sessions", `{"prompt": "Go on.", "session_id": "s"}`
	}
	return f.ask(ctx, http.MethodPost, path, body, "Idempotency-Key", fmt.Sprintf("turn-%d", turn))
}

// turn sends a turn, and waits for its end.
func (f *followers) turn(ctx context.Context, turn int) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for { // the server may be starting
		err := f.send(ctx, turn)
		if err == nil {
			err = f.ask(ctx, http.MethodGet, fmt.Sprintf("/v1/calls/s/turn-%d?wait_ms=60000", turn), "")
		}
		if err == nil || !pause.For(ctx, 50*time.Millisecond) {
			return err
		}
	}
}

// follow returns the ids of the events of the session until some turns have ended. After a break it
// continues behind the last one.
func (f *followers) follow(ctx context.Context, turns int, ended func(int)) (ids []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	for n, last := 0, ""; n < turns; {
		var answer *http.Response
		if answer, err = f.do(ctx, http.MethodGet, "/v1/sessions/s/events", "", http.Header{"Last-Event-ID": {last}}); err != nil { //nolint:canonicalheader // as the standard has it
			if !pause.For(ctx, 50*time.Millisecond) {
				return ids, err
			}
			continue
		}
		id := ""
		for lines := bufio.NewReaderSize(answer.Body, 64<<10); n < turns; {
			line, err := lines.ReadString('\n')
			if err != nil { // the connection broke
				break
			}
			switch name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": "); name {
			case "id":
				id = value
			case "data":
				if id == "" {
					break // live only
				}
				ids, last, id = append(ids, id), id, ""
				if strings.Contains(value, `"type":"turn_ended"`) {
					n++
					ended(n)
				}
			}
		}
		_ = answer.Body.Close()
	}
	return ids, nil
}
