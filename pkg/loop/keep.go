package loop

import (
	"context"
	"log/slog"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/plain"
)

// keepTimeout bounds the keeping of one text.
const keepTimeout = 15 * time.Second

// keeping keeps what is cut of what inline tools return, where there is somebody to keep it;
// else the texts do not say that it is kept.
type keeping struct {
	tool    *tools.Tool
	keeper  Keeper // nil where there is nobody
	logger  *slog.Logger
	session protocol.SessionID
}

// fitted is what a model is shown of a text.
func (k keeping) fitted(ctx context.Context, call protocol.CallID, text string) string {
	var kept *protocol.Kept
	if !tools.Fits(text) {
		kept = k.keep(ctx, call, text)
	}
	return k.tool.Returned(text, call, kept)
}

// failed is what a model is shown of a failure.
func (k keeping) failed(ctx context.Context, call protocol.CallID, status protocol.Status, fault *protocol.Error) string {
	if len(fault.Message) <= plain.MaxError {
		return k.tool.Failure(status, fault)
	}
	tool := k.tool
	if tool != nil && tool.Format == nil {
		tool = nil // failures look alike
	}
	return tool.Text(&protocol.Result{CallID: call, Status: status, Error: fault, Kept: k.keep(ctx, call, fault.Message)})
}

// keep returns nil when the text is not kept.
func (k keeping) keep(ctx context.Context, call protocol.CallID, text string) *protocol.Kept {
	if k.keeper == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepTimeout)
	defer cancel()
	if err := k.keeper.Keep(ctx, k.session, call, text); err != nil {
		k.logger.WarnContext(ctx, "result cannot be kept whole", slog.String("call_id", string(call)), slog.Any("error", err))
		return nil
	}
	return &protocol.Kept{}
}
