//go:build linux

package vm

import (
	"bufio"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// binary is something that is built for the machines.
type binary struct {
	name    string
	at      string // in a machine
	command []string
	from    string
}

func binaries() []binary {
	const module = "github.com/toolfleet/toolfleet/"
	test := []string{"test", "-c"}
	return []binary{
		{"guest", "/init", test, module + "test/vm"},
		{"probe", "/opt/probe", []string{"build"}, module + "test/escapetest/probe"},
		{"worker", "/usr/bin/worker", []string{"build"}, module + "cmd/worker"},
		{"cgroup.test", "/opt/cgroup.test", test, module + "internal/sandbox/internal/cgroup"},
		{"ns.test", "/opt/ns.test", test, module + "internal/sandbox/ns"},
		{"process.test", "/opt/process.test", test, module + "internal/sandbox/process"},
		{"drivers.test", "/opt/drivers.test", test, module + "internal/sandbox/drivers"},
	}
}

// config is a kind of machine.
type config struct {
	name      string
	arguments string // of the kernel
	plan      Plan
}

// keep drops the steps whose name does not contain text.
func (c *config) keep(text string) {
	c.plan.Steps = slices.DeleteFunc(c.plan.Steps, func(s Step) bool { return !strings.Contains(s.Name, text) })
}

// nobody is the ordinary user.
const nobody = 65534

// tests is a step that runs tests.
func tests(name, binary, pattern string, uid int, group string) Step {
	return Step{
		Name: name, Argv: []string{"/opt/" + binary, "-test.v", "-test.run", pattern, "-test.timeout", "10m"},
		Env: []string{"TOOLFLEET_ESCAPE_PROGRAM=/opt/probe", "TOOLFLEET_CGROUPS=required"}, UID: uid, Group: group, Timeout: 10 * time.Minute,
	}
}

// arm is a step that runs the tests of an arm as the user that the step has, who needs nobody else:
// the machine is thrown away.
func arm(name, binary, pattern string, uid int, group string) Step {
	s := tests(name, binary, pattern, uid, group)
	s.Argv = append(s.Argv, "-test.parallel", "1") // an emulated machine is busy enough
	s.Env = append(s.Env, "TOOLFLEET_ESCAPE_ARM="+strconv.Itoa(uid), "TOOLFLEET_ESCAPE_PROBE=/opt/probe", "NATS_CREDS=secret-of-the-machine")
	return s
}

// conformance is what of the conformance suite depends on how a kernel makes and ends sandboxes.
// The rest, file operations above all, is the same under every one, and times of parts of a second
// are not kept by a machine that is emulated.
const conformance = "TestConformance/(driver|processes|life|protect)"

// escape is every probe of the escape suite, without what takes long beside them.
const escape = "TestEscape_NothingGetsOut/(kill_everything|what_is_shared|file_operations)"

// check is a step that has a worker say what the machine has.
func check(name string, uid int, group string, exit int, says ...string) Step {
	return Step{
		Name: name, Argv: []string{"/usr/bin/worker", "--sandbox-check"}, UID: uid, Group: group, Timeout: time.Minute, Exit: exit, Says: says,
	}
}

// without has a step done with user namespaces forbidden.
func without(s Step) Step {
	s.Settings = map[string]string{"/proc/sys/user/max_user_namespaces": "0"}
	return s
}

// Exit codes of a worker that was asked for the sandboxes of a machine.
const (
	exitFull, exitNone, exitPart = 0, 1, 4
)

func machines() []config {
	return []config{
		{name: "plain", plan: Plan{Steps: []Step{
			check("check-root", 0, "", exitFull, "level full, proven by driver ns", "memory cgroup", "processes cgroup", "sandboxes have groups in /sys/fs/cgroup/toolfleet-"),
			check("check-user", nobody, "", exitFull, "level full, proven by driver ns", "memory soft", "is not for this process to divide", "Delegate=yes"),
			check("check-delegated", nobody, "delegated/worker", exitFull, "level full, proven by driver ns", "memory cgroup", "/sys/fs/cgroup/delegated/toolfleet-"),
			without(check("check-no-namespaces", nobody, "", exitPart, "level paths, proven by driver landlock",
				"user.max_user_namespaces is 0", "sysctl -w user.max_user_namespaces=15000")),
			tests("groups-root", "cgroup.test", ".", 0, ""),
			tests("groups-user", "cgroup.test", ".", nobody, "delegated/step"),
			tests("groups-alone", "cgroup.test", ".", nobody, "alone"),
			arm("conformance-root", "ns.test", conformance, 0, ""),
			arm("conformance-user", "ns.test", conformance, nobody, "delegated/step"),
			arm("escape-root", "ns.test", escape, 0, ""),
			arm("escape-user", "ns.test", escape, nobody, "delegated/step"),
			arm("shares-root", "ns.test", "TestShare_LeavesSome", 0, ""),
			tests("limits-process", "process.test", "TestGroup|TestExec|TestDriver/(driver|processes|life)", nobody, "delegated/step"),
			tests("limits-landlock", "drivers.test", "TestLandlock_LimitsOfAGroup", nobody, "delegated/step"),
			tests("limits-root", "ns.test", "TestGroup", 0, ""),
			tests("limits-user", "ns.test", "TestGroup", nobody, "delegated/step"),
		}}},
		{name: "no-landlock", arguments: "lsm=lockdown,yama", plan: Plan{Steps: []Step{
			check("check-root", 0, "", exitPart, "level paths, proven by driver ns", "the kernel has no Landlock", "name landlock in the boot parameter lsm="),
			check("check-user", nobody, "", exitPart, "level paths, proven by driver ns", "commands cannot be read-only"),
			arm("network-user", "ns.test", "TestEscape_WithTheWholeNetwork", nobody, ""),
			without(check("check-no-namespaces", nobody, "", exitNone, "level none, nothing isolates", "user.max_user_namespaces is 0")),
		}}},
	}
}

// image is the file system of a machine.
type image struct {
	files map[string]entry // by absolute path
}

// entry is a file, directory or link of an image.
type entry struct {
	mode    uint32 // as stat(2) has it
	from    string // a file of this machine
	content []byte // when there is no from; of a link its target
}

// Kinds of entries, as stat(2) has them.
const (
	kindDir  = 0o040000
	kindFile = 0o100000
	kindLink = 0o120000
)

func newImage() *image { return &image{files: map[string]entry{}} }

// dirs makes the directories above a path.
func (i *image) dirs(path string) {
	for dir := filepath.Dir(path); dir != "/"; dir = filepath.Dir(dir) {
		if _, there := i.files[dir]; !there {
			i.files[dir] = entry{mode: kindDir | 0o755}
		}
	}
}

func (i *image) add(path string, e entry) {
	path = i.resolve(path)
	i.dirs(path)
	i.files[path] = e
}

// resolve follows the links of the image that lead to directories, as in /bin/sh.
func (i *image) resolve(path string) string {
	for link, e := range i.files {
		if rest, below := strings.CutPrefix(path, link+"/"); below && e.mode&0o170000 == kindLink {
			return filepath.Join(filepath.Dir(link), string(e.content), rest)
		}
	}
	return path
}

// merge makes the image's /bin and the like what they are on this machine.
func (i *image) merge() {
	for _, dir := range []string{"/bin", "/sbin", "/lib", "/lib64"} {
		if target, err := os.Readlink(dir); err == nil {
			i.add(dir, entry{mode: kindLink | 0o777, content: []byte(target)})
			i.files[filepath.Join("/", target)] = entry{mode: kindDir | 0o755}
		}
	}
}

// program adds a program of this machine, by its name, and the libraries that it needs. It
// reports whether there is one.
func (i *image) program(name string) (bool, error) {
	path, err := exec.LookPath(name)
	if errors.Is(err, exec.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return false, err
	}
	i.add(path, entry{mode: kindFile | 0o755, from: target})
	return true, i.libraries(target)
}

// places are where libraries are looked for.
var places = []string{"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"}

// libraries adds what a program is linked to.
func (i *image) libraries(path string) error {
	file, err := elf.Open(path)
	if formatErr := (*elf.FormatError)(nil); errors.As(err, &formatErr) {
		return nil // a script
	}
	if err != nil {
		return err
	}
	defer file.Close()
	needs, err := file.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, section := range file.Progs {
		if section.Type == elf.PT_INTERP {
			loader, err := io.ReadAll(section.Open())
			if err != nil {
				return err
			}
			needs = append(needs, strings.TrimRight(string(loader), "\x00"))
		}
	}
	for _, need := range needs {
		if err := i.library(need); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

func (i *image) library(name string) error {
	candidates := []string{name}
	if !filepath.IsAbs(name) {
		candidates = nil
		for _, place := range places {
			candidates = append(candidates, filepath.Join(place, name))
		}
	}
	for _, path := range candidates {
		target, err := filepath.EvalSymlinks(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if _, there := i.files[i.resolve(path)]; there {
			return nil
		}
		i.add(path, entry{mode: kindFile | 0o755, from: target})
		return i.libraries(target)
	}
	return fmt.Errorf("library %s: %w", name, fs.ErrNotExist)
}

// write writes the image as a cpio archive, which is what kernels start with.
func (i *image) write(name string) (err error) {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	out := bufio.NewWriterSize(file, 1<<20)
	number := 0
	paths := make([]string, 0, len(i.files))
	for path := range i.files {
		paths = append(paths, path)
	}
	slices.Sort(paths) // directories before what is in them
	for _, path := range paths {
		e := i.files[path]
		if e.from != "" {
			if e.content, err = os.ReadFile(e.from); err != nil {
				return err
			}
		}
		number++
		writeEntry(out, number, strings.TrimPrefix(path, "/"), e)
	}
	writeEntry(out, 0, "TRAILER!!!", entry{})
	return out.Flush()
}

// writeEntry writes an entry in the format newc. Errors stay with out.
func writeEntry(out *bufio.Writer, number int, path string, e entry) {
	fields := []int{number, int(e.mode), 0, 0, 1, 0, len(e.content), 0, 0, 0, 0, len(path) + 1, 0}
	_, _ = out.WriteString("070701")
	for _, field := range fields {
		_, _ = fmt.Fprintf(out, "%08X", field)
	}
	const head = 6 + 13*8
	_, _ = out.WriteString(path + "\x00" + padding(head+len(path)+1))
	_, _ = out.Write(e.content)
	_, _ = out.WriteString(padding(len(e.content)))
}

// padding fills up to a multiple of four.
func padding(n int) string { return "\x00\x00\x00"[:(4-n%4)%4] }
