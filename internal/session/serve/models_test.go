package serve_test

import (
	"bytes"
	"context"
	"image"
	"image/png"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/model/scripted"
	"github.com/toolfleet/toolfleet/internal/session/journal"
	"github.com/toolfleet/toolfleet/internal/session/serve"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/manifest"
	"github.com/toolfleet/toolfleet/pkg/tools/mcp"
)

// serving makes a coordinator serve one model of this name, whose every answer is the name.
func (r *rig) serving(name string) {
	r.t.Helper()
	model, err := scripted.Parse(name, []byte(`{"steps":[`+strings.Repeat(`{"text":"`+name+`"},`, 9)+`{"text":"`+name+`"}]}`))
	require.NoError(r.t, err)
	r.serve(r.Connect(), "serves-"+name, func(o *serve.Options) {
		o.Models, o.Default = map[string]loop.Model{name: model}, name
	})
}

// concluded are the events of a session whose only turn was recorded; its result is there a moment
// before.
func (r *rig) concluded(session protocol.SessionID) (events []loop.Event) {
	r.t.Helper()
	require.Eventually(r.t, func() bool { events = r.events(session); return len(events) == 3 }, patience, time.Millisecond)
	return events
}

// TestTurn_GoesToACoordinatorThatServesItsModel, whichever takes it first, and however large it is.
func TestTurn_GoesToACoordinatorThatServesItsModel(t *testing.T) {
	t.Parallel()
	r := newRig(t, answer)
	r.serving("red")
	r.serving("blue")
	for i := range 12 {
		model := []string{"red", "blue"}[i%2]
		prompt := "go"
		if i >= 10 {
			prompt = strings.Repeat("x", 2<<20) // is stored beside the message
		}
		got := r.turn(wire.TurnRun{Prompt: prompt, Model: model})
		require.Nil(t, got.Error)
		require.Equal(t, protocol.WorkerID("serves-"+model), got.WorkerID)
	}
	require.Empty(t, calls.Unserved(t.Context(), r.NC, r.Name, "blue"))
	require.Equal(t, `no coordinator serves model "green"; served are: blue, red`, calls.Unserved(t.Context(), r.NC, r.Name, "green"))
}

// TestTurn_WithoutAModelHasThatOfItsSession, unless it is not served any more; a new session has
// the default.
func TestTurn_WithoutAModelHasThatOfItsSession(t *testing.T) {
	t.Parallel()
	r := newRig(t, answer)
	models := map[string]loop.Model{}
	for _, name := range []string{"red", "blue"} {
		model, err := scripted.Parse(name, []byte(`{"steps":[{"text":"`+name+`"},{"text":"`+name+`"},{"text":"`+name+`"}]}`))
		require.NoError(t, err)
		models[name] = model
	}
	stop := r.serve(r.Connect(), "both", func(o *serve.Options) { o.Models, o.Default = models, "red" })
	session := protocol.NewSessionID()
	said := func(turn wire.TurnRun) string {
		t.Helper()
		got := r.submit(t.Context(), serve.NewCall(session, turn, 0))
		require.Nil(t, got.Error)
		value, _ := got.Value.(wire.TurnRunResult)
		return value.Text
	}
	require.Equal(t, "blue", said(wire.TurnRun{Prompt: "go", Model: "blue"}))
	require.Equal(t, "blue", said(wire.TurnRun{Prompt: "go on"}))
	stop(patience)
	r.serving("red")
	require.Equal(t, "red", said(wire.TurnRun{Prompt: "go on"}))
	session = protocol.NewSessionID()
	require.Equal(t, "red", said(wire.TurnRun{Prompt: "go"}))
}

// TestTurn_WaitsForACoordinatorThatServesItsModel and says so; others of the fleet run meanwhile.
func TestTurn_WaitsForACoordinatorThatServesItsModel(t *testing.T) {
	t.Parallel()
	r := newRig(t, answer)
	require.Empty(t, calls.Unserved(t.Context(), r.NC, r.Name, "blue"), "nobody knows yet")
	r.serving("red")
	call := serve.NewCall(protocol.NewSessionID(), wire.TurnRun{Prompt: "go", Model: "blue"}, 0)
	waits := make(chan string, 1)
	done := make(chan *protocol.Result, 1)
	go func() {
		result, err := r.dispatcher.CallWith(t.Context(), &call, calls.CallOptions{Observe: calls.OnWaits(func(why string) { waits <- why })})
		if err != nil {
			t.Errorf("submit: %v", err)
		}
		done <- result
	}()
	require.Equal(t, `no coordinator serves model "blue"; served are: red`, <-waits)
	require.Nil(t, r.turn(wire.TurnRun{Prompt: "go", Model: "red"}).Error)
	require.Empty(t, r.events(call.SessionID))
	r.serving("blue")
	got := <-done
	require.Nil(t, got.Error)
	require.Equal(t, protocol.WorkerID("serves-blue"), got.WorkerID)
	require.Equal(t, 1, got.Attempt)
}

// TestTurn_ThatNeverBeganIsInTheJournal: what was accepted does not disappear.
func TestTurn_ThatNeverBeganIsInTheJournal(t *testing.T) {
	t.Parallel()
	r := newRig(t, `{"text":"one"},{"text":"two"}`)
	r.serve(r.Connect(), "a", nil)
	refused := serve.NewCall(protocol.NewSessionID(), wire.TurnRun{Prompt: "go", Toolsets: []string{"magic"}}, 0)
	requireFault(t, r.submit(t.Context(), refused), protocol.StatusRejected, codes.InvalidPayload)
	events := r.concluded(refused.SessionID)
	require.Equal(t, "go", events[1].Input)
	require.Equal(t, refused.ID, events[1].CallID)
	require.Equal(t, "failed", events[2].Status)
	require.Contains(t, events[2].Error.Message, "magic")
	again := serve.NewCall(refused.SessionID, wire.TurnRun{Prompt: "now"}, 0)
	require.Nil(t, r.submit(t.Context(), again).Error)
	require.Equal(t, 2, r.events(refused.SessionID)[3].Turn)

	waiting := serve.NewCall(protocol.NewSessionID(), wire.TurnRun{Prompt: "wait", Model: "blue"}, 0)
	ctx, cancel := context.WithCancel(t.Context())
	sent := make(chan struct{})
	done := make(chan *protocol.Result, 1)
	go func() {
		result, err := r.dispatcher.CallWith(ctx, &waiting, calls.CallOptions{Observe: func(u loop.Update) {
			if u.State == loop.StateQueued {
				close(sent)
			}
		}})
		if err != nil {
			t.Errorf("submit: %v", err)
		}
		done <- result
	}()
	<-sent
	cancel()
	require.Equal(t, protocol.StatusCancelled, (<-done).Status)
	events = r.concluded(waiting.SessionID)
	require.Equal(t, "wait", events[1].Input)
	require.Equal(t, "interrupted", events[2].Status)

	large := serve.NewCall(protocol.NewSessionID(), wire.TurnRun{Prompt: strings.Repeat("é", 5<<20)}, 0)
	requireFault(t, r.submit(t.Context(), large), protocol.StatusFailed, codes.PayloadTooLarge)
	events = r.concluded(large.SessionID)
	require.Less(t, len(events[1].Input), 10_000)
}

// blind is a model that takes no files.
type blind struct{ loop.Model }

func (blind) Views(string) bool { return false }

// Attachments of a turn reach the model and the journal, however large they are; a coordinator
// refuses those that its model does not take.
func TestTurn_Attachments(t *testing.T) {
	t.Parallel()
	r := newRig(t, answer)
	var said atomic.Pointer[loop.Message]
	r.serve(r.Connect(), "a", func(o *serve.Options) {
		seeing := r.model
		o.Models = map[string]loop.Model{"sees": watched{seeing, &said}, "blind": blind{seeing}}
		o.Default = "sees"
	})
	var picture bytes.Buffer
	require.NoError(t, png.Encode(&picture, image.NewGray(image.Rect(0, 0, 1, 1))))
	content := append(picture.Bytes(), make([]byte, 3<<20)...)
	turn := wire.TurnRun{Prompt: "Look.", Attachments: []wire.Attachment{{Name: "a.png", Data: content}}}
	call := serve.NewCall(protocol.NewSessionID(), turn, 0)
	require.Nil(t, r.submit(t.Context(), call).Error)
	require.Equal(t, content, said.Load().Attachments[0].Data)
	require.Equal(t, content, r.events(call.SessionID)[1].Attachments[0].Data)
	turn.Model = "blind"
	refused := r.turn(turn)
	requireFault(t, refused, protocol.StatusRejected, codes.InvalidPayload)
	require.Contains(t, refused.Error.Message, "attachment a.png: the model takes no files of type image/png")
}

// watched is a model whose first user's message of the last request is stored.
type watched struct {
	loop.Model

	said *atomic.Pointer[loop.Message]
}

func (w watched) Reply(ctx context.Context, req loop.Request, delta func(loop.Delta)) (loop.Reply, error) {
	w.said.Store(&req.Messages[1])
	return w.Model.Reply(ctx, req, delta)
}

// A summary is asked for as a turn is, in the session's order, and is none: the journal has no turn
// more, and one that cannot be written leaves none.
func TestServer_CompactsASession(t *testing.T) {
	t.Parallel()
	r := newRig(t, `{"text": "One.", "tool_calls": [{"name": "bash", "arguments": {"command": "true"}}]}, {"text": "Two."}`)
	r.serve(r.Connect(), "a", nil)
	session := protocol.NewSessionID()
	ask := func(turn wire.TurnRun) *protocol.Result {
		call := serve.NewCall(session, turn, 0)
		result, err := r.dispatcher.Call(t.Context(), &call)
		require.NoError(t, err)
		return result
	}
	require.Nil(t, ask(wire.TurnRun{Prompt: "go"}).Error)
	got := ask(wire.TurnRun{Compact: true}) // the script's first step is the summary
	require.Nil(t, got.Error)
	require.Equal(t, wire.TurnRunResult{Outcome: "answered", Compacted: true}, got.Value)
	require.Equal(t, wire.TurnRunResult{Outcome: "answered"}, ask(wire.TurnRun{Compact: true}).Value, "there is nothing left to replace")
	j, err := journal.Open(t.Context(), r.NC, r.Name)
	require.NoError(t, err)
	history, err := j.Load(t.Context(), session)
	require.NoError(t, err)
	last := history.Events[len(history.Events)-1]
	require.Equal(t, loop.EventCompacted, last.Type)
	require.Contains(t, last.Text, "One.")
	require.Equal(t, 1, last.Turn)
}

// byPrompt is a model that has a script for each first message of a user.
type byPrompt map[string]loop.Model

func (m byPrompt) Reply(ctx context.Context, req loop.Request, delta func(loop.Delta)) (loop.Reply, error) {
	return m[req.Messages[1].Text].Reply(ctx, req, delta)
}

// A sub-agent is in the process of its parent, and continues with it in another one: the command
// that ran there is not started twice, and both sessions have one turn each.
func TestServer_SubAgentContinuesElsewhere(t *testing.T) {
	t.Parallel()
	r := newRig(t, answer)
	script := func(steps string) loop.Model {
		m, err := scripted.Parse("script", []byte(`{"steps":[`+steps+`]}`))
		require.NoError(t, err)
		return m
	}
	models := byPrompt{
		"go": script(`{"text": "d", "tool_calls": [{"name": "agent", "arguments": {"prompt": "count"}}]}, {"text": "It was counted."}`),
		"count": script(`{"text": "c", "tool_calls": [{"name": "bash", "arguments": {"command": "echo x >> log; until [ -e go ]; do sleep 0.05; done; cat log"}}]},
			{"text": "One."}`),
	}
	change := func(o *serve.Options) { o.Models = map[string]loop.Model{"script": models} }
	stop := r.serve(r.Connect(), "a", change)
	session := protocol.NewSessionID()
	call := serve.NewCall(session, wire.TurnRun{Prompt: "go", Toolsets: []string{"core", "agents"}}, 0)
	results := make(chan *protocol.Result, 1)
	go func() {
		result, err := r.dispatcher.Call(t.Context(), &call)
		if err != nil {
			t.Errorf("turn: %v", err)
		}
		results <- result
	}()
	awaitFile(t, r.file(session, "log"))
	stop(0)
	r.serve(r.Connect(), "b", change)
	require.NoError(t, os.WriteFile(r.file(session, "go"), nil, 0o600))
	result := <-results
	require.NotNil(t, result)
	require.Nil(t, result.Error)
	value, _ := result.Value.(wire.TurnRunResult)
	require.Equal(t, "It was counted.", value.Text)
	log, err := os.ReadFile(r.file(session, "log"))
	require.NoError(t, err)
	require.Equal(t, "x\n", string(log))

	j, err := journal.Open(t.Context(), r.NC, r.Name)
	require.NoError(t, err)
	history, err := j.Load(t.Context(), session)
	require.NoError(t, err)
	for _, e := range history.Events {
		if e.Type != loop.EventToolResult {
			continue
		}
		require.Equal(t, "One.", e.Content)
		child, err := j.Load(t.Context(), protocol.SessionID(e.CallID))
		require.NoError(t, err)
		require.Equal(t, session, child.Events[0].Parent.SessionID)
		turns := 0
		for _, c := range child.Events {
			if c.Type == loop.EventTurnStarted {
				turns++
			}
		}
		require.Equal(t, 1, turns)
	}
}

// lines passes on what is logged, a line at a time.
type lines struct{ news chan string }

func (w *lines) Write(line []byte) (int, error) {
	w.news <- string(line)
	return len(line), nil
}

func TestTurn_HasTheToolsOfTheFolderAsTheyAre(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(content string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "greet.yaml"), []byte(content), 0o600))
	}
	version := func(text string) string {
		return "name: greet\ndescription: Greet.\ncommand: printf " + text + " >greeting\n"
	}
	folder, err := manifest.Open(dir)
	require.NoError(t, err)
	log := &lines{news: make(chan string, 16)}
	logger := slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn})) // as processes log by default
	r := newRig(t, `{"text":"Greeting.","tool_calls":[{"id":"c1","name":"greet","arguments":{}}]},`+answer)
	r.serve(r.Connect(), "a", func(o *serve.Options) { o.Tools, o.Logger = folder, logger })
	greeting := func() string {
		t.Helper()
		call := serve.NewCall(protocol.NewSessionID(), wire.TurnRun{Prompt: "greet"}, 0)
		requireAnswered(t, r.submit(t.Context(), call))
		content, err := os.ReadFile(r.file(call.SessionID, "greeting"))
		if err != nil {
			return "none"
		}
		return string(content)
	}
	require.Equal(t, "none", greeting(), "there is no such tool")
	write(version("one"))
	require.Equal(t, "one", greeting())
	write(version("two"))
	require.Equal(t, "two", greeting())
	write("name: greet\n")
	require.Equal(t, "two", greeting(), "a broken one stays as it was")
	require.Contains(t, <-log.news, "tool manifest is broken")
	require.Contains(t, <-log.news, "stays as it was")
	require.NoError(t, os.Remove(filepath.Join(dir, "greet.yaml")))
	require.Equal(t, "none", greeting())
	require.Contains(t, <-log.news, "tool manifests are in order again")
}

// A fleet that cannot be asked for the tools of MCP servers refuses no turn: it is asked again,
// until the turn is cancelled.
func TestTurn_WaitsForTheToolsOfServers(t *testing.T) {
	t.Parallel()
	r := newRig(t, bash("true")+","+answer)
	var asked, fails atomic.Int64
	var stop atomic.Pointer[context.CancelFunc]
	r.serve(r.Connect(), "a", func(o *serve.Options) {
		o.Servers = []mcp.Server{{MCPServer: protocol.MCPServer{Name: "theirs", Command: "p"}}}
		o.Do = func(_ context.Context, call *protocol.Call) (*protocol.Result, error) {
			if asked.Add(1) <= fails.Load() {
				if cancel := stop.Load(); cancel != nil {
					(*cancel)()
				}
				return nil, calls.ErrUnreachable
			}
			result := wire.NewResult(call, protocol.StatusOK, nil)
			result.Value = wire.MCPListResult{}
			return &result, nil
		}
	})
	fails.Store(2)
	requireAnswered(t, r.turn(wire.TurnRun{Prompt: "p"}))
	require.Equal(t, int64(3), asked.Load())

	fails.Store(1 << 30)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stop.Store(&cancel)
	requireFault(t, r.submit(ctx, serve.NewCall(protocol.NewSessionID(), wire.TurnRun{Prompt: "p"}, 0)), protocol.StatusCancelled, protocol.CodeCancelled)
}
