package httpapi

import (
	"context"

	"github.com/toolfleet/toolfleet/pkg/fleet"
)

// ResultOf is the result of the client as the API has it.
func ResultOf(ctx context.Context, o Options, r fleet.Result) (*CallResult, error) {
	return (&api{Options: o}).resultOf(ctx, r)
}
