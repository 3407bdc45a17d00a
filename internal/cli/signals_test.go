//go:build unix

package cli_test

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/cli"
)

func TestSignals_FirstEndsTheContextAndTheSecondIsTold(t *testing.T) { //nolint:paralleltest // signals are the process's
	told := make(chan struct{}, 1)
	ctx, stop := cli.Signals(t.Context(), func() { told <- struct{}{} })
	require.NoError(t, ctx.Err())
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGTERM))
	<-ctx.Done()
	require.ErrorIs(t, context.Cause(ctx), context.Canceled)
	require.EqualError(t, context.Cause(ctx), "signal terminated")
	require.Empty(t, told)
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGINT))
	<-told
	stop()

	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP) // else it is ignored where these tests run under nohup
	ctx, stop = cli.Signals(t.Context(), func() {})
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGHUP), "the terminal is closed")
	<-ctx.Done()
	stop()

	signal.Ignore(syscall.SIGHUP) // as nohup does
	defer signal.Reset(syscall.SIGHUP)
	ctx, stop = cli.Signals(t.Context(), func() { told <- struct{}{} })
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGTERM))
	<-ctx.Done()
	stop()
	require.Empty(t, told, "the second signal was the first")

	ctx, stop = cli.Signals(t.Context(), func() {})
	stop()
	require.ErrorIs(t, ctx.Err(), context.Canceled)
}
