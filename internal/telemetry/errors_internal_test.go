package telemetry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/metric"
)

func TestExportErrors_ACancelledExportIsNoTrouble(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	handler := &exportErrors{logger: slog.New(slog.NewTextHandler(&log, nil)), now: time.Now}
	handler.Handle(fmt.Errorf("failed to upload metrics: %w", context.Canceled))
	handler.Handle(metric.ErrReaderNotRegistered) // it came before the reader was in use
	require.Empty(t, log.String())
	handler.Handle(fmt.Errorf("failed to upload metrics: %w", context.DeadlineExceeded))
	require.Contains(t, log.String(), "omitted=0")
}

func TestExportErrors_AtMostOneWarningAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		handler := &exportErrors{logger: slog.New(slog.NewTextHandler(&log, nil)), now: time.Now}
		var together sync.WaitGroup
		for range 100 {
			together.Go(func() { handler.Handle(errors.New("refused")) })
		}
		together.Wait()
		require.Equal(t, 1, bytes.Count(log.Bytes(), []byte("\n")), log.String())
		require.Contains(t, log.String(), "omitted=0")

		time.Sleep(warnEvery - time.Second)
		handler.Handle(errors.New("refused"))
		require.Equal(t, 1, bytes.Count(log.Bytes(), []byte("\n")), log.String())

		time.Sleep(time.Second)
		handler.Handle(errors.New("still refused"))
		require.Equal(t, 2, bytes.Count(log.Bytes(), []byte("\n")), log.String())
		require.Contains(t, log.String(), "omitted=100")
		require.Contains(t, log.String(), "still refused")
	})
}
