package main

import (
	"encoding/json"
	"io"

	"github.com/toolfleet/toolfleet/pkg/loop"
)

// jsonEvents prints the events of a session, one JSON object a line.
type jsonEvents struct{ encoder *json.Encoder }

func newJSONEvents(w io.Writer) *jsonEvents {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	return &jsonEvents{encoder: encoder}
}

// observe prints an event if it is part of the contract; live news are not.
func (j *jsonEvents) observe(e loop.Event) {
	switch e.Type {
	case loop.EventSessionStarted, loop.EventModelReply, loop.EventToolCall, loop.EventToolResult, loop.EventSessionEnded:
		_ = j.encoder.Encode(e) // a reader that went away does not end the session
	case loop.EventTurnStarted, loop.EventTurnEnded, loop.EventTextDelta, loop.EventToolQueued, loop.EventToolRunning:
	}
}
