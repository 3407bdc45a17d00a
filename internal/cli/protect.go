package cli

import (
	"strings"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
)

// protectNone is the value of --protect for no places at all.
const protectNone = "none"

// Protect is which places of workspaces a worker's sandboxes keep from being changed, as a flag.
type Protect struct {
	Protect string `placeholder:"PATH,..." help:"Paths in the workspace that commands and tools cannot create or change; or none. Default: in a directory of yours the files that git and editors execute (.git/hooks, .git/config, .vscode, .idea and more), elsewhere none."`
}

// Places returns what the flag says: nil is the default, and empty none. See [Protects] for
// whether it can be had.
func (p *Protect) Places() ([]string, error) {
	switch strings.TrimSpace(p.Protect) {
	case "":
		return nil, nil
	case protectNone:
		return []string{}, nil
	}
	places := strings.Split(p.Protect, ",")
	for i, text := range places {
		if places[i] = strings.TrimSpace(text); places[i] == "" {
			return nil, Usagef("--protect: %v", errEmptyItem)
		}
	}
	places, err := isolation.CleanProtected(places)
	if err != nil {
		return nil, Usagef("--protect: %v", err)
	}
	return places, nil
}

// Protects returns a usage error unless a driver with these capabilities protects places.
func Protects(places []string, caps isolation.Caps) error {
	if len(places) > 0 && !caps.Protect {
		return Usagef("--protect: driver %s cannot keep commands from changing places of their workspace; driver ns can", caps.Driver)
	}
	return nil
}
