//go:build linux

package vm

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"
)

// given is what `make vm VM="-machine=plain -v"` says.
var given = struct {
	vm, emulate, verbose      *bool
	dir, kernel, machine, run *string
}{
	vm:      flag.Bool("vm", false, "run the machines"),
	dir:     flag.String("dir", "", "folder to work in, kept for the next time (default: toolfleet-vm in the cache folder of the user)"),
	kernel:  flag.String("kernel", "", "kernel to boot (default: that of Debian "+suite+", fetched once)"),
	machine: flag.String("machine", "", "only the machine of this name"),
	run:     flag.String("run", "", "only the steps whose name contains this"),
	emulate: flag.Bool("emulate", false, "do not use KVM"),
	verbose: flag.Bool("v", false, "show the consoles"),
}

func TestMachines(t *testing.T) {
	t.Parallel()
	if !*given.vm {
		t.Skip("NOT TESTED: virtual machines are of `make vm`")
	}
	o := options{
		dir: *given.dir, kernel: *given.kernel, machine: *given.machine, run: *given.run, emulate: *given.emulate, verbose: *given.verbose,
	}
	require.NoError(t, run(t.Context(), o, t.Output()))
}

// options are the command line.
type options struct {
	dir, kernel, machine, run string
	emulate, verbose          bool
}

func run(ctx context.Context, o options, out io.Writer) error {
	if err := o.prepare(ctx); err != nil {
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	defer table.Flush()
	var errs []error
	for _, m := range machines() {
		if o.machine != "" && m.name != o.machine {
			continue
		}
		m.keep(o.run)
		errs = append(errs, o.runMachine(ctx, m, out, table))
	}
	return errors.Join(errs...)
}

// prepare finds the folder and the kernel, and builds what the machines run.
func (o *options) prepare(ctx context.Context) error {
	if o.dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return err
		}
		o.dir = filepath.Join(cache, "toolfleet-vm")
	}
	if err := os.MkdirAll(o.dir, 0o755); err != nil {
		return err
	}
	if o.kernel == "" {
		var err error
		if o.kernel, err = kernel(ctx, o.dir); err != nil {
			return err
		}
	}
	return o.build(ctx)
}

// build builds the test binaries, static.
func (o *options) build(ctx context.Context) error {
	for _, b := range binaries() {
		args := append(slices.Clone(b.command), "-trimpath", "-tags", "sandboxprogram", "-ldflags", "-s -w", "-o", filepath.Join(o.dir, b.name), b.from)
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH=amd64")
		if said, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("go %s: %w: %s", strings.Join(args, " "), err, said)
		}
	}
	return nil
}

// runMachine boots a machine and adds a row to table for each of its steps.
func (o *options) runMachine(ctx context.Context, m config, out io.Writer, table io.Writer) error {
	if len(m.plan.Steps) == 0 {
		return nil
	}
	initramfs := filepath.Join(o.dir, m.name+".cpio")
	if err := o.pack(m.plan, initramfs); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(o.dir, m.name+".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	console := io.Writer(log)
	if o.verbose {
		console = io.MultiWriter(log, out)
	}
	vm := &machine{kernel: o.kernel, initramfs: initramfs, arguments: m.arguments, emulate: o.emulate, out: console}
	results, err := vm.run(ctx)
	o.emulate = vm.emulate // what does not work for one does not for the next
	failed := 0
	for _, r := range results {
		word := "ok"
		if !r.OK {
			word = "FAILED"
			failed++
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", m.name, r.Name, word, r.Took.Round(100*time.Millisecond)) // told by Flush
	}
	switch {
	case err != nil:
		return fmt.Errorf("machine %s: %w; its console is in %s", m.name, err, log.Name())
	case failed > 0 || len(results) < len(m.plan.Steps):
		return fmt.Errorf("machine %s: %d of %d steps ended, %d failed; its console is in %s", m.name, len(results), len(m.plan.Steps), failed, log.Name())
	}
	return nil
}

// programs are what the tests run, as far as this machine has them.
var programs = []string{
	"bash", "sh", "setpriv", "unshare", "mount", "umount", "su", "cat", "chmod", "chown", "cp", "cut", "date", "dd", "df", "du", "echo", "env", "false", "find", "grep",
	"head", "id", "kill", "ln", "ls", "mkdir", "mkfifo", "mknod", "mv", "nice", "nohup", "printf", "ps", "pwd", "readlink", "rm", "rmdir", "sed", "seq", "setsid", "sleep",
	"sort", "stat", "sync", "tail", "tee", "test", "[", "timeout", "touch", "tr", "true", "truncate", "uname", "wc", "whoami", "xargs", "yes", "awk", "bwrap", "base64", "fallocate",
}

// pack makes the file system of a machine.
func (o *options) pack(p Plan, name string) error {
	i := newImage()
	i.merge()
	for _, program := range programs {
		found, err := i.program(program)
		if err != nil {
			return err
		}
		if !found {
			fmt.Fprintf(os.Stderr, "vm: %s is not installed here; tests that need it will say so\n", program)
		}
	}
	for _, b := range binaries() {
		i.add(b.at, entry{mode: kindFile | 0o755, from: filepath.Join(o.dir, b.name)})
	}
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	i.add(planFile, entry{mode: kindFile | 0o644, content: text})
	for path, content := range map[string]string{
		"/etc/passwd": "root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n", "/etc/group": "root:x:0:\nnogroup:x:65534:\n",
		"/etc/shadow": "root:*:1::::::\n", "/etc/hosts": "127.0.0.1 localhost\n", "/etc/hostname": "guest\n",
	} {
		i.add(path, entry{mode: kindFile | 0o644, content: []byte(content)})
	}
	for _, dir := range []string{"/root/x", "/home/x", "/var/tmp/x", "/srv/x"} {
		i.dirs(dir)
	}
	return i.write(name)
}
