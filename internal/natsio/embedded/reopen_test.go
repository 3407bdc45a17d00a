package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
)

// fewFilesData makes this test binary a process without any descriptor left for some time.
const fewFilesData = "TEST_FEW_FILES_DATA"

func TestServer_AStoreThatFailedIsOpenedAgain(t *testing.T) {
	t.Parallel()
	for _, listen := range []string{"", "127.0.0.1:0"} {
		command := exec.CommandContext(t.Context(), os.Args[0])
		command.Env = append(os.Environ(), fewFilesData+"="+t.TempDir(), "TEST_LISTEN="+listen)
		output, err := command.CombinedOutput()
		require.NoError(t, err, "listen %q:\n%s", listen, output)
	}
}

// exhaust has a store fail for want of descriptors, and stores again when there are some.
func exhaust(data string) {
	if err := exhausted(context.Background(), data, os.Getenv("TEST_LISTEN")); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

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
	const stored = 100
	for range stored {
		if _, err := js.Publish(ctx, "BEFORE", []byte("x")); err != nil {
			return err
		}
	}
	giveBack, err := takeFiles()
	if err != nil {
		return err
	}
	after, full := fill(ctx, js, "AFTER")
	if err := giveBack(); err != nil {
		return err
	}
	if full == nil {
		return errors.New("the store has not failed")
	}
	for {
		err := publish(ctx, js, "AFTER")
		if err == nil {
			after++
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the store has failed for good: %w", err)
		case err := <-failed:
			return err
		case <-time.After(50 * time.Millisecond):
		}
	}
	for name, want := range map[string]uint64{"BEFORE": stored, "AFTER": after} {
		stream, err := js.Stream(ctx, name)
		if err != nil {
			return err
		}
		if got := stream.CachedInfo().State.Msgs; got != want {
			return fmt.Errorf("stream %s has %d messages: want %d", name, got, want)
		}
	}
	return nil
}

// smallBlocks is a stream that needs another file for every few messages of [fill].
func smallBlocks(name string) jetstream.StreamConfig {
	return jetstream.StreamConfig{Name: name, Subjects: []string{name}, MaxBytes: 100_000}
}

// publish stores a message, and does not wait for ever: a store that fails does not answer.
func publish(ctx context.Context, js jetstream.JetStream, subject string) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	_, err := js.Publish(ctx, subject, make([]byte, 8<<10))
	return err
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
	_, err = fill(t.Context(), js, "S")
	require.Error(t, err)
	failed := make(chan error, 1)
	server.WhenFailed(func(err error) { failed <- err })
	select {
	case err = <-failed:
	case <-time.After(time.Minute):
		require.Fail(t, "nobody is told that it stores nothing")
	}
	require.ErrorContains(t, err, data)
	require.ErrorContains(t, err, "no such file or directory")
}
