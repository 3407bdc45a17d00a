// Command goworker is a worker with a handler in Go, which writes down when a call begins and ends.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/toolfleet/toolfleet/pkg/worker"
)

// work says what a call does; see package blackbox.
type work struct {
	ID      string `json:"id"`
	Sandbox string `json:"sandbox"`
	During  int    `json:"during"`
	SleepMS int    `json:"sleep_ms"`
}

func main() { worker.Main(worker.Handle("effect", effect)) }

// effect writes into the directory that the variable EFFECTS names, where commands of a sandbox
// have their workspace.
func effect(ctx context.Context, call *worker.Call, w work) (_ string, err error) {
	dir := filepath.Join(os.Getenv("EFFECTS"), "sandboxes", w.Sandbox, "workspace")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	file, err := os.OpenFile(filepath.Join(dir, "effects"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	run := fmt.Sprintf("%d-%d", os.Getpid(), time.Now().UnixNano())
	say := func(after time.Duration, what string) error {
		timer := time.NewTimer(after)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		_, err := fmt.Fprintln(file, what, call.ID(), run)
		return err
	}
	if err := say(0, "begin"); err != nil {
		return "", err
	}
	for range w.During {
		if err := say(30*time.Millisecond, "during"); err != nil {
			return "", err
		}
	}
	return "done", say(time.Duration(w.SleepMS)*time.Millisecond, "end")
}
