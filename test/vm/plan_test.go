//go:build linux

package vm

import (
	"fmt"
	"strings"
	"time"
)

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
