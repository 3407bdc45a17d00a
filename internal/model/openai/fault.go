package openai

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// maxMessage bounds the part of a server's message that errors repeat, in bytes.
const maxMessage = 2000

// serverFault is what a server said about an error, whichever form it used.
type serverFault struct {
	Message string
	Type    string
	Code    string
}

func (f serverFault) mentions(word string) bool {
	return strings.Contains(f.Type, word) || strings.Contains(f.Code, word)
}

type faultFields struct {
	Object  string          `json:"object"`
	Error   json.RawMessage `json:"error"`
	Message json.RawMessage `json:"message"`
	Detail  json.RawMessage `json:"detail"`
	Type    json.RawMessage `json:"type"`
	Code    json.RawMessage `json:"code"`
}

// parseFault reads the forms in which servers report errors: {"error": {...}}, which
// is OpenAI's; a list of those; {"error": "text"}; {"object": "error", "message": ...};
// and, unless it stands within a stream, {"message": ...} and {"detail": ...}. It
// reports whether body is one.
func parseFault(body []byte, inStream bool) (serverFault, bool) {
	body = bytes.TrimSpace(body)
	if bytes.HasPrefix(body, []byte("[")) {
		var list []json.RawMessage
		if json.Unmarshal(body, &list) != nil || len(list) == 0 {
			return serverFault{}, false
		}
		return parseFault(list[0], inStream)
	}
	var outer faultFields
	if json.Unmarshal(body, &outer) != nil {
		return serverFault{}, false
	}
	if isSet(outer.Error) {
		var inner faultFields
		if json.Unmarshal(outer.Error, &inner) != nil || !isSet(inner.Message) {
			return serverFault{Message: textOf(outer.Error), Code: textOf(outer.Code)}, true
		}
		return serverFault{Message: textOf(inner.Message), Type: textOf(inner.Type), Code: textOf(inner.Code)}, true
	}
	if inStream && outer.Object != "error" {
		return serverFault{}, false
	}
	for _, message := range []json.RawMessage{outer.Message, outer.Detail} {
		if isSet(message) {
			return serverFault{Message: textOf(message), Type: textOf(outer.Type), Code: textOf(outer.Code)}, true
		}
	}
	return serverFault{}, false
}

func isSet(raw json.RawMessage) bool { return len(raw) > 0 && string(raw) != "null" }

// textOf is a JSON string's text, and the JSON itself of everything else.
func textOf(raw json.RawMessage) string {
	if !isSet(raw) {
		return ""
	}
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	return string(raw)
}

// excerpt makes a server's text fit for one line of an error.
func excerpt(text string) string {
	text = strings.Join(strings.Fields(strings.ToValidUTF8(text, "\uFFFD")), " ")
	if len(text) <= maxMessage {
		return text
	}
	cut := maxMessage
	for !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + "..."
}
