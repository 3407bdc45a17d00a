//go:build linux

package probes

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/test/escapetest/internal/canary"
)

// useProbes do what every sandbox must allow, so that one that allows nothing fails.
func useProbes() map[string]probe {
	all := map[string]probe{}
	for name, try := range map[string]func() error{
		"write-workspace": func() error { return writeBack("work.txt") },
		"write-home":      func() error { return writeBack(filepath.Join(os.Getenv("HOME"), "home.txt")) },
		"write-tmp":       func() error { return writeBack(filepath.Join(os.TempDir(), "tmp.txt")) },
		"lock":            lock,
		"socketpair":      socketpair,
		"unix-server":     func() error { return serveOnce("unix", "own.sock") },
		"tcp-server":      func() error { return serveOnce("tcp", "127.0.0.1:0") },
		"threads":         threads,
		"subprocess":      func() error { return command("/proc/self/exe", "nothing").Run() },
		"shell":           func() error { return command("sh", "-c", "true | cat").Run() },
		"dev-null":        func() error { return open("/dev/null", unix.O_RDWR) },
		"dev-urandom":     func() error { return open("/dev/urandom", unix.O_RDONLY) },
		"proc-self":       func() error { return open("/proc/self/status", unix.O_RDONLY) },
		"signal-self":     func() error { return unix.Kill(os.Getpid(), unix.SIGCONT) },
		"memfd":           memfd,
	} {
		all["use/"+name] = func(canary.Host) canary.Verdict { return works(try()) }
	}
	return all
}

func writeBack(path string) error {
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		return err
	}
	data, err := os.ReadFile(path)
	if err == nil && string(data) != "x" {
		return errors.New("another content")
	}
	return cmpRemove(err, path)
}

func cmpRemove(err error, path string) error { return errors.Join(err, os.Remove(path)) }

func lock() error {
	f, err := os.Create("lock")
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
}

func socketpair() error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	_, err = unix.Write(pair[0], []byte("x"))
	return err
}

// serveOnce serves one connection from within.
func serveOnce(network, address string) error {
	_ = os.Remove(address)
	l, err := (&net.ListenConfig{}).Listen(context.Background(), network, address)
	if err != nil {
		return err
	}
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			_, _ = c.Write([]byte("x"))
			_ = c.Close()
		}
	}()
	c, err := dial(network, l.Addr().String())
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = io.ReadFull(c, make([]byte, 1))
	return err
}

func threads() error {
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { _ = unix.Getpid() })
	}
	wg.Wait()
	return nil
}

func memfd() error {
	fd, err := unix.MemfdCreate("x", unix.MFD_CLOEXEC)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err
}
