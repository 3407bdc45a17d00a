package kinds

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Handler executes payloads of a kind of the user's own. It runs in the worker's
// process, not in a sandbox. arguments and the output are JSON values. An error
// that is a *[protocol.Error] is the result's as it is; any
// other is "tool_failed" with its text. When ctx ends, the call is over whatever the
// handler returns; one that goes on then holds a slot, and what it does is not undone.
type Handler func(ctx context.Context, a *Attempt, arguments json.RawMessage) (json.RawMessage, error)

// Handlers are what executes payloads of kinds of the user's own, each kind in one way.
type Handlers struct {
	Calls    map[protocol.Kind]Handler
	Stateful map[protocol.Kind]Stateful
}

// Has reports whether there is a handler for a kind.
func (h Handlers) Has(kind protocol.Kind) bool {
	return h.Calls[kind] != nil || h.Stateful[kind].Run != nil
}

// Any reports whether there is any.
func (h Handlers) Any() bool { return len(h.Calls)+len(h.Stateful) > 0 }

// Kinds returns the kinds, sorted.
func (h Handlers) Kinds() []protocol.Kind {
	kinds := slices.AppendSeq(slices.Collect(maps.Keys(h.Calls)), maps.Keys(h.Stateful))
	slices.Sort(kinds)
	return kinds
}

// Validate reports the first handler that cannot be used.
func (h Handlers) Validate() error {
	for _, kind := range h.Kinds() {
		if _, err := wire.ParseUserKind(string(kind)); err != nil {
			return fmt.Errorf("handler: %w", err)
		}
		plain, isPlain := h.Calls[kind]
		stateful, isStateful := h.Stateful[kind]
		if isPlain == isStateful || isPlain && plain == nil {
			return fmt.Errorf("handler of %s: missing, or there are two", kind)
		}
		if err := stateful.Validate(); isStateful && err != nil {
			return fmt.Errorf("handler of %s: %w", kind, err)
		}
	}
	return nil
}

// errNoSandbox answers handlers of calls that have none.
var errNoSandbox = errors.New("the call has no sandbox: its resource key is not sandbox/<id>")

// run executes a payload of the handler's kind.
func (handler Handler) run(ctx context.Context, a *Attempt, payload protocol.UnknownPayload) (protocol.Value, error) {
	arguments, err := payload.Arguments()
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeInvalidPayload, "%v", err)
	}
	output, err := handler(ctx, a, arguments)
	if err == nil {
		value, encodeErr := wire.NewUserValue(payload.Name, output)
		if encodeErr == nil {
			return value, nil
		}
		err = encodeErr
	}
	return nil, toolFault(err)
}

// userSize is the size of what a handler returned.
func userSize(v protocol.UnknownValue) int { return len(v.Raw) }

// toolFault is an error of a user's function: typed ones that say their code as they are, all
// others tool_failed.
func toolFault(err error) error {
	if fault, typed := errors.AsType[*protocol.Error](err); typed && fault.Code != "" {
		return err
	} else if typed {
		return &protocol.Error{Code: protocol.CodeToolFailed, Message: fault.Message}
	}
	return protocol.Errorf(protocol.CodeToolFailed, "%s", strings.ToValidUTF8(err.Error(), "\uFFFD"))
}
