//go:build unix

package main

import (
	"context"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/test/processtest"
)

// TestUI_AnswersWhatAnotherProcessAsks: the page of one process shows what a run in another one
// asks, and approves it there.
func TestUI_AnswersWhatAnotherProcessAsks(t *testing.T) {
	t.Parallel()
	executable, err := os.Executable()
	require.NoError(t, err)
	program, state := filepath.Join(t.TempDir(), "coordinator"), t.TempDir()
	require.NoError(t, os.Symlink(executable, program))
	t.Cleanup(func() { processtest.EndServer(state) })
	opened, browser := filepath.Join(t.TempDir(), "opened"), filepath.Join(t.TempDir(), "browser")
	processtest.WriteProgram(t, browser, []byte("#!/bin/sh\necho \"$2\" >"+opened+".new && mv "+opened+".new "+opened+"\n"))
	ui := func(args ...string) (*exec.Cmd, *processtest.Output) {
		cmd := exec.CommandContext(t.Context(), program, append([]string{"ui", "--sandbox", "process"}, args...)...)
		cmd.Env = append(os.Environ(), "XDG_STATE_HOME="+state, "BROWSER=/nonexistent/browser:"+browser+" --new")
		text := &processtest.Output{}
		cmd.Stderr = text
		require.NoError(t, cmd.Start())
		return cmd, text
	}
	cmd, _ := ui()
	require.Eventually(t, func() bool { _, err := os.Stat(opened); return err == nil }, 3*time.Minute, 50*time.Millisecond)
	link, err := os.ReadFile(opened)
	require.NoError(t, err)
	model := script(t, `{"tool_calls": [{"name": "bash", "arguments": {"command": "echo it ran"}}]}, {"tool_calls": [{"name": "bash", "arguments": {"command": "echo twice"}}]}, {"text": "Done."}`)
	m := inTmux(t, 100, []string{"XDG_STATE_HOME=" + state}, "run", "--model", model, "--sandbox", "process", "--ask-for", "bash", "--session", "s", "go")
	m.shows(question)
	page := openPages(t, strings.TrimSpace(string(link)))
	page.approve("echo it ran")
	m.shows("it ran", "echo twice")

	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	cmd, text := ui("--no-open")
	found := text.Wait(`open (http\S+)`, t.Context().Done(), 3*time.Minute)
	require.NotNil(t, found, text)
	second, other := ui("--no-open")
	require.NoError(t, second.Wait(), other)
	link2 := other.Wait(`open (http\S+)`, nil, 0)
	require.NotNil(t, link2, "a second one has an address of the first one: %s", other)
	require.Contains(t, openPages(t, link2[1]).body, "Signed in")
	again := openPages(t, found[1])
	again.approve("echo twice")
	m.shows("twice", "Done.", "[ended: 0]")
	require.Contains(t, again.get(again.base+"/ui/sessions/s"), "Done.")
	require.Contains(t, openPages(t, found[1]).body, "was used before")
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, cmd.Wait(), text)
}

// TestOpener_EndsWithItsCommand: a program that passes an address on to a browser and does not end
// does not keep its command, and ends with it. A browser goes on.
func TestOpener_EndsWithItsCommand(t *testing.T) {
	t.Parallel()
	for name, input := range map[string]string{"it reads the address": "open location", "it is the browser": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			program, started := filepath.Join(dir, "opener"), filepath.Join(dir, "pid")
			processtest.WriteProgram(t, program, []byte("#!/bin/sh\necho $$ >"+started+".new && mv "+started+".new "+started+"\nexec sleep 600\n"))
			ctx, cancel := context.WithCancel(t.Context())
			opened := make(chan error, 1)
			go func() { opened <- (&opener{words: []string{program}, input: input}).open(ctx) }()
			var pid int
			require.Eventually(t, func() bool {
				text, err := os.ReadFile(started)
				if err == nil {
					pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
				}
				return err == nil
			}, 3*time.Minute, 10*time.Millisecond)
			t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) }) // if it goes on
			cancel()
			select {
			case err := <-opened:
				require.Equal(t, input == "", err == nil, "%v", err)
			case <-time.After(3 * time.Minute):
				require.Fail(t, "it is waited for")
			}
			require.Equal(t, input == "", syscall.Kill(pid, 0) == nil, "whether it goes on")
		})
	}
}

// pages is a browser without scripts.
type pages struct {
	t      *testing.T
	client *http.Client
	base   string
	body   string
}

// openPages opens an address with a new browser.
func openPages(t *testing.T, link string) *pages {
	t.Helper()
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	at, err := url.Parse(link)
	require.NoError(t, err)
	p := &pages{t: t, client: &http.Client{Jar: jar}, base: "http://" + at.Host}
	t.Cleanup(p.client.CloseIdleConnections)
	p.body = p.get(link)
	return p
}

// get reads a page.
func (p *pages) get(link string) string {
	p.t.Helper()
	request, err := http.NewRequestWithContext(p.t.Context(), http.MethodGet, link, http.NoBody)
	require.NoError(p.t, err)
	return p.do(request)
}

func (p *pages) do(request *http.Request) string {
	p.t.Helper()
	answer, err := p.client.Do(request)
	require.NoError(p.t, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	require.NoError(p.t, err)
	return string(body)
}

// approve approves the call that waits, once the page shows it.
func (p *pages) approve(command string) {
	p.t.Helper()
	var body string
	require.Eventually(p.t, func() bool {
		body = p.get(p.base + "/ui/waits")
		return strings.Contains(body, command)
	}, 3*time.Minute, 50*time.Millisecond)
	form := url.Values{}
	for _, name := range []string{"key", "call"} {
		value := regexp.MustCompile(`name="` + name + `" value="([^"]*)"`).FindStringSubmatch(body)
		require.NotNil(p.t, value, body)
		form.Set(name, value[1])
	}
	request, err := http.NewRequestWithContext(p.t.Context(), http.MethodPost, p.base+"/ui/sessions/s/approve", strings.NewReader(form.Encode()))
	require.NoError(p.t, err)
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	p.do(request)
}
