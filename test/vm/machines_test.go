//go:build linux

package vm

import (
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
		{"landlock.test", "/opt/landlock.test", test, module + "internal/sandbox/landlock"},
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
			without(check("check-no-namespaces", nobody, "", exitPart, "level paths, proven by driver landlock", "user.max_user_namespaces is 0", "sysctl -w user.max_user_namespaces=15000")),
			tests("groups-root", "cgroup.test", ".", 0, ""),
			tests("groups-user", "cgroup.test", ".", nobody, "delegated/step"),
			tests("groups-alone", "cgroup.test", ".", nobody, "alone"),
			arm("conformance-root", "ns.test", conformance, 0, ""),
			arm("conformance-user", "ns.test", conformance, nobody, "delegated/step"),
			arm("escape-root", "ns.test", escape, 0, ""),
			arm("escape-user", "ns.test", escape, nobody, "delegated/step"),
			arm("shares-root", "ns.test", "TestShare_LeavesSome", 0, ""),
			tests("limits-process", "process.test", "TestGroup|TestExec|TestDriver/(driver|processes|life)", nobody, "delegated/step"),
			tests("limits-landlock", "landlock.test", "TestGroup", nobody, "delegated/step"),
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
