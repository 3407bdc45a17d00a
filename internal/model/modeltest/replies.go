package modeltest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/model/endpoint"
	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Run runs the suite.
func Run(t *testing.T, d *Dialect) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, *Dialect){
		"streams text": streamsText, "forms of a stream": forms, "cut characters": cutCharacters, "tool calls": toolCalls, "ends": ends,
		"a large reply": largeReply, "documents": documents, "attachments": attachments,
		"native tools": nativeTools, "cut off": cutOff, "reasoning": reasoning, "settings": settings,
		"tries again": triesAgain, "failed attempts are counted": failedAttempts, "senseless usage": senselessUsage, "final errors": finalErrors, "too long": tooLong,
		"used up": usedUp, "rejected tools": rejectedTools, "about images": aboutImages, "gives up": givesUp, "no redirects": noRedirects,
		"secrets": secrets, "no listener": noListener, "bad certificate": badCertificate,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, d)
		})
	}
}

// What the server reports of an attempt that gives no reply is passed on, once.
func failedAttempts(t *testing.T, d *Dialect) {
	t.Helper()
	broken := Stream(d.Ended(d.Failed, d.Text("a"))...)
	for reason, answers := range map[string][]Answer{
		"failed": {broken, broken, Stream(d.Stream(d.Text("ok"))...)}, "filtered": {Stream(d.Ended(d.Filtered, d.Text("a"))...)},
	} {
		s := Serve(t, d, answers...)
		var failed []loop.Reply
		reply, err := s.Model(t).Reply(t.Context(), Hello(), func(piece loop.Delta) {
			if piece.Failed != nil {
				failed = append(failed, *piece.Failed)
			}
		})
		want := []loop.Reply{{Usage: protocol.Usage{InputTokens: 12, OutputTokens: 3}}}
		if reason == "failed" {
			require.NoError(t, err)
			require.Equal(t, protocol.Usage{InputTokens: 12, OutputTokens: 3}, reply.Usage, "of this attempt alone")
			want = append(want, want...)
		} else {
			RequireType(t, endpoint.TypeContentFilter, err)
		}
		require.Equal(t, want, failed, reason)
	}
}

// Counts that make no sense are as if there were none, which [loop.Reply.Counted] estimates.
func senselessUsage(t *testing.T, d *Dialect) {
	t.Helper()
	for _, count := range []int{-5, 1 << 60} {
		lines := append(append([]string{}, d.Begin...), d.Text("ok"))
		lines = append(lines, d.End(d.Whole, count, count)...)
		if d.Done != "" {
			lines = append(lines, d.Done)
		}
		reply, err := Serve(t, d, Stream(lines...)).Model(t).Reply(t.Context(), Hello(), Ignore)
		require.NoError(t, err)
		counted := reply.Counted(1000)
		require.Positive(t, counted.InputTokens)
		require.Positive(t, counted.OutputTokens)
		require.LessOrEqual(t, counted.Total(), int64(1100))
	}
}

func streamsText(t *testing.T, d *Dialect) {
	t.Helper()
	s := Serve(t, d, Stream(d.Stream(d.Text("Hel"), d.Text("lo "), d.Text("wörld"))...))
	var got Pieces
	reply := Reply(t, s.Model(t), Hello(), got.Add)
	require.Equal(t, "Hello wörld", reply.Text)
	require.Equal(t, "Hel|lo |wörld", got.String())
	require.Equal(t, protocol.Usage{InputTokens: 12, OutputTokens: 3}, reply.Usage, "which may come only at the end")
	require.Equal(t, "m-1-2026", reply.Model)
	require.Equal(t, d.Whole, reply.Finish)
	require.Empty(t, reply.ToolCalls)
	require.False(t, reply.Cut)
}

// A stream is the same in whichever form it comes.
func forms(t *testing.T, d *Dialect) {
	t.Helper()
	whole := strings.Join(d.Stream(d.Text("Hel"), d.Text("lo")), "\n\n") + "\n\n"
	events := strings.Split(strings.TrimSpace(whole), "\n\n")
	body := func(text string, headers ...string) Answer { return Status(http.StatusOK, text, headers...) }
	for name, answer := range map[string]Answer{
		"CRLF":                  body(strings.ReplaceAll(whole, "\n", "\r\n"), "Content-Type", "text/event-stream; charset=utf-8"),
		"comments":              body(": hi\n\n: keep-alive\n" + strings.ReplaceAll(whole, "\n\n", "\n\n: still here\n\n")),
		"other fields":          body("retry: 5\nid: 7\nevent: other\n" + whole),
		"no empty lines":        body(strings.Join(events, "\n") + "\n"),
		"no last newline":       body(strings.TrimSpace(whole)),
		"no type of content":    body(whole, "Content-Type", ""),
		"a wrong content type":  body(whole, "Content-Type", "text/plain"),
		"events that say none":  Stream(d.Stream(append([]string{d.Text("Hel")}, append(d.Empty, d.Text("lo"))...)...)...),
		"without its final end": body(strings.Join(without(events, d.Done), "\n\n") + "\n\n"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := Serve(t, d, answer)
			reply, err := s.Model(t, func(o *endpoint.Options) { o.MaxAttempts = 1 }).Reply(t.Context(), Hello(), Ignore)
			require.NoError(t, err)
			require.Equal(t, "Hello", reply.Text)
		})
	}
	s := Serve(t, d, Stream(d.Stream(d.Text("a\xffb"), d.Text(`c`))...))
	var live strings.Builder
	reply := Reply(t, s.Model(t), Hello(), func(piece loop.Delta) { live.WriteString(piece.Text) })
	require.Equal(t, "a\uFFFDbc", reply.Text, "what is no UTF-8 is replaced")
	require.True(t, utf8.ValidString(live.String()))
}

// A character that a server cuts is whole in the reply, and where that goes back in pieces.
func cutCharacters(t *testing.T, d *Dialect) {
	t.Helper()
	events := append([]string{d.Text(`a\ud83d`), d.Text(`\ude00é`)}, d.Native...)
	s := Serve(t, d, Stream(d.Stream(append(events, d.Text("b"))...)...), Stream(d.Stream(d.Text("ok"))...))
	m := s.Model(t)
	reply := Reply(t, m, Hello(), Ignore)
	require.Equal(t, "a😀éb", reply.Text)
	next := Hello()
	next.Messages = append(next.Messages, loop.Message{Role: loop.RoleAssistant, Text: reply.Text, Reasoning: reply.Reasoning})
	Reply(t, m, next, Ignore)
	sent := encoded(t, s.Asked()[1])
	require.Contains(t, sent, "a😀é")
	require.NotContains(t, sent, "\uFFFD")
}

func without(lines []string, unwanted string) []string {
	var left []string
	for _, line := range lines {
		if line != unwanted {
			left = append(left, line)
		}
	}
	return left
}

func toolCalls(t *testing.T, d *Dialect) {
	t.Helper()
	one, two := `{"n":9007199254740993,"s":"é \"x\""}`, `{"path":"b"}`
	call := func(id, name, arguments string) loop.ToolCall {
		return loop.ToolCall{ID: id, Name: name, Arguments: arguments}
	}
	for name, test := range map[string]struct {
		events []string
		want   []loop.ToolCall // an id "" is a made up one
	}{
		"several": {
			concat(d.Call(0, "c1", "bash", one[:9], one[9:]), d.Call(1, "c2", "read", two)), []loop.ToolCall{call("c1", "bash", one), call("c2", "read", two)},
		},
		"behind a text":      {concat([]string{d.Text("Look.")}, d.Call(0, "c1", "bash", one)), []loop.ToolCall{call("c1", "bash", one)}},
		"no arguments":       {d.Call(0, "c1", "now"), []loop.ToolCall{call("c1", "now", "{}")}},
		"no ids":             {concat(d.Call(0, "", "bash", one), d.Call(1, "", "read", two)), []loop.ToolCall{call("", "bash", one), call("", "read", two)}},
		"ids twice":          {concat(d.Call(0, "c1", "bash", one), d.Call(1, "c1", "read", two)), []loop.ToolCall{call("c1", "bash", one), call("", "read", two)}},
		"an index twice":     {concat(d.Call(0, "c1", "bash", one), d.Call(0, "c2", "read", two)), []loop.ToolCall{call("c1", "bash", one), call("c2", "read", two)}},
		"a tool that is not": {d.Call(0, "c1", "no such.tool", one), []loop.ToolCall{call("c1", "no such.tool", one)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requireCalls(t, d, test.want, test.events)
		})
	}
	if d.CallObject != nil {
		t.Run("arguments as an object", func(t *testing.T) {
			t.Parallel()
			requireCalls(t, d, []loop.ToolCall{call("c1", "bash", one)}, d.CallObject(0, "c1", "bash", one))
		})
	}
}

func concat(lists ...[]string) []string {
	var all []string
	for _, list := range lists {
		all = append(all, list...)
	}
	return all
}

func requireCalls(t *testing.T, d *Dialect, want []loop.ToolCall, events []string) {
	t.Helper()
	s := Serve(t, d, Stream(d.Stream(events...)...))
	reply := Reply(t, s.Model(t), Hello(), Ignore)
	require.Len(t, reply.ToolCalls, len(want))
	seen := map[string]bool{}
	for i, call := range reply.ToolCalls {
		require.NotEmpty(t, call.ID)
		require.False(t, seen[call.ID], "ids are unique")
		seen[call.ID] = true
		if want[i].ID == "" {
			want[i].ID = call.ID
		}
		require.JSONEq(t, want[i].Arguments, call.Arguments)
		require.Equal(t, strings.Contains(want[i].Arguments, "9007199254740993"), strings.Contains(call.Arguments, "9007199254740993"), "numbers are exact")
		want[i].Arguments = call.Arguments
	}
	require.Equal(t, want, reply.ToolCalls)

	// What the model called goes back in a form that servers take.
	next := Hello()
	next.Messages = append(next.Messages, loop.Message{Role: loop.RoleAssistant, Text: reply.Text, ToolCalls: reply.ToolCalls, Reasoning: reply.Reasoning})
	for _, call := range reply.ToolCalls {
		next.Messages = append(next.Messages, loop.Message{Role: loop.RoleTool, ToolCallID: call.ID, Name: call.Name, Text: "done"})
	}
	Reply(t, s.Model(t), next, Ignore)
}

// Only a reason that is known for it makes a reply an answer.
func ends(t *testing.T, d *Dialect) {
	t.Helper()
	reply, err := Serve(t, d, Stream(d.Ended(d.Length, d.Text("It goes on"))...)).Model(t).Reply(t.Context(), Hello(), Ignore)
	require.NoError(t, err)
	require.True(t, reply.Cut)
	require.Equal(t, "It goes on", reply.Text)
	for reason, want := range map[string]string{d.Filtered: endpoint.TypeContentFilter, "because": endpoint.TypeUnfinished} {
		s := Serve(t, d, Stream(d.Ended(reason, d.Text("a"))...))
		_, err := s.Model(t).Reply(t.Context(), Hello(), Ignore)
		RequireType(t, want, err)
		require.ErrorContains(t, err, `"`+reason+`"`, "it is named")
		require.Len(t, s.Asked(), 1)
	}
}

// What the provider's own tools returned is in the reply, and goes back with it.
func nativeTools(t *testing.T, d *Dialect) {
	t.Helper()
	if d.Native == nil {
		t.Skip("the API has no native tools")
	}
	s := Serve(t, d, Stream(d.Stream(append(append([]string{}, d.Native...), d.Text("Found."))...)...), Stream(d.Stream(d.Text("ok"))...))
	asked := Hello()
	asked.Tools = slices.Concat(
		NativeTools("openai", "web_search", "code_interpreter", "image_generation"),
		NativeTools("anthropic", "web_search_20250305", "code_execution_20250825"), NativeTools("google", "googleSearch", "codeExecution"))
	m := s.Model(t)
	reply := Reply(t, m, asked, Ignore)
	require.Equal(t, "Found.", reply.Text)
	require.Equal(t, d.NativeCalls, reply.Native)
	asked.Messages = append(asked.Messages,
		loop.Message{Role: loop.RoleAssistant, Text: reply.Text, Reasoning: reply.Reasoning},
		loop.Message{Role: loop.RoleUser, Text: "on"})
	Reply(t, m, asked, Ignore)
}

// A document goes to servers that take it, and is left out once one refuses it.
func documents(t *testing.T, d *Dialect) {
	t.Helper()
	asked := Hello()
	asked.Messages = append(asked.Messages,
		loop.Message{Role: loop.RoleAssistant, ToolCalls: []loop.ToolCall{{ID: "c1", Name: "read", Arguments: "{}"}}},
		loop.Message{Role: loop.RoleTool, ToolCallID: "c1", Name: "read", Text: "a.pdf", Image: &loop.Image{MediaType: render.MediaPDF, Data: []byte("%PDF-")}})
	s := Serve(t, d, Stream(d.Stream(d.Text("ok"))...), Status(http.StatusBadRequest, `{"error":{"message":"This model does not take PDF documents"}}`))
	Reply(t, s.Model(t), asked, Ignore)
	body, err := json.Marshal(s.Asked()[0])
	require.NoError(t, err)
	require.Contains(t, string(body), "a.pdf")
	if d.Document == "" {
		require.NotContains(t, string(body), render.MediaPDF)
		return
	}
	require.Contains(t, string(body), d.Document)
	_, err = s.Model(t).Reply(t.Context(), asked, Ignore)
	var refused *loop.RefusedError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, []loop.Part{{ToolCallID: "c1", Kind: loop.PartImage}}, refused.Parts)
}

// Attachments follow the text of their input. Those that a server refuses without naming one are
// left out together; a model that takes none reads so.
func attachments(t *testing.T, d *Dialect) {
	t.Helper()
	asked := Hello()
	for i, mediaType := range []string{"image/png", render.MediaPDF} {
		asked.Messages[0].Attachments = append(asked.Messages[0].Attachments, loop.Attachment{
			ID: fmt.Sprint("a", i), Name: []string{"a.png", "b.pdf"}[i], Image: loop.Image{MediaType: mediaType, Data: []byte{byte(i)}},
		})
	}
	s := Serve(t, d, Stream(d.Stream(d.Text("ok"))...), Status(http.StatusBadRequest, `{"error":{"message":"This model takes no images."}}`))
	m := s.Model(t)
	Reply(t, m, asked, Ignore)
	body := encoded(t, s.Asked()[0])
	if d.Attached == nil {
		require.Contains(t, body, `hello\n[The attached file a.png is not shown: this model takes no files of type image/png]`)
		require.NotContains(t, body, "AA==")
		return
	}
	at := 0
	for _, want := range d.Attached {
		found := strings.Index(body[at:], want)
		require.GreaterOrEqual(t, found, 0, "%s\nis missing, or not in its order, in\n%s", want, body)
		at += found + len(want)
	}
	_, err := m.Reply(t.Context(), asked, Ignore)
	var refused *loop.RefusedError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, []loop.Part{{ToolCallID: "a0", Kind: loop.PartAttachment}, {ToolCallID: "a1", Kind: loop.PartAttachment}}, refused.Parts)
}

func largeReply(t *testing.T, d *Dialect) {
	t.Helper()
	piece := strings.Repeat("0123456789abcdef", 4096)
	const pieces = 320 // 20 MiB
	answer := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, line := range d.Begin {
			_, _ = io.WriteString(w, line+"\n\n")
		}
		event := d.Text(piece) + "\n\n"
		for range pieces {
			_, _ = io.WriteString(w, event)
		}
		for _, line := range append(d.End(d.Whole, 1, 1), d.Done) {
			_, _ = io.WriteString(w, line+"\n\n")
		}
	}
	reply, err := Serve(t, d, answer).Model(t).Reply(t.Context(), Hello(), Ignore)
	require.NoError(t, err)
	require.Len(t, reply.Text, pieces*len(piece))

	endless := func(w http.ResponseWriter, r *http.Request) {
		Stream(d.Begin...)(w, r)
		line := "data: " + strings.Repeat("x", 1<<20)
		for range 16 {
			_, _ = io.WriteString(w, line)
		}
	}
	_, err = Serve(t, d, endless).Model(t).Reply(t.Context(), Hello(), Ignore)
	RequireType(t, endpoint.TypeInvalidResponse, err)
	require.ErrorContains(t, err, "too long")
}

// A reply that breaks off within the arguments of a call is no reply.
func cutOff(t *testing.T, d *Dialect) {
	t.Helper()
	call := d.Call(0, "c1", "bash", `{"command":"rm `, `-r x"}`)
	broken := append(append([]string{}, d.Begin...), call[:len(call)-1]...)
	for name, bad := range map[string]Answer{"dropped": CutOff(broken...), "ended": Stream(broken...)} {
		s := Serve(t, d, bad, Stream(d.Stream(d.Text("Hello"))...))
		reply, err := s.Model(t).Reply(t.Context(), Hello(), Ignore)
		require.NoError(t, err, name)
		require.Equal(t, "Hello", reply.Text)
		require.Empty(t, reply.ToolCalls)
		require.Len(t, s.Asked(), 2)
	}
	if !d.MayCut {
		return
	}
	s := Serve(t, d, Stream(d.Ended(d.Length, d.Call(0, "c1", "bash", `{"command":"rm `)...)...))
	reply := Reply(t, s.Model(t), Hello(), Ignore)
	require.True(t, reply.Cut)
	require.True(t, reply.ToolCalls[0].Arguments == `{"command":"rm `, "the loop refuses it") //nolint:testifylint // it is no JSON
}

func reasoning(t *testing.T, d *Dialect) {
	t.Helper()
	s := Serve(t, d, Stream(d.Stream(append([]string{d.Thought("I "), d.Thought("look")}, d.Call(0, "c1", "bash", `{}`)...)...)...))
	thought := ""
	reply := Reply(t, s.Model(t), Hello(), func(piece loop.Delta) { thought += piece.Reasoning })
	require.Equal(t, "I look", thought)
	require.Equal(t, "I look", reply.Reasoning.Text)

	// That of another adapter is not sent.
	next := Hello()
	next.Messages = append(next.Messages, loop.Message{
		Role: loop.RoleAssistant, Text: "hm", Reasoning: &loop.Reasoning{Text: "alien", Opaque: []byte(`{"alien":["alien"]}`)},
	})
	Reply(t, s.Model(t), next, Ignore)
	require.NotContains(t, encoded(t, s.Asked()[1]), "alien")
}

func settings(t *testing.T, d *Dialect) {
	t.Helper()
	s := Serve(t, d, Stream(d.Stream(d.Text("ok"))...))
	request := Hello()
	cold := 0.0
	request.Settings = loop.Settings{Temperature: &cold, MaxOutput: 4321}
	Reply(t, s.Model(t), request, Ignore)
	require.Contains(t, encoded(t, s.Asked()[0]), "4321")
	require.Contains(t, encoded(t, s.Asked()[0]), `"temperature":0`)
	Reply(t, s.Model(t), Hello(), Ignore)
	require.NotContains(t, encoded(t, s.Asked()[1]), "temperature")
}

func encoded(t *testing.T, body map[string]any) string {
	t.Helper()
	raw, err := json.Marshal(body)
	require.NoError(t, err)
	return string(raw)
}
