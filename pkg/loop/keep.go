package loop

import (
	"context"
	"log/slog"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// keepTimeout bounds the keeping of one text.
const keepTimeout = 15 * time.Second

// fitted is what a model is shown of what an inline tool returned. What is cut is kept,
// where there is somebody to keep it; else the text does not say that it is.
func fitted(ctx context.Context, keeper Keeper, logger *slog.Logger, session protocol.SessionID, call protocol.CallID, text string) string {
	if tools.Fits(text) || keeper == nil {
		return tools.Shown(text, call, nil)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepTimeout)
	defer cancel()
	if err := keeper.Keep(ctx, session, call, text); err != nil {
		logger.WarnContext(ctx, "result cannot be kept whole", slog.String("call_id", string(call)), slog.Any("error", err))
		return tools.Shown(text, call, nil)
	}
	return tools.Shown(text, call, &protocol.Kept{})
}
