//go:build linux

package vm

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// How long a machine may take until its first process runs. Some hosts have a KVM with which no
// kernel comes up; an emulated machine shares its host's processors, and takes minutes on a busy
// one.
const (
	upWait         = 60 * time.Second
	upWaitEmulated = 10 * time.Minute
)

// errNotUp says that a machine has not come up.
var errNotUp = errors.New("the machine does not come up")

// machine is a virtual machine.
type machine struct {
	kernel, initramfs string
	arguments         string // of the kernel
	emulate           bool   // although there is a KVM
	out               io.Writer
}

// run runs the machine until it has turned itself off, and returns how its steps ended.
func (m *machine) run(ctx context.Context) ([]Result, error) {
	if kvm, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0); err == nil && !m.emulate {
		_ = kvm.Close() // it was only tried
		results, err := m.boot(ctx, upWait, "-accel", "kvm", "-cpu", "host")
		if !errors.Is(err, errNotUp) {
			return results, err
		}
		_, _ = fmt.Fprintln(m.out, "vm: no kernel comes up with this host's KVM; emulating")
		m.emulate = true
	}
	return m.boot(ctx, upWaitEmulated, "-accel", "tcg,thread=multi", "-cpu", "Haswell,-cx16")
}

func (m *machine) boot(ctx context.Context, wait time.Duration, accelerator ...string) ([]Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	args := append(slices.Clone(accelerator), "-smp", "2", "-m", "3072", "-nodefaults", "-display", "none", "-serial", "stdio", "-no-reboot",
		"-kernel", m.kernel, "-initrd", m.initramfs, "-append", "console=ttyS0 quiet panic=-1 "+m.arguments)
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", args...)
	console, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%w; install qemu-system-x86", err)
	}
	late := time.AfterFunc(wait, cancel)
	results, up, down := m.watch(console, func() { late.Stop() })
	err = cmd.Wait()
	switch {
	case !up:
		return nil, errors.Join(fmt.Errorf("%w within %s: %s", errNotUp, wait, said.String()), err)
	case !down:
		return results, errors.Join(errors.New("the machine went down before its steps had ended"), err, ctx.Err())
	}
	return results, nil
}

// watch reads the console to its end.
func (m *machine) watch(console io.Reader, onUp func()) (results []Result, up, down bool) {
	lines := bufio.NewScanner(console)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := strings.TrimRight(lines.Text(), "\r")
		result, ended := parseResult(line)
		switch {
		case ended:
			results = append(results, result)
		case strings.Contains(line, Up):
			up = true
			onUp()
		case strings.Contains(line, Down):
			down = true
		default:
			_, _ = fmt.Fprintln(m.out, line)
		}
	}
	return results, up, down
}
