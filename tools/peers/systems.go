package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	restateVersion = "1.7.12"
	// temporalVersion is the newest of its command line that installs as a Go module.
	temporalVersion = "v1.5.1"
)

// all are the systems, in the order of the table.
func all() []system {
	return []system{
		{
			name: "toolfleet", version: "of this tree", durable: "written before it is acknowledged; fsync every 2 minutes, as JetStream's default",
			byKey: "resource keys", open: func() peer { return &toolfleetPeer{work: newWork()} },
		},
		{
			name: "river", version: moduleVersion("github.com/riverqueue/river"), durable: "fsync at each commit, as PostgreSQL's default",
			byKey: "a queue of one worker for each key, in one process", open: func() peer { return &riverPeer{work: newWork()} },
		},
		{
			name: "asynq", version: moduleVersion("github.com/hibiken/asynq"), durable: "append-only file, fsync every second",
			open: func() peer { return &asynqPeer{work: newWork()} },
		},
		{
			name: "restate", version: restateVersion, durable: "log written before it is acknowledged; the defaults of its server",
			byKey: "virtual objects", open: func() peer { return &restatePeer{work: newWork()} },
		},
		{
			name: "temporal", version: "dev server " + temporalVersion, durable: "SQLite's write-ahead log, written at each commit; fsync now and then (synchronous=NORMAL)",
			byKey: "updates of a workflow for each key", open: func() peer { return &temporalPeer{work: newWork()} },
		},
	}
}

// moduleVersion is the version with which this program was built.
func moduleVersion(path string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, m := range info.Deps {
		if m.Path == path {
			return m.Version
		}
	}
	return ""
}

func freePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer func() { _ = listener.Close() }() // nothing was sent
	address, ok := listener.Addr().(*net.TCPAddr)
	if !ok {
		return 0, errors.New("no TCP address")
	}
	return address.Port, nil
}

// startProgram starts a server that ends with this process, and writes what it says to a file.
func startProgram(c *exec.Cmd, log string) error {
	file, err := os.Create(log)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // the program has its own
	c.Stdout, c.Stderr = file, file
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		return fmt.Errorf("start %s: %w", c.Path, err)
	}
	return nil
}

// stopProgram kills a server with its children, and waits for it.
func stopProgram(c *exec.Cmd) error {
	if c == nil || c.Process == nil {
		return nil
	}
	err := syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
	_ = c.Wait() // it was killed
	return err
}

// await repeats do until it succeeds, for up to a minute.
func await(ctx context.Context, do func() error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		err := do()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// concurrently calls do for 0 to n-1, by several goroutines.
func concurrently(n, goroutines int, do func(i int) error) error {
	var next atomic.Int64
	var group sync.WaitGroup
	faults := make([]error, goroutines)
	for g := range goroutines {
		group.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && faults[g] == nil; i = int(next.Add(1)) - 1 {
				faults[g] = do(i)
			}
		})
	}
	group.Wait()
	return errors.Join(faults...)
}
