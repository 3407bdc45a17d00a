//go:build linux

package browser

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type object = map[string]any

// world is a fleet of processes of its own.
type world struct {
	t           *testing.T
	dir         string
	nats, http  string // addresses
	flags       []string
	coordinator *process
	workers     map[string]*process
	token       string // the fleet's operator
}

// process is a program that runs.
type process struct {
	*exec.Cmd

	out *output
}

// output is what a process has written.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// free is an address of this machine that no program listens on.
func free(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// program is the path of a program of this repository, as make build makes it.
func program(t *testing.T, name string) string {
	t.Helper()
	dir := os.Getenv("TOOLFLEET_BIN")
	if dir == "" {
		dir = filepath.Join("..", "..", "bin")
	}
	path, err := filepath.Abs(filepath.Join(dir, name))
	require.NoError(t, err)
	_, err = os.Stat(path)
	require.NoError(t, err, "make build makes it")
	return path
}

// newWorld starts a coordinator in a directory, with some flags.
func newWorld(t *testing.T, dir string, flags ...string) *world {
	t.Helper()
	w := &world{t: t, dir: dir, nats: free(t), http: free(t), flags: flags, workers: map[string]*process{}}
	t.Cleanup(func() {
		for _, p := range w.workers {
			p.kill()
		}
		if w.coordinator != nil {
			w.coordinator.kill()
		}
	})
	require.NoError(t, os.WriteFile(filepath.Join(w.dir, "policy.yaml"), []byte("approval: {commands: [git push], timeout: 1h}\n"), 0o600))
	w.serve()
	return w
}

// serve starts the coordinator, also once more.
func (w *world) serve() {
	w.t.Helper()
	args := append([]string{"serve", "--listen", w.nats, "--http", w.http, "--data", filepath.Join(w.dir, "serve")}, w.flags...)
	w.coordinator = w.start("coordinator", args...)
	w.coordinator.says(w.t, "NATS is at")
	token, err := os.ReadFile(filepath.Join(w.dir, "serve", "http.token"))
	require.NoError(w.t, err)
	w.token = strings.TrimSpace(string(token))
}

// work starts a worker, and waits until it takes calls.
func (w *world) work(name string, flags ...string) {
	w.t.Helper()
	args := append([]string{
		"--nats", "nats://" + w.nats, "--creds", filepath.Join(w.dir, "serve", "nats", "nats.token"), "--data", filepath.Join(w.dir, name), "--name", name,
	}, flags...)
	w.workers[name] = w.start("worker", args...)
	w.workers[name].says(w.t, "takes calls")
}

func (w *world) start(name string, args ...string) *process {
	w.t.Helper()
	p := &process{exec.Command(program(w.t, name), args...), &output{}} //nolint:noctx // it is killed at the end
	home := filepath.Join(w.dir, "home")
	require.NoError(w.t, os.MkdirAll(home, 0o755))
	p.Dir = w.dir
	p.Env = append(os.Environ(), "HOME="+home, "XDG_STATE_HOME="+home, "TOOLFLEET_MIN_LEVEL=none", "GOTOOLCHAIN=local", "GOWORK=off")
	p.Stdout, p.Stderr = p.out, p.out
	p.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	require.NoError(w.t, p.Start())
	return p
}

// says waits until a process has written a text.
func (p *process) says(t *testing.T, text string) {
	t.Helper()
	for began := time.Now(); !strings.Contains(p.out.String(), text); time.Sleep(10 * time.Millisecond) {
		require.Less(t, time.Since(began), 2*time.Minute, "it never said %q:\n%s", text, p.out)
	}
}

// kill ends a process at once.
func (p *process) kill() {
	if p.ProcessState == nil {
		_ = p.Process.Kill() // it may be gone
		_ = p.Wait()
	}
}

// ask sends a request to the HTTP API.
func (w *world) ask(method, path string, body any, to any) {
	w.t.Helper()
	status, text := w.send(w.token, method, path, body)
	require.Less(w.t, status, 300, "%s %s: %s", method, path, text)
	if to != nil {
		require.NoError(w.t, json.Unmarshal(text, to), "%s", text)
	}
}

// send sends a request with a token.
func (w *world) send(token, method, path string, body any) (status int, text []byte) {
	w.t.Helper()
	sent := io.Reader(http.NoBody)
	if body != nil {
		text, err := json.Marshal(body)
		require.NoError(w.t, err)
		sent = bytes.NewReader(text)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, "http://"+w.http+path, sent)
	require.NoError(w.t, err)
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(request)
	require.NoError(w.t, err)
	defer answer.Body.Close()
	text, err = io.ReadAll(answer.Body)
	require.NoError(w.t, err)
	return answer.StatusCode, text
}

// command is a call of bash.
func (w *world) command(session, command string, more object) (id string) {
	w.t.Helper()
	return w.call(session, "bash", object{"command": command}, more)
}

// call sends a call, and does not wait for its end.
func (w *world) call(session, tool string, arguments, more object) (id string) {
	w.t.Helper()
	body := object{"tool": tool, "arguments": arguments, "session_id": session}
	for name, value := range more {
		body[name] = value
	}
	var made struct {
		CallID string `json:"call_id"`
	}
	w.ask(http.MethodPost, "/v1/calls", body, &made)
	return made.CallID
}

// begin begins a session with a turn of a scripted model.
func (w *world) begin(session, model, prompt string, more object) {
	w.t.Helper()
	body := object{"session_id": session, "model": model, "prompt": prompt}
	for name, value := range more {
		body[name] = value
	}
	w.ask(http.MethodPost, "/v1/sessions", body, nil)
}

// state waits until a session has a state.
func (w *world) state(session string, states ...string) {
	w.t.Helper()
	var got struct{ State string }
	for began := time.Now(); time.Since(began) < 3*time.Minute; time.Sleep(50 * time.Millisecond) {
		if status, answer := w.send(w.token, http.MethodGet, "/v1/sessions/"+session, nil); status < 300 {
			require.NoError(w.t, json.Unmarshal(answer, &got))
		}
		for _, s := range states {
			if got.State == s {
				return
			}
		}
	}
	require.FailNow(w.t, "a session has another state", "%s: %s, not %v", session, got.State, states)
}

// step is a reply of a scripted model.
type step struct {
	Text    string `json:"text,omitempty"`
	Calls   []use  `json:"tool_calls,omitempty"`
	DelayMS int    `json:"delay_ms,omitempty"`
	Usage   object `json:"usage,omitempty"`
}

// use is a call of a tool.
type use struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Arguments object `json:"arguments"`
}

// said is a reply with a text, and perhaps calls.
func said(text string, calls ...use) step { return step{Text: text, Calls: calls} }

// shell is a call of bash.
func shell(id, command string) use { return use{id, "bash", object{"command": command}} }

// script writes a script of a model, and returns the model's name.
func script(t *testing.T, name string, steps ...step) string {
	t.Helper()
	body, err := json.Marshal(object{"steps": steps})
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), name+".json")
	require.NoError(t, os.WriteFile(file, body, 0o600))
	return "script:" + file
}

func written(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}
