package scripted_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/toolfleet/toolfleet/internal/model/scripted"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const example = `{"steps":[
	{"text":"Let me look.","tool_calls":[
		{"id":"c1","name":"bash","arguments":{ "command": "true", "n": 1.0 }},
		{"id":"c2","name":"read","arguments_raw":"{"},
		{"name":"list"}]},
	{"text":"done","usage":{"input_tokens":7,"output_tokens":2}}]}`

// conversation is one in which the model has replied so many times.
func conversation(replies int) loop.Request {
	req := loop.Request{Messages: []loop.Message{{Role: loop.RoleSystem, Text: "s"}, {Role: loop.RoleUser, Text: "u"}}}
	for range replies {
		req.Messages = append(req.Messages,
			loop.Message{Role: loop.RoleAssistant, Text: "a"}, loop.Message{Role: loop.RoleTool, Text: "t"})
	}
	return req
}

func parse(t *testing.T, script string) *scripted.Model {
	t.Helper()
	m, err := scripted.Parse("demo.json", []byte(script))
	require.NoError(t, err)
	return m
}

func TestReply_FollowsTheConversation(t *testing.T) {
	t.Parallel()
	m := parse(t, example)
	ignore := func(loop.Delta) {}

	second, err := m.Reply(t.Context(), conversation(1), ignore)
	require.NoError(t, err)
	require.Equal(t, loop.Reply{
		Text: "done", Model: "script", Scripted: true,
		Usage: protocol.Usage{InputTokens: 7, OutputTokens: 2},
	}, second)

	first, err := m.Reply(t.Context(), conversation(0), ignore)
	require.NoError(t, err, "it must not matter what was asked before")
	require.Equal(t, loop.Reply{
		Text: "Let me look.", Model: "script", Scripted: true,
		ToolCalls: []loop.ToolCall{
			{ID: "c1", Name: "bash", Arguments: `{"command":"true","n":1.0}`},
			{ID: "c2", Name: "read", Arguments: "{"},
			{ID: "step1_call3", Name: "list", Arguments: "{}"},
		},
	}, first)

	first.ToolCalls[0].Name = "changed"
	again, err := m.Reply(t.Context(), conversation(0), ignore)
	require.NoError(t, err)
	require.Equal(t, "bash", again.ToolCalls[0].Name, "a caller must not be able to change the script")
}

func TestReply_BehindTheLastStepIsAnError(t *testing.T) {
	t.Parallel()
	_, err := parse(t, example).Reply(t.Context(), conversation(2), func(loop.Delta) {})
	var end *scripted.EndError
	require.ErrorAs(t, err, &end)
	require.Equal(t, scripted.EndError{Script: "demo.json", Steps: 2, Asked: 3}, *end)
	require.Equal(t, "script_ended", end.ErrorType())
	require.ErrorContains(t, err, "script demo.json has 2 steps and step 3 was asked for")
}

func TestReply_StreamsWords(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		text string
		want []string
	}{
		"words":              {"Let me  look\nnow.", []string{"Let ", "me  ", "look\n", "now."}},
		"space at both ends": {" a b \n", []string{" ", "a ", "b \n"}},
		"only space":         {" \t", []string{" \t"}},
		"no text":            {"", nil},
		"not ASCII":          {"größer\u00a0als 東京 ", []string{"größer\u00a0", "als ", "東京 "}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.want, stream(t, test.text))
		})
	}
}

func TestReply_PiecesAreTheText(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		text := rapid.StringOf(rapid.RuneFrom([]rune("ab \n\té"))).Draw(r, "text")
		require.Equal(r, text, strings.Join(stream(t, text), ""))
	})
}

// stream returns the pieces in which a model says the text.
func stream(t *testing.T, text string) []string {
	t.Helper()
	quoted := strings.NewReplacer("\n", `\n`, "\t", `\t`).Replace(text)
	m := parse(t, `{"steps":[{"text":"`+quoted+`"}]}`)
	var pieces []string
	reply, err := m.Reply(t.Context(), conversation(0), func(piece loop.Delta) { pieces = append(pieces, piece.Text) })
	require.NoError(t, err)
	require.Equal(t, text, reply.Text)
	return pieces
}

func TestReply_RefersToResults(t *testing.T) {
	t.Parallel()
	m := parse(t, `{"steps":[{"text":"a"},{"tool_calls":[
		{"name":"process","arguments":{"process":"{{c1 p-[0-9a-f]+}}","text":"{{c2 p-.}} {{c1 none}} {{c1 (}} {{c1}}"}},
		{"name":"process","arguments_raw":"{{c1 p-[0-9a-f]+}}{{c1 on}}"}]}]}`)
	request := loop.Request{Messages: []loop.Message{
		{Role: loop.RoleTool, ToolCallID: "c1", Text: "p-0 of another turn"},
		{Role: loop.RoleAssistant},
		{Role: loop.RoleTool, ToolCallID: "c1", Text: "process p-12ab goes on"},
	}}
	for range 2 {
		reply, err := m.Reply(t.Context(), request, func(loop.Delta) {})
		require.NoError(t, err)
		require.JSONEq(t, `{"process":"p-12ab","text":"{{c2 p-.}} {{c1 none}} {{c1 (}} {{c1}}"}`, reply.ToolCalls[0].Arguments)
		require.Equal(t, "p-12abon", reply.ToolCalls[1].Arguments)
	}
}

func TestReply_ThinksAndIsCut(t *testing.T) {
	t.Parallel()
	m := parse(t, `{"steps":[{"text":"a","reasoning":"hm","finish":"length"}]}`)
	var thought string
	reply, err := m.Reply(t.Context(), conversation(0), func(d loop.Delta) { thought += d.Reasoning })
	require.NoError(t, err)
	require.True(t, reply.Cut)
	require.Equal(t, &loop.Reasoning{Text: "hm"}, reply.Reasoning)
	require.Equal(t, "hm", thought)
}

func TestReply_WaitsBeforeEachPiece(t *testing.T) {
	t.Parallel()
	m := parse(t, `{"delay_ms":100,"steps":[{"text":"a b c"},{"text":"a b","delay_ms":1},{"text":"a b","delay_ms":0}]}`)
	for replies, want := range []time.Duration{300 * time.Millisecond, 2 * time.Millisecond, 0} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			_, err := m.Reply(t.Context(), conversation(replies), func(loop.Delta) {})
			require.NoError(t, err)
			require.Equal(t, want, time.Since(start))
		})
	}
}

func TestReply_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"while it waits":      `{"steps":[{"text":"a b c","delay_ms":1000}]}`,
		"without a delay":     `{"steps":[{"text":"a b c"}]}`,
		"with no text at all": `{"steps":[{"tool_calls":[{"name":"bash"}]}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeoutCause(t.Context(), 1500*time.Millisecond, os.ErrDeadlineExceeded)
				defer cancel()
				pieces := 0
				if !strings.Contains(script, "delay_ms") {
					<-ctx.Done()
				}
				_, err := parse(t, script).Reply(ctx, conversation(0), func(loop.Delta) { pieces++ })
				require.ErrorIs(t, err, os.ErrDeadlineExceeded)
				require.LessOrEqual(t, pieces, 1)
			})
		})
	}
}

func TestParse_NamesEveryFault(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		script string
		want   []string
	}{
		"empty file":         {``, []string{"not JSON: it ends too early"}},
		"cut off":            {`{"steps":[`, []string{"not JSON: it ends too early"}},
		"syntax":             {"{\n  \"steps\": [,]}", []string{"not JSON: line 2, column 13", "invalid character ','"}},
		"text behind it":     {"{\"steps\":[{\"text\":\"a\"}]}\n{}", []string{"line 2, column 1", "unexpected text"}},
		"a list":             {`[]`, []string{"is a JSON array, must be an object with steps, delay_ms"}},
		"no steps":           {`{}`, []string{`"steps": needs one step or more`}},
		"unknown field":      {`{"step":[]}`, []string{`unknown field "step"; allowed are steps, delay_ms`}},
		"delay too long":     {`{"delay_ms":60001,"steps":[{"text":"a"}]}`, []string{`"delay_ms": 60001, must be 0 to 60000`}},
		"step delay":         {`{"steps":[{"text":"a","delay_ms":-1}]}`, []string{`step 1: "delay_ms": -1`}},
		"step is text":       {`{"steps":[{"text":"a"},"b"]}`, []string{"step 2: is a JSON string, must be an object with text, tool_calls"}},
		"step unknown field": {`{"steps":[{"txt":"a"}]}`, []string{`step 1: unknown field "txt"; allowed are text, tool_calls, delay_ms, usage`}},
		"step wrong type":    {`{"steps":[{"text":1}]}`, []string{`step 1: "text": is a JSON number`}},
		"step without both":  {`{"steps":[{}]}`, []string{"step 1: has neither text nor tool_calls"}},
		"negative usage":     {`{"steps":[{"text":"","usage":{"input_tokens":-1}}]}`, []string{"step 1: usage: must not be negative"}},
		"call without name":  {`{"steps":[{"tool_calls":[{"id":"a"}]}]}`, []string{`step 1: tool call 1: "name": missing; allowed are id, name`}},
		"call unknown field": {`{"steps":[{"tool_calls":[{"name":"a","args":{}}]}]}`, []string{`step 1: tool call 1: unknown field "args"`}},
		"call with both": {
			`{"steps":[{"tool_calls":[{"name":"a","arguments":{},"arguments_raw":"{}"}]}]}`,
			[]string{`step 1: tool call 1: has both "arguments" and "arguments_raw"`},
		},
		"arguments no object": {
			`{"steps":[{"tool_calls":[{"name":"a","arguments":"{}"}]}]}`,
			[]string{`tool call 1: "arguments": must be an object`, "arguments_raw"},
		},
		"arguments null": {
			`{"steps":[{"tool_calls":[{"name":"a","arguments":null}]}]}`,
			[]string{`tool call 1: "arguments": must be an object`},
		},
		"same id twice": {
			`{"steps":[{"tool_calls":[{"id":"a","name":"x"},{"id":"a","name":"y"}]}]}`,
			[]string{`tool call 2: id "a" is the id of tool call 1 too`},
		},
		"several": {
			`{"delay_ms":-1,"steps":[{"tool_calls":[{},{"nam":"x"}]},{"text":"ok"},{}]}`,
			[]string{`"delay_ms": -1`, `step 1: tool call 1: "name"`, `tool call 2: unknown field "nam"`, "step 3: has neither"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := scripted.Parse("demo.json", []byte(test.script))
			require.ErrorIs(t, err, scripted.ErrInvalidScript)
			require.ErrorContains(t, err, "demo.json")
			for _, want := range test.want {
				require.ErrorContains(t, err, want)
			}
		})
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	good, bad, missing := filepath.Join(dir, "good.json"), filepath.Join(dir, "bad.json"), filepath.Join(dir, "missing.json")
	require.NoError(t, os.WriteFile(good, []byte(example), 0o600))
	require.NoError(t, os.WriteFile(bad, []byte(`{"steps":[]}`), 0o600))

	m, err := scripted.Load(good)
	require.NoError(t, err)
	_, err = m.Reply(t.Context(), conversation(2), func(loop.Delta) {})
	require.ErrorContains(t, err, good)

	_, err = scripted.Load(bad)
	require.ErrorIs(t, err, scripted.ErrInvalidScript)
	require.ErrorContains(t, err, bad)

	_, err = scripted.Load(missing)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, missing)
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(example))
	f.Add([]byte(`{"delay_ms":0,"steps":[{"tool_calls":[{"name":"a","arguments":{}}]}]}`))
	f.Add([]byte(`{"steps":[{"tool_calls":[{"name":"a","arguments":`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := scripted.Parse("fuzz", data)
		if err != nil {
			require.ErrorIs(t, err, scripted.ErrInvalidScript)
			return
		}
		if strings.Contains(strings.ToLower(string(data)), "delay_ms") {
			return
		}
		reply, err := m.Reply(t.Context(), conversation(0), func(loop.Delta) {})
		require.NoError(t, err)
		for _, call := range reply.ToolCalls {
			require.NotEmpty(t, call.ID)
			require.NotEmpty(t, call.Name)
		}
	})
}
