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
	keeper  Keeper // nil where there is nobody
	logger  *slog.Logger
	session protocol.SessionID
}

// fitted is what a model is shown of a text.
func (k keeping) fitted(ctx context.Context, call protocol.CallID, text string) string {
	if tools.Fits(text) {
		return tools.Shown(text, call, nil)
	}
	return tools.Shown(text, call, k.keep(ctx, call, text))
}

// failed is what a model is shown of a failure.
func (k keeping) failed(ctx context.Context, call protocol.CallID, status protocol.Status, fault *protocol.Error) string {
	if len(fault.Message) <= plain.MaxError {
		return tools.RenderFailure(status, fault)
	}
	var none *tools.Tool // failures look alike
	return none.Text(&protocol.Result{CallID: call, Status: status, Error: fault, Kept: k.keep(ctx, call, fault.Message)})
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
