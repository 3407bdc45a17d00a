package openai

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/model/endpoint"
	"github.com/toolfleet/toolfleet/internal/model/lenient"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// read puts chunks together, and returns the reply with what was told live.
func read(tb testing.TB, chunks ...string) (reply loop.Reply, live loop.Delta) {
	tb.Helper()
	var a assembler
	for _, chunk := range chunks {
		require.NoError(tb, a.read([]byte(chunk), func(d loop.Delta) {
			require.True(tb, utf8.ValidString(d.Text+d.Reasoning), "what is told is whole: %q", d)
			live.Text += d.Text
			live.Reasoning += d.Reasoning
		}))
	}
	a.Reasoning = a.reasoning()
	return a.Reply(), live
}

func deltaChunk(message string) string { return `{"choices":[{"delta":` + message + `}]}` }

// Fields that nobody needs may have any form, and those that are read every form that can mean
// only one thing.
func TestRead_IsLenientInForm(t *testing.T) {
	t.Parallel()
	call := func(arguments string) loop.ToolCall { return loop.ToolCall{ID: "a", Name: "x", Arguments: arguments} }
	tests := map[string]struct {
		chunks []string
		want   loop.Reply
	}{
		"fields that are not read": {
			[]string{`{"id":7,"object":[],"created":1.7e9,"system_fingerprint":{},"service_tier":1,"choices":[{"index":0,"logprobs":"x","delta":{"role":5,"content":"hi","annotations":{}}}]}`},
			loop.Reply{Text: "hi"},
		},
		"created as text": {[]string{`{"created":"2026-01-01","choices":[{"delta":{"content":"hi"}}]}`}, loop.Reply{Text: "hi"}},
		"no choices":      {[]string{`{}`, `{"choices":null}`, `{"choices":[]}`, deltaChunk(`null`)}, loop.Reply{}},
		"one choice":      {[]string{`{"choices":{"index":"0","delta":{"content":"hi"}}}`}, loop.Reply{Text: "hi"}},
		"index as float":  {[]string{`{"choices":[{"index":0.0,"delta":{"content":"hi"}},{"index":"1","delta":{"content":"no"}}]}`}, loop.Reply{Text: "hi"}},
		"usage as floats": {[]string{`{"usage":{"prompt_tokens":12.0,"completion_tokens":3e0}}`}, loop.Reply{Usage: protocol.Usage{InputTokens: 12, OutputTokens: 3}}},
		"usage as text":   {[]string{`{"usage":{"prompt_tokens":"12","completion_tokens":"x"}}`}, loop.Reply{Usage: protocol.Usage{InputTokens: 12}}},
		"usage in detail": {
			[]string{`{"usage":{"prompt_tokens":12,"completion_tokens":9,"prompt_tokens_details":{"cached_tokens":5},"completion_tokens_details":{"reasoning_tokens":"4"}}}`},
			loop.Reply{Usage: protocol.Usage{InputTokens: 12, OutputTokens: 9, CachedTokens: 5, ReasoningTokens: 4}},
		},
		"usage of DeepSeek": {
			[]string{`{"usage":{"prompt_tokens":12,"completion_tokens":9,"prompt_cache_hit_tokens":6,"prompt_tokens_details":[]}}`},
			loop.Reply{Usage: protocol.Usage{InputTokens: 12, OutputTokens: 9, CachedTokens: 6}},
		},
		"usage of others": {
			[]string{`{"usage":{"input_tokens":12,"output_tokens":3}}`, `{"usage":"none"}`},
			loop.Reply{Usage: protocol.Usage{InputTokens: 12, OutputTokens: 3}},
		},
		"content as parts":  {[]string{deltaChunk(`{"content":[{"type":"text","text":"he"},{"type":"reference","ids":[1]},"llo",{"text":"!"}]}`)}, loop.Reply{Text: "hello!"}},
		"content as number": {[]string{deltaChunk(`{"content":4}`), deltaChunk(`{"content":"2"}`)}, loop.Reply{Text: "42"}},
		"thoughts as parts": {
			[]string{deltaChunk(`{"content":[{"type":"thinking","thinking":[{"type":"text","text":"hm"}]}]}`), deltaChunk(`{"content":"hi"}`)},
			loop.Reply{Text: "hi", Reasoning: &loop.Reasoning{Text: "hm", Opaque: []byte("{}")}},
		},
		"arguments as an object": {
			[]string{deltaChunk(`{"tool_calls":[{"index":0,"id":"a","function":{"name":"x","arguments":{"n":9007199254740993,"s":"é"}}}]}`)},
			loop.Reply{ToolCalls: []loop.ToolCall{call(`{"n":9007199254740993,"s":"é"}`)}},
		},
		"no arguments yet": {
			[]string{
				deltaChunk(`{"tool_calls":[{"index":0,"id":"a","function":{"name":"x","arguments":{ }}}]}`),
				deltaChunk(`{"tool_calls":[{"index":0,"function":{"arguments":"{\"n\":1}"}}]}`),
			},
			loop.Reply{ToolCalls: []loop.ToolCall{call(`{"n":1}`)}},
		},
		"a call by itself, its id a number, its index a text": {
			[]string{
				deltaChunk(`{"tool_calls":{"index":"0","id":7,"function":{"name":"x","arguments":"{"}}}`),
				deltaChunk(`{"tool_calls":[{"index":0.0,"function":{"arguments":"}"}}]}`),
			},
			loop.Reply{ToolCalls: []loop.ToolCall{{ID: "7", Name: "x", Arguments: "{}"}}},
		},
		"no level of the function": {[]string{deltaChunk(`{"tool_calls":[{"id":"a","name":"x","arguments":"{}"}]}`)}, loop.Reply{ToolCalls: []loop.ToolCall{call(`{}`)}}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reply, _ := read(t, test.chunks...)
			require.Equal(t, test.want, reply)
		})
	}
}

// What could mean two things, or nothing, is an error that names the field and its value.
func TestRead_IsStrictInMeaning(t *testing.T) {
	t.Parallel()
	for chunk, want := range map[string]string{
		`"hi"`:          `a chunk is "hi", and should be an object`,
		`{"choices":5}`: `choices is 5, and should be a list`,
		`{"choices":[{"index":"first","delta":{}}]}`:                       `choices[0].index is "first", and should be a whole number`,
		`{"choices":[{"index":0.5,"delta":{}}]}`:                           `choices[0].index is 0.5, and should be a whole number`,
		`{"choices":[{"delta":"hi"}]}`:                                     `choices[0].delta is "hi", and should be an object`,
		deltaChunk(`{"content":true}`):                                     `choices[0].delta.content is true, and should be a text`,
		deltaChunk(`{"content":[[true]]}`):                                 `choices[0].delta.content[0][0] is true, and should be a text`,
		deltaChunk(`{"tool_calls":"x"}`):                                   `choices[0].delta.tool_calls is "x", and should be a list`,
		deltaChunk(`{"tool_calls":[{"index":[0]}]}`):                       `choices[0].delta.tool_calls[0].index is [0], and should be a whole number`,
		deltaChunk(`{"tool_calls":[{"function":"` + "xxxxxxxxxx" + `"}]}`): `choices[0].delta.tool_calls[0].function is "xxxxxxxxxx", and should be an object`,
	} {
		err := new(assembler).read([]byte(chunk), func(loop.Delta) {})
		require.EqualError(t, err, want, chunk)
	}
}

// A character that is cut, in the middle of its surrogate pair or of its bytes, arrives whole
// wherever text is put together.
func TestRead_CharactersCutBetweenDeltas(t *testing.T) {
	t.Parallel()
	const want = "a😀é😀"
	for name, pieces := range map[string][]string{
		"surrogate pairs": {`a\ud83d`, `\ude00é\uD83D`, `\uDE00`},
		"bytes":           {"a\xf0", "\x9f\x98", "\x80\xc3", "\xa9\xf0\x9f\x98", "\x80"},
		"whole":           {`a\ud83d\ude00`, `é😀`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var chunks []string
			for _, piece := range pieces {
				chunks = append(chunks, deltaChunk(`{"content":"`+piece+`","reasoning":"`+piece+`",
					"reasoning_details":[{"type":"t","text":"`+piece+`"}],
					"tool_calls":[{"index":0,"id":"c","function":{"name":"write","arguments":"`+piece+`"}}]}`))
			}
			reply, live := read(t, chunks...)
			require.Equal(t, want, reply.Text)
			require.Equal(t, loop.Delta{Text: want, Reasoning: want}, live)
			require.Equal(t, want, reply.Reasoning.Text)
			require.Equal(t, want, reply.ToolCalls[0].Arguments)
			var kept opaque
			require.NoError(t, json.Unmarshal(reply.Reasoning.Opaque, &kept))
			require.Equal(t, want, lenient.String(kept.Details[0]["text"]))
		})
	}
}

// Half a character that is never made whole is a replacement character in text, and in arguments
// stays what it is, so that they are refused.
func TestRead_HalfACharacter(t *testing.T) {
	t.Parallel()
	reply, _ := read(t, deltaChunk(`{"content":"a\ude00b\ud83d","tool_calls":[{"id":"c","function":{"name":"write","arguments":"{\"x\":\"\ud83d\"}"}}]}`))
	require.Equal(t, "a\uFFFDb\uFFFD", reply.Text)
	require.Contains(t, reply.ToolCalls[0].Arguments, "\"\xed\xa0\xbd\"")
	for written, whole := range map[string]bool{`{"x":"\ud83d\ude00"}`: true, `{"x":1,"x":2}`: true, `{"x":"\ud83d"}`: false, `{"x":`: false, `[1]`: false} {
		require.Equal(t, whole, endpoint.Arguments(written) == written, written)
		require.True(t, json.Valid([]byte(endpoint.Arguments(written))))
	}
}

// However a text is cut into deltas, it is the same text.
func FuzzRead_PiecesAreTheWhole(f *testing.F) {
	f.Add("a😀é\n\"\\", 3)
	f.Add("\U0010FFFF\uD7FF\uE000", 1)
	f.Fuzz(func(t *testing.T, text string, size int) {
		text = strings.ToValidUTF8(text, "?")
		units := utf16.Encode([]rune(text))
		size = max(1, size%7)
		var chunks []string
		for len(units) > 0 {
			var piece strings.Builder
			for _, unit := range units[:min(size, len(units))] {
				piece.WriteString(`\u` + string("0123456789abcdef"[unit>>12]) + string("0123456789abcdef"[unit>>8&15]) +
					string("0123456789abcdef"[unit>>4&15]) + string("0123456789abcdef"[unit&15]))
			}
			units = units[min(size, len(units)):]
			chunks = append(chunks, deltaChunk(`{"content":"`+piece.String()+`"}`))
		}
		reply, live := read(t, chunks...)
		require.Equal(t, text, reply.Text)
		require.Equal(t, text, live.Text)
	})
}
