package toolserver

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// metaStructured is where [adapted] keeps structuredContent, as a text: the SDK would make its
// numbers floats.
const metaStructured = "toolfleet/structured"

// contentTypes are those that the SDK knows; with any other one it gives up the whole connection.
func contentTypes() []string { return []string{"text", "image", "audio", "resource", "resource_link"} }

// adapted is a message of a server with what the SDK does not carry in a form that it does: content
// of an unknown type becomes text, and structuredContent goes into the metadata. Any other message
// is returned as it is.
func adapted(message []byte) []byte {
	if !bytes.Contains(message, []byte(`"result"`)) || !bytes.Contains(message, []byte(`ontent"`)) {
		return message
	}
	var whole, result map[string]json.RawMessage
	if json.Unmarshal(message, &whole) != nil || json.Unmarshal(whole["result"], &result) != nil {
		return message
	}
	var content []json.RawMessage
	_, structured := result["structuredContent"]
	if json.Unmarshal(result["content"], &content) != nil && !structured {
		return message
	}
	for i := range content {
		var part struct{ Type string }
		if json.Unmarshal(content[i], &part) != nil || !slices.Contains(contentTypes(), part.Type) {
			content[i] = encoded(map[string]string{"type": "text", "text": fmt.Sprintf("[content of unknown type %q: %s]", part.Type, content[i])})
		}
	}
	if content != nil {
		result["content"] = encoded(content)
	}
	if structured && string(result["structuredContent"]) != "null" {
		meta := map[string]json.RawMessage{}
		_ = json.Unmarshal(result["_meta"], &meta) // what is no object is no metadata
		if meta == nil {
			meta = map[string]json.RawMessage{}
		}
		meta[metaStructured] = encoded(string(result["structuredContent"]))
		result["_meta"] = encoded(meta)
		delete(result, "structuredContent")
	}
	whole["result"] = encoded(result)
	return encoded(whole)
}

// encoded is JSON of what was JSON before.
func encoded(value any) json.RawMessage {
	body, _ := json.Marshal(value)
	return body
}

// structuredOf is the structuredContent of a result, as its server sent it.
func structuredOf(result *mcp.CallToolResult) json.RawMessage {
	text, _ := result.Meta[metaStructured].(string)
	if !json.Valid([]byte(text)) { // a server can have put anything there
		return nil
	}
	return json.RawMessage(text)
}

// adaptResponse has the messages of a response [adapted].
func adaptResponse(response *http.Response) {
	switch kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type")); kind {
	case "text/event-stream":
		response.Body = &events{ReadCloser: response.Body, in: bufio.NewReader(response.Body)}
	case "application/json":
		response.Body = &events{ReadCloser: response.Body, in: bufio.NewReader(response.Body), whole: true}
		response.ContentLength = -1
		response.Header.Del("Content-Length")
	}
}

// events is a body with its messages [adapted]: each is the data of an event in a line, or the
// whole body.
type events struct {
	io.ReadCloser

	in    *bufio.Reader
	whole bool
	rest  []byte
	err   error // after rest
}

// Read implements [io.Reader].
func (e *events) Read(p []byte) (int, error) {
	for len(e.rest) == 0 {
		if e.err != nil {
			return 0, e.err
		}
		e.rest, e.err = e.next()
	}
	n := copy(p, e.rest)
	e.rest = e.rest[n:]
	return n, nil
}

// next reads a line, or all. What is too long for a message is passed on as it is.
func (e *events) next() ([]byte, error) {
	if e.whole {
		body, err := io.ReadAll(io.LimitReader(e.in, mcp.DefaultMaxLineLength))
		if err != nil || len(body) == mcp.DefaultMaxLineLength {
			e.whole = false
			return body, err
		}
		return adapted(body), io.EOF
	}
	var line []byte
	for {
		part, err := e.in.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull) && len(line) < mcp.DefaultMaxLineLength:
		case errors.Is(err, bufio.ErrBufferFull):
			return line, nil
		case err == nil && bytes.HasPrefix(line, []byte("data:")):
			return slices.Concat([]byte("data: "), adapted(bytes.TrimSpace(line[len("data:"):])), []byte("\n")), nil
		default:
			return line, err
		}
	}
}
