package webui_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	dispatching "github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/model/scripted"
	"github.com/toolfleet/toolfleet/internal/session/serve"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// coordinate runs the turns that are sent to the fleet, by a model that says these replies.
func (s *shared) coordinate(replies string) {
	s.t.Helper()
	model, err := scripted.Parse("script", []byte(`{"steps":[`+replies+`]}`))
	require.NoError(s.t, err)
	nc, logger := s.fleet.Connect(), slog.New(slog.NewTextHandler(s.t.Output(), nil))
	dispatcher, err := dispatching.New(s.t.Context(), nc, s.fleet.Name, &dispatching.Options{Logger: logger})
	require.NoError(s.t, err)
	server, err := serve.New(s.t.Context(), nc, serve.Options{
		Fleet: s.fleet.Name, Holder: serve.Holder{ID: "coordinator", Slots: 1, AckWait: time.Minute}, Dispatcher: dispatcher, Journal: s.journal,
		Served: serve.Served{Models: map[string]loop.Model{"script": model}, Default: "script"}, Logger: logger,
	})
	require.NoError(s.t, err)
	ctx, end := context.WithCancel(context.WithoutCancel(s.t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx, ctx) }()
	s.t.Cleanup(func() {
		end()
		require.NoError(s.t, <-ended)
	})
}

// TestAnswerSchema_OfAForm: both forms take the schema of an answer. The answer is valid under it,
// and is shown as the text that it is, and not as Markdown.
func TestAnswerSchema_OfAForm(t *testing.T) {
	t.Parallel()
	s := startShared(t)
	const schema = "{\"type\": \"object\",\r\n \"required\": [\"name\"]}\r\n"
	s.coordinate(`{"text":"*Ada*"},{"text":"{\"name\": \"*Ada* <b>\"}"},{"text":"[1]"},{"text":"{\"name\": \"__Bob__\"}"},{"text":"*Eve*"}`)
	s.signIn(operator)
	_, body, _ := s.get("/sessions")
	require.Contains(t, body, `<textarea id="answer-schema" name="answer_schema"`)
	_, _, at := s.post("/sessions", "key", s.key(), "prompt", "Who?", "answer_schema", schema)
	s.until(at, "answered")
	_, body, _ = s.get(at)
	require.Contains(t, body, `<em>Ada</em>`, "what was no answer")
	require.Contains(t, body, "Your answer is not valid under the schema")
	require.Contains(t, body, `<pre>{&#34;name&#34;: &#34;*Ada* &lt;b&gt;&#34;}</pre>`)
	require.Contains(t, body, `<textarea id="answer-schema" name="answer_schema"`)
	require.NotContains(t, body, `&#34;required&#34;`, "the form of the next turn is empty")
	for _, next := range [][]string{{"answer_schema", schema, "__Bob__"}, {"answer_schema", " \r\n", "<em>Eve</em>"}} {
		status, _, _ := s.post(at+"/send", "key", s.key(), "prompt", "And now?", next[0], next[1])
		require.Equal(t, 200, status)
		s.until(at, next[2])
	}
	_, body, _ = s.get(at)
	require.Contains(t, body, `<pre>{&#34;name&#34;: &#34;__Bob__&#34;}</pre>`)
	require.Equal(t, 2, strings.Count(body, "Your answer is not valid under the schema"), "the last turn has no schema")

	history, err := s.client.Sessions("").Log(t.Context(), protocol.SessionID(strings.TrimPrefix(at, "/sessions/")))
	require.NoError(t, err)
	var schemas []string
	for i := range history.Events {
		if e := &history.Events[i]; e.Type == loop.EventTurnStarted {
			schemas = append(schemas, string(e.AnswerSchema))
		}
	}
	require.Len(t, schemas, 3)
	for _, stored := range schemas[:2] {
		require.JSONEq(t, schema, stored)
	}
	require.Empty(t, schemas[2])
}

// TestAnswerSchema_ThatIsNone begins no turn: the page names the field, and what is wrong.
func TestAnswerSchema_ThatIsNone(t *testing.T) {
	t.Parallel()
	s := startShared(t)
	s.signIn(operator)
	s.journaled("work", loop.Event{Type: loop.EventSessionStarted}, loop.Event{Type: loop.EventTurnStarted, Turn: 1},
		loop.Event{Type: loop.EventTurnEnded, Turn: 1, Status: "answered"})
	for schema, wrong := range map[string]string{
		"{":                              "not JSON",
		"[]":                             "must be a JSON object",
		`{"type": "person"}`:             "/type",
		`{"$ref": "https://a.example/"}`: "a schema may refer to itself only",
		`{"title": "` + strings.Repeat("x", 64<<10) + `"}`: "must be at most 65536",
	} {
		for _, path := range []string{"/sessions", "/sessions/work/send"} {
			status, body, _ := s.post(path, "key", s.key(), "prompt", "Who?", "answer_schema", schema)
			require.Equal(t, 422, status, "%s %.50s", path, schema)
			require.Contains(t, body, "answer schema: ", "%s %.50s", path, schema)
			require.Contains(t, body, wrong, "%s %.50s", path, schema)
		}
	}
	all, _, err := s.client.Sessions("").List(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, all, 1, "none began")
	require.Equal(t, 1, all[0].Turns)
}
