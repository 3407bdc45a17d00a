package cli

import (
	"context"

	"github.com/toolfleet/toolfleet/internal/telemetry"
)

// Telemetry sets up the traces and metrics of a service as the environment asks for them; what is
// wrong there is an error of usage. end sends what is left, also when ctx has ended.
func (p Program) Telemetry(ctx context.Context, service string, o telemetry.Options) (end func(), err error) {
	o.Getenv = p.Getenv
	shutdown, err := telemetry.Setup(ctx, service, p.Version, &o)
	if err != nil {
		return nil, Usagef("%v", err)
	}
	return func() { _ = shutdown(context.WithoutCancel(ctx)) }, nil // what cannot leave is lost
}
