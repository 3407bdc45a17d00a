package tools

import (
	"cmp"

	"github.com/toolfleet/toolfleet/internal/prose"
	"github.com/toolfleet/toolfleet/internal/render"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Text returns what the model reads of a result: what the tool's Format makes of it, or its
// Render, or the value as JSON when there is none, it panics, or t is nil; of a call that was
// started again it says so. It is valid UTF-8 of at most 48,000 characters.
func (t *Tool) Text(result *protocol.Result) string {
	if result == nil {
		result = &protocol.Result{
			Status: protocol.StatusOutcomeUnknown,
			Error:  protocol.Errorf(protocol.CodeInternal, "The fleet kept no result of this call."),
		}
	}
	text := prose.Valid(t.render(result))
	if t == nil || t.Format == nil {
		text = render.Again(result, text)
	}
	return render.Shown(text, result.CallID, result.Kept)
}

// render calls the tool's Format or Render function, and catches its panic.
func (t *Tool) render(result *protocol.Result) (text string) {
	if t == nil || t.Render == nil && t.Format == nil {
		return render.JSON(result)
	}
	defer func() {
		if recover() != nil {
			text = render.JSON(result)
		}
	}()
	if t.Format != nil {
		return t.Format.Text(cmp.Or(t.called, t.Name), t.arguments, result)
	}
	return t.Render(result)
}
