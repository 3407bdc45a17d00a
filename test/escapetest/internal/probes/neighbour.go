//go:build linux

package probes

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/test/escapetest/internal/canary"
)

// neighbourProbes reach for another sandbox.
func neighbourProbes() map[string]probe {
	return map[string]probe{
		"neighbour/abstract": func(h canary.Host) canary.Verdict { return unixSecret("@"+h.Neighbour.Abstract, h.Secret) },
		"neighbour/file":     func(h canary.Host) canary.Verdict { return read(h.Neighbour.TmpFile, h.Secret) },
		"neighbour/process":  neighbourProcess,
	}
}

// beNeighbour is another sandbox: it serves the secret at an abstract socket, has it in a
// temporary file, whose path it prints, and runs until it is killed.
func beNeighbour(h canary.Host, abstract string) {
	path := filepath.Join(os.TempDir(), "neighbour.txt")
	if err := os.WriteFile(path, []byte(h.Secret), 0o644); err != nil {
		fail(err)
	}
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", "@"+abstract)
	_, _ = fmt.Fprintln(os.Stdout, path)
	for err != nil { // a sandbox without sockets
		time.Sleep(time.Hour)
	}
	for {
		c, err := l.Accept()
		if err != nil {
			fail(err)
		}
		_, _ = c.Write([]byte(h.Secret))
		_ = c.Close()
	}
}

func neighbourProcess(h canary.Host) canary.Verdict {
	err := eachProcess(func(pid int) bool {
		cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		return err == nil && pid != os.Getpid() && bytes.Contains(cmdline, []byte(h.Neighbour.Marker))
	})
	if err != nil {
		return contained(unix.ESRCH)
	}
	return leak("its processes")
}
