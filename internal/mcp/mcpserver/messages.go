//nolint:tagliatelle // the names are the protocol's
package mcpserver

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// error is what is wrong with a message or a batch; id is that of the request, as it was sent, and
// nil where it cannot be relied on.
type failure struct {
	code    int64
	message string
	id      json.RawMessage
}

func invalid(id json.RawMessage, format string, args ...any) *failure {
	return &failure{code: jsonrpc.CodeInvalidRequest, message: fmt.Sprintf(format, args...), id: id}
}

// malformed is what is wrong with a message, or with a batch of them; nil is nothing.
func malformed(body []byte) *failure {
	var batch []json.RawMessage
	switch trimmed := bytes.TrimSpace(body); {
	case !json.Valid(trimmed):
		return &failure{code: jsonrpc.CodeParseError, message: "the message is not JSON"}
	case trimmed[0] != '[':
		batch = []json.RawMessage{trimmed}
	default:
		_ = json.Unmarshal(trimmed, &batch) // it is an array
	}
	if len(batch) == 0 {
		return invalid(nil, "the batch is empty")
	}
	for _, message := range batch {
		if _, err := jsonrpc.DecodeMessage(message); err != nil {
			return invalid(nil, "%v", err)
		}
		if found := inexact(message); found != nil {
			return found
		}
	}
	return nil
}

// maxExact is the largest number up to which a float64 has every whole one.
const maxExact = 1<<53 - 1

// inexact refuses a number that the SDK would answer with another one: it reads them as floats.
func inexact(message json.RawMessage) *failure {
	var has struct {
		ID     json.RawMessage `json:"id"`
		Params json.RawMessage `json:"params"`
	}
	var params struct {
		Meta struct {
			Token json.RawMessage `json:"progressToken"`
		} `json:"_meta"`
	}
	_ = json.Unmarshal(message, &has)       // it is a message
	_ = json.Unmarshal(has.Params, &params) // what is no object has no token
	for _, n := range []struct {
		name  string
		value json.RawMessage
	}{{"id", has.ID}, {"progressToken", params.Meta.Token}} {
		f, err := strconv.ParseFloat(string(n.value), 64)
		if len(n.value) > 0 && n.value[0] != '"' && string(n.value) != "null" && (err != nil || f != math.Trunc(f) || math.Abs(f) > maxExact) {
			return invalid(has.ID, "%s %s: must be a string, or a whole number of at most %d", n.name, n.value, int64(maxExact))
		}
	}
	return nil
}

// unanswerable is what keeps the SDK from answering a batch of a stream, and all that comes after
// it: it waits for an answer to each request, by its id.
func unanswerable(line []byte) *failure {
	var batch []struct {
		ID     json.RawMessage
		Method string
	}
	if bytes.TrimSpace(line)[0] == '[' {
		_ = json.Unmarshal(line, &batch) // it is an array of messages
	}
	seen := map[string]bool{}
	for _, message := range batch {
		id := string(message.ID)
		if message.Method != "" && (id == "" || id == "null" || seen[id]) {
			return invalid(nil, "in a batch each message must be a request with an id of its own")
		}
		seen[id] = true
	}
	return nil
}

// refusal answers a message.
func refusal(f *failure) []byte {
	body, _ := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": f.id, "error": &jsonrpc.Error{Code: f.code, Message: f.message}}) // it is JSON
	return append(body, '\n')
}

// wellFormed lets requests through whose body is a message that arrives within some time, and
// refuses others in the words of JSON-RPC.
func wellFormed(within time.Duration, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			next.ServeHTTP(w, r)
			return
		}
		body, err := readBody(w, r)
		var wrong *failure
		status := http.StatusBadRequest
		if _, giant := errors.AsType[*http.MaxBytesError](err); giant {
			var id idFinder
			id.read(body)
			id.tail = nil // the body is cut there
			status, wrong = http.StatusRequestEntityTooLarge, tooLong(&id)
		} else if errors.Is(err, os.ErrDeadlineExceeded) {
			status, wrong = http.StatusRequestTimeout, invalid(nil, "the message did not arrive within %s", within)
		} else {
			wrong = malformed(body)
		}
		if wrong != nil {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			_, _ = w.Write(refusal(wrong)) // the client may be gone
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(w, r)
	})
}

// tooLong refuses a message that was not kept.
func tooLong(id *idFinder) *failure {
	return invalid(id.found(), "the message has more than %d bytes", MaxBody)
}

// idFinder finds the id of a message that is read in parts, and keeps no more of it than its ends.
// There an id that stands before or behind all but the other short members of a request is that of
// the message; one in between may be of something in it.
type idFinder struct{ head, tail []byte }

// maxEnd bounds each end.
const maxEnd = 2048

// How the ends have the id.
const (
	shortMember = `"(?:jsonrpc|method)"\s*:\s*"[^"\\]*"`
	idMember    = `"id"\s*:\s*("(?:[^"\\]|\\.)*"|-?\d[^\s,}]*)`
)

var (
	idFirst = regexp.MustCompile(`^\s*\{\s*(?:` + shortMember + `\s*,\s*)*` + idMember + `\s*[,}]`)
	idLast  = regexp.MustCompile(`[,{]\s*` + idMember + `\s*(?:,\s*` + shortMember + `\s*)*\}\s*$`)
)

func (f *idFinder) read(part []byte) {
	f.head = append(f.head, part[:min(len(part), maxEnd-len(f.head))]...)
	f.tail = append(f.tail, part[max(0, len(part)-maxEnd):]...)
	f.tail = append(f.tail[:0], f.tail[max(0, len(f.tail)-maxEnd):]...)
}

// found is the id, or nil when there is none that can be relied on.
func (f *idFinder) found() json.RawMessage {
	for _, end := range [][][]byte{idFirst.FindSubmatch(f.head), idLast.FindSubmatch(f.tail)} {
		if end != nil && json.Valid(end[1]) {
			return end[1]
		}
	}
	return nil
}

// Stdio is a transport of messages, one a line. What is no message, or has more than [MaxBody]
// bytes, is refused, and those after it are read. It closes neither r nor w.
func Stdio(r io.Reader, w io.Writer) mcp.Transport {
	out := &lineWriter{w: w}
	return &mcp.IOTransport{Reader: io.NopCloser(&lineReader{in: bufio.NewReader(r), out: out}), Writer: out}
}

// lineWriter writes whole lines from several goroutines.
type lineWriter struct {
	mu sync.Mutex
	w  io.Writer
}

// Write implements [io.Writer].
func (l *lineWriter) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(line)
}

// Close implements [io.Closer].
func (*lineWriter) Close() error { return nil }

// lineReader passes on the lines that are messages.
type lineReader struct {
	in   *bufio.Reader
	out  io.Writer // gets refusals
	rest []byte    // of a line
	err  error     // after rest
}

// Read implements [io.Reader].
func (l *lineReader) Read(p []byte) (int, error) {
	for len(l.rest) == 0 {
		if l.err != nil {
			return 0, l.err
		}
		var wrong *failure
		if l.rest, wrong, l.err = l.line(); wrong == nil && len(bytes.TrimSpace(l.rest)) > 0 {
			if wrong = malformed(l.rest); wrong == nil {
				wrong = unanswerable(l.rest)
			}
		}
		if wrong != nil {
			l.rest = nil
			if _, err := l.out.Write(refusal(wrong)); err != nil {
				return 0, err
			}
		}
	}
	n := copy(p, l.rest)
	l.rest = l.rest[n:]
	return n, nil
}

// line reads a line, and keeps no more of it than the limit.
func (l *lineReader) line() (line []byte, wrong *failure, err error) {
	var id idFinder
	for giant := false; ; {
		part, err := l.in.ReadSlice('\n')
		if !giant && len(line)+len(part) > MaxBody {
			giant = true
			id.read(line)
			line = nil
		}
		if giant {
			id.read(part)
		} else {
			line = append(line, part...)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if giant {
			wrong = tooLong(&id)
		}
		return line, wrong, err
	}
}

// order keeps the calls of one stream of messages in the order in which they were read, because the
// SDK handles each in its own goroutine. A call continues once the one before it has been sent to
// the fleet or answered. Other requests are answered at once.
type order struct {
	mu    sync.Mutex
	turns map[float64]*turn // by number
	last  *turn
	next  float64
}

// turn is the position of a call in its stream.
type turn struct {
	before <-chan struct{} // nil for the first turn
	done   chan struct{}
	once   sync.Once
	order  *order // nil for a turn without a number
	number float64
}

// metaTurn is where the number of a call's turn is in its metadata, once it was read.
const metaTurn = "toolfleet/turn"

// add gives out the next turn.
func (o *order) add() *turn {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.next++
	t := &turn{done: make(chan struct{}), order: o, number: o.next}
	if o.last != nil {
		t.before = o.last.done
	}
	o.turns[t.number], o.last = t, t
	return t
}

func (o *order) drop(t *turn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.turns, t.number)
	if o.last == t {
		o.last = nil
	}
}

// of returns the turn of a call; one without any, as of HTTP, waits for nothing.
func (o *order) of(meta mcp.Meta) *turn {
	number, _ := meta[metaTurn].(float64)
	o.mu.Lock()
	defer o.mu.Unlock()
	if t := o.turns[number]; t != nil {
		return t
	}
	return &turn{done: make(chan struct{})}
}

// wait returns when the calls before this one have been sent.
func (t *turn) wait(ctx context.Context) error {
	if t.before == nil {
		return nil
	}
	select {
	case <-t.before:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// sent lets the next call continue.
func (t *turn) sent() {
	t.once.Do(func() {
		close(t.done)
		if t.order != nil {
			t.order.drop(t)
		}
	})
}

// orderedTransport is a transport whose calls have turns.
type orderedTransport struct {
	mcp.Transport

	order *order
}

// Connect implements [mcp.Transport].
func (t *orderedTransport) Connect(ctx context.Context) (mcp.Connection, error) {
	connection, err := t.Transport.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &orderedConnection{Connection: connection, order: t.order, open: map[jsonrpc.ID]*turn{}}, nil
}

type orderedConnection struct {
	mcp.Connection

	order *order
	mu    sync.Mutex
	open  map[jsonrpc.ID]*turn // of requests that are not answered
}

// Read implements [mcp.Connection].
func (c *orderedConnection) Read(ctx context.Context) (jsonrpc.Message, error) {
	message, err := c.Connection.Read(ctx)
	if request, ok := message.(*jsonrpc.Request); ok && err == nil && request.Method == "tools/call" && request.IsCall() {
		c.number(request)
	}
	return message, err
}

// number gives a call its turn. What is no call that can be read is refused elsewhere.
func (c *orderedConnection) number(request *jsonrpc.Request) {
	var params map[string]json.RawMessage
	meta := map[string]json.RawMessage{}
	if json.Unmarshal(request.Params, &params) != nil || params == nil {
		return
	}
	if given := params["_meta"]; given != nil && json.Unmarshal(given, &meta) != nil || meta == nil {
		return
	}
	t := c.order.add()
	meta[metaTurn], _ = json.Marshal(t.number) // a number, and raw JSON, always can be
	params["_meta"], _ = json.Marshal(meta)
	request.Params, _ = json.Marshal(params)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[request.ID] = t
}

// Write implements [mcp.Connection].
func (c *orderedConnection) Write(ctx context.Context, message jsonrpc.Message) error {
	if response, ok := message.(*jsonrpc.Response); ok {
		c.mu.Lock()
		t := c.open[response.ID]
		delete(c.open, response.ID)
		c.mu.Unlock()
		if t != nil {
			t.sent()
		}
	}
	return c.Connection.Write(ctx, message)
}
