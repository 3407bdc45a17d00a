//go:build linux

package vm

import (
	"bufio"
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
	"sort", "stat", "sync", "tail", "tee", "test", "[", "timeout", "touch", "tr", "true", "truncate", "uname",
	"wc", "whoami", "xargs", "yes", "awk", "bwrap", "base64", "fallocate",
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

// planFile is where the plan lies in the machine, as JSON.
const planFile = "/plan.json"

// Plan is what a machine does before it turns itself off.
type Plan struct {
	Steps []Step `json:"steps"`
}

// Step is one program.
type Step struct {
	Name string   `json:"name"`
	Argv []string `json:"argv"`
	Env  []string `json:"env"`
	// UID is the user, and the group.
	UID int `json:"uid"`
	// Group is a control group below the root of the hierarchy to start in; "" is the root. It
	// belongs to the user, as does the one above it unless that is the root.
	Group string `json:"group"`
	// Settings are files to be written before; what they held is put back after.
	Settings map[string]string `json:"settings"`
	Timeout  time.Duration     `json:"timeout"`
	// Exit is how the program has to end, and Says what it has to say.
	Exit int      `json:"exit"`
	Says []string `json:"says"`
}

// Words that begin the lines by which a machine tells how it goes.
const (
	Up    = "VM-UP"
	Ended = "VM-ENDED"
	Down  = "VM-DOWN"
)

// Result is how a step ended.
type Result struct {
	Name string
	OK   bool
	Took time.Duration
}

// String is the line of a result.
func (r Result) String() string {
	return fmt.Sprintf("%s %s %t %d", Ended, r.Name, r.OK, r.Took.Milliseconds())
}

// parseResult reads the line of a result.
func parseResult(line string) (r Result, ok bool) {
	_, rest, found := strings.Cut(line, Ended+" ") // the console may have something before it
	if !found {
		return r, false
	}
	var millis int64
	n, err := fmt.Sscanf(rest, "%s %t %d", &r.Name, &r.OK, &millis)
	r.Took = time.Duration(millis) * time.Millisecond
	return r, err == nil && n == 3
}

// suite is the Debian release of the kernel, and meta the package that stands for its newest one.
const (
	suite = "trixie"
	meta  = "linux-image-cloud-amd64"
)

// kernel returns a kernel of Debian. It is fetched and checked by apt, with a state of its own
// in dir, and installed nowhere.
func kernel(ctx context.Context, dir string) (string, error) {
	pattern := filepath.Join(dir, "kernel", "boot", "vmlinuz-*")
	if found, _ := filepath.Glob(pattern); len(found) > 0 { // the pattern is right
		return found[0], nil
	}
	a := apt{dir: dir}
	if err := a.setUp(); err != nil {
		return "", err
	}
	if _, err := a.run(ctx, "apt-get", "update"); err != nil {
		return "", err
	}
	depends, err := a.run(ctx, "apt-cache", "depends", meta)
	if err != nil {
		return "", err
	}
	_, after, found := strings.Cut(depends, "Depends: ")
	name, _, _ := strings.Cut(after, "\n")
	if !found {
		return "", fmt.Errorf("apt-cache depends %s: %q", meta, depends)
	}
	if _, err := a.run(ctx, "apt-get", "download", strings.TrimSpace(name)); err != nil {
		return "", err
	}
	packages, _ := filepath.Glob(filepath.Join(dir, "linux-image-*.deb")) // the pattern is right
	if len(packages) != 1 {
		return "", fmt.Errorf("%d packages of a kernel in %s, want 1", len(packages), dir)
	}
	if _, err := a.run(ctx, "dpkg-deb", "-x", packages[0], filepath.Join(dir, "kernel")); err != nil {
		return "", err
	}
	if found, _ := filepath.Glob(pattern); len(found) > 0 { // as above
		return found[0], nil
	}
	return "", errors.New("there is no kernel in " + packages[0])
}

// apt is Debian's package manager with a state of its own.
type apt struct{ dir string }

func (a apt) setUp() error {
	const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
	if _, err := os.Stat(keyring); err != nil {
		return fmt.Errorf("to check Debian's signature: %w; install debian-archive-keyring, or give a kernel by -kernel", err)
	}
	source := fmt.Sprintf("deb [signed-by=%s] http://deb.debian.org/debian %s main\n", keyring, suite)
	return errors.Join(
		os.MkdirAll(filepath.Join(a.dir, "apt", "lists", "partial"), 0o755),
		os.MkdirAll(filepath.Join(a.dir, "apt", "archives", "partial"), 0o755),
		os.WriteFile(filepath.Join(a.dir, "apt", "sources.list"), []byte(source), 0o644),
	)
}

// run runs one of apt's programs, or dpkg-deb, in the folder.
func (a apt) run(ctx context.Context, program string, args ...string) (string, error) {
	if program != "dpkg-deb" {
		state := filepath.Join(a.dir, "apt")
		args = append([]string{
			"-q", "-o", "Dir::State=" + state, "-o", "Dir::State::status=/dev/null", "-o", "Dir::Cache=" + state,
			"-o", "Dir::Etc::SourceList=" + filepath.Join(state, "sources.list"), "-o", "Dir::Etc::SourceParts=-",
			"-o", "APT::Architecture=amd64", "-o", "APT::Sandbox::User=", "-o", "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
		}, args...)
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = a.dir
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, said.String())
	}
	return string(out), nil
}
