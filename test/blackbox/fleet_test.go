//go:build linux

package blackbox

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// fleet is a coordinator, whose server everybody uses, and workers that share one data directory,
// so that each finds the workspaces of the others.
type fleet struct {
	settings

	address, url, creds string
	server              *exec.Cmd
	workers             []*exec.Cmd
	kills               []kill
	random              *rand.Rand
	fault               error
}

// kill is a kill -9, and when its effects can have lasted: until another process was there, and a
// lease and some more had passed.
type kill struct {
	what        string
	from, until time.Time
}

// script is what the coordinator's model would say; nobody asks it.
const script = `{"steps": [{"text": "done"}]}`

func startFleet(ctx context.Context, s settings) (*fleet, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	address := listener.Addr().String()
	if err := errors.Join(listener.Close(), os.WriteFile(filepath.Join(s.dir, "script.json"), []byte(script), 0o600)); err != nil {
		return nil, err
	}
	f := &fleet{
		settings: s, address: address, url: "nats://" + address,
		creds: filepath.Join(s.dir, "server", "nats", "nats.token"), random: rand.New(rand.NewPCG(s.seed, 1)),
	}
	if err := f.startServer(ctx); err != nil {
		return nil, err
	}
	for range s.workers {
		if err := f.startWorker(ctx); err != nil {
			f.close()
			return nil, err
		}
	}
	return f, nil
}

func (f *fleet) startServer(ctx context.Context) (err error) {
	f.server, err = f.start(ctx, "coordinator", "serve", "--model", "script:"+filepath.Join(f.dir, "script.json"),
		"--listen", f.address, "--data", filepath.Join(f.dir, "server"))
	if err != nil {
		return err
	}
	for range 600 { // a minute
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", f.address)
		if err == nil {
			return conn.Close()
		}
		if !pause(ctx, 100*time.Millisecond) {
			return ctx.Err()
		}
	}
	return errors.New("the server does not listen")
}

func (f *fleet) startWorker(ctx context.Context) error {
	w, err := f.start(ctx, "worker", "--nats", f.url, "--creds", f.creds, "--slots", "8",
		"--data", filepath.Join(f.dir, "worker"), "--lease", f.lease.String())
	f.workers = append(f.workers, w)
	return err
}

// start starts a process that ends with this one; what it says goes to a file.
func (f *fleet) start(ctx context.Context, name string, args ...string) (*exec.Cmd, error) {
	log, err := os.OpenFile(filepath.Join(f.dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // the process has its own
	cmd := exec.CommandContext(context.WithoutCancel(ctx), filepath.Join(f.bin, name), args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd, cmd.Start()
}

// end is kill -9 of a process; it returns when the process is gone.
func end(cmd *exec.Cmd) {
	if cmd != nil && cmd.Process != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

func (f *fleet) close() {
	for _, w := range f.workers {
		end(w)
	}
	end(f.server)
}

// killNowAndThen kills a worker, or now and then the server, and starts it again, until ctx ends.
func (f *fleet) killNowAndThen(ctx context.Context) {
	for n := 0; f.fault == nil && pause(ctx, f.pause/2+time.Duration(f.random.Int64N(int64(f.pause)))); n++ {
		k := kill{what: "worker", from: time.Now()}
		if n%4 == 1 {
			k.what = "server"
			end(f.server)
			f.fault = f.startServer(context.WithoutCancel(ctx))
		} else {
			i := f.random.IntN(len(f.workers))
			end(f.workers[i])
			f.workers = append(f.workers[:i], f.workers[i+1:]...)
			f.fault = f.startWorker(ctx)
		}
		k.until = time.Now().Add(f.lease + 8*time.Second)
		f.kills = append(f.kills, k)
	}
}

func (f *fleet) count(what string) (n int) {
	for _, k := range f.kills {
		if k.what == what {
			n++
		}
	}
	return n
}

// pause waits, and reports whether ctx goes on.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
