package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
)

// fewFilesData makes this test binary a process without any descriptor left for some time.
const fewFilesData = "TEST_FEW_FILES_DATA"

// TestServer_AStoreThatFailedEndsItsServer: the process ends with the reason, and the next start
// has all messages that were stored.
func TestServer_AStoreThatFailedEndsItsServer(t *testing.T) {
	t.Parallel()
	for name, listen := range map[string]string{"in its process": "", "on loopback": "127.0.0.1:0"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			endsWhenItsStoreFails(t, listen)
		})
	}
}

func endsWhenItsStoreFails(t *testing.T, listen string) {
	t.Helper()
	data := t.TempDir()
	command := exec.CommandContext(t.Context(), os.Args[0])
	command.Env = append(os.Environ(), fewFilesData+"="+data, "TEST_LISTEN="+listen)
	output, err := command.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == unlimited {
		t.Skipf("no process here can be left without descriptors: %s", output)
	}
	require.NoError(t, err, "listen %q:\n%s", listen, output)
	require.Contains(t, string(output), "embedded NATS in "+data+" (--data) can no longer store: ")
	require.Contains(t, string(output), "too many open files; start again when this is mended")
	_, counted, found := strings.Cut(string(output), "stored AFTER ")
	require.True(t, found, "%s", output)
	var after uint64
	_, err = fmt.Sscan(counted, &after)
	require.NoError(t, err)

	server := start(t, embedded.Options{Data: data, Listen: listen})
	js, err := jetstream.New(connect(t, "", "", server.Options()...), patient)
	require.NoError(t, err)
	for name, want := range map[string]uint64{"BEFORE": stored, "AFTER": after} {
		stream, err := js.Stream(t.Context(), name)
		require.NoError(t, err)
		require.Equal(t, want, stream.CachedInfo().State.Msgs, name)
	}
	require.NoError(t, publish(t.Context(), js, "AFTER"), "it stores again")
}

const (
	stored    = 100 // messages before the failure
	unlimited = 3   // the exit code of a process that keeps its descriptors
)

// exhaust has a store fail for want of descriptors, and ends with the reason.
func exhaust(data string) {
	if err := exhausted(context.Background(), data, os.Getenv("TEST_LISTEN")); err != nil {
		fmt.Println(err)
		if errors.Is(err, errUnlimited) {
			os.Exit(unlimited)
		}
		os.Exit(1)
	}
}

var errUnlimited = errors.New("the descriptors of this process have no limit")

func exhausted(ctx context.Context, data, listen string) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	logger := slog.New(slog.NewTextHandler(os.Stdout, nil))
	server, err := embedded.Start(ctx, embedded.Options{Data: data, Listen: listen, Logger: logger})
	if err != nil {
		return err
	}
	defer server.Close()
	failed := make(chan error, 1)
	server.WhenFailed(func(err error) { failed <- err })
	nc, err := natsio.Connect(ctx, "", natsio.ConnectOptions{Name: "test", Options: server.Options(), Logger: logger})
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc, patient)
	if err != nil {
		return err
	}
	for _, name := range []string{"BEFORE", "AFTER"} {
		if _, err := js.CreateStream(ctx, smallBlocks(name)); err != nil {
			return err
		}
	}
	for range stored {
		if _, err := js.Publish(ctx, "BEFORE", []byte("x")); err != nil {
			return err
		}
	}
	giveBack, err := takeFiles()
	if err != nil {
		return fmt.Errorf("%w: %w", errUnlimited, err)
	}
	after, full := fill(untilFailed(ctx, server), js, "AFTER")
	if full == nil {
		return errors.New("the store has not failed")
	}
	select {
	case <-ctx.Done():
		return errors.New("the server has not ended")
	case err := <-failed:
		fmt.Println(err)
	}
	if !server.Failing() {
		return errors.New("the server does not report that it has failed")
	}
	fmt.Println("stored AFTER", after)
	return giveBack()
}

// smallBlocks is a stream that needs another file for every few messages of [fill].
func smallBlocks(name string) jetstream.StreamConfig {
	return jetstream.StreamConfig{Name: name, Subjects: []string{name}, MaxBytes: 100_000}
}

// publish stores a message.
func publish(ctx context.Context, js jetstream.JetStream, subject string) error {
	_, err := js.Publish(ctx, subject, make([]byte, 8<<10))
	return err
}

// untilFailed returns a context that ends when the server has: a store that fails does not answer.
func untilFailed(ctx context.Context, server *embedded.Server) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	server.WhenFailed(func(error) { cancel() })
	return ctx
}

// fill stores messages until that fails, and returns how many there are.
func fill(ctx context.Context, js jetstream.JetStream, subject string) (stored uint64, err error) {
	for range 10 {
		if err := publish(ctx, js, subject); err != nil {
			return stored, err
		}
		stored++
	}
	return stored, nil
}

func TestServer_WithoutItsFilesItGivesUp(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	server := start(t, embedded.Options{Data: data})
	js, err := jetstream.New(connect(t, "", "", server.Options()...), patient)
	require.NoError(t, err)
	_, err = js.CreateStream(t.Context(), smallBlocks("S"))
	require.NoError(t, err)
	require.NoError(t, os.RemoveAll(filepath.Join(data, "jetstream")))
	_, err = fill(untilFailed(t.Context(), server), js, "S")
	require.Error(t, err)
	failed := make(chan error, 1)
	server.WhenFailed(func(err error) { failed <- err })
	select {
	case err = <-failed:
	case <-time.After(time.Minute):
		require.Fail(t, "its failure is not reported")
	}
	require.ErrorContains(t, err, data)
	require.ErrorContains(t, err, "can no longer store: ")
}
