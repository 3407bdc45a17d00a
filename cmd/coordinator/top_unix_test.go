//go:build unix

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"mvdan.cc/sh/v3/shell"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// reach are the flags that lead to a fleet that listens.
func reach(f *natsiotest.Fleet) []string {
	return []string{"--nats", f.Server.URL(), "--creds", f.Server.CredentialFile()}
}

// enqueued puts calls of bash into lanes; no worker is there.
func enqueued(t *testing.T, f *natsiotest.Fleet, lanes ...string) {
	t.Helper()
	publisher, err := lane.NewPublisher(t.Context(), f.NC, f.Name)
	require.NoError(t, err)
	for i, name := range lanes {
		require.NoError(t, publisher.Enqueue(t.Context(), lane.Outgoing{Call: scriptCall(name, fmt.Sprintf("c%d", i))}))
	}
}

// onScreen waits until texts are on the screen, and no other text, and returns the screen alone.
func (m *tmux) onScreen(texts ...string) string {
	m.t.Helper()
	return m.seen(func(screen string) string {
		for _, text := range texts {
			if not, is := strings.CutPrefix(text, "without "); is && strings.Contains(screen, not) || !is && !strings.Contains(screen, text) {
				return text
			}
		}
		return ""
	})
}

// seen is until for the screen alone: what was drawn before is not looked at.
func (m *tmux) seen(missing func(screen string) string) (screen string) {
	m.t.Helper()
	require.EventuallyWithT(m.t, func(c *assert.CollectT) {
		screen = withoutPadding(m.run("capture-pane", "-p"))
		require.Empty(c, missing(screen), screen)
	}, 3*time.Minute, 100*time.Millisecond)
	return screen
}

// press presses a key after which texts are on the screen.
func (m *tmux) press(key string, texts ...string) string {
	m.t.Helper()
	m.keys(key)
	return m.onScreen(texts...)
}

// Each list is whole at 80x24 and at 60x20, with colours and without, and after the screen has
// changed its size.
func TestTop_IsWholeAtEachSize(t *testing.T) {
	t.Parallel()
	f := natsiotest.Listening(t, natsio.Topology{})
	enqueued(t, f, "account/a", "account/a", "account/b")
	client, err := fleet.Connect(t.Context(), fleet.Options{URL: f.Server.URL(), Creds: f.Server.CredentialFile()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	require.NoError(t, client.Limits().Set(t.Context(), fleet.Limit{Lane: "account/*", Concurrent: 3}))
	for name, test := range map[string]struct {
		columns, rows int
		env           []string
	}{
		"80x24":            {80, 24, nil},
		"60x20":            {60, 20, nil},
		"60x20, no colour": {60, 20, []string{"NO_COLOR=1"}},
		"200x50":           {200, 50, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := inTmux(t, test.columns, test.env, append([]string{"top"}, reach(f)...)...)
			fits := func(screen string) {
				t.Helper()
				lines := strings.Split(strings.TrimSuffix(screen, "\n"), "\n")
				for _, line := range lines {
					require.LessOrEqual(t, len([]rune(line)), test.columns, line)
				}
				require.Contains(t, lines[0], "tf · ")
				require.Contains(t, lines[len(lines)-1], "? keys", "the last line has the keys")
			}
			m.run("resize-window", "-x", fmt.Sprint(test.columns), "-y", fmt.Sprint(test.rows))
			fits(m.onScreen("[1 Stall", "call of bash", "pool default has no worker that answers"))
			require.Equal(t, test.env == nil, regexp.MustCompile(`\x1b\[[0-9;]*3[1-6]m`).MatchString(m.run("capture-pane", "-p", "-e")), "colours")
			fits(m.press("2", "[2 Work", "no worker answers: one starts"))
			screen := m.press("3", "[3 Lane", "> account/a", "  account/b", "ready")
			fits(screen)
			require.Contains(t, screen, "LANE")
			require.Less(t, strings.Index(screen, "account/a"), strings.Index(screen, "account/b"), "the longest wait first")
			fits(m.press("4", "[4 Sess", "there are no sessions"))
			fits(m.press("5", "[5 Wait", "pool default has no worker that answers"))
			fits(m.press("6", "[6 Lim", "lanes account/*", "free"))
			fits(m.press("Tab", "[7 Fail", "no call has failed"))
			fits(m.press("Tab", "[1 Stall"))
			require.Contains(t, m.press("?", "any key: back", "filter the list"), "kill the running calls")
			m.press("x", "without any key: back")
			m.press("3", "> account/a")
			m.press("j", "> account/b")
			m.press("/", "/_")
			m.press("b", "/b_", "without account/a")
			m.press("Enter", "filter: b", "> account/b")
			m.press("Escape", "without filter: b", "  account/a")
			m.press("s", "LANE*")
			m.press("S", "LANE*-")
			m.run("resize-window", "-x", "70", "-y", "22")
			m.onScreen("> account/b", "? keys")
			m.keys("q")
			m.shows("[ended: 0]")
		})
	}
}

// Where nothing can be drawn, top says what to do instead.
func TestTop_SaysWhereItCannotDraw(t *testing.T) {
	t.Parallel()
	f := natsiotest.Listening(t, natsio.Topology{})
	m := inTmux(t, 80, []string{"TERM=dumb"}, append([]string{"top"}, reach(f)...)...)
	m.shows(`top: the terminal cannot be drawn on (TERM is "dumb"); --once prints one`, "[ended: 2]")
	m = inTmux(t, 80, []string{"TERM=dumb"}, append([]string{"top", "--once"}, reach(f)...)...)
	m.shows("Stalled", "Limits", "[ended: 0]")
}

// A person looks into a lane, a running call and a session, and pauses, cancels and kills: only
// after a question, and a refusal is shown. A lost worker is what is seen first.
func TestTop_LooksAndActs(t *testing.T) {
	t.Parallel()
	const output = `printf "\\033]0;owned\\007"; i=0; while sleep 0.3; do i=$((i+1)); printf "\\033]0;owned\\007\\033[2J\\033[31m\\342\\200\\256count $i\\033[0m\\n"; done`
	model := script(t, `{"text": "I begin.", "tool_calls": [{"name": "bash", "arguments": {"command": "`+strings.ReplaceAll(output, `"`, `\"`)+`"}}, {"name": "bash", "arguments": {"command": "true"}}]},
		{"tool_calls": [{"name": "read", "arguments": {"path": "no-such-file"}}]}, {"text": "Done."}`)
	line := background(t, regexp.MustCompile(`start workers with: worker (--nats \S+ --creds .+) --call-keys`),
		"coordinator", "serve", "--listen", "127.0.0.1:0", "--data", t.TempDir(), "--model", model, "--min-level", "none", "--drain", "1s")
	reach, err := shell.Fields(line, nil)
	require.NoError(t, err)
	_, worker := begun(t, regexp.MustCompile(`takes calls of (pool)`),
		append([]string{"worker", "--sandbox", "process", "--slots", "2", "--data", t.TempDir(), "--drain", "1s"}, reach...)...)
	for _, session := range []string{"s-1", "s-2"} {
		background(t, regexp.MustCompile(`(follow it with)`),
			append([]string{"coordinator", "submit", "--min-level", "none", "--detach", "--session", session, "Go."}, reach...)...)
	}
	m := inTmux(t, 100, nil, append([]string{"top"}, reach...)...)
	m.press("3", "> sandbox/s-1", "  sandbox/s-2", "bash ", "1 worker", "2/2 slots")

	m.press("Enter", "lane sandbox/s-1, pool default", "1 running, 1 waiting", "an earlier call of the lane, which runs")
	m.press("Enter", "call ", "bash, session s-1", "state: running for ", "input: {", "<U+202E>count ")
	require.NotContains(t, m.run("display-message", "-p", "#{pane_title}"), "owned", "what it writes does nothing to the terminal")
	m.press("Escape", "lane sandbox/s-1, pool default", "1 running")

	m.press("p", "Pause lane sandbox/s-1? No further call starts. y/n")
	m.press("n", "nothing was done")
	m.press("p", "Pause lane sandbox/s-1?")
	m.press("y", "lane sandbox/s-1 is paused", "paused, held by")
	m.press("j", "> ")
	m.press("G", "waiting")
	m.press("c", "Cancel call ")
	m.press("y", " is cancelled", "1 running, 0 waiting")
	m.press("p", "Resume lane sandbox/s-1?")
	m.press("y", "lane sandbox/s-1 is resumed", "held, held by")
	m.press("x", "Kill what runs in lane sandbox/s-1? y/n")
	m.press("y", "killed: ")
	m.press("Escape", "[3 Lane")
	m.press("7", "[7 Fail", "failed", "read", "not_found: ")
	m.press("Enter", "call ", "status: failed, ran ", "│ {\"path\":\"no-such-file\"}", "output:")
	m.press("Escape", "[7 Fail")

	m.press("4", "[4 Sess", "s-1", "s-2")
	m.press("/", "/_")
	m.keys("-l", "s-2")
	m.keys("Enter")
	m.onScreen("> s-2", "without s-1 ")
	m.press("Enter", "session s-2", "› Go.", "● I begin.")
	m.press("c", "Cancel the turn of session s-2? y/n")
	m.press("y", "the turn of session s-2 is cancelled", "interrupted")
	m.press("c", "Cancel the turn of session s-2? y/n")
	m.press("y", "session s-2 has no turn that runs or waits")
	m.press("Escape", "[4 Sess")

	background(t, regexp.MustCompile(`(follow it with)`),
		append([]string{"coordinator", "submit", "--min-level", "none", "--detach", "--session", "s-3", "Go."}, reach...)...)
	m.press("3", "[3 Lane", "sandbox/s-3", "bash ")
	require.NoError(t, worker.Kill())
	m.press("1", "[1 Stall", "1 silent")
	m.onScreen("1 LOST", "it does not answer; calls that ran there: 1")
	require.Regexp(t, `(?m)^> lost .* worker \S+ +it does not answer`, m.press("g", "> lost"), "first of all")
	m.keys("q")
	m.shows("[ended: 0]")
}

// The conversation of a session that waits ends with what it asks, whole and safe, and the command
// that answers.
func TestTop_ShowsWhatASessionAsks(t *testing.T) {
	t.Parallel()
	model := script(t, `{"text": "I begin.", "tool_calls": [{"name": "bash", "arguments": {"command": "echo a\u202e; echo \u001b]0;owned\u0007"}}]}, {"text": "Done."}`)
	rules := filepath.Join(t.TempDir(), "policy.yaml")
	require.NoError(t, os.WriteFile(rules, []byte("approval:\n  tools: [bash]\n"), 0o600))
	line := background(t, regexp.MustCompile(`start workers with: worker (--nats \S+ --creds .+) --call-keys`),
		"coordinator", "serve", "--listen", "127.0.0.1:0", "--data", t.TempDir(), "--model", model, "--min-level", "none", "--policy", rules, "--drain", "1s")
	reach, err := shell.Fields(line, nil)
	require.NoError(t, err)
	background(t, regexp.MustCompile(`(follow it with)`),
		append([]string{"coordinator", "submit", "--min-level", "none", "--detach", "--session", "s-1", "Go."}, reach...)...)
	m := inTmux(t, 100, nil, append([]string{"top"}, reach...)...)
	m.press("4", "> s-1", "waits for approval")
	screen := m.press("Enter", "● I begin.", "need approval: bash", "echo a<U+202E>; echo ␛]0;owned",
		"It waits for approval: coordinator approve", " s-1 ", "--deny refuses it")
	require.NotContains(t, m.run("display-message", "-p", "#{pane_title}"), "owned")
	call := regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}`).FindString(screen)
	require.NotEmpty(t, call, screen)
	executable, err := os.Executable()
	require.NoError(t, err)
	deny := exec.CommandContext(t.Context(), executable)
	deny.Args = append([]string{"coordinator", "approve", "--deny", "s-1", call}, reach...)
	output, err := deny.CombinedOutput()
	require.NoError(t, err, "%s", output)
	m.onScreen("● Done.", "answered")
	m.keys("q")
	m.shows("[ended: 0]")
}

// A refusal is shown, and nothing was changed.
func TestTop_ShowsRefusals(t *testing.T) {
	t.Parallel()
	f := natsiotest.Listening(t, natsio.Topology{})
	enqueued(t, f, "account/a")
	m := inTmux(t, 100, nil, append([]string{"top"}, reach(f)...)...)
	m.press("3", "> account/a")
	m.press("x", "Kill what runs in lane account/a? y/n")
	m.press("y", "! refused or failed: ", "nothing runs")
	m.press("c", "c cancels a call of a lane, or the turn of a session")
	m.press("6", "there are no limits")
	m.press("p", "p pauses a lane")

	url := withUsers(t) // who looks has no right to change, and not to all that there is
	nc, err := natsio.Connect(t.Context(), url("all"), natsio.ConnectOptions{Name: "test"})
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	enqueued(t, &natsiotest.Fleet{Name: protocol.DefaultFleet, NC: nc}, "account/a")
	m = inTmux(t, 100, nil, "top", "--nats", url("looks"))
	m.press("3", "seen: pools (no right to)", "> account/a")
	m.press("p", "Pause lane account/a?")
	m.press("y", "! refused or failed: the NATS user has too few rights: it may not publish on tf.")
}

// What workers, sessions and commands write does nothing to the terminal.
func TestTop_HostileTextsDoNothing(t *testing.T) {
	t.Parallel()
	const hostile = "w\x1b]0;owned\x07\x1b[2J\x1b[31m\u202eevil\u200f\r\nline"
	f := natsiotest.Listening(t, natsio.Topology{})
	_, err := f.NC.Subscribe(wire.WhoSubject(f.Name, protocol.DefaultPool), func(request *nats.Msg) {
		body, err := wire.Encode(&wire.WorkerInfo{
			WorkerID: hostile, Pool: protocol.DefaultPool, Build: hostile, Level: hostile, Driver: "none", Network: "all", Languages: []string{}, Slots: 1,
		})
		if err == nil {
			_ = request.Respond(body)
		}
	})
	require.NoError(t, err)
	m := inTmux(t, 120, []string{"NO_COLOR=1"}, append([]string{"top"}, reach(f)...)...)
	screen := m.press("2", "[2 Work", "serving", "w␛]0;owned␇␛[2J", "<U+202E>evil")
	require.Contains(t, screen, "tf · ", "nothing was cleared")
	require.NotContains(t, m.run("display-message", "-p", "#{pane_title}"), "owned")
	for _, r := range m.run("capture-pane", "-p", "-e") {
		require.False(t, r != '\n' && r != 0x1b && (unicode.IsControl(r) || unicode.In(r, unicode.Bidi_Control)), "%q in %s", r, screen)
	}
	m.press("Enter", "[3 Lane", "filter: w␛")
}

// A bar says since when the servers are away. When they are back, so is what is seen; and the
// fleet of a coordinator that was killed, too.
func TestTop_ContinuesAfterAKill(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	port := fmt.Sprintf("127.0.0.1:%d", natsiotest.FreePorts(t, 1)[0])
	serve := []string{"coordinator", "serve", "--listen", port, "--data", data, "--model", script(t, `{"text": "Done."}`), "--min-level", "none", "--drain", "1s"}
	sign := regexp.MustCompile(`start workers with: worker (--nats \S+ --creds .+) --call-keys`)
	line, coordinator := begun(t, sign, serve...)
	reach, err := shell.Fields(line, nil)
	require.NoError(t, err)
	m := inTmux(t, 80, nil, append([]string{"top"}, reach...)...)
	m.press("2", "[2 Work", "session", "serving")
	require.NoError(t, coordinator.Kill())
	screen := m.onScreen("! no answer since ", "[2 Work", "serving")
	require.NotContains(t, screen, "level=WARN", "a log does not draw over the screen")
	require.Regexp(t, `(?m)^! no answer since \d\d:\d\d:\d\d: trying again`, screen)
	m.press("3", "[3 Lane")
	begun(t, sign, serve...)
	m.onScreen("without no answer since")
	m.press("2", "[2 Work", "serving")
	m.keys("q")
	m.shows("[ended: 0]")
}

// Ten thousand lanes: those that wait longest are listed, it is said how many more there are, and
// keys are answered at once.
func TestTop_TenThousandLanes(t *testing.T) {
	t.Parallel()
	f := natsiotest.Listening(t, natsio.Topology{})
	lanes := make([]string, 10_000)
	for i := range lanes {
		lanes[i] = fmt.Sprintf("account/%05d", i)
	}
	enqueued(t, f, lanes...)
	m := inTmux(t, 80, nil, append([]string{"top"}, reach(f)...)...)
	m.press("3", "10000]", "> account/00000", "9,900 more lanes wait less long")
	m.press("G", "> account/00099")
	m.press("g", "> account/00000")
	m.press("5", "100", "pool default has no worker that answers")
	require.NotContains(t, m.press("3", "> account/00000"), "no answer since")
	out, err := exec.CommandContext(t.Context(), "ps", "-o", "time=,args=", "-C", "coordinator").Output()
	if err == nil {
		t.Logf("processor time: %s", slices.DeleteFunc(strings.Split(string(out), "\n"), func(line string) bool { return !strings.Contains(line, f.Server.URL()) }))
	}
	m.keys("q")
	m.shows("[ended: 0]")
}
