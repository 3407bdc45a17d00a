package doctor

import (
	"context"
	"encoding/json"
	"io"
	"os"

	"github.com/toolfleet/toolfleet/internal/hostenv"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// Run examines this host for workers with their data below a directory, prints what it found, for
// people or as JSON, and returns [Report.Err]. With inPlace it also looks for the user's
// toolchains.
func Run(ctx context.Context, data string, inPlace bool, w io.Writer, asJSON bool) error {
	report := Examine(ctx, data)
	if ctx.Err() != nil { // what was not tried is not missing
		return ctx.Err()
	}
	if inPlace {
		report.InPlace = report.toolchains()
	}
	if err := show(w, report, asJSON); err != nil {
		return err
	}
	return report.Err()
}

// toolchains are those of this user, as the best driver shows them.
func (r Report) toolchains() *hostenv.Found {
	level, _ := sandbox.ParseLevel(r.Level) // it was made by Level.String
	home, _ := os.UserHomeDir()             // "" is none
	found := hostenv.Find(hostenv.Host{
		Path: os.Getenv("PATH"), Home: home, Env: os.Getenv, View: hostenv.ViewOf(sandbox.Caps{Driver: r.Driver, Level: level}),
	}, nil)
	return &found
}

func show(w io.Writer, report Report, asJSON bool) error {
	if !asJSON {
		return report.Write(w)
	}
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(report)
}
