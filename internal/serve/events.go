package serve

import (
	"encoding/json"
	"fmt"
	"sync"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
)

// events sends the events of a turn as live frames.
type events struct {
	server *Server
	run    *lane.Run

	mu  sync.Mutex
	seq uint64
}

func (e *events) send(event loop.Event) {
	if event.Type == loop.EventQuestionAsked && e.server.options.TakeOn != nil {
		e.server.options.TakeOn(event)
	}
	if event.Image != nil { // it may be more than a message holds, and the journal has it
		event.Image = &loop.Image{MediaType: event.Image.MediaType}
	}
	data, err := json.Marshal(event)
	if err != nil {
		panic(fmt.Sprintf("encode event: %v", err)) // strings and numbers always encode
	}
	e.frame(wire.FrameEvent, data)
}

// started tells that the turn runs.
func (e *events) started() { e.frame(wire.FrameStarted, nil) }

func (e *events) frame(kind wire.FrameKind, data []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seq++
	body, err := wire.EncodeFrame(&wire.Frame{
		CallID: e.run.Call.ID, Seq: e.seq, Kind: kind, WorkerID: e.server.options.ID, Attempt: e.run.Attempt, Data: data,
	})
	if err != nil {
		panic(fmt.Sprintf("encode frame: %v", err))
	}
	// Lossy by contract; the journal has what counts.
	_ = e.server.nc.Publish(wire.LiveSubject(e.server.options.Fleet, e.run.Call.SessionID, e.run.Call.ID), body)
}
