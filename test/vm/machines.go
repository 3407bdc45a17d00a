package main

import (
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/test/vm/plan"
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
		{"guest", "/init", []string{"build"}, module + "test/vm/guest"},
		{"probe", "/opt/probe", []string{"build"}, module + "pkg/sandbox/escapetest/probe"},
		{"worker", "/usr/bin/worker", []string{"build"}, module + "cmd/worker"},
		{"cgroup.test", "/opt/cgroup.test", test, module + "pkg/sandbox/internal/cgroup"},
		{"ns.test", "/opt/ns.test", test, module + "pkg/sandbox/ns"},
	}
}

// config is a kind of machine.
type config struct {
	name      string
	arguments string // of the kernel
	plan      plan.Plan
}

// keep drops the steps whose name does not contain text.
func (c *config) keep(text string) {
	c.plan.Steps = slices.DeleteFunc(c.plan.Steps, func(s plan.Step) bool { return !strings.Contains(s.Name, text) })
}

// nobody is the ordinary user.
const nobody = 65534

// tests is a step that runs tests.
func tests(name, binary, pattern string, uid int, group string) plan.Step {
	return plan.Step{
		Name: name, Argv: []string{"/opt/" + binary, "-test.v", "-test.run", pattern, "-test.timeout", "10m"},
		Env: []string{"TOOLFLEET_ESCAPE_PROGRAM=/opt/probe", "TOOLFLEET_CGROUPS=required"}, UID: uid, Group: group, Timeout: 10 * time.Minute,
	}
}

func machines() []config {
	return []config{
		{name: "plain", plan: plan.Plan{Steps: []plan.Step{
			tests("groups-root", "cgroup.test", ".", 0, ""),
			tests("groups-user", "cgroup.test", ".", nobody, "delegated/step"),
			tests("groups-alone", "cgroup.test", ".", nobody, "alone"),
			tests("limits-root", "ns.test", "TestGroup", 0, ""),
			tests("limits-user", "ns.test", "TestGroup", nobody, "delegated/step"),
		}}},
	}
}
