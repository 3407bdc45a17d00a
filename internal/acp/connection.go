package acp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"

	acp "github.com/coder/acp-go-sdk"
)

// maxMessage bounds a message of the client: the attachments of a prompt in base64, and their text.
const maxMessage = 32 << 20

// Codes of JSON-RPC and of the protocol.
const (
	codeParse          = -32700
	codeInvalidRequest = -32600
	codeNoMethod       = -32601
	codeInvalidParams  = -32602
	codeInternal       = -32603
	codeNotFound       = -32002
)

// message is a JSON-RPC message: a request has a method and an id, a notification a method, and a
// response an id.
type message struct {
	Version string            `json:"jsonrpc"`
	ID      json.RawMessage   `json:"id,omitempty"`
	Method  string            `json:"method,omitempty"`
	Params  json.RawMessage   `json:"params,omitempty"`
	Result  json.RawMessage   `json:"result,omitempty"`
	Error   *acp.RequestError `json:"error,omitempty"`
}

// connection sends and receives messages, a line each. The library has one, too; it ends at a
// message of more than 10 MiB, answers no line that is not JSON, and can pass on a cancellation
// before the prompt that it is about. The SDK of MCP exports the messages of JSON-RPC, and no
// connection.
type connection struct {
	writing sync.Mutex
	w       io.Writer

	mu      sync.Mutex
	last    int                     // id of a request to the client
	waiting map[string]chan message // requests to the client, by id
	gone    chan struct{}           // closed when the client sends nothing more
}

// errGone ends requests to a client that sends nothing more.
var errGone = errors.New("the client has closed the connection")

func newConnection(w io.Writer) *connection {
	return &connection{w: w, waiting: map[string]chan message{}, gone: make(chan struct{})}
}

// receive passes the client's requests and notifications to handle, in their order, until r ends.
func (c *connection) receive(r io.Reader, handle func(message)) error {
	defer close(c.gone)
	lines := bufio.NewReaderSize(r, 64<<10)
	for {
		line, size, err := readLine(lines)
		switch {
		case size > maxMessage:
			c.fail(idIn(line), &acp.RequestError{Code: codeInvalidRequest, Message: fmt.Sprintf("Invalid request: a message of %d bytes: must be at most %d", size, maxMessage)})
		case len(bytes.TrimSpace(line)) > 0:
			c.accept(line, handle)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the client's messages: %w", err)
		}
	}
}

// readLine reads a line and its size. Of one that is too long it returns only the beginning.
func readLine(r *bufio.Reader) (line []byte, size int, err error) {
	for {
		piece, err := r.ReadSlice('\n')
		size += len(piece)
		if size <= maxMessage {
			line = append(line, piece...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, size, err
		}
	}
}

// idIn is the id of a request that is cut off; nil if it does not begin with its id.
func idIn(line []byte) json.RawMessage {
	decoder := json.NewDecoder(bytes.NewReader(line))
	if _, err := decoder.Token(); err != nil {
		return nil
	}
	for {
		name, err := decoder.Token()
		if err != nil {
			return nil
		}
		var value json.RawMessage
		if decoder.Decode(&value) != nil {
			return nil
		}
		if name == "id" {
			return value
		}
	}
}

// accept handles one message.
func (c *connection) accept(line []byte, handle func(message)) {
	var m message
	if err := json.Unmarshal(line, &m); err != nil {
		code, text := codeInvalidRequest, "Invalid request: a message must be an object of JSON-RPC 2.0, without batches"
		if !json.Valid(line) {
			code, text = codeParse, "Parse error: a message must be one line of JSON"
		}
		c.fail(nil, &acp.RequestError{Code: code, Message: text})
		return
	}
	switch {
	case m.Method != "":
		handle(m)
	case m.ID != nil && (m.Result != nil || m.Error != nil):
		c.mu.Lock()
		answered := c.waiting[string(m.ID)]
		delete(c.waiting, string(m.ID))
		c.mu.Unlock()
		if answered != nil {
			answered <- m
		}
	default:
		c.fail(m.ID, &acp.RequestError{Code: codeInvalidRequest, Message: "Invalid request: method: is missing"})
	}
}

// send sends a message. A client that is gone is noticed where it is read.
func (c *connection) send(m message) {
	m.Version = "2.0"
	line, err := json.Marshal(m)
	if err != nil {
		panic(fmt.Sprintf("encode message: %v", err)) // what was encoded before always encodes
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	_, _ = c.w.Write(append(line, '\n'))
}

// fail answers a request with an error; a nil id is that of a request that cannot be read.
func (c *connection) fail(id json.RawMessage, err *acp.RequestError) {
	if id == nil {
		id = json.RawMessage("null")
	}
	c.send(message{ID: id, Error: err})
}

// reply answers a request.
func (c *connection) reply(id json.RawMessage, result any) {
	c.send(message{ID: id, Result: encode(result)})
}

// notify sends a notification.
func (c *connection) notify(method string, params any) {
	c.send(message{Method: method, Params: encode(params)})
}

// request sends a request, and decodes its result. When ctx ends, the client is notified that
// no answer is needed any more.
func (c *connection) request(ctx context.Context, method string, params, result any) error {
	answered := make(chan message, 1)
	c.mu.Lock()
	c.last++
	id := strconv.Itoa(c.last)
	c.waiting[id] = answered
	c.mu.Unlock()
	c.send(message{ID: json.RawMessage(id), Method: method, Params: encode(params)})
	select {
	case m := <-answered:
		if m.Error != nil {
			return m.Error
		}
		return json.Unmarshal(m.Result, result)
	case <-ctx.Done():
		c.mu.Lock()
		delete(c.waiting, id)
		c.mu.Unlock()
		c.notify("$/cancel_request", map[string]json.RawMessage{"requestId": json.RawMessage(id)})
		return context.Cause(ctx)
	case <-c.gone:
		return errGone
	}
}

func encode(value any) json.RawMessage {
	encoded, err := json.Marshal(value)
	if err != nil {
		panic(fmt.Sprintf("encode message: %v", err)) // only values that encode are sent
	}
	return encoded
}

// decode reads the parameters of a request. The error names the field.
func decode(params json.RawMessage, into any) *acp.RequestError {
	if len(params) == 0 {
		params = json.RawMessage("{}")
	}
	return badJSON("", json.Unmarshal(params, into))
}

// badJSON is about a value of a wrong type, in a field or below it; nil without an error.
func badJSON(field string, err error) *acp.RequestError {
	if err == nil {
		return nil
	}
	if wrong, is := errors.AsType[*json.UnmarshalTypeError](err); is {
		name := strings.Trim(field+"."+wrong.Field, ".")
		if name == "" {
			name = "params"
		}
		return invalid(name, "is of the type %s: must be %s", wrong.Value, kindName(wrong.Type.Kind().String()))
	}
	if field == "" {
		field = "params"
	}
	return invalid(field, "%v", err)
}

// kindName is what JSON calls a type of Go.
func kindName(kind string) string {
	switch kind {
	case "struct", "map":
		return "object"
	case "slice":
		return "array"
	case "int", "int64":
		return "integer"
	default:
		return kind
	}
}

// invalid is an error about a parameter.
func invalid(field, format string, args ...any) *acp.RequestError {
	return &acp.RequestError{
		Code: codeInvalidParams, Message: "Invalid params: " + field + ": " + fmt.Sprintf(format, args...), Data: map[string]any{"field": field},
	}
}

// internalError is an error that is not about the request.
func internalError(err error) *acp.RequestError {
	if own, is := errors.AsType[*acp.RequestError](err); is {
		return own
	}
	return &acp.RequestError{Code: codeInternal, Message: err.Error()}
}
