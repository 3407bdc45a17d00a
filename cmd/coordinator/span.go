package main

import (
	"context"

	"github.com/toolfleet/toolfleet/internal/telemetry"
)

// spanOf starts the root of a trace, named after the command that the user typed. ended ends it
// with the command's error.
func spanOf(ctx context.Context, command string) (_ context.Context, ended func(error)) {
	ctx, span := telemetry.Tracer().Start(ctx, command)
	return ctx, func(err error) {
		telemetry.Fail(span, err)
		span.End()
	}
}
