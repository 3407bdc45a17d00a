package telemetry_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestErrorType(t *testing.T) {
	t.Parallel()
	coded := protocol.Errorf(protocol.CodeNotFound, "no file")
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"its own word":             {coded, "not_found"},
		"its own word, wrapped":    {fmt.Errorf("read: %w", coded), "not_found"},
		"its own word, joined":     {errors.Join(errors.New("first"), coded), "not_found"},
		"its own before a context": {fmt.Errorf("%w: %w", context.Canceled, coded), "not_found"},
		"cancelled":                {fmt.Errorf("call: %w", context.Canceled), "cancelled"},
		"timeout":                  {fmt.Errorf("call: %w", context.DeadlineExceeded), "timeout"},
		"anything else":            {errors.New("secret text"), "_OTHER"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.want, telemetry.ErrorType(c.err))
		})
	}
}

// statusSpan records the status that was set.
type statusSpan struct {
	trace.Span

	set string
}

func (s *statusSpan) SetStatus(_ codes.Code, description string) { s.set = description }

func TestFail_NilIsNoFailure(t *testing.T) {
	t.Parallel()
	span := &statusSpan{Span: noop.Span{}}
	telemetry.Fail(span, nil)
	require.Empty(t, span.set)
	telemetry.Fail(span, errors.New("secret text"))
	require.Equal(t, telemetry.TypeOther, span.set)
}
