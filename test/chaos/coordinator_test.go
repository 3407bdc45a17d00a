//go:build linux

package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/calls/channel"
	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/session/schedule"
	"github.com/toolfleet/toolfleet/internal/session/serve"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	public "github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/manifest"
)

// coordinatorRole is a coordinator that serves sessions whose model is [acting].
type coordinatorRole struct {
	URL, Creds, Dir string
	ID              protocol.WorkerID
	Slots           int
}

func (c *coordinatorRole) run(ctx context.Context) error {
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	f, err := c.connect(ctx, logger)
	if err != nil {
		return err
	}
	defer f.Close()
	schedules, err := schedule.Open(ctx, f.JS, f.Name)
	if err != nil {
		return err
	}
	channels, err := channel.Open(ctx, f.JS, f.Name)
	if err != nil {
		return err
	}
	folder, err := manifest.Open(filepath.Join(c.Dir, "tools"))
	if err != nil {
		return err
	}
	server, err := serve.New(ctx, f.NC, serve.Options{
		Fleet: f.Name, Holder: serve.Holder{ID: c.ID, Slots: c.Slots}, Dispatcher: f.Dispatcher, Journal: f.Journal, Logger: logger,
		Served: serve.Served{
			Models: map[string]loop.Model{"acting": acting{c.Dir}}, Default: "acting",
			About: func(string) (*loop.Price, *loop.Compaction) { return nil, &loop.Compaction{At: compactAt} },
		},
		Toolbox: serve.Toolbox{Tools: folder, Do: f.Dispatcher.Call, Schedules: schedules},
	})
	if err != nil {
		return err
	}
	var starting sync.WaitGroup
	defer starting.Wait()
	starting.Go(func() {
		(&schedule.Runner{Store: schedules, Channels: channels, Send: f.Dispatcher.Submit, Logger: logger}).Run(ctx)
	})
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	return server.Run(ctx, drain)
}

// connect tries again and again: the servers may be in trouble at this very moment.
func (c *coordinatorRole) connect(ctx context.Context, logger *slog.Logger) (f *fleet.Fleet, err error) {
	o := public.Options{URL: c.URL, Creds: c.Creds, Existing: true, Logger: logger}
	o.Client, o.Opened = string(c.ID), func(opened *fleet.Fleet) { f = opened }
	for {
		_, err = public.Connect(ctx, o)
		if err == nil || !pause.For(ctx, 100*time.Millisecond) {
			return f, err
		}
	}
}

// acting is a model that replies as the part says that the last message of the user names: a
// session does the same on whichever coordinator, and after each crash.
type acting struct {
	dir string // of what commands and tools log
}

const (
	compactAt = 600 // tokens
	thinking  = 300 * time.Millisecond
)

// Reply implements [loop.Model].
func (a acting) Reply(ctx context.Context, req loop.Request, _ func(loop.Delta)) (loop.Reply, error) {
	if !pause.For(ctx, time.Duration(rand.Int64N(int64(thinking)))) {
		return loop.Reply{}, ctx.Err()
	}
	if req.Turn == 0 {
		return loop.Reply{Text: "The gist."}, nil
	}
	for _, m := range slices.Backward(req.Messages) {
		var replies []loop.Reply
		for _, line := range slices.Backward(strings.Split(m.Text, "\n")) { // behind it may be messages of a channel
			if replies = a.play(strings.Fields(line)); replies != nil {
				break
			}
		}
		if m.Role != loop.RoleUser || replies == nil {
			continue
		}
		reply := replies[req.Step-1]
		reply.Usage.InputTokens = int64(100 * len(req.Messages))
		return reply, nil
	}
	return loop.Reply{}, errors.New("no message names a part")
}

// answers is a reply that ends a turn.
func answers(text string) loop.Reply { return loop.Reply{Text: text} }

// asks is a reply that asks for tools.
func asks(calls ...loop.ToolCall) loop.Reply {
	for i := range calls {
		calls[i].ID = fmt.Sprint("c", i)
	}
	return loop.Reply{Text: "Working.", ToolCalls: calls}
}

func tool(name string, arguments map[string]any) loop.ToolCall {
	body, err := json.Marshal(arguments)
	if err != nil {
		panic(err)
	}
	return loop.ToolCall{Name: name, Arguments: string(body)}
}

// once is a command that logs that it was started.
func (a acting) once(session, what, command string) loop.ToolCall {
	return tool("bash", map[string]any{"command": fmt.Sprintf("echo '%s %s' >> '%s/started' && %s", session, what, a.dir, command)})
}

func agent(workspace, prompt string) loop.ToolCall {
	return tool("agent", map[string]any{"prompt": prompt, "workspace": workspace})
}

// play returns the replies of a part; nil is none.
func (a acting) play(words []string) []loop.Reply {
	if len(words) < 2 {
		return nil
	}
	s := words[1]
	switch words[0] {
	case "begin": // with the session that it sends a message to
		return []loop.Reply{
			asks(a.once(s, "begin", "seq 9 > both"), agent("fork", "left "+s), agent("fork", "right "+s), agent("parent", "with "+s), a.once(s, "after", "echo after > after")),
			asks(tool("order", map[string]any{"n": s}), tool("send_message", map[string]any{"channel": "of-" + words[2], "text": "from " + s}),
				tool("add_timer", map[string]any{"seconds": 1, "prompt": "woken " + s}), tool("watch_channel", map[string]any{"channel": "of-" + s, "prompt": "told " + s})),
			answers("begun"),
		}
	case "left":
		return []loop.Reply{asks(a.once(s, "left", "sed -i s/1/one/ both")), asks(a.once(s, "left-again", "echo left > left")), answers("left is done")}
	case "right":
		return []loop.Reply{asks(a.once(s, "right", "sed -i s/9/nine/ both")), answers("right is done")}
	case "with", "woken", "again":
		return []loop.Reply{asks(a.once(s, words[0], "echo "+words[0]+" > "+words[0])), answers("done")}
	case "told":
		return []loop.Reply{asks(tool("read_messages", map[string]any{"channel": "of-" + s}), a.once(s, "told", "echo told > told")), answers("read")}
	case "forked":
		return []loop.Reply{asks(a.once(s, "forked", "sed -i s/5/five/ both; echo fork > fork")), answers("the fork is done")}
	case "work": // with the number of its calls
		return append(slices.Repeat([]loop.Reply{asks(tool("bash", map[string]any{"command": "echo line >> lines"}))}, atoi(words[2])), answers("worked"))
	case "talk": // with the number of its messages
		var replies []loop.Reply
		for i := range atoi(words[2]) {
			replies = append(replies, asks(tool("send_message", map[string]any{"channel": "line", "text": fmt.Sprintf("%s %d", s, i)})))
		}
		return append(replies, asks(tool("add_timer", map[string]any{"seconds": 1, "prompt": "work " + s + " 1"})), answers("said"))
	case "listen":
		return []loop.Reply{
			asks(tool("read_messages", map[string]any{"channel": "line", "limit": 3})),
			asks(tool("watch_channel", map[string]any{"channel": "line", "prompt": "listen " + s})), answers("heard"),
		}
	case "tree": // with the number of its agents, and of the files that each changes
		return a.tree(atoi(s), atoi(words[2]))
	case "leaf": // an agent of it
		return a.leaf(atoi(s), atoi(words[2]))
	}
	return nil
}

func atoi(word string) int {
	n, err := strconv.Atoi(word)
	if err != nil {
		panic(err)
	}
	return n
}

// tree has agents change files on forks. One of them and the session change one file differently.
func (a acting) tree(agents, files int) []loop.Reply {
	calls := []loop.ToolCall{tool("bash", map[string]any{"command": fmt.Sprintf(
		"for i in $(seq 0 %d); do mkdir -p d$i; for k in $(seq 0 %d); do echo base > d$i/f$k; done; done; seq %d > all; echo base > clash", agents-1, files-1, 10*agents)})}
	for i := range agents {
		calls = append(calls, agent("fork", fmt.Sprintf("leaf %d %d", i, files)))
	}
	calls = append(calls, tool("bash", map[string]any{"command": "echo parent > clash"}))
	return []loop.Reply{asks(calls...), asks(tool("bash", map[string]any{"command": "cat d*/* | wc -l"})), answers("the tree is done")}
}

// leaf changes files in four ways, a few in each of its steps.
func (a acting) leaf(i, files int) (replies []loop.Reply) {
	for first := 0; first < files; first += 4 {
		var commands []string
		var calls []loop.ToolCall
		for k := first; k < min(first+4, files); k++ {
			name := fmt.Sprintf("d%d/f%d", i, k)
			switch k % 4 {
			case 0:
				calls = append(calls, tool("write", map[string]any{"path": name, "content": fmt.Sprintf("leaf %d\n", i)}))
			case 1:
				commands = append(commands, fmt.Sprintf("echo leaf %d >> %s", i, name))
			case 2:
				commands = append(commands, "rm "+name)
			default:
				commands = append(commands, fmt.Sprintf("mv %s %s.moved && chmod 755 %s.moved", name, name, name))
			}
		}
		if commands != nil {
			calls = append(calls, tool("bash", map[string]any{"command": strings.Join(commands, " && ")}))
		}
		replies = append(replies, asks(calls...))
	}
	last := fmt.Sprintf("sed -i '%ds/$/ leaf/' all", 10*i+5)
	if i == 0 {
		last += "; echo leaf > clash"
	}
	return append(replies, asks(tool("bash", map[string]any{"command": last})), answers("the leaf is done"))
}

// These are spans in which the machine itself disturbs a worker or the server, and which excuse it
// like any other fault.
const (
	tickPeriod = 50 * time.Millisecond
	longTick   = 250 * time.Millisecond
	longWrite  = 100 * time.Millisecond
)

// journal is where a process writes down what it does. A record is one write, so
// only the last one can be torn when the process is killed. It is safe for concurrent use.
type journal struct {
	file   *os.File
	worker protocol.WorkerID // whose it is, if it is a worker's
}

// openJournal goes on with a journal, without the record that an earlier life was killed in: the
// kernel ends a write at a page's end for SIGKILL.
func openJournal(path string) (*journal, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	written, err := io.ReadAll(file)
	if err == nil {
		err = file.Truncate(int64(bytes.LastIndexByte(written, '\n') + 1))
	}
	return &journal{file: file}, err
}

// write adds a record, with the time if it has none.
func (j *journal) write(r *Record) {
	if r.At == 0 {
		r.At = now()
	}
	j.store(r)
	if written := now(); j.worker != "" && written-r.At > Time(longWrite) {
		j.store(&Record{Kind: KindBlocked, At: r.At, Until: written, Worker: j.worker})
	}
}

// watch writes down when this process is not let run, until ctx ends.
func (j *journal) watch(ctx context.Context) {
	for last := now(); pause.For(ctx, tickPeriod); {
		at := now()
		if at-last > Time(longTick) {
			j.store(&Record{Kind: KindStall, At: last + Time(tickPeriod), Until: at, Worker: j.worker})
		}
		last = at
	}
}

func (j *journal) store(r *Record) {
	r.Wall = time.Now().UTC()
	line, err := json.Marshal(r)
	if err == nil {
		_, err = j.file.Write(append(line, '\n'))
	}
	if err != nil {
		panic(err) // a history with a hole would prove nothing
	}
}

func (j *journal) trouble(what string) {
	j.write(&Record{Kind: KindTrouble, Message: what})
}

// now is the machine's monotonic clock, which all its processes share.
func now() Time {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err)
	}
	return Time(t.Nano())
}

func TestJournal_ARecordThatWasTornIsLeftOut(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	require.NoError(t, os.WriteFile(path, []byte(`{"kind":"trouble"}`+"\n"+`{"kind":"acc`), 0o600))
	j, err := openJournal(path)
	require.NoError(t, err)
	j.trouble("later")
	require.NoError(t, j.file.Close())
	log, err := os.Open(path)
	require.NoError(t, err)
	defer func() { _ = log.Close() }()
	h := newHistory()
	require.NoError(t, h.Read(log))
	require.Equal(t, []string{"", "later"}, h.Troubles)
}
