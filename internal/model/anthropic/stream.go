package anthropic

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/model/endpoint"
	"github.com/toolfleet/toolfleet/internal/model/lenient"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// Types of blocks.
const (
	typeText    = "text"
	typeToolUse = "tool_use"
)

// assembler puts a reply together from the events of its streams: several, if it was paused.
type assembler struct {
	endpoint.Assembler

	blocks    []*block
	byIndex   map[int]*block // of the current stream
	input     usage          // of the current stream
	before    protocol.Usage // of those before
	continued int
}

// block is one block of a reply.
type block struct {
	kind   string
	number int // from 0, in the reply
	raw    lenient.Fields
	grown  map[string]*lenient.Text // fields that come in pieces
}

// usage is what the API counts apart.
type usage struct{ input, cacheRead, cacheWritten, output, thought int64 }

// begin starts with the next stream.
func (a *assembler) begin() {
	a.before, a.input, a.byIndex, a.Finish = a.Usage, usage{}, map[int]*block{}, ""
}

// read adds the next event, and passes its text to delta.
func (a *assembler) read(data []byte, delta func(loop.Delta)) error {
	event, err := lenient.Event("an event", data)
	if err != nil {
		return err
	}
	switch event.String("type") {
	case "message_start":
		message := event.Object("message")
		a.Model, a.ID = message.String("model"), message.String("id")
		a.count(message.Fields["usage"])
	case "content_block_start":
		a.start(event)
	case "content_block_delta":
		a.grow(event)
		a.Emit(delta)
	case "message_delta":
		if reason := event.Object("delta").String("stop_reason"); reason != "" {
			a.Finish = reason
		}
		a.count(event.Fields["usage"])
	}
	return event.Fault()
}

func (a *assembler) start(event lenient.Object) {
	raw := event.Object("content_block").Fields
	if raw == nil {
		raw = lenient.Fields{}
	}
	b := a.add(event.Index("index"), lenient.String(raw["type"]), raw)
	switch b.kind {
	case typeText:
		a.addText(b, "text", lenient.Piece(raw["text"]))
	case "thinking":
		a.addText(b, "thinking", lenient.Piece(raw["thinking"]))
		b.grow("signature", lenient.Piece(raw["signature"]))
	case typeToolUse:
		a.AddCall(endpoint.CallPiece{
			Index: b.number, ID: lenient.String(raw["id"]), Name: lenient.String(raw["name"]), Arguments: lenient.Written(raw["input"]),
		})
	}
}

func (a *assembler) add(index int, kind string, raw lenient.Fields) *block {
	b := &block{kind: kind, number: len(a.blocks), raw: raw, grown: map[string]*lenient.Text{}}
	a.blocks, a.byIndex[index] = append(a.blocks, b), b
	return b
}

func (a *assembler) grow(event lenient.Object) {
	index, change := event.Index("index"), event.Object("delta").Fields
	kind := lenient.String(change["type"])
	b := a.byIndex[index]
	if b == nil { // of a server that does not start its blocks
		of := map[string]string{"text_delta": typeText, "thinking_delta": "thinking", "signature_delta": "thinking"}[kind]
		if of == "" {
			event.Fail(fmt.Errorf("index %d: no block of the reply", index))
			return
		}
		b = a.add(index, of, lenient.Fields{"type": json.RawMessage(`"` + of + `"`)})
	}
	switch kind {
	case "text_delta":
		a.addText(b, "text", lenient.Piece(change["text"]))
	case "thinking_delta":
		a.addText(b, "thinking", lenient.Piece(change["thinking"]))
	case "signature_delta":
		b.grow("signature", lenient.Piece(change["signature"]))
	case "input_json_delta":
		if b.kind == typeToolUse {
			a.AddCall(endpoint.CallPiece{Index: b.number, Arguments: lenient.Written(change["partial_json"])})
		}
		b.grow("input", lenient.Written(change["partial_json"]))
	}
}

// addText adds to a field that people read.
func (a *assembler) addText(b *block, field, piece string) {
	b.grow(field, piece)
	switch field {
	case "text":
		a.Text.Add(piece)
	case "thinking":
		a.Thought.Add(piece)
	}
}

func (b *block) grow(field, piece string) {
	if b.grown[field] == nil {
		b.grown[field] = &lenient.Text{}
	}
	b.grown[field].Add(piece)
}

// whole is the block as the API takes it back; nil of one that is empty, or not whole.
func (b *block) whole() json.RawMessage {
	for field, text := range b.grown {
		switch {
		case field == "input" && text.IsEmpty():
		case field == "input" && !json.Valid([]byte(text.Raw())):
			return nil
		case field == "input":
			b.raw[field] = json.RawMessage(text.Raw())
		default:
			quoted, err := json.Marshal(text.String())
			if err != nil {
				return nil
			}
			b.raw[field] = quoted
		}
	}
	if b.kind == typeText && lenient.IsBlank(b.raw["text"]) {
		return nil
	}
	raw, err := json.Marshal(b.raw)
	if err != nil {
		return nil
	}
	return raw
}

// count takes in what the API counts, of the whole message each time; absent counts stay.
func (a *assembler) count(raw json.RawMessage) {
	counts, err := lenient.FieldsOf("usage", raw)
	if err != nil {
		return
	}
	for name, at := range map[string]*int64{
		"input_tokens": &a.input.input, "output_tokens": &a.input.output,
		"cache_read_input_tokens": &a.input.cacheRead, "cache_creation_input_tokens": &a.input.cacheWritten,
	} {
		if n, err := lenient.Whole(counts[name]); err == nil && n >= 0 {
			*at = n
		}
	}
	if details, err := lenient.FieldsOf("output_tokens_details", counts["output_tokens_details"]); err == nil {
		a.input.thought = max(a.input.thought, lenient.Count(details, "thinking_tokens", "reasoning_tokens"))
	}
	a.Usage = a.before.Add(protocol.Usage{
		InputTokens:  a.input.input + a.input.cacheRead + a.input.cacheWritten,
		OutputTokens: a.input.output, CachedTokens: a.input.cacheRead, CacheWriteTokens: a.input.cacheWritten, ReasoningTokens: a.input.thought,
	})
}

// pieces are the blocks of the reply.
func (a *assembler) pieces() (pieces []endpoint.Piece) {
	for _, b := range a.blocks {
		switch b.kind {
		case typeText:
			pieces = append(pieces, endpoint.Piece{Type: endpoint.PieceText, Text: len(b.grown["text"].String())})
		case typeToolUse:
			pieces = append(pieces, endpoint.Piece{Type: endpoint.PieceCall})
		default:
			if raw := b.whole(); raw != nil {
				pieces = append(pieces, endpoint.Piece{Type: b.kind, Raw: raw})
			}
		}
	}
	return pieces
}

// ownBlocks are the blocks of a message of this turn, also without thoughts.
func ownBlocks(message *loop.Message, withoutThoughts bool) []endpoint.Piece {
	kept := endpoint.Kept(provider, message)
	if !withoutThoughts {
		return kept
	}
	rest := slices.DeleteFunc(kept, func(k endpoint.Piece) bool { return isThought(k.Type) })
	if !slices.ContainsFunc(rest, func(k endpoint.Piece) bool { return k.Raw != nil }) {
		return nil // texts and calls are the message's
	}
	return rest
}

// isThought reports whether a type of block is one of thinking.
func isThought(kind string) bool { return kind == "thinking" || kind == "redacted_thinking" }

// native are the calls of the reply that the server ran itself, each with the result that names it.
func (a *assembler) native(offered []tools.Definition) []loop.NativeCall {
	var calls []loop.NativeCall
	byID := map[string]int{}
	for _, b := range a.blocks {
		whole, err := lenient.FieldsOf("block", b.whole())
		if err != nil {
			continue
		}
		if b.kind == "server_tool_use" {
			input, _ := lenient.FieldsOf("input", whole["input"])
			text := cmp.Or(endpoint.NativeText(input, "query", "command", "code", "url"), string(whole["input"]))
			byID[lenient.String(whole["id"])] = len(calls)
			kind := nativeKind(lenient.String(whole["name"]))
			calls = append(calls, loop.NativeCall{Name: endpoint.NativeName(offered, provider, kind), Kind: kind, Input: text})
			continue
		}
		if at, known := byID[lenient.String(whole["tool_use_id"])]; known && strings.HasSuffix(b.kind, "_tool_result") {
			calls[at].Output, calls[at].Failed = nativeResult(whole["content"])
		}
	}
	return calls
}

// nativeKind is the type of the tool as it is declared: code execution has several names here.
func nativeKind(name string) string {
	for _, kind := range []string{"web_search", "web_fetch", "code_execution"} {
		if strings.HasSuffix(name, kind) {
			return kind
		}
	}
	return name
}

// nativeResult returns the result for people: titles and addresses, or the output of a program.
func nativeResult(raw json.RawMessage) (text string, failed bool) {
	if lenient.Kind(raw) == '[' {
		list, _ := lenient.List("content", raw)
		var lines []string
		for _, entry := range list {
			found, _ := lenient.FieldsOf("result", entry)
			lines = append(lines, strings.TrimSpace(lenient.String(found["title"])+" "+lenient.String(found["url"])))
		}
		return strings.Join(lines, "\n"), false
	}
	content, _ := lenient.FieldsOf("content", raw)
	if code := lenient.String(content["error_code"]); code != "" {
		return code, true
	}
	text = cmp.Or(lenient.String(content["stdout"])+lenient.String(content["stderr"]), endpoint.NativeText(content, "content", "url"))
	code, err := lenient.Whole(content["return_code"])
	return text, err == nil && code != 0
}
