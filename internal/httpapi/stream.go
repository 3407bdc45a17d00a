package httpapi

import (
	"encoding/json"
	"net/http"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"
)

// keepAlive is after what time without an event a comment is sent. [access.Serve] bounds in what
// time the client must take it.
const keepAlive = 15 * time.Second

// stream writes text/event-stream.
type stream struct {
	ctx     huma.Context
	control *http.ResponseController
}

// streamed answers with a stream of events that write sends.
func streamed(write func(*stream)) *huma.StreamResponse {
	return &huma.StreamResponse{Body: func(ctx huma.Context) {
		ctx.SetHeader("Content-Type", "text/event-stream")
		ctx.SetHeader("Cache-Control", "no-store")
		ctx.SetHeader("X-Accel-Buffering", "no")
		s := &stream{ctx: ctx}
		if w, is := ctx.BodyWriter().(http.ResponseWriter); is {
			s.control = http.NewResponseController(w)
		}
		if s.text("retry: 1000\n\n") {
			write(s)
		}
	}}
}

// send writes an event, and reports whether the client takes it. Without an id the client continues
// behind the event before.
func (s *stream) send(kind, id string, data any) bool {
	body, err := json.Marshal(data)
	if err != nil {
		return false
	}
	text := "event: " + kind + "\n"
	if id != "" {
		text += "id: " + id + "\n"
	}
	return s.text(text + "data: " + string(body) + "\n\n") // JSON has no line breaks
}

// text writes and flushes.
func (s *stream) text(text string) bool {
	if _, err := s.ctx.BodyWriter().Write([]byte(text)); err != nil {
		return false
	}
	return s.control == nil || s.control.Flush() == nil
}

// eventStream documents that an operation answers with events: their kinds, and what their data is.
func eventStream(a *api, kinds map[string]any) func(*huma.Operation) {
	return func(op *huma.Operation) {
		text := "Server-Sent Events. After a break, send the id of the last event as Last-Event-ID: the stream continues behind it."
		for kind, of := range kinds { // programs find the types of data among the schemas
			a.huma.OpenAPI().Components.Schemas.Schema(reflect.TypeOf(of), true, kind)
		}
		op.Responses = map[string]*huma.Response{"200": {
			Description: text, Content: map[string]*huma.MediaType{"text/event-stream": {}}, // a schema would be that of each event, or of all: programs differ
		}}
	}
}
