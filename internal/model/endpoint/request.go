package endpoint

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolfleet/toolfleet/internal/model/lenient"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// NoText stands for a text that is empty: servers reject a message without a content.
const NoText = "(empty)"

// TextOf returns a text, or [NoText] for an empty one.
func TextOf(text string) string {
	if text == "" {
		return NoText
	}
	return text
}

// SchemaOf is the schema of a tool's arguments; an object without properties if it has none.
func SchemaOf(definition tools.Definition) json.RawMessage {
	if len(definition.Schema) > 0 {
		return definition.Schema
	}
	return json.RawMessage(`{"type":"object","properties":{}}`)
}

// Piece is a piece of a reply as [loop.Reasoning].Opaque has it. Texts and tool calls are the
// conversation's; only their signatures and positions are kept.
type Piece struct {
	Type      string          `json:"type"`
	Text      int             `json:"text,omitempty"` // its length in bytes
	Signature string          `json:"signature,omitempty"`
	Raw       json.RawMessage `json:"raw,omitempty"` // of a piece that is only the provider's
}

// Keep sets the reasoning of a reply: what was thought, and the pieces under the name of their API,
// unless they are only texts and calls.
func (a *Assembler) Keep(api string, pieces []Piece) {
	var kept json.RawMessage
	if slices.ContainsFunc(pieces, func(p Piece) bool { return p.Raw != nil || p.Signature != "" }) {
		kept, _ = json.Marshal(map[string][]Piece{api: pieces}) // of JSON and strings
	}
	if kept != nil || !a.Thought.IsEmpty() {
		a.Reasoning = &loop.Reasoning{Text: a.Thought.String(), Opaque: kept}
	}
}

// Kept are the pieces of a message of this turn; none of another API's.
func Kept(api string, message *loop.Message) []Piece {
	var kept map[string][]Piece
	if message.Reasoning == nil || json.Unmarshal(message.Reasoning.Opaque, &kept) != nil {
		return nil
	}
	return kept[api]
}

// The types of pieces that are texts and tool calls; all others are only the provider's.
const (
	PieceText = "text"
	PieceCall = "call"
)

// Replay is how an adapter writes what the model said, piece by piece. A signature may be "".
type Replay struct {
	Text func(said, signature string)
	Call func(call *loop.ToolCall, signature string)
	Raw  func(piece json.RawMessage)
}

// Message writes an assistant message in the order in which its reply came, as far as that was
// kept; it has at least a text or a call.
func (r Replay) Message(message *loop.Message, kept []Piece) {
	text, calls, written := message.Text, message.ToolCalls, false
	addCall := func(signature string) {
		r.Call(&calls[0], signature)
		calls, written = calls[1:], true
	}
	for _, piece := range kept {
		isCall := piece.Type == PieceCall || piece.Type == "tool_use" // of journals of Anthropic's models
		switch {
		case isCall && len(calls) > 0:
			addCall(piece.Signature)
		case isCall:
		case piece.Raw != nil:
			r.Raw(piece.Raw)
		case piece.Text <= len(text):
			end := piece.Text
			for end < len(text) && !utf8.RuneStart(text[end]) { // bytes that were no UTF-8 have become more
				end++
			}
			if said := text[:end]; strings.TrimSpace(said) != "" || piece.Signature != "" {
				r.Text(said, piece.Signature)
				written = true
			}
			text = text[end:]
		}
	}
	if strings.TrimSpace(text) != "" {
		r.Text(text, "")
	} else if !written && len(calls) == 0 {
		r.Text(NoText, "")
	}
	for len(calls) > 0 {
		addCall("")
	}
}

// maxName is how many characters a name may have.
const maxName = 64

// ToolName is the name of a tool as servers take it back. A model may make up others, and a server
// that refuses one would refuse every further request of the session.
func ToolName(written string) string {
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' {
			return r
		}
		return '_'
	}, written)
	if name == "" {
		return "_"
	}
	return name[:min(len(name), maxName)]
}

// Arguments is what the model wrote if that is a JSON object, else an object
// that holds it. One with half a surrogate pair is none: several servers fail on it.
func Arguments(written string) string {
	if jsontext.Value(written).IsValid(jsontext.AllowDuplicateNames(true)) && strings.HasPrefix(strings.TrimSpace(written), "{") {
		return written
	}
	wrapped, err := json.Marshal(map[string]string{"invalid_arguments": written})
	if err != nil {
		return "{}"
	}
	return string(wrapped)
}

// Native is how a tool is declared to a provider that runs it, in that provider's own form.
func Native(definition tools.Definition, provider string) (declared json.RawMessage, is bool) {
	fields, err := lenient.FieldsOf("", definition.Native[provider])
	return definition.Native[provider], err == nil && lenient.String(fields["type"]) != ""
}

// IsNative reports whether a tool is declared to the provider in a type that begins with kind.
func IsNative(definition tools.Definition, provider, kind string) bool {
	declared, err := lenient.FieldsOf("", definition.Native[provider])
	return err == nil && strings.HasPrefix(lenient.String(declared["type"]), kind)
}

// NativeName is the name of the offered tool that is declared to the provider in a type that begins
// with kind; kind if there is none.
func NativeName(offered []tools.Definition, provider, kind string) string {
	for _, definition := range offered {
		if IsNative(definition, provider, kind) {
			return definition.Name
		}
	}
	return kind
}

// NativeImage is an image of base64; nil if it is none, or none that models take.
func NativeImage(mediaType, encoded string) *loop.Image {
	data, err := base64.StdEncoding.DecodeString(encoded)
	switch mediaType {
	case "image/png", "image/jpeg", "image/gif", "image/webp":
	default:
		return nil
	}
	if err != nil || len(data) == 0 {
		return nil
	}
	return &loop.Image{MediaType: mediaType, Data: data}
}

// NativeText is the first of the named fields that is a text; "" if none is.
func NativeText(object lenient.Fields, names ...string) string {
	for _, name := range names {
		if text := lenient.String(object[name]); text != "" {
			return text
		}
	}
	return ""
}

// Bounds of one reply's stream, in bytes.
const (
	maxLine   = 8 << 20
	maxStream = 64 << 20
)

// ErrNotDone ends a stream that closed without its final [DONE]. Whether something is
// missing, the reader must tell from what it got.
var ErrNotDone = errors.New("the stream ended without [DONE]")

// Events is the body of a streamed answer, reduced to its data. Comments, keep-alives and other
// fields are left out. Data may stand on several lines, and lines may end in CR, LF or both. An
// error object ends it with an [*Error], and so does everything else that breaks it.
type Events struct {
	body     io.Closer
	lines    *bufio.Reader
	endpoint *Endpoint
	dog      *watchdog
	size     int    // of all lines so far
	afterCR  bool   // the last line ended in CR: an LF belongs to it
	part     []byte // the data of an event whose lines have not all come
	end      error  // once set, returned for ever
}

func newEvents(body io.ReadCloser, e *Endpoint, dog *watchdog) *Events {
	return &Events{body: body, lines: bufio.NewReader(watchedReader{body, dog}), endpoint: e, dog: dog}
}

// watchedReader reports every read to the watchdog.
type watchedReader struct {
	io.Reader

	dog *watchdog
}

func (r watchedReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if n > 0 {
		r.dog.restart()
	}
	return n, err
}

// Close implements [io.Closer].
func (e *Events) Close() error {
	e.dog.stop()
	return e.body.Close()
}

// Next returns the data of the next event, and io.EOF behind the last.
func (e *Events) Next() ([]byte, error) {
	for e.end == nil {
		line, err := e.line()
		if err != nil {
			e.end = err
			if !errors.Is(err, ErrNotDone) {
				break // what stands on a broken line is not whole
			}
		}
		data := e.addLine(line)
		if len(data) == 0 && err != nil {
			data = e.flushEvent()
		}
		if reported, ok := e.serverError(data); ok {
			e.end = reported
		} else if len(data) > 0 {
			return data, nil
		}
	}
	return nil, e.end
}

// addLine adds the next line, and returns the data that it completes, if any. Data that is
// whole on its first line is returned without the empty line behind: not every server sends one.
func (e *Events) addLine(line []byte) []byte {
	line = bytes.TrimSpace(bytes.TrimPrefix(line, []byte("\uFEFF")))
	data, isData := bytes.CutPrefix(line, []byte("data:"))
	data = bytes.TrimSpace(data)
	if !isData {
		if len(line) == 0 {
			return e.flushEvent()
		}
		if _, bare := e.serverError(line); bare { // of a server that reports errors without the form of an event
			return line
		}
		return nil
	}
	switch {
	case string(data) == "[DONE]":
		e.end = io.EOF
		return e.flushEvent()
	case len(e.part) == 0 && json.Valid(data):
		return data
	case len(e.part) > 0:
		e.part = append(e.part, '\n')
	}
	e.part = append(e.part, data...)
	return nil
}

// flushEvent returns the data of the lines that have come.
func (e *Events) flushEvent() []byte {
	part := e.part
	e.part = nil
	return part
}

func (e *Events) serverError(data []byte) (*Error, bool) {
	if !bytes.Contains(data, []byte(`"error"`)) {
		return nil, false // every form has it; this saves decoding each chunk twice
	}
	reported, ok := parseError(data, true)
	if !ok {
		return nil, false
	}
	return e.endpoint.serverError(typeInStream(reported), reported), true
}

// line reads up to the next end of a line, which it leaves out, or what stands before the end.
func (e *Events) line() ([]byte, error) {
	var line []byte
	for {
		c, err := e.lines.ReadByte()
		skip := err == nil && c == '\n' && e.afterCR
		e.afterCR = false
		switch {
		case errors.Is(err, io.EOF):
			return line, ErrNotDone
		case err != nil:
			failure := e.endpoint.NewError(TypeStreamBroken, "the answer broke off: "+err.Error())
			failure.cause = err
			return nil, e.dog.explain(failure)
		case skip:
			continue
		case c == '\n', c == '\r':
			e.afterCR = c == '\r'
			return line, nil
		}
		line = append(line, c)
		if e.size++; len(line)+len(e.part) > maxLine || e.size > maxStream {
			return nil, e.endpoint.NewError(TypeInvalidResponse, "the reply is too long")
		}
	}
}
