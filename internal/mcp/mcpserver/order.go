package mcpserver

import (
	"context"
	"encoding/json"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

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
	before <-chan struct{} // nil for one that nothing is before
	done   chan struct{}
	once   sync.Once
	forget func()
}

func newOrder() *order { return &order{turns: map[float64]*turn{}} }

// metaTurn is where the number of a call's turn is in its metadata, once it was read.
const metaTurn = "toolfleet/turn"

// add gives out the next turn.
func (o *order) add() (number float64, t *turn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.next++
	number = o.next
	t = &turn{done: make(chan struct{})}
	t.forget = func() { o.drop(number, t) }
	if o.last != nil {
		t.before = o.last.done
	}
	o.turns[number], o.last = t, t
	return number, t
}

func (o *order) drop(number float64, t *turn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.turns, number)
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
	return &turn{done: make(chan struct{}), forget: func() {}}
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
		t.forget()
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
	number, t := c.order.add()
	meta[metaTurn], _ = json.Marshal(number) // a number, and raw JSON, always can be
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
